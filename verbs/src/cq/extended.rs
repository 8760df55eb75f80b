//! The extended functions that poll a completion queue: one completion at a time, read member by
//! member.
//!
//! From `start_poll` to `end_poll` the polling thread holds the mutex in the `ibv_cq`.

use std::ffi::c_int;

use urxe_driver::cq::Stamp;
use urxe_proto::work::Completion;

use super::completion::{wc_flags, wc_imm, wc_sl};
use super::state::CompletionQueue;
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;
use crate::object;

/// Sets the function pointers of an extended completion queue.
pub(crate) fn fill(cq: &mut ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_zero);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_zero);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_no_bits);
    cq.read_completion_ts = Some(read_completion_ts);
    cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// Takes the next completion; `ENOENT` when there is none.
///
/// # Safety
/// `cq` must be the live object of `queue`, and the calling thread must hold its mutex.
unsafe fn take(cq: *mut ibv_cq_ex, queue: &CompletionQueue) -> Result<(), Errno> {
    let next = queue.driver.poll_stamped();
    // SAFETY: the thread holds the mutex that guards `current`: the caller's contract, section
    // Safety.
    unsafe { queue.current.get().write(next) };
    let (completion, _) = next.ok_or(Errno(libc::ENOENT))?;
    // SAFETY: `cq` is live: the caller's contract, section Safety. The writes make no reference.
    unsafe {
        (&raw mut (*cq).wr_id).write(completion.wr_id);
        (&raw mut (*cq).status).write(completion.status as ibv_wc_status);
    }
    Ok(())
}

/// Locks the queue and takes the first completion.
///
/// # Safety
/// `cq` must be null or a live completion queue created by this library. `attr` must be null or
/// point to readable attributes.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    entry::status("ibv_start_poll", || {
        // SAFETY: `cq` is null or a live completion queue: the caller's contract, section Safety.
        let queue = unsafe { object::state_of(cq) }?;
        // SAFETY: `attr` is non-null (checked first) and readable: the caller's contract, section
        // Safety.
        if !attr.is_null() && unsafe { entry::read(attr) }?.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the mutex is all zeros at creation, which is its initialized state. The queue is
        // not destroyed while it is polled: the caller's contract, section Safety.
        unsafe { libc::pthread_mutex_lock(&raw mut (*cq).mutex) };
        // SAFETY: `queue` is from `cq`, and this thread holds the mutex.
        let taken = unsafe { take(cq, queue) };
        if taken.is_err() {
            // SAFETY: the mutex is live, and this thread locked it above.
            unsafe { libc::pthread_mutex_unlock(&raw mut (*cq).mutex) };
        }
        taken
    })
}

/// Takes the next completion.
///
/// # Safety
/// `cq` must be null or a live completion queue created by this library, on which the calling
/// thread has succeeded with `start_poll` and not called `end_poll` since.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    entry::status("ibv_next_poll", || {
        // SAFETY: `cq` is null or live, and the thread holds its mutex since `start_poll`: the
        // caller's contract, section Safety.
        unsafe { take(cq, object::state_of(cq)?) }
    })
}

/// Unlocks the queue.
///
/// # Safety
/// The requirements of [`next_poll`] apply.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    entry::short("ibv_end_poll", (), || {
        if !cq.is_null() {
            // SAFETY: `cq` is non-null (checked above) and live, and the thread holds its mutex
            // since `start_poll`: the caller's contract, section Safety.
            unsafe { libc::pthread_mutex_unlock(&raw mut (*cq).mutex) };
        }
    });
}

/// Returns `read` of the current completion, or the default value if there is none.
///
/// # Safety
/// The requirements of [`next_poll`] apply.
unsafe fn of_current<T: Default>(cq: *mut ibv_cq_ex, read: impl FnOnce(&Completion) -> T) -> T {
    // SAFETY: the contract of `of_stamped` is this function's own, section Safety.
    unsafe { of_stamped(cq, |completion, _| read(completion)) }
}

/// Returns `read` of the current completion and its timestamps, or the default value.
///
/// # Safety
/// The requirements of [`next_poll`] apply.
unsafe fn of_stamped<T: Default>(
    cq: *mut ibv_cq_ex,
    read: impl FnOnce(&Completion, Stamp) -> T,
) -> T {
    entry::short("ibv_wc_read", None, || {
        // SAFETY: `cq` is null or a live completion queue: the caller's contract, section Safety.
        let queue = unsafe { object::state_of(cq) }.ok()?;
        // SAFETY: the thread holds the mutex that guards `current` since `start_poll`: the caller's
        // contract, section Safety.
        let current = unsafe { *queue.current.get() };
        current.map(|(completion, stamp)| read(&completion, stamp))
    })
    .unwrap_or_default()
}

/// Returns the opcode of the current completion.
///
/// # Safety
/// The requirements of [`next_poll`] apply.
unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: the contract of `of_current` is this function's own, section Safety.
    unsafe { of_current(cq, |completion| completion.opcode as ibv_wc_opcode) }
}

/// Returns the number of bytes of the current completion.
///
/// # Safety
/// The requirements of [`next_poll`] apply.
unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the contract of `of_current` is this function's own, section Safety.
    unsafe { of_current(cq, |completion| completion.byte_len) }
}

/// Returns the immediate data, or the key that was invalidated: one word, as in an `ibv_wc`.
///
/// # Safety
/// The requirements of [`next_poll`] apply.
unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the contract of `of_current` is this function's own, section Safety. Both members of
    // the union are `u32`.
    unsafe { of_current(cq, |completion| wc_imm(completion).imm_data) }
}

/// Returns the local queue pair number of the current completion.
///
/// # Safety
/// The requirements of [`next_poll`] apply.
unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the contract of `of_current` is this function's own, section Safety.
    unsafe { of_current(cq, |completion| completion.qpn.get()) }
}

/// Returns the queue pair number of the datagram's sender.
///
/// # Safety
/// The requirements of [`next_poll`] apply.
unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the contract of `of_current` is this function's own, section Safety.
    unsafe { of_current(cq, |completion| completion.src_qp.get()) }
}

/// Returns the flags of the current completion.
///
/// # Safety
/// The requirements of [`next_poll`] apply.
unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> ibv_wc_flags {
    // SAFETY: the contract of `of_current` is this function's own, section Safety.
    unsafe { of_current(cq, wc_flags) }
}

/// Returns the vendor error code or the LID: always 0, as there are none.
unsafe extern "C" fn read_zero(_: *mut ibv_cq_ex) -> u32 {
    0
}

/// Returns the service level of the current completion.
///
/// # Safety
/// The requirements of [`next_poll`] apply.
unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: the contract of `of_current` is this function's own, section Safety.
    unsafe { of_current(cq, wc_sl) }
}

/// Returns the path bits: always 0, as RoCE has none.
unsafe extern "C" fn read_no_bits(_: *mut ibv_cq_ex) -> u8 {
    0
}

/// Returns the time of the completion in nanoseconds, by the clock that `ibv_query_rt_values_ex`
/// reads.
///
/// # Safety
/// The requirements of [`next_poll`] apply.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the contract of `of_stamped` is this function's own, section Safety.
    unsafe { of_stamped(cq, |_, stamp| stamp.device) }
}

/// Returns the wall-clock time of the completion in nanoseconds.
///
/// # Safety
/// The requirements of [`next_poll`] apply.
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the contract of `of_stamped` is this function's own, section Safety.
    unsafe { of_stamped(cq, |_, stamp| stamp.wall) }
}
