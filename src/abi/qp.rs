//! Queue pairs: their making, attributes and end.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use urxe_driver::Qp;
use urxe_driver::qp::QpInit;
use urxe_driver::raw::Spread;
use urxe_proto::qp::{AttrMask, QpType};

use super::attributes::{attributes_from, cap_from, mask_from, shown_attributes, shown_cap};
use super::context::context_of;
use super::cq::{CompletionQueue, queue_of};
use super::entry;
use super::errno::{self, Errno};
use super::ffi::*;
use super::object::{self, Handle, Place, Use, Users};
use super::parent_domain::Kind;
use super::qp_ex::{self, Staging};
use super::srq::{SharedQueue, shared_of};
use super::wq;

impl Handle for ibv_qp_ex {
    type Ours = QueuePair;
}

/// What stands behind an `ibv_qp`; every one is an `ibv_qp_ex`.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub driver: Arc<Qp>,
    /// What the `ibv_wr_*` functions have prepared, if it was made for them.
    pub staging: Option<Staging>,
    /// The flows that it receives.
    pub flows: Users,
    _pd: Use,
    _send_cq: Option<Use>,
    _recv_cq: Option<Use>,
    _table: Option<Use>,
    _srq: Option<Use>,
}

/// What stands behind an `ibv_qp`.
///
/// # Errors
/// `EINVAL` if it is null.
///
/// # Safety
/// A pointer that is not null is a queue pair of ours, in use while the result is.
pub(super) unsafe fn pair_of<'a>(qp: *mut ibv_qp) -> Result<&'a QueuePair, Errno> {
    const { assert!(offset_of!(ibv_qp_ex, qp_base) == 0) };
    // SAFETY: each ibv_qp of ours begins an ibv_qp_ex; the rest is the caller's promise.
    unsafe { object::ours(qp.cast::<ibv_qp_ex>()) }
}

/// The `ibv_qp` of a queue pair, unless it is being destroyed.
pub(super) fn shown_pair(pair: &Qp) -> Option<*mut ibv_qp> {
    let shown = ptr::with_exposed_provenance_mut::<ibv_qp>(pair.tag());
    (!shown.is_null()).then_some(shown)
}

/// What both ways of making a queue pair ask for.
struct Wanted {
    qp_context: *mut c_void,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    /// The work queues that receive in its place, and that it uses their table.
    spread: Option<(Spread, Use)>,
    cap: ibv_qp_cap,
    qp_type: ibv_qp_type,
    signal_all: bool,
    send_ops: Option<u64>,
}

/// # Safety
/// The pointers are null, or a protection domain of ours and attributes with objects of ours.
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    entry::pointer("ibv_create_qp", || {
        // SAFETY: the caller's promise.
        let attr = unsafe { entry::read(qp_init_attr) }?;
        let wanted = Wanted {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            spread: None,
            cap: attr.cap,
            qp_type: attr.qp_type,
            signal_all: attr.sq_sig_all != 0,
            send_ops: None,
        };
        // SAFETY: as above.
        let (qp, cap) = unsafe { create(pd, wanted) }?;
        // SAFETY: as above; this makes no reference.
        unsafe { (&raw mut (*qp_init_attr).cap).write(cap) };
        Ok(qp)
    })
}

/// Members of the extended attributes that mean something here. Flags may be given, but all are for
/// other transports.
const TAKEN: ibv_qp_init_attr_mask =
    IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | SPREAD;

/// The members that spread the frames of a raw packet queue pair; both or none.
const SPREAD: ibv_qp_init_attr_mask = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;

/// `create_qp_ex` of a context.
///
/// # Safety
/// The pointers are null, or an opened device and attributes with objects of ours.
pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    entry::pointer("ibv_create_qp_ex", || {
        // SAFETY: the caller's promise.
        let attr = unsafe {
            context_of(context)?;
            entry::read(qp_init_attr_ex)?
        };
        let given = |bit| attr.comp_mask & bit != 0;
        if attr.comp_mask & !TAKEN != 0
            || given(IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0
        {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if !given(IBV_QP_INIT_ATTR_PD) {
            return Err(Errno(libc::EINVAL));
        }
        let spread = match attr.comp_mask & SPREAD {
            0 => None,
            SPREAD if attr.qp_type == IBV_QPT_RAW_PACKET => {
                // SAFETY: as above.
                Some(unsafe { wq::spread(attr.rwq_ind_tbl, &attr.rx_hash_conf) }?)
            }
            _ => return Err(Errno(libc::EINVAL)),
        };
        let wanted = Wanted {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            spread,
            cap: attr.cap,
            qp_type: attr.qp_type,
            signal_all: attr.sq_sig_all != 0,
            send_ops: given(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attr.send_ops_flags),
        };
        // SAFETY: as above.
        let (qp, cap) = unsafe { create(attr.pd, wanted) }?;
        // SAFETY: as above; this makes no reference.
        unsafe { (&raw mut (*qp_init_attr_ex).cap).write(cap) };
        Ok(qp)
    })
}

/// Makes a queue pair, and says which capacities it has.
///
/// # Safety
/// The pointers are null or objects of ours.
unsafe fn create(pd: *mut ibv_pd, wanted: Wanted) -> Result<(*mut ibv_qp, ibv_qp_cap), Errno> {
    let service = service_of(&wanted)?;
    // SAFETY: the caller's promise; the last makes no reference.
    let (domain, context) = unsafe { (object::ours(pd)?, (&raw const (*pd).context).read()) };
    let (spread, table_use) = wanted.spread.unzip();
    let (send_cq, recv_cq) = match &spread {
        // Nothing completes but what its work queues receive.
        Some(_) => (None, None),
        // SAFETY: the caller's promise.
        None => unsafe {
            (
                Some(queue_in(wanted.send_cq, context)?),
                Some(queue_in(wanted.recv_cq, context)?),
            )
        },
    };
    let completes_in = |queue: Option<&CompletionQueue>| {
        let its_own = queue.map(|queue| &queue.driver);
        let queue = its_own.or(spread.as_ref().map(Spread::cq));
        queue.cloned().ok_or(Errno(libc::EINVAL))
    };
    // SAFETY: the caller's promise.
    let srq = unsafe { shared_in(wanted.srq, context) }?;
    // SAFETY: the domain's own context, which outlives it.
    let device = &unsafe { context_of(context) }?.driver;
    let place = Place::from(domain.allocators.as_ref(), Kind::QueuePair)?;
    let staging = wanted.send_ops.map(Staging::new).transpose()?;
    let init = QpInit {
        service,
        send_cq: completes_in(send_cq)?,
        recv_cq: completes_in(recv_cq)?,
        srq: srq.map(|queue| Arc::clone(&queue.driver)),
        spread,
        cap: cap_from(&wanted.cap),
        signal_all: wanted.signal_all,
    };
    let driver = device.create_qp(&domain.driver, init)?;

    let mut shown = ibv_qp_ex::zeroed();
    shown.qp_base.context = context;
    shown.qp_base.qp_context = wanted.qp_context;
    shown.qp_base.pd = pd;
    shown.qp_base.send_cq = wanted.send_cq;
    shown.qp_base.recv_cq = wanted.recv_cq;
    shown.qp_base.srq = wanted.srq;
    shown.qp_base.handle = object::number();
    shown.qp_base.qp_num = driver.qpn().get();
    shown.qp_base.state = driver.state() as ibv_qp_state;
    shown.qp_base.qp_type = wanted.qp_type;
    qp_ex::fill(&mut shown);
    let ours = QueuePair {
        driver: Arc::clone(&driver),
        staging,
        flows: Users::default(),
        _pd: domain.users.add(),
        _send_cq: send_cq.map(|queue| queue.users.add()),
        _recv_cq: recv_cq.map(|queue| queue.users.add()),
        _table: table_use,
        _srq: srq.map(|queue| queue.users.add()),
    };
    let qp = place.make(shown, ours);
    driver.tag.store(qp.expose_provenance(), Ordering::Release);
    Ok((qp.cast(), shown_cap(&driver.cap())))
}

fn service_of(wanted: &Wanted) -> Result<QpType, Errno> {
    let name = match wanted.qp_type {
        IBV_QPT_RC => return Ok(QpType::Rc),
        IBV_QPT_UC => return Ok(QpType::Uc),
        IBV_QPT_UD => return Ok(QpType::Ud),
        IBV_QPT_RAW_PACKET => return Ok(QpType::RawPacket),
        IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => "XRC",
        IBV_QPT_DRIVER => "vendor-specific",
        _ => return Err(Errno(libc::EINVAL)),
    };
    tracing::warn!("queue pair: {name} queue pairs are not supported, see docs/SUPPORT.md");
    Err(Errno(libc::EOPNOTSUPP))
}

/// # Safety
/// `cq` is null or a completion queue of ours.
unsafe fn queue_in<'a>(
    cq: *mut ibv_cq,
    context: *mut ibv_context,
) -> Result<&'a CompletionQueue, Errno> {
    // SAFETY: the caller's promise; the second makes no reference.
    let (queue, its) = unsafe { (queue_of(cq)?, (&raw const (*cq).context).read()) };
    if ptr::eq(its, context) {
        Ok(queue)
    } else {
        Err(Errno(libc::EINVAL))
    }
}

/// # Safety
/// `srq` is null or a shared receive queue of ours.
unsafe fn shared_in<'a>(
    srq: *mut ibv_srq,
    context: *mut ibv_context,
) -> Result<Option<&'a SharedQueue>, Errno> {
    if srq.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise; the second makes no reference.
    let (queue, its) = unsafe { (shared_of(srq)?, (&raw const (*srq).context).read()) };
    if ptr::eq(its, context) {
        Ok(Some(queue))
    } else {
        Err(Errno(libc::EINVAL))
    }
}

/// The state that the program sees in its `ibv_qp`.
///
/// # Safety
/// `qp` is a queue pair of ours.
unsafe fn show_state(qp: *mut ibv_qp, state: ibv_qp_state) {
    // SAFETY: live, and aligned for it; the program's reads of it are its own affair.
    unsafe { AtomicU32::from_ptr(&raw mut (*qp).state) }.store(state, Ordering::Relaxed);
}

/// # Safety
/// The pointers are null, or a queue pair of ours and attributes.
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    entry::status("ibv_modify_qp", || {
        // SAFETY: the caller's promise.
        let (pair, attr) = unsafe { (pair_of(qp)?, entry::read(attr)?) };
        let mask = mask_from(attr_mask)?;
        let ours = attributes_from(&attr, mask)?;
        pair.driver.modify(&ours, mask)?;
        if mask.contains(AttrMask::STATE) {
            // SAFETY: as above.
            unsafe { show_state(qp, attr.qp_state) };
        }
        Ok(())
    })
}

/// All attributes, whatever the mask asks for.
///
/// # Safety
/// The pointers are null, or a queue pair of ours and room for the attributes.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    entry::status("ibv_query_qp", || {
        // SAFETY: the caller's promise.
        let pair = unsafe { pair_of(qp) }?;
        let cap = pair.driver.cap();
        let shown = shown_attributes(&pair.driver.attributes(), &cap);
        // SAFETY: as above; the pointers in it do not change.
        let (qp_context, send_cq, recv_cq, srq, qp_type) = unsafe {
            (
                (&raw const (*qp).qp_context).read(),
                (&raw const (*qp).send_cq).read(),
                (&raw const (*qp).recv_cq).read(),
                (&raw const (*qp).srq).read(),
                (&raw const (*qp).qp_type).read(),
            )
        };
        let init = ibv_qp_init_attr {
            qp_context,
            send_cq,
            recv_cq,
            srq,
            cap: shown_cap(&cap),
            qp_type,
            sq_sig_all: c_int::from(pair.driver.signals_all()),
        };
        // SAFETY: as above.
        unsafe {
            show_state(qp, shown.qp_state);
            entry::write(attr, shown)?;
            entry::write(init_attr, init)
        }
    })
}

/// Whether data is written in order, so that a program may look at it instead of waiting for the
/// completion: that is not promised, as processors copy as they like within a packet.
///
/// # Safety
/// `qp` is null or a queue pair of ours.
pub unsafe extern "C" fn ibv_query_qp_data_in_order(
    qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    entry::value("ibv_query_qp_data_in_order", 0, || {
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { pair_of(qp) } {
            errno::set(error);
        }
        0
    })
}

/// `EBUSY` while it is attached to a multicast group, or a flow steers frames to it. Waits until the
/// program has acknowledged the events that it has of it.
///
/// # Safety
/// `qp` is null or a queue pair of ours, and used for nothing else any more.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    entry::status("ibv_destroy_qp", || {
        // SAFETY: the caller's promise.
        let pair = unsafe { pair_of(qp) }?;
        if !pair.driver.groups().is_empty() {
            return Err(Errno(libc::EBUSY));
        }
        pair.flows.check_none()?;
        pair.driver.tag.store(0, Ordering::Release);
        pair.driver.destroy();
        // SAFETY: as above; no event points at it.
        drop(unsafe { object::free(qp.cast::<ibv_qp_ex>()) });
        Ok(())
    })
}
