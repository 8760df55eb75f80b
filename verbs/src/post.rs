//! Posting of lists of work requests.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use urxe_driver::ah::Destination;
use urxe_driver::qp::{MAX_SGE, Posting, SendTarget};
use urxe_proto::ids::{QKey, Qpn, RKey, Srqn};
use urxe_proto::qp::QpType;
use urxe_proto::queue::PostError;
use urxe_proto::work::{Payload, SendFlags, SendOp, SendWr, Sge};

use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::mw;
use super::object;
use super::qp::pair_of;
use super::srq::shared_of;
use super::work_request::{element_from, flags_from};

/// Scratch room for the elements of one work request. They are copied, because the program may
/// change its own array.
type Elements = [MaybeUninit<Sge>; MAX_SGE as usize];

/// Room without elements. Clearing it would cost more than most copies.
const NO_ELEMENTS: Elements = [const { MaybeUninit::uninit() }; MAX_SGE as usize];

/// Copies the `count` elements at `list` to `into`, and returns them.
///
/// # Safety
/// `list` must be null or point to `count` readable `ibv_sge` elements.
unsafe fn elements(
    list: *const ibv_sge,
    count: c_int,
    into: &mut Elements,
) -> Result<&[Sge], Errno> {
    let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    let into = into.get_mut(..count).ok_or(PostError::TooManySges)?;
    for (index, element) in into.iter_mut().enumerate() {
        // SAFETY: `list` points to `count` readable elements and `index < count`: the caller's
        // contract, section Safety. `entry::read` rejects a null `list`.
        element.write(element_from(&unsafe {
            entry::read(list.wrapping_add(index))
        }?));
    }
    // SAFETY: the loop has initialized every element of `into`, and `MaybeUninit<Sge>` has the
    // layout of `Sge`.
    Ok(unsafe { &*(std::ptr::from_mut(into) as *const [Sge]) })
}

/// Converts a work request to an operation. The driver checks which transport has which operation.
///
/// # Safety
/// For `IBV_WR_BIND_MW`, `wr.ext.bind_mw.mw` must be null or a live memory window created by this
/// library, and so must be the region in its `bind_info`.
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    // SAFETY: the unions hold plain integers and pointers, for which every bit pattern is valid.
    // Only the members that the opcode names are used.
    let (imm, invalidate, rdma, atomic) = unsafe {
        (
            u32::from_be(wr.imm.imm_data),
            RKey(wr.imm.invalidate_rkey),
            wr.wr.rdma,
            wr.wr.atomic,
        )
    };
    let (addr, rkey) = (rdma.remote_addr, RKey(rdma.rkey));
    Ok(match wr.opcode {
        IBV_WR_SEND => SendOp::Send,
        IBV_WR_SEND_WITH_IMM => SendOp::SendImm(imm),
        IBV_WR_SEND_WITH_INV => SendOp::SendInv(invalidate),
        IBV_WR_RDMA_WRITE => SendOp::Write { addr, rkey },
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm { addr, rkey, imm },
        IBV_WR_RDMA_READ => SendOp::Read { addr, rkey },
        IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
            addr: atomic.remote_addr,
            rkey: RKey(atomic.rkey),
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd {
            addr: atomic.remote_addr,
            rkey: RKey(atomic.rkey),
            add: atomic.compare_add,
        },
        IBV_WR_LOCAL_INV => SendOp::LocalInv(invalidate),
        IBV_WR_BIND_MW => {
            // SAFETY: `ext.bind_mw` is the member for this opcode, and every bit pattern is valid
            // for it. The objects that it points to are null or live: the caller's contract,
            // section Safety.
            unsafe {
                let bind = wr.ext.bind_mw;
                mw::bind_type_2(bind.mw, bind.rkey, &bind.bind_info)?
            }
        }
        _ => return Err(PostError::Operation.into()),
    })
}

/// Returns the destination of a request.
///
/// # Safety
/// For a datagram, `wr.wr.ud.ah` must be null or a live address handle created by this library, and
/// stay live for `'a`.
unsafe fn destination<'a>(
    service: QpType,
    op: SendOp,
    wr: &ibv_send_wr,
) -> Result<SendTarget<'a>, Errno> {
    match service {
        QpType::Ud if matches!(op, SendOp::Send | SendOp::SendImm(_)) => {}
        QpType::XrcIni => {
            // SAFETY: `qp_type.xrc` is the member for this service, and every bit pattern is valid
            // for it.
            let xrc = unsafe { wr.qp_type.xrc };
            return Ok(SendTarget::Shared(Srqn::new(xrc.remote_srqn)));
        }
        _ => return Ok(SendTarget::Peer),
    }
    // SAFETY: `wr.ud` is the member for this service, and every bit pattern is valid for it.
    let ud = unsafe { wr.wr.ud };
    // SAFETY: `ud.ah` is null or a live address handle: the caller's contract, section Safety.
    let handle = unsafe { object::state_of(ud.ah) }?;
    Ok(SendTarget::Datagram(Destination {
        handle: &handle.driver,
        qpn: Qpn::new(ud.remote_qpn),
        qkey: QKey(ud.remote_qkey),
    }))
}

/// Posts one request.
///
/// # Safety
/// `wr.sg_list` must be null or point to `wr.num_sge` readable `ibv_sge` elements. Elements of
/// inline data must name readable memory. The objects that `wr` names must be null or live objects
/// created by this library.
unsafe fn post_one(
    posting: &mut Posting<'_>,
    wr: &ibv_send_wr,
    scratch: &mut Elements,
) -> Result<(), Errno> {
    // SAFETY: the objects that `wr` names are null or live: the caller's contract, section Safety.
    let op = unsafe { operation(wr) }?;
    let flags = flags_from(wr.send_flags)?;
    // SAFETY: `sg_list` is null or points to `num_sge` readable elements: the caller's contract,
    // section Safety.
    let sges = unsafe { elements(wr.sg_list, wr.num_sge, scratch) }?;
    // SAFETY: the address handle of a datagram is null or live: the caller's contract, section
    // Safety.
    let to = unsafe { destination(posting.service(), op, wr) }?;
    if flags.contains(SendFlags::INLINE) && !op.is_local() {
        // SAFETY: the elements of inline data name readable memory: the caller's contract, section
        // Safety.
        unsafe { posting.post_inline(wr.wr_id, op, flags, sges, &to) }?;
    } else {
        let wr = SendWr {
            wr_id: wr.wr_id,
            op,
            flags,
            payload: Payload::Sges(sges),
            dest: None,
        };
        posting.post_anywhere(&wr, &to)?;
    }
    Ok(())
}

/// Stores the request that could not be posted in `*bad`.
///
/// # Safety
/// `bad` must be null or point to a writable pointer.
unsafe fn set_bad_wr<T>(bad: *mut *mut T, wr: *mut T) {
    if !bad.is_null() {
        // SAFETY: `bad` is non-null (checked above) and points to a writable pointer, which may be
        // unaligned: the caller's contract, section Safety.
        unsafe { bad.write_unaligned(wr) };
    }
}

/// Implements `post_send` of a context.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. `wr` must be null or start a
/// list of readable requests, linked by `next` and ended by null, each valid for its opcode
/// (ibv_post_send(3)). `bad_wr` must be null or point to a writable pointer.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut at = wr;
    let status = entry::status("ibv_post_send", || {
        // SAFETY: `qp` is null or a live queue pair: the caller's contract, section Safety.
        let pair = unsafe { pair_of(qp) }?;
        let mut scratch = NO_ELEMENTS;
        let mut posting = pair.driver.start_posting();
        while !at.is_null() {
            // SAFETY: `at` is an element of the caller's list, so it points to a readable request
            // that is valid for its opcode: the caller's contract, section Safety.
            let next = unsafe {
                let wr = entry::read(at)?;
                post_one(&mut posting, &wr, &mut scratch)?;
                wr.next
            };
            at = next;
        }
        Ok(())
    });
    if status != 0 {
        // SAFETY: `bad_wr` is null or writable: the caller's contract, section Safety.
        unsafe { set_bad_wr(bad_wr, at) };
    }
    status
}

/// Posts a list of receives one by one.
///
/// Returns the status of the C function `name`. On failure `*bad_wr` is the receive that could not
/// be posted.
///
/// # Safety
/// `wr` must be null or start a list of readable requests, linked by `next` and ended by null. Each
/// `sg_list` must be null or point to `num_sge` readable `ibv_sge` elements. `bad_wr` must be null
/// or point to a writable pointer.
pub(super) unsafe fn post_receives(
    name: &'static str,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    post: impl Fn(u64, &[Sge]) -> Result<(), Errno>,
) -> c_int {
    let mut at = wr;
    // The driver disables cancellation by itself where it completes receives in the error state.
    let status = entry::short_status(name, || {
        let mut scratch = NO_ELEMENTS;
        while !at.is_null() {
            // SAFETY: `at` is an element of the caller's list, so it and its `sg_list` are
            // readable: the caller's contract, section Safety.
            let (wr, sges) = unsafe {
                let wr = entry::read(at)?;
                (wr, elements(wr.sg_list, wr.num_sge, &mut scratch)?)
            };
            post(wr.wr_id, sges)?;
            at = wr.next;
        }
        Ok(())
    });
    if status != 0 {
        // SAFETY: `bad_wr` is null or writable: the caller's contract, section Safety.
        unsafe { set_bad_wr(bad_wr, at) };
    }
    status
}

/// Implements `post_recv` of a context.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. `wr` and `bad_wr` must meet the
/// requirements of [`post_receives`].
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `qp` is null or a live queue pair, and the list and `bad_wr` meet the requirements of
    // `post_receives`: the caller's contract, section Safety.
    unsafe {
        post_receives("ibv_post_recv", wr, bad_wr, |wr_id, sges| {
            Ok(pair_of(qp)?.driver.post_receive(wr_id, sges)?)
        })
    }
}

/// Implements `post_srq_recv` of a context.
///
/// # Safety
/// `srq` must be null or a live shared receive queue created by this library. `wr` and `bad_wr`
/// must meet the requirements of [`post_receives`].
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `srq` is null or a live shared receive queue, and the list and `bad_wr` meet the
    // requirements of `post_receives`: the caller's contract, section Safety.
    unsafe {
        post_receives("ibv_post_srq_recv", wr, bad_wr, |wr_id, sges| {
            Ok(shared_of(srq)?.driver.post_receive(wr_id, sges)?)
        })
    }
}
