//! Events that the application has taken and not acknowledged yet.

use std::sync::Arc;

use urxe_driver::cm::Id;
use urxe_driver::cm::multicast::Group;

use crate::ffi::*;
use crate::object::{self, Handle};

impl Handle for rdma_cm_event {
    type State = EventState;
}

/// The library's part of an event that the application has taken.
pub(crate) struct EventState {
    /// The identifier whose destruction waits for the acknowledgement; the group likewise.
    pub owner: Arc<Id>,
    pub group: Option<Arc<Group>>,
    /// The bytes that the event's `private_data` points to.
    pub private_data: Vec<u8>,
}

/// Acknowledges and frees an event.
///
/// # Safety
/// `event` must have been returned to the application and not be acknowledged yet.
pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: `event` was made by this library and is freed only here, once: the caller's contract,
    // section Safety.
    let state = unsafe { object::free(event) };
    if let Some(group) = &state.group {
        group.acks.acknowledge(1);
    }
    state.owner.acks.acknowledge(1);
}
