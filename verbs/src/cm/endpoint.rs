//! Endpoints: identifiers set up by one call, and used synchronously.

use std::ffi::c_int;
use std::ptr;

use urxe_driver::waiting::Waiting;
use urxe_net::thread;

use super::address;
use super::channel::channel_of;
use super::event;
use super::id::{self, PassiveQpAttr, id_of};
use super::qp;
use super::srq;
use super::synchronous;
use crate::cancellation;
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;

/// Creates an endpoint for a result of `rdma_getaddrinfo`.
///
/// # Safety
/// `id` must be null or valid for writing a pointer, `res` null or a valid result, `pd` null or a
/// live protection domain, and `qp_init_attr` null or valid for reading and writing, with pointers
/// that are null or live objects of this library.
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    entry::status_or_minus_one("rdma_create_ep", || {
        if id.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `id`, `res`, `pd` and `qp_init_attr` are null or valid: the caller's contract,
        // section Safety.
        unsafe {
            let res = entry::read(res)?;
            let (ps, qp_type) = (res.ai_port_space, res.ai_qp_type);
            let made = id::create(
                ptr::null_mut(),
                ptr::null_mut(),
                ps.cast_unsigned(),
                qp_type.cast_unsigned(),
            )?;
            if let Err(error) = prepare(made, &res, pd, qp_init_attr) {
                destroy(made);
                return Err(error);
            }
            entry::write(id, made)
        }
    })
}

/// # Safety
/// `id` must be a live identifier. The contract of [`rdma_create_ep`] applies to the other
/// arguments.
unsafe fn prepare(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: `id` is live, and the other pointers are null or valid: the caller's contract,
    // section Safety.
    unsafe {
        if !qp_init_attr.is_null() {
            entry::read(qp_init_attr)?;
            (&raw mut (*qp_init_attr).qp_type).write_unaligned(res.ai_qp_type.cast_unsigned());
        }
        if res.ai_flags & RAI_PASSIVE != 0 {
            address::bind(id, res.ai_src_addr)?;
            if !pd.is_null() {
                (&raw mut (*id).pd).write(pd);
            }
            if !qp_init_attr.is_null() {
                let attr = PassiveQpAttr(entry::read(qp_init_attr)?);
                id_of(id)?.lock().passive_qp_attr = Some(attr);
            }
            return Ok(());
        }
        address::resolve(id, res.ai_src_addr, res.ai_dst_addr)?;
        id_of(id)?.driver.resolve_route()?;
        synchronous::complete(id)?;
        if !qp_init_attr.is_null() {
            qp::create_plain(id, pd, qp_init_attr)?;
        }
    }
    Ok(())
}

/// # Safety
/// `id` must be a live identifier that is not used during or after the call.
unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: `id` is live and in no other use: the caller's contract, section Safety.
    unsafe {
        qp::destroy(id);
        srq::destroy(id);
        // The call fails for null pointers only.
        let _ = id::destroy(id);
    }
}

/// Waits for the next connection request of a synchronous listener.
///
/// If the endpoint was created with queue pair attributes, the new connection gets a queue pair.
///
/// # Safety
/// `listen` must be null or a live identifier, `id` null or valid for writing a pointer.
pub unsafe extern "C-unwind" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    cancellation::wait("rdma_get_request", || {
        let begin = || {
            // SAFETY: `listen` is null or a live identifier: this function's contract, section
            // Safety.
            let identifier = unsafe { id_of(listen) }?;
            if !identifier.lock().synchronous || id.is_null() {
                return Err(Errno(libc::EINVAL));
            }
            // SAFETY: `listen` is live, and `id_of` rejected null: this function's contract,
            // section Safety. Its channel is read through a raw pointer.
            unsafe {
                id::forget_event(listen);
                channel_of((&raw const (*listen).channel).read())
            }
        };
        let channel = thread::without_cancellation(begin)?;
        let step = move |waiting: &mut Waiting| {
            let Some(event) = event::step(&channel, waiting)? else {
                return Ok(false);
            };
            // SAFETY: `listen` is live. `event` was returned just now and is not acknowledged, so
            // it and its identifier are alive. `id` is valid for writing a pointer: the caller's
            // contract, section Safety.
            unsafe {
                let new_id = (*event).id;
                let checked = check_request(listen, event);
                // The event of the request belongs to the new identifier, any other to the
                // listener.
                let owner = if checked.is_ok() { new_id } else { listen };
                (&raw mut (*owner).event).write(event);
                checked?;
                entry::write(id, new_id)?;
            }
            Ok(true)
        };
        Ok(move |waiting: &mut Waiting| thread::without_cancellation(|| step(waiting)))
    })
}

/// # Safety
/// `listen` must be a live identifier, and `event` an unacknowledged event from its channel.
unsafe fn check_request(listen: *mut rdma_cm_id, event: *mut rdma_cm_event) -> Result<(), Errno> {
    // SAFETY: `listen` and `event` are live: the caller's contract, section Safety. They are read
    // through raw pointers.
    unsafe {
        match ((*event).event, (*event).status) {
            (RDMA_CM_EVENT_REJECTED, _) => return Err(Errno(libc::ECONNREFUSED)),
            (RDMA_CM_EVENT_CONNECT_REQUEST, 0) => {}
            (_, 0) => return Err(Errno(libc::EINVAL)),
            (_, status) => return Err(Errno(status.abs())),
        }
        let passive = id_of(listen)?.lock().passive_qp_attr;
        if let Some(PassiveQpAttr(mut attr)) = passive {
            let pd = (&raw const (*listen).pd).read();
            qp::create_plain((*event).id, pd, &raw mut attr)?;
        }
    }
    Ok(())
}

/// Destroys an identifier and its queue pair.
///
/// # Safety
/// `id` must be null or a live identifier that is not used during or after the call.
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    entry::value("rdma_destroy_ep", (), || {
        if !id.is_null() {
            // SAFETY: `id` is live and in no other use: the caller's contract, section Safety.
            unsafe { destroy(id) };
        }
    });
}
