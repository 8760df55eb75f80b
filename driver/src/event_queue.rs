//! Queues that a program waits on through a file descriptor.
//!
//! The descriptor is an eventfd that counts as a semaphore: readable while events wait, one readable
//! edge a notification, blocking or not as the program sets it with `O_NONBLOCK`.

use crate::engine;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Takes a lock whose data is never left half changed by a panic.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Events in the order in which they happened.
#[derive(Debug)]
pub struct EventQueue<T> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// An empty queue with a descriptor of its own.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        Ok(EventQueue {
            fd,
            queue: Mutex::new(VecDeque::new()),
        })
    }

    /// The descriptor: readable while there are events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Adds an event.
    pub(crate) fn push(&self, event: T) {
        lock(&self.queue).push_back(event);
        // It could fail only if 2^64 events were waiting.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Takes the oldest event, waiting for one unless the descriptor has `O_NONBLOCK`. Whoever
    /// waits also does the work of the network, so that no other thread has to be woken.
    ///
    /// # Errors
    /// `WouldBlock` when there is none and the descriptor does not block; `Interrupted` when a
    /// signal came.
    pub fn next(&self) -> io::Result<T> {
        self.next_with(Some)
    }

    /// The same, but gives the event to `take` while the queue is held: what `take` notes, whoever
    /// takes back events afterwards sees. Where it returns `None`, the next event is waited for.
    ///
    /// # Errors
    /// See [`EventQueue::next`].
    pub fn next_with<R>(&self, mut take: impl FnMut(T) -> Option<R>) -> io::Result<R> {
        let blocks = !fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK);
        loop {
            if !self.is_readable()? {
                if blocks {
                    engine::get().wait_driving(self.fd.as_fd())?;
                    // A signal may have ended the wait without an event.
                    if !self.is_readable()? {
                        continue;
                    }
                } else {
                    engine::get().drive();
                }
            }
            match rustix::io::read(&self.fd, &mut [0_u8; 8]) {
                Ok(_) => {}
                Err(Errno::AGAIN) if blocks => continue,
                Err(error) => return Err(error.into()),
            }
            let mut queue = lock(&self.queue);
            // None: the event was taken back when its object was destroyed.
            if let Some(taken) = queue.pop_front().and_then(&mut take) {
                return Ok(taken);
            }
        }
    }

    /// Takes back the events that `gone` names, when their object is destroyed.
    pub(crate) fn retract(&self, gone: impl Fn(&T) -> bool) {
        let mut queue = lock(&self.queue);
        let before = queue.len();
        queue.retain(|event| !gone(event));
        let retracted = before - queue.len();
        drop(queue);
        for _ in 0..retracted {
            // A reader that was quicker finds nothing in the queue, and reads again.
            if !matches!(self.is_readable(), Ok(true)) {
                return;
            }
            let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
        }
    }

    fn is_readable(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        match poll(&mut fds, Some(&rustix::time::Timespec::default())) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// How many events of an object were handed out and acknowledged: an object is destroyed only when
/// the two are equal, as the program may be looking at it until then.
#[derive(Debug, Default)]
pub struct AckCount {
    counts: Mutex<Unacknowledged>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Unacknowledged(u64);

impl AckCount {
    /// An event was handed out.
    pub fn delivered(&self) {
        lock(&self.counts).0 += 1;
    }

    /// The program is done with `n` of them. More than were handed out count as all.
    pub fn acknowledge(&self, n: u32) {
        let mut counts = lock(&self.counts);
        counts.0 = counts.0.saturating_sub(u64::from(n));
        self.changed.notify_all();
    }

    /// Waits until all are acknowledged.
    pub fn wait(&self) {
        let mut counts = lock(&self.counts);
        while counts.0 > 0 {
            counts = self
                .changed
                .wait(counts)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fcntl_setfl;

    fn nonblocking() -> EventQueue<u32> {
        let queue = EventQueue::new().unwrap();
        fcntl_setfl(queue.fd(), OFlags::NONBLOCK).unwrap();
        queue
    }

    #[test]
    fn events_come_out_in_order_and_then_the_descriptor_is_not_readable() {
        let queue = nonblocking();
        queue.push(1);
        queue.push(2);
        assert_eq!(queue.next().unwrap(), 1);
        assert!(queue.is_readable().unwrap());
        assert_eq!(queue.next().unwrap(), 2);
        assert!(!queue.is_readable().unwrap());
        assert_eq!(queue.next().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn retracted_events_leave_nothing_readable() {
        let queue = nonblocking();
        for event in [1, 2, 1, 3] {
            queue.push(event);
        }
        queue.retract(|event| *event == 1);
        assert_eq!(queue.next().unwrap(), 2);
        assert_eq!(queue.next().unwrap(), 3);
        assert!(!queue.is_readable().unwrap());
    }

    #[test]
    fn event_that_nobody_wants_is_passed_over() {
        let queue = nonblocking();
        queue.push(1);
        queue.push(2);
        let even = |event| (event % 2 == 0).then_some(event);
        assert_eq!(queue.next_with(even).unwrap(), 2);
        queue.push(3);
        let nothing = queue.next_with(even).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_blocking_reader_waits_for_the_event() {
        let queue = EventQueue::new().unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| queue.next().unwrap());
            queue.push(7);
            assert_eq!(reader.join().unwrap(), 7);
        });
    }

    #[test]
    fn destruction_waits_for_acknowledgements() {
        let acks = AckCount::default();
        acks.delivered();
        acks.delivered();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| acks.wait());
            acks.acknowledge(1);
            assert!(!waiter.is_finished());
            acks.acknowledge(1);
            waiter.join().unwrap();
        });
    }
}
