//! The table by which keys find memory regions and windows.
//!
//! A key is looked up for every access, so a region is gone for the peer the moment it is
//! deregistered: whoever uses the table holds it for reading, and deregistration waits for them.

use crate::memory;
use crate::mw::{KeptBound, Window};
use crate::pd::Pd;
use crate::per_process::PerProcess;
use crate::tables::{ByKey, KEY_VARIANT};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use urxe_proto::host::{Access, AtomicOp, MemoryError};
use urxe_proto::ids::{LKey, Qpn, RKey};
use urxe_proto::work::Sge;

/// What lies behind a region's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
    /// Memory that was there when it was registered, and that the program keeps there.
    Present,
    /// Memory that may be there or not: on-demand paging.
    OnDemand,
    /// Nothing: it reads as zeros, and what is written to it vanishes.
    Null,
}

/// Where bytes of a region lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) addr: u64,
    backing: Backing,
}

impl Place {
    /// The place `bytes` further on.
    fn skip(self, bytes: u64) -> Self {
        let addr = self.addr + bytes;
        Place { addr, ..self }
    }

    /// # Safety
    /// As many bytes from here on lie in a region that nobody can deregister now.
    unsafe fn read(self, out: &mut [u8]) -> Result<(), MemoryError> {
        match self.backing {
            // SAFETY: it was mapped when it was registered, and the program promised to keep it so.
            Backing::Present => unsafe { memory::copy_out(self.addr, out) },
            Backing::OnDemand => {
                memory::try_copy_out(self.addr, out).map_err(|_| MemoryError::Fault)?;
            }
            Backing::Null => out.fill(0),
        }
        Ok(())
    }

    /// # Safety
    /// As many bytes from here on lie in a region that nobody can deregister now, and that was
    /// registered for writing.
    unsafe fn write(self, data: &[u8]) -> Result<(), MemoryError> {
        match self.backing {
            // SAFETY: as in `read`, and it was checked to be writable.
            Backing::Present => unsafe { memory::copy_in(self.addr, data) },
            Backing::OnDemand => {
                // SAFETY: who registers memory promises to expect that it changes.
                unsafe { memory::try_copy_in(self.addr, data) }.map_err(|_| MemoryError::Fault)?;
            }
            Backing::Null => {}
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Place::write`], of 8 bytes.
    unsafe fn atomic(self, op: AtomicOp) -> Result<u64, MemoryError> {
        // A region may be known to peers by addresses that are aligned otherwise than its memory.
        if !self.addr.is_multiple_of(8) {
            return Err(MemoryError::Range);
        }
        match self.backing {
            // SAFETY: as in `write`, and it is aligned.
            Backing::Present => Ok(unsafe { memory::atomic(self.addr, op) }),
            Backing::OnDemand => {
                // SAFETY: as in `write`, and it is aligned.
                unsafe { memory::try_atomic(self.addr, op) }.map_err(|_| MemoryError::Fault)
            }
            Backing::Null => Ok(0),
        }
    }
}

/// Memory that a peer may access. A memory window through which the peer names it stays bound until
/// this is dropped.
#[derive(Debug)]
pub(crate) struct Accessible<'a> {
    place: Place,
    _window: Option<KeptBound<'a>>,
}

/// What is known of a region.
#[derive(Debug)]
pub(crate) struct Region {
    /// The protection domain's number.
    pub(crate) pd: u64,
    pub(crate) access: Access,
    /// The address by which work requests and peers name its first byte.
    pub(crate) iova: u64,
    pub(crate) len: u64,
    /// Where the first byte lies.
    pub(crate) base: u64,
    pub(crate) backing: Backing,
    /// How many memory windows are bound to it.
    pub(crate) windows: AtomicU32,
}

impl Region {
    /// Where `len` bytes at `addr` lie in the process.
    pub(crate) fn locate(&self, addr: u64, len: u64) -> Result<Place, MemoryError> {
        let offset = addr.checked_sub(self.iova).ok_or(MemoryError::Range)?;
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(Place {
                addr: self.base + offset,
                backing: self.backing,
            }),
            _ => Err(MemoryError::Range),
        }
    }
}

/// All regions and memory windows of the process, by key.
#[derive(Debug, Default)]
pub struct RegionTable {
    regions: ByKey<(u32, Region)>,
    pub(crate) windows: ByKey<Window>,
}

impl RegionTable {
    pub(crate) fn find(&self, key: u32, pd: u64) -> Result<&Region, MemoryError> {
        match self.regions.get(key) {
            Some((full, region)) if *full == key && region.pd == pd => Ok(region),
            _ => Err(MemoryError::Key),
        }
    }

    /// The region with this very key, of any protection domain.
    pub(crate) fn exactly(&self, key: LKey) -> Option<&Region> {
        let (full, region) = self.regions.get(key.0)?;
        (*full == key.0).then_some(region)
    }

    /// A region of any protection domain.
    pub(crate) fn region(&self, key: LKey) -> Option<&Region> {
        let (_, region) = self.regions.get(key.0)?;
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

    fn local(&self, pd: &Pd, sge: &Sge, access: Access) -> Result<Place, MemoryError> {
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
            let place = self.local(pd, sge, Access::empty())?;
            let len = out.len().min((u64::from(sge.length) - skip) as usize);
            let (now, later) = out.split_at_mut(len);
            // SAFETY: the element lies in a region, which nobody can deregister while the table is
            // held.
            unsafe { place.skip(skip).read(now) }?;
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
            let place = self.local(pd, sge, Access::LOCAL_WRITE)?;
            let (now, later) =
                data.split_at(data.len().min((u64::from(sge.length) - skip) as usize));
            // SAFETY: as in `gather`; the region has local write access.
            unsafe { place.skip(skip).write(now) }?;
            data = later;
        }
        if data.is_empty() {
            Ok(())
        } else {
            Err(MemoryError::Range)
        }
    }

    /// The memory that the peer of a queue pair names, if it may access it.
    pub(crate) fn remote(
        &self,
        pd: &Pd,
        qpn: Qpn,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Accessible<'_>, MemoryError> {
        let Ok(region) = self.find(rkey.0, pd.id()) else {
            let (place, bound) = self.through_window(pd, qpn, rkey, addr, len, access)?;
            return Ok(Accessible {
                place,
                _window: Some(bound),
            });
        };
        if !region.access.contains(access) {
            return Err(MemoryError::Permission);
        }
        Ok(Accessible {
            place: region.locate(addr, len)?,
            _window: None,
        })
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
        unsafe { at.place.read(out) }
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
        unsafe { at.place.write(data) }
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
        let at = self.remote(pd, qpn, rkey, addr, 8, op.access())?;
        // SAFETY: the 8 bytes lie in a region that was registered for writing.
        unsafe { at.place.atomic(op) }
    }

    /// See [`urxe_proto::host::Memory::flush`]. Memory is coherent, so all that is to be done for
    /// the processors to see what the peer wrote is to keep it before what follows.
    pub(crate) fn flush(
        &self,
        pd: &Pd,
        qpn: Qpn,
        rkey: RKey,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), MemoryError> {
        match range {
            Some((addr, len)) => {
                self.remote(pd, qpn, rkey, addr, len, access)?;
            }
            None if self.find(rkey.0, pd.id())?.access.contains(access) => {}
            None => return Err(MemoryError::Permission),
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// A key that nothing has.
    pub(crate) fn free_key(&self) -> u32 {
        loop {
            let key: u32 = urxe_net::random::any();
            // 0 looks like no key to programs.
            let is_zero = key & !KEY_VARIANT == 0;
            let taken = self.regions.get(key).is_some() || self.windows.get(key).is_some();
            if !is_zero && !taken {
                return key;
            }
        }
    }

    /// Puts another region in the place of the one with this key, unless windows are bound to that.
    /// False if they are.
    pub(crate) fn replace(&mut self, key: u32, region: Region) -> bool {
        match self.regions.get_mut(key) {
            Some((_, old)) if old.windows.load(Ordering::Acquire) == 0 => {
                *old = region;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn insert(&mut self, region: Region) -> u32 {
        let key = self.free_key();
        self.regions.insert(key, (key, region));
        key
    }

    pub(crate) fn remove(&mut self, key: u32) {
        if let Some((_, region)) = self.regions.remove(key)
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
