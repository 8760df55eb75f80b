//! Device memory: buffers of the device that applications access by copies (`ibv_alloc_dm`).
//!
//! The device is this process, so the buffers are ordinary memory. The guarantees of device memory
//! hold: a limited total size, the requested alignment, and copies of whole words.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The device memory of a process, in bytes.
pub const MAX_DM_SIZE: usize = 64 << 20;

/// The granularity of the offsets and lengths of copies, in bytes.
pub const DM_WORD: usize = 4;

/// The largest alignment, as a power of two: 2 MiB.
pub const MAX_LOG_ALIGN: u32 = 21;

/// The bytes allocated in this process.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Errors of allocating device memory and of copying to or from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DmError {
    /// The length is 0 or exceeds [`MAX_DM_SIZE`]: EINVAL.
    #[error("a buffer of device memory has 1 to {MAX_DM_SIZE} bytes")]
    Size,
    /// The alignment exceeds 2^[`MAX_LOG_ALIGN`] bytes: EINVAL.
    #[error("device memory is aligned to 2^{MAX_LOG_ALIGN} bytes at most")]
    Alignment,
    /// Too little device memory is free: ENOMEM.
    #[error("the process has {MAX_DM_SIZE} bytes of device memory, and too few of them are free")]
    Full,
    /// The copy ends beyond the end of the buffer: EFAULT.
    #[error("the copy reaches beyond the end of the device memory")]
    Range,
    /// The offset or the length of the copy is not a multiple of [`DM_WORD`]: EINVAL.
    #[error("copies of device memory begin and end at multiples of {DM_WORD} bytes")]
    Unaligned,
}

impl DmError {
    /// Returns the error number that verbs applications get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Size | Self::Alignment | Self::Unaligned => libc::EINVAL,
            Self::Full => libc::ENOMEM,
            Self::Range => libc::EFAULT,
        }
    }
}

/// A buffer of device memory.
#[derive(Debug)]
pub struct DeviceMemory {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the buffer owns its bytes, which any thread may access and free.
unsafe impl Send for DeviceMemory {}
// SAFETY: shared references access the bytes only through raw pointers. Concurrent copies may
// interleave bytes, as in any memory that a peer writes.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Allocates `len` zeroed bytes, aligned to 2^`log_align` bytes and at least to 8 bytes.
    ///
    /// # Errors
    /// [`DmError::Size`], [`DmError::Alignment`] and [`DmError::Full`].
    pub fn allocate(len: usize, log_align: u32) -> Result<Self, DmError> {
        if len == 0 || len > MAX_DM_SIZE {
            return Err(DmError::Size);
        }
        if log_align > MAX_LOG_ALIGN {
            return Err(DmError::Alignment);
        }
        // Atomics operate on 8 bytes.
        let align = (1 << log_align).max(size_of::<u64>());
        let layout = Layout::from_size_align(len, align).map_err(|_| DmError::Size)?;
        let take = |used: usize| used.checked_add(len).filter(|total| *total <= MAX_DM_SIZE);
        USED.fetch_update(Ordering::AcqRel, Ordering::Acquire, take)
            .map_err(|_| DmError::Full)?;
        // SAFETY: the size of the layout is `len`, which is not 0.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            USED.fetch_sub(len, Ordering::AcqRel);
            return Err(DmError::Full);
        };
        Ok(DeviceMemory { start, layout, len })
    }

    /// Returns its address in the process.
    pub fn addr(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// Returns its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies `len` bytes from `host` to the buffer, from byte `offset` on.
    ///
    /// # Safety
    /// `host` must point to `len` readable bytes.
    ///
    /// # Errors
    /// [`DmError::Range`] and [`DmError::Unaligned`].
    pub unsafe fn copy_in(&self, offset: u64, host: *const u8, len: usize) -> Result<(), DmError> {
        let at = self.locate(offset, len)?;
        // SAFETY: `locate` has checked that `at` points to `len` bytes of the buffer. `host` points
        // to `len` readable bytes: the caller's contract, section Safety.
        unsafe { std::ptr::copy(host, at, len) };
        Ok(())
    }

    /// Copies `len` bytes of the buffer, from byte `offset` on, to `host`.
    ///
    /// # Safety
    /// `host` must point to `len` writable bytes.
    ///
    /// # Errors
    /// [`DmError::Range`] and [`DmError::Unaligned`].
    pub unsafe fn copy_out(&self, offset: u64, host: *mut u8, len: usize) -> Result<(), DmError> {
        let at = self.locate(offset, len)?;
        // SAFETY: `locate` has checked that `at` points to `len` bytes of the buffer. `host` points
        // to `len` writable bytes: the caller's contract, section Safety.
        unsafe { std::ptr::copy(at, host, len) };
        Ok(())
    }

    fn locate(&self, offset: u64, len: usize) -> Result<*mut u8, DmError> {
        let offset = usize::try_from(offset).map_err(|_| DmError::Range)?;
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {}
            _ => return Err(DmError::Range),
        }
        if !offset.is_multiple_of(DM_WORD) || !len.is_multiple_of(DM_WORD) {
            return Err(DmError::Unaligned);
        }
        Ok(self.start.as_ptr().wrapping_add(offset))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with `layout`, and no other reference to it exists in a
        // drop.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
        USED.fetch_sub(self.len, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_move_words_within_the_buffer() {
        let dm = DeviceMemory::allocate(100, 0).unwrap();
        let data: Vec<u8> = (1..=100).collect();
        let mut out = vec![0xee; 104];
        // SAFETY: each buffer has at least the length of the longest copy that is not refused.
        unsafe {
            dm.copy_out(0, out.as_mut_ptr(), 100).unwrap();
            assert_eq!(out[..101], [vec![0; 100], vec![0xee]].concat());
            dm.copy_in(4, data.as_ptr(), 96).unwrap();
            dm.copy_out(8, out.as_mut_ptr(), 92).unwrap();
            for (offset, len, error) in [
                (3, 4, DmError::Unaligned),
                (4, 3, DmError::Unaligned),
                (104, 4, DmError::Range),
                (0, 104, DmError::Range),
                (u64::MAX, 4, DmError::Range),
            ] {
                assert_eq!(dm.copy_in(offset, data.as_ptr(), len), Err(error));
                assert_eq!(dm.copy_out(offset, out.as_mut_ptr(), len), Err(error));
            }
        }
        assert_eq!(out[..92], data[4..96]);
    }

    #[test]
    fn allocations_are_aligned_and_limited_in_total() {
        for log_align in [0, 6, 12, MAX_LOG_ALIGN] {
            let dm = DeviceMemory::allocate(1000, log_align).unwrap();
            assert!(dm.addr().is_multiple_of(1 << log_align));
        }
        let refused = |len, log_align| DeviceMemory::allocate(len, log_align).unwrap_err();
        assert_eq!(refused(8, MAX_LOG_ALIGN + 1), DmError::Alignment);
        assert_eq!(refused(0, 0), DmError::Size);
        assert_eq!(refused(MAX_DM_SIZE + 1, 0), DmError::Size);
        let half = DeviceMemory::allocate(MAX_DM_SIZE / 2 + 1, 0).unwrap();
        assert_eq!(refused(MAX_DM_SIZE / 2, 0), DmError::Full);
        drop(half);
        DeviceMemory::allocate(MAX_DM_SIZE / 2, 0).unwrap();
    }
}
