//! Events: from the channel to the program and back.

use std::ffi::c_int;
use std::sync::Arc;

use urxe_driver::cm::channel::Details;
use urxe_driver::cm::{Event, EventKind, Id};

use super::address::{show_addresses, show_path};
use super::channel::channel_of;
use super::id::{id_of, shown_id};
use crate::abi::entry;
use crate::abi::errno::Errno;
use crate::abi::ffi::*;
use crate::abi::object::{self, Handle};

impl Handle for rdma_cm_event {
    type Ours = Arc<Id>;
}

/// Takes the next event of a channel, waiting for it unless the descriptor has `O_NONBLOCK`.
///
/// # Errors
/// `EAGAIN` when there is none and the descriptor does not block.
///
/// # Safety
/// `channel` is null or a channel of ours.
pub(super) unsafe fn next_event(
    channel: *mut rdma_event_channel,
) -> Result<*mut rdma_cm_event, Errno> {
    // SAFETY: the caller's promise.
    let channel = unsafe { channel_of(channel) }?;
    // An identifier that is being destroyed has no events any more; one of which an event was handed
    // out is not destroyed before it is acknowledged.
    let deliver = |event: Event| {
        let id = shown_id(&event.id)?;
        event.owner().acks.delivered();
        Some((event, id))
    };
    let (event, id) = channel.next_with(deliver)?;
    let mut shown = rdma_cm_event::zeroed();
    shown.id = id;
    shown.event = event.kind as rdma_cm_event_type;
    shown.status = event.status;
    // SAFETY: alive until the event is acknowledged, as said.
    unsafe { note(&event, id, &mut shown) };
    Ok(object::make(shown, Arc::clone(event.owner())))
}

/// Shows in the identifier what an event says of it.
///
/// # Safety
/// `id` is the event's identifier.
unsafe fn note(event: &Event, id: *mut rdma_cm_id, shown: &mut rdma_cm_event) {
    // SAFETY: the caller's promise.
    let noted = unsafe {
        match event.kind {
            EventKind::AddressResolved => show_addresses(id),
            EventKind::RouteResolved => show_path(id),
            EventKind::AddressError | EventKind::User | EventKind::AddressInfoResolved => Ok(()),
        }
    };
    if let Err(error) = noted {
        shown.status = -error.0;
        shown.event = match event.kind {
            EventKind::RouteResolved => RDMA_CM_EVENT_ROUTE_ERROR,
            _ => RDMA_CM_EVENT_ADDR_ERROR,
        };
    }
    match event.details {
        Details::None => {}
        Details::User(arg) => shown.param = rdma_cm_event_param { arg },
    }
}

/// Gives an event back.
///
/// # Safety
/// `event` was got, and is not given back yet.
pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: the caller's promise.
    let owner = unsafe { object::free(event) };
    owner.acks.acknowledge(1);
}

/// # Safety
/// The pointers are null, or a channel of ours and room for an event.
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    entry::status_or_minus_one("rdma_get_cm_event", || {
        if event.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise.
        unsafe { entry::write(event, next_event(channel)?) }
    })
}

/// # Safety
/// `event` is null, or was got and is not given back yet.
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    entry::status_or_minus_one("rdma_ack_cm_event", || {
        if event.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise.
        unsafe { acknowledge(event) };
        Ok(())
    })
}

/// Puts an event of the program's own into the identifier's channel.
///
/// # Safety
/// `id` is null or an identifier of ours.
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    entry::status_or_minus_one("rdma_write_cm_event", || {
        if event != RDMA_CM_EVENT_USER {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise.
        unsafe { id_of(id) }?.driver.write_event(status, arg);
        Ok(())
    })
}
