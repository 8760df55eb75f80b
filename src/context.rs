//! Opened devices.
#![forbid(unsafe_code)]

use crate::cq::{CompletionQueue, CqError};
use crate::device::{Device, DeviceError};
use crate::events::Events;
use crate::pd::ProtectionDomain;
use std::sync::Arc;
use urxe_driver as driver;

/// An opened device. Clones are the same one; it is closed when all that was made from it is gone.
/// (`ibv_context`.)
#[derive(Clone, Debug)]
pub struct Context {
    driver: Arc<driver::Context>,
    events: Events,
}

impl Context {
    pub(crate) fn open(device: &Device) -> Result<Context, DeviceError> {
        let failed = |source| DeviceError::Open {
            name: device.name().to_owned(),
            source,
        };
        let context = driver::Context::open(&device.0).map_err(failed)?;
        Ok(Context {
            events: Events::new(Arc::clone(context.events())).map_err(failed)?,
            driver: Arc::new(context),
        })
    }

    /// The device.
    pub fn device(&self) -> Device {
        Device(Arc::clone(self.driver.device()))
    }

    /// Makes a protection domain. (`ibv_alloc_pd`.)
    pub fn pd(&self) -> ProtectionDomain {
        ProtectionDomain::new(self)
    }

    /// Makes a completion queue. It needs no size: it grows with the queue pairs that complete in
    /// it, so that it cannot overrun. (`ibv_create_cq`, with a completion channel of its own.)
    ///
    /// # Errors
    /// [`CqError::Channel`].
    pub fn completion_queue(&self) -> Result<CompletionQueue, CqError> {
        CompletionQueue::new(self)
    }

    /// What happens to the port and the queue pairs outside of completions.
    pub fn events(&self) -> &Events {
        &self.events
    }

    pub(crate) fn driver(&self) -> &Arc<driver::Context> {
        &self.driver
    }

    /// Whether the two are the same opened device.
    pub(crate) fn is(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }
}
