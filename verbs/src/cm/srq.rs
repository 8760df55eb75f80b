//! Shared receive queues of identifiers.

use std::ffi::c_int;
use std::ptr;

use super::id::id_of;
use super::qp;
use crate::context::context_of;
use crate::entry;
use crate::errno::{self, Errno};
use crate::ffi::*;
use crate::srq::{create_srq_ex, ibv_destroy_srq};

/// Creates the identifier's shared receive queue.
///
/// Without a protection domain it is created in the one that the device's identifiers share. An XRC
/// one gets a completion queue.
///
/// # Safety
/// `id` must be null or a live identifier. The pointers in `attr` must be null or live objects of
/// this library.
unsafe fn create(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: `id` is null or a live identifier, and `id_of` rejects null: the caller's contract,
    // section Safety.
    let own = unsafe {
        id_of(id)?;
        id.read()
    };
    // SAFETY: `verbs` is null or the context that this library has opened for the identifier.
    unsafe { context_of(own.verbs) }?;
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return Err(Errno(libc::EINVAL));
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.pd = own.pd;
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    // SAFETY: `id` and the objects in `attr` are live: the caller's contract, section Safety.
    unsafe { create_with_queue(id, attr) }.inspect_err(|_| {
        // SAFETY: `id` is a live identifier: the caller's contract, section Safety.
        unsafe { qp::destroy_queues(id) };
    })
}

/// # Safety
/// `id` must be a live identifier with a device, the pointers in `attr` null or live objects of it.
unsafe fn create_with_queue(
    id: *mut rdma_cm_id,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<(), Errno> {
    // SAFETY: `id` and the objects in `attr` are live: the caller's contract, section Safety. The
    // members that the application sees are accessed through raw pointers, without references.
    unsafe {
        if attr.srq_type == IBV_SRQT_XRC {
            let given = |bit| attr.comp_mask & bit != 0;
            if !given(IBV_SRQ_INIT_ATTR_XRCD) || attr.xrcd.is_null() {
                attr.xrcd = qp::xrcd(id)?;
            }
            if !given(IBV_SRQ_INIT_ATTR_CQ) || attr.cq.is_null() {
                let queue = &raw mut (*id).recv_cq;
                if queue.read().is_null() {
                    let size = attr.attr.max_wr;
                    qp::create_queue(id, size, &raw mut (*id).recv_cq_channel, queue)?;
                }
                attr.cq = queue.read();
            }
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        }
        let verbs = (&raw const (*id).verbs).read();
        let srq = errno::unless_null(create_srq_ex(verbs, &raw mut *attr))?;
        let pd = &raw mut (*id).pd;
        if pd.read().is_null() {
            pd.write(attr.pd);
        }
        (&raw mut (*id).srq).write(srq);
    }
    Ok(())
}

/// Destroys the identifier's shared receive queue and its completion queues. Does nothing without
/// a shared receive queue.
///
/// # Safety
/// `id` must be a live identifier whose shared receive queue is in no other use. The contract of
/// [`qp::destroy_queues`] applies to its completion queues.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: `id` is live, and its queues are null or live: the caller's contract, section Safety.
    // `srq` is replaced by null through a raw pointer before it is destroyed, so that happens once.
    unsafe {
        let srq = ptr::replace(&raw mut (*id).srq, ptr::null_mut());
        if !srq.is_null() {
            ibv_destroy_srq(srq);
            qp::destroy_queues(id);
        }
    }
}

/// # Safety
/// `id` must be null or a live identifier, and `attr` null or valid for reading and writing, with
/// pointers that are null or live objects of this library.
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    entry::status_or_minus_one("rdma_create_srq_ex", || {
        // SAFETY: `id` and `attr` are null or valid: the caller's contract, section Safety.
        unsafe {
            let mut init_attr = entry::read(attr)?;
            create(id, &mut init_attr)?;
            entry::write(attr, init_attr)
        }
    })
}

/// # Safety
/// `id` must be null or a live identifier, `pd` null or a live protection domain, and `attr` null
/// or valid for reading and writing.
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    entry::status_or_minus_one("rdma_create_srq", || {
        // SAFETY: `id`, `pd` and `attr` are null or valid: the caller's contract, section Safety.
        unsafe {
            id_of(id)?;
            let plain = entry::read(attr)?;
            let mut init_attr = ibv_srq_init_attr_ex::zeroed();
            init_attr.srq_context = plain.srq_context;
            init_attr.attr = plain.attr;
            init_attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
            init_attr.srq_type = match (&raw const (*id).qp_type).read() {
                IBV_QPT_XRC_RECV => IBV_SRQT_XRC,
                _ => IBV_SRQT_BASIC,
            };
            init_attr.pd = pd;
            create(id, &mut init_attr)?;
            (&raw mut (*attr).attr).write_unaligned(init_attr.attr);
        }
        Ok(())
    })
}

/// # Safety
/// `id` must be null or a live identifier whose shared receive queue is in no other use.
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    entry::value("rdma_destroy_srq", (), || {
        if !id.is_null() {
            // SAFETY: `id` is live and its shared receive queue in no other use: the caller's
            // contract, section Safety.
            unsafe { destroy(id) };
        }
    });
}
