//! The `ibv_wr_*` functions: work requests are built up between `wr_start` and `wr_complete`, which
//! posts all of them or none.
//!
//! Meanwhile the queue pair belongs to the thread, by the mutex in its `ibv_qp`.

mod staging;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use urxe_proto::ids::{LKey, QKey, Qpn, RKey, Srqn};
use urxe_proto::wire::Feth;
use urxe_proto::work::{SendOp, Sge};

use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::mw;
use super::object;
use super::post::{element_from, flags_from};
use super::qp::pair_of;
use staging::{Staged, Whither};

pub(super) use staging::Staging;

/// Fills in the functions. Those of operations that a queue pair cannot have stay null, as the
/// program had to name the operations when it made the queue pair.
pub(super) fn fill(qp: &mut ibv_qp_ex) {
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

/// The queue pair as one with `ibv_wr_*` functions; null unless it was made for them.
///
/// # Safety
/// `qp` is null or a queue pair of ours.
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    entry::value("ibv_qp_to_qp_ex", ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        match unsafe { pair_of(qp) } {
            Ok(pair) if pair.staging.is_some() => qp.cast(),
            _ => ptr::null_mut(),
        }
    })
}

/// Where the thread builds its requests.
///
/// # Safety
/// `qp` is null or a queue pair of ours, whose mutex the thread has.
unsafe fn staged<'a>(qp: *mut ibv_qp_ex) -> Result<&'a mut Staged, Errno> {
    // SAFETY: the caller's promise.
    let staging = unsafe { object::ours(qp) }?.staging.as_ref();
    // SAFETY: the mutex makes it this thread's, and no function here keeps it.
    Ok(unsafe { &mut *staging.ok_or(Errno(libc::EINVAL))?.0.get() })
}

/// Runs a step of building. These functions return nothing: what goes wrong, `wr_complete` reports.
///
/// # Safety
/// As for [`staged`].
unsafe fn step(
    name: &'static str,
    qp: *mut ibv_qp_ex,
    build: impl FnOnce(&mut Staged) -> Result<(), Errno>,
) {
    entry::short(name, (), || {
        // SAFETY: the caller's promise.
        let Ok(staged) = (unsafe { staged(qp) }) else {
            return;
        };
        if let Err(error) = build(staged) {
            staged.error.get_or_insert(error);
        }
    });
}

/// Begins a request, with the number and flags that the program has put into the queue pair.
///
/// # Safety
/// As for [`staged`].
unsafe fn begin(name: &'static str, qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: the caller's promise.
    unsafe { begin_if(name, qp, Ok(op)) }
}

/// The same, unless the program asks for what there is not.
///
/// # Safety
/// As for [`staged`].
unsafe fn begin_if(name: &'static str, qp: *mut ibv_qp_ex, op: Result<SendOp, Errno>) {
    // SAFETY: the caller's promise; a null pointer is caught before it is read.
    unsafe {
        step(name, qp, |staged| {
            let wr_id = (&raw const (*qp).wr_id).read();
            let flags = flags_from((&raw const (*qp).wr_flags).read())?;
            staged.begin(wr_id, op?, flags);
            Ok(())
        });
    }
}

/// # Safety
/// `qp` is null or a queue pair of ours that was made for these functions.
unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    entry::short("ibv_wr_start", (), || {
        if qp.is_null() {
            return;
        }
        // SAFETY: a mutex that began as zeros, which is how it is initialized; the queue pair is
        // not destroyed while requests are built.
        unsafe { libc::pthread_mutex_lock(&raw mut (*qp).qp_base.mutex) };
        // SAFETY: the caller's promise, and the mutex is held.
        if let Ok(staged) = unsafe { staged(qp) } {
            staged.clear();
        }
    });
}

/// # Safety
/// `qp` is null or a queue pair of ours on which the thread has called [`wr_start`].
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    entry::status("ibv_wr_complete", || {
        // SAFETY: the caller's promise.
        let posted = unsafe {
            let pair = object::ours(qp)?;
            staged(qp).and_then(|staged| staged.post(&pair.driver))
        };
        // SAFETY: the thread has it since wr_start.
        unsafe { libc::pthread_mutex_unlock(&raw mut (*qp).qp_base.mutex) };
        posted
    })
}

/// # Safety
/// `qp` is null or a queue pair of ours on which the thread has called [`wr_start`].
unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    entry::short("ibv_wr_abort", (), || {
        if !qp.is_null() {
            // SAFETY: the thread has it since wr_start, which the next one will empty.
            unsafe { libc::pthread_mutex_unlock(&raw mut (*qp).qp_base.mutex) };
        }
    });
}

/// # Safety
/// As for [`staged`].
unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    let op = SendOp::Send;
    // SAFETY: the caller's promise.
    unsafe { begin("ibv_wr_send", qp, op) }
}

/// # Safety
/// As for [`staged`].
unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    let op = SendOp::SendImm(u32::from_be(imm_data));
    // SAFETY: the caller's promise.
    unsafe { begin("ibv_wr_send_imm", qp, op) }
}

/// # Safety
/// As for [`staged`].
unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    let op = SendOp::SendInv(RKey(invalidate_rkey));
    // SAFETY: the caller's promise.
    unsafe { begin("ibv_wr_send_inv", qp, op) }
}

/// # Safety
/// As for [`staged`].
unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    let op = SendOp::LocalInv(RKey(invalidate_rkey));
    // SAFETY: the caller's promise.
    unsafe { begin("ibv_wr_local_inv", qp, op) }
}

/// # Safety
/// As for [`staged`]; `mw` and what `bind_info` points at are ours.
unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    // SAFETY: the caller's promise; null pointers are caught before they are read.
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

/// # Safety
/// As for [`staged`].
unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let op = SendOp::Write {
        addr: remote_addr,
        rkey: RKey(rkey),
    };
    // SAFETY: the caller's promise.
    unsafe { begin("ibv_wr_rdma_write", qp, op) }
}

/// # Safety
/// As for [`staged`].
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
    // SAFETY: the caller's promise.
    unsafe { begin("ibv_wr_rdma_write_imm", qp, op) }
}

/// # Safety
/// As for [`staged`].
unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let op = SendOp::Read {
        addr: remote_addr,
        rkey: RKey(rkey),
    };
    // SAFETY: the caller's promise.
    unsafe { begin("ibv_wr_rdma_read", qp, op) }
}

/// # Safety
/// As for [`staged`].
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
    // SAFETY: the caller's promise.
    unsafe { begin("ibv_wr_atomic_cmp_swp", qp, op) }
}

/// # Safety
/// As for [`staged`].
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
    // SAFETY: the caller's promise.
    unsafe { begin("ibv_wr_atomic_fetch_add", qp, op) }
}

/// # Safety
/// As for [`staged`]; `ah` is null or an address handle of ours.
unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        step("ibv_wr_set_ud_addr", qp, |staged| {
            let handle = Arc::clone(&object::ours(ah)?.driver);
            let (qpn, qkey) = (Qpn::new(remote_qpn), QKey(remote_qkey));
            staged.last()?.to = Whither::Datagram(handle, qpn, qkey);
            Ok(())
        });
    }
}

/// Takes the 8 bytes at `atomic_wr` now.
///
/// # Safety
/// As for [`staged`]; there are 8 bytes.
unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    atomic_wr: *const c_void,
) {
    // SAFETY: the caller's promise; bytes need no alignment.
    unsafe {
        let op = entry::read(atomic_wr.cast::<[u8; 8]>()).map(|value| SendOp::AtomicWrite {
            addr: remote_addr,
            rkey: RKey(rkey),
            value,
        });
        begin_if("ibv_wr_atomic_write", qp, op);
    }
}

/// # Safety
/// As for [`staged`].
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
    // SAFETY: the caller's promise.
    unsafe { begin_if("ibv_wr_flush", qp, op) }
}

/// What a FLUSH asks for.
///
/// # Errors
/// `EINVAL` for what is no placement or selectivity.
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

/// # Safety
/// As for [`staged`].
unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        step("ibv_wr_set_xrc_srqn", qp, |staged| {
            staged.last()?.to = Whither::Shared(Srqn::new(remote_srqn));
            Ok(())
        });
    }
}

/// # Safety
/// As for [`staged`].
unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let lkey = LKey(lkey);
    let sge = Sge { addr, length, lkey };
    // SAFETY: the caller's promise.
    unsafe {
        step("ibv_wr_set_sge", qp, |staged| {
            staged.set_sges(std::iter::once(sge))
        });
    }
}

/// # Safety
/// As for [`staged`]; there are `num_sge` elements.
unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: the caller's promise.
    unsafe {
        step("ibv_wr_set_sge_list", qp, |staged| {
            if sg_list.is_null() && num_sge > 0 {
                return Err(Errno(libc::EINVAL));
            }
            staged.set_sges((0..num_sge).map(|index| element_from(&sg_list.add(index).read())))
        });
    }
}

/// # Safety
/// As for [`staged`]; there are `length` bytes.
unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let piece = ibv_data_buf { addr, length };
    // SAFETY: the caller's promise.
    unsafe {
        step("ibv_wr_set_inline_data", qp, |staged| {
            staged.set_inline(std::iter::once(piece))
        });
    }
}

/// # Safety
/// As for [`staged`]; there are `num_buf` pieces.
unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    // SAFETY: the caller's promise.
    unsafe {
        step("ibv_wr_set_inline_data_list", qp, |staged| {
            if buf_list.is_null() && num_buf > 0 {
                return Err(Errno(libc::EINVAL));
            }
            staged.set_inline((0..num_buf).map(|index| buf_list.add(index).read()))
        });
    }
}
