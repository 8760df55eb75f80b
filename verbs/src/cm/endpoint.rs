//! Endpoints: identifiers that are made ready in one call, and used synchronously.

use std::ffi::c_int;
use std::ptr;

use urxe_driver::waiting::Waiting;

use super::address;
use super::channel::channel_of;
use super::event;
use super::id::{self, QpWish, id_of};
use super::qp;
use super::srq;
use crate::cancellation;
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;

/// Makes an endpoint for what `rdma_getaddrinfo` found.
///
/// # Safety
/// The pointers are null, or room for an identifier, a result, a protection domain and attributes
/// with objects of ours.
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
        // SAFETY: the caller's promise.
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
/// `id` is an identifier of ours, the rest as for [`rdma_create_ep`].
unsafe fn prepare(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        if !qp_init_attr.is_null() {
            entry::read(qp_init_attr)?;
            (&raw mut (*qp_init_attr).qp_type).write(res.ai_qp_type.cast_unsigned());
        }
        if res.ai_flags & RAI_PASSIVE != 0 {
            address::bind(id, res.ai_src_addr)?;
            if !pd.is_null() {
                (&raw mut (*id).pd).write(pd);
            }
            if !qp_init_attr.is_null() {
                let wish = QpWish(entry::read(qp_init_attr)?);
                id_of(id)?.kept().passive = Some(wish);
            }
            return Ok(());
        }
        address::resolve(id, res.ai_src_addr, res.ai_dst_addr)?;
        id_of(id)?.driver.resolve_route()?;
        id::complete(id)?;
        if !qp_init_attr.is_null() {
            qp::create_plain(id, pd, qp_init_attr)?;
        }
    }
    Ok(())
}

/// # Safety
/// `id` is an identifier of ours, and used for nothing else any more.
unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    unsafe {
        qp::destroy(id);
        srq::destroy(id);
        // It fails for null pointers only.
        let _ = id::destroy(id);
    }
}

/// Waits for the next request of a synchronous listener. An endpoint that was given attributes makes
/// the new connection's queue pair.
///
/// # Safety
/// The pointers are null, or an identifier of ours and room for one.
pub unsafe extern "C-unwind" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    cancellation::wait("rdma_get_request", || {
        // SAFETY: `listen` is null or an identifier: this function's contract, section Safety.
        let ours = unsafe { id_of(listen) }?;
        if !ours.kept().synchronous || id.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `listen` is an identifier, as `id_of` found; its channel is read without a reference.
        let channel = unsafe {
            id::forget_event(listen);
            channel_of((&raw const (*listen).channel).read())?
        };
        Ok(move |waiting: &mut Waiting| {
            let Some(event) = event::step(&channel, waiting)? else {
                return Ok(false);
            };
            // SAFETY: as above; `event` was returned just now and is not acknowledged, so it and its
            // identifier are alive. `id` is valid for writing a pointer: this function's contract.
            unsafe {
                let fresh = (*event).id;
                let taken = take_request(listen, event);
                // The request's own event is the new identifier's, another one the listener's.
                let keeper = if taken.is_ok() { fresh } else { listen };
                (&raw mut (*keeper).event).write(event);
                taken?;
                entry::write(id, fresh)?;
            }
            Ok(true)
        })
    })
}

/// # Safety
/// `listen` is an identifier of ours, and `event` was just got from its channel.
unsafe fn take_request(listen: *mut rdma_cm_id, event: *mut rdma_cm_event) -> Result<(), Errno> {
    // SAFETY: the caller's promise; the pointers make no references.
    unsafe {
        match ((*event).event, (*event).status) {
            (RDMA_CM_EVENT_REJECTED, _) => return Err(Errno(libc::ECONNREFUSED)),
            (RDMA_CM_EVENT_CONNECT_REQUEST, 0) => {}
            (_, 0) => return Err(Errno(libc::EINVAL)),
            (_, status) => return Err(Errno(status.abs())),
        }
        let wish = id_of(listen)?.kept().passive;
        if let Some(QpWish(mut attr)) = wish {
            let pd = (&raw const (*listen).pd).read();
            qp::create_plain((*event).id, pd, &raw mut attr)?;
        }
    }
    Ok(())
}

/// Ends an identifier with its queue pair.
///
/// # Safety
/// `id` is null or an identifier of ours, and used for nothing else any more.
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    entry::value("rdma_destroy_ep", (), || {
        if !id.is_null() {
            // SAFETY: the caller's promise.
            unsafe { destroy(id) };
        }
    });
}
