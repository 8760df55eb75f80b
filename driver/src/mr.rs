//! Memory regions (10.6.3).

#[cfg(test)]
mod tests;

use crate::memory::{self, PinError};
use crate::pd::Pd;
use crate::regions::{Backing, Region, regions, regions_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use urxe_proto::host::Access;
use urxe_proto::ids::{LKey, RKey};

/// Why a region cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Remote writes and atomics need local write access too (10.6.3.2): EINVAL.
    #[error("remote write and remote atomic access need local write access too")]
    NeedsLocalWrite,
    /// A kind of access that is not supported: EOPNOTSUPP.
    #[error("{0:?} is not supported")]
    Unsupported(Access),
    /// The kernel does not let memory be reached that may not be there: EOPNOTSUPP.
    #[error("on-demand paging needs Linux 5.14 and leave to use process_vm_readv on oneself")]
    NoPaging,
    /// The range wraps around the end of the address space: EINVAL.
    #[error("the range is longer than the address space")]
    Range,
    /// Memory windows are bound to the region that is to be changed (10.6.3.4): EBUSY.
    #[error("memory windows are bound to the region: unbind or invalidate them first")]
    Bound,
    /// The memory itself: EFAULT or ENOMEM.
    #[error(transparent)]
    Pin(#[from] PinError),
}

impl RegisterError {
    /// What verbs programs get.
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

/// What is granted, and what needs nothing done: advice, and orders that are kept anyhow.
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

/// What is to be changed of a region.
#[derive(Clone, Copy, Default, Debug)]
pub struct Change<'a> {
    /// Where it lies, and its bytes.
    pub place: Option<(u64, u64)>,
    /// What may be done to it.
    pub access: Option<Access>,
    /// Whose it is.
    pub pd: Option<&'a Arc<Pd>>,
}

/// Checks what a region of the program's memory shall be, and brings the memory in.
fn prepare(
    pd: &Pd,
    addr: u64,
    len: u64,
    iova: u64,
    access: Access,
) -> Result<Region, RegisterError> {
    check(pd, addr, len, iova, access, |access| {
        if access.contains(Access::ON_DEMAND) {
            // All of the address space, if the program wants that: the implicit region.
            return match memory::can_fault() {
                true => Ok(Backing::OnDemand),
                false => Err(RegisterError::NoPaging),
            };
        }
        memory::populate(addr, len, access.contains(Access::LOCAL_WRITE))?;
        Ok(Backing::Present)
    })
}

/// Checks what a region shall be; `back` finds out what lies behind it.
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
    // The upper bits name access that a program can do without (`IBV_ACCESS_OPTIONAL_RANGE`).
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
}

impl Mr {
    /// Registers `len` bytes at `addr`, which peers and work requests will name by addresses from
    /// `iova` on (11.2.8.1).
    ///
    /// Registering, and dropping, wait for who uses the table of regions: a thread must not do
    /// either while it has a [`crate::qp::Posting`].
    ///
    /// # Safety
    /// The memory must stay mapped until the region is dropped, and whoever else uses it must
    /// expect it to change, and to be read, at any time.
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

    /// Registers memory of which it is known that it is there and can be written: device memory, or
    /// what is mapped of a DMA buffer, whose pages cannot be asked for in advance.
    ///
    /// # Safety
    /// As for [`Mr::register`], and the memory is mapped for the access that is asked for.
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

    /// A region without memory, for local use: it reads as zeros, and what is written to it vanishes.
    /// It has every address.
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
        }
    }

    /// Changes what the region is, but not its keys (11.2.8.4). What is not to be changed stays as it
    /// is, and so does everything when it fails. With a new place, peers and work requests name it
    /// by its own addresses.
    ///
    /// # Safety
    /// As for [`Mr::register`].
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub unsafe fn reregister(&mut self, change: &Change<'_>) -> Result<(), RegisterError> {
        // SAFETY: the caller's promise.
        unsafe { self.replace(change) }?;
        if let Some(pd) = change.pd {
            self.pd = Arc::clone(pd);
        }
        (self.addr, self.len) = change.place.unwrap_or((self.addr, self.len));
        Ok(())
    }

    /// Changes what the table says of the region.
    ///
    /// # Safety
    /// As for [`Mr::register`].
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
            // Counting from 0 may end, too.
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

    /// The key for work requests.
    pub fn lkey(&self) -> LKey {
        LKey(self.key)
    }

    /// The key for peers.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// Where it lies.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Whether memory windows are bound to it: it should not be deregistered then (10.6.7.2.4). If
    /// it is all the same, their keys lead nowhere any more.
    pub fn has_windows(&self) -> bool {
        let held = regions();
        let region = held.table().region(self.lkey());
        region.is_some_and(|region| region.windows.load(Ordering::Acquire) > 0)
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        regions_mut().remove(self.key);
    }
}
