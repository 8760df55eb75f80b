//! Synchronous identifiers, whose calls wait for the event that completes them.

use super::event::next_event;
use super::id::{forget_event, id_of};
use crate::errno::Errno;
use crate::ffi::*;

/// Waits for the event that completes a call, if the identifier is synchronous.
///
/// # Errors
/// The error that the event reports.
///
/// # Safety
/// `id` must be a live identifier.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: `id` is a live identifier: the caller's contract, section Safety.
    if !unsafe { id_of(id) }?.lock().synchronous {
        return Ok(());
    }
    // SAFETY: `id` is live: the caller's contract, section Safety. Its members are accessed through
    // raw pointers. The event was just returned and is not acknowledged yet.
    let (event, status) = unsafe {
        forget_event(id);
        let event = next_event((&raw const (*id).channel).read())?;
        (&raw mut (*id).event).write(event);
        ((*event).event, (*event).status)
    };
    match (event, status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) => Err(Errno(status.abs())),
    }
}
