//! The library's state behind queue pairs.

use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;

use urxe_driver::Qp;
use urxe_driver::event_queue::AckCount;
use urxe_driver::qp::Share;

use super::staging::Staging;
use crate::errno::Errno;
use crate::ffi::*;
use crate::object::{self, Handle, Use, Users};
use crate::session::Listing;

impl Handle for ibv_qp_ex {
    type State = QueuePair;
}

/// The library's state behind an `ibv_qp`. Every `ibv_qp` is the start of an `ibv_qp_ex`.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub driver: Arc<Qp>,
    /// Requests that the `ibv_wr_*` functions have prepared. `None` unless the queue pair was
    /// created for these functions.
    pub staging: Option<Staging>,
    /// The flows that steer frames to this queue pair.
    pub flows: Users,
    /// How the program obtained it.
    pub ownership: Ownership,
    /// The objects that it uses.
    pub _uses: Vec<Use>,
    pub _listing: Listing,
}

/// How a program obtained a queue pair.
#[derive(Debug)]
pub(crate) enum Ownership {
    /// The program created it.
    Created,
    /// The program opened an existing one.
    Opened(Arc<Share>),
}

impl QueuePair {
    /// Returns the count of asynchronous events of this queue pair that the program has
    /// acknowledged.
    pub fn async_acks(&self) -> &AckCount {
        match &self.ownership {
            Ownership::Created => &self.driver.origin().acks,
            Ownership::Opened(share) => &share.origin().acks,
        }
    }

    /// Ends the queue pair in the driver.
    ///
    /// Afterwards no event refers to the `ibv_qp`. Waits until the program has acknowledged all
    /// events of it that it has received.
    pub fn destroy(&self) {
        match &self.ownership {
            Ownership::Created => {
                self.driver.origin().set_tag(0);
                self.driver.destroy();
            }
            Ownership::Opened(share) => {
                share.origin().set_tag(0);
                share.close();
            }
        }
    }
}

/// Returns the library's state behind an `ibv_qp`.
///
/// # Errors
/// `EINVAL` if `qp` is null.
///
/// # Safety
/// If `qp` is not null, it must be a queue pair created by this library that stays live for `'a`.
pub(crate) unsafe fn pair_of<'a>(qp: *mut ibv_qp) -> Result<&'a QueuePair, Errno> {
    const { assert!(offset_of!(ibv_qp_ex, qp_base) == 0) };
    // SAFETY: each `ibv_qp` of this library is the start of an `ibv_qp_ex`. It is null or live for
    // `'a`: the caller's contract, section Safety.
    unsafe { object::state_of(qp.cast::<ibv_qp_ex>()) }
}

/// Returns the `ibv_qp` of the queue pair with this tag, or `None` if it is being destroyed.
pub(crate) fn qp_handle(tag: usize) -> Option<*mut ibv_qp> {
    let handle = ptr::with_exposed_provenance_mut::<ibv_qp>(tag);
    (!handle.is_null()).then_some(handle)
}
