//! The `ibv_wr_*` functions. Work requests are built between `wr_start` and `wr_complete`, which
//! posts all of them or none.
//!
//! In between the building thread holds the mutex in the `ibv_qp`.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use urxe_proto::ids::{LKey, QKey, Qpn, RKey, Srqn};
use urxe_proto::wire::Feth;
use urxe_proto::work::{SendOp, Sge};

use super::staging::{SendDestination, Staged};
use super::state::pair_of;
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;
use crate::mw;
use crate::object;
use crate::work_request::{element_from, flags_from};

/// Sets the function pointers of a queue pair.
///
/// Functions of operations that no queue pair supports stay null. A program does not call them: it
/// names its operations when it creates the queue pair.
pub(crate) fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_flush = Some(wr_flush);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
}

/// Returns the queue pair as one with `ibv_wr_*` functions; null unless it was created for them.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library.
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    entry::value("ibv_qp_to_qp_ex", ptr::null_mut(), || {
        // SAFETY: `qp` is null or live: the caller's contract, section Safety.
        match unsafe { pair_of(qp) } {
            Ok(pair) if pair.staging.is_some() => qp.cast(),
            _ => ptr::null_mut(),
        }
    })
}

/// Returns the requests that the calling thread is building.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library, and the calling thread must hold
/// its mutex, as it does between `wr_start` and `wr_complete` or `wr_abort`. No other result of
/// this function may be in use.
unsafe fn staged<'a>(qp: *mut ibv_qp_ex) -> Result<&'a mut Staged, Errno> {
    // SAFETY: `qp` is null or live: the caller's contract, section Safety.
    let staging = unsafe { object::state_of(qp) }?.staging.as_ref();
    // SAFETY: the thread holds the mutex that guards the cell, and no other reference from it is in
    // use: the caller's contract, section Safety.
    Ok(unsafe { &mut *staging.ok_or(Errno(libc::EINVAL))?.0.get() })
}

/// Runs one step of building. On failure it stores the error, which `wr_complete` returns: the
/// functions of the steps return nothing.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe fn step(
    name: &'static str,
    qp: *mut ibv_qp_ex,
    build: impl FnOnce(&mut Staged) -> Result<(), Errno>,
) {
    entry::short(name, (), || {
        // SAFETY: the contract of `staged` is this function's own, section Safety.
        let Ok(staged) = (unsafe { staged(qp) }) else {
            return;
        };
        if let Err(error) = build(staged) {
            staged.error.get_or_insert(error);
        }
    });
}

/// Begins a request with the `wr_id` and flags that the program has stored in the queue pair.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe fn begin(name: &'static str, qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: the contract of `begin_if` is this function's own, section Safety.
    unsafe { begin_if(name, qp, Ok(op)) }
}

/// Begins a request as [`begin`] does, or stores the error if the operation is invalid.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe fn begin_if(name: &'static str, qp: *mut ibv_qp_ex, op: Result<SendOp, Errno>) {
    // SAFETY: the contract of `step` is this function's own, section Safety. `step` does not call
    // the closure for a null `qp`, so `qp` is live where it is read.
    unsafe {
        step(name, qp, |staged| {
            let wr_id = (&raw const (*qp).wr_id).read();
            let flags = flags_from((&raw const (*qp).wr_flags).read())?;
            staged.begin(wr_id, op?, flags);
            Ok(())
        });
    }
}

/// Locks the queue pair and discards what was built before.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library with `ibv_wr_*` functions. The
/// calling thread must not hold its mutex.
unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    entry::short("ibv_wr_start", (), || {
        if qp.is_null() {
            return;
        }
        // SAFETY: the mutex is all zeros at creation, which is its initialized state. The queue
        // pair is not destroyed while requests are built: the caller's contract, section Safety.
        unsafe { libc::pthread_mutex_lock(&raw mut (*qp).qp_base.mutex) };
        // SAFETY: `qp` is live: the caller's contract, section Safety. This thread holds the mutex.
        if let Ok(staged) = unsafe { staged(qp) } {
            staged.clear();
        }
    });
}

/// Posts all requests that were built, or none, and unlocks the queue pair.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library, on which the calling thread has
/// called [`wr_start`] and neither [`wr_complete`] nor [`wr_abort`] since.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    entry::status("ibv_wr_complete", || {
        // SAFETY: `qp` is null or live, and the thread holds its mutex since `wr_start`: the
        // caller's contract, section Safety.
        let posted = unsafe {
            let pair = object::state_of(qp)?;
            staged(qp).and_then(|staged| staged.post(&pair.driver))
        };
        // SAFETY: `qp` is non-null, since `object::state_of` accepted it, and the thread holds the
        // mutex since `wr_start`: the caller's contract, section Safety.
        unsafe { libc::pthread_mutex_unlock(&raw mut (*qp).qp_base.mutex) };
        posted
    })
}

/// Discards the requests and unlocks the queue pair.
///
/// # Safety
/// The requirements of [`wr_complete`] apply.
unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    entry::short("ibv_wr_abort", (), || {
        if !qp.is_null() {
            // SAFETY: the thread holds the mutex since `wr_start`: the caller's contract, section
            // Safety. The next `wr_start` discards the requests.
            unsafe { libc::pthread_mutex_unlock(&raw mut (*qp).qp_base.mutex) };
        }
    });
}

/// Begins a SEND.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    let op = SendOp::Send;
    // SAFETY: the contract of `begin` is this function's own, section Safety.
    unsafe { begin("ibv_wr_send", qp, op) }
}

/// Begins a SEND with immediate data.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    let op = SendOp::SendImm(u32::from_be(imm_data));
    // SAFETY: the contract of `begin` is this function's own, section Safety.
    unsafe { begin("ibv_wr_send_imm", qp, op) }
}

/// Begins a SEND with invalidate.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    let op = SendOp::SendInv(RKey(invalidate_rkey));
    // SAFETY: the contract of `begin` is this function's own, section Safety.
    unsafe { begin("ibv_wr_send_inv", qp, op) }
}

/// Begins a local invalidation.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    let op = SendOp::LocalInv(RKey(invalidate_rkey));
    // SAFETY: the contract of `begin` is this function's own, section Safety.
    unsafe { begin("ibv_wr_local_inv", qp, op) }
}

/// Begins the bind of a memory window of type 2.
///
/// # Safety
/// The requirements of [`staged`] apply. `mw` must be null or a live memory window created by this
/// library. `bind_info` must be null or readable, and its region null or live.
unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    // SAFETY: the contract of `step`, and that of `bind_type_2` for `mw` and the region, are this
    // function's own, section Safety. Null pointers are rejected before they are read.
    unsafe {
        step("ibv_wr_bind_mw", qp, |staged| {
            let op = mw::bind_type_2(mw, rkey, &entry::read(bind_info)?)?;
            let wr_id = (&raw const (*qp).wr_id).read();
            let flags = flags_from((&raw const (*qp).wr_flags).read())?;
            staged.begin(wr_id, op, flags);
            Ok(())
        });
    }
}

/// Begins an RDMA WRITE.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let op = SendOp::Write {
        addr: remote_addr,
        rkey: RKey(rkey),
    };
    // SAFETY: the contract of `begin` is this function's own, section Safety.
    unsafe { begin("ibv_wr_rdma_write", qp, op) }
}

/// Begins an RDMA WRITE with immediate data.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe extern "C" fn wr_rdma_write_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    imm_data: u32,
) {
    let op = SendOp::WriteImm {
        addr: remote_addr,
        rkey: RKey(rkey),
        imm: u32::from_be(imm_data),
    };
    // SAFETY: the contract of `begin` is this function's own, section Safety.
    unsafe { begin("ibv_wr_rdma_write_imm", qp, op) }
}

/// Begins an RDMA READ.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let op = SendOp::Read {
        addr: remote_addr,
        rkey: RKey(rkey),
    };
    // SAFETY: the contract of `begin` is this function's own, section Safety.
    unsafe { begin("ibv_wr_rdma_read", qp, op) }
}

/// Begins an atomic compare and swap.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    let op = SendOp::CompareSwap {
        addr: remote_addr,
        rkey: RKey(rkey),
        compare,
        swap,
    };
    // SAFETY: the contract of `begin` is this function's own, section Safety.
    unsafe { begin("ibv_wr_atomic_cmp_swp", qp, op) }
}

/// Begins an atomic fetch and add.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe extern "C" fn wr_atomic_fetch_add(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    add: u64,
) {
    let op = SendOp::FetchAdd {
        addr: remote_addr,
        rkey: RKey(rkey),
        add,
    };
    // SAFETY: the contract of `begin` is this function's own, section Safety.
    unsafe { begin("ibv_wr_atomic_fetch_add", qp, op) }
}

/// Sets the destination of a datagram.
///
/// # Safety
/// The requirements of [`staged`] apply. `ah` must be null or a live address handle created by this
/// library.
unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the contract of `step` is this function's own, and `ah` is null or live: section
    // Safety.
    unsafe {
        step("ibv_wr_set_ud_addr", qp, |staged| {
            let handle = Arc::clone(&object::state_of(ah)?.driver);
            let (qpn, qkey) = (Qpn::new(remote_qpn), QKey(remote_qkey));
            staged.last()?.to = SendDestination::Datagram(handle, qpn, qkey);
            Ok(())
        });
    }
}

/// Begins an ATOMIC WRITE of the 8 bytes at `atomic_wr`, which are copied now.
///
/// # Safety
/// The requirements of [`staged`] apply. `atomic_wr` must be null or point to 8 readable bytes.
unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    atomic_wr: *const c_void,
) {
    // SAFETY: the contract of `begin_if` is this function's own, and `atomic_wr` is null or points
    // to 8 readable bytes: section Safety. Bytes need no alignment.
    unsafe {
        let op = entry::read(atomic_wr.cast::<[u8; 8]>()).map(|value| SendOp::AtomicWrite {
            addr: remote_addr,
            rkey: RKey(rkey),
            value,
        });
        begin_if("ibv_wr_atomic_write", qp, op);
    }
}

/// Begins a FLUSH.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    len: usize,
    kind: u8,
    level: u8,
) {
    let op = flush_from(kind, level).and_then(|how| {
        Ok(SendOp::Flush {
            addr: remote_addr,
            rkey: RKey(rkey),
            len: u32::try_from(len).map_err(|_| Errno(libc::EINVAL))?,
            how,
        })
    });
    // SAFETY: the contract of `begin_if` is this function's own, section Safety.
    unsafe { begin_if("ibv_wr_flush", qp, op) }
}

/// Converts the placement type and selectivity level of a FLUSH.
///
/// # Errors
/// `EINVAL` for values that are not defined.
fn flush_from(kind: u8, level: u8) -> Result<Feth, Errno> {
    let kind = ibv_placement_type::from(kind);
    if kind == 0 || kind & !(IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let mut how = Feth::empty();
    how.set(Feth::GLOBAL_VISIBILITY, kind & IBV_FLUSH_GLOBAL != 0);
    how.set(Feth::PERSISTENCE, kind & IBV_FLUSH_PERSISTENT != 0);
    match ibv_selectivity_level::from(level) {
        IBV_FLUSH_RANGE => Ok(how),
        IBV_FLUSH_MR => Ok(how | Feth::WHOLE_REGION),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Sets the destination of an XRC request: the number of the shared receive queue.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: the contract of `step` is this function's own, section Safety.
    unsafe {
        step("ibv_wr_set_xrc_srqn", qp, |staged| {
            staged.last()?.to = SendDestination::Shared(Srqn::new(remote_srqn));
            Ok(())
        });
    }
}

/// Sets the data of the request to one element.
///
/// # Safety
/// The requirements of [`staged`] apply.
unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let lkey = LKey(lkey);
    let sge = Sge { addr, length, lkey };
    // SAFETY: the contract of `step` is this function's own, section Safety.
    unsafe {
        step("ibv_wr_set_sge", qp, |staged| {
            staged.set_sges(std::iter::once(sge))
        });
    }
}

/// Sets the data of the request.
///
/// # Safety
/// The requirements of [`staged`] apply. `sg_list` must be null or point to `num_sge` readable
/// `ibv_sge` elements.
unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: the contract of `step` is this function's own. `sg_list` is non-null if elements are
    // read (checked in the closure), and points to `num_sge` readable elements: section Safety.
    unsafe {
        step("ibv_wr_set_sge_list", qp, |staged| {
            if sg_list.is_null() && num_sge > 0 {
                return Err(Errno(libc::EINVAL));
            }
            staged.set_sges(
                (0..num_sge).map(|index| element_from(&sg_list.add(index).read_unaligned())),
            )
        });
    }
}

/// Copies inline data into the request.
///
/// # Safety
/// The requirements of [`staged`] apply. `addr` must point to `length` readable bytes.
unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let piece = ibv_data_buf { addr, length };
    // SAFETY: the contract of `step` is this function's own, and `addr` points to `length` readable
    // bytes: section Safety.
    unsafe {
        step("ibv_wr_set_inline_data", qp, |staged| {
            staged.set_inline(std::iter::once(piece))
        });
    }
}

/// Copies inline data of several buffers into the request.
///
/// # Safety
/// The requirements of [`staged`] apply. `buf_list` must be null or point to `num_buf` readable
/// `ibv_data_buf` elements, each of which must describe readable bytes.
unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    // SAFETY: the contract of `step` is this function's own. `buf_list` is non-null if elements are
    // read (checked in the closure), and points to `num_buf` readable elements that describe
    // readable bytes: section Safety.
    unsafe {
        step("ibv_wr_set_inline_data_list", qp, |staged| {
            if buf_list.is_null() && num_buf > 0 {
                return Err(Errno(libc::EINVAL));
            }
            staged.set_inline((0..num_buf).map(|index| buf_list.add(index).read_unaligned()))
        });
    }
}
