//! The tasks that wait for completions of one completion queue, and the completions that wait for
//! their tasks.
//!
//! There is no thread that polls the queue for the tasks. The task that is woken when the queue's
//! descriptor is readable polls it, and wakes the tasks of the completions it finds. These
//! invariants hold:
//!
//! - An operation is registered before its work request is posted, so its completion finds it.
//! - A task stores its waker before it reads [`Tasks::is_watched`]. So either it sees that it has
//!   to poll the queue, or the next notification finds its waker.
//! - After a notification, one task with an operation is the *poller* until it polls the queue. If
//!   its operation ends before that, by completion or by dropping it, another task becomes the
//!   poller. So while operations wait, the queue is watched or a poller is about to poll it.
//!
//! Operations have numbers that are never reused, so a completion cannot reach another operation
//! than its own. The completion of a dropped operation is returned to the caller, which drops it:
//! until then the queue pair owns its memory.
#![forbid(unsafe_code)]

use crate::sync::{AtomicUsize, Mutex, Ordering, lock};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

/// Operations by their number. The model checker needs an order that is the same each time; the
/// numbers come from this process, so the keys need not be secret.
type Operations<T> = HashMap<u64, T, BuildHasherDefault<DefaultHasher>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Tasks<T> {
    state: Mutex<State<T>>,
    /// The length of `unclaimed`, so that polls need no lock while it is 0.
    unclaimed: AtomicUsize,
}

#[derive(Debug)]
struct State<T> {
    /// The operations that have not completed. The waker is absent until the first poll.
    waiting: Operations<Option<Waker>>,
    /// The operations that have completed, until their tasks take the results.
    done: Operations<T>,
    /// Completions of other work requests, which a task found, oldest first.
    unclaimed: VecDeque<T>,
    /// Tasks that wait for completions of other work requests. They may have been dropped.
    readers: Vec<Waker>,
    /// The operation whose task was woken to poll the queue.
    poller: Option<u64>,
    /// Whether a task has armed the queue and registered with the reactor since the last
    /// notification.
    watched: bool,
}

impl<T> Default for Tasks<T> {
    fn default() -> Self {
        Tasks {
            state: Mutex::new(State {
                waiting: Operations::default(),
                done: Operations::default(),
                unclaimed: VecDeque::new(),
                readers: Vec::new(),
                poller: None,
                watched: false,
            }),
            unclaimed: AtomicUsize::new(0),
        }
    }
}

impl<T> State<T> {
    /// Selects a task to poll the queue, unless there is one.
    fn select_poller(&mut self) -> Option<Waker> {
        if self.poller.is_some() {
            return None;
        }
        let mut polled = self.waiting.iter();
        let (id, waker) = polled.find_map(|(id, waker)| Some((*id, waker.clone()?)))?;
        self.poller = Some(id);
        Some(waker)
    }

    /// Ends the duty of an operation to poll the queue, and selects another one for it.
    fn pass_on(&mut self, id: u64) -> Option<Waker> {
        if self.poller != Some(id) {
            return None;
        }
        self.poller = None;
        self.select_poller()
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<T> Tasks<T> {
    /// Registers an operation, before its work request is posted.
    pub(crate) fn register(&self, id: u64) {
        lock(&self.state).waiting.insert(id, None);
    }

    /// Removes an operation that is dropped or could not be posted. Returns its completion.
    pub(crate) fn remove(&self, id: u64) -> Option<T> {
        let mut state = lock(&self.state);
        state.waiting.remove(&id);
        let done = state.done.remove(&id);
        let next = state.pass_on(id);
        drop(state);
        wake(next);
        done
    }

    /// Stores the completion of an operation and wakes its task.
    ///
    /// Returns the completion if the operation has been dropped.
    pub(crate) fn complete(&self, id: u64, completion: T) -> Option<T> {
        let mut state = lock(&self.state);
        let Some(waker) = state.waiting.remove(&id) else {
            return Some(completion);
        };
        state.done.insert(id, completion);
        drop(state);
        wake(waker);
        None
    }

    /// Takes the completion of an operation, or stores the waker of its task.
    pub(crate) fn poll(&self, id: u64, waker: &Waker) -> Poll<T> {
        let mut state = lock(&self.state);
        if let Some(done) = state.done.remove(&id) {
            let next = state.pass_on(id);
            drop(state);
            wake(next);
            return Poll::Ready(done);
        }
        if let Some(stored) = state.waiting.get_mut(&id) {
            match stored {
                Some(stored) => stored.clone_from(waker),
                None => *stored = Some(waker.clone()),
            }
        }
        Poll::Pending
    }

    /// Adds a completion that belongs to no operation, and wakes the tasks that wait for one.
    pub(crate) fn add_unclaimed(&self, completion: T) {
        let mut state = lock(&self.state);
        state.unclaimed.push_back(completion);
        self.unclaimed
            .store(state.unclaimed.len(), Ordering::Release);
        let readers = std::mem::take(&mut state.readers);
        drop(state);
        readers.into_iter().for_each(Waker::wake);
    }

    /// Takes the oldest completion that belongs to no operation.
    #[inline]
    pub(crate) fn take_unclaimed(&self) -> Option<T> {
        if self.unclaimed.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.take_oldest_unclaimed()
    }

    #[cold]
    #[inline(never)]
    fn take_oldest_unclaimed(&self) -> Option<T> {
        let mut state = lock(&self.state);
        let oldest = state.unclaimed.pop_front();
        self.unclaimed
            .store(state.unclaimed.len(), Ordering::Release);
        oldest
    }

    /// Like [`Tasks::take_unclaimed`], or stores the waker of the task.
    pub(crate) fn poll_unclaimed(&self, waker: &Waker) -> Poll<T> {
        let mut state = lock(&self.state);
        if let Some(oldest) = state.unclaimed.pop_front() {
            self.unclaimed
                .store(state.unclaimed.len(), Ordering::Release);
            return Poll::Ready(oldest);
        }
        if !state.readers.iter().any(|other| other.will_wake(waker)) {
            state.readers.push(waker.clone());
        }
        Poll::Pending
    }

    /// Removes the completions that belong to no operation and that `gone` selects.
    pub(crate) fn discard(&self, gone: impl Fn(&T) -> bool) -> VecDeque<T> {
        let mut state = lock(&self.state);
        let all = std::mem::take(&mut state.unclaimed);
        let (discarded, kept) = all.into_iter().partition(gone);
        state.unclaimed = kept;
        self.unclaimed
            .store(state.unclaimed.len(), Ordering::Release);
        discarded
    }

    /// Returns whether the next completion causes a notification.
    pub(crate) fn is_watched(&self) -> bool {
        lock(&self.state).watched
    }

    /// Announces that the caller arms the queue, polls it and registers with the reactor.
    ///
    /// A notification that follows cancels the announcement.
    pub(crate) fn start_watching(&self) {
        let mut state = lock(&self.state);
        state.watched = true;
        state.poller = None;
    }

    /// Wakes a task that polls the queue: its descriptor is readable, or its event was taken.
    pub(crate) fn notify(&self) {
        let mut state = lock(&self.state);
        state.watched = false;
        let readers = std::mem::take(&mut state.readers);
        let poller = state.select_poller();
        drop(state);
        wake(poller);
        readers.into_iter().for_each(Waker::wake);
    }

    /// Wakes all tasks, since the queue cannot be watched: each returns the error.
    pub(crate) fn fail(&self) {
        let mut state = lock(&self.state);
        state.watched = false;
        state.poller = None;
        let mut wakers = std::mem::take(&mut state.readers);
        wakers.extend(state.waiting.values_mut().filter_map(Option::take));
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl<T: Send> Wake for Tasks<T> {
    fn wake(self: Arc<Self>) {
        self.notify();
    }
}

/// The tasks that wait for room in a work queue, in the order of their arrival.
///
/// A place that becomes free wakes one task. A task that is woken and dropped before it has posted
/// passes the wake-up on.
#[derive(Debug, Default)]
pub(crate) struct RoomWaiters {
    waiting: Mutex<RoomQueue>,
    /// The length of the queue. It is written before a task checks for room again, and read after a
    /// place has become free; the lock of the work queue orders the two.
    len: AtomicUsize,
}

#[derive(Debug, Default)]
struct RoomQueue {
    next: u64,
    waiting: BTreeMap<u64, Waker>,
}

impl RoomWaiters {
    /// Adds a task. `ticket` is its place from an earlier call, which it keeps.
    pub(crate) fn wait(&self, ticket: Option<u64>, waker: &Waker) -> u64 {
        let mut queue = lock(&self.waiting);
        let ticket = ticket.unwrap_or_else(|| {
            queue.next += 1;
            queue.next
        });
        queue.waiting.insert(ticket, waker.clone());
        self.len.store(queue.waiting.len(), Ordering::Release);
        ticket
    }

    /// Returns whether tasks wait.
    pub(crate) fn any(&self) -> bool {
        self.len.load(Ordering::Acquire) > 0
    }

    /// Wakes the tasks that have waited longest, one for each of `places`.
    pub(crate) fn notify(&self, places: usize) {
        for _ in 0..places {
            let mut queue = lock(&self.waiting);
            let first = queue.waiting.pop_first();
            self.len.store(queue.waiting.len(), Ordering::Release);
            drop(queue);
            let Some((_, waker)) = first else {
                return;
            };
            waker.wake();
        }
    }

    /// Removes a task that has posted. Its wake-up, if it had one, was for the place it took.
    pub(crate) fn remove(&self, ticket: u64) -> bool {
        let mut queue = lock(&self.waiting);
        let was_waiting = queue.waiting.remove(&ticket).is_some();
        self.len.store(queue.waiting.len(), Ordering::Release);
        was_waiting
    }

    /// Removes a task that does not post, and passes its wake-up on if it had one.
    pub(crate) fn leave(&self, ticket: u64) {
        if !self.remove(ticket) {
            self.notify(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize as Count;

    /// Counts the times that a task is woken.
    #[derive(Default)]
    struct Task(Count);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Task {
        fn new() -> (Arc<Task>, Waker) {
            let task = Arc::new(Task::default());
            (Arc::clone(&task), task.into())
        }

        /// Returns how often it was woken since the last call.
        fn woken(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    /// Operations 1 and 2, each with a task that waits, on a queue that is watched.
    fn two() -> (Tasks<&'static str>, [Arc<Task>; 2]) {
        let tasks = Tasks::default();
        let both = [1, 2].map(|id| {
            let (task, waker) = Task::new();
            tasks.register(id);
            assert!(tasks.poll(id, &waker).is_pending());
            task
        });
        tasks.start_watching();
        (tasks, both)
    }

    /// Returns the operation whose task was woken to poll the queue, and the other one.
    fn poller(both: &[Arc<Task>; 2]) -> (u64, u64) {
        match [both[0].woken(), both[1].woken()] {
            [1, 0] => (1, 2),
            [0, 1] => (2, 1),
            woken => panic!("one task polls the queue: {woken:?}"),
        }
    }

    #[test]
    fn a_completion_wakes_its_task_only() {
        let (tasks, both) = two();
        assert_eq!(tasks.complete(2, "second"), None);
        assert_eq!([both[0].woken(), both[1].woken()], [0, 1]);
        assert_eq!(tasks.poll(2, Waker::noop()), Poll::Ready("second"));
        assert!(tasks.poll(1, Waker::noop()).is_pending());
    }

    #[test]
    fn a_notification_wakes_one_task_until_it_has_polled_the_queue() {
        let (tasks, both) = two();
        tasks.notify();
        poller(&both);
        assert!(!tasks.is_watched());
        tasks.notify();
        assert_eq!([both[0].woken(), both[1].woken()], [0, 0]);
        tasks.start_watching();
        tasks.notify();
        poller(&both);
    }

    #[test]
    fn a_poller_that_is_dropped_passes_its_duty_on() {
        let (tasks, both) = two();
        tasks.notify();
        let (first, other) = poller(&both);
        assert_eq!(tasks.remove(first), None);
        assert_eq!(poller(&both).0, other);
        assert_eq!(tasks.remove(other), None);
        tasks.notify();
        assert_eq!([both[0].woken(), both[1].woken()], [0, 0]);
    }

    #[test]
    fn a_poller_that_completes_before_it_polls_the_queue_passes_its_duty_on() {
        let (tasks, both) = two();
        tasks.notify();
        let (first, other) = poller(&both);
        // A thread that polls the queue by itself finds the completion.
        assert_eq!(tasks.complete(first, "first"), None);
        both[(first - 1) as usize].woken();
        assert_eq!(tasks.poll(first, Waker::noop()), Poll::Ready("first"));
        assert_eq!(poller(&both).0, other);
    }

    #[test]
    fn a_dropped_operation_returns_its_completion_to_be_dropped() {
        let (tasks, _) = two();
        assert_eq!(tasks.remove(1), None);
        assert_eq!(tasks.complete(1, "late"), Some("late"));
        assert_eq!(tasks.complete(2, "in time"), None);
        assert_eq!(tasks.remove(2), Some("in time"));
        assert_eq!(tasks.complete(2, "twice"), Some("twice"));
    }

    #[test]
    fn an_error_of_the_reactor_wakes_all_tasks() {
        let (tasks, both) = two();
        let (reader, waker) = Task::new();
        assert!(tasks.poll_unclaimed(&waker).is_pending());
        tasks.fail();
        let woken = [both[0].woken(), both[1].woken(), reader.woken()];
        assert_eq!(woken, [1, 1, 1]);
        assert!(!tasks.is_watched());
    }

    #[test]
    fn completions_without_an_operation_reach_the_readers_in_order() {
        let tasks = Tasks::default();
        let (reader, waker) = Task::new();
        assert!(tasks.poll_unclaimed(&waker).is_pending());
        assert!(tasks.poll_unclaimed(&waker).is_pending());
        for number in 1..=4 {
            tasks.add_unclaimed(number);
        }
        // Twice if the two wakers of the task do not compare equal, as `will_wake` permits.
        assert!((1..=2).contains(&reader.woken()));
        assert_eq!(tasks.discard(|number| *number == 2), [2]);
        assert_eq!(tasks.poll_unclaimed(&waker), Poll::Ready(1));
        assert_eq!(tasks.take_unclaimed(), Some(3));
        assert_eq!(tasks.take_unclaimed(), Some(4));
        assert_eq!(tasks.take_unclaimed(), None);
    }

    #[test]
    fn a_place_wakes_the_task_that_has_waited_longest() {
        let room = RoomWaiters::default();
        let [(a, waker_a), (b, waker_b)] = [Task::new(), Task::new()];
        let ticket = room.wait(None, &waker_a);
        room.wait(None, &waker_b);
        room.notify(1);
        assert_eq!([a.woken(), b.woken()], [1, 0]);
        // The place was taken by another thread. The task keeps its rank.
        assert_eq!(room.wait(Some(ticket), &waker_a), ticket);
        room.notify(1);
        assert_eq!([a.woken(), b.woken()], [1, 0]);
    }

    #[test]
    fn a_task_that_is_woken_and_does_not_post_passes_the_place_on() {
        let room = RoomWaiters::default();
        let [(a, waker_a), (b, waker_b)] = [Task::new(), Task::new()];
        let tickets = [room.wait(None, &waker_a), room.wait(None, &waker_b)];
        room.notify(1);
        room.leave(tickets[0]);
        assert_eq!([a.woken(), b.woken()], [1, 1]);
        room.leave(tickets[1]);
        assert!(!room.any());
        assert_eq!(a.woken(), 0);
    }
}
