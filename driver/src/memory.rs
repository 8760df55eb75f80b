//! The program's memory, touched from here only.
//!
//! What is registered belongs to the program, which reads and writes it while we do. So no reference
//! to it is ever made: bytes move through raw pointers, and atomics through [`AtomicU64`], the same
//! instructions that the program's own atomics use.
//!
//! Where the program has not promised that memory stays mapped, which is what on-demand paging is
//! about, the kernel copies: it finds out whether the memory is there, and says so.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use urxe_proto::host::AtomicOp;

/// Why memory cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// Part of the range is not mapped, or not with the rights that were asked for: EFAULT.
    #[error("part of the range is not mapped, or may not be written")]
    Fault,
    /// The pages could not be had: ENOMEM.
    #[error("not enough memory for the pages of the range")]
    NoMemory,
}

/// Copies from the program's memory.
///
/// # Safety
/// The `out.len()` bytes at `addr` are mapped and stay so during the call.
pub(crate) unsafe fn copy_out(addr: u64, out: &mut [u8]) {
    // SAFETY: the caller's promise; `out` is ours, so the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), out.len()) }
}

/// Copies to the program's memory. The end is written last, and at once as far as it is an aligned
/// integer: the specification promises no order within a message (9.5), but programs wait for its
/// last bytes to change and take the others for there, as NICs have taught them.
///
/// # Safety
/// The `data.len()` bytes at `addr` are mapped for writing and stay so during the call.
pub(crate) unsafe fn copy_in(addr: u64, data: &[u8]) {
    let end = addr + data.len() as u64;
    let aligned = 1 << end.trailing_zeros().min(3);
    // What lies before the last integer that ends there, aligned, and is all ours.
    let Some(last) = [8, 4, 2, 1]
        .into_iter()
        .find(|&size| size <= aligned && size <= data.len())
    else {
        return;
    };
    let (before, tail) = data.split_at(data.len() - last);
    let at = (end - last as u64) as *mut u8;
    // SAFETY: the caller's promise; `data` is ours, so the two do not overlap. `at` is aligned for
    // an integer of `last` bytes, and an atomic tolerates the program's accesses.
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

/// Does an atomic in the program's memory, and returns what was there before.
///
/// # Safety
/// The 8 bytes at `addr`, a multiple of 8, are mapped for writing and stay so during the call.
pub(crate) unsafe fn atomic(addr: u64, op: AtomicOp) -> u64 {
    // SAFETY: the caller's promise gives a valid, aligned pointer; an atomic tolerates the program's
    // accesses.
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

/// Part of a range is not mapped, or not with the rights that are needed.
#[derive(Debug)]
pub(crate) struct Fault;

/// Copies from memory of the program's that may not be there.
pub(crate) fn try_copy_out(addr: u64, out: &mut [u8]) -> Result<(), Fault> {
    let local = libc::iovec {
        iov_base: out.as_mut_ptr().cast(),
        iov_len: out.len(),
    };
    let remote = foreign(addr, out.len());
    // SAFETY: it writes to `out` only, and fails where nothing can be read.
    let copied = unsafe { libc::process_vm_readv(own_process(), &local, 1, &remote, 1, 0) };
    whole(copied, out.len())
}

/// Copies to memory of the program's that may not be there. Part of it may have been written when it
/// fails.
///
/// # Safety
/// Whoever else uses what is mapped there expects it to change.
pub(crate) unsafe fn try_copy_in(addr: u64, data: &[u8]) -> Result<(), Fault> {
    let local = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    let remote = foreign(addr, data.len());
    // SAFETY: it only reads from `data`; that the other side changes is the caller's promise.
    let copied = unsafe { libc::process_vm_writev(own_process(), &local, 1, &remote, 1, 0) };
    whole(copied, data.len())
}

/// Does an atomic in memory of the program's that may not be there. The kernel has no atomic that
/// could fail, so the page is brought in first: a program that unmaps it between the two gets the
/// fault itself.
///
/// # Safety
/// As for [`try_copy_in`]; `addr` is a multiple of 8.
pub(crate) unsafe fn try_atomic(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    populate(addr, 8, true).map_err(|_| Fault)?;
    // SAFETY: the 8 bytes, which lie in one page, can be written; the rest is the caller's promise.
    Ok(unsafe { atomic(addr, op) })
}

/// Whether memory can be reached that may not be there: since Linux 5.14, and unless a sandbox
/// forbids it.
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

/// Copying stops at the first byte that cannot be reached.
fn whole(copied: isize, len: usize) -> Result<(), Fault> {
    match usize::try_from(copied) {
        Ok(copied) if copied == len => Ok(()),
        _ => Err(Fault),
    }
}

/// Brings the pages of a range in, as pinning them would, and checks that all of them are mapped, with
/// write access if `writable`.
///
/// Nothing keeps them mapped: a program that unmaps registered memory raises the SIGSEGV that it would
/// raise by accessing it.
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
        // Missing rights, a mapping that cannot be pinned either, or Linux before 5.14.
        Err(libc::EINVAL) if !can_populate(page) => check_mapped(start, end, writable),
        Err(libc::ENOMEM) if check_mapped(start, end, writable).is_ok() => Err(PinError::NoMemory),
        Err(_) => Err(PinError::Fault),
    }
}

/// One of the kinds of advice that populate; the system's error number.
fn advise(start: u64, len: u64, advice: libc::c_int) -> Result<(), libc::c_int> {
    loop {
        // SAFETY: populating changes no contents, and fails on what is not mapped.
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

/// Whether the kernel can populate at all: it can do so with our own stack then.
fn can_populate(page: u64) -> bool {
    let local = 0_u8;
    let start = (&raw const local as u64) & !(page - 1);
    advise(start, page, libc::MADV_POPULATE_READ).is_ok()
}

/// Checks that a range is mapped, with write access if `writable`, without touching it. For kernels that
/// cannot populate. mincore(2) would not do: it does not tell a mapping's rights, and a write by a peer to
/// a read-only mapping raises SIGSEGV in this process.
fn check_mapped(start: u64, end: u64, writable: bool) -> Result<(), PinError> {
    let maps = File::open("/proc/self/maps").inspect_err(|error| {
        tracing::warn!("memory is registered only where /proc/self/maps is readable: {error}");
    });
    let maps = BufReader::new(maps.map_err(|_| PinError::Fault)?);
    let mut checked = start;
    // The mappings come in the order of their addresses, and do not overlap.
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
    /// The first address behind it.
    end: u64,
    readable: bool,
    writable: bool,
}

impl Mapping {
    /// `None` for a line that is not as proc(5) has it.
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
    fn what_is_copied_arrives_whole_wherever_it_begins_and_ends() {
        let data: Vec<u8> = (1..=40).collect();
        let mut memory = [0_u64; 8];
        let base = memory.as_mut_ptr() as u64;
        for start in 0..16 {
            for len in 0..=data.len() {
                let mut seen = [0; 64];
                // SAFETY: within `memory`, which nobody else has.
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

    /// Two pages for writing, one for reading only, one without rights. Called directly, as this kernel
    /// may be one that populates.
    #[test]
    fn mappings_are_checked_for_their_rights() {
        let page = rustix::param::page_size();
        let map = memmap2::MmapMut::map_anon(4 * page).unwrap();
        let at = |index: usize| map.as_ptr() as usize + index * page;
        let pointer = |index| at(index) as *mut libc::c_void;
        // SAFETY: the pages are `map`'s, and nothing accesses them.
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
    fn what_is_not_mapped_is_an_error_and_not_a_signal() {
        assert!(can_fault());
        let page = rustix::param::page_size();
        let mut map = memmap2::MmapMut::map_anon(2 * page).unwrap();
        map[page - 1] = 9;
        let addr = map.as_ptr() as u64;
        let end = addr + page as u64;
        // SAFETY: the second page is given up while nothing refers to it; the first is `map`'s.
        assert_eq!(0, unsafe {
            libc::mprotect(end as *mut libc::c_void, page, libc::PROT_NONE)
        });
        let mut out = [0; 2];
        assert!(try_copy_out(end - 1, &mut out).is_err());
        try_copy_out(end - 2, &mut out).unwrap();
        assert_eq!(out, [0, 9]);
        // SAFETY: nothing else uses the mapping.
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
    fn constants_cannot_be_written_by_way_of_the_kernel_either() {
        static CONSTANT: [u64; 2] = [7; 2];
        let addr = CONSTANT.as_ptr() as u64;
        // SAFETY: it fails.
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
