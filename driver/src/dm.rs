//! Device memory: buffers that belong to the device, which programs reach by copying. The device is
//! this process, so it is ordinary memory; what programs rely on is kept: its size is limited, it is
//! aligned as they ask, and copies move whole words.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of device memory that a process can have.
pub const MAX_DM_SIZE: usize = 64 << 20;

/// Copies begin at multiples of so many bytes, and move multiples of them.
pub const DM_WORD: usize = 4;

/// The coarsest alignment that can be asked for: 2 MiB.
pub const MAX_LOG_ALIGN: u32 = 21;

/// Bytes in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Why device memory cannot be had, or not be copied to or from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DmError {
    /// No bytes, or more than there can be: EINVAL.
    #[error("a buffer of device memory has 1 to {MAX_DM_SIZE} bytes")]
    Size,
    /// It cannot be aligned so: EINVAL.
    #[error("device memory is aligned to 2^{MAX_LOG_ALIGN} bytes at most")]
    Alignment,
    /// Other buffers have it: ENOMEM.
    #[error("the process has {MAX_DM_SIZE} bytes of device memory, and too few of them are free")]
    Full,
    /// A copy reaches beyond the end: EFAULT.
    #[error("the copy reaches beyond the end of the device memory")]
    Range,
    /// A copy does not begin or end at a word: EINVAL.
    #[error("copies of device memory begin and end at multiples of {DM_WORD} bytes")]
    Unaligned,
}

impl DmError {
    /// What verbs programs get.
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

// SAFETY: it owns its bytes, and reaches them through raw pointers only.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above; copies that meet leave bytes of either, as with any memory that a peer writes.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Allocates `len` bytes of zeros, aligned to 2^`log_align` bytes, and to a word at least.
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
        // Atomics work on 8 bytes.
        let align = (1 << log_align).max(size_of::<u64>());
        let layout = Layout::from_size_align(len, align).map_err(|_| DmError::Size)?;
        let take = |used: usize| used.checked_add(len).filter(|total| *total <= MAX_DM_SIZE);
        USED.fetch_update(Ordering::AcqRel, Ordering::Acquire, take)
            .map_err(|_| DmError::Full)?;
        // SAFETY: the layout has bytes.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            USED.fetch_sub(len, Ordering::AcqRel);
            return Err(DmError::Full);
        };
        Ok(DeviceMemory { start, layout, len })
    }

    /// Where it lies in the process.
    pub fn addr(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// Its bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies `len` bytes from `host` to byte `offset` on.
    ///
    /// # Safety
    /// The bytes at `host` can be read.
    ///
    /// # Errors
    /// [`DmError::Range`] and [`DmError::Unaligned`].
    pub unsafe fn copy_in(&self, offset: u64, host: *const u8, len: usize) -> Result<(), DmError> {
        let at = self.locate(offset, len)?;
        // SAFETY: the range is within the buffer, and the other is the caller's promise.
        unsafe { std::ptr::copy(host, at, len) };
        Ok(())
    }

    /// Copies `len` bytes from byte `offset` on to `host`.
    ///
    /// # Safety
    /// The bytes at `host` can be written.
    ///
    /// # Errors
    /// [`DmError::Range`] and [`DmError::Unaligned`].
    pub unsafe fn copy_out(&self, offset: u64, host: *mut u8, len: usize) -> Result<(), DmError> {
        let at = self.locate(offset, len)?;
        // SAFETY: the range is within the buffer, and the other is the caller's promise.
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
        // SAFETY: it was allocated with this layout, and nobody uses it any more.
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
        // SAFETY: the buffers are as long as the longest copy that is carried out.
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
    fn it_is_aligned_as_asked_and_limited_in_all() {
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
