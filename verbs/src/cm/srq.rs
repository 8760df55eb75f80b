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

/// Makes the identifier's shared receive queue, in the protection domain that the device's
/// identifiers share if none is given. One for extended connections gets a completion queue.
///
/// # Safety
/// `id` is null or an identifier of ours; the pointers in the attributes are null or objects of ours.
unsafe fn create(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let shown = unsafe {
        id_of(id)?;
        id.read()
    };
    // SAFETY: as above.
    unsafe { context_of(shown.verbs) }?;
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return Err(Errno(libc::EINVAL));
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.pd = shown.pd;
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    // SAFETY: as above.
    unsafe { create_with_queue(id, attr) }.inspect_err(|_| {
        // SAFETY: as above.
        unsafe { qp::destroy_queues(id) };
    })
}

/// # Safety
/// As for [`create`], which has checked what is given.
unsafe fn create_with_queue(
    id: *mut rdma_cm_id,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise; nothing here makes a reference to what the program sees.
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

/// Ends the identifier's shared receive queue.
///
/// # Safety
/// `id` is an identifier of ours.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; this makes no reference.
    unsafe {
        let srq = ptr::replace(&raw mut (*id).srq, ptr::null_mut());
        if !srq.is_null() {
            ibv_destroy_srq(srq);
        }
        qp::destroy_queues(id);
    }
}

/// # Safety
/// The pointers are null, or an identifier and attributes with objects of ours.
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    entry::status_or_minus_one("rdma_create_srq_ex", || {
        // SAFETY: the caller's promise.
        unsafe {
            let mut wanted = entry::read(attr)?;
            create(id, &mut wanted)?;
            entry::write(attr, wanted)
        }
    })
}

/// # Safety
/// The pointers are null, or an identifier, a protection domain and attributes.
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    entry::status_or_minus_one("rdma_create_srq", || {
        // SAFETY: the caller's promise.
        unsafe {
            id_of(id)?;
            let plain = entry::read(attr)?;
            let mut wanted = ibv_srq_init_attr_ex::zeroed();
            wanted.srq_context = plain.srq_context;
            wanted.attr = plain.attr;
            wanted.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
            wanted.srq_type = match (&raw const (*id).qp_type).read() {
                IBV_QPT_XRC_RECV => IBV_SRQT_XRC,
                _ => IBV_SRQT_BASIC,
            };
            wanted.pd = pd;
            create(id, &mut wanted)?;
            (&raw mut (*attr).attr).write(wanted.attr);
        }
        Ok(())
    })
}

/// # Safety
/// `id` is null or an identifier of ours, whose shared receive queue is used for nothing else any more.
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    entry::value("rdma_destroy_srq", (), || {
        if !id.is_null() {
            // SAFETY: the caller's promise.
            unsafe { destroy(id) };
        }
    });
}
