//! Opened devices.
#![forbid(unsafe_code)]

use crate::device::{Device, DeviceError};
use crate::events::Events;
use std::sync::Arc;
use urxe_driver as driver;

impl Device {
    /// Opens the device. (`ibv_open_device`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let context = urxe::device("urxe_lo")?.open()?;
    /// assert_eq!(context.device().name(), "urxe_lo");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Open`].
    pub fn open(&self) -> Result<Context, DeviceError> {
        Context::new(self)
    }
}

/// An opened device. (`ibv_context`.)
///
/// Clones refer to the same opened device. It closes when the last clone, and the last object made
/// from it, is dropped.
///
/// ```
/// # fn main() -> urxe::Result<()> {
/// let context = urxe::device("urxe_lo")?.open()?;
/// let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let queue_pair = pd.queue_pair(&cq, &cq).build()?;
/// assert!(context.events().poll()?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Context {
    driver: Arc<driver::Context>,
    events: Events,
}

impl Context {
    fn new(device: &Device) -> Result<Context, DeviceError> {
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
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let context = urxe::device("urxe_lo")?.open()?;
    /// assert!(context.device().is_loopback());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn device(&self) -> Device {
        Device(Arc::clone(self.driver.device()))
    }

    /// The asynchronous events of the port, the queue pairs and the shared receive queues.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let context = urxe::device("urxe_lo")?.open()?;
    /// if let Some(event) = context.events().poll()? {
    ///     println!("{:?} of {:?}", event.kind, event.source);
    /// }
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn events(&self) -> &Events {
        &self.events
    }

    pub(crate) fn driver(&self) -> &Arc<driver::Context> {
        &self.driver
    }

    /// Returns whether both refer to the same opened device.
    pub(crate) fn is(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }
}
