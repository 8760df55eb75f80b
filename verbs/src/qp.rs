//! Queue pairs: their making, attributes and end.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use urxe_driver::event_queue::AckCount;
use urxe_driver::qp::{QpInit, ReceivesFrom, Share};
use urxe_driver::raw::Spread;
use urxe_driver::{Pd, Qp};
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
    /// How the program came by it.
    pub has: Has,
    /// What it is made of.
    pub _uses: Vec<Use>,
}

/// How a program came by a queue pair.
#[derive(Debug)]
pub(super) enum Has {
    /// It made it.
    Made,
    /// It opened one that was there.
    Share(Arc<Share>),
}

impl QueuePair {
    /// The events that the program has of it.
    pub fn async_acks(&self) -> &AckCount {
        match &self.has {
            Has::Made => &self.driver.async_acks,
            Has::Share(share) => &share.async_acks,
        }
    }

    /// No event points at the `ibv_qp` any more; waits until the program is done with those that it
    /// has.
    fn destroy(&self) {
        match &self.has {
            Has::Made => {
                self.driver.tag.store(0, Ordering::Release);
                self.driver.destroy();
            }
            Has::Share(share) => {
                share.tag.store(0, Ordering::Release);
                share.close();
            }
        }
    }
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

/// The `ibv_qp` of the queue pair with this tag, unless it is being destroyed.
pub(super) fn shown_pair(tag: usize) -> Option<*mut ibv_qp> {
    let shown = ptr::with_exposed_provenance_mut::<ibv_qp>(tag);
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
    /// Its own datagrams to groups that it is attached to shall not come back to it.
    block_own_multicast: bool,
    xrcd: *mut ibv_xrcd,
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
            block_own_multicast: false,
            xrcd: ptr::null_mut(),
        };
        // SAFETY: as above.
        let (qp, cap) = unsafe { create(pd, wanted) }?;
        // SAFETY: as above; this makes no reference.
        unsafe { (&raw mut (*qp_init_attr).cap).write(cap) };
        Ok(qp)
    })
}

/// Members of the extended attributes that mean something here.
const TAKEN: ibv_qp_init_attr_mask = IBV_QP_INIT_ATTR_PD
    | IBV_QP_INIT_ATTR_XRCD
    | IBV_QP_INIT_ATTR_CREATE_FLAGS
    | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    | SPREAD;

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
        let flags = match given(IBV_QP_INIT_ATTR_CREATE_FLAGS) {
            true => attr.create_flags,
            false => 0,
        };
        if attr.comp_mask & !TAKEN != 0 || flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        // The target of an extended reliable connection has no protection domain of its own.
        if attr.qp_type != IBV_QPT_XRC_RECV && !given(IBV_QP_INIT_ATTR_PD) {
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
            block_own_multicast: flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
            xrcd: match given(IBV_QP_INIT_ATTR_XRCD) {
                true => attr.xrcd,
                false => ptr::null_mut(),
            },
        };
        let (qp, cap) = match attr.qp_type {
            // SAFETY: as above.
            IBV_QPT_XRC_RECV => unsafe { create_target(context, wanted) },
            // SAFETY: as above.
            _ => unsafe { create(attr.pd, wanted) },
        }?;
        // SAFETY: as above; this makes no reference.
        unsafe { (&raw mut (*qp_init_attr_ex).cap).write(cap) };
        Ok(qp)
    })
}

/// Makes a queue pair, and says which capacities it has.
///
/// # Safety
/// The pointers are null or objects of ours.
unsafe fn create(pd: *mut ibv_pd, mut wanted: Wanted) -> Result<(*mut ibv_qp, ibv_qp_cap), Errno> {
    let service = service_of(&wanted)?;
    // SAFETY: the caller's promise; the last makes no reference.
    let (domain, context) = unsafe { (object::ours(pd)?, (&raw const (*pd).context).read()) };
    let mut uses = vec![domain.users.add()];
    let mut made_of = MadeOf {
        pd,
        ..MadeOf::nothing()
    };
    let queue = |queue: *mut ibv_cq, uses: &mut Vec<Use>| {
        // SAFETY: the caller's promise.
        let queue = unsafe { queue_in(queue, context) }?;
        uses.push(queue.users.add());
        Ok::<_, Errno>(Arc::clone(&queue.driver))
    };
    let send_cq = match wanted.spread {
        // It only receives.
        Some(_) => None,
        None => {
            made_of.send_cq = wanted.send_cq;
            Some(queue(wanted.send_cq, &mut uses)?)
        }
    };
    let receives = match (service, wanted.spread.take()) {
        (QpType::XrcIni, _) => ReceivesFrom::Nowhere,
        (_, Some((spread, table))) => {
            uses.push(table);
            ReceivesFrom::Spread(spread)
        }
        (_, None) => {
            (made_of.recv_cq, made_of.srq) = (wanted.recv_cq, wanted.srq);
            let cq = queue(wanted.recv_cq, &mut uses)?;
            // SAFETY: the caller's promise.
            match unsafe { shared_in(wanted.srq, context) }? {
                None => ReceivesFrom::Own(cq),
                Some(srq) => {
                    uses.push(srq.users.add());
                    ReceivesFrom::Shared(Arc::clone(&srq.driver), cq)
                }
            }
        }
    };
    // SAFETY: the domain's own context, which outlives it.
    let device = &unsafe { context_of(context) }?.driver;
    let place = Place::from(domain.allocators.as_ref(), Kind::QueuePair)?;
    let init = QpInit {
        service,
        send_cq,
        receives,
        cap: cap_from(&wanted.cap),
        signal_all: wanted.signal_all,
        block_own_multicast: wanted.block_own_multicast,
    };
    let staging = wanted.send_ops.map(Staging::new).transpose()?;
    let driver = device.create_qp(&domain.driver, init)?;
    Ok(show(
        place, context, &wanted, &made_of, driver, staging, uses,
    ))
}

/// Makes the target of an extended reliable connection, which sends nothing, and receives into the
/// shared queues of its domain.
///
/// # Safety
/// The pointers are null or objects of ours.
unsafe fn create_target(
    context: *mut ibv_context,
    wanted: Wanted,
) -> Result<(*mut ibv_qp, ibv_qp_cap), Errno> {
    // SAFETY: the caller's promise.
    let (device, domain) = unsafe { (context_of(context)?, object::ours(wanted.xrcd)?) };
    let init = QpInit {
        service: QpType::XrcTgt,
        send_cq: None,
        receives: ReceivesFrom::Domain(Arc::clone(&domain.driver)),
        cap: cap_from(&wanted.cap),
        signal_all: false,
        block_own_multicast: wanted.block_own_multicast,
    };
    // What it reaches is for the shared queues' protection domains to say, so its own is empty.
    let driver = device.driver.create_qp(&Pd::new(), init)?;
    let uses = vec![domain.users.add()];
    let made_of = MadeOf::nothing();
    Ok(show(
        Place::on_heap(),
        context,
        &wanted,
        &made_of,
        driver,
        None,
        uses,
    ))
}

/// The objects that an `ibv_qp` shows.
struct MadeOf {
    pd: *mut ibv_pd,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
}

impl MadeOf {
    fn nothing() -> Self {
        Self {
            pd: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
        }
    }
}

/// The `ibv_qp` of a queue pair that was made, and its capacities.
fn show(
    place: Place<ibv_qp_ex>,
    context: *mut ibv_context,
    wanted: &Wanted,
    made_of: &MadeOf,
    driver: Arc<Qp>,
    staging: Option<Staging>,
    uses: Vec<Use>,
) -> (*mut ibv_qp, ibv_qp_cap) {
    let mut shown = ibv_qp_ex::zeroed();
    shown.qp_base.context = context;
    shown.qp_base.qp_context = wanted.qp_context;
    shown.qp_base.pd = made_of.pd;
    shown.qp_base.send_cq = made_of.send_cq;
    shown.qp_base.recv_cq = made_of.recv_cq;
    shown.qp_base.srq = made_of.srq;
    shown.qp_base.handle = object::number();
    shown.qp_base.qp_num = driver.qpn().get();
    shown.qp_base.state = driver.state() as ibv_qp_state;
    shown.qp_base.qp_type = wanted.qp_type;
    qp_ex::fill(&mut shown);
    let ours = QueuePair {
        driver: Arc::clone(&driver),
        staging,
        flows: Users::default(),
        has: Has::Made,
        _uses: uses,
    };
    let qp = place.make(shown, ours);
    driver.tag.store(qp.expose_provenance(), Ordering::Release);
    (qp.cast(), shown_cap(&driver.cap()))
}

fn service_of(wanted: &Wanted) -> Result<QpType, Errno> {
    let name = match wanted.qp_type {
        IBV_QPT_RC => return Ok(QpType::Rc),
        IBV_QPT_UC => return Ok(QpType::Uc),
        IBV_QPT_UD => return Ok(QpType::Ud),
        IBV_QPT_RAW_PACKET => return Ok(QpType::RawPacket),
        IBV_QPT_XRC_SEND => return Ok(QpType::XrcIni),
        IBV_QPT_DRIVER => "vendor-specific",
        _ => return Err(Errno(libc::EINVAL)),
    };
    tracing::warn!("queue pair: {name} queue pairs are not supported, see docs/SUPPORT.md");
    Err(Errno(libc::EOPNOTSUPP))
}

/// # Safety
/// `cq` is null or a completion queue of ours.
pub(super) unsafe fn queue_in<'a>(
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

/// Programs give each half of an extended reliable connection the attributes of both; as in the
/// kernel, it takes its own.
fn meaningful(service: QpType, mask: AttrMask) -> AttrMask {
    match service {
        QpType::XrcIni => mask - (AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER),
        QpType::XrcTgt => {
            mask - (AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY)
        }
        _ => mask,
    }
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
        let mask = meaningful(pair.driver.service(), mask_from(attr_mask)?);
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

/// `modify_qp_rate_limit` of a context.
///
/// # Safety
/// The pointers are null, or a queue pair of ours and attributes.
pub(super) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    entry::status("ibv_modify_qp_rate_limit", || {
        // SAFETY: the caller's promise.
        let (pair, attr) = unsafe { (pair_of(qp)?, entry::read(attr)?) };
        if attr.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // Packets are counted as they are, whatever size is typical.
        Ok(pair.driver.limit_rate(attr.rate_limit, attr.max_burst_sz)?)
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
        pair.destroy();
        // SAFETY: as above; no event points at it.
        drop(unsafe { object::free(qp.cast::<ibv_qp_ex>()) });
        Ok(())
    })
}
