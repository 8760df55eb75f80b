//! Event queues that the application waits for through a file descriptor.
//!
//! The descriptor is an eventfd in semaphore mode. It is readable while events are queued, and each
//! event makes one readable edge. It blocks unless the application sets `O_NONBLOCK`.

use crate::loss::has_lost_descriptors;
use crate::semaphore_queue::{Announced, Semaphore, SemaphoreQueue};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use urxe_net::thread;

/// What a thread does while it waits for an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitStrategy {
    /// It receives packets, since the event comes with a packet: so no other thread has to be
    /// woken.
    Receive,
    /// It sleeps, since the event is rare: the thread must not wake for every packet.
    Sleep,
}

/// A queue of events, oldest first, with a file descriptor that is readable while it holds any.
#[derive(Debug)]
pub struct EventQueue<T> {
    events: SemaphoreQueue<T, SemaphoreFd>,
    wait_strategy: WaitStrategy,
}

/// See [`EventQueue::announce`].
pub(crate) type AnnouncedTake<'a, T> = Announced<'a, T, SemaphoreFd>;

/// The offset with which preadv2(2) reads from a file that has no position.
const NO_OFFSET: u64 = u64::MAX;

/// The eventfd, whose value is the number of queued events.
#[derive(Debug)]
pub(crate) struct SemaphoreFd(OwnedFd);

impl SemaphoreFd {
    fn is_readable(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, Some(&rustix::time::Timespec::default())) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Subtracts one from the value, if it is positive.
    fn read(&self) {
        if has_lost_descriptors() && !is_eventfd(self.0.as_fd()) {
            return;
        }
        // The application shares the descriptor, and may have read from it itself. So the read must
        // not block, whatever the descriptor's flags.
        let mut value = [0_u8; 8];
        let read = preadv2(
            &self.0,
            &mut [IoSliceMut::new(&mut value)],
            NO_OFFSET,
            ReadWriteFlags::NOWAIT,
        );
        // Linux before 5.8 does not have this flag for an eventfd.
        if read.is_err_and(|error| error != Errno::AGAIN) && matches!(self.is_readable(), Ok(true))
        {
            let _ = rustix::io::read(&self.0, &mut value);
        }
    }
}

impl Semaphore for SemaphoreFd {
    fn up(&self) {
        thread::without_cancellation(|| {
            if has_lost_descriptors() && !is_eventfd(self.0.as_fd()) {
                return;
            }
            // The write fails only if 2^64 events are queued.
            let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
        });
    }

    fn down(&self) {
        thread::without_cancellation(|| self.read());
    }
}

/// Returns whether the descriptor is an eventfd. The application may have closed it and opened a
/// file with the same number.
fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new());
    link.is_ok_and(|link| link.as_bytes() == b"anon_inode:[eventfd]")
}

impl<T> EventQueue<T> {
    /// Creates an empty queue for events that packets cause. A thread that waits for an event
    /// receives packets meanwhile.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        Self::with(WaitStrategy::Receive)
    }

    /// Creates an empty queue for rare events. A thread that waits for an event sleeps, and packets
    /// do not wake it.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn of_rare_events() -> io::Result<Self> {
        Self::with(WaitStrategy::Sleep)
    }

    fn with(wait_strategy: WaitStrategy) -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        Ok(EventQueue {
            events: SemaphoreQueue::with(SemaphoreFd(fd)),
            wait_strategy,
        })
    }

    /// The file descriptor, readable while events are queued.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.semaphore().0.as_fd()
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        self.events.push(event);
    }

    /// Returns what a thread does while it waits for an event.
    pub(crate) fn wait_strategy(&self) -> WaitStrategy {
        self.wait_strategy
    }

    /// Takes the oldest event that `take` accepts, while the queue is locked.
    pub(crate) fn take_with<R>(&self, take: impl FnMut(T) -> Option<R>) -> Option<R> {
        self.events.take(take)
    }

    /// Announces that the thread is about to take an event: one that arrives before need not wake
    /// another thread.
    pub(crate) fn announce(&self) -> AnnouncedTake<'_, T> {
        self.events.announce()
    }

    /// Takes the oldest event, if there is one. Does not wait, receive packets, or read
    /// `O_NONBLOCK`.
    pub fn take(&self) -> Option<T> {
        self.events.take(Some)
    }

    /// Removes and returns the events for which `gone` returns true, in their order.
    pub(crate) fn extract_if(&self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        self.events.extract_if(gone)
    }
}

/// Counts an object's events that were delivered and not yet acknowledged. The object is destroyed
/// only when the count is 0, since the application may use it until then.
#[derive(Debug, Default)]
pub struct AckCount {
    /// The number of events in units of [`EVENT`], plus [`HAS_WAITERS`].
    state: AtomicU64,
    /// The number of threads in [`AckCount::wait`].
    waiters: Mutex<usize>,
    changed: Condvar,
}

/// One event in [`AckCount::state`].
const EVENT: u64 = 2;
/// Set in [`AckCount::state`] while a thread waits: the count then changes under the mutex only.
const HAS_WAITERS: u64 = 1;

impl AckCount {
    /// Counts one delivered event.
    #[inline]
    pub fn delivered(&self) {
        self.state.fetch_add(EVENT, Ordering::AcqRel);
    }

    /// Acknowledges `n` events. A larger number than was delivered acknowledges all.
    ///
    /// The object may be freed as soon as the count is 0, so nothing is accessed after that, except
    /// the mutex of a waiting thread, which that thread takes before it returns.
    pub fn acknowledge(&self, n: u32) {
        let less = |state: u64| {
            let events = (state / EVENT).saturating_sub(n.into());
            (events * EVENT) | (state & HAS_WAITERS)
        };
        let unwatched = |state: u64| (state & HAS_WAITERS == 0).then(|| less(state));
        let order = Ordering::AcqRel;
        if (self.state)
            .fetch_update(order, Ordering::Acquire, unwatched)
            .is_err()
        {
            let _waiters = self.lock();
            let _ = (self.state).fetch_update(order, Ordering::Acquire, |s| Some(less(s)));
            self.changed.notify_all();
        }
    }

    /// Waits until all delivered events are acknowledged.
    pub fn wait(&self) {
        let mut waiters = self.lock();
        *waiters += 1;
        let mut state = self.state.fetch_or(HAS_WAITERS, Ordering::AcqRel);
        while state >= EVENT {
            waiters = self
                .changed
                .wait(waiters)
                .unwrap_or_else(PoisonError::into_inner);
            state = self.state.load(Ordering::Acquire);
        }
        *waiters -= 1;
        if *waiters == 0 {
            self.state.fetch_and(!HAS_WAITERS, Ordering::AcqRel);
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_setfl};

    fn nonblocking() -> EventQueue<u32> {
        let queue = EventQueue::new().unwrap();
        fcntl_setfl(queue.fd(), OFlags::NONBLOCK).unwrap();
        queue
    }

    #[test]
    fn events_are_fifo_and_the_descriptor_is_drained() {
        let queue = nonblocking();
        queue.push(1);
        queue.push(2);
        assert_eq!(queue.next().unwrap(), 1);
        assert!(queue.events.semaphore().is_readable().unwrap());
        assert_eq!(queue.next().unwrap(), 2);
        assert!(!queue.events.semaphore().is_readable().unwrap());
        assert_eq!(queue.next().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn retracted_events_leave_nothing_readable() {
        let queue = nonblocking();
        for event in [1, 2, 1, 3] {
            queue.push(event);
        }
        assert_eq!(queue.extract_if(|event| *event == 1), [1, 1]);
        assert_eq!(queue.next().unwrap(), 2);
        assert_eq!(queue.next().unwrap(), 3);
        assert!(!queue.events.semaphore().is_readable().unwrap());
    }

    #[test]
    fn take_does_not_block_after_the_application_read_the_count() {
        let queue = EventQueue::of_rare_events().unwrap();
        queue.push(1);
        rustix::io::read(queue.fd(), &mut [0_u8; 8]).unwrap();
        assert_eq!(queue.take(), Some(1));
        assert!(!queue.events.semaphore().is_readable().unwrap());
    }

    #[test]
    fn event_for_an_announced_thread_does_not_make_the_descriptor_readable() {
        let queue = nonblocking();
        let announced = queue.announce();
        queue.push(1);
        assert!(!queue.events.semaphore().is_readable().unwrap());
        queue.push(2);
        assert!(queue.events.semaphore().is_readable().unwrap());
        assert_eq!(announced.take(Some), Some(1));
        assert!(queue.events.semaphore().is_readable().unwrap());
        assert_eq!(queue.take(), Some(2));
        assert!(!queue.events.semaphore().is_readable().unwrap());
    }

    #[test]
    fn event_makes_the_descriptor_readable_when_the_announcement_is_withdrawn() {
        let queue = nonblocking();
        let announced = queue.announce();
        queue.push(1);
        drop(announced);
        assert!(queue.events.semaphore().is_readable().unwrap());
        assert_eq!(queue.next().unwrap(), 1);
    }

    #[test]
    fn next_with_skips_rejected_events() {
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
        for wait_strategy in [WaitStrategy::Receive, WaitStrategy::Sleep] {
            let queue = EventQueue::with(wait_strategy).unwrap();
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| queue.next().unwrap());
                queue.push(7);
                assert_eq!(reader.join().unwrap(), 7);
            });
        }
    }

    #[test]
    fn extract_if_does_not_block() {
        /// Enough rounds for a removal to occur between a reader's poll and its read.
        const ROUNDS: u32 = 20_000;
        const LAST: u32 = u32::MAX;
        let queue = EventQueue::of_rare_events().unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| while queue.next().unwrap() != LAST {});
            for event in 0..ROUNDS {
                queue.push(event);
                queue.extract_if(|other| *other == event);
            }
            queue.push(LAST);
            reader.join().unwrap();
        });
        assert!(!queue.events.semaphore().is_readable().unwrap());
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
