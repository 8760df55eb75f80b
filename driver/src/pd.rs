//! Protection domains: they associate queue pairs with the memory that these may use (10.2.3).

use crate::counters::{DeviceCounters, Resource, ResourceCount};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A protection domain. Every object that belongs to it holds a reference.
#[derive(Debug)]
pub struct Pd {
    id: u64,
    /// The device in whose counts it and its objects are included.
    device: Option<Arc<DeviceCounters>>,
    _counted: Option<ResourceCount>,
}

impl Pd {
    /// Creates a protection domain with a number that is unique in the process. No device counts
    /// it.
    pub fn new() -> Arc<Pd> {
        Self::with(None)
    }

    /// Creates a protection domain of a device.
    pub(crate) fn of(device: Arc<DeviceCounters>) -> Arc<Pd> {
        Self::with(Some(device))
    }

    fn with(device: Option<Arc<DeviceCounters>>) -> Arc<Pd> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Pd {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            _counted: device.as_ref().map(|device| device.count(Resource::Pd)),
            device,
        })
    }

    /// Counts an object of this domain with its device, until the returned value is dropped.
    pub(crate) fn count(&self, kind: Resource) -> Option<ResourceCount> {
        self.device.as_ref().map(|device| device.count(kind))
    }

    /// The number, never reused.
    pub fn id(&self) -> u64 {
        self.id
    }
}
