//! The extended way to poll a completion queue: one completion at a time, read member by member.
//!
//! From `start_poll` to `end_poll` the queue belongs to the thread, by the mutex in its `ibv_cq`.

use std::ffi::c_int;

use urxe_driver::cq::Stamp;
use urxe_proto::work::Completion;

use super::cq::{CompletionQueue, shown_flags, shown_immediate, shown_service_level};
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object;

/// Fills in the functions.
pub(super) fn fill(cq: &mut ibv_cq_ex) {
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

/// Takes a completion; `ENOENT` when there is none.
///
/// # Safety
/// `cq` is the object of `queue`, and its mutex is held.
unsafe fn take(cq: *mut ibv_cq_ex, queue: &CompletionQueue) -> Result<(), Errno> {
    let next = queue.driver.poll_stamped();
    // SAFETY: what the mutex guards is this thread's.
    unsafe { queue.current.get().write(next) };
    let (completion, _) = next.ok_or(Errno(libc::ENOENT))?;
    // SAFETY: a live object; this makes no reference.
    unsafe {
        (&raw mut (*cq).wr_id).write(completion.wr_id);
        (&raw mut (*cq).status).write(completion.status as ibv_wc_status);
    }
    Ok(())
}

/// # Safety
/// `cq` is null or a completion queue of ours.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    entry::status("ibv_start_poll", || {
        // SAFETY: the caller's promise.
        let queue = unsafe { object::ours(cq) }?;
        // SAFETY: as above.
        if !attr.is_null() && unsafe { entry::read(attr) }?.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: a mutex that began as zeros, which is how it is initialized; the queue is not
        // destroyed while it is polled.
        unsafe { libc::pthread_mutex_lock(&raw mut (*cq).mutex) };
        // SAFETY: the mutex is held.
        let taken = unsafe { take(cq, queue) };
        if taken.is_err() {
            // SAFETY: as above, and this thread has it.
            unsafe { libc::pthread_mutex_unlock(&raw mut (*cq).mutex) };
        }
        taken
    })
}

/// # Safety
/// `cq` is null or a completion queue of ours that the thread polls.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    entry::status("ibv_next_poll", || {
        // SAFETY: the caller's promise; the mutex is held since start_poll.
        unsafe { take(cq, object::ours(cq)?) }
    })
}

/// # Safety
/// `cq` is null or a completion queue of ours that the thread polls.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    entry::short("ibv_end_poll", (), || {
        if !cq.is_null() {
            // SAFETY: the thread has it since start_poll.
            unsafe { libc::pthread_mutex_unlock(&raw mut (*cq).mutex) };
        }
    });
}

/// What `read` makes of the completion that is being read, or 0.
///
/// # Safety
/// `cq` is null or a completion queue of ours that the thread polls.
unsafe fn of_current<T: Default>(cq: *mut ibv_cq_ex, read: impl FnOnce(&Completion) -> T) -> T {
    // SAFETY: the caller's promise.
    unsafe { of_stamped(cq, |completion, _| read(completion)) }
}

/// The same, for what belongs to its stamp.
///
/// # Safety
/// As for [`of_current`].
unsafe fn of_stamped<T: Default>(
    cq: *mut ibv_cq_ex,
    read: impl FnOnce(&Completion, Stamp) -> T,
) -> T {
    entry::short("ibv_wc_read", None, || {
        // SAFETY: the caller's promise.
        let queue = unsafe { object::ours(cq) }.ok()?;
        // SAFETY: what the mutex guards is this thread's since start_poll.
        let current = unsafe { *queue.current.get() };
        current.map(|(completion, stamp)| read(&completion, stamp))
    })
    .unwrap_or_default()
}

/// # Safety
/// As for [`of_current`].
unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: the caller's promise.
    unsafe { of_current(cq, |completion| completion.opcode as ibv_wc_opcode) }
}

/// # Safety
/// As for [`of_current`].
unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { of_current(cq, |completion| completion.byte_len) }
}

/// Immediate data, or the key that was invalidated: one word, as in an `ibv_wc`.
///
/// # Safety
/// As for [`of_current`].
unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise; both members of the union are a u32.
    unsafe { of_current(cq, |completion| shown_immediate(completion).imm_data) }
}

/// # Safety
/// As for [`of_current`].
unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { of_current(cq, |completion| completion.qpn.get()) }
}

/// # Safety
/// As for [`of_current`].
unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { of_current(cq, |completion| completion.src_qp.get()) }
}

/// # Safety
/// As for [`of_current`].
unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> ibv_wc_flags {
    // SAFETY: the caller's promise.
    unsafe { of_current(cq, shown_flags) }
}

/// The vendor's error code and the LID: there are none.
unsafe extern "C" fn read_zero(_: *mut ibv_cq_ex) -> u32 {
    0
}

/// # Safety
/// `cq` is null or a completion queue of ours that the thread polls.
unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: the caller's contract is that of `of_current`.
    unsafe { of_current(cq, shown_service_level) }
}

/// The path bits: RoCE has none.
unsafe extern "C" fn read_no_bits(_: *mut ibv_cq_ex) -> u8 {
    0
}

/// By the clock that `ibv_query_rt_values_ex` reads, in nanoseconds.
///
/// # Safety
/// As for [`of_current`].
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { of_stamped(cq, |_, stamp| stamp.device) }
}

/// # Safety
/// As for [`of_current`].
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { of_stamped(cq, |_, stamp| stamp.wall) }
}
