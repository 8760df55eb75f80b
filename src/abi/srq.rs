//! Shared receive queues.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_driver::Srq;
use urxe_driver::srq::{SrqAttr, SrqChange};

use super::context::context_of;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use, Users};

impl Handle for ibv_srq {
    type Ours = SharedQueue;
}

/// What stands behind an `ibv_srq`.
#[derive(Debug)]
pub(super) struct SharedQueue {
    pub driver: Arc<Srq>,
    /// The queue pairs that receive from it.
    pub users: Users,
    _pd: Use,
}

/// What stands behind an `ibv_srq`.
///
/// # Errors
/// `EINVAL` if it is null.
///
/// # Safety
/// A pointer that is not null is a shared receive queue of ours, in use while the result is.
pub(super) unsafe fn shared_of<'a>(srq: *mut ibv_srq) -> Result<&'a SharedQueue, Errno> {
    // SAFETY: the caller's promise.
    unsafe { object::ours(srq) }
}

/// The `ibv_srq` of a shared receive queue, unless it is being destroyed.
pub(super) fn shown_shared(queue: &Srq) -> Option<*mut ibv_srq> {
    let shown = ptr::with_exposed_provenance_mut::<ibv_srq>(queue.tag());
    (!shown.is_null()).then_some(shown)
}

fn attributes_from(attr: &ibv_srq_attr) -> SrqAttr {
    SrqAttr {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        limit: attr.srq_limit,
    }
}

fn shown_attributes(ours: &SrqAttr) -> ibv_srq_attr {
    ibv_srq_attr {
        max_wr: ours.max_wr,
        max_sge: ours.max_sge,
        srq_limit: ours.limit,
    }
}

/// Says which sizes the queue has.
///
/// # Safety
/// The pointers are null, or a protection domain of ours and attributes.
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    srq_init_attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    entry::pointer("ibv_create_srq", || {
        // SAFETY: the caller's promise; the last makes no reference.
        let (wanted, domain, context) = unsafe {
            (
                entry::read(srq_init_attr)?,
                object::ours(pd)?,
                (&raw const (*pd).context).read(),
            )
        };
        // SAFETY: the domain's own context, which outlives it.
        let device = unsafe { context_of(context) }?;
        let driver = device
            .driver
            .create_srq(&domain.driver, attributes_from(&wanted.attr))?;
        let mut shown = ibv_srq::zeroed();
        shown.context = context;
        shown.srq_context = wanted.srq_context;
        shown.pd = pd;
        shown.handle = object::number();
        let ours = SharedQueue {
            driver: Arc::clone(&driver),
            users: Users::default(),
            _pd: domain.users.add(),
        };
        let srq = object::make(shown, ours);
        driver.tag.store(srq.expose_provenance(), Ordering::Release);
        let attr = shown_attributes(&driver.attributes());
        // SAFETY: the caller's promise; this makes no reference.
        unsafe { (&raw mut (*srq_init_attr).attr).write(attr) };
        Ok(srq)
    })
}

/// # Safety
/// The pointers are null, or a shared receive queue of ours and attributes.
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    srq_attr: *mut ibv_srq_attr,
    srq_attr_mask: c_int,
) -> c_int {
    entry::status("ibv_modify_srq", || {
        // SAFETY: the caller's promise.
        let (queue, attr) = unsafe { (shared_of(srq)?, entry::read(srq_attr)?) };
        let mask = srq_attr_mask.cast_unsigned();
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        queue.driver.modify(SrqChange {
            max_wr: (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr),
            limit: (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit),
        })?;
        Ok(())
    })
}

/// # Safety
/// The pointers are null, or a shared receive queue of ours and room for attributes.
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int {
    entry::status("ibv_query_srq", || {
        // SAFETY: the caller's promise.
        unsafe {
            let queue = shared_of(srq)?;
            entry::write(srq_attr, shown_attributes(&queue.driver.attributes()))
        }
    })
}

/// `EBUSY` while a queue pair receives from it. Waits until the program has acknowledged the events
/// that it has of it.
///
/// # Safety
/// `srq` is null or a shared receive queue of ours, and used for nothing else any more.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    entry::status("ibv_destroy_srq", || {
        // SAFETY: the caller's promise.
        let queue = unsafe { shared_of(srq) }?;
        queue.users.check_none()?;
        queue.driver.tag.store(0, Ordering::Release);
        queue.driver.retire();
        // SAFETY: as above; no queue pair and no event points at it.
        drop(unsafe { object::free(srq) });
        Ok(())
    })
}
