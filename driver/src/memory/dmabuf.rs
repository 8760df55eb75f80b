//! DMA buffers: memory exported by another device's driver as a file descriptor. A hardware device
//! would access it over the bus; here it is mapped, which its exporter must support.

use memmap2::{MmapOptions, MmapRaw};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The `f_type` that fstatfs(2) reports for DMA buffers (`DMA_BUF_MAGIC`, "DMAB").
const DMA_BUF_MAGIC: u32 = 0x444d_4142;

/// Errors of mapping a DMA buffer.
#[derive(Debug, thiserror::Error)]
pub enum DmaBufError {
    /// The descriptor is not usable: usually EBADF.
    #[error("{0}")]
    File(io::Error),
    /// The file is of another kind: EINVAL.
    #[error("the file descriptor is not a DMA buffer's")]
    NotDmaBuf,
    /// The range is empty, or ends beyond the end of the buffer: EINVAL.
    #[error("the range is empty, or reaches beyond the end of the DMA buffer")]
    Range,
    /// The exporter does not support mapping, or not with this access: EOPNOTSUPP.
    #[error("the DMA buffer cannot be mapped ({0}), and there is no other way to it here")]
    Map(io::Error),
}

impl DmaBufError {
    /// Returns the error number that verbs applications get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::File(error) => error.raw_os_error().unwrap_or(libc::EBADF),
            Self::NotDmaBuf | Self::Range => libc::EINVAL,
            Self::Map(_) => libc::EOPNOTSUPP,
        }
    }
}

/// A mapped part of a DMA buffer; dropping it unmaps the part.
#[derive(Debug)]
pub struct DmaBuf(MmapRaw);

impl DmaBuf {
    /// Maps `len` bytes from `offset` on, writable if `writable`.
    ///
    /// # Errors
    /// See [`DmaBufError`].
    pub fn map(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> Result<DmaBuf, DmaBufError> {
        let file_system =
            rustix::fs::fstatfs(fd).map_err(|error| DmaBufError::File(error.into()))?;
        if file_system.f_type as u64 != u64::from(DMA_BUF_MAGIC) {
            return Err(DmaBufError::NotDmaBuf);
        }
        Self::map_file(fd, offset, len, writable)
    }

    /// Maps a part of a file whose size lseek(2) reports, which is how DMA buffers report theirs.
    fn map_file(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> Result<DmaBuf, DmaBufError> {
        let size = rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0))
            .map_err(|error| DmaBufError::File(error.into()))?;
        match offset.checked_add(len as u64) {
            Some(end) if end <= size && len > 0 => {}
            _ => return Err(DmaBufError::Range),
        }
        let mut options = MmapOptions::new();
        options.offset(offset).len(len);
        let map = match writable {
            true => options.map_raw(fd.as_raw_fd()),
            false => options.map_raw_read_only(fd.as_raw_fd()),
        };
        map.map(DmaBuf).map_err(DmaBufError::Map)
    }

    /// Returns the address of the first byte in the process.
    pub fn addr(&self) -> u64 {
        self.0.as_mut_ptr().expose_provenance() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    fn file(len: u64) -> std::fs::File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = std::fs::File::from(rustix::fs::memfd_create("urxe-test", flags).unwrap());
        file.set_len(len).unwrap();
        file
    }

    #[test]
    fn only_dma_buffers_are_mapped() {
        let refused = DmaBuf::map(file(4096).as_fd(), 0, 4096, true).unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL);
    }

    #[test]
    fn a_dma_buffer_is_mapped_from_its_offset() {
        let file = file(10_000);
        file.write_all_at(b"here", 5000).unwrap();
        let map = DmaBuf::map_file(file.as_fd(), 5000, 4, true).unwrap();
        let mut out = [0; 4];
        // SAFETY: `map` has four bytes, mapped for reading and writing.
        unsafe {
            crate::memory::access::copy_out(map.addr(), &mut out);
            crate::memory::access::copy_in(map.addr(), b"gone");
        }
        assert_eq!(&out, b"here");
        file.read_exact_at(&mut out, 5000).unwrap();
        assert_eq!(&out, b"gone");
    }

    #[test]
    fn window_range_must_be_within_the_region() {
        let file = file(10_000);
        for (offset, len) in [(0, 10_001), (10_000, 1), (u64::MAX, 8), (5, 0)] {
            let refused = DmaBuf::map_file(file.as_fd(), offset, len, false).unwrap_err();
            assert_eq!(refused.errno(), libc::EINVAL);
        }
        DmaBuf::map_file(file.as_fd(), 9_999, 1, false).unwrap();
    }
}
