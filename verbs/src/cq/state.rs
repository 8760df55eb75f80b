//! The library's state behind completion queues.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::Arc;

use urxe_driver::Cq;
use urxe_driver::cq::Stamp;
use urxe_proto::work::Completion;

use crate::errno::Errno;
use crate::ffi::*;
use crate::object::{self, Handle, Use, Users};

impl Handle for ibv_cq_ex {
    type State = CompletionQueue;
}

/// The library's state behind an `ibv_cq`. Every `ibv_cq` is the start of an `ibv_cq_ex`.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub driver: Arc<Cq>,
    /// The queue pairs that complete here, counted once for sends and once for receives.
    pub users: Users,
    /// The completion that the extended functions read, guarded by the `mutex` of the `ibv_cq`.
    pub current: UnsafeCell<Option<(Completion, Stamp)>>,
    pub _context: Use,
    pub _channel: Option<Use>,
    pub _domain: Option<Use>,
}

// SAFETY: `current` is the only member that is not `Sync`, and is accessed only by the thread that
// holds the `mutex` of the `ibv_cq`.
unsafe impl Sync for CompletionQueue {}

/// Returns the library's state behind an `ibv_cq`.
///
/// # Errors
/// `EINVAL` if `cq` is null.
///
/// # Safety
/// If `cq` is not null, it must be a completion queue created by this library that stays live for
/// `'a`.
pub(crate) unsafe fn queue_of<'a>(cq: *mut ibv_cq) -> Result<&'a CompletionQueue, Errno> {
    // SAFETY: `create` makes each `ibv_cq` as the start of an `ibv_cq_ex`. It is null or live for
    // `'a`: the caller's contract, section Safety.
    unsafe { object::state_of(cq.cast::<ibv_cq_ex>()) }
}

/// Returns the `ibv_cq` of a completion queue, or `None` if it is being destroyed.
pub(crate) fn cq_handle(tag: usize) -> Option<*mut ibv_cq> {
    let handle = ptr::with_exposed_provenance_mut::<ibv_cq>(tag);
    (!handle.is_null()).then_some(handle)
}

/// Returns the completion queue, if it belongs to `context`.
///
/// # Errors
/// `EINVAL` if `cq` is null or belongs to another context.
///
/// # Safety
/// `cq` must be null or a completion queue created by this library that stays live for `'a`.
pub(crate) unsafe fn queue_in<'a>(
    cq: *mut ibv_cq,
    context: *mut ibv_context,
) -> Result<&'a CompletionQueue, Errno> {
    // SAFETY: `cq` is null or live: the caller's contract, section Safety. `context` is read only
    // after `queue_of` has rejected a null `cq`, and without a reference.
    let (queue, its) = unsafe { (queue_of(cq)?, (&raw const (*cq).context).read()) };
    if ptr::eq(its, context) {
        Ok(queue)
    } else {
        Err(Errno(libc::EINVAL))
    }
}
