//! The program's memory, touched from here only.
//!
//! What is registered belongs to the program, which reads and writes it while we do. So no reference
//! to it is ever made: bytes move through raw pointers, and atomics through [`AtomicU64`], the same
//! instructions that the program's own atomics use.

use std::sync::atomic::{AtomicU64, Ordering};
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

/// Copies to the program's memory.
///
/// # Safety
/// The `data.len()` bytes at `addr` are mapped for writing and stay so during the call.
pub(crate) unsafe fn copy_in(addr: u64, data: &[u8]) {
    // SAFETY: the caller's promise; `data` is ours, so the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), addr as *mut u8, data.len()) }
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
        AtomicOp::CompareSwap { compare, swap } => {
            match cell.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(original) | Err(original) => original,
            }
        }
    }
}

/// Brings the pages of a range in, as pinning them would, and finds out whether all are there.
///
/// Nothing keeps them there: a program that unmaps memory which is registered gets the segmentation
/// fault that it would get by touching it.
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
        // Lacking rights, a mapping that cannot be pinned either, or Linux before 5.14.
        Err(libc::EINVAL) if !can_populate(page) => check_mapped(start, end, page),
        Err(libc::ENOMEM) if check_mapped(start, end, page).is_ok() => Err(PinError::NoMemory),
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

/// Whether every page of the range is mapped.
fn check_mapped(start: u64, end: u64, page: u64) -> Result<(), PinError> {
    /// Pages a call looks at.
    const STEP: u64 = 4096;
    let mut present = [0_u8; STEP as usize];
    let mut at = start;
    while at < end {
        let len = (end - at).min(STEP * page);
        // SAFETY: mincore writes a byte a page to `present`, which has room for STEP of them.
        let result = unsafe {
            libc::mincore(
                at as *mut libc::c_void,
                len as usize,
                present.as_mut_ptr().cast(),
            )
        };
        if result != 0 {
            return Err(PinError::Fault);
        }
        at += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn read_only_memory_cannot_be_registered_for_writing() {
        static CONSTANT: [u8; 64] = [7; 64];
        let addr = CONSTANT.as_ptr() as u64;
        populate(addr, 64, false).unwrap();
        assert!(matches!(populate(addr, 64, true), Err(PinError::Fault)));
    }
}
