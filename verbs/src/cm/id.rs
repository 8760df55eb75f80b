//! Identifiers: their making and end, and what synchronous ones wait for.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urxe_driver::cm::channel::Ece;
use urxe_driver::cm::id::{Service, Transport};
use urxe_driver::cm::{Id, PortSpace};

use super::channel::{self, channel_of};
use super::devices::DeviceUse;
use super::event::{acknowledge, next_event};
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;
use crate::object::{self, Handle};

impl Handle for rdma_cm_id {
    type Ours = Identifier;
}

/// What stands behind an `rdma_cm_id`.
pub(crate) struct Identifier {
    pub driver: Arc<Id>,
    kept: Mutex<Kept>,
}

/// What an identifier keeps for its program.
#[derive(Default)]
pub(super) struct Kept {
    /// Whether its channel is its own, and its calls wait.
    pub synchronous: bool,
    pub device: Option<DeviceUse>,
    /// What `route.path_rec` points at.
    pub paths: Box<[ibv_sa_path_rec]>,
    /// What queue pairs of a passive endpoint's connections are made with.
    pub passive: Option<QpWish>,
    pub addrinfo: Resolving,
    /// What the peer of a connection asked for.
    pub asked: Asked,
    /// Its queue pair could not be made ready: the program knows that it has no connection.
    pub failed: bool,
    pub local_ece: Ece,
    pub remote_ece: Ece,
}

/// The attributes that a program gave for queue pairs to come.
#[derive(Clone, Copy)]
pub(super) struct QpWish(pub ibv_qp_init_attr);

// SAFETY: the pointers are the program's, to objects that any thread may use.
unsafe impl Send for QpWish {}

/// READs and atomics that a peer asked for: that are to be served, and that may be outstanding.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub responder_resources: u8,
    pub initiator_depth: u8,
}

/// Where `rdma_resolve_addrinfo()` stands.
#[derive(Default)]
pub(super) enum Resolving {
    #[default]
    No,
    /// The program has not fetched the result.
    Done(super::addrinfo::Found),
}

impl Identifier {
    pub(super) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What stands behind an identifier.
///
/// # Errors
/// `EINVAL` if it is null.
///
/// # Safety
/// A pointer that is not null is an identifier of ours, in use while the result is.
pub(super) unsafe fn id_of<'a>(id: *mut rdma_cm_id) -> Result<&'a Identifier, Errno> {
    // SAFETY: the caller's promise.
    unsafe { object::ours(id) }
}

/// The `rdma_cm_id` of an identifier, unless it is being destroyed.
pub(super) fn shown_id(id: &Id) -> Option<*mut rdma_cm_id> {
    let shown = ptr::with_exposed_provenance_mut::<rdma_cm_id>(id.tag());
    (!shown.is_null()).then_some(shown)
}

/// Which queue pairs an identifier of a port space is for. Only [`PortSpace::Ib`] leaves a choice.
fn service(space: PortSpace, qp_type: ibv_qp_type) -> Service {
    match space {
        PortSpace::Tcp => Service::Connected(Transport::Rc),
        PortSpace::Udp | PortSpace::IpoIb => Service::Datagram,
        PortSpace::Ib if qp_type == IBV_QPT_UD => Service::Datagram,
        PortSpace::Ib => Service::Connected(match qp_type {
            IBV_QPT_UC => Transport::Uc,
            IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => Transport::Xrc,
            _ => Transport::Rc,
        }),
    }
}

/// The type of queue pair that goes with a port space.
fn usual_type(space: rdma_port_space) -> ibv_qp_type {
    match space {
        RDMA_PS_IPOIB | RDMA_PS_UDP => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    }
}

/// Makes an identifier; without a channel a synchronous one.
///
/// # Errors
/// `EINVAL` for an unknown port space, `EBADF` for a channel that was destroyed.
pub(super) fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id, Errno> {
    let space = PortSpace::from_number(ps).ok_or(Errno(libc::EINVAL))?;
    let synchronous = channel.is_null();
    let channel = match synchronous {
        true => channel::create()?,
        false => channel,
    };
    let events = channel_of(channel)?;
    let driver = Id::new(&events, space, service(space, qp_type));
    Ok(show(driver, channel, context, ps, qp_type, synchronous))
}

/// Shows the program an identifier that a peer's request has made. It is used as its listener is:
/// synchronous if that is.
///
/// # Errors
/// When a channel of its own cannot be made.
///
/// # Safety
/// `listener` is an identifier of ours.
pub(super) unsafe fn adopt(
    driver: &Arc<Id>,
    listener: *mut rdma_cm_id,
) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: the caller's promise.
    let synchronous = unsafe { id_of(listener) }?.kept().synchronous;
    // SAFETY: as above; nothing in it owns anything.
    let model = unsafe { listener.read() };
    let channel = match synchronous {
        true => {
            let channel = channel::create()?;
            driver.migrate(&channel_of(channel)?);
            channel
        }
        false => model.channel,
    };
    let (context, ps, qp_type) = (model.context, model.ps, model.qp_type);
    Ok(show(
        Arc::clone(driver),
        channel,
        context,
        ps,
        qp_type,
        synchronous,
    ))
}

/// The program's view of an identifier.
fn show(
    driver: Arc<Id>,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
    synchronous: bool,
) -> *mut rdma_cm_id {
    let mut shown = rdma_cm_id::zeroed();
    shown.channel = channel;
    shown.context = context;
    shown.ps = ps;
    shown.qp_type = qp_type;
    let ours = Identifier {
        driver: Arc::clone(&driver),
        kept: Mutex::new(Kept {
            synchronous,
            ..Kept::default()
        }),
    };
    let id = object::make(shown, ours);
    driver.tag.store(id.expose_provenance(), Ordering::Release);
    id
}

/// Ends an identifier: waits until the program has acknowledged its events.
///
/// # Safety
/// `id` is an identifier of ours, and used for nothing else any more.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let ours = unsafe { id_of(id) }?;
    ours.driver.tag.store(0, Ordering::Release);
    ours.driver.close();
    // SAFETY: as above; these make no reference.
    unsafe {
        forget_event(id);
        ours.driver.acks.wait();
        let channel = (&raw const (*id).channel).read();
        let synchronous = ours.kept().synchronous;
        drop(object::free(id));
        if synchronous {
            channel::destroy(channel);
        }
    }
    Ok(())
}

/// Acknowledges what the last synchronous call has waited for.
///
/// # Safety
/// `id` is an identifier of ours.
pub(super) unsafe fn forget_event(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; this makes no reference.
    unsafe {
        let event = &raw mut (*id).event;
        if !event.read().is_null() {
            acknowledge(event.read());
            event.write(ptr::null_mut());
        }
    }
}

/// Waits for the event that tells what became of a call, if the identifier is synchronous.
///
/// # Errors
/// What the event says.
///
/// # Safety
/// `id` is an identifier of ours.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    if !unsafe { id_of(id) }?.kept().synchronous {
        return Ok(());
    }
    // SAFETY: as above; these make no reference, and the event was just got.
    let (event, status) = unsafe {
        forget_event(id);
        let event = next_event((&raw const (*id).channel).read())?;
        (&raw mut (*id).event).write(event);
        ((*event).event, (*event).status)
    };
    match (event, status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) => Err(Errno(status.abs())),
    }
}

/// # Safety
/// The pointers are null, or a channel of ours and room for an identifier.
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    entry::status_or_minus_one("rdma_create_id", || {
        if id.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise.
        unsafe { entry::write(id, create(channel, context, ps, usual_type(ps))?) }
    })
}

/// # Safety
/// `id` is null or an identifier of ours, and used for nothing else any more.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    entry::status_or_minus_one("rdma_destroy_id", || {
        // SAFETY: the caller's promise.
        unsafe { destroy(id) }
    })
}

/// Sends an identifier's events to another channel; without one it becomes synchronous.
///
/// # Safety
/// The pointers are null, or an identifier and a channel of ours.
pub unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    entry::status_or_minus_one("rdma_migrate_id", || {
        // SAFETY: the caller's promise.
        let ours = unsafe { id_of(id) }?;
        let was_synchronous = ours.kept().synchronous;
        let synchronous = channel.is_null();
        if was_synchronous && synchronous {
            return Err(Errno(libc::EINVAL));
        }
        let to = match synchronous {
            true => channel::create()?,
            false => channel,
        };
        // SAFETY: as above; these make no reference.
        unsafe {
            let from = (&raw const (*id).channel).read();
            if was_synchronous {
                forget_event(id);
            }
            ours.driver.migrate(&channel_of(to)?);
            (&raw mut (*id).channel).write(to);
            ours.kept().synchronous = synchronous;
            if was_synchronous {
                channel::destroy(from);
            }
        }
        Ok(())
    })
}

/// # Safety
/// The pointers are null, or an identifier of ours and options.
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    entry::status_or_minus_one("rdma_set_local_ece", || {
        // SAFETY: the caller's promise; the last makes no reference.
        let (ours, ece, qp) =
            unsafe { (id_of(id)?, entry::read(ece)?, (&raw const (*id).qp).read()) };
        if !qp.is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        ours.kept().local_ece = Ece {
            vendor_id: ece.vendor_id,
            options: ece.options,
        };
        Ok(())
    })
}

/// # Safety
/// The pointers are null, or an identifier of ours and room for options.
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    entry::status_or_minus_one("rdma_get_remote_ece", || {
        // SAFETY: the caller's promise; the second makes no reference.
        let (ours, qp) = unsafe { (id_of(id)?, (&raw const (*id).qp).read()) };
        if !qp.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let Ece { vendor_id, options } = ours.kept().remote_ece;
        let shown = ibv_ece {
            vendor_id,
            options,
            comp_mask: 0,
        };
        // SAFETY: the caller's promise.
        unsafe { entry::write(ece, shown) }
    })
}
