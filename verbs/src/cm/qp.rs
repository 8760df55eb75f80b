//! The queue pair of an `rdma_cm_id`, and the completion queues that are created for it if the
//! application passes none.

use std::ffi::c_int;
use std::mem;
use std::ptr;

use urxe_driver::cm::channel::Ece;
use urxe_driver::qp::QpCap;
use urxe_proto::qp::{AttrMask, QpAttr, QpState};

use super::id::id_of;
use crate::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::context::context_of;
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::entry;
use crate::errno::{self, Errno};
use crate::ffi::*;
use crate::qp::{create_qp_ex, ibv_destroy_qp, ibv_modify_qp, to_ibv_qp_attr};

/// Returns the identifier's attributes for a transition to `state`, in verbs terms.
///
/// # Errors
/// `EINVAL` before the identifier has a device.
///
/// # Safety
/// `id` must be null or a live identifier.
unsafe fn attributes(
    id: *mut rdma_cm_id,
    state: ibv_qp_state,
) -> Result<(ibv_qp_attr, c_int), Errno> {
    let state = QpState::from_number(state).ok_or(Errno(libc::EINVAL))?;
    // SAFETY: `id` is null or a live identifier: the caller's contract, section Safety.
    let (attr, mask) = unsafe { id_of(id) }?.driver.qp_attributes(state)?;
    Ok(to_ibv_attr(&attr, mask))
}

fn to_ibv_attr(attr: &QpAttr, mask: AttrMask) -> (ibv_qp_attr, c_int) {
    let ibv_attr = to_ibv_qp_attr(attr, &QpCap::default());
    (ibv_attr, mask.bits().cast_signed())
}

/// Moves a queue pair to a state with the identifier's attributes.
///
/// # Safety
/// `id` must be a live identifier and `qp` a live queue pair of this library.
unsafe fn modify_to(
    id: *mut rdma_cm_id,
    qp: *mut ibv_qp,
    state: ibv_qp_state,
) -> Result<(), Errno> {
    // SAFETY: `id` and `qp` are live: the caller's contract, section Safety. `attr` is a local
    // variable.
    unsafe {
        let (mut attr, mask) = attributes(id, state)?;
        errno::unless_zero(ibv_modify_qp(qp, &raw mut attr, mask))
    }
}

/// Moves a new queue pair to INIT; a UD queue pair to RTS.
///
/// # Safety
/// `id` must be a live identifier and `qp` a live queue pair of this library.
unsafe fn initialize(id: *mut rdma_cm_id, qp: *mut ibv_qp) -> Result<(), Errno> {
    // SAFETY: `id` and `qp` are live: the caller's contract, section Safety. `qp_type` is read
    // through a raw pointer.
    unsafe {
        modify_to(id, qp, IBV_QPS_INIT)?;
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

/// Moves the identifier's queue pair, if any, to RTS.
///
/// `resources` contains the numbers of READs and atomics that the queue pair serves and issues at a
/// time; `None` selects those of the connection.
///
/// # Errors
/// If the peer's queue pair is not known yet, or a transition fails.
///
/// # Safety
/// `id` must be a live identifier.
pub(super) unsafe fn make_ready(
    id: *mut rdma_cm_id,
    resources: Option<(u8, u8)>,
) -> Result<(), Errno> {
    // SAFETY: `id` is live: the caller's contract, section Safety. Its members are read through raw
    // pointers, and `qp` is null or the identifier's live queue pair.
    unsafe {
        let qp = (&raw const (*id).qp).read();
        if qp.is_null() {
            return Ok(());
        }
        // The queue pair was created before the connection: repeat INIT with the access rights of
        // the connection.
        modify_to(id, qp, IBV_QPS_INIT)?;
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

/// Moves the identifier's queue pair, if any, to the error state.
///
/// # Errors
/// If the queue pair cannot be modified.
///
/// # Safety
/// `id` must be a live identifier.
pub(super) unsafe fn fail(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: `id` is live: the caller's contract, section Safety. Its members are read through raw
    // pointers, and `qp` is null or the identifier's live queue pair.
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

/// Creates a completion queue of `size` entries and its channel. Does nothing if `size` is 0.
///
/// # Safety
/// `id` must be a live identifier with a device. `channel` and `queue` must point to members of it.
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
    // SAFETY: `id` is live, so its `verbs` is readable; it is the context of an open device.
    // `channel` and `queue` point to members of `id`, which are writable: the caller's contract,
    // section Safety.
    unsafe {
        let verbs = (&raw const (*id).verbs).read();
        channel.write(errno::unless_null(ibv_create_comp_channel(verbs))?);
        let made = ibv_create_cq(verbs, size, id.cast(), channel.read(), 0);
        queue.write(errno::unless_null(made)?);
    }
    Ok(())
}

/// Destroys the completion queues and channels of the identifier.
///
/// As in librdmacm, these include objects that the application has stored in its members. The send
/// side of an identifier without a receive side is destroyed only if the library created it. An
/// object that is both sides is destroyed once.
///
/// # Safety
/// `id` must be a live identifier. Its completion queues and channels must be null or live objects
/// of this library, and in no other use.
pub(super) unsafe fn destroy_queues(id: *mut rdma_cm_id) {
    // SAFETY: `id` is live: the caller's contract, section Safety. Its members are accessed through
    // raw pointers. The objects are null or live, and `take_sides` returns each once and sets its
    // members to null.
    unsafe {
        if (&raw const (*id).qp_type).read() == IBV_QPT_XRC_RECV
            && !(&raw const (*id).srq).read().is_null()
        {
            // The completion queues belong to the shared receive queue.
            return;
        }
        let owns_send_side = id_of(id).is_ok_and(|own| mem::take(&mut own.lock().owns_send_side));
        let queues = take_sides(
            &raw mut (*id).recv_cq,
            &raw mut (*id).send_cq,
            owns_send_side,
        );
        let channels = take_sides(
            &raw mut (*id).recv_cq_channel,
            &raw mut (*id).send_cq_channel,
            owns_send_side,
        );
        for cq in queues.into_iter().filter(|cq| !cq.is_null()) {
            ibv_destroy_cq(cq);
        }
        for channel in channels.into_iter().filter(|channel| !channel.is_null()) {
            ibv_destroy_comp_channel(channel);
        }
    }
}

/// Returns the objects of the receive and the send side that are to be destroyed, and sets their
/// members to null. The second one is null if it is the first, or if there is no first one and
/// `owns_send_side` is false.
///
/// # Safety
/// `receive` and `send` must be valid for reading and writing.
unsafe fn take_sides<T>(
    receive: *mut *mut T,
    send: *mut *mut T,
    owns_send_side: bool,
) -> [*mut T; 2] {
    // SAFETY: `receive` and `send` are valid for reading and writing: the caller's contract,
    // section Safety.
    unsafe {
        let first = receive.replace(ptr::null_mut());
        if first.is_null() && !owns_send_side {
            return [ptr::null_mut(); 2];
        }
        let second = send.replace(ptr::null_mut());
        match ptr::eq(first, second) {
            true => [first, ptr::null_mut()],
            false => [first, second],
        }
    }
}

/// Returns the XRC domain that the device's identifiers share.
///
/// # Errors
/// `EINVAL` before the identifier has a device.
///
/// # Safety
/// `id` must be a live identifier.
pub(super) unsafe fn xrcd(id: *mut rdma_cm_id) -> Result<*mut ibv_xrcd, Errno> {
    // SAFETY: `id` is a live identifier: the caller's contract, section Safety.
    let inner = unsafe { id_of(id) }?.lock();
    inner.device.as_ref().ok_or(Errno(libc::EINVAL))?.xrcd()
}

/// Creates the identifier's queue pair.
///
/// # Errors
/// `EINVAL` if the identifier has a queue pair or no device, if the protection domain is of another
/// device, or if a completion queue is not the one that the identifier already has.
///
/// # Safety
/// `id` must be null or a live identifier. The pointers in `attr` must be null or live objects of
/// this library.
pub(super) unsafe fn create(
    id: *mut rdma_cm_id,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<(), Errno> {
    // SAFETY: `id` is null or a live identifier, and `id_of` rejects null: the caller's contract,
    // section Safety.
    let own = unsafe {
        id_of(id)?;
        id.read()
    };
    // SAFETY: `verbs` is null or the context that this library has opened for the identifier.
    unsafe { context_of(own.verbs) }?;
    if !own.qp.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = own.pd;
    }
    // SAFETY: `attr.pd` is the given live protection domain, or that of the identifier, which has a
    // device. It is read through a raw pointer.
    let domain_of = unsafe { (&raw const (*attr.pd).context).read() };
    if !ptr::eq(domain_of, own.verbs) {
        return Err(Errno(libc::EINVAL));
    }
    let differs = |own: *mut ibv_cq, given: *mut ibv_cq| {
        !own.is_null() && !given.is_null() && !ptr::eq(own, given)
    };
    if differs(own.recv_cq, attr.recv_cq) || differs(own.send_cq, attr.send_cq) {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: `id` and the objects in `attr` are live: the caller's contract, section Safety.
    unsafe { create_with_queues(id, attr) }.inspect_err(|_| {
        // SAFETY: `id` is a live identifier: the caller's contract, section Safety.
        unsafe { destroy_queues(id) };
    })
}

/// Creates the queue pair, and the completion queues that `attr` does not contain.
///
/// # Safety
/// `id` must be a live identifier with a device. The pointers in `attr` must be null or live
/// objects of that device.
unsafe fn create_with_queues(
    id: *mut rdma_cm_id,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<(), Errno> {
    // SAFETY: `id` and the objects in `attr` are live: the caller's contract, section Safety. The
    // application may access the members of `id`, so no references to them are made.
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
                id_of(id)?.lock().owns_send_side = size > 0;
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
        // An XRC target is in no protection domain.
        if !pd.is_null() {
            (&raw mut (*id).pd).write(pd);
        }
        (&raw mut (*id).qp).write(qp);
        // The ECE options that the application has set describe a queue pair that it creates
        // itself; this queue pair has none.
        id_of(id)?.lock().local_ece = Ece::default();
    }
    Ok(())
}

/// Creates the identifier's queue pair from `ibv_qp_init_attr`, and writes the result to it.
///
/// # Errors
/// See [`create`].
///
/// # Safety
/// `id` must be null or a live identifier, `pd` null or a live protection domain, and
/// `qp_init_attr` null or valid for reading and writing, with pointers that are null or live
/// objects of this library.
pub(super) unsafe fn create_plain(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: `qp_init_attr` is null or readable: the caller's contract, section Safety.
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
    // SAFETY: `id`, `pd` and the objects in the attributes are null or live: the caller's contract,
    // section Safety.
    let made = unsafe { create(id, &mut attr) };
    let plain = ibv_qp_init_attr {
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        ..plain
    };
    if made.is_ok() {
        // SAFETY: `qp_init_attr` is writable: the caller's contract, section Safety.
        unsafe { entry::write(qp_init_attr, plain)? };
    }
    made
}

/// Destroys the identifier's queue pair and its completion queues. Does nothing without a queue
/// pair.
///
/// # Safety
/// `id` must be a live identifier whose queue pair is in no other use. The contract of
/// [`destroy_queues`] applies to its completion queues.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: `id` is live, and its queues are null or live: the caller's contract, section Safety.
    // `qp` is replaced by null through a raw pointer before the queue pair is destroyed, so it is
    // destroyed once.
    unsafe {
        let qp = ptr::replace(&raw mut (*id).qp, ptr::null_mut());
        if !qp.is_null() {
            ibv_destroy_qp(qp);
            destroy_queues(id);
        }
    }
}

/// # Safety
/// `id` must be null or a live identifier, `pd` null or a live protection domain, and
/// `qp_init_attr` null or valid for reading and writing, with pointers that are null or live
/// objects of this library.
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    entry::status_or_minus_one("rdma_create_qp", || {
        // SAFETY: `id`, `pd` and `qp_init_attr` are null or valid: the caller's contract, section
        // Safety.
        unsafe { create_plain(id, pd, qp_init_attr) }
    })
}

/// # Safety
/// `id` must be null or a live identifier, and `qp_init_attr` null or valid for reading and
/// writing, with pointers that are null or live objects of this library.
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    entry::status_or_minus_one("rdma_create_qp_ex", || {
        // SAFETY: `id` and `qp_init_attr` are null or valid: the caller's contract, section Safety.
        unsafe {
            let mut attr = entry::read(qp_init_attr)?;
            create(id, &mut attr)?;
            entry::write(qp_init_attr, attr)
        }
    })
}

/// # Safety
/// `id` must be null or a live identifier whose queue pair is not used during or after the call.
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    entry::value("rdma_destroy_qp", (), || {
        if !id.is_null() {
            // SAFETY: `id` is a live identifier whose queue pair is in no other use: the caller's
            // contract, section Safety.
            unsafe { destroy(id) };
        }
    });
}

/// # Safety
/// `id` must be null or a live identifier, `qp_attr` null or valid for reading and writing an
/// `ibv_qp_attr`, and `qp_attr_mask` null or valid for writing an `int`.
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    entry::status_or_minus_one("rdma_init_qp_attr", || {
        // SAFETY: `id`, `qp_attr` and `qp_attr_mask` are null or valid: the caller's contract,
        // section Safety.
        unsafe {
            let state = entry::read(qp_attr)?.qp_state;
            let (attr, mask) = attributes(id, state)?;
            entry::write(qp_attr, attr)?;
            entry::write(qp_attr_mask, mask)
        }
    })
}
