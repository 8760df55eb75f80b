//! Memory regions, and the table by which keys find them.
//!
//! A key is looked up for every access, so a region is gone for the peer the moment it is
//! deregistered: whoever uses the table holds it for reading, and deregistration waits for them.

use crate::memory::{self, PinError};
use crate::mw::Window;
use crate::pd::Pd;
use crate::per_process::PerProcess;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use urxe_proto::host::{Access, AtomicOp, MemoryError};
use urxe_proto::ids::{LKey, Qpn, RKey};
use urxe_proto::work::Sge;

/// What is known of a region.
#[derive(Debug)]
pub(crate) struct Region {
    /// The protection domain's number.
    pd: u64,
    pub(crate) access: Access,
    /// The address by which work requests and peers name its first byte.
    iova: u64,
    len: u64,
    /// Where the first byte lies.
    base: u64,
    /// How many memory windows are bound to it.
    pub(crate) windows: AtomicU32,
}

impl Region {
    /// Where `len` bytes at `addr` lie in the process.
    pub(crate) fn locate(&self, addr: u64, len: u64) -> Result<u64, MemoryError> {
        let offset = addr.checked_sub(self.iova).ok_or(MemoryError::Range)?;
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.base + offset),
            _ => Err(MemoryError::Range),
        }
    }
}

/// Keys are random already.
#[derive(Default, Clone, Copy, Debug)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, key: u32) {
        // The hash table looks at the top bits too: spread them there.
        self.0 = (self.0.rotate_left(32) ^ u64::from(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The low byte of a key belongs to the program where memory windows are concerned (10.6.7.2.6), so
/// a region is named by the other three.
pub(crate) const KEY_VARIANT: u32 = 0xff;

/// Something for each key, by its upper three bytes.
pub(crate) type ByKey<T> = HashMap<u32, T, BuildHasherDefault<KeyHasher>>;

/// All regions and memory windows of the process, by key.
#[derive(Debug, Default)]
pub struct RegionTable {
    regions: ByKey<(u32, Region)>,
    pub(crate) windows: ByKey<Window>,
}

impl RegionTable {
    pub(crate) fn find(&self, key: u32, pd: u64) -> Result<&Region, MemoryError> {
        match self.regions.get(&(key & !KEY_VARIANT)) {
            Some((full, region)) if *full == key && region.pd == pd => Ok(region),
            _ => Err(MemoryError::Key),
        }
    }

    /// A region of any protection domain.
    pub(crate) fn region(&self, key: LKey) -> Option<&Region> {
        let (_, region) = self.regions.get(&(key.0 & !KEY_VARIANT))?;
        Some(region)
    }

    /// Checks local elements for reading, or for writing with [`Access::LOCAL_WRITE`].
    pub(crate) fn check_local(
        &self,
        pd: &Pd,
        sges: &[Sge],
        access: Access,
    ) -> Result<(), MemoryError> {
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            self.local(pd, sge, access)?;
        }
        Ok(())
    }

    fn local(&self, pd: &Pd, sge: &Sge, access: Access) -> Result<u64, MemoryError> {
        let region = self.find(sge.lkey.0, pd.id())?;
        if !region.access.contains(access) {
            return Err(MemoryError::Permission);
        }
        region.locate(sge.addr, u64::from(sge.length))
    }

    /// See [`urxe_proto::host::Memory::gather`].
    pub(crate) fn gather(
        &self,
        pd: &Pd,
        sges: &[Sge],
        offset: u64,
        mut out: &mut [u8],
    ) -> Result<(), MemoryError> {
        for (sge, skip) in elements(sges, offset) {
            if out.is_empty() {
                return Ok(());
            }
            let base = self.local(pd, sge, Access::empty())?;
            let len = out.len().min((u64::from(sge.length) - skip) as usize);
            let (now, later) = out.split_at_mut(len);
            // SAFETY: the element lies in a region, which was mapped when it was registered and
            // which nobody can deregister while the table is held.
            unsafe { memory::copy_out(base + skip, now) };
            out = later;
        }
        if out.is_empty() {
            Ok(())
        } else {
            Err(MemoryError::Range)
        }
    }

    /// See [`urxe_proto::host::Memory::scatter`].
    pub(crate) fn scatter(
        &self,
        pd: &Pd,
        sges: &[Sge],
        offset: u64,
        mut data: &[u8],
    ) -> Result<(), MemoryError> {
        for (sge, skip) in elements(sges, offset) {
            if data.is_empty() {
                return Ok(());
            }
            let base = self.local(pd, sge, Access::LOCAL_WRITE)?;
            let (now, later) =
                data.split_at(data.len().min((u64::from(sge.length) - skip) as usize));
            // SAFETY: as in `gather`; the region was checked to be writable when registered.
            unsafe { memory::copy_in(base + skip, now) };
            data = later;
        }
        if data.is_empty() {
            Ok(())
        } else {
            Err(MemoryError::Range)
        }
    }

    /// Where memory lies that the peer of a queue pair names.
    pub(crate) fn remote(
        &self,
        pd: &Pd,
        qpn: Qpn,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<u64, MemoryError> {
        let Ok(region) = self.find(rkey.0, pd.id()) else {
            return self.through_window(pd, qpn, rkey, addr, len, access);
        };
        if !region.access.contains(access) {
            return Err(MemoryError::Permission);
        }
        region.locate(addr, len)
    }

    /// See [`urxe_proto::host::Memory::remote_read`].
    pub(crate) fn remote_read(
        &self,
        pd: &Pd,
        qpn: Qpn,
        rkey: RKey,
        addr: u64,
        out: &mut [u8],
    ) -> Result<(), MemoryError> {
        let at = self.remote(pd, qpn, rkey, addr, out.len() as u64, Access::REMOTE_READ)?;
        // SAFETY: the range lies in a region, as in `gather`.
        unsafe { memory::copy_out(at, out) };
        Ok(())
    }

    /// See [`urxe_proto::host::Memory::remote_write`].
    pub(crate) fn remote_write(
        &self,
        pd: &Pd,
        qpn: Qpn,
        rkey: RKey,
        addr: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        let at = self.remote(pd, qpn, rkey, addr, data.len() as u64, Access::REMOTE_WRITE)?;
        // SAFETY: the range lies in a region that was registered for writing, as in `scatter`.
        unsafe { memory::copy_in(at, data) };
        Ok(())
    }

    /// See [`urxe_proto::host::Memory::remote_atomic`].
    pub(crate) fn remote_atomic(
        &self,
        pd: &Pd,
        qpn: Qpn,
        rkey: RKey,
        addr: u64,
        op: AtomicOp,
    ) -> Result<u64, MemoryError> {
        let at = self.remote(pd, qpn, rkey, addr, 8, Access::REMOTE_ATOMIC)?;
        // A region may be known to peers by addresses that are aligned otherwise than its memory.
        if !at.is_multiple_of(8) {
            return Err(MemoryError::Range);
        }
        // SAFETY: the 8 bytes lie in a region that was registered for writing, and are aligned.
        Ok(unsafe { memory::atomic(at, op) })
    }

    /// A key that nothing has.
    pub(crate) fn free_key(&self) -> u32 {
        loop {
            let key: u32 = crate::random::any();
            let index = key & !KEY_VARIANT;
            // 0 looks like no key to programs.
            let taken = self.regions.contains_key(&index) || self.windows.contains_key(&index);
            if index != 0 && !taken {
                return key;
            }
        }
    }

    fn insert(&mut self, region: Region) -> u32 {
        let key = self.free_key();
        self.regions.insert(key & !KEY_VARIANT, (key, region));
        key
    }

    fn remove(&mut self, key: u32) {
        if let Some((_, region)) = self.regions.remove(&(key & !KEY_VARIANT))
            && region.windows.load(Ordering::Acquire) > 0
        {
            self.free_windows_on(LKey(key));
        }
    }
}

/// The elements from `offset` on, each with how much of it to skip.
fn elements(sges: &[Sge], offset: u64) -> impl Iterator<Item = (&Sge, u64)> {
    let mut before = offset;
    sges.iter().filter_map(move |sge| {
        let skip = before.min(u64::from(sge.length));
        before -= skip;
        (skip < u64::from(sge.length)).then_some((sge, skip))
    })
}

/// The table of this process. It is read for every batch of packets and every posting.
static REGIONS: PerProcess<RwLock<RegionTable>> = PerProcess::new();

/// Holds off deregistration while it lives.
#[derive(Debug)]
pub(crate) struct Regions(RwLockReadGuard<'static, RegionTable>);

impl Regions {
    pub(crate) fn table(&self) -> &RegionTable {
        &self.0
    }
}

/// Takes the table for reading. Comes before any lock of a queue pair, and is not taken twice by
/// one thread: a writer that waits in between would stop both.
pub(crate) fn regions() -> Regions {
    let table = REGIONS.get(RwLock::default);
    Regions(table.read().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) fn regions_mut() -> RwLockWriteGuard<'static, RegionTable> {
    let table = REGIONS.get(RwLock::default);
    table.write().unwrap_or_else(PoisonError::into_inner)
}

/// This process is a forked child, and the regions its parent's.
pub(crate) fn forget() {
    REGIONS.forget();
}

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
