//! What there is once in a process, and anew in a forked child.
//!
//! A child has its parent's memory but none of its threads: locks that these held stay held, and the
//! sockets are the parent's, whose packets the child must not take. So it starts with nothing, and
//! what was there stays where it is, for the objects of the parent that the child still has.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The one value of the process, made when it is first asked for.
#[derive(Debug)]
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<T>);

impl<T: Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value; `make` makes it. When several threads are the first, one of theirs is taken.
    pub(crate) fn get(&self, make: fn() -> T) -> &'static T {
        let current = self.0.load(Ordering::Acquire);
        let current = if current.is_null() {
            self.make(make)
        } else {
            current
        };
        // SAFETY: a pointer that was stored came from a box, which is never freed.
        unsafe { &*current }
    }

    #[cold]
    fn make(&self, make: fn() -> T) -> *mut T {
        forget_in_children();
        let fresh = Box::into_raw(Box::new(make()));
        let stored =
            self.0
                .compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
        match stored {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: it came from a box just now, and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        }
    }

    /// The next who asks gets a new one.
    pub(crate) fn forget(&self) {
        self.0.store(ptr::null_mut(), Ordering::Release);
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
    crate::cm::port_space::forget();
    crate::engine::forget();
    urxe_net::process_socket::forget();
    crate::regions::forget();
    crate::watcher::forget();
    crate::xrcd::forget();
}

#[cfg(test)]
mod tests {
    use super::*;

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
