//! Objects at which threads of a program wait, while other threads may destroy them.
//!
//! Programs end that way: `main` destroys the channel and leaves, and a thread that nobody joins asks for
//! the next event once more. With rdma-core such a call reads a descriptor that is closed, and fails;
//! so a call that waits looks here for what it is to wait at, and never at memory that was freed. Whoever
//! waits already stays until there is an event, as in the kernel: what it waits at lives as long.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};

use urxe_driver::per_process::PerProcess;

use super::errno::Errno;

/// The objects of a kind that are not destroyed, by the pointers that programs have. A forked child does not find
/// its parent's.
pub(super) struct Waited<T: 'static>(PerProcess<RwLock<ByPointer<T>>>);

type ByPointer<T> = HashMap<usize, Arc<T>>;

impl<T: Debug + Send + Sync> Waited<T> {
    pub const fn new() -> Self {
        Waited(PerProcess::new())
    }

    fn all(&'static self) -> &'static RwLock<ByPointer<T>> {
        self.0.get(RwLock::default)
    }

    /// One more.
    pub fn add<C>(&'static self, pointer: *const C, what: &Arc<T>) {
        let mut all = self.all().write().unwrap_or_else(PoisonError::into_inner);
        all.insert(pointer.addr(), Arc::clone(what));
    }

    /// What to wait at; the pointer is only compared.
    ///
    /// # Errors
    /// `EINVAL` for a null pointer, `EBADF` for one that was destroyed.
    pub fn find<C>(&'static self, pointer: *const C) -> Result<Arc<T>, Errno> {
        if pointer.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let all = self.all().read().unwrap_or_else(PoisonError::into_inner);
        all.get(&pointer.addr())
            .map(Arc::clone)
            .ok_or(Errno(libc::EBADF))
    }

    /// Nobody begins to wait there any more. To be called before its memory is freed. False when it is
    /// not here.
    pub fn remove<C>(&'static self, pointer: *const C) -> bool {
        let mut all = self.all().write().unwrap_or_else(PoisonError::into_inner);
        let removed = all.remove(&pointer.addr());
        drop(all);
        removed.is_some()
    }
}
