//! The objects that programs hold pointers to: the C structure first, what urxe keeps of it behind.
//!
//! A program reads and writes its part whenever it likes, so ours never makes a reference to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::errno::Errno;

/// A C structure that begins an object of ours.
pub(super) trait Handle: Sized {
    /// What stands behind it. Programs use objects from several threads at once.
    type Ours: Sync;
}

#[repr(C)]
struct Object<C: Handle> {
    shown: C,
    ours: C::Ours,
}

/// Makes an object; the pointer is good until [`free`].
pub(super) fn make<C: Handle>(shown: C, ours: C::Ours) -> *mut C {
    Box::into_raw(Box::new(Object { shown, ours })).cast()
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
    // SAFETY: it was made of a box, and is freed once.
    unsafe { Box::from_raw(pointer.cast::<Object<C>>()).ours }
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
