//! The objects that programs hold pointers to: the C structure first, what urxe keeps of it behind.
//!
//! A program reads and writes its part whenever it likes, so ours never makes a reference to it.

use std::alloc::Layout;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::errno::Errno;
use super::parent_domain::{Allocators, Giver, Kind};

/// A C structure that begins an object of ours.
pub(super) trait Handle: Sized {
    /// What stands behind it. Programs use objects from several threads at once.
    type Ours: Sync;
}

#[repr(C)]
struct Object<C: Handle> {
    shown: C,
    ours: C::Ours,
    /// Who gave the memory, if not the process's heap.
    giver: Option<Giver>,
}

/// Room for an object that is not made yet.
pub(super) struct Place<C: Handle> {
    memory: *mut Object<C>,
    giver: Option<Giver>,
}

impl<C: Handle> Place<C> {
    /// On the process's heap.
    pub fn on_heap() -> Self {
        Self {
            memory: Box::into_raw(Box::<Object<C>>::new_uninit()).cast(),
            giver: None,
        }
    }

    /// Where the program's own allocators say, if there are any. `kind` is what they are told.
    ///
    /// # Errors
    /// `ENOMEM` when they have none, `EINVAL` when it is misaligned.
    pub fn from(allocators: Option<&Allocators>, kind: Kind) -> Result<Self, Errno> {
        let layout = Layout::new::<Object<C>>();
        let given = allocators.map(|from| from.allocate(layout, kind));
        let Some((memory, giver)) = given.transpose()?.flatten() else {
            return Ok(Self::on_heap());
        };
        // It is given back when this is dropped.
        let place = Self {
            memory: memory.cast(),
            giver: Some(giver),
        };
        match place.memory.is_aligned() {
            true => Ok(place),
            false => Err(Errno(libc::EINVAL)),
        }
    }

    /// What will point at the object.
    pub fn pointer(&self) -> *mut C {
        self.memory.cast()
    }

    /// Makes the object there; the pointer is good until [`free`].
    pub fn make(mut self, shown: C, ours: C::Ours) -> *mut C {
        let giver = self.giver.take();
        let memory = self.memory;
        std::mem::forget(self);
        // SAFETY: room for it that nobody else has, aligned.
        unsafe { memory.write(Object { shown, ours, giver }) };
        memory.cast()
    }
}

impl<C: Handle> Drop for Place<C> {
    fn drop(&mut self) {
        // SAFETY: the memory is from this giver, and no object was made there.
        unsafe { release(self.memory, self.giver.take()) };
    }
}

/// Gives the memory of an object back.
///
/// # Safety
/// It is from `giver`, or the heap, holds no object any more, and is given back once.
unsafe fn release<C: Handle>(memory: *mut Object<C>, giver: Option<Giver>) {
    match giver {
        Some(giver) => giver.take_back(memory.cast()),
        // SAFETY: it is from a box of this layout, by the caller's promise.
        None => drop(unsafe { Box::from_raw(memory.cast::<MaybeUninit<Object<C>>>()) }),
    }
}

/// Makes an object on the heap; the pointer is good until [`free`].
pub(super) fn make<C: Handle>(shown: C, ours: C::Ours) -> *mut C {
    Place::on_heap().make(shown, ours)
}

/// What stands behind an object.
///
/// # Errors
/// `EINVAL` if the pointer is null or misaligned.
///
/// # Safety
/// A pointer that is not null is from [`make`], and not freed while the reference is in use.
pub(super) unsafe fn ours<'a, C: Handle>(pointer: *mut C) -> Result<&'a C::Ours, Errno> {
    let object = pointer.cast::<Object<C>>();
    if object.is_null() || !object.is_aligned() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: a live object, by the caller's promise; nobody makes a mutable reference to this part.
    Ok(unsafe { &(*object).ours })
}

/// Ends an object, and gives back what stood behind it.
///
/// # Safety
/// The pointer is from [`make`], and nobody uses it any more.
pub(super) unsafe fn free<C: Handle>(pointer: *mut C) -> C::Ours {
    let memory = pointer.cast::<Object<C>>();
    // SAFETY: a live object, which is read this once and then is none any more.
    unsafe {
        let Object { ours, giver, .. } = memory.read();
        release(memory, giver);
        ours
    }
}

/// A number for the `handle` of an object, which programs may print and compare.
pub(super) fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// How many objects use one, which cannot be destroyed before them.
#[derive(Debug, Default)]
pub struct Users(Arc<AtomicUsize>);

impl Users {
    /// One more, until what is returned is dropped.
    pub fn add(&self) -> Use {
        self.0.fetch_add(1, Ordering::AcqRel);
        Use(Arc::clone(&self.0))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// # Errors
    /// `EBUSY` if there are any.
    pub fn check_none(&self) -> Result<(), Errno> {
        match self.count() {
            0 => Ok(()),
            _ => Err(Errno(libc::EBUSY)),
        }
    }
}

/// That one object uses another.
#[derive(Debug)]
pub struct Use(Arc<AtomicUsize>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
