//! Queues that a program waits on through a file descriptor.
//!
//! The descriptor is an eventfd that counts as a semaphore: readable while events wait, one readable
//! edge a notification, blocking or not as the program sets it with `O_NONBLOCK`.

use crate::counted::{Count, Counted};
use crate::engine::{self, Waiter};
use crate::waiting::Waiting;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, PoisonError};

pub(crate) use crate::sync::lock;

/// What a thread does while it waits for an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meanwhile {
    /// It does the work of the network, as what it waits for comes with a packet: no other thread
    /// has to be woken then.
    Receive,
    /// It sleeps, as what it waits for is rare: it must not wake for every packet.
    Sleep,
}

/// Events in the order in which they happened.
#[derive(Debug)]
pub struct EventQueue<T> {
    events: Counted<T, Semaphore>,
    meanwhile: Meanwhile,
}

/// The descriptor.
#[derive(Debug)]
struct Semaphore(OwnedFd);

impl Semaphore {
    fn is_readable(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, Some(&rustix::time::Timespec::default())) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Count for Semaphore {
    fn up(&self) {
        if engine::has_lost_descriptors() && !is_eventfd(self.0.as_fd()) {
            return;
        }
        // It could fail only if 2^64 events were waiting.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn down(&self) {
        if engine::has_lost_descriptors() && !is_eventfd(self.0.as_fd()) {
            return;
        }
        // The descriptor is the program's too: should it have read from it, there is nothing.
        if matches!(self.is_readable(), Ok(true)) {
            let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
        }
    }
}

/// Whether the number is that of an eventfd: the program may have closed ours, and have opened a file of its own.
fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new());
    link.is_ok_and(|link| link.as_bytes() == b"anon_inode:[eventfd]")
}

impl<T> EventQueue<T> {
    /// An empty queue with a descriptor of its own, for events that packets bring: whoever waits for
    /// one receives meanwhile.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Self::with(Meanwhile::Receive)
    }

    /// The same for events so rare that whoever waits for one must not wake for every packet.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn of_rare_events() -> io::Result<Self> {
        Self::with(Meanwhile::Sleep)
    }

    fn with(meanwhile: Meanwhile) -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        Ok(EventQueue {
            events: Counted::with(Semaphore(fd)),
            meanwhile,
        })
    }

    /// The descriptor: readable while there are events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.count().0.as_fd()
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        self.events.push(event);
    }

    /// Takes the oldest event, waiting for one unless the descriptor has `O_NONBLOCK`.
    ///
    /// # Errors
    /// `WouldBlock` when there is none and the descriptor does not block; `Interrupted` when a
    /// signal came.
    pub fn next(&self) -> io::Result<T> {
        self.next_with(Some)
    }

    /// The same, but gives the event to `take` while the queue is locked: a thread that retracts events
    /// afterwards sees what `take` noted. Where `take` returns `None`, the next event is waited for.
    ///
    /// # Errors
    /// See [`EventQueue::next`].
    pub fn next_with<R>(&self, mut take: impl FnMut(T) -> Option<R>) -> io::Result<R> {
        let mut waiting = Waiting::new();
        loop {
            if let Some(taken) = self.step(&mut waiting, &mut take)? {
                return Ok(taken);
            }
            waiting.sleep_here()?;
        }
    }

    /// One step of [`EventQueue::next_with`]. `None` when there is no event yet: then the thread sleeps on
    /// [`Waiting::sleep`], tells [`Waiting::woke`], and takes the next step.
    ///
    /// # Errors
    /// See [`EventQueue::next`].
    pub fn step<R>(
        &self,
        waiting: &mut Waiting,
        mut take: impl FnMut(T) -> Option<R>,
    ) -> io::Result<Option<R>> {
        if waiting.may_have_event {
            if let Some(taken) = self.events.take(&mut take) {
                return Ok(Some(taken));
            }
            if fcntl_getfl(self.fd())?.contains(OFlags::NONBLOCK) {
                if waiting.has_driven || self.meanwhile == Meanwhile::Sleep {
                    return Err(Errno::AGAIN.into());
                }
                engine::get().send_gathered();
                engine::get().drive();
                waiting.has_driven = true;
                return self.step(waiting, take);
            }
            engine::get().send_gathered();
            if self.meanwhile == Meanwhile::Receive && waiting.waiter.is_none() {
                waiting.waiter = engine::get().wait();
            }
        }
        // After each batch the thread looks at its own descriptor: packets for others may never stop.
        let has_worked = waiting.waiter.as_ref().is_some_and(Waiter::drive);
        waiting.sleep_on(self.fd(), has_worked);
        Ok(None)
    }

    /// Takes the oldest event if there is one, whatever the descriptor has, and does nothing else.
    pub fn take(&self) -> Option<T> {
        self.events.take(Some)
    }

    /// Takes back the events that `gone` names, in their order.
    pub(crate) fn retract(&self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        self.events.retract(gone)
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
        assert!(queue.events.count().is_readable().unwrap());
        assert_eq!(queue.next().unwrap(), 2);
        assert!(!queue.events.count().is_readable().unwrap());
        assert_eq!(queue.next().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn retracted_events_leave_nothing_readable() {
        let queue = nonblocking();
        for event in [1, 2, 1, 3] {
            queue.push(event);
        }
        assert_eq!(queue.retract(|event| *event == 1), [1, 1]);
        assert_eq!(queue.next().unwrap(), 2);
        assert_eq!(queue.next().unwrap(), 3);
        assert!(!queue.events.count().is_readable().unwrap());
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
        for meanwhile in [Meanwhile::Receive, Meanwhile::Sleep] {
            let queue = EventQueue::with(meanwhile).unwrap();
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| queue.next().unwrap());
                queue.push(7);
                assert_eq!(reader.join().unwrap(), 7);
            });
        }
    }

    #[test]
    fn taking_events_back_never_waits_for_the_next_one() {
        /// Often enough that readers and whoever takes back meet between a look and a read.
        const ROUNDS: u32 = 20_000;
        const LAST: u32 = u32::MAX;
        let queue = EventQueue::of_rare_events().unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| while queue.next().unwrap() != LAST {});
            for event in 0..ROUNDS {
                queue.push(event);
                queue.retract(|other| *other == event);
            }
            queue.push(LAST);
            reader.join().unwrap();
        });
        assert!(!queue.events.count().is_readable().unwrap());
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
