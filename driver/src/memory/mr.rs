//! Memory regions (10.6.3).

#[cfg(test)]
mod tests;

use super::access::{self, PinError};
use crate::counters::{Resource, ResourceCount};
use crate::memory::regions::{Backing, Region, regions, regions_mut};
use crate::pd::Pd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use urxe_proto::host::Access;
use urxe_proto::ids::{LKey, RKey};

/// Errors of registering a region.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Remote writes and atomics need local write access too (10.6.3.2): EINVAL.
    #[error("remote write and remote atomic access need local write access too")]
    NeedsLocalWrite,
    /// The kind of access is not supported: EOPNOTSUPP.
    #[error("{0:?} is not supported")]
    Unsupported(Access),
    /// The kernel does not permit access to memory that may not be mapped: EOPNOTSUPP.
    #[error("on-demand paging needs Linux 5.14 and leave to use process_vm_readv on oneself")]
    NoPaging,
    /// The range wraps around the end of the address space: EINVAL.
    #[error("the range is longer than the address space")]
    Range,
    /// Memory windows are bound to the region that would change (10.6.3.4): EBUSY.
    #[error("memory windows are bound to the region: unbind or invalidate them first")]
    Bound,
    /// The memory cannot be used: EFAULT or ENOMEM.
    #[error(transparent)]
    Pin(#[from] PinError),
}

impl RegisterError {
    /// Returns the error number that verbs applications get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NeedsLocalWrite | Self::Range => libc::EINVAL,
            Self::Unsupported(_) | Self::NoPaging => libc::EOPNOTSUPP,
            Self::Bound => libc::EBUSY,
            Self::Pin(PinError::Fault) => libc::EFAULT,
            Self::Pin(PinError::NoMemory) => libc::ENOMEM,
        }
    }
}

/// The supported access rights. Some need no action: they are advice, or an ordering that always
/// holds.
const SUPPORTED: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::ZERO_BASED)
    .union(Access::ON_DEMAND)
    .union(Access::HUGETLB)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::RELAXED_ORDERING);

/// The changes that a reregistration makes; `None` keeps the present value.
#[derive(Clone, Copy, Default, Debug)]
pub struct Change<'a> {
    /// The address and the length in bytes of the memory.
    pub place: Option<(u64, u64)>,
    /// The access rights.
    pub access: Option<Access>,
    /// The protection domain.
    pub pd: Option<&'a Arc<Pd>>,
}

/// Checks the attributes of a region and populates its memory.
fn prepare(
    pd: &Pd,
    addr: u64,
    len: u64,
    iova: u64,
    access: Access,
) -> Result<Region, RegisterError> {
    check(pd, addr, len, iova, access, |access| {
        if access.contains(Access::ON_DEMAND) {
            // The length may be that of the whole address space: the implicit region.
            return match access::can_fault() {
                true => Ok(Backing::OnDemand),
                false => Err(RegisterError::NoPaging),
            };
        }
        access::populate(addr, len, access.contains(Access::LOCAL_WRITE))?;
        Ok(Backing::Present)
    })
}

/// Checks the attributes of a region; `back` determines its backing.
fn check(
    pd: &Pd,
    addr: u64,
    len: u64,
    iova: u64,
    access: Access,
    back: impl FnOnce(Access) -> Result<Backing, RegisterError>,
) -> Result<Region, RegisterError> {
    let written = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.intersects(written) && !access.contains(Access::LOCAL_WRITE) {
        return Err(RegisterError::NeedsLocalWrite);
    }
    // The upper bits request optional access (`IBV_ACCESS_OPTIONAL_RANGE`).
    let unsupported = access - SUPPORTED;
    if !unsupported.is_empty() {
        return Err(RegisterError::Unsupported(unsupported));
    }
    let iova = match access.contains(Access::ZERO_BASED) {
        true => 0,
        false => iova,
    };
    if iova.checked_add(len).is_none() || addr.checked_add(len).is_none() {
        return Err(RegisterError::Range);
    }
    Ok(Region {
        pd: pd.id(),
        access,
        iova,
        len,
        base: addr,
        backing: back(access)?,
        windows: AtomicU32::new(0),
    })
}

/// A registered memory region. Dropping it deregisters it.
#[derive(Debug)]
pub struct Mr {
    pd: Arc<Pd>,
    key: u32,
    addr: u64,
    len: u64,
    _counted: Option<ResourceCount>,
}

impl Mr {
    /// Registers `len` bytes at `addr`. Peers and work requests address them from `iova` on
    /// (11.2.8.1).
    ///
    /// Registering and dropping a region wait until no thread uses the table of regions. A thread
    /// that has a [`crate::objects::qp::Posting`] must do neither.
    ///
    /// # Safety
    /// Without [`Access::ON_DEMAND`], the `len` bytes at `addr` must stay mapped until the region
    /// is dropped. Any other user of these addresses must expect them to be read, and to change, at
    /// any time.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub unsafe fn register(
        pd: &Arc<Pd>,
        addr: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr, RegisterError> {
        let region = prepare(pd, addr, len, iova, access)?;
        Ok(Self::insert(pd, addr, len, region))
    }

    /// Registers memory that is known to be mapped: device memory, or a mapped DMA buffer, whose
    /// pages cannot be populated in advance.
    ///
    /// # Safety
    /// As for [`Mr::register`]. In addition, the memory must be mapped with the rights that
    /// `access` needs.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub unsafe fn register_mapped(
        pd: &Arc<Pd>,
        addr: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr, RegisterError> {
        let backing = |_| Ok(Backing::Present);
        let region = check(pd, addr, len, iova, access, backing)?;
        Ok(Self::insert(pd, addr, len, region))
    }

    /// Returns a region without memory, for local use. It covers all addresses, reads as zeros, and
    /// discards writes.
    pub fn null(pd: &Arc<Pd>) -> Mr {
        let region = Region {
            pd: pd.id(),
            access: Access::LOCAL_WRITE,
            iova: 0,
            len: u64::MAX,
            base: 0,
            backing: Backing::Null,
            windows: AtomicU32::new(0),
        };
        Self::insert(pd, 0, u64::MAX, region)
    }

    fn insert(pd: &Arc<Pd>, addr: u64, len: u64, region: Region) -> Mr {
        Mr {
            pd: Arc::clone(pd),
            key: regions_mut().insert(region),
            addr,
            len,
            _counted: pd.count(Resource::Mr),
        }
    }

    /// Changes the region's attributes but not its keys (11.2.8.4). Attributes without a change,
    /// and all of them after an error, keep their values. With a new place, the region's own
    /// addresses name its bytes in work requests and for peers.
    ///
    /// # Safety
    /// As for [`Mr::register`], for the memory and the access that the region has after the change.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub unsafe fn reregister(&mut self, change: &Change<'_>) -> Result<(), RegisterError> {
        // SAFETY: the memory stays mapped and its other users expect changes: the caller's
        // contract, section Safety, which is that of `replace`.
        unsafe { self.replace(change) }?;
        if let Some(pd) = change.pd {
            self.pd = Arc::clone(pd);
        }
        (self.addr, self.len) = change.place.unwrap_or((self.addr, self.len));
        Ok(())
    }

    /// Changes the region's entry in the table of regions.
    ///
    /// # Safety
    /// As for [`Mr::reregister`].
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) unsafe fn replace(&self, change: &Change<'_>) -> Result<(), RegisterError> {
        let (access, iova) = {
            let held = regions();
            let region = held.table().region(self.lkey());
            region.map_or((Access::empty(), 0), |region| (region.access, region.iova))
        };
        let (addr, len) = change.place.unwrap_or((self.addr, self.len));
        let iova = match change.place {
            Some(_) => addr,
            // A region whose addresses count from 0 gets its own addresses if the change drops that
            // access.
            None if access.contains(Access::ZERO_BASED) => addr,
            None => iova,
        };
        let pd = change.pd.unwrap_or(&self.pd);
        let region = prepare(pd, addr, len, iova, change.access.unwrap_or(access))?;
        match regions_mut().replace(self.key, region) {
            true => Ok(()),
            false => Err(RegisterError::Bound),
        }
    }

    /// Returns the key for work requests.
    pub fn lkey(&self) -> LKey {
        LKey(self.key)
    }

    /// Returns the key for peers.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// Returns its address in the process.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns whether memory windows are bound to it. It should not be deregistered then
    /// (10.6.7.2.4); if it is, the windows' keys become invalid.
    pub fn has_windows(&self) -> bool {
        let held = regions();
        let region = held.table().region(self.lkey());
        region.is_some_and(|region| region.windows.load(Ordering::Acquire) > 0)
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether its length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        regions_mut().remove(self.key);
    }
}
