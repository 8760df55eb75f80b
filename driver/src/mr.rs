//! Memory regions (10.6.3).

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

    /// Reads through the region's local key.
    fn read(pd: &Pd, mr: &Mr, addr: u64, len: u32) -> Result<Vec<u8>, MemoryError> {
        let mut out = vec![0xee; len as usize];
        let sge = Sge {
            addr,
            length: len,
            lkey: mr.lkey(),
        };
        regions().table().gather(pd, &[sge], 0, &mut out)?;
        Ok(out)
    }

    fn write(pd: &Pd, mr: &Mr, addr: u64) -> Result<(), MemoryError> {
        let sge = Sge {
            addr,
            length: 8,
            lkey: mr.lkey(),
        };
        regions().table().scatter(pd, &[sge], 0, &[7; 8])
    }

    #[test]
    fn a_null_region_reads_as_zeros_and_forgets_and_is_local() {
        let pd = Pd::new();
        let mr = Mr::null(&pd);
        for addr in [0, 12345, u64::MAX - 8] {
            write(&pd, &mr, addr).unwrap();
            assert_eq!(read(&pd, &mr, addr, 8), Ok(vec![0; 8]));
        }
        assert_eq!(read(&Pd::new(), &mr, 0, 8), Err(MemoryError::Key));
        let held = regions();
        let peer = held.table().remote_read(&pd, QPN, mr.rkey(), 0, &mut [1]);
        assert_eq!(peer, Err(MemoryError::Permission));
    }

    #[test]
    fn an_on_demand_region_needs_no_memory_until_it_is_used() {
        let pd = Pd::new();
        let page = rustix::param::page_size();
        let map = memmap2::MmapMut::map_anon(2 * page).unwrap();
        let (addr, second) = (map.as_ptr() as u64, map.as_ptr() as u64 + page as u64);
        // SAFETY: the second page is given up while nothing refers to it.
        assert_eq!(0, unsafe {
            libc::mprotect(second as *mut libc::c_void, page, libc::PROT_NONE)
        });
        // SAFETY: the memory goes after the region; on demand it may be there or not.
        let mr = unsafe { Mr::register(&pd, addr, 2 * page as u64, addr, ALL | Access::ON_DEMAND) };
        let mr = mr.unwrap();
        write(&pd, &mr, addr).unwrap();
        assert_eq!(
            read(&pd, &mr, addr + 4, 8),
            Ok(vec![7, 7, 7, 7, 0, 0, 0, 0])
        );
        assert_eq!(read(&pd, &mr, second, 1), Err(MemoryError::Fault));
        assert_eq!(write(&pd, &mr, second - 4), Err(MemoryError::Fault));
        let held = regions();
        let add = |addr| {
            let add = AtomicOp::FetchAdd(1);
            held.table().remote_atomic(&pd, QPN, mr.rkey(), addr, add)
        };
        assert_eq!(add(addr + 8), Ok(0));
        assert_eq!(add(addr + 8), Ok(1));
        assert_eq!(add(second), Err(MemoryError::Fault));
        drop(held);
        drop(mr);
    }

    #[test]
    fn the_implicit_region_is_all_of_the_address_space() {
        let pd = Pd::new();
        let mut data = [5_u64, 6];
        let access = Access::LOCAL_WRITE | Access::ON_DEMAND;
        // SAFETY: what is used of it is `data`.
        let mr = unsafe { Mr::register(&pd, 0, u64::MAX, 0, access) }.unwrap();
        let addr = &raw mut data as u64;
        assert_eq!(read(&pd, &mr, addr, 1), Ok(vec![5]));
        write(&pd, &mr, addr + 8).unwrap();
        assert_eq!(read(&pd, &mr, 8, 1), Err(MemoryError::Fault));
        drop(mr);
        assert_eq!(data[1], u64::from_ne_bytes([7; 8]));
        // SAFETY: refused before the memory matters.
        let pinned = unsafe { Mr::register(&pd, 0, u64::MAX, 0, Access::LOCAL_WRITE) };
        assert_eq!(pinned.unwrap_err().errno(), libc::EFAULT);
    }

    #[test]
    fn reregistering_changes_what_it_is_told_and_nothing_else() {
        let (pd, other_pd) = (Pd::new(), Pd::new());
        let (mut data, mut other) = (vec![1_u64; 2], vec![2_u64; 4]);
        let mut mr = register(&pd, &mut data, Access::LOCAL_WRITE);
        let (lkey, addr, other_addr) = (mr.lkey(), mr.addr(), other.as_mut_ptr() as u64);
        let peer = |pd: &Pd, addr| {
            let held = regions();
            let key = RKey(lkey.0);
            held.table().remote_write(pd, QPN, key, addr, &[9; 8])
        };
        assert_eq!(peer(&pd, addr), Err(MemoryError::Permission));
        let access = Change {
            access: Some(ALL),
            ..Change::default()
        };
        // SAFETY: all memory here outlives the region; so below.
        unsafe { mr.reregister(&access) }.unwrap();
        peer(&pd, addr).unwrap();
        let place = Change {
            place: Some((other_addr, 32)),
            ..Change::default()
        };
        // SAFETY: as above.
        unsafe { mr.reregister(&place) }.unwrap();
        assert_eq!((mr.addr(), mr.len(), mr.lkey()), (other_addr, 32, lkey));
        assert_eq!(peer(&pd, addr), Err(MemoryError::Range));
        peer(&pd, other_addr + 24).unwrap();
        let domain = Change {
            pd: Some(&other_pd),
            ..Change::default()
        };
        // SAFETY: as above.
        unsafe { mr.reregister(&domain) }.unwrap();
        assert_eq!(peer(&pd, other_addr), Err(MemoryError::Key));
        peer(&other_pd, other_addr).unwrap();
        assert_eq!(mr.pd().id(), other_pd.id());
        drop(mr);
        let nines = u64::from_ne_bytes([9; 8]);
        assert_eq!((data[0], other), (nines, vec![nines, 2, 2, nines]));
    }

    #[test]
    fn what_cannot_be_reregistered_stays_as_it_was() {
        let pd = Pd::new();
        let mut data = vec![1_u64; 2];
        let mut mr = register(&pd, &mut data, ALL);
        let addr = mr.addr();
        let changes = [
            (Some((8, 4096)), None, libc::EFAULT),
            (None, Some(Access::REMOTE_WRITE), libc::EINVAL),
            (
                None,
                Some(Access::from_bits_retain(1 << 15)),
                libc::EOPNOTSUPP,
            ),
            (Some((addr, u64::MAX)), None, libc::EINVAL),
        ];
        for (place, access, errno) in changes {
            let change = Change {
                place,
                access,
                pd: None,
            };
            // SAFETY: refused before the memory matters.
            let refused = unsafe { mr.reregister(&change) };
            assert_eq!(refused.unwrap_err().errno(), errno);
            assert_eq!((mr.addr(), mr.len()), (addr, 16));
            write(&pd, &mr, addr + 8).unwrap();
        }
    }

    #[test]
    fn a_region_that_stops_counting_from_0_has_its_own_addresses() {
        let pd = Pd::new();
        let mut data = vec![0_u64; 2];
        let mut mr = register(&pd, &mut data, ALL | Access::ZERO_BASED);
        write(&pd, &mr, 0).unwrap();
        let change = Change {
            access: Some(ALL),
            ..Change::default()
        };
        // SAFETY: the memory outlives the region.
        unsafe { mr.reregister(&change) }.unwrap();
        assert_eq!(write(&pd, &mr, 0), Err(MemoryError::Range));
        write(&pd, &mr, mr.addr() + 8).unwrap();
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
