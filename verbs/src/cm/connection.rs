//! Connections and datagram services: connecting, listening, answering, ending. What an identifier's
//! own queue pair has to do with it is done here too, as librdmacm does it.

use std::ffi::{c_int, c_void};
use std::ptr;

use urxe_driver::cm::{Offer, PortSpace};
use urxe_proto::cm::wire::RejectReason;
use urxe_proto::ids::Qpn;
use urxe_proto::rc::MAX_RD_ATOMIC;

use super::address::show_addresses;
use super::id::{Identifier, complete, forget_event, id_of};
use super::qp;
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;

/// How often is tried where the program does not say.
const USUAL_RETRIES: u8 = 7;

/// The parameters that a program gives, if it gives any.
///
/// # Safety
/// The pointer is null or good for parameters.
unsafe fn given(conn_param: *const rdma_conn_param) -> Result<Option<rdma_conn_param>, Errno> {
    match conn_param.is_null() {
        true => Ok(None),
        // SAFETY: the caller's promise.
        false => unsafe { entry::read(conn_param) }.map(Some),
    }
}

/// Refuses what the device cannot, and a connection that has neither a queue pair nor the number of
/// one.
fn check(ours: &Identifier, qp: *mut ibv_qp, param: Option<&rdma_conn_param>) -> Result<(), Errno> {
    if ours.driver.space() != PortSpace::Tcp {
        return Ok(());
    }
    let possible = match param {
        None => !qp.is_null(),
        Some(param) => {
            [param.responder_resources, param.initiator_depth]
                .into_iter()
                // The largest number means «as many as there can be».
                .all(|count| count == u8::MAX || count <= MAX_RD_ATOMIC)
        }
    };
    match possible {
        true => Ok(()),
        false => {
            tracing::warn!(
                "connection parameters: without a queue pair its number must be given, and at most \
                 {MAX_RD_ATOMIC} READs and atomics can be outstanding"
            );
            Err(Errno(libc::EINVAL))
        }
    }
}

/// What is said to the peer.
///
/// # Safety
/// `qp` is null or a queue pair of ours, and private data as long as the parameters say.
unsafe fn offer(
    qp: *mut ibv_qp,
    param: Option<&rdma_conn_param>,
    (responder_resources, initiator_depth): (u8, u8),
) -> Offer {
    let mut offer = Offer {
        responder_resources,
        initiator_depth,
        retry_count: USUAL_RETRIES,
        rnr_retry_count: USUAL_RETRIES,
        ..Offer::default()
    };
    if let Some(param) = param {
        offer.flow_control = param.flow_control != 0;
        offer.retry_count = param.retry_count;
        offer.rnr_retry_count = param.rnr_retry_count;
        offer.qpn = Qpn::new(param.qp_num);
        offer.srq = param.srq != 0;
        // SAFETY: the caller's promise.
        offer.private_data = unsafe { bytes(param.private_data, param.private_data_len) };
    }
    if !qp.is_null() {
        // SAFETY: the caller's promise; these make no reference.
        let (number, srq) = unsafe {
            (
                (&raw const (*qp).qp_num).read(),
                (&raw const (*qp).srq).read(),
            )
        };
        offer.qpn = Qpn::new(number);
        offer.srq = !srq.is_null();
    }
    offer
}

/// # Safety
/// The pointer is null or good for `len` bytes.
unsafe fn bytes(data: *const c_void, len: u8) -> Vec<u8> {
    match data.is_null() {
        true => Vec::new(),
        false => {
            let mut copy = vec![0; len.into()];
            // SAFETY: the caller's promise. Without a reference to the bytes, which are the program's.
            unsafe { ptr::copy_nonoverlapping(data.cast(), copy.as_mut_ptr(), copy.len()) };
            copy
        }
    }
}

/// What a program asks for, or `most` if it asks for as many as there can be.
fn wished(wish: Option<u8>, most: u8) -> u8 {
    wish.filter(|&wish| wish != u8::MAX).unwrap_or(most)
}

/// # Safety
/// The pointers are null, or an identifier of ours and parameters.
pub unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    entry::status_or_minus_one("rdma_connect", || {
        // SAFETY: the caller's promise.
        unsafe {
            let ours = id_of(id)?;
            let param = given(conn_param)?;
            let qp = (&raw const (*id).qp).read();
            check(ours, qp, param.as_ref())?;
            let wish = |member: fn(&rdma_conn_param) -> u8| param.as_ref().map(member);
            let resources = wished(wish(|param| param.responder_resources), MAX_RD_ATOMIC);
            let depth = wished(wish(|param| param.initiator_depth), MAX_RD_ATOMIC);
            let mut offer = offer(qp, param.as_ref(), (resources, depth));
            offer.ece = ours.kept().local_ece;
            ours.driver.connect(&offer)?;
            complete(id)
        }
    })
}

/// # Safety
/// `id` is null or an identifier of ours.
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    entry::status_or_minus_one("rdma_listen", || {
        // SAFETY: the caller's promise.
        unsafe {
            // 0 is the usual number, and so is what makes no sense.
            let backlog = usize::try_from(backlog).unwrap_or(0);
            id_of(id)?.driver.listen(backlog)?;
            show_addresses(id)
        }
    })
}

/// # Safety
/// The pointers are null, or an identifier of ours and parameters.
pub unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    entry::status_or_minus_one("rdma_accept", || {
        // SAFETY: the caller's promise.
        unsafe {
            let ours = id_of(id)?;
            let param = given(conn_param)?;
            let qp = (&raw const (*id).qp).read();
            if qp.is_null() && param.is_none() {
                return Err(Errno(libc::EINVAL));
            }
            check(ours, qp, param.as_ref())?;
            let wish = |member: fn(&rdma_conn_param) -> u8| param.as_ref().map(member);
            let asked = ours.kept().asked;
            let resources = wished(
                wish(|param| param.responder_resources),
                asked.responder_resources.min(MAX_RD_ATOMIC),
            );
            let depth = wished(
                wish(|param| param.initiator_depth),
                asked.initiator_depth.min(MAX_RD_ATOMIC),
            );
            let mut offer = offer(qp, param.as_ref(), (resources, depth));
            {
                let kept = ours.kept();
                // The vendor that asked, and what of its options is taken.
                offer.ece.vendor_id = kept.remote_ece.vendor_id;
                offer.ece.options = kept.local_ece.options;
            }
            let connected = (&raw const (*id).qp_type).read() != IBV_QPT_UD;
            if connected {
                qp::make_ready(id, Some((resources, depth)))?;
            }
            if let Err(error) = ours.driver.accept(&offer) {
                // The first word is the one that counts.
                let _ = qp::fail(id);
                return Err(error.into());
            }
            if connected {
                return complete(id);
            }
            if ours.kept().synchronous {
                forget_event(id);
            }
            Ok(())
        }
    })
}

/// # Safety
/// `id` is null or an identifier of ours, and private data null or as long as is said.
unsafe fn reject(
    id: *mut rdma_cm_id,
    reason: RejectReason,
    private_data: *const c_void,
    private_data_len: u8,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let private_data = bytes(private_data, private_data_len);
        id_of(id)?.driver.reject(reason, &private_data)?;
    }
    Ok(())
}

/// # Safety
/// `id` is null or an identifier of ours, and private data null or as long as is said.
pub unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    entry::status_or_minus_one("rdma_reject", || {
        // SAFETY: the caller's promise.
        unsafe { reject(id, RejectReason::CONSUMER, private_data, private_data_len) }
    })
}

/// # Safety
/// `id` is null or an identifier of ours, and private data null or as long as is said.
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    entry::status_or_minus_one("rdma_reject_ece", || {
        let reason = RejectReason::VENDOR_OPTION;
        // SAFETY: the caller's promise.
        unsafe { reject(id, reason, private_data, private_data_len) }
    })
}

/// # Safety
/// `id` is null or an identifier of ours.
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    entry::status_or_minus_one("rdma_establish", || {
        // SAFETY: the caller's promise.
        unsafe {
            let ours = id_of(id)?;
            if !(&raw const (*id).qp).read().is_null() {
                return Err(Errno(libc::EINVAL));
            }
            ours.driver.ready()?;
        }
        Ok(())
    })
}

/// # Safety
/// `id` is null or an identifier of ours.
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    entry::status_or_minus_one("rdma_notify", || {
        // SAFETY: the caller's promise.
        let ours = unsafe { id_of(id) }?;
        match event {
            IBV_EVENT_COMM_EST => Ok(ours.driver.establish()?),
            _ => Err(Errno(libc::EINVAL)),
        }
    })
}

/// # Safety
/// `id` is null or an identifier of ours.
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    entry::status_or_minus_one("rdma_disconnect", || {
        // SAFETY: the caller's promise.
        unsafe {
            let ours = id_of(id)?;
            if (&raw const (*id).verbs).read().is_null() {
                return Err(Errno(libc::EINVAL));
            }
            qp::fail(id)?;
            ours.driver.disconnect()?;
            complete(id)
        }
    })
}
