//! What there is once in a process, and anew in a forked child.
//!
//! A child has its parent's memory but none of its threads: locks that these held stay held, and the
//! sockets are the parent's, whose packets the child must not take. So it starts with nothing, and
//! what was there stays where it is, for the objects of the parent that the child still has.

use std::fmt::Debug;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use urxe_net::process_socket;
use urxe_net::thread;

/// The one value of the process, made when it is first asked for.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    value: AtomicPtr<T>,
    /// It is in [`VALUES`].
    is_listed: AtomicBool,
}

/// A [`PerProcess`] of any type.
trait Forget: Debug + Sync {
    fn forget(&self);
}

/// An element of a list that grows only, so that a child can walk it whatever its parent's threads were
/// doing.
#[derive(Debug)]
struct Listed {
    value: &'static dyn Forget,
    next: *const Listed,
}

/// All values that were ever made.
static VALUES: AtomicPtr<Listed> = AtomicPtr::new(ptr::null_mut());

impl<T: Debug + Send + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Debug + Send + Sync> PerProcess<T> {
    /// No value yet.
    pub const fn new() -> Self {
        PerProcess {
            value: AtomicPtr::new(ptr::null_mut()),
            is_listed: AtomicBool::new(false),
        }
    }

    /// The value; `make` makes it. When several threads are the first, one of theirs is taken.
    pub fn get(&'static self, make: fn() -> T) -> &'static T {
        let current = self.value.load(Ordering::Acquire);
        let current = if current.is_null() {
            self.make(make)
        } else {
            current
        };
        // SAFETY: a pointer that was stored came from a box, which is never freed.
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
                // SAFETY: it came from a box just now, and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        }
    }

    /// The next call of [`PerProcess::get`] makes a new value. The old one stays where it is.
    pub(crate) fn forget(&self) {
        self.value.store(ptr::null_mut(), Ordering::Release);
    }

    /// Adds it to [`VALUES`], once.
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
    // SAFETY: the handler stores to atomics and puts other descriptors in the place of sockets,
    // which a child of several threads may do. It stays loaded: the library is never unloaded.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

unsafe extern "C" fn in_child() {
    // A pending cancellation must not end the child here: close(2) is a cancellation point.
    thread::without_cancellation(|| {
        process_socket::forget();
        let mut at = VALUES.load(Ordering::Acquire).cast_const();
        // SAFETY: null, or from a box that is never freed; `next` was set before the element was stored.
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
    /// When it does not finish there.
    pub(crate) fn child_finishes(act: fn()) {
        /// Seconds after which the child counts as hung.
        const TIMEOUT: u32 = 30;
        let mut status = 0;
        // SAFETY: the child runs only `act`, which is what is tested, and ends without running the parent's
        // exit handlers. `status` is valid for writing.
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
    fn value_stays_until_it_is_forgotten() {
        static VALUE: PerProcess<Vec<u8>> = PerProcess::new();
        let first = VALUE.get(|| vec![1]);
        assert!(ptr::eq(first, VALUE.get(|| vec![2])));
        VALUE.forget();
        assert_eq!(*VALUE.get(|| vec![3]), [3]);
        assert_eq!(*first, [1]);
    }
}
