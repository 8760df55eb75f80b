//! An opened device: the state that its objects share.

use super::cq::{Channel, Cq, CqError, CqInit};
use super::qp::{CreateError, Qp, QpInit};
use super::srq::{Srq, SrqAttr, SrqError};
use super::watcher;
use super::xrcd::{OpenFlags, Xrcd, XrcdError};
use crate::counters::{self, Resource};
use crate::device::Device;
use crate::event_queue::EventQueue;
use crate::events::AsyncEvents;
use crate::path;
use crate::pd::Pd;
use crate::ports::route::RouteError;
use crate::queues::ah::AddressHandle;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use urxe_proto::qp::AddressVector;

/// An opened device.
#[derive(Debug)]
pub struct Context {
    device: Arc<Device>,
    events: Arc<AsyncEvents>,
}

impl Context {
    /// Opens a device. No socket is bound yet; the first queue pair that needs one binds it.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn open(device: &Arc<Device>) -> io::Result<Context> {
        let events = Arc::new(EventQueue::of_rare_events()?);
        device.listen(&events);
        watcher::start();
        Ok(Context {
            device: Arc::clone(device),
            events,
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The asynchronous events of the device.
    pub fn events(&self) -> &Arc<AsyncEvents> {
        &self.events
    }

    /// Creates a protection domain.
    pub fn create_pd(&self) -> Arc<Pd> {
        Pd::of(counters::of_device(self.device.name()))
    }

    /// Creates a completion queue of at least `capacity` entries, with `channel` as its completion
    /// channel.
    ///
    /// # Errors
    /// See [`CqError`].
    pub fn create_cq(
        &self,
        capacity: u32,
        channel: Option<Arc<Channel>>,
    ) -> Result<Arc<Cq>, CqError> {
        self.create_cq_ex(CqInit {
            capacity,
            channel,
            ..CqInit::default()
        })
    }

    /// Creates a completion queue from all attributes.
    ///
    /// # Errors
    /// See [`CqError`].
    pub fn create_cq_ex(&self, init: CqInit) -> Result<Arc<Cq>, CqError> {
        let counted = counters::of_device(self.device.name()).count(Resource::Cq);
        let monitor = Arc::clone(path::get().cqs());
        Cq::with(init, &self.events, monitor, Some(counted))
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// See [`SrqError`].
    pub fn create_srq(&self, pd: &Arc<Pd>, attr: SrqAttr) -> Result<Arc<Srq>, SrqError> {
        Srq::create(&self.events, pd, attr)
    }

    /// Opens the XRC domain of `file`, or creates it, as `flags` say. Without a file, creates a
    /// domain that no other call can open.
    ///
    /// # Errors
    /// See [`XrcdError`].
    pub fn open_xrcd(
        &self,
        file: Option<BorrowedFd<'_>>,
        flags: OpenFlags,
    ) -> Result<Arc<Xrcd>, XrcdError> {
        Xrcd::open(&self.device, file, flags)
    }

    /// Creates a shared receive queue of an XRC domain.
    ///
    /// # Errors
    /// See [`SrqError`].
    pub fn create_srq_in(
        &self,
        domain: &Arc<Xrcd>,
        cq: &Arc<Cq>,
        pd: &Arc<Pd>,
        attr: SrqAttr,
    ) -> Result<Arc<Srq>, SrqError> {
        Srq::create_in(domain, cq, &self.events, pd, attr)
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    /// See [`CreateError`].
    pub fn create_qp(&self, pd: &Arc<Pd>, init: QpInit) -> Result<Arc<Qp>, CreateError> {
        Qp::create(&self.device, &self.events, pd, init)
    }

    /// Creates an address handle. Opens the sockets of the local address that it names.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn create_ah(
        &self,
        pd: &Arc<Pd>,
        address: AddressVector,
    ) -> Result<Arc<AddressHandle>, RouteError> {
        AddressHandle::create(path::get().ports()?, &self.device, pd, address)
    }
}
