//! Registry of the objects at which threads wait, while other threads may destroy them.
//!
//! Some programs end in that way: `main` destroys the channel and returns, while a detached thread
//! asks for the next event once more. With rdma-core such a call reads a closed descriptor, and
//! fails. A call that waits therefore finds its object in this registry by the pointer, and never
//! reads memory that may be freed. A thread that waits already goes on until there is an event, as
//! in the kernel: its reference keeps the object alive.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use urxe_driver::per_process::PerProcess;

use super::errno::Errno;

/// The live objects of one kind, by the pointers that programs have. A forked child starts with an
/// empty registry.
pub(super) struct WaitRegistry<T: 'static>(PerProcess<RwLock<ByPointer<T>>>);

type ByPointer<T> = HashMap<usize, Arc<T>, BuildHasherDefault<PointerHasher>>;

/// A hash function for addresses. They come from the allocator, so no peer can choose them to
/// collide, and a multiplication is enough.
#[derive(Default)]
struct PointerHasher(u64);

impl Hasher for PointerHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_usize(byte.into());
        }
    }

    fn write_usize(&mut self, address: usize) {
        // Fibonacci hashing. The map uses the low bits and the top seven, and the product's best
        // mixed bits are the top ones.
        let product = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl<T: Debug + Send + Sync> WaitRegistry<T> {
    pub const fn new() -> Self {
        WaitRegistry(PerProcess::new())
    }

    fn all(&'static self) -> &'static RwLock<ByPointer<T>> {
        self.0.get(RwLock::default)
    }

    /// Adds an object.
    pub fn add<C>(&'static self, pointer: *const C, what: &Arc<T>) {
        let mut all = self.all().write().unwrap_or_else(PoisonError::into_inner);
        all.insert(pointer.addr(), Arc::clone(what));
    }

    /// Returns the object of a pointer, which is only compared.
    ///
    /// # Errors
    /// `EINVAL` for a null pointer, `EBADF` for an object that was destroyed.
    pub fn find<C>(&'static self, pointer: *const C) -> Result<Arc<T>, Errno> {
        if pointer.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let all = self.all().read().unwrap_or_else(PoisonError::into_inner);
        all.get(&pointer.addr())
            .map(Arc::clone)
            .ok_or(Errno(libc::EBADF))
    }

    /// Removes an object, so that no further thread waits at it. To be called before its memory is
    /// freed. Returns false if it is not registered.
    pub fn remove<C>(&'static self, pointer: *const C) -> bool {
        let mut all = self.all().write().unwrap_or_else(PoisonError::into_inner);
        let removed = all.remove(&pointer.addr());
        drop(all);
        removed.is_some()
    }
}
