//! Connections and datagram services: connect, listen, accept, reject, disconnect.
//!
//! Like librdmacm, these calls also change the state of the identifier's own queue pair.

use std::ffi::{c_int, c_void};
use std::ptr;

use urxe_driver::cm::{ConnParam, PortSpace};
use urxe_proto::cm::wire::RejectReason;
use urxe_proto::ids::Qpn;
use urxe_proto::rc::MAX_RD_ATOMIC;

use super::id::{Identifier, forget_event, id_of};
use super::qp;
use super::route::update_addresses;
use super::synchronous::complete;
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;

/// The retry counts used without connection parameters.
const USUAL_RETRIES: u8 = 7;

/// Reads the connection parameters, if any.
///
/// # Safety
/// `conn_param` must be null or valid for reading an `rdma_conn_param`.
unsafe fn read_conn_param(
    conn_param: *const rdma_conn_param,
) -> Result<Option<rdma_conn_param>, Errno> {
    match conn_param.is_null() {
        true => Ok(None),
        // SAFETY: `conn_param` is not null, and readable: the caller's contract, section Safety.
        false => unsafe { entry::read(conn_param) }.map(Some),
    }
}

/// Checks the READ and atomic limits, and that parameters are given if there is no queue pair.
fn check(
    identifier: &Identifier,
    qp: *mut ibv_qp,
    param: Option<&rdma_conn_param>,
) -> Result<(), Errno> {
    if identifier.driver.space() != PortSpace::Tcp {
        return Ok(());
    }
    let possible = match param {
        None => !qp.is_null(),
        Some(param) => {
            [param.responder_resources, param.initiator_depth]
                .into_iter()
                // `u8::MAX` requests the maximum.
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

/// Returns the parameters to send to the peer.
///
/// # Safety
/// `qp` must be null or a live queue pair of this library. `private_data` of `param` must be null
/// or point to `private_data_len` readable bytes.
unsafe fn to_driver(
    qp: *mut ibv_qp,
    param: Option<&rdma_conn_param>,
    (responder_resources, initiator_depth): (u8, u8),
) -> ConnParam {
    let mut conn_param = ConnParam {
        responder_resources,
        initiator_depth,
        retry_count: USUAL_RETRIES,
        rnr_retry_count: USUAL_RETRIES,
        ..ConnParam::default()
    };
    if let Some(param) = param {
        conn_param.flow_control = param.flow_control != 0;
        conn_param.retry_count = param.retry_count;
        conn_param.rnr_retry_count = param.rnr_retry_count;
        conn_param.qpn = Qpn::new(param.qp_num);
        conn_param.srq = param.srq != 0;
        // SAFETY: `private_data` is null or points to `private_data_len` readable bytes: the
        // caller's contract, section Safety.
        conn_param.private_data = unsafe { bytes(param.private_data, param.private_data_len) };
    }
    if !qp.is_null() {
        // SAFETY: `qp` is a live queue pair: the caller's contract, section Safety. Its members are
        // read through raw pointers.
        let (number, srq) = unsafe {
            (
                (&raw const (*qp).qp_num).read(),
                (&raw const (*qp).srq).read(),
            )
        };
        conn_param.qpn = Qpn::new(number);
        conn_param.srq = !srq.is_null();
    }
    conn_param
}

/// # Safety
/// `data` must be null or point to `len` readable bytes.
unsafe fn bytes(data: *const c_void, len: u8) -> Vec<u8> {
    match data.is_null() {
        true => Vec::new(),
        false => {
            let mut copy = vec![0; len.into()];
            // SAFETY: `data` points to `len` readable bytes, `copy` has `len`: the caller's
            // contract, section Safety. No reference to the application's bytes is created.
            unsafe { ptr::copy_nonoverlapping(data.cast(), copy.as_mut_ptr(), copy.len()) };
            copy
        }
    }
}

/// Returns the requested limit, or `default` if none or the maximum is requested.
fn limit_or(requested: Option<u8>, default: u8) -> u8 {
    requested
        .filter(|&limit| limit != u8::MAX)
        .unwrap_or(default)
}

/// # Safety
/// `id` must be null or a live identifier. `conn_param` must be null or valid for reading an
/// `rdma_conn_param`, whose `private_data` points to `private_data_len` readable bytes or is null.
pub unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    entry::status_or_minus_one("rdma_connect", || {
        // SAFETY: `id` and `conn_param` are null or valid: the caller's contract, section Safety.
        // `id_of` rejects null before members of `id` are read through raw pointers.
        unsafe {
            let identifier = id_of(id)?;
            let param = read_conn_param(conn_param)?;
            let qp = (&raw const (*id).qp).read();
            check(identifier, qp, param.as_ref())?;
            let requested = |member: fn(&rdma_conn_param) -> u8| param.as_ref().map(member);
            let resources = limit_or(requested(|param| param.responder_resources), MAX_RD_ATOMIC);
            let depth = limit_or(requested(|param| param.initiator_depth), MAX_RD_ATOMIC);
            let mut conn_param = to_driver(qp, param.as_ref(), (resources, depth));
            identifier.driver.check_qp(conn_param.qpn)?;
            conn_param.ece = identifier.lock().local_ece;
            identifier.driver.connect(&conn_param)?;
            complete(id)
        }
    })
}

/// # Safety
/// `id` must be null or a live identifier.
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    entry::status_or_minus_one("rdma_listen", || {
        // SAFETY: `id` is null or a live identifier, and `id_of` rejects null: the caller's
        // contract, section Safety.
        unsafe {
            // 0 and invalid values select the default.
            let backlog = usize::try_from(backlog).unwrap_or(0);
            id_of(id)?.driver.listen(backlog)?;
            update_addresses(id)
        }
    })
}

/// # Safety
/// `id` must be null or a live identifier. `conn_param` must be null or valid for reading an
/// `rdma_conn_param`, whose `private_data` points to `private_data_len` readable bytes or is null.
pub unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    entry::status_or_minus_one("rdma_accept", || {
        // SAFETY: `id` and `conn_param` are null or valid: the caller's contract, section Safety.
        // `id_of` rejects null before members of `id` are read through raw pointers.
        unsafe {
            let identifier = id_of(id)?;
            let param = read_conn_param(conn_param)?;
            let qp = (&raw const (*id).qp).read();
            if qp.is_null() && param.is_none() {
                return Err(Errno(libc::EINVAL));
            }
            check(identifier, qp, param.as_ref())?;
            let requested = |member: fn(&rdma_conn_param) -> u8| param.as_ref().map(member);
            let peer = identifier.lock().requested;
            let resources = limit_or(
                requested(|param| param.responder_resources),
                peer.responder_resources.min(MAX_RD_ATOMIC),
            );
            let depth = limit_or(
                requested(|param| param.initiator_depth),
                peer.initiator_depth.min(MAX_RD_ATOMIC),
            );
            let mut conn_param = to_driver(qp, param.as_ref(), (resources, depth));
            identifier.driver.check_qp(conn_param.qpn)?;
            {
                let inner = identifier.lock();
                // The peer's vendor, with the subset of its options that is accepted.
                conn_param.ece.vendor_id = inner.remote_ece.vendor_id;
                conn_param.ece.options = inner.local_ece.options;
            }
            let connected = (&raw const (*id).qp_type).read() != IBV_QPT_UD;
            if connected {
                qp::make_ready(id, Some((resources, depth)))?;
            }
            if let Err(error) = identifier.driver.accept(&conn_param) {
                // The first error is the one reported.
                let _ = qp::fail(id);
                return Err(error.into());
            }
            if connected {
                return complete(id);
            }
            if identifier.lock().synchronous {
                forget_event(id);
            }
            Ok(())
        }
    })
}

/// # Safety
/// `id` must be null or a live identifier, `private_data` null or point to `private_data_len`
/// readable bytes.
unsafe fn reject(
    id: *mut rdma_cm_id,
    reason: RejectReason,
    private_data: *const c_void,
    private_data_len: u8,
) -> Result<(), Errno> {
    // SAFETY: `id` and `private_data` are null or valid: the caller's contract, section Safety.
    unsafe {
        let private_data = bytes(private_data, private_data_len);
        id_of(id)?.driver.reject(reason, &private_data)?;
    }
    Ok(())
}

/// # Safety
/// `id` must be null or a live identifier, `private_data` null or point to `private_data_len`
/// readable bytes.
pub unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    entry::status_or_minus_one("rdma_reject", || {
        // SAFETY: `id` and `private_data` are null or valid: the caller's contract, section Safety.
        unsafe { reject(id, RejectReason::CONSUMER, private_data, private_data_len) }
    })
}

/// # Safety
/// `id` must be null or a live identifier, `private_data` null or point to `private_data_len`
/// readable bytes.
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    entry::status_or_minus_one("rdma_reject_ece", || {
        let reason = RejectReason::VENDOR_OPTION;
        // SAFETY: `id` and `private_data` are null or valid: the caller's contract, section Safety.
        unsafe { reject(id, reason, private_data, private_data_len) }
    })
}

/// # Safety
/// `id` must be null or a live identifier.
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    entry::status_or_minus_one("rdma_establish", || {
        // SAFETY: `id` is null or a live identifier: the caller's contract, section Safety. `id_of`
        // rejects null before `qp` is read through a raw pointer.
        unsafe {
            let identifier = id_of(id)?;
            if !(&raw const (*id).qp).read().is_null() {
                return Err(Errno(libc::EINVAL));
            }
            identifier.driver.ready()?;
        }
        Ok(())
    })
}

/// # Safety
/// `id` must be null or a live identifier.
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    entry::status_or_minus_one("rdma_notify", || {
        // SAFETY: `id` is null or a live identifier: the caller's contract, section Safety.
        let identifier = unsafe { id_of(id) }?;
        match event {
            IBV_EVENT_COMM_EST => Ok(identifier.driver.establish()?),
            _ => Err(Errno(libc::EINVAL)),
        }
    })
}

/// # Safety
/// `id` must be null or a live identifier.
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    entry::status_or_minus_one("rdma_disconnect", || {
        // SAFETY: `id` is null or a live identifier: the caller's contract, section Safety. `id_of`
        // rejects null before `verbs` is read through a raw pointer.
        unsafe {
            let identifier = id_of(id)?;
            if (&raw const (*id).verbs).read().is_null() {
                return Err(Errno(libc::EINVAL));
            }
            qp::fail(id)?;
            identifier.driver.disconnect()?;
            complete(id)
        }
    })
}
