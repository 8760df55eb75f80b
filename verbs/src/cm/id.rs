//! Identifiers (`rdma_cm_id`): their state, creation and destruction.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urxe_driver::cm::channel::Ece;
use urxe_driver::cm::id::{Service, Transport};
use urxe_driver::cm::{Id, PortSpace};

use super::addrinfo_list::AddrinfoList;
use super::channel::{self, channel_of};
use super::devices::DeviceUse;
use super::held_event::acknowledge;
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;
use crate::object::{self, Handle};

impl Handle for rdma_cm_id {
    type State = Identifier;
}

/// The library's part of an `rdma_cm_id`.
pub(crate) struct Identifier {
    pub driver: Arc<Id>,
    inner: Mutex<Inner>,
}

/// The mutable state of an identifier.
#[derive(Default)]
pub(super) struct Inner {
    /// Whether the identifier owns its channel and its calls wait.
    pub synchronous: bool,
    pub device: Option<DeviceUse>,
    /// The array that `route.path_rec` points to.
    pub paths: Box<[ibv_sa_path_rec]>,
    /// The attributes for the queue pairs of a passive endpoint's connections.
    pub passive_qp_attr: Option<PassiveQpAttr>,
    /// Whether the library has created the send completion queue and its channel.
    pub owns_send_side: bool,
    pub addrinfo: Resolving,
    /// The READ and atomic limits that the peer of a connection requested.
    pub requested: RequestedLimits,
    /// Whether the queue pair could not be made ready; the application was informed then.
    pub failed: bool,
    pub local_ece: Ece,
    pub remote_ece: Ece,
}

/// The attributes given for queue pairs that are created later.
#[derive(Clone, Copy)]
pub(super) struct PassiveQpAttr(pub ibv_qp_init_attr);

// SAFETY: the pointers refer to the application's verbs objects, which any thread may use.
unsafe impl Send for PassiveQpAttr {}

/// The READs and atomics that a peer requests: to be served, and to be outstanding.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestedLimits {
    pub responder_resources: u8,
    pub initiator_depth: u8,
}

/// The state of `rdma_resolve_addrinfo()`.
#[derive(Default)]
pub(super) enum Resolving {
    #[default]
    No,
    /// The application has not fetched the result.
    Done(AddrinfoList),
}

impl Identifier {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the library's part of an identifier.
///
/// # Errors
/// `EINVAL` if `id` is null or misaligned.
///
/// # Safety
/// `id` must be null or a live identifier that outlives the result.
pub(super) unsafe fn id_of<'a>(id: *mut rdma_cm_id) -> Result<&'a Identifier, Errno> {
    // SAFETY: `id` is null or a live identifier that outlives the result: the caller's contract,
    // section Safety.
    unsafe { object::state_of(id) }
}

/// Returns the `rdma_cm_id` of an identifier, unless it is being destroyed.
pub(super) fn id_handle(id: &Id) -> Option<*mut rdma_cm_id> {
    let handle = ptr::with_exposed_provenance_mut::<rdma_cm_id>(id.tag());
    (!handle.is_null()).then_some(handle)
}

/// Returns the service of an identifier. Only [`PortSpace::Ib`] depends on the queue pair type.
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

/// Returns the default queue pair type of a port space.
fn usual_type(space: rdma_port_space) -> ibv_qp_type {
    match space {
        RDMA_PS_IPOIB | RDMA_PS_UDP => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    }
}

/// Creates an identifier; without a channel a synchronous one.
///
/// # Errors
/// `EINVAL` for an unknown port space, `EBADF` for a destroyed channel.
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
    // An event could otherwise reach another thread before the program knows the identifier.
    driver.silence_requests();
    Ok(create_handle(
        driver,
        channel,
        context,
        ps,
        qp_type,
        synchronous,
    ))
}

/// Creates the `rdma_cm_id` for a peer's connection request.
///
/// It is synchronous if its listener is.
///
/// # Errors
/// The error of creating a channel for it; `EBADF` if the listener's channel was destroyed.
///
/// # Safety
/// `listener` must be a live identifier.
pub(super) unsafe fn adopt(
    driver: &Arc<Id>,
    listener: *mut rdma_cm_id,
) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: `listener` is a live identifier: the caller's contract, section Safety.
    let synchronous = unsafe { id_of(listener) }?.lock().synchronous;
    // SAFETY: `listener` points to a readable `rdma_cm_id`: the caller's contract, section Safety.
    // The copy owns nothing.
    let model = unsafe { listener.read() };
    let channel = match synchronous {
        true => channel::create()?,
        false => model.channel,
    };
    // The listener may have migrated since the request arrived.
    driver.migrate(&channel_of(channel)?);
    let (context, ps, qp_type) = (model.context, model.ps, model.qp_type);
    Ok(create_handle(
        Arc::clone(driver),
        channel,
        context,
        ps,
        qp_type,
        synchronous,
    ))
}

/// Creates the `rdma_cm_id` of an identifier of the driver.
fn create_handle(
    driver: Arc<Id>,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
    synchronous: bool,
) -> *mut rdma_cm_id {
    let mut handle = rdma_cm_id::zeroed();
    handle.channel = channel;
    handle.context = context;
    handle.ps = ps;
    handle.qp_type = qp_type;
    let state = Identifier {
        driver: Arc::clone(&driver),
        inner: Mutex::new(Inner {
            synchronous,
            ..Inner::default()
        }),
    };
    let id = object::make(handle, state);
    driver.tag.store(id.expose_provenance(), Ordering::Release);
    id
}

/// Destroys an identifier, after the application has acknowledged its events.
///
/// # Safety
/// `id` must be a live identifier that is not used during or after the call.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: `id` is a live identifier: the caller's contract, section Safety.
    let identifier = unsafe { id_of(id) }?;
    identifier.driver.tag.store(0, Ordering::Release);
    identifier.driver.close();
    // SAFETY: `id` is live and no other thread uses it: the caller's contract, section Safety. Its
    // members are accessed through raw pointers, without references. Its own channel is destroyed
    // with it.
    unsafe {
        forget_event(id);
        identifier.driver.acks.wait();
        let channel = (&raw const (*id).channel).read();
        let synchronous = identifier.lock().synchronous;
        drop(object::free(id));
        if synchronous {
            channel::destroy(channel);
        }
    }
    Ok(())
}

/// Acknowledges the event of the last synchronous call.
///
/// # Safety
/// `id` must be a live identifier.
pub(super) unsafe fn forget_event(id: *mut rdma_cm_id) {
    // SAFETY: `id` is live: the caller's contract, section Safety. `event` is accessed through a
    // raw pointer, and is null or an event returned to this identifier and not acknowledged.
    unsafe {
        let event = &raw mut (*id).event;
        if !event.read().is_null() {
            acknowledge(event.read());
            event.write(ptr::null_mut());
        }
    }
}

/// # Safety
/// `id` must be null or valid for writing a pointer.
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
        // SAFETY: `id` is valid for writing a pointer: the caller's contract, section Safety.
        unsafe { entry::write(id, create(channel, context, ps, usual_type(ps))?) }
    })
}

/// # Safety
/// `id` must be null or a live identifier that is not used during or after the call.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    entry::status_or_minus_one("rdma_destroy_id", || {
        // SAFETY: `id` is null or a live identifier in no other use: the caller's contract, section
        // Safety.
        unsafe { destroy(id) }
    })
}

/// Moves an identifier's events to another channel; without one it becomes synchronous.
///
/// # Safety
/// `id` must be null or a live identifier.
pub unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    entry::status_or_minus_one("rdma_migrate_id", || {
        // SAFETY: `id` is null or a live identifier: the caller's contract, section Safety.
        let identifier = unsafe { id_of(id) }?;
        let was_synchronous = identifier.lock().synchronous;
        let synchronous = channel.is_null();
        if was_synchronous && synchronous {
            return Err(Errno(libc::EINVAL));
        }
        let to = match synchronous {
            true => channel::create()?,
            false => channel,
        };
        // SAFETY: `id` is live, as `id_of` found. Its members are accessed through raw pointers.
        // Its own channel is destroyed after the events have moved.
        unsafe {
            let from = (&raw const (*id).channel).read();
            if was_synchronous {
                forget_event(id);
            }
            identifier.driver.migrate(&channel_of(to)?);
            (&raw mut (*id).channel).write(to);
            identifier.lock().synchronous = synchronous;
            if was_synchronous {
                channel::destroy(from);
            }
        }
        Ok(())
    })
}

/// # Safety
/// `id` must be null or a live identifier, `ece` null or valid for reading an `ibv_ece`.
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    entry::status_or_minus_one("rdma_set_local_ece", || {
        // SAFETY: `id` is null or a live identifier, `ece` null or readable: the caller's contract,
        // section Safety. `id_of` rejects null before `qp` is read through a raw pointer.
        let (identifier, ece, qp) =
            unsafe { (id_of(id)?, entry::read(ece)?, (&raw const (*id).qp).read()) };
        if !qp.is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        identifier.lock().local_ece = Ece {
            vendor_id: ece.vendor_id,
            options: ece.options,
        };
        Ok(())
    })
}

/// # Safety
/// `id` must be null or a live identifier, `ece` null or valid for writing an `ibv_ece`.
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    entry::status_or_minus_one("rdma_get_remote_ece", || {
        // SAFETY: `id` is null or a live identifier: the caller's contract, section Safety. `id_of`
        // rejects null before `qp` is read through a raw pointer.
        let (identifier, qp) = unsafe { (id_of(id)?, (&raw const (*id).qp).read()) };
        if !qp.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let Ece { vendor_id, options } = identifier.lock().remote_ece;
        let value = ibv_ece {
            vendor_id,
            options,
            comp_mask: 0,
        };
        // SAFETY: `ece` is null or valid for writing an `ibv_ece`: the caller's contract, section
        // Safety.
        unsafe { entry::write(ece, value) }
    })
}
