//! Access to the application's memory; all of it happens in this module.
//!
//! Registered memory belongs to the application, which reads and writes it concurrently. The driver
//! therefore creates no reference to it. Bytes are copied through raw pointers, and atomic
//! operations use [`AtomicU64`], whose instructions are those of the application's own atomics.
//!
//! On-demand paging covers memory that may not be mapped. There the kernel does the copy and
//! reports a fault as an error.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use urxe_proto::host::AtomicOp;

/// Errors of registering memory.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// Part of the range is not mapped, or not with the requested rights: EFAULT.
    #[error("part of the range is not mapped, or may not be written")]
    Fault,
    /// The pages cannot be allocated: ENOMEM.
    #[error("not enough memory for the pages of the range")]
    NoMemory,
}

/// Copies `out.len()` bytes from the application's memory at `addr`.
///
/// # Safety
/// The `out.len()` bytes at `addr` must be mapped for reading until the call returns, and must not
/// overlap `out`.
pub(crate) unsafe fn copy_out(addr: u64, out: &mut [u8]) {
    // SAFETY: `addr` points to `out.len()` readable bytes that do not overlap `out`: the caller's
    // contract, section Safety.
    unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), out.len()) }
}

/// Copies `data` to the application's memory at `addr`.
///
/// The last bytes are stored last: the longest suffix of 8, 4, 2 or 1 bytes that is an aligned
/// integer, in one store with release ordering. The specification guarantees no order within a
/// message (9.5), but applications poll the last bytes of a message and expect the others to be
/// there, as they are with hardware NICs.
///
/// # Safety
/// The `data.len()` bytes at `addr` must be mapped for writing until the call returns, and must not
/// overlap `data`.
pub(crate) unsafe fn copy_in(addr: u64, data: &[u8]) {
    let Some(longest) = data.len().checked_ilog2() else {
        return;
    };
    let end = addr + data.len() as u64;
    // The largest integer that ends at `end`, is aligned, and is part of `data`.
    let last = 1 << longest.min(end.trailing_zeros()).min(3);
    let (before, tail) = data.split_at(data.len() - last);
    let at = (end - last as u64) as *mut u8;
    // SAFETY: `addr` points to `data.len()` writable bytes that do not overlap `data`: the caller's
    // contract, section Safety. `at` is aligned to `last` bytes and within that range. Concurrent
    // access by the application is sound for the atomic store.
    unsafe {
        std::ptr::copy_nonoverlapping(before.as_ptr(), addr as *mut u8, before.len());
        match *tail {
            [a] => AtomicU8::from_ptr(at).store(a, Ordering::Release),
            [a, b] => {
                AtomicU16::from_ptr(at.cast()).store(u16::from_ne_bytes([a, b]), Ordering::Release);
            }
            [a, b, c, d] => {
                let value = u32::from_ne_bytes([a, b, c, d]);
                AtomicU32::from_ptr(at.cast()).store(value, Ordering::Release);
            }
            [a, b, c, d, e, f, g, h] => {
                let value = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
                AtomicU64::from_ptr(at.cast()).store(value, Ordering::Release);
            }
            _ => unreachable!("one of the four sizes above"),
        }
    }
}

/// Executes an atomic operation in the application's memory; returns the original value.
///
/// # Safety
/// `addr` must be a multiple of 8, and its 8 bytes must be mapped for writing until the call
/// returns.
pub(crate) unsafe fn atomic(addr: u64, op: AtomicOp) -> u64 {
    // SAFETY: `addr` is aligned and points to 8 writable bytes: the caller's contract, section
    // Safety. Concurrent access by the application is sound for an atomic.
    let cell = unsafe { AtomicU64::from_ptr(addr as *mut u64) };
    match op {
        AtomicOp::FetchAdd(add) => cell.fetch_add(add, Ordering::SeqCst),
        AtomicOp::Store(value) => cell.swap(value, Ordering::SeqCst),
        AtomicOp::CompareSwap { compare, swap } => {
            match cell.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(original) | Err(original) => original,
            }
        }
    }
}

/// Part of a range is not mapped, or not with the required rights.
#[derive(Debug)]
pub(crate) struct Fault;

/// Copies from the application's memory, which may not be mapped.
pub(crate) fn try_copy_out(addr: u64, out: &mut [u8]) -> Result<(), Fault> {
    let local = libc::iovec {
        iov_base: out.as_mut_ptr().cast(),
        iov_len: out.len(),
    };
    let remote = foreign(addr, out.len());
    // SAFETY: the call writes to `out` only. Unreadable memory at `addr` makes it fail.
    let copied = unsafe { libc::process_vm_readv(own_process(), &local, 1, &remote, 1, 0) };
    whole(copied, out.len())
}

/// Copies to the application's memory, which may not be mapped. A failed copy may have written part
/// of the data.
///
/// # Safety
/// Any other user of the `data.len()` bytes at `addr` must expect them to change at any time.
pub(crate) unsafe fn try_copy_in(addr: u64, data: &[u8]) -> Result<(), Fault> {
    let local = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    let remote = foreign(addr, data.len());
    // SAFETY: the call reads `data` only, and fails where `addr` is not writable. Other users of
    // the memory at `addr` expect changes: the caller's contract, section Safety.
    let copied = unsafe { libc::process_vm_writev(own_process(), &local, 1, &remote, 1, 0) };
    whole(copied, data.len())
}

/// Executes an atomic operation in the application's memory, which may not be mapped.
///
/// The kernel has no atomic operation that can fail, so the page is populated first. An application
/// that unmaps the page between the two steps gets a SIGSEGV.
///
/// # Safety
/// `addr` must be a multiple of 8. Any other user of its 8 bytes must expect them to change at any
/// time.
pub(crate) unsafe fn try_atomic(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    populate(addr, 8, true).map_err(|_| Fault)?;
    // SAFETY: `addr` is a multiple of 8: the caller's contract, section Safety. Its 8 bytes are in
    // one page, which `populate` has found writable.
    Ok(unsafe { atomic(addr, op) })
}

thread_local! {
    /// Whether the program may have unmapped memory that this thread copies to.
    static EXPECTS_UNMAPPED: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as the library's own: it accesses memory at any time, and not within a
/// call of the program.
pub(crate) fn mark_own_thread() {
    EXPECTS_UNMAPPED.set(true);
}

/// Calls a function that receives packets which the program did not ask for, within a call that
/// ends a queue pair: the program may have unmapped its memory before.
pub(crate) fn expecting_unmapped<R>(receive: impl FnOnce() -> R) -> R {
    /// Also when a panic unwinds.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            EXPECTS_UNMAPPED.set(self.0);
        }
    }
    let _restore = Restore(EXPECTS_UNMAPPED.replace(true));
    receive()
}

/// Returns whether the program may have unmapped memory that this thread copies to, and
/// [`try_copy_in`] works.
pub(crate) fn may_be_unmapped() -> bool {
    static CAN_COPY: OnceLock<bool> = OnceLock::new();
    EXPECTS_UNMAPPED.get()
        && *CAN_COPY.get_or_init(|| {
            let here = 1_u8;
            let mut there = [0_u8];
            try_copy_out(&raw const here as u64, &mut there).is_ok()
        })
}

/// Returns whether memory that may not be mapped can be accessed: Linux 5.14 or later, and no
/// sandbox that forbids it.
pub fn can_fault() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let here = 1_u8;
        let mut there = [0_u8];
        let copies = try_copy_out(&raw const here as u64, &mut there).is_ok();
        copies && can_populate(rustix::param::page_size() as u64)
    })
}

fn own_process() -> libc::pid_t {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn foreign(addr: u64, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::without_provenance_mut(addr as usize),
        iov_len: len,
    }
}

/// Checks that the kernel copied all `len` bytes: it stops at the first inaccessible byte.
fn whole(copied: isize, len: usize) -> Result<(), Fault> {
    match usize::try_from(copied) {
        Ok(copied) if copied == len => Ok(()),
        _ => Err(Fault),
    }
}

/// Populates the pages of a range, as pinning would, and checks that all of them are mapped, with
/// write access if `writable`.
///
/// The pages are not pinned. An application that unmaps registered memory gets the SIGSEGV that its
/// own access would cause.
pub(crate) fn populate(addr: u64, len: u64, writable: bool) -> Result<(), PinError> {
    if len == 0 {
        return Ok(());
    }
    let page = rustix::param::page_size() as u64;
    let end = addr.checked_add(len).ok_or(PinError::Fault)?;
    let start = addr & !(page - 1);
    let end = end.checked_next_multiple_of(page).ok_or(PinError::Fault)?;
    let advice = if writable {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    match advise(start, end - start, advice) {
        Ok(()) => Ok(()),
        // EINVAL stands for missing rights, for a mapping that cannot be pinned, and for a kernel
        // before 5.14, which cannot populate. Only the last needs the check of the mappings.
        Err(libc::EINVAL) if !can_populate(page) => check_mapped(start, end, writable),
        Err(libc::ENOMEM) if check_mapped(start, end, writable).is_ok() => Err(PinError::NoMemory),
        Err(_) => Err(PinError::Fault),
    }
}

/// Calls madvise(2) with one of the `MADV_POPULATE` advices; returns the error number.
fn advise(start: u64, len: u64, advice: libc::c_int) -> Result<(), libc::c_int> {
    // Miri has no madvise(2), and all memory of its programs is mapped.
    if cfg!(miri) {
        return Ok(());
    }
    loop {
        // SAFETY: populating changes no contents, and fails for addresses that are not mapped.
        let result = unsafe { libc::madvise(start as *mut libc::c_void, len as usize, advice) };
        if result == 0 {
            return Ok(());
        }
        match std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EINVAL)
        {
            libc::EINTR | libc::EAGAIN => {}
            errno => return Err(errno),
        }
    }
}

/// Returns whether the kernel can populate pages, tried on a page of this thread's stack.
fn can_populate(page: u64) -> bool {
    let local = 0_u8;
    let start = (&raw const local as u64) & !(page - 1);
    advise(start, page, libc::MADV_POPULATE_READ).is_ok()
}

/// Checks that a range is mapped, with write access if `writable`, without accessing it. For
/// kernels that cannot populate pages. mincore(2) is no substitute: it does not report a mapping's
/// rights, and a peer's write to a read-only mapping would raise SIGSEGV in this process.
fn check_mapped(start: u64, end: u64, writable: bool) -> Result<(), PinError> {
    let maps = File::open("/proc/self/maps").inspect_err(|error| {
        tracing::warn!("memory is registered only where /proc/self/maps is readable: {error}");
    });
    let maps = BufReader::new(maps.map_err(|_| PinError::Fault)?);
    let mut checked = start;
    // The mappings are sorted by address and do not overlap.
    for line in maps.lines() {
        let line = line.map_err(|_| PinError::Fault)?;
        let mapping = Mapping::parse(&line).ok_or(PinError::Fault)?;
        if mapping.end <= checked {
            continue;
        }
        let has_rights = if writable {
            mapping.writable
        } else {
            mapping.readable
        };
        if mapping.start > checked || !has_rights {
            return Err(PinError::Fault);
        }
        checked = mapping.end;
        if checked >= end {
            return Ok(());
        }
    }
    Err(PinError::Fault)
}

/// A line of `/proc/self/maps`.
#[derive(PartialEq, Eq, Debug)]
struct Mapping {
    start: u64,
    /// The first address after the mapping.
    end: u64,
    readable: bool,
    writable: bool,
}

impl Mapping {
    /// Parses a line; returns `None` if it does not have the format of proc(5).
    fn parse(line: &str) -> Option<Mapping> {
        let mut words = line.split(' ');
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?.as_bytes();
        Some(Mapping {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            readable: *rights.first()? == b'r',
            writable: *rights.get(1)? == b'w',
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_every_offset_and_length() {
        let data: Vec<u8> = (1..=40).collect();
        let mut memory = [0_u64; 8];
        let base = memory.as_mut_ptr() as u64;
        for start in 0..16 {
            for len in 0..=data.len() {
                let mut seen = [0; 64];
                // SAFETY: the ranges are within `memory`, which only this test accesses.
                unsafe {
                    copy_in(base, &[0; 64]);
                    copy_in(base + start, &data[..len]);
                    copy_out(base, &mut seen);
                }
                let mut expected = [0; 64];
                expected[start as usize..][..len].copy_from_slice(&data[..len]);
                assert_eq!(seen, expected, "{len} bytes at {start}");
            }
        }
    }

    #[test]
    fn mapped_memory_is_populated_and_unmapped_memory_is_a_fault() {
        let data = vec![1_u8; 100_000];
        populate(data.as_ptr() as u64, data.len() as u64, true).unwrap();
        assert!(matches!(populate(4096, 4096, false), Err(PinError::Fault)));
        assert!(matches!(
            populate(u64::MAX - 10, 100, false),
            Err(PinError::Fault)
        ));
    }

    /// Two writable pages, one read-only page, one without rights. Calls `check_mapped` directly,
    /// since this kernel may be able to populate pages.
    #[test]
    fn mappings_are_checked_for_their_rights() {
        let page = rustix::param::page_size();
        let map = memmap2::MmapMut::map_anon(4 * page).unwrap();
        let at = |index: usize| map.as_ptr() as usize + index * page;
        let pointer = |index| at(index) as *mut libc::c_void;
        // SAFETY: the pages belong to `map`, and nothing accesses them.
        unsafe {
            assert_eq!(libc::mprotect(pointer(2), page, libc::PROT_READ), 0);
            assert_eq!(libc::mprotect(pointer(3), page, libc::PROT_NONE), 0);
        }
        let is_ok = |first, pages, writable| {
            let (start, end) = (at(first) as u64, at(first + pages) as u64);
            check_mapped(start, end, writable).is_ok()
        };
        assert!(is_ok(0, 2, true) && is_ok(1, 1, true));
        assert!(is_ok(0, 3, false) && is_ok(2, 1, false));
        assert!(!is_ok(2, 1, true), "the page is read-only");
        assert!(!is_ok(1, 2, true), "the second page is read-only");
        assert!(!is_ok(3, 1, false), "the page has no rights");
        assert!(!is_ok(2, 2, false), "the second page has no rights");
        let unmapped = page as u64;
        assert!(check_mapped(unmapped, 2 * unmapped, false).is_err());
    }

    #[test]
    fn lines_of_maps_are_read() {
        let line = "7f3c5a000000-7f3c5a021000 rw-p 00000000 fd:01 42     /a file";
        let mapping = Mapping {
            start: 0x7f3c_5a00_0000,
            end: 0x7f3c_5a02_1000,
            readable: true,
            writable: true,
        };
        assert_eq!(Mapping::parse(line), Some(mapping));
        let read_only = Mapping::parse("1000-2000 r--s 0 0 0").unwrap();
        assert!(read_only.readable && !read_only.writable);
        for wrong in ["", "1000", "1000-2000", "1000-2000 r", "x-2000 rw-p"] {
            assert_eq!(Mapping::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn unmapped_memory_is_an_error_not_a_signal() {
        assert!(can_fault());
        let page = rustix::param::page_size();
        let mut map = memmap2::MmapMut::map_anon(2 * page).unwrap();
        map[page - 1] = 9;
        let addr = map.as_ptr() as u64;
        let end = addr + page as u64;
        // SAFETY: the page belongs to `map`, and nothing refers to it.
        assert_eq!(0, unsafe {
            libc::mprotect(end as *mut libc::c_void, page, libc::PROT_NONE)
        });
        let mut out = [0; 2];
        assert!(try_copy_out(end - 1, &mut out).is_err());
        try_copy_out(end - 2, &mut out).unwrap();
        assert_eq!(out, [0, 9]);
        // SAFETY: only this test uses the mapping.
        unsafe {
            assert!(try_copy_in(end - 1, &[1, 1]).is_err());
            assert!(try_atomic(end, AtomicOp::FetchAdd(1)).is_err());
            assert_eq!(try_atomic(end - 16, AtomicOp::FetchAdd(5)).unwrap(), 0);
            try_copy_in(end - 2, &[7, 8]).unwrap();
        }
        assert_eq!(map[page - 16..page - 14], [5, 0]);
        assert_eq!(map[page - 2..page], [7, 8]);
    }

    #[test]
    fn fallible_copies_fail_for_read_only_memory() {
        static CONSTANT: [u64; 2] = [7; 2];
        let addr = CONSTANT.as_ptr() as u64;
        // SAFETY: both calls fail without writing: the page is read-only.
        unsafe {
            assert!(try_copy_in(addr, &[1]).is_err());
            assert!(try_atomic(addr, AtomicOp::FetchAdd(1)).is_err());
        }
    }

    #[test]
    fn read_only_memory_cannot_be_registered_for_writing() {
        static CONSTANT: [u8; 64] = [7; 64];
        let addr = CONSTANT.as_ptr() as u64;
        populate(addr, 64, false).unwrap();
        assert!(matches!(populate(addr, 64, true), Err(PinError::Fault)));
    }
}
