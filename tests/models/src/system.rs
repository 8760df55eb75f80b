//! Models of kernel objects, and helpers to run models.

use crate::one_shot::OneShotTimer;
use crate::semaphore_queue::Semaphore;
use crate::sync::lock;
use loom::sync::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::PoisonError;
use urxe_proto::time::Time;

/// Runs a model under every interleaving with at most `stops` preemptions.
///
/// A switch at a blocking operation does not count. The faults that the models detect need one or
/// two preemptions. `LOOM_MAX_PREEMPTIONS` overrides the number.
pub(crate) fn check(stops: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(stops));
    builder.check(model);
}

/// A value and the threads that wait for it to change.
#[derive(Debug)]
struct Monitor<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Monitor<T> {
    fn new(value: T) -> Self {
        Monitor {
            value: Mutex::new(value),
            changed: Condvar::new(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut T)) {
        change(&mut lock(&self.value));
        self.changed.notify_all();
    }

    fn wait_until(&self, holds: impl Fn(&T) -> bool) -> MutexGuard<'_, T> {
        let mut value = lock(&self.value);
        while !holds(&value) {
            value = self
                .changed
                .wait(value)
                .unwrap_or_else(PoisonError::into_inner);
        }
        value
    }
}

/// An eventfd that wakes a thread.
#[derive(Debug)]
pub(crate) struct EventFd(Monitor<bool>);

impl EventFd {
    pub(crate) fn new() -> Self {
        EventFd(Monitor::new(false))
    }

    pub(crate) fn write(&self) {
        self.0.change(|written| *written = true);
    }

    /// Sleeps until it has been written, and resets it.
    pub(crate) fn wait(&self) {
        *self.0.wait_until(|written| *written) = false;
    }
}

/// An eventfd in semaphore mode.
#[derive(Debug)]
pub(crate) struct ModelSemaphore(Monitor<u64>);

impl ModelSemaphore {
    pub(crate) fn new() -> Self {
        ModelSemaphore(Monitor::new(0))
    }

    pub(crate) fn value(&self) -> u64 {
        *lock(&self.0.value)
    }

    /// Waits until it is readable, without a read.
    pub(crate) fn wait(&self) {
        drop(self.0.wait_until(|value| *value > 0));
    }
}

impl Semaphore for ModelSemaphore {
    fn up(&self) {
        self.0.change(|value| *value += 1);
    }

    fn down(&self) {
        self.0.change(|value| {
            assert!(*value > 0, "a read would block");
            *value -= 1;
        });
    }
}

/// The state of a kernel timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TimerState {
    Off,
    /// It has expired, or expires at any time from now on.
    Set,
}

/// A kernel timer that expires as soon as a thread waits for it.
#[derive(Debug)]
pub(crate) struct Timer(Monitor<TimerState>);

impl Timer {
    pub(crate) fn new() -> Self {
        Timer(Monitor::new(TimerState::Off))
    }

    /// Sleeps until it expires.
    pub(crate) fn wait(&self) {
        drop(self.0.wait_until(|state| *state == TimerState::Set));
    }
}

impl OneShotTimer for Timer {
    fn set(&self, _: Time) {
        self.0.change(|state| *state = TimerState::Set);
    }

    fn clear(&self) {
        // It may have expired since it was set; that expiration is discarded too.
        self.0.change(|state| *state = TimerState::Off);
    }
}

/// Starts a thread of the model with a shared object.
pub(crate) fn thread<S, R>(
    shared: &Arc<S>,
    run: impl FnOnce(&S) -> R + 'static,
) -> loom::thread::JoinHandle<R>
where
    S: 'static,
    R: 'static,
{
    let shared = Arc::clone(shared);
    loom::thread::spawn(move || run(&shared))
}

/// Joins a thread of the model, and returns its result.
pub(crate) fn join<R>(thread: loom::thread::JoinHandle<R>) -> R {
    thread.join().expect("the thread does not panic")
}
