//! Futures of the Rust API: each task that waits for a completion, or for room, is woken.

use crate::free_list::FreeList;
use crate::sync::lock;
use crate::system::{check, join, thread};
use crate::tasks::{RoomWaiters, Tasks};

use loom::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Wake, Waker};

/// A task that sleeps until it is woken.
struct Task {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        *lock(&self.woken) = true;
        self.changed.notify_one();
    }
}

/// Runs a task until it is ready.
fn run<T>(mut poll: impl FnMut(&Waker) -> Poll<T>) -> T {
    let task = Arc::new(Task {
        woken: Mutex::new(false),
        changed: Condvar::new(),
    });
    let waker = Waker::from(Arc::clone(&task));
    loop {
        if let Poll::Ready(value) = poll(&waker) {
            return value;
        }
        let mut woken = lock(&task.woken);
        while !*woken {
            let slept = task.changed.wait(woken);
            woken = slept.unwrap_or_else(PoisonError::into_inner);
        }
        *woken = false;
    }
}

/// A completion queue with its channel, and the reactor that watches the channel.
struct Cq {
    tasks: Arc<Tasks<u64>>,
    driver: Mutex<Driver>,
    /// Models `watch` of the Rust API's completion queue.
    watch: Mutex<()>,
}

#[derive(Default)]
struct Driver {
    completed: VecDeque<u64>,
    is_armed: bool,
    /// Whether the channel has an event that the reactor has not reported.
    edge: bool,
    reactor: Option<Waker>,
}

impl Cq {
    /// Returns a queue with two operations that are posted.
    fn new() -> Arc<Cq> {
        let tasks = Arc::new(Tasks::default());
        tasks.register(1);
        tasks.register(2);
        Arc::new(Cq {
            tasks,
            driver: Mutex::new(Driver::default()),
            watch: Mutex::new(()),
        })
    }

    /// The driver adds a completion.
    fn complete(&self, id: u64) {
        let mut driver = lock(&self.driver);
        driver.completed.push_back(id);
        let waker = match std::mem::take(&mut driver.is_armed) {
            true => {
                driver.edge = true;
                driver.reactor.take()
            }
            false => None,
        };
        if waker.is_some() {
            driver.edge = false;
        }
        drop(driver);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Models `CompletionQueue::distribute`.
    fn distribute(&self) {
        loop {
            let completed = lock(&self.driver).completed.pop_front();
            let Some(id) = completed else {
                return;
            };
            self.tasks.complete(id, id);
        }
    }

    /// Models `CompletionQueue::watch`.
    fn watch(&self) {
        let _watch = lock(&self.watch);
        if self.tasks.is_watched() {
            return;
        }
        for _ in 0..2 {
            self.tasks.start_watching();
            self.distribute();
            lock(&self.driver).is_armed = true;
            self.distribute();
            let mut driver = lock(&self.driver);
            if !std::mem::take(&mut driver.edge) {
                driver.reactor = Some(Waker::from(Arc::clone(&self.tasks)));
                return;
            }
        }
        self.tasks.notify();
    }

    /// Models `CompletionQueue::poll_operation`.
    fn poll(&self, id: u64, waker: &Waker) -> Poll<u64> {
        if let Poll::Ready(done) = self.tasks.poll(id, waker) {
            return Poll::Ready(done);
        }
        if self.tasks.is_watched() {
            return Poll::Pending;
        }
        self.watch();
        self.tasks.poll(id, waker)
    }

    fn run(&self, id: u64) {
        assert_eq!(run(|waker| self.poll(id, waker)), id);
    }
}

/// Two tasks wait while the driver adds their completions.
pub fn each_operation_completes() {
    check(2, || {
        let cq = Cq::new();
        let other = thread(&cq, |cq| cq.run(2));
        let driver = thread(&cq, |cq| {
            cq.complete(2);
            cq.complete(1);
        });
        cq.run(1);
        join(other);
        join(driver);
    });
}

/// A task drops its future after the first poll: it may have been selected to poll the queue.
pub fn dropped_operation_leaves_the_other_to_complete() {
    check(2, || {
        let cq = Cq::new();
        let other = thread(&cq, |cq| cq.run(2));
        let driver = thread(&cq, |cq| {
            cq.complete(1);
            cq.complete(2);
        });
        let _ = cq.poll(1, Waker::noop());
        let _ = cq.tasks.remove(1);
        join(other);
        join(driver);
    });
}

/// A thread that polls the queue without the reactor finds completions of tasks.
pub fn operation_found_by_a_polling_thread_leaves_the_other_to_complete() {
    check(2, || {
        let cq = Cq::new();
        let other = thread(&cq, |cq| cq.run(2));
        let driver = thread(&cq, |cq| {
            cq.complete(1);
            cq.distribute();
            cq.complete(2);
        });
        cq.run(1);
        join(other);
        join(driver);
    });
}

/// A work queue with one place.
struct WorkQueue {
    is_full: Mutex<bool>,
    room: RoomWaiters,
}

impl WorkQueue {
    fn post(&self) -> bool {
        !std::mem::replace(&mut *lock(&self.is_full), true)
    }

    /// Models `CompletionQueue::poll`: a completion is handled at once if no task waits for room.
    fn complete(&self) {
        let mut is_full = lock(&self.is_full);
        if !self.room.any() {
            *is_full = false;
            return;
        }
        drop(is_full);
        *lock(&self.is_full) = false;
        if self.room.any() {
            self.room.notify(1);
        }
    }

    /// Models `Operation::poll_post`.
    fn poll_post(&self, ticket: &mut Option<u64>, waker: &Waker) -> Poll<()> {
        if !self.post() {
            *ticket = Some(self.room.wait(*ticket, waker));
            if !self.post() {
                return Poll::Pending;
            }
        }
        if let Some(ticket) = *ticket {
            self.room.remove(ticket);
        }
        Poll::Ready(())
    }
}

/// Two tasks post to a full queue; each completes what it has posted.
pub fn tasks_wait_for_room_without_a_lost_wake_up() {
    check(2, || {
        let queue = Arc::new(WorkQueue {
            is_full: Mutex::new(true),
            room: RoomWaiters::default(),
        });
        let post = |queue: &WorkQueue| {
            let mut ticket = None;
            run(|waker| queue.poll_post(&mut ticket, waker));
            queue.complete();
        };
        let other = thread(&queue, move |queue| post(queue));
        let driver = thread(&queue, WorkQueue::complete);
        post(&queue);
        join(other);
        join(driver);
    });
}

/// A pool with one block, which another thread has.
fn pool() -> Arc<FreeList> {
    let pool = Arc::new(FreeList::new(vec![7]));
    assert_eq!(pool.take(), Some(7));
    pool
}

/// Models `BufferPool::acquire`, and the drop of the buffer.
fn take_and_put(pool: &FreeList) {
    let mut ticket = None;
    let block = run(|waker| pool.poll_take(&mut ticket, waker));
    assert_eq!((block, ticket), (7, None));
    pool.put(block);
}

/// Two tasks wait for the block; each returns it.
pub fn tasks_wait_for_a_block_without_a_lost_wake_up() {
    check(2, || {
        let pool = pool();
        let other = thread(&pool, take_and_put);
        let holder = thread(&pool, |pool| pool.put(7));
        take_and_put(&pool);
        join(other);
        join(holder);
    });
}

/// A task drops its future after the first poll: it may have been woken for the block.
pub fn task_that_stops_waiting_passes_the_block_on() {
    check(2, || {
        let pool = pool();
        let other = thread(&pool, take_and_put);
        let holder = thread(&pool, |pool| pool.put(7));
        let mut ticket = None;
        match pool.poll_take(&mut ticket, Waker::noop()) {
            Poll::Ready(block) => pool.put(block),
            Poll::Pending => pool.leave(ticket.expect("it waits")),
        }
        join(other);
        join(holder);
    });
}

/// A thread takes the block before the task that was woken for it.
pub fn task_waits_again_for_a_block_that_a_thread_took() {
    check(2, || {
        let pool = pool();
        let holder = thread(&pool, |pool| pool.put(7));
        let thief = thread(&pool, |pool| {
            if let Some(block) = pool.take() {
                pool.put(block);
            }
        });
        take_and_put(&pool);
        join(holder);
        join(thief);
    });
}
