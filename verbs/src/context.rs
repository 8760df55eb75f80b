//! The state of an opened device, which an `ibv_context` stands for.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use urxe_driver::Context;

use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Users};
use super::session::Session;

/// The number of completion vectors. All completions are made by one thread.
pub(super) const COMP_VECTORS: c_int = 1;

impl Handle for verbs_context {
    type State = OpenDevice;
}

/// The library's state behind an `ibv_context`.
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

/// Returns the library's state behind an `ibv_context`.
///
/// # Errors
/// `EINVAL` if `context` is null.
///
/// # Safety
/// If `context` is not null, it must be from `ibv_open_device` or `ibv_import_device`, and must
/// not be closed during `'a`.
pub(super) unsafe fn context_of<'a>(context: *mut ibv_context) -> Result<&'a OpenDevice, Errno> {
    if context.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: `context` is non-null (checked above) and the `context` member of a live
    // `verbs_context` that `open` made: the caller's contract, section Safety.
    unsafe { object::state_of(verbs_context_of(context)) }
}
