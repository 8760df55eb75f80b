//! Events: taken from the channel and returned by the application.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use urxe_driver::cm::channel::Details;
use urxe_driver::cm::multicast::Group;
use urxe_driver::cm::{Event, EventChannel, EventKind};
use urxe_driver::path;
use urxe_driver::waiting::Waiting;
use urxe_net::thread;

use super::channel::channel_of;
use super::held_event::{EventState, acknowledge};
use super::id::{Identifier, RequestedLimits, adopt, destroy, id_handle, id_of};
use super::qp;
use super::route::{update_addresses, update_path};
use crate::cancellation;
use crate::entry;
use crate::errno::{self, Errno};
use crate::ffi::*;
use crate::multicast::ibv_attach_mcast;
use crate::object;
use crate::qp::to_ibv_ah_attr;

/// The longest time that the end of a process takes, in milliseconds.
const EXIT_SLEEP_MS: c_int = 1000;

/// Takes the next event of a channel, waiting unless the descriptor has `O_NONBLOCK`.
///
/// Thread cancellation is disabled while it waits.
///
/// # Errors
/// `EAGAIN` if there is none and the descriptor does not block; `EBADF` if the channel was
/// destroyed.
pub(super) fn next_event(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Errno> {
    let channel = channel_of(channel)?;
    let mut waiting = Waiting::new();
    loop {
        if let Some(event) = step(&channel, &mut waiting)? {
            return Ok(event);
        }
        waiting.sleep_here()?;
    }
}

/// Takes the next event of a channel; `None` if there is none yet.
///
/// # Errors
/// See [`next_event`].
pub(super) fn step(
    channel: &EventChannel,
    waiting: &mut Waiting,
) -> Result<Option<*mut rdma_cm_event>, Errno> {
    // An identifier that is being destroyed gets no more events. One with a delivered event is not
    // destroyed before the event is acknowledged.
    let deliver = |event: Event| {
        let owner = id_handle(event.owner());
        if owner.is_some() {
            event.owner().acks.delivered();
            if let Details::Multicast(group, _) = &event.details {
                group.acks.delivered();
            }
        }
        let is_wanted = owner.is_some() || event.kind == EventKind::ConnectRequest;
        is_wanted.then_some((event, owner))
    };
    loop {
        let Some((event, owner)) = channel.step(waiting, deliver)? else {
            return Ok(None);
        };
        let Some(owner) = owner else {
            // The listener is being destroyed, and no application gets this request: it is
            // rejected.
            event.id.close();
            continue;
        };
        // SAFETY: `owner` is a live identifier: an event of it was counted as delivered and cannot
        // be acknowledged before it is returned.
        match unsafe { to_cm_event(&event, owner) } {
            Some(cm_event) => return Ok(Some(cm_event)),
            // The application does not get this event.
            None => event.owner().acks.acknowledge(1),
        }
    }
}

/// Creates the `rdma_cm_event` for an event, or returns `None` if the application does not get it.
///
/// Like librdmacm, it updates the identifier and moves its queue pair to the state that the event
/// implies.
///
/// # Safety
/// `owner` must be the live identifier of the event's owner.
unsafe fn to_cm_event(event: &Event, owner: *mut rdma_cm_id) -> Option<*mut rdma_cm_event> {
    let mut cm_event = rdma_cm_event::zeroed();
    cm_event.id = owner;
    cm_event.event = event.kind as rdma_cm_event_type;
    cm_event.status = event.status;
    let mut state = EventState {
        owner: Arc::clone(event.owner()),
        group: group_of(event).cloned(),
        private_data: Vec::new(),
    };
    cm_event.param = to_event_param(&event.details, &mut state.private_data);
    // SAFETY: `owner` is a live identifier: the caller's contract, section Safety.
    let updated = unsafe {
        match event.kind {
            EventKind::AddressResolved => update_addresses(owner).inspect_err(|_| {
                cm_event.event = RDMA_CM_EVENT_ADDR_ERROR;
            }),
            EventKind::RouteResolved => update_path(owner).inspect_err(|_| {
                cm_event.event = RDMA_CM_EVENT_ROUTE_ERROR;
            }),
            EventKind::ConnectRequest => {
                let new_id = adopt_request(event, owner)?;
                cm_event.id = new_id;
                cm_event.listen_id = owner;
                Ok(())
            }
            EventKind::ConnectResponse => {
                let has_qp = !(&raw const (*owner).qp).read().is_null();
                store_remote_ece(event, owner);
                let ready = if has_qp {
                    complete_connection(owner)
                } else {
                    Ok(())
                };
                match (has_qp, &ready) {
                    (true, Ok(())) => cm_event.event = RDMA_CM_EVENT_ESTABLISHED,
                    (_, Err(_)) => cm_event.event = RDMA_CM_EVENT_CONNECT_ERROR,
                    _ => {}
                }
                ready
            }
            EventKind::Rejected | EventKind::Disconnected if has_failed(owner) => return None,
            EventKind::Rejected => {
                // The rejection itself is reported, whatever becomes of the queue pair.
                let _ = qp::fail(owner);
                Ok(())
            }
            EventKind::MulticastJoin => attach(event, owner).inspect_err(|_| {
                cm_event.event = RDMA_CM_EVENT_MULTICAST_ERROR;
            }),
            EventKind::AddressError
            | EventKind::AddressInfoResolved
            | EventKind::Unreachable
            | EventKind::Established
            | EventKind::Disconnected
            | EventKind::DeviceRemoval
            | EventKind::AddressChange
            | EventKind::TimewaitExit
            | EventKind::User => Ok(()),
        }
    };
    if let Err(error) = updated {
        cm_event.status = -error.0;
    }
    Some(object::make(cm_event, state))
}

fn group_of(event: &Event) -> Option<&Arc<Group>> {
    match &event.details {
        Details::Multicast(group, _) => Some(group),
        _ => None,
    }
}

/// Attaches the identifier's queue pair, if any, to the multicast group that it has joined.
///
/// # Safety
/// `id` must be a live identifier.
unsafe fn attach(event: &Event, id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: `id` is live: the caller's contract, section Safety. `qp` is read through a raw
    // pointer.
    let qp = unsafe { (&raw const (*id).qp).read() };
    let Some(group) = group_of(event).filter(|group| !group.send_only && !qp.is_null()) else {
        return Ok(());
    };
    let gid = ibv_gid { raw: group.gid().0 };
    // SAFETY: `qp` is the identifier's live queue pair, and `gid` a local variable.
    errno::unless_zero(unsafe { ibv_attach_mcast(qp, &raw const gid, 0) })
}

/// # Safety
/// `id` must be a live identifier.
unsafe fn has_failed(id: *mut rdma_cm_id) -> bool {
    // SAFETY: `id` is a live identifier: the caller's contract, section Safety.
    unsafe { id_of(id) }.is_ok_and(|identifier| identifier.lock().failed)
}

/// Stores the ECE options of the peer.
///
/// # Safety
/// `id` must be a live identifier.
unsafe fn store_remote_ece(event: &Event, id: *mut rdma_cm_id) {
    // SAFETY: `id` is a live identifier: the caller's contract, section Safety.
    if let (Details::Connection(details), Ok(identifier)) = (&event.details, unsafe { id_of(id) }) {
        identifier.lock().remote_ece = details.ece;
    }
}

/// Checks that the peer's ECE vendor is the one offered, or none.
fn check_ece_vendor(identifier: &Identifier) -> Result<(), Errno> {
    let inner = identifier.lock();
    match inner.remote_ece.vendor_id {
        0 => Ok(()),
        vendor if vendor == inner.local_ece.vendor_id => Ok(()),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Moves the queue pair to RTS after the peer's REP, and sends the RTU.
///
/// # Safety
/// `id` must be a live identifier.
unsafe fn complete_connection(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: `id` is a live identifier: the caller's contract, section Safety.
    unsafe {
        let identifier = id_of(id)?;
        let ready = check_ece_vendor(identifier)
            .and_then(|()| qp::make_ready(id, None))
            .and_then(|()| Ok(identifier.driver.ready()?));
        if ready.is_err() {
            identifier.lock().failed = true;
            // The first error is the one reported.
            let _ = qp::fail(id);
        }
        ready
    }
}

/// Creates the `rdma_cm_id` of a connection request.
///
/// Returns `None` on failure, after the peer was rejected.
///
/// # Safety
/// `listener` must be the live identifier of the event's listener.
unsafe fn adopt_request(event: &Event, listener: *mut rdma_cm_id) -> Option<*mut rdma_cm_id> {
    event.id.leave_backlog();
    // SAFETY: `listener` is a live identifier: the caller's contract, section Safety.
    let adopted = unsafe { adopt(&event.id, listener) };
    let new_id = adopted
        .inspect_err(|error| {
            tracing::error!("a request is rejected: {error}");
            event.id.close();
        })
        .ok()?;
    // SAFETY: `new_id` was created by `adopt` and is live.
    let prepared = unsafe { update_addresses(new_id).and_then(|()| update_path(new_id)) };
    if let Err(error) = prepared {
        tracing::error!("a request is rejected: {error}");
        // SAFETY: `new_id` was created here and was not returned to the application. The call fails
        // for null pointers only.
        let _ = unsafe { destroy(new_id) };
        return None;
    }
    if let Details::Connection(details) = &event.details {
        // SAFETY: `new_id` was created by `adopt` and is live.
        if let Ok(identifier) = unsafe { id_of(new_id) } {
            let mut inner = identifier.lock();
            inner.requested = RequestedLimits {
                responder_resources: details.responder_resources,
                initiator_depth: details.initiator_depth,
            };
            inner.remote_ece = details.ece;
        }
    }
    Some(new_id)
}

/// Returns the parameters of an event, and stores the bytes that they point to in `private_data`.
fn to_event_param(details: &Details, private_data: &mut Vec<u8>) -> rdma_cm_event_param {
    /// The largest length that `private_data_len` can hold.
    const MAX_LEN: usize = u8::MAX as usize;
    let mut store = |data: &[u8]| {
        *private_data = data[..data.len().min(MAX_LEN)].to_vec();
        match private_data.is_empty() {
            true => (ptr::null(), 0),
            false => (private_data.as_ptr().cast(), private_data.len() as u8),
        }
    };
    match details {
        Details::None => rdma_cm_event::zeroed().param,
        Details::User(arg) => rdma_cm_event_param { arg: *arg },
        Details::Connection(details) => {
            let (data, len) = store(&details.private_data);
            let conn = rdma_conn_param {
                private_data: data,
                private_data_len: len,
                responder_resources: details.responder_resources,
                initiator_depth: details.initiator_depth,
                flow_control: details.flow_control.into(),
                retry_count: details.retry_count,
                rnr_retry_count: details.rnr_retry_count,
                srq: details.srq.into(),
                qp_num: details.qpn.get(),
            };
            rdma_cm_event_param { conn }
        }
        Details::Multicast(group, details) => {
            let ud = rdma_ud_param {
                // The application's context pointer, which is not dereferenced.
                private_data: ptr::with_exposed_provenance(group.tag),
                private_data_len: 0,
                ah_attr: to_ibv_ah_attr(&details.av),
                qp_num: details.qpn.get(),
                qkey: details.qkey.0,
            };
            rdma_cm_event_param { ud }
        }
        Details::Datagram(details) => {
            let (data, len) = store(&details.private_data);
            let ud = rdma_ud_param {
                private_data: data,
                private_data_len: len,
                ah_attr: to_ibv_ah_attr(&details.av),
                qp_num: details.qpn.get(),
                qkey: details.qkey.0,
            };
            rdma_cm_event_param { ud }
        }
    }
}

/// # Safety
/// `event` must be null or valid for writing a pointer.
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    cancellation::wait("rdma_get_cm_event", || {
        if event.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let channel = thread::without_cancellation(|| channel_of(channel));
        let mut has_waited = false;
        Ok(move |waiting: &mut Waiting| {
            // An application that exits may have destroyed the channel while one of its threads is
            // between two calls. That thread would end the process with an error when it finds the
            // channel destroyed, as rping's does, while `exit` is in progress. With rdma-core it
            // would block forever. A bounded sleep is used instead, since another thread may be
            // about to join it.
            if matches!(channel, Err(Errno(libc::EBADF))) && !has_waited && path::is_exiting() {
                has_waited = true;
                waiting.sleep_for(EXIT_SLEEP_MS);
                return Ok(false);
            }
            let channel = channel.as_ref().map_err(|error| *error)?;
            let Some(next) = thread::without_cancellation(|| step(channel, waiting))? else {
                return Ok(false);
            };
            // SAFETY: `event` is valid for writing a pointer: this function's contract, section
            // Safety.
            unsafe { entry::write(event, next) }?;
            Ok(true)
        })
    })
}

/// # Safety
/// `event` must be null, or returned by [`rdma_get_cm_event`] and not be acknowledged yet.
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    entry::status_or_minus_one("rdma_ack_cm_event", || {
        if event.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `event` was returned and is not acknowledged yet: the caller's contract, section
        // Safety.
        unsafe { acknowledge(event) };
        Ok(())
    })
}

/// Queues an application event on the identifier's channel.
///
/// # Safety
/// `id` must be null or a live identifier.
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
        // SAFETY: `id` is null or a live identifier: the caller's contract, section Safety.
        unsafe { id_of(id) }?.driver.write_event(status, arg);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_setfl};
    use urxe_driver::cm::id::{Service, State, Transport};
    use urxe_driver::cm::{Id, PortSpace};

    /// The listener has no `rdma_cm_id` any more, and has not removed its events yet.
    #[test]
    fn request_to_a_listener_that_is_being_destroyed_is_rejected() {
        let channel = Arc::new(EventChannel::new().unwrap());
        fcntl_setfl(channel.fd(), OFlags::NONBLOCK).unwrap();
        let new_id = || Id::new(&channel, PortSpace::Tcp, Service::Connected(Transport::Rc));
        let (listener, requested) = (new_id(), new_id());
        channel.push(Event {
            id: Arc::clone(&requested),
            listener: Some(listener),
            kind: EventKind::ConnectRequest,
            status: 0,
            details: Details::None,
        });
        let taken = step(&channel, &mut Waiting::new());
        assert_eq!(taken, Err(Errno(libc::EAGAIN)));
        assert_eq!(requested.state(), State::Closed);
    }
}
