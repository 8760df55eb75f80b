//! Registered memory that the driver owns, for RDMA from safe Rust.
//!
//! A peer may read and write registered memory at any time, so no `&[u8]` or `&mut [u8]` to it may
//! exist. [`OwnedRegion`] owns its memory, and frees it after the region is deregistered. The
//! memory is accessed by copies, and by atomics on aligned 8-byte words.

use super::access;
use crate::memory::mr::{Change, Mr, RegisterError};
use crate::pd::Pd;
use memmap2::{MmapMut, MmapRaw};
use std::fmt::Debug;
use std::io;
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
    _memory: Box<dyn Debug + Send + Sync>,
}

/// A boxed slice held as a raw pointer: a reference or a box would claim exclusive access.
#[derive(Debug)]
struct Allocated(NonNull<[u8]>);

// SAFETY: `Allocated` owns its bytes, which any thread may free, and gives no access to them.
unsafe impl Send for Allocated {}
// SAFETY: `Allocated` has no method that takes a shared reference to it.
unsafe impl Sync for Allocated {}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from `Box::leak`, and only this drop frees it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
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
        Self::register(pd, start, len, Box::new(map), access)
    }

    /// Registers the bytes of a vector in place, without a copy unless the vector has spare
    /// capacity.
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
        let len = data.len();
        let bytes = NonNull::from(Box::leak(data.into_boxed_slice()));
        let start = bytes.cast::<u8>().as_ptr();
        Self::register(pd, start, len, Box::new(Allocated(bytes)), access)
    }

    fn register(
        pd: &Arc<Pd>,
        start: *mut u8,
        len: usize,
        memory: Box<dyn Debug + Send + Sync>,
        access: Access,
    ) -> Result<OwnedRegion, OwnedError> {
        let addr = start.expose_provenance() as u64;
        // SAFETY: `memory` owns the bytes, which are accessed through this object only. It is
        // dropped after `mr`, so they stay mapped while the region is registered.
        let mr = unsafe { Mr::register(pd, addr, len as u64, addr, access) }?;
        Ok(OwnedRegion {
            mr,
            _memory: memory,
        })
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
        // SAFETY: `self._memory` owns the bytes, which are accessed through this object only, and
        // is dropped after `self.mr`.
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
        // SAFETY: `self._memory` owns the bytes, which are accessed through this object only, and
        // is dropped after `self.mr`.
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
        // SAFETY: `locate` has checked that the range is within memory that this object owns.
        // `into` does not overlap it, since no reference to that memory exists.
        unsafe { access::copy_out(addr, into) };
        Ok(())
    }

    /// Copies to the memory. A peer that reads during the copy may get a part of the data.
    ///
    /// # Errors
    /// [`RangeError::Outside`].
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), RangeError> {
        let addr = self.locate(offset, data.len())?;
        // SAFETY: `locate` has checked that the range is within memory that this object owns and
        // that is writable. `data` does not overlap it, since no reference to that memory exists.
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
