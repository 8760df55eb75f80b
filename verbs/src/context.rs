//! The state of an opened device, which an `ibv_context` stands for.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urxe_driver::Context;

use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Users};
use super::session::Session;

/// The number of completion vectors. All completions are made by one thread.
pub(super) const COMP_VECTORS: c_int = 1;

impl Handle for verbs_context {
    type State = Closable;
}

/// The library's state behind an `ibv_context`.
#[derive(Debug)]
pub(super) struct Closable(Mutex<Option<Arc<OpenDevice>>>);

impl Closable {
    /// Creates the state of a device that is open.
    pub fn open(device: OpenDevice) -> Self {
        Closable(Mutex::new(Some(Arc::new(device))))
    }

    fn device(&self) -> MutexGuard<'_, Option<Arc<OpenDevice>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the device; calls that use the context fail from then on.
    ///
    /// # Errors
    /// `EBADF` if the device was closed before.
    pub fn take(&self) -> Result<Arc<OpenDevice>, Errno> {
        self.device().take().ok_or(Errno(libc::EBADF))
    }
}

/// An opened device.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub driver: Context,
    /// Its protection domains, completion queues, channels and other objects.
    pub users: Users,
    /// The state that it shares with the contexts imported from it.
    pub session: Arc<Session>,
    /// Takes the place of the kernel's command file.
    pub _command: OwnedFd,
}

/// Returns the device of an `ibv_context`.
///
/// # Errors
/// `EINVAL` if `context` is null, `EBADF` if it was closed while objects of it were left.
///
/// # Safety
/// If `context` is not null, it must be from `ibv_open_device` or `ibv_import_device`. It must not
/// be closed, unless objects of it were left.
pub(super) unsafe fn context_of(context: *mut ibv_context) -> Result<Arc<OpenDevice>, Errno> {
    // SAFETY: the requirements are those of this function, section Safety.
    let device = unsafe { closable_of(context) }?.device().clone();
    device.ok_or(Errno(libc::EBADF))
}

/// Returns the library's state behind an `ibv_context`.
///
/// # Errors
/// `EINVAL` if `context` is null.
///
/// # Safety
/// As for [`context_of`]; `context` must stay live for `'a`.
pub(super) unsafe fn closable_of<'a>(context: *mut ibv_context) -> Result<&'a Closable, Errno> {
    if context.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: `context` is non-null (checked above) and the `context` member of a live
    // `verbs_context` that `open` made: the caller's contract, section Safety.
    unsafe { object::state_of(verbs_context_of(context)) }
}
