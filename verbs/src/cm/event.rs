//! Events: from the channel to the program and back.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use urxe_driver::cm::channel::Details;
use urxe_driver::cm::multicast::Group;
use urxe_driver::cm::{Event, EventChannel, EventKind, Id};
use urxe_driver::engine;
use urxe_driver::waiting::Waiting;

use super::address::{show_addresses, show_path};
use super::channel::channel_of;
use super::id::{Asked, Identifier, adopt, destroy, id_of, shown_id};
use super::qp;
use crate::attributes::shown_address;
use crate::cancellation;
use crate::entry;
use crate::errno::{self, Errno};
use crate::ffi::*;
use crate::multicast::ibv_attach_mcast;
use crate::object::{self, Handle};

/// Milliseconds that the end of a process takes at most.
const END: c_int = 1000;

impl Handle for rdma_cm_event {
    type Ours = Given;
}

/// What stands behind an event that the program has.
pub(crate) struct Given {
    /// Who waits until it is given back, and a group that does.
    owner: Arc<Id>,
    group: Option<Arc<Group>>,
    /// What its `private_data` points at.
    private_data: Vec<u8>,
}

/// Takes the next event of a channel, waiting for it unless the descriptor has `O_NONBLOCK`. The thread is not
/// cancelled meanwhile.
///
/// # Errors
/// `EAGAIN` when there is none and the descriptor does not block; `EBADF` when the channel was
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

/// One step of the same; `None` when there is no event yet.
///
/// # Errors
/// See [`next_event`].
pub(super) fn step(
    channel: &EventChannel,
    waiting: &mut Waiting,
) -> Result<Option<*mut rdma_cm_event>, Errno> {
    // An identifier that is being destroyed has no events any more; one of which an event was returned
    // is not destroyed before it is acknowledged.
    let deliver = |event: Event| {
        let owner = shown_id(event.owner())?;
        event.owner().acks.delivered();
        if let Details::Multicast(group, _) = &event.details {
            group.acks.delivered();
        }
        Some((event, owner))
    };
    loop {
        let Some((event, owner)) = channel.step(waiting, deliver)? else {
            return Ok(None);
        };
        // SAFETY: `owner` is not destroyed before the event is acknowledged, which the program cannot do
        // yet.
        match unsafe { show(&event, owner) } {
            Some(shown) => return Ok(Some(shown)),
            // It is not for the program.
            None => event.owner().acks.acknowledge(1),
        }
    }
}

/// What the program sees of an event. Does what librdmacm does when it takes one: shows in the
/// identifier what is new, and takes its queue pair along.
///
/// # Safety
/// `owner` is the identifier of the event's owner.
unsafe fn show(event: &Event, owner: *mut rdma_cm_id) -> Option<*mut rdma_cm_event> {
    let mut shown = rdma_cm_event::zeroed();
    shown.id = owner;
    shown.event = event.kind as rdma_cm_event_type;
    shown.status = event.status;
    let mut given = Given {
        owner: Arc::clone(event.owner()),
        group: group_of(event).cloned(),
        private_data: Vec::new(),
    };
    shown.param = show_details(&event.details, &mut given.private_data);
    // SAFETY: the caller's promise.
    let noted = unsafe {
        match event.kind {
            EventKind::AddressResolved => show_addresses(owner).inspect_err(|_| {
                shown.event = RDMA_CM_EVENT_ADDR_ERROR;
            }),
            EventKind::RouteResolved => show_path(owner).inspect_err(|_| {
                shown.event = RDMA_CM_EVENT_ROUTE_ERROR;
            }),
            EventKind::ConnectRequest => {
                let fresh = take_request(event, owner)?;
                shown.id = fresh;
                shown.listen_id = owner;
                Ok(())
            }
            EventKind::ConnectResponse => {
                let has_qp = !(&raw const (*owner).qp).read().is_null();
                note_options(event, owner);
                let ready = if has_qp {
                    complete_connection(owner)
                } else {
                    Ok(())
                };
                match (has_qp, &ready) {
                    (true, Ok(())) => shown.event = RDMA_CM_EVENT_ESTABLISHED,
                    (_, Err(_)) => shown.event = RDMA_CM_EVENT_CONNECT_ERROR,
                    _ => {}
                }
                ready
            }
            EventKind::Rejected | EventKind::Disconnected if has_failed(owner) => return None,
            EventKind::Rejected => {
                // What matters is told already.
                let _ = qp::fail(owner);
                Ok(())
            }
            EventKind::MulticastJoin => attach(event, owner).inspect_err(|_| {
                shown.event = RDMA_CM_EVENT_MULTICAST_ERROR;
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
    if let Err(error) = noted {
        shown.status = -error.0;
    }
    Some(object::make(shown, given))
}

fn group_of(event: &Event) -> Option<&Arc<Group>> {
    match &event.details {
        Details::Multicast(group, _) => Some(group),
        _ => None,
    }
}

/// Attaches the identifier's queue pair, if it has one, to the group that it has joined.
///
/// # Safety
/// `id` is an identifier of ours.
unsafe fn attach(event: &Event, id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise; this makes no reference.
    let qp = unsafe { (&raw const (*id).qp).read() };
    let Some(group) = group_of(event).filter(|group| !group.send_only && !qp.is_null()) else {
        return Ok(());
    };
    let gid = ibv_gid { raw: group.gid().0 };
    // SAFETY: the identifier's queue pair, and a GID.
    errno::unless_zero(unsafe { ibv_attach_mcast(qp, &raw const gid, 0) })
}

/// # Safety
/// `id` is an identifier of ours.
unsafe fn has_failed(id: *mut rdma_cm_id) -> bool {
    // SAFETY: the caller's promise.
    unsafe { id_of(id) }.is_ok_and(|ours| ours.kept().failed)
}

/// Notes the options of the peer's vendor.
///
/// # Safety
/// `id` is an identifier of ours.
unsafe fn note_options(event: &Event, id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    if let (Details::Connection(details), Ok(ours)) = (&event.details, unsafe { id_of(id) }) {
        ours.kept().remote_ece = details.ece;
    }
}

/// Whether the peer has answered for the vendor that was named, or for none.
fn same_vendor(ours: &Identifier) -> Result<(), Errno> {
    let kept = ours.kept();
    match kept.remote_ece.vendor_id {
        0 => Ok(()),
        vendor if vendor == kept.local_ece.vendor_id => Ok(()),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Makes the queue pair ready for a connection that the peer has accepted, and says so.
///
/// # Safety
/// `id` is an identifier of ours.
unsafe fn complete_connection(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let ours = id_of(id)?;
        let ready = same_vendor(ours)
            .and_then(|()| qp::make_ready(id, None))
            .and_then(|()| Ok(ours.driver.ready()?));
        if ready.is_err() {
            ours.kept().failed = true;
            // The first word is the one that counts.
            let _ = qp::fail(id);
        }
        ready
    }
}

/// Shows the program the identifier of a request. `None` when it cannot be; the peer is rejected then.
///
/// # Safety
/// `listener` is the event's listener.
unsafe fn take_request(event: &Event, listener: *mut rdma_cm_id) -> Option<*mut rdma_cm_id> {
    event.id.take_up();
    // SAFETY: the caller's promise.
    let adopted = unsafe { adopt(&event.id, listener) };
    let fresh = adopted
        .inspect_err(|error| {
            tracing::error!("a request is rejected: {error}");
            event.id.close();
        })
        .ok()?;
    // SAFETY: just made.
    let prepared = unsafe { show_addresses(fresh).and_then(|()| show_path(fresh)) };
    if let Err(error) = prepared {
        tracing::error!("a request is rejected: {error}");
        // SAFETY: nobody has seen it. It fails for null pointers only.
        let _ = unsafe { destroy(fresh) };
        return None;
    }
    if let Details::Connection(asked) = &event.details {
        // SAFETY: just made.
        if let Ok(ours) = unsafe { id_of(fresh) } {
            let mut kept = ours.kept();
            kept.asked = Asked {
                responder_resources: asked.responder_resources,
                initiator_depth: asked.initiator_depth,
            };
            kept.remote_ece = asked.ece;
        }
    }
    Some(fresh)
}

/// The parameters of an event. `private_data` gets what they point at.
fn show_details(details: &Details, private_data: &mut Vec<u8>) -> rdma_cm_event_param {
    /// The largest length that there is a number for.
    const MOST: usize = u8::MAX as usize;
    let mut keep = |data: &[u8]| {
        *private_data = data[..data.len().min(MOST)].to_vec();
        match private_data.is_empty() {
            true => (ptr::null(), 0),
            false => (private_data.as_ptr().cast(), private_data.len() as u8),
        }
    };
    match details {
        Details::None => rdma_cm_event::zeroed().param,
        Details::User(arg) => rdma_cm_event_param { arg: *arg },
        Details::Connection(details) => {
            let (data, len) = keep(&details.private_data);
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
        Details::Multicast(group, way) => {
            let ud = rdma_ud_param {
                // The program's own pointer, whatever it points at.
                private_data: ptr::with_exposed_provenance(group.tag),
                private_data_len: 0,
                ah_attr: shown_address(&way.av),
                qp_num: way.qpn.get(),
                qkey: way.qkey.0,
            };
            rdma_cm_event_param { ud }
        }
        Details::Datagram(details) => {
            let (data, len) = keep(&details.private_data);
            let ud = rdma_ud_param {
                private_data: data,
                private_data_len: len,
                ah_attr: shown_address(&details.av),
                qp_num: details.qpn.get(),
                qkey: details.qkey.0,
            };
            rdma_cm_event_param { ud }
        }
    }
}

/// Gives an event back.
///
/// # Safety
/// `event` was got, and is not given back yet.
pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: the caller's promise.
    let given = unsafe { object::free(event) };
    if let Some(group) = &given.group {
        group.acks.acknowledge(1);
    }
    given.owner.acks.acknowledge(1);
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
        let channel = channel_of(channel);
        let mut has_waited = false;
        Ok(move |waiting: &mut Waiting| {
            // A program that ends may have destroyed the channel while one of its threads is between two
            // calls. That thread ends the process with an error where it finds the channel gone, as rping's
            // does, while `exit` is under way. With rdma-core it would sleep for ever; but another thread may
            // be about to join it.
            if matches!(channel, Err(Errno(libc::EBADF))) && !has_waited && engine::is_leaving() {
                has_waited = true;
                waiting.sleep_for(END);
                return Ok(false);
            }
            let Some(next) = step(channel.as_ref().map_err(|error| *error)?, waiting)? else {
                return Ok(false);
            };
            // SAFETY: `event` is valid for writing a pointer: this function's contract, section Safety.
            unsafe { entry::write(event, next) }?;
            Ok(true)
        })
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
