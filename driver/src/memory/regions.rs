//! The table of memory regions and memory windows, by key.
//!
//! Each access looks its key up, so a deregistered region is inaccessible to the peer at once.
//! Users of the table hold its lock for reading, and deregistration takes it for writing.

use super::access;
use super::window::{BindingGuard, Window};
use crate::lock_order::{Ordered, Rank};
use crate::pd::Pd;
use crate::per_process::PerProcess;
use crate::tables::{ByKey, KEY_VARIANT};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use urxe_proto::host::{Access, AtomicOp, MemoryError};
use urxe_proto::ids::{LKey, Qpn, RKey};
use urxe_proto::work::Sge;

/// The kind of memory behind a region's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
    /// Memory that was mapped at registration and that the application keeps mapped.
    Present,
    /// Memory that may not be mapped: on-demand paging.
    OnDemand,
    /// No memory: reads give zeros, and writes are discarded.
    Null,
}

/// The location of bytes of a region in the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) addr: u64,
    backing: Backing,
}

impl Place {
    /// Returns the place `bytes` further on.
    fn skip(self, bytes: u64) -> Self {
        let addr = self.addr + bytes;
        Place { addr, ..self }
    }

    /// Copies from this place.
    ///
    /// # Safety
    /// The `out.len()` bytes from this place on must belong to one region that stays registered
    /// until the call returns.
    unsafe fn read(self, out: &mut [u8]) -> Result<(), MemoryError> {
        match self.backing {
            // SAFETY: the bytes belong to a registered region: the caller's contract, section
            // Safety. Memory with `Backing::Present` stays mapped while registered: the contract of
            // `Mr::register`. `out` does not overlap it, as the driver creates no reference to
            // registered memory.
            Backing::Present => unsafe { access::copy_out(self.addr, out) },
            Backing::OnDemand => {
                access::try_copy_out(self.addr, out).map_err(|_| MemoryError::Fault)?;
            }
            Backing::Null => out.fill(0),
        }
        Ok(())
    }

    /// Copies to this place.
    ///
    /// # Safety
    /// The `data.len()` bytes from this place on must belong to one region that stays registered
    /// until the call returns and has local write access.
    #[inline]
    unsafe fn write(self, data: &[u8]) -> Result<(), MemoryError> {
        match self.backing {
            // SAFETY: the bytes belong to a registered region with write access: the caller's
            // contract, section Safety. It stays mapped for writing: the contract of
            // `Mr::register`. `data` does not overlap it, as the driver creates no reference to
            // registered memory.
            Backing::Present => unsafe { access::copy_in(self.addr, data) },
            Backing::OnDemand => {
                // SAFETY: users of registered memory expect it to change: the contract of
                // `Mr::register`.
                unsafe { access::try_copy_in(self.addr, data) }.map_err(|_| MemoryError::Fault)?;
            }
            Backing::Null => {}
        }
        Ok(())
    }

    /// Copies data that the program did not request to this place: a datagram, or a frame.
    ///
    /// A program may unmap the memory of its receives, and deregister it and destroy the queue pair
    /// only then. An adapter writes to the pinned pages, which the program no longer sees. So does
    /// nothing here, where the thread is the library's own, or ends a queue pair: the copy fails,
    /// and is not reported.
    ///
    /// # Safety
    /// See [`Place::write`].
    unsafe fn write_unsolicited(self, data: &[u8]) -> Result<(), MemoryError> {
        if self.backing == Backing::Present && access::may_be_unmapped() {
            // SAFETY: users of registered memory expect it to change: the contract of
            // `Mr::register`.
            let _unmapped = unsafe { access::try_copy_in(self.addr, data) };
            return Ok(());
        }
        // SAFETY: the bytes belong to one registered region with local write access: the caller's
        // contract, section Safety.
        unsafe { self.write(data) }
    }

    /// Executes an atomic operation on the 8 bytes at this place.
    ///
    /// # Safety
    /// The 8 bytes from this place on must belong to one region that stays registered until the
    /// call returns and has local write access.
    unsafe fn atomic(self, op: AtomicOp) -> Result<u64, MemoryError> {
        // The alignment of the region's `iova` may differ from that of its memory.
        if !self.addr.is_multiple_of(8) {
            return Err(MemoryError::Range);
        }
        match self.backing {
            // SAFETY: the 8 bytes are aligned (checked), and belong to a registered region with
            // write access: the caller's contract, section Safety. They stay mapped: the contract
            // of `Mr::register`.
            Backing::Present => Ok(unsafe { access::atomic(self.addr, op) }),
            Backing::OnDemand => {
                // SAFETY: the 8 bytes are aligned (checked). Users of registered memory expect it
                // to change: the contract of `Mr::register`.
                unsafe { access::try_atomic(self.addr, op) }.map_err(|_| MemoryError::Fault)
            }
            Backing::Null => Ok(0),
        }
    }
}

/// Memory that a peer may access. A memory window through which the peer names it stays bound until
/// this guard is dropped.
#[derive(Debug)]
pub(crate) struct Accessible<'a> {
    place: Place,
    _window: Option<BindingGuard<'a>>,
}

/// The attributes of a region.
#[derive(Debug)]
pub(crate) struct Region {
    /// The number of the protection domain.
    pub(crate) pd: u64,
    pub(crate) access: Access,
    /// The address of its first byte in work requests and in peers' packets.
    pub(crate) iova: u64,
    pub(crate) len: u64,
    /// The address of its first byte in the process.
    pub(crate) base: u64,
    pub(crate) backing: Backing,
    /// The number of memory windows bound to it.
    pub(crate) windows: AtomicU32,
}

impl Region {
    /// Returns the place of the `len` bytes at the region's address `addr`.
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

/// All memory regions and memory windows of the process, by key.
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

    /// Returns the region with exactly this key, of any protection domain.
    pub(crate) fn exactly(&self, key: LKey) -> Option<&Region> {
        let (full, region) = self.regions.get(key.0)?;
        (*full == key.0).then_some(region)
    }

    /// Returns the region with this key, of any protection domain; the key's low 8 bits are
    /// ignored.
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

    /// Returns the place of the `len` bytes of an element from `offset` on.
    ///
    /// Most lists have one element. The loop over [`elements`] takes a third more instructions.
    #[inline(always)]
    fn part_of(
        &self,
        pd: &Pd,
        sge: &Sge,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Place, MemoryError> {
        let place = self.local(pd, sge, access)?;
        match u64::from(sge.length).checked_sub(offset) {
            Some(rest) if len as u64 <= rest => Ok(place.skip(offset)),
            _ => Err(MemoryError::Range),
        }
    }

    /// See [`urxe_proto::host::Memory::gather`].
    pub(crate) fn gather(
        &self,
        pd: &Pd,
        sges: &[Sge],
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), MemoryError> {
        if out.is_empty() {
            return Ok(());
        }
        let [sge] = sges else {
            return self.gather_list(pd, sges, offset, out);
        };
        let place = self.part_of(pd, sge, offset, out.len(), Access::empty())?;
        // SAFETY: `part_of` has checked that the bytes are within a region. The caller holds the
        // table's lock, so the region stays registered.
        unsafe { place.read(out) }
    }

    /// [`RegionTable::gather`] from any number of elements.
    #[inline(never)]
    fn gather_list(
        &self,
        pd: &Pd,
        sges: &[Sge],
        offset: u64,
        mut out: &mut [u8],
    ) -> Result<(), MemoryError> {
        for (sge, skip) in elements(sges, offset) {
            let place = self.local(pd, sge, Access::empty())?;
            let len = out.len().min((u64::from(sge.length) - skip) as usize);
            let (now, later) = out.split_at_mut(len);
            // SAFETY: `local` has checked that the element is within a region, and `skip + len` is
            // at most its length. The caller holds the table's lock, so the region stays
            // registered.
            unsafe { place.skip(skip).read(now) }?;
            if later.is_empty() {
                return Ok(());
            }
            out = later;
        }
        Err(MemoryError::Range)
    }

    /// See [`urxe_proto::host::Memory::scatter`].
    pub(crate) fn scatter(
        &self,
        pd: &Pd,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        // SAFETY: `scatter_with` passes bytes of one region with local write access, which stays
        // registered until the call returns, since the table is locked.
        let write = |place: Place, data: &[u8]| unsafe { place.write(data) };
        self.scatter_with(pd, sges, offset, data, write)
    }

    /// Scatters data that the program did not request: a datagram, or a frame. Memory that the
    /// program has unmapped is skipped, unless the program polls for the data.
    pub(crate) fn scatter_unsolicited(
        &self,
        pd: &Pd,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        // SAFETY: `scatter_with` passes bytes of one region with local write access, which stays
        // registered until the call returns, since the table is locked.
        let write = |place: Place, data: &[u8]| unsafe { place.write_unsolicited(data) };
        self.scatter_with(pd, sges, offset, data, write)
    }

    /// Divides data among the elements, and passes the place and the data of each to `write`. The
    /// place belongs to a region with local write access that stays registered meanwhile.
    #[inline]
    fn scatter_with(
        &self,
        pd: &Pd,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
        write: impl Fn(Place, &[u8]) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        if data.is_empty() {
            return Ok(());
        }
        let [sge] = sges else {
            return self.scatter_list(pd, sges, offset, data, write);
        };
        let place = self.part_of(pd, sge, offset, data.len(), Access::LOCAL_WRITE)?;
        write(place, data)
    }

    /// [`RegionTable::scatter_with`] for any number of elements.
    #[inline(never)]
    fn scatter_list(
        &self,
        pd: &Pd,
        sges: &[Sge],
        offset: u64,
        mut data: &[u8],
        write: impl Fn(Place, &[u8]) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        for (sge, skip) in elements(sges, offset) {
            let place = self.local(pd, sge, Access::LOCAL_WRITE)?;
            let (now, later) =
                data.split_at(data.len().min((u64::from(sge.length) - skip) as usize));
            // `local` has checked that the element is within a region with local write access, and
            // `skip` plus the length is at most its length. The caller holds the table's lock, so
            // the region stays registered.
            write(place.skip(skip), now)?;
            if later.is_empty() {
                return Ok(());
            }
            data = later;
        }
        Err(MemoryError::Range)
    }

    /// Returns the memory that the peer of a queue pair names, if the peer may access it.
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
        // SAFETY: `remote` has checked that the range is within a region. The caller holds the
        // table's lock, so the region stays registered.
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
        // SAFETY: `remote` has checked that the range is within a region, and for remote write
        // access. Registrations and binds grant that only for regions with local write access. The
        // caller holds the table's lock, so the region stays registered.
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
        // SAFETY: `remote` has checked that the 8 bytes are within a region, and for the access of
        // `op`. Registrations and binds grant that only for regions with local write access. The
        // caller holds the table's lock, so the region stays registered.
        unsafe { at.place.atomic(op) }
    }

    /// See [`urxe_proto::host::Memory::flush`]. Memory is coherent: a fence that orders the peer's
    /// writes before later accesses is sufficient.
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

    /// Returns a random key that no region and no window has.
    pub(crate) fn free_key(&self) -> u32 {
        loop {
            let key: u32 = urxe_net::random::any();
            // Applications take a key of 0 for none.
            let is_zero = key & !KEY_VARIANT == 0;
            let taken = self.regions.get(key).is_some() || self.windows.get(key).is_some();
            if !is_zero && !taken {
                return key;
            }
        }
    }

    /// Replaces the region that has this key. Returns false, without a change, if windows are bound
    /// to it.
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

/// The elements from `offset` on, each with the number of its bytes to skip.
fn elements(sges: &[Sge], offset: u64) -> impl Iterator<Item = (&Sge, u64)> {
    let mut before = offset;
    sges.iter().filter_map(move |sge| {
        let skip = before.min(u64::from(sge.length));
        before -= skip;
        (skip < u64::from(sge.length)).then_some((sge, skip))
    })
}

/// The table of this process. It is locked for reading for every batch of packets and every
/// posting.
static REGIONS: PerProcess<RwLock<RegionTable>> = PerProcess::new();

/// A read lock of the table: no region is deregistered while it is held.
#[derive(Debug)]
pub(crate) struct Regions(Ordered<RwLockReadGuard<'static, RegionTable>>);

impl Regions {
    pub(crate) fn table(&self) -> &RegionTable {
        &self.0
    }
}

/// Locks the table for reading. The lock comes before all locks of queue pairs. A thread must not
/// take it twice: with a writer waiting between the two, both would deadlock.
pub(crate) fn regions() -> Regions {
    let table = REGIONS.get(RwLock::default);
    Regions(Ordered::take(Rank::Regions, || {
        table.read().unwrap_or_else(PoisonError::into_inner)
    }))
}

/// Locks the table for writing: waits until no thread accesses regions.
pub(crate) fn regions_mut() -> Ordered<RwLockWriteGuard<'static, RegionTable>> {
    let table = REGIONS.get(RwLock::default);
    Ordered::take(Rank::Regions, || {
        table.write().unwrap_or_else(PoisonError::into_inner)
    })
}
