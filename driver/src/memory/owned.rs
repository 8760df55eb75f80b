//! Registered memory that the driver owns, for RDMA from safe Rust.
//!
//! A peer may read and write registered memory at any time, so no `&[u8]` or `&mut [u8]` to it may
//! exist. [`OwnedRegion`] owns its memory, and frees it after the region is deregistered. The
//! memory is accessed by copies, and by atomics on aligned 8-byte words. Only a caller that rules
//! out every other access may borrow bytes, see [`OwnedRegion::bytes`].

use super::access;
use crate::memory::mr::{Change, Mr, RegisterError};
use crate::pd::Pd;
use memmap2::{MmapMut, MmapRaw};
use std::fmt::Debug;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use urxe_proto::host::Access;
use urxe_proto::work::Sge;

/// The size and the alignment of an atomic, in bytes.
pub const WORD: usize = 8;

/// Errors of allocating and registering memory.
#[derive(Debug, thiserror::Error)]
pub enum OwnedError {
    /// The length is 0: EINVAL.
    #[error("a memory region has at least one byte")]
    Empty,
    /// The memory cannot be mapped: usually ENOMEM.
    #[error("{len} bytes of memory cannot be mapped ({source}): ask for less, or end others")]
    Map {
        /// The requested number of bytes.
        len: usize,
        /// The error of the system call.
        source: io::Error,
    },
    /// The memory cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

impl OwnedError {
    /// Returns the error number that verbs applications get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Empty => libc::EINVAL,
            Self::Map { source, .. } => source.raw_os_error().unwrap_or(libc::ENOMEM),
            Self::Register(error) => error.errno(),
        }
    }
}

/// Errors of accessing a part of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeError {
    /// The part ends beyond the end of the region.
    #[error("{len} bytes from offset {offset} on reach beyond the end of {of} bytes")]
    Outside {
        /// The offset of the part.
        offset: u64,
        /// The length of the part in bytes.
        len: u64,
        /// The length of the region in bytes.
        of: u64,
    },
    /// The start is greater than the end.
    #[error("a range that starts at {start} cannot end at {end}")]
    Backwards {
        /// The start.
        start: u64,
        /// The end.
        end: u64,
    },
    /// The address of an atomic is not a multiple of 8.
    #[error("atomics work on addresses that are a multiple of 8; {addr:#x} is not")]
    Misaligned {
        /// The address.
        addr: u64,
    },
}

/// Checks that `len` bytes from `offset` on are within `of` bytes.
///
/// # Errors
/// [`RangeError::Outside`] if they are not.
pub fn check_range(offset: u64, len: u64, of: u64) -> Result<(), RangeError> {
    match offset.checked_add(len) {
        Some(end) if end <= of => Ok(()),
        _ => Err(RangeError::Outside { offset, len, of }),
    }
}

/// A memory region that owns its memory.
#[derive(Debug)]
pub struct OwnedRegion {
    /// The first field, so it is dropped first: no peer accesses the memory when that is freed.
    mr: Mr,
    /// The owner of the memory; dropping it frees the memory.
    memory: Memory,
}

/// The owner of a region's memory.
#[derive(Debug)]
enum Memory {
    Mapped(#[expect(dead_code, reason = "its drop unmaps the memory")] MmapRaw),
    Vector(RawVec),
    Foreign(
        #[expect(dead_code, reason = "its drop frees the memory")] Box<dyn Debug + Send + Sync>,
    ),
}

/// The parts of a `Vec<u8>`: the vector itself would claim exclusive access to its bytes.
#[derive(Debug)]
struct RawVec {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
}

// SAFETY: `RawVec` owns its bytes, which any thread may free, and gives no access to them.
unsafe impl Send for RawVec {}
// SAFETY: `RawVec` has no method that takes a shared reference to it.
unsafe impl Sync for RawVec {}

impl RawVec {
    fn new(data: Vec<u8>) -> RawVec {
        let mut data = ManuallyDrop::new(data);
        RawVec {
            // `Vec::as_mut_ptr` makes no reference to the bytes, so the pointer is valid for all of
            // them. It is never null.
            start: NonNull::new(data.as_mut_ptr()).unwrap_or(NonNull::dangling()),
            len: data.len(),
            capacity: data.capacity(),
        }
    }

    fn into_vec(self) -> Vec<u8> {
        let parts = ManuallyDrop::new(self);
        // SAFETY: the parts are those of a vector that `new` took apart. `self` is consumed without
        // its drop, so no other owner of the bytes remains.
        unsafe { Vec::from_raw_parts(parts.start.as_ptr(), parts.len, parts.capacity) }
    }
}

impl Drop for RawVec {
    fn drop(&mut self) {
        // SAFETY: the parts are those of a vector that `new` took apart; `into_vec`, the only other
        // user of the parts, does not run this drop.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
    }
}

impl OwnedRegion {
    /// Maps `len` bytes of zeros, aligned to a page, and registers them.
    ///
    /// # Errors
    /// See [`OwnedError`].
    pub fn zeroed(pd: &Arc<Pd>, len: usize, access: Access) -> Result<OwnedRegion, OwnedError> {
        if len == 0 {
            return Err(OwnedError::Empty);
        }
        let map = MmapMut::map_anon(len).map_err(|source| OwnedError::Map { len, source })?;
        let map = MmapRaw::from(map);
        let start = map.as_mut_ptr();
        Self::register(pd, start, len, Memory::Mapped(map), access)
    }

    /// Registers the bytes of a vector in place, without a copy.
    ///
    /// # Errors
    /// See [`OwnedError`].
    pub fn from_vec(
        pd: &Arc<Pd>,
        data: Vec<u8>,
        access: Access,
    ) -> Result<OwnedRegion, OwnedError> {
        if data.is_empty() {
            return Err(OwnedError::Empty);
        }
        let data = RawVec::new(data);
        let (start, len) = (data.start.as_ptr(), data.len);
        Self::register(pd, start, len, Memory::Vector(data), access)
    }

    /// Registers memory of any origin, and drops `owner` after the region is deregistered.
    ///
    /// # Safety
    /// The `len` bytes at `start` must be mapped for reading and writing until `owner` is dropped.
    /// While the region exists, no Rust reference to them may exist, except to atomics; other users
    /// of the bytes must expect them to change at any time.
    ///
    /// # Errors
    /// See [`OwnedError`].
    pub unsafe fn from_raw(
        pd: &Arc<Pd>,
        start: NonNull<u8>,
        len: usize,
        owner: Box<dyn Debug + Send + Sync>,
        access: Access,
    ) -> Result<OwnedRegion, OwnedError> {
        if len == 0 {
            return Err(OwnedError::Empty);
        }
        Self::register(pd, start.as_ptr(), len, Memory::Foreign(owner), access)
    }

    fn register(
        pd: &Arc<Pd>,
        start: *mut u8,
        len: usize,
        memory: Memory,
        access: Access,
    ) -> Result<OwnedRegion, OwnedError> {
        let addr = start.expose_provenance() as u64;
        // SAFETY: `memory` keeps the bytes mapped, and is dropped after `mr`. A mapping or a vector
        // is accessed through this object only. The caller of `from_raw` vouches for other users of
        // foreign memory, and the callers of `bytes` and `bytes_mut` for their references.
        let mr = unsafe { Mr::register(pd, addr, len as u64, addr, access) }?;
        Ok(OwnedRegion { mr, memory })
    }

    /// Deregisters the region and returns its bytes: in place if a vector was registered, otherwise
    /// a copy.
    pub fn into_vec(self) -> Vec<u8> {
        let (addr, len) = (self.mr.addr(), self.mr.len() as usize);
        // From here on no peer changes the bytes.
        drop(self.mr);
        match self.memory {
            Memory::Vector(data) => data.into_vec(),
            memory @ (Memory::Mapped(_) | Memory::Foreign(_)) => {
                let mut copy = vec![0; len];
                // SAFETY: the range is that of the region, which `memory` keeps mapped until the
                // end of the block. `copy` is a new allocation, which does not overlap it.
                unsafe { access::copy_out(addr, &mut copy) };
                drop(memory);
                copy
            }
        }
    }

    /// Borrows `len` bytes from `offset` on.
    ///
    /// # Safety
    /// During the borrow the bytes must not change: no work request may store data in them, no peer
    /// may have the right to write them, and neither [`OwnedRegion::write`], a [`Word`] nor
    /// [`OwnedRegion::bytes_mut`] may be used on them.
    ///
    /// # Errors
    /// [`RangeError::Outside`].
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> Result<&[u8], RangeError> {
        let start = self.locate(offset, len)?;
        let start = std::ptr::with_exposed_provenance(start as usize);
        // SAFETY: `locate` has checked that the range is within the region, whose memory stays
        // mapped as long as `self` is borrowed. It is initialized: mappings and vectors always are,
        // and foreign memory comes from a mapping. It does not change: the caller's contract.
        Ok(unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// Borrows `len` bytes from `offset` on for exclusive use.
    ///
    /// # Safety
    /// During the borrow nothing else may access the bytes: no work request may be outstanding on
    /// them, no peer may have rights to them, and no other method of the region may be used on
    /// them.
    ///
    /// # Errors
    /// [`RangeError::Outside`].
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller guarantees that the borrow is exclusive"
    )]
    pub unsafe fn bytes_mut(&self, offset: usize, len: usize) -> Result<&mut [u8], RangeError> {
        let start = self.locate(offset, len)?;
        let start = std::ptr::with_exposed_provenance_mut(start as usize);
        // SAFETY: as `bytes` argues for the range and its initialization. The borrow is exclusive:
        // the caller's contract, section Safety.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }

    /// Changes the access rights of the region, effective immediately.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn set_access(&self, access: Access) -> Result<(), RegisterError> {
        let change = Change {
            access: Some(access),
            ..Change::default()
        };
        // SAFETY: `self.memory` keeps the bytes mapped and is dropped after `self.mr`; `register`
        // has the argument for other users of the bytes.
        unsafe { self.mr.replace(&change) }
    }

    /// Moves the region to another protection domain.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn set_pd(&mut self, pd: &Arc<Pd>) -> Result<(), RegisterError> {
        let change = Change {
            pd: Some(pd),
            ..Change::default()
        };
        // SAFETY: `self.memory` keeps the bytes mapped and is dropped after `self.mr`; `register`
        // has the argument for other users of the bytes.
        unsafe { self.mr.reregister(&change) }
    }

    /// Returns the region.
    pub fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Returns the scatter/gather element for `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`RangeError::Outside`], also for lengths of 4 GiB and more, which an element cannot
    /// represent.
    pub fn sge(&self, offset: usize, len: usize) -> Result<Sge, RangeError> {
        let addr = self.locate(offset, len)?;
        let length = u32::try_from(len).map_err(|_| RangeError::Outside {
            offset: offset as u64,
            len: len as u64,
            of: u64::from(u32::MAX),
        })?;
        Ok(Sge {
            addr,
            length,
            lkey: self.mr.lkey(),
        })
    }

    /// Copies from the memory. Bytes that a peer writes during the copy are old or new.
    ///
    /// # Errors
    /// [`RangeError::Outside`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RangeError> {
        let addr = self.locate(offset, into.len())?;
        // SAFETY: `locate` has checked that the range is within memory that this object keeps
        // mapped. `into` does not overlap it, since no other reference to these bytes exists: the
        // contracts of `from_raw` and `bytes_mut`.
        unsafe { access::copy_out(addr, into) };
        Ok(())
    }

    /// Copies to the memory. A peer that reads during the copy may get a part of the data.
    ///
    /// # Errors
    /// [`RangeError::Outside`].
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), RangeError> {
        let addr = self.locate(offset, data.len())?;
        // SAFETY: `locate` has checked that the range is within memory that this object keeps
        // mapped for writing. `data` does not overlap it, since no reference to these bytes exists:
        // the contracts of `from_raw` and `bytes`.
        unsafe { access::copy_in(addr, data) };
        Ok(())
    }

    /// Returns the 8 bytes at `offset` as an atomic.
    ///
    /// # Errors
    /// [`RangeError::Outside`], and [`RangeError::Misaligned`] if their address is not a multiple
    /// of 8.
    pub fn word(self: &Arc<Self>, offset: usize) -> Result<Word, RangeError> {
        let addr = self.locate(offset, WORD)?;
        if !addr.is_multiple_of(WORD as u64) {
            return Err(RangeError::Misaligned { addr });
        }
        // The address of mapped memory is never 0.
        let cell = NonNull::new(std::ptr::with_exposed_provenance_mut(addr as usize));
        let cell = cell.ok_or(RangeError::Misaligned { addr })?;
        Ok(Word {
            _region: Arc::clone(self),
            cell,
        })
    }

    /// Returns the address of a part in the process.
    fn locate(&self, offset: usize, len: usize) -> Result<u64, RangeError> {
        check_range(offset as u64, len as u64, self.mr.len())?;
        Ok(self.mr.addr() + offset as u64)
    }
}

/// Eight aligned bytes of a region as an atomic. Peers' atomics on them are atomic with respect to
/// it.
#[derive(Clone, Debug)]
pub struct Word {
    /// Keeps the memory of the cell alive.
    _region: Arc<OwnedRegion>,
    cell: NonNull<AtomicU64>,
}

// SAFETY: `cell` is a shared reference to an `AtomicU64`, which any thread may use, and `_region`,
// which is `Send` and `Sync`, keeps it alive.
unsafe impl Send for Word {}
// SAFETY: a shared `Word` gives only a shared reference to an `AtomicU64`, which is `Sync`.
unsafe impl Sync for Word {}

impl Deref for Word {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        // SAFETY: `word` has checked that the cell is aligned and within the region's memory, which
        // `_region` keeps alive as long as `self`. Concurrent changes are sound for an atomic.
        unsafe { self.cell.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn memory_is_copied_in_and_out_within_its_bounds() {
        let pd = Pd::new();
        let region = OwnedRegion::zeroed(&pd, 100, Access::LOCAL_WRITE).unwrap();
        region.write(90, &[7; 10]).unwrap();
        let mut out = [1; 12];
        region.read(88, &mut out).unwrap();
        assert_eq!(out, [0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
        let outside = RangeError::Outside {
            offset: 91,
            len: 10,
            of: 100,
        };
        assert_eq!(region.write(91, &[0; 10]), Err(outside));
        assert!(region.read(usize::MAX, &mut out).is_err());
        assert!(region.read(100, &mut []).is_ok());
        assert!(region.sge(0, 100).is_ok() && region.sge(1, 100).is_err());
    }

    #[test]
    fn a_vector_is_registered_in_place() {
        let pd = Pd::new();
        let data: Vec<u8> = (0..200).collect();
        let at = data.as_ptr() as u64;
        let region = OwnedRegion::from_vec(&pd, data, Access::LOCAL_WRITE).unwrap();
        assert_eq!((region.mr().addr(), region.mr().len()), (at, 200));
        let mut out = [0; 3];
        region.read(150, &mut out).unwrap();
        assert_eq!(out, [150, 151, 152]);
    }

    #[test]
    fn a_vector_comes_back_in_place_and_other_memory_as_a_copy() {
        let pd = Pd::new();
        let mut data = Vec::with_capacity(300);
        data.extend(0..200);
        let at = data.as_ptr();
        let region = OwnedRegion::from_vec(&pd, data, Access::LOCAL_WRITE).unwrap();
        region.write(1, &[9]).unwrap();
        let data = region.into_vec();
        assert_eq!((data.as_ptr(), data.capacity()), (at, 300));
        assert_eq!((data.len(), &data[..3]), (200, &[0, 9, 2][..]));

        let region = OwnedRegion::zeroed(&pd, 3, Access::LOCAL_WRITE).unwrap();
        region.write(1, &[9]).unwrap();
        assert_eq!(region.into_vec(), [0, 9, 0]);
    }

    #[test]
    fn the_owner_of_foreign_memory_is_dropped_after_the_region() {
        let pd = Pd::new();
        let owner = Arc::new(MmapRaw::from(MmapMut::map_anon(100).unwrap()));
        let start = NonNull::new(owner.as_mut_ptr()).unwrap();
        let held: Box<dyn Debug + Send + Sync> = Box::new(Arc::clone(&owner));
        // SAFETY: `held` keeps the mapping, and no reference to its bytes exists.
        let region = unsafe { OwnedRegion::from_raw(&pd, start, 100, held, Access::LOCAL_WRITE) };
        let region = region.unwrap();
        assert_eq!(region.mr().addr(), start.as_ptr() as u64);
        region.write(99, &[7]).unwrap();
        // SAFETY: nothing else accesses the region.
        assert_eq!(unsafe { region.bytes(98, 2) }.unwrap(), [0, 7]);
        // SAFETY: nothing else accesses the region.
        unsafe { region.bytes_mut(98, 2) }.unwrap()[0] = 6;
        // SAFETY: nothing else accesses the region, and the exclusive borrow has ended.
        assert_eq!(unsafe { region.bytes(98, 2) }.unwrap(), [6, 7]);
        // SAFETY: the range is refused.
        assert!(unsafe { region.bytes_mut(99, 2) }.is_err());
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(region);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn a_word_is_aligned_and_keeps_the_memory() {
        let pd = Pd::new();
        let region = Arc::new(OwnedRegion::zeroed(&pd, 20, Access::LOCAL_WRITE).unwrap());
        assert!(matches!(region.word(4), Err(RangeError::Misaligned { .. })));
        assert!(matches!(region.word(16), Err(RangeError::Outside { .. })));
        let word = region.word(8).unwrap();
        region.write(8, &41_u64.to_ne_bytes()).unwrap();
        drop(region);
        assert_eq!(word.fetch_add(1, Ordering::SeqCst), 41);
        assert_eq!(word.load(Ordering::SeqCst), 42);
    }

    #[test]
    fn a_region_of_length_zero_is_refused() {
        let pd = Pd::new();
        let empty = OwnedRegion::zeroed(&pd, 0, Access::LOCAL_WRITE).unwrap_err();
        assert_eq!(empty.errno(), libc::EINVAL);
        let error = OwnedRegion::from_vec(&pd, Vec::new(), Access::LOCAL_WRITE).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        let huge = OwnedRegion::zeroed(&pd, usize::MAX / 2, Access::LOCAL_WRITE).unwrap_err();
        assert_eq!(huge.errno(), libc::ENOMEM);
    }
}
