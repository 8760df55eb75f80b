//! Posting of work requests, in lists.

use std::ffi::c_int;

use urxe_driver::ah::Destination;
use urxe_driver::qp::{MAX_SGE, Posting, To};
use urxe_proto::ids::{LKey, QKey, Qpn, RKey, Srqn};
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

/// Elements of the work request at hand. They are copied: the program may change its own.
type Elements = [Sge; MAX_SGE as usize];

/// The `count` elements at `list`.
///
/// # Safety
/// There are so many.
unsafe fn elements(
    list: *const ibv_sge,
    count: c_int,
    into: &mut Elements,
) -> Result<&[Sge], Errno> {
    let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    let into = into.get_mut(..count).ok_or(PostError::TooManySges)?;
    for (index, element) in into.iter_mut().enumerate() {
        // SAFETY: the caller's promise; a null list is caught.
        *element = element_from(&unsafe { entry::read(list.wrapping_add(index)) }?);
    }
    Ok(into)
}

pub(super) fn element_from(sge: &ibv_sge) -> Sge {
    Sge {
        addr: sge.addr,
        length: sge.length,
        lkey: LKey(sge.lkey),
    }
}

/// What a request asks for. Which transport has which operation is the driver's to say.
///
/// # Safety
/// What the request points at is there.
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    // SAFETY: each member read is the one that the opcode names, and every value is one.
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
            // SAFETY: the member that the opcode names, and every value is one; what it points at is
            // the caller's promise.
            unsafe {
                let bind = wr.ext.bind_mw;
                mw::bind_type_2(bind.mw, bind.rkey, &bind.bind_info)?
            }
        }
        _ => return Err(PostError::Operation.into()),
    })
}

/// # Errors
/// `EINVAL` for flags that no operation here has.
pub(super) fn flags_from(flags: ibv_send_flags) -> Result<SendFlags, Errno> {
    SendFlags::from_bits(flags).ok_or(Errno(libc::EINVAL))
}

/// Where a request goes.
///
/// # Safety
/// The address handle of a datagram is null or one of ours.
unsafe fn destination<'a>(service: QpType, op: SendOp, wr: &ibv_send_wr) -> Result<To<'a>, Errno> {
    match service {
        QpType::Ud if matches!(op, SendOp::Send | SendOp::SendImm(_)) => {}
        QpType::XrcIni => {
            // SAFETY: the member that sends of this service have, and every value is one.
            let xrc = unsafe { wr.qp_type.xrc };
            return Ok(To::Shared(Srqn::new(xrc.remote_srqn)));
        }
        _ => return Ok(To::Peer),
    }
    // SAFETY: the member that sends of this service have, and every value is one.
    let ud = unsafe { wr.wr.ud };
    // SAFETY: the caller's promise.
    let handle = unsafe { object::ours(ud.ah) }?;
    Ok(To::Datagram(Destination {
        handle: &handle.driver,
        qpn: Qpn::new(ud.remote_qpn),
        qkey: QKey(ud.remote_qkey),
    }))
}

/// # Safety
/// What the request points at is there.
unsafe fn post_one(
    posting: &mut Posting<'_>,
    wr: &ibv_send_wr,
    scratch: &mut Elements,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let op = unsafe { operation(wr) }?;
    let flags = flags_from(wr.send_flags)?;
    // SAFETY: the caller's promise.
    let sges = unsafe { elements(wr.sg_list, wr.num_sge, scratch) }?;
    // SAFETY: the caller's promise.
    let to = unsafe { destination(posting.service(), op, wr) }?;
    if flags.contains(SendFlags::INLINE) && !op.is_local() {
        // SAFETY: the caller's promise: the elements of inline data are memory of the program's.
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

/// Notes which request could not be posted.
///
/// # Safety
/// `bad` is null or good for a pointer.
unsafe fn blame<T>(bad: *mut *mut T, wr: *mut T) {
    if !bad.is_null() {
        // SAFETY: the caller's promise.
        unsafe { bad.write(wr) };
    }
}

/// `post_send` of a context.
///
/// # Safety
/// The pointers are null, or a queue pair of ours and a list of requests.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut at = wr;
    let status = entry::status("ibv_post_send", || {
        // SAFETY: the caller's promise.
        let pair = unsafe { pair_of(qp) }?;
        let mut scratch = [Sge::default(); MAX_SGE as usize];
        let mut posting = pair.driver.start_posting();
        while !at.is_null() {
            // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
        unsafe { blame(bad_wr, at) };
    }
    status
}

/// Posts a list of receives, one by one. Returns what `name` does, and notes in `bad_wr` which
/// could not be posted.
///
/// # Safety
/// The pointers are null, or a list of requests and room for a pointer.
pub(super) unsafe fn post_receives(
    name: &'static str,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    post: impl Fn(u64, &[Sge]) -> Result<(), Errno>,
) -> c_int {
    let mut at = wr;
    let status = entry::status(name, || {
        let mut scratch = [Sge::default(); MAX_SGE as usize];
        while !at.is_null() {
            // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
        unsafe { blame(bad_wr, at) };
    }
    status
}

/// `post_recv` of a context.
///
/// # Safety
/// The pointers are null, or a queue pair of ours and a list of requests.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        post_receives("ibv_post_recv", wr, bad_wr, |wr_id, sges| {
            Ok(pair_of(qp)?.driver.post_receive(wr_id, sges)?)
        })
    }
}

/// `post_srq_recv` of a context.
///
/// # Safety
/// The pointers are null, or a shared receive queue of ours and a list of requests.
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        post_receives("ibv_post_srq_recv", wr, bad_wr, |wr_id, sges| {
            Ok(shared_of(srq)?.driver.post_receive(wr_id, sges)?)
        })
    }
}
