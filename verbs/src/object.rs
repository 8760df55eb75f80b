//! Objects that programs have pointers to. An object begins with its *handle*, the C structure that
//! the verbs API defines, followed by its *state*, which only the library accesses.
//!
//! A program may read and write the handle at any time, so the library never makes a reference to
//! it.

use std::alloc::Layout;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::allocator::{Allocators, Deallocator, Kind};
use super::errno::Errno;

/// The C structure at the start of an object of this library.
pub(super) trait Handle: Sized {
    /// The library's state behind it. It is `Sync`: programs use objects from several threads at
    /// once.
    type State: Sync;
}

#[repr(C)]
struct Object<C: Handle> {
    handle: C,
    state: C::State,
    /// The program's allocator that gave the memory; `None` for the process's heap.
    deallocator: Option<Deallocator>,
}

/// Memory for an object that is not initialized yet.
pub(super) struct Place<C: Handle> {
    memory: *mut Object<C>,
    deallocator: Option<Deallocator>,
}

impl<C: Handle> Place<C> {
    /// Allocates on the process's heap.
    pub fn on_heap() -> Self {
        Self {
            memory: Box::into_raw(Box::<Object<C>>::new_uninit()).cast(),
            deallocator: None,
        }
    }

    /// Allocates with the program's own allocators if there are any, otherwise on the heap. `kind`
    /// is passed to the allocator.
    ///
    /// # Errors
    /// `ENOMEM` when the allocator fails, `EINVAL` when its memory is misaligned.
    pub fn from(allocators: Option<&Allocators>, kind: Kind) -> Result<Self, Errno> {
        let layout = Layout::new::<Object<C>>();
        let given = allocators.map(|from| from.allocate(layout, kind));
        let Some((memory, deallocator)) = given.transpose()?.flatten() else {
            return Ok(Self::on_heap());
        };
        // From here on, dropping `place` returns the memory.
        let place = Self {
            memory: memory.cast(),
            deallocator: Some(deallocator),
        };
        match place.memory.is_aligned() {
            true => Ok(place),
            false => Err(Errno(libc::EINVAL)),
        }
    }

    /// Returns the address that the object will have.
    pub fn pointer(&self) -> *mut C {
        self.memory.cast()
    }

    /// Initializes the object; the pointer is valid until [`free`].
    pub fn make(mut self, handle: C, state: C::State) -> *mut C {
        let deallocator = self.deallocator.take();
        let memory = self.memory;
        std::mem::forget(self);
        // SAFETY: `memory` is exclusively owned, aligned, and has room for the object: `Place`
        // guarantees it.
        unsafe {
            memory.write(Object {
                handle,
                state,
                deallocator,
            })
        };
        memory.cast()
    }
}

impl<C: Handle> Drop for Place<C> {
    fn drop(&mut self) {
        // SAFETY: the memory is from the allocator of `deallocator`, or from the heap if that is
        // `None`; no object was initialized in it; and it is returned once, in `drop`.
        unsafe { release(self.memory, self.deallocator.take()) };
    }
}

/// Returns the memory of an object to its allocator.
///
/// # Safety
/// `memory` must be from the allocator of `deallocator`, or from `Box` if that is `None`. It must
/// hold no live object and must not be released again.
unsafe fn release<C: Handle>(memory: *mut Object<C>, deallocator: Option<Deallocator>) {
    match deallocator {
        Some(deallocator) => deallocator.free(memory.cast()),
        // SAFETY: the memory is from a `Box` of this layout and is released once: the caller's
        // contract, section Safety.
        None => drop(unsafe { Box::from_raw(memory.cast::<MaybeUninit<Object<C>>>()) }),
    }
}

/// Makes an object on the heap; the pointer is valid until [`free`].
pub(super) fn make<C: Handle>(handle: C, state: C::State) -> *mut C {
    Place::on_heap().make(handle, state)
}

/// Returns the library's state behind an object.
///
/// # Errors
/// `EINVAL` if `pointer` is null or misaligned.
///
/// # Safety
/// If `pointer` is not null, it must be from [`make`] or [`Place::make`], and must not be freed
/// during `'a`.
pub(super) unsafe fn state_of<'a, C: Handle>(pointer: *mut C) -> Result<&'a C::State, Errno> {
    let object = pointer.cast::<Object<C>>();
    if object.is_null() || !object.is_aligned() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: `object` is a live object: the caller's contract, section Safety. No mutable
    // reference to `state` is ever made.
    Ok(unsafe { &(*object).state })
}

/// Ends an object and returns the library's state of it.
///
/// # Safety
/// `pointer` must be from [`make`] or [`Place::make`], must not have been freed, and must not be
/// used any more by any thread.
pub(super) unsafe fn free<C: Handle>(pointer: *mut C) -> C::State {
    let memory = pointer.cast::<Object<C>>();
    // SAFETY: `memory` is a live object that no thread uses: the caller's contract, section Safety.
    // It is moved out once, then its memory is released by its deallocator.
    unsafe {
        let Object {
            state, deallocator, ..
        } = memory.read();
        release(memory, deallocator);
        state
    }
}

/// Returns a number for the `handle` of an object, which programs may print and compare.
pub(super) fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The count of the objects that use this one. It cannot be destroyed before them.
#[derive(Debug, Default)]
pub struct Users(Arc<AtomicUsize>);

impl Users {
    /// Adds one user, until the returned value is dropped.
    pub fn add(&self) -> Use {
        self.0.fetch_add(1, Ordering::AcqRel);
        Use(Arc::clone(&self.0))
    }

    /// Returns the number of users.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Checks that there are no users.
    ///
    /// # Errors
    /// `EBUSY` if there are any.
    pub fn check_none(&self) -> Result<(), Errno> {
        match self.count() {
            0 => Ok(()),
            _ => Err(Errno(libc::EBUSY)),
        }
    }
}

/// One object's use of another.
#[derive(Debug)]
pub struct Use(Arc<AtomicUsize>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
