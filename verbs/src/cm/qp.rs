//! Queue pairs of identifiers, with completion queues of their own where the program has none.

use std::ffi::c_int;
use std::ptr;

use urxe_driver::cm::channel::Ece;
use urxe_driver::qp::QpCap;
use urxe_proto::qp::{AttrMask, QpAttr, QpState};

use super::id::id_of;
use crate::attributes::shown_attributes;
use crate::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::context::context_of;
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::entry;
use crate::errno::{self, Errno};
use crate::ffi::*;
use crate::qp::{create_qp_ex, ibv_destroy_qp, ibv_modify_qp};

/// The identifier's attributes for a state, as verbs has them.
///
/// # Errors
/// `EINVAL` before the identifier has a device.
///
/// # Safety
/// `id` is null or an identifier of ours.
unsafe fn attributes(
    id: *mut rdma_cm_id,
    state: ibv_qp_state,
) -> Result<(ibv_qp_attr, c_int), Errno> {
    let state = QpState::from_number(state).ok_or(Errno(libc::EINVAL))?;
    // SAFETY: the caller's promise.
    let (attr, mask) = unsafe { id_of(id) }?.driver.qp_attributes(state)?;
    Ok(shown(&attr, mask))
}

fn shown(attr: &QpAttr, mask: AttrMask) -> (ibv_qp_attr, c_int) {
    let shown = shown_attributes(attr, &QpCap::default());
    (shown, mask.bits().cast_signed())
}

/// Takes a queue pair to a state with the identifier's attributes.
///
/// # Safety
/// The pointers are an identifier and a queue pair of ours.
unsafe fn bring_to(id: *mut rdma_cm_id, qp: *mut ibv_qp, state: ibv_qp_state) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let (mut attr, mask) = attributes(id, state)?;
        errno::unless_zero(ibv_modify_qp(qp, &raw mut attr, mask))
    }
}

/// Makes a fresh queue pair ready: a connected one for receives to be posted, one of datagrams for
/// use.
///
/// # Safety
/// The pointers are an identifier and a queue pair of ours.
unsafe fn initialize(id: *mut rdma_cm_id, qp: *mut ibv_qp) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        bring_to(id, qp, IBV_QPS_INIT)?;
        if (&raw const (*id).qp_type).read() != IBV_QPT_UD {
            return Ok(());
        }
        let mut attr = ibv_qp_attr::zeroed();
        for (state, mask) in [
            (IBV_QPS_RTR, IBV_QP_STATE),
            (IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN),
        ] {
            attr.qp_state = state;
            let mask = mask.cast_signed();
            errno::unless_zero(ibv_modify_qp(qp, &raw mut attr, mask))?;
        }
        Ok(())
    }
}

/// Takes the identifier's queue pair, if it has one, to where it can receive and send. READs and
/// atomics that are served, and that may be outstanding, are as given or as the connection has them.
///
/// # Errors
/// When the connection does not know the peer's queue pair, or ours cannot go there.
///
/// # Safety
/// `id` is an identifier of ours.
pub(super) unsafe fn make_ready(
    id: *mut rdma_cm_id,
    resources: Option<(u8, u8)>,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise; this makes no reference.
    unsafe {
        let qp = (&raw const (*id).qp).read();
        if qp.is_null() {
            return Ok(());
        }
        // It was made before the connection was known: what the peer may do is known only now.
        bring_to(id, qp, IBV_QPS_INIT)?;
        for state in [IBV_QPS_RTR, IBV_QPS_RTS] {
            let (mut attr, mask) = attributes(id, state)?;
            if let Some((responder_resources, initiator_depth)) = resources {
                attr.max_dest_rd_atomic = responder_resources;
                attr.max_rd_atomic = initiator_depth;
            }
            errno::unless_zero(ibv_modify_qp(qp, &raw mut attr, mask))?;
        }
    }
    Ok(())
}

/// Takes the identifier's queue pair, if it has one, to where nothing is sent any more.
///
/// # Errors
/// When the queue pair cannot be modified.
///
/// # Safety
/// `id` is an identifier of ours.
pub(super) unsafe fn fail(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise; this makes no reference.
    unsafe {
        let qp = (&raw const (*id).qp).read();
        if qp.is_null() {
            return Ok(());
        }
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_ERR;
        let mask = IBV_QP_STATE.cast_signed();
        errno::unless_zero(ibv_modify_qp(qp, &raw mut attr, mask))
    }
}

/// Makes a completion queue, and a channel for it, of the size that is asked for; none of size 0.
///
/// # Safety
/// `id` is an identifier of ours with a device, and the others are its members.
pub(super) unsafe fn create_queue(
    id: *mut rdma_cm_id,
    size: u32,
    channel: *mut *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
) -> Result<(), Errno> {
    if size == 0 {
        return Ok(());
    }
    let size = c_int::try_from(size).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: the caller's promise.
    unsafe {
        let verbs = (&raw const (*id).verbs).read();
        channel.write(errno::unless_null(ibv_create_comp_channel(verbs))?);
        let made = ibv_create_cq(verbs, size, id.cast(), channel.read(), 0);
        queue.write(errno::unless_null(made)?);
    }
    Ok(())
}

/// Ends the completion queues that were made for the identifier.
///
/// # Safety
/// `id` is an identifier of ours.
pub(super) unsafe fn destroy_queues(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; these make no reference. What is not null was made here.
    unsafe {
        if (&raw const (*id).qp_type).read() == IBV_QPT_XRC_RECV
            && !(&raw const (*id).srq).read().is_null()
        {
            // They are the shared receive queue's.
            return;
        }
        for queue in [&raw mut (*id).recv_cq, &raw mut (*id).send_cq] {
            let cq = ptr::replace(queue, ptr::null_mut());
            if !cq.is_null() {
                ibv_destroy_cq(cq);
            }
        }
        for at in [
            &raw mut (*id).recv_cq_channel,
            &raw mut (*id).send_cq_channel,
        ] {
            let channel = ptr::replace(at, ptr::null_mut());
            if !channel.is_null() {
                ibv_destroy_comp_channel(channel);
            }
        }
    }
}

/// The domain of extended connections that the device's identifiers share.
///
/// # Errors
/// `EINVAL` before the identifier has a device.
///
/// # Safety
/// `id` is an identifier of ours.
pub(super) unsafe fn xrcd(id: *mut rdma_cm_id) -> Result<*mut ibv_xrcd, Errno> {
    // SAFETY: the caller's promise.
    let kept = unsafe { id_of(id) }?.kept();
    kept.device.as_ref().ok_or(Errno(libc::EINVAL))?.xrcd()
}

/// Makes the identifier's queue pair.
///
/// # Errors
/// `EINVAL` if it has one, or no device, or objects of another device are given.
///
/// # Safety
/// `id` is null or an identifier of ours; the pointers in the attributes are null or objects of ours.
pub(super) unsafe fn create(
    id: *mut rdma_cm_id,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let shown = unsafe {
        id_of(id)?;
        id.read()
    };
    // SAFETY: as above.
    unsafe { context_of(shown.verbs) }?;
    if !shown.qp.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = shown.pd;
    }
    // SAFETY: as above; this makes no reference.
    let domain_of = unsafe { (&raw const (*attr.pd).context).read() };
    if !ptr::eq(domain_of, shown.verbs) {
        return Err(Errno(libc::EINVAL));
    }
    let another = |ours: *mut ibv_cq, given: *mut ibv_cq| {
        !ours.is_null() && !given.is_null() && !ptr::eq(ours, given)
    };
    if another(shown.recv_cq, attr.recv_cq) || another(shown.send_cq, attr.send_cq) {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as above.
    unsafe { create_with_queues(id, attr) }.inspect_err(|_| {
        // SAFETY: as above.
        unsafe { destroy_queues(id) };
    })
}

/// # Safety
/// As for [`create`], which has checked what is given.
unsafe fn create_with_queues(
    id: *mut rdma_cm_id,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise; nothing here makes a reference to what the program sees.
    unsafe {
        if attr.recv_cq.is_null() {
            let queue = &raw mut (*id).recv_cq;
            if queue.read().is_null() {
                let size = attr.cap.max_recv_wr;
                create_queue(id, size, &raw mut (*id).recv_cq_channel, queue)?;
            }
            attr.recv_cq = queue.read();
        }
        if attr.send_cq.is_null() {
            let queue = &raw mut (*id).send_cq;
            if queue.read().is_null() {
                let size = attr.cap.max_send_wr;
                create_queue(id, size, &raw mut (*id).send_cq_channel, queue)?;
            }
            attr.send_cq = queue.read();
        }
        if attr.srq.is_null() {
            attr.srq = (&raw const (*id).srq).read();
        }
        let given = attr.comp_mask & IBV_QP_INIT_ATTR_XRCD != 0 && !attr.xrcd.is_null();
        if (&raw const (*id).qp_type).read() == IBV_QPT_XRC_RECV && !given {
            attr.xrcd = xrcd(id)?;
            attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        }
        let verbs = (&raw const (*id).verbs).read();
        let qp = errno::unless_null(create_qp_ex(verbs, &raw mut *attr))?;
        if let Err(error) = initialize(id, qp) {
            ibv_destroy_qp(qp);
            return Err(error);
        }
        let pd = (&raw const (*qp).pd).read();
        // One that only receives for others' queues is in none.
        if !pd.is_null() {
            (&raw mut (*id).pd).write(pd);
        }
        (&raw mut (*id).qp).write(qp);
        // What a program has said of its own queue pair does not hold for this one, which has no options.
        id_of(id)?.kept().local_ece = Ece::default();
    }
    Ok(())
}

/// Makes the identifier's queue pair from plain attributes, and says in them what it got.
///
/// # Errors
/// See [`create`].
///
/// # Safety
/// The pointers are null, or an identifier, a protection domain and attributes with objects of ours.
pub(super) unsafe fn create_plain(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let plain = unsafe { entry::read(qp_init_attr) }?;
    let mut attr = ibv_qp_init_attr_ex::zeroed();
    attr.qp_context = plain.qp_context;
    attr.send_cq = plain.send_cq;
    attr.recv_cq = plain.recv_cq;
    attr.srq = plain.srq;
    attr.cap = plain.cap;
    attr.qp_type = plain.qp_type;
    attr.sq_sig_all = plain.sq_sig_all;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = pd;
    // SAFETY: as above.
    let made = unsafe { create(id, &mut attr) };
    let plain = ibv_qp_init_attr {
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        ..plain
    };
    if made.is_ok() {
        // SAFETY: as above.
        unsafe { entry::write(qp_init_attr, plain)? };
    }
    made
}

/// Ends the identifier's queue pair.
///
/// # Safety
/// `id` is an identifier of ours.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; this makes no reference.
    unsafe {
        let qp = ptr::replace(&raw mut (*id).qp, ptr::null_mut());
        if !qp.is_null() {
            ibv_destroy_qp(qp);
        }
        destroy_queues(id);
    }
}

/// # Safety
/// The pointers are null, or an identifier, a protection domain and attributes with objects of ours.
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    entry::status_or_minus_one("rdma_create_qp", || {
        // SAFETY: the caller's promise.
        unsafe { create_plain(id, pd, qp_init_attr) }
    })
}

/// # Safety
/// The pointers are null, or an identifier and attributes with objects of ours.
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    entry::status_or_minus_one("rdma_create_qp_ex", || {
        // SAFETY: the caller's promise.
        unsafe {
            let mut attr = entry::read(qp_init_attr)?;
            create(id, &mut attr)?;
            entry::write(qp_init_attr, attr)
        }
    })
}

/// # Safety
/// `id` is null or an identifier of ours, whose queue pair is used for nothing else any more.
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    entry::value("rdma_destroy_qp", (), || {
        if !id.is_null() {
            // SAFETY: the caller's promise.
            unsafe { destroy(id) };
        }
    });
}

/// # Safety
/// The pointers are null, or an identifier of ours, attributes with the state, and room for a mask.
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    entry::status_or_minus_one("rdma_init_qp_attr", || {
        // SAFETY: the caller's promise.
        unsafe {
            let state = entry::read(qp_attr)?.qp_state;
            let (attr, mask) = attributes(id, state)?;
            entry::write(qp_attr, attr)?;
            entry::write(qp_attr_mask, mask)
        }
    })
}
