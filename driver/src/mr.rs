//! Memory regions (10.6.3).

use crate::memory::{self, PinError};
use crate::pd::Pd;
use crate::regions::{Region, regions, regions_mut};
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
    /// The range wraps around the end of the address space: EINVAL.
    #[error("the range is longer than the address space")]
    Range,
    /// The memory itself: EFAULT or ENOMEM.
    #[error(transparent)]
    Pin(#[from] PinError),
}

impl RegisterError {
    /// What verbs programs get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NeedsLocalWrite | Self::Range => libc::EINVAL,
            Self::Unsupported(_) => libc::EOPNOTSUPP,
            Self::Pin(PinError::Fault) => libc::EFAULT,
            Self::Pin(PinError::NoMemory) => libc::ENOMEM,
        }
    }
}

/// Access that needs nothing done here, beside the four that are checked.
const SUPPORTED: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::ZERO_BASED)
    .union(Access::HUGETLB)
    .union(Access::RELAXED_ORDERING);

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
        let written = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(written) && !access.contains(Access::LOCAL_WRITE) {
            return Err(RegisterError::NeedsLocalWrite);
        }
        // The upper bits name access that a program can do without (`IBV_ACCESS_OPTIONAL_RANGE`).
        let unsupported = access - SUPPORTED;
        if !unsupported.is_empty() {
            return Err(RegisterError::Unsupported(unsupported));
        }
        let iova = if access.contains(Access::ZERO_BASED) {
            0
        } else {
            iova
        };
        if iova.checked_add(len).is_none() || addr.checked_add(len).is_none() {
            return Err(RegisterError::Range);
        }
        memory::populate(addr, len, access.contains(Access::LOCAL_WRITE))?;
        let region = Region {
            pd: pd.id(),
            access,
            iova,
            len,
            base: addr,
            windows: AtomicU32::new(0),
        };
        let key = regions_mut().insert(region);
        Ok(Mr {
            pd: Arc::clone(pd),
            key,
            addr,
            len,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_proto::host::{AtomicOp, MemoryError};
    use urxe_proto::ids::Qpn;
    use urxe_proto::work::Sge;

    const QPN: Qpn = Qpn::new(0x11);

    const ALL: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC);

    fn register(pd: &Arc<Pd>, data: &mut [u64], access: Access) -> Mr {
        let addr = data.as_mut_ptr() as u64;
        // SAFETY: the slice outlives the region in every test here.
        unsafe { Mr::register(pd, addr, (data.len() * 8) as u64, addr, access) }.unwrap()
    }

    #[test]
    fn remote_access_needs_key_range_permission_and_protection_domain() {
        let pd = Pd::new();
        let mut data = vec![0_u64; 4];
        let mr = register(&pd, &mut data, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let (addr, rkey) = (mr.addr(), mr.rkey());
        let held = regions();
        let table = held.table();
        table
            .remote_write(&pd, QPN, rkey, addr + 8, &[1; 24])
            .unwrap();
        let write = |rkey, addr| table.remote_write(&pd, QPN, rkey, addr, &[1; 8]);
        assert_eq!(write(rkey, addr + 25), Err(MemoryError::Range));
        assert_eq!(write(rkey, addr - 1), Err(MemoryError::Range));
        assert_eq!(write(rkey, u64::MAX - 3), Err(MemoryError::Range));
        assert_eq!(write(RKey(rkey.0 ^ 1), addr), Err(MemoryError::Key));
        let read = table.remote_read(&pd, QPN, rkey, addr, &mut [0; 8]);
        assert_eq!(read, Err(MemoryError::Permission));
        let other = table.remote_write(&Pd::new(), QPN, rkey, addr, &[1; 8]);
        assert_eq!(other, Err(MemoryError::Key));
        drop(held);
        drop(mr);
        let gone = regions()
            .table()
            .remote_write(&pd, QPN, rkey, addr, &[1; 8]);
        assert_eq!(gone, Err(MemoryError::Key));
        assert_eq!(data[0], 0);
        assert_eq!(data[1], u64::from_ne_bytes([1; 8]));
    }

    #[test]
    fn elements_are_walked_from_any_offset() {
        let pd = Pd::new();
        let mut data: Vec<u64> = (0..64).collect();
        let mr = register(&pd, &mut data, ALL);
        let sge = |offset: u64, length| Sge {
            addr: mr.addr() + offset,
            length,
            lkey: mr.lkey(),
        };
        let sges = [sge(0, 3), sge(100, 0), sge(8, 5), sge(16, 9)];
        let held = regions();
        let mut whole = [0; 17];
        held.table().gather(&pd, &sges, 0, &mut whole).unwrap();
        for start in 0..17 {
            let mut part = vec![0; 17 - start];
            held.table()
                .gather(&pd, &sges, start as u64, &mut part)
                .unwrap();
            assert_eq!(part, whole[start..]);
        }
        let beyond = held.table().gather(&pd, &sges, 1, &mut [0; 17]);
        assert_eq!(beyond, Err(MemoryError::Range));
    }

    #[test]
    fn atomics_return_what_was_there() {
        let pd = Pd::new();
        let mut data = vec![5_u64; 2];
        let mr = register(&pd, &mut data, ALL);
        let held = regions();
        let atomic = |op| {
            held.table()
                .remote_atomic(&pd, QPN, mr.rkey(), mr.addr() + 8, op)
                .unwrap()
        };
        assert_eq!(atomic(AtomicOp::FetchAdd(3)), 5);
        assert_eq!(
            atomic(AtomicOp::CompareSwap {
                compare: 1,
                swap: 9
            }),
            8
        );
        assert_eq!(
            atomic(AtomicOp::CompareSwap {
                compare: 8,
                swap: 9
            }),
            8
        );
        assert_eq!(atomic(AtomicOp::FetchAdd(u64::MAX)), 9);
        drop(held);
        drop(mr);
        assert_eq!(data, [5, 8]);
    }

    #[test]
    fn zero_based_regions_are_named_from_0() {
        let pd = Pd::new();
        let mut data = vec![0_u64; 2];
        let mr = register(&pd, &mut data, ALL | Access::ZERO_BASED);
        regions()
            .table()
            .remote_write(&pd, QPN, mr.rkey(), 8, &[2; 8])
            .unwrap();
        drop(mr);
        assert_eq!(data, [0, u64::from_ne_bytes([2; 8])]);
    }

    #[test]
    fn remote_write_needs_local_write() {
        let pd = Pd::new();
        let data = [0_u64; 1];
        // SAFETY: refused before the memory matters.
        let result = unsafe { Mr::register(&pd, data.as_ptr() as u64, 8, 0, Access::REMOTE_WRITE) };
        assert_eq!(result.unwrap_err().errno(), libc::EINVAL);
    }
}
