//! What stands for the kernel: descriptors that become readable, and threads that take turns in every order.

use crate::counted::Count;
use crate::sync::lock;
use crate::waiting::Alarm;
use loom::sync::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::PoisonError;
use urxe_proto::time::Time;

/// Tries every order in which threads can come where each thread is stopped in favour of another in no more than `stops`
/// places of all; where a thread waits, others go on anyhow. Faults of the kind that is looked for need one or two.
/// `LOOM_MAX_PREEMPTIONS` sets another number.
pub(crate) fn check(stops: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(stops));
    builder.check(model);
}

/// A value, and those who wait for it to change.
#[derive(Debug)]
struct Watched<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Watched<T> {
    fn new(value: T) -> Self {
        Watched {
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

/// An eventfd by which a thread is woken.
#[derive(Debug)]
pub(crate) struct Bell(Watched<bool>);

impl Bell {
    pub(crate) fn new() -> Self {
        Bell(Watched::new(false))
    }

    pub(crate) fn ring(&self) {
        self.0.change(|rung| *rung = true);
    }

    /// Sleeps until it rings, or at once if it has, and silences it.
    pub(crate) fn wait(&self) {
        *self.0.wait_until(|rung| *rung) = false;
    }
}

/// An eventfd that counts as a semaphore.
#[derive(Debug)]
pub(crate) struct Semaphore(Watched<u64>);

impl Semaphore {
    pub(crate) fn new() -> Self {
        Semaphore(Watched::new(0))
    }

    pub(crate) fn value(&self) -> u64 {
        *lock(&self.0.value)
    }

    /// Waits until it is readable.
    pub(crate) fn wait(&self) {
        drop(self.0.wait_until(|value| *value > 0));
    }
}

impl Count for Semaphore {
    fn up(&self) {
        self.0.change(|value| *value += 1);
    }

    fn down(&self) {
        self.0.change(|value| {
            assert!(*value > 0, "a read would wait");
            *value -= 1;
        });
    }
}

/// What a timer of the kernel's is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ticking {
    Off,
    /// It has gone off, or does so at some time from now on.
    Set,
}

/// A timer of the kernel's, for which time passes as soon as somebody waits.
#[derive(Debug)]
pub(crate) struct Timer(Watched<Ticking>);

impl Timer {
    pub(crate) fn new() -> Self {
        Timer(Watched::new(Ticking::Off))
    }

    /// Sleeps until it goes off.
    pub(crate) fn wait(&self) {
        drop(self.0.wait_until(|ticking| *ticking == Ticking::Set));
    }
}

impl Alarm for Timer {
    fn set(&self, _: Time) {
        self.0.change(|ticking| *ticking = Ticking::Set);
    }

    fn silence(&self) {
        // It may have gone off right now, though it has only just been set.
        self.0.change(|ticking| *ticking = Ticking::Off);
    }
}

/// Starts a thread of the model with something that it shares with others.
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

/// What a thread of the model has returned.
pub(crate) fn end<R>(thread: loom::thread::JoinHandle<R>) -> R {
    thread.join().expect("it has not panicked")
}
