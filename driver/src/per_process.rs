//! Values that exist once per process, and are made anew in a forked child.
//!
//! A child has its parent's memory but none of its threads: locks that these held stay held. The
//! sockets belong to the parent, and the child must not take its packets. So the child starts
//! without values. The old ones stay in memory, for objects of the parent that the child still has.

use std::fmt::Debug;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use urxe_net::process_socket;
use urxe_net::thread;

/// A value that exists once per process, made by the first call of [`PerProcess::get`].
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    value: AtomicPtr<T>,
    /// Whether the value is on the list [`VALUES`].
    is_listed: AtomicBool,
}

/// A [`PerProcess`] of any type.
trait Forget: Debug + Sync {
    fn forget(&self);
}

/// An element of a list that only grows, so that a forked child can walk it, wherever the parent's
/// threads were interrupted.
#[derive(Debug)]
struct Listed {
    value: &'static dyn Forget,
    next: *const Listed,
}

/// The list of all values that were ever made.
static VALUES: AtomicPtr<Listed> = AtomicPtr::new(ptr::null_mut());

impl<T: Debug + Send + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Debug + Send + Sync> PerProcess<T> {
    /// Creates a `PerProcess` without a value.
    pub const fn new() -> Self {
        PerProcess {
            value: AtomicPtr::new(ptr::null_mut()),
            is_listed: AtomicBool::new(false),
        }
    }

    /// Returns the value, which `make` makes on the first call. If several threads call first, one
    /// of their values is kept, and the others are dropped.
    pub fn get(&'static self, make: fn() -> T) -> &'static T {
        let current = self.value.load(Ordering::Acquire);
        let current = if current.is_null() {
            self.make(make)
        } else {
            current
        };
        // SAFETY: `current` is non-null and came from `Box::into_raw`; a stored box is never freed.
        unsafe { &*current }
    }

    #[cold]
    fn make(&'static self, make: fn() -> T) -> *mut T {
        self.list();
        let fresh = Box::into_raw(Box::new(make()));
        let stored = self.value.compare_exchange(
            ptr::null_mut(),
            fresh,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        match stored {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: `fresh` came from `Box::into_raw` above, and was not stored, so no other
                // thread has a copy of the pointer.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        }
    }

    /// Makes the next call of [`PerProcess::get`] make a new value. The old one is never freed.
    pub(crate) fn forget(&self) {
        self.value.store(ptr::null_mut(), Ordering::Release);
    }

    /// Adds the value to [`VALUES`], once.
    fn list(&'static self) {
        forget_in_children();
        if self.is_listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let listed = Box::leak(Box::new(Listed {
            value: self,
            next: VALUES.load(Ordering::Acquire),
        }));
        while let Err(other) = VALUES.compare_exchange(
            listed.next.cast_mut(),
            listed,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            listed.next = other;
        }
    }
}

impl<T: Debug + Send + Sync> Forget for PerProcess<T> {
    fn forget(&self) {
        PerProcess::forget(self);
    }
}

fn forget_in_children() {
    static ONCE: Once = Once::new();
    // SAFETY: the child of a process with several threads may call only async-signal-safe
    // functions. `in_child` stores to atomics and replaces descriptors of sockets, which is allowed
    // there. It stays loaded: the library is never unloaded.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

unsafe extern "C" fn in_child() {
    // A pending cancellation must not end the child here: close(2) is a cancellation point.
    thread::without_cancellation(|| {
        process_socket::detach_after_fork();
        let mut at = VALUES.load(Ordering::Acquire).cast_const();
        // SAFETY: `at` is null, or came from a box that is never freed. Its `next` was set before
        // the element was stored with release ordering.
        while let Some(listed) = unsafe { at.as_ref() } {
            listed.value.forget();
            at = listed.next;
        }
    });
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::panic::catch_unwind;

    /// Runs `act` in a forked child.
    ///
    /// # Panics
    /// When `act` panics there, or does not return within 30 s.
    pub(crate) fn child_finishes(act: fn()) {
        /// Seconds after which the child counts as hung.
        const TIMEOUT: u32 = 30;
        let mut status = 0;
        // SAFETY: the child calls `act`, whose behavior after fork is under test, and ends by
        // `_exit`, which runs no exit handlers of the parent. `status` is valid for writes during
        // `waitpid`.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0, "fork failed");
            if child == 0 {
                libc::alarm(TIMEOUT);
                libc::_exit(catch_unwind(act).is_err().into());
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert!(libc::WIFEXITED(status), "the child hung");
        assert_eq!(libc::WEXITSTATUS(status), 0, "the child panicked");
    }

    #[test]
    fn a_per_process_value_lives_until_forget() {
        static VALUE: PerProcess<Vec<u8>> = PerProcess::new();
        let first = VALUE.get(|| vec![1]);
        assert!(ptr::eq(first, VALUE.get(|| vec![2])));
        VALUE.forget();
        assert_eq!(*VALUE.get(|| vec![3]), [3]);
        assert_eq!(*first, [1]);
    }
}
