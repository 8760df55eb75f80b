//! Queue pairs: creation, attributes and destruction.

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

use super::attributes::{attributes_from, cap_from, mask_from, to_ibv_qp_attr, to_ibv_qp_cap};
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
    type State = QueuePair;
}

/// The library's state behind an `ibv_qp`. Every `ibv_qp` is the start of an `ibv_qp_ex`.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub driver: Arc<Qp>,
    /// Requests that the `ibv_wr_*` functions have prepared. `None` unless the queue pair was
    /// created for these functions.
    pub staging: Option<Staging>,
    /// The flows that steer frames to this queue pair.
    pub flows: Users,
    /// How the program obtained it.
    pub ownership: Ownership,
    /// The objects that it uses.
    pub _uses: Vec<Use>,
}

/// How a program obtained a queue pair.
#[derive(Debug)]
pub(super) enum Ownership {
    /// The program created it.
    Created,
    /// The program opened an existing one.
    Opened(Arc<Share>),
}

impl QueuePair {
    /// Returns the count of asynchronous events of this queue pair that the program has
    /// acknowledged.
    pub fn async_acks(&self) -> &AckCount {
        match &self.ownership {
            Ownership::Created => &self.driver.origin().acks,
            Ownership::Opened(share) => &share.origin().acks,
        }
    }

    /// Ends the queue pair in the driver.
    ///
    /// Afterwards no event refers to the `ibv_qp`. Waits until the program has acknowledged all
    /// events of it that it has received.
    fn destroy(&self) {
        match &self.ownership {
            Ownership::Created => {
                self.driver.origin().set_tag(0);
                self.driver.destroy();
            }
            Ownership::Opened(share) => {
                share.origin().set_tag(0);
                share.close();
            }
        }
    }
}

/// Returns the library's state behind an `ibv_qp`.
///
/// # Errors
/// `EINVAL` if `qp` is null.
///
/// # Safety
/// If `qp` is not null, it must be a queue pair created by this library that stays live for `'a`.
pub(super) unsafe fn pair_of<'a>(qp: *mut ibv_qp) -> Result<&'a QueuePair, Errno> {
    const { assert!(offset_of!(ibv_qp_ex, qp_base) == 0) };
    // SAFETY: each `ibv_qp` of this library is the start of an `ibv_qp_ex`. It is null or live for
    // `'a`: the caller's contract, section Safety.
    unsafe { object::state_of(qp.cast::<ibv_qp_ex>()) }
}

/// Returns the `ibv_qp` of the queue pair with this tag, or `None` if it is being destroyed.
pub(super) fn qp_handle(tag: usize) -> Option<*mut ibv_qp> {
    let handle = ptr::with_exposed_provenance_mut::<ibv_qp>(tag);
    (!handle.is_null()).then_some(handle)
}

/// The attributes that both functions for creating a queue pair take.
struct QpInitAttr {
    qp_context: *mut c_void,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    /// The work queues that receive in its place, and its use of their indirection table.
    spread: Option<(Spread, Use)>,
    cap: ibv_qp_cap,
    qp_type: ibv_qp_type,
    signal_all: bool,
    send_ops: Option<u64>,
    /// Datagrams of this queue pair to multicast groups that it is attached to are not looped back
    /// to it.
    block_own_multicast: bool,
    xrcd: *mut ibv_xrcd,
}

/// Creates a queue pair.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library. `qp_init_attr` must be
/// null or point to readable and writable attributes, whose queues are null or live objects created
/// by this library.
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    entry::pointer("ibv_create_qp", || {
        // SAFETY: `qp_init_attr` is null or points to readable attributes: the caller's contract,
        // section Safety.
        let attr = unsafe { entry::read(qp_init_attr) }?;
        let init_attr = QpInitAttr {
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
        // SAFETY: `pd` and the queues in `init_attr` are null or live: the caller's contract,
        // section Safety.
        let (qp, cap) = unsafe { create(pd, init_attr) }?;
        // SAFETY: `qp_init_attr` is non-null, since `entry::read` accepted it, and writable: the
        // caller's contract, section Safety. The write makes no reference and needs no alignment.
        unsafe { (&raw mut (*qp_init_attr).cap).write_unaligned(cap) };
        Ok(qp)
    })
}

/// The supported members of the extended attributes.
const SUPPORTED: ibv_qp_init_attr_mask = IBV_QP_INIT_ATTR_PD
    | IBV_QP_INIT_ATTR_XRCD
    | IBV_QP_INIT_ATTR_CREATE_FLAGS
    | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    | SPREAD;

/// The members that spread the frames of a raw packet queue pair. They must be given together.
const SPREAD: ibv_qp_init_attr_mask = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;

/// Implements `create_qp_ex` of a context.
///
/// # Safety
/// `context` must be null or an opened device. `qp_init_attr_ex` must be null or point to readable
/// and writable attributes. The objects that its mask selects must be null or live objects created
/// by this library.
pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    entry::pointer("ibv_create_qp_ex", || {
        // SAFETY: `context` is null or an opened device, and the attributes null or readable: the
        // caller's contract, section Safety.
        let attr = unsafe {
            context_of(context)?;
            entry::read(qp_init_attr_ex)?
        };
        let given = |bit| attr.comp_mask & bit != 0;
        let flags = match given(IBV_QP_INIT_ATTR_CREATE_FLAGS) {
            true => attr.create_flags,
            false => 0,
        };
        if attr.comp_mask & !SUPPORTED != 0 || flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        // The target of an XRC connection has no protection domain of its own.
        if attr.qp_type != IBV_QPT_XRC_RECV && !given(IBV_QP_INIT_ATTR_PD) {
            return Err(Errno(libc::EINVAL));
        }
        let spread = match attr.comp_mask & SPREAD {
            0 => None,
            SPREAD if attr.qp_type == IBV_QPT_RAW_PACKET => {
                // SAFETY: `rwq_ind_tbl` is null or a live indirection table, since its mask bit is
                // set: the caller's contract, section Safety.
                Some(unsafe { wq::spread(attr.rwq_ind_tbl, &attr.rx_hash_conf) }?)
            }
            _ => return Err(Errno(libc::EINVAL)),
        };
        let init_attr = QpInitAttr {
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
            // SAFETY: `context` and the objects in `init_attr` are null or live: the caller's
            // contract, section Safety.
            IBV_QPT_XRC_RECV => unsafe { create_target(context, init_attr) },
            // SAFETY: `attr.pd` and the objects in `init_attr` are null or live: the caller's
            // contract, section Safety.
            _ => unsafe { create(attr.pd, init_attr) },
        }?;
        // SAFETY: `qp_init_attr_ex` is non-null, since `entry::read` accepted it, and writable: the
        // caller's contract, section Safety. The write makes no reference and needs no alignment.
        unsafe { (&raw mut (*qp_init_attr_ex).cap).write_unaligned(cap) };
        Ok(qp)
    })
}

/// Creates a queue pair, and returns it with its capacities.
///
/// # Safety
/// `pd` and the queues in `init_attr` must be null or live objects created by this library.
unsafe fn create(
    pd: *mut ibv_pd,
    mut init_attr: QpInitAttr,
) -> Result<(*mut ibv_qp, ibv_qp_cap), Errno> {
    let service = service_of(&init_attr)?;
    // SAFETY: `pd` is null or live: the caller's contract, section Safety. `context` is read only
    // after `object::state_of` has rejected a null `pd`, and without a reference.
    let (domain, context) = unsafe { (object::state_of(pd)?, (&raw const (*pd).context).read()) };
    let mut uses = vec![domain.users.add()];
    let mut objects = QpObjects {
        pd,
        ..QpObjects::none()
    };
    let queue = |queue: *mut ibv_cq, uses: &mut Vec<Use>| {
        // SAFETY: `queue` is one of the queues in `init_attr`, so null or live: the caller's
        // contract, section Safety.
        let queue = unsafe { queue_in(queue, context) }?;
        uses.push(queue.users.add());
        Ok::<_, Errno>(Arc::clone(&queue.driver))
    };
    let send_cq = match init_attr.spread {
        // A queue pair that spreads frames to work queues only receives.
        Some(_) => None,
        None => {
            objects.send_cq = init_attr.send_cq;
            Some(queue(init_attr.send_cq, &mut uses)?)
        }
    };
    let receives = match (service, init_attr.spread.take()) {
        (QpType::XrcIni, _) => ReceivesFrom::Nowhere,
        (_, Some((spread, table))) => {
            uses.push(table);
            ReceivesFrom::Spread(spread)
        }
        (_, None) => {
            (objects.recv_cq, objects.srq) = (init_attr.recv_cq, init_attr.srq);
            let cq = queue(init_attr.recv_cq, &mut uses)?;
            // SAFETY: `init_attr.srq` is null or live: the caller's contract, section Safety.
            match unsafe { shared_in(init_attr.srq, context) }? {
                None => ReceivesFrom::Own(cq),
                Some(srq) => {
                    uses.push(srq.users.add());
                    ReceivesFrom::Shared(Arc::clone(&srq.driver), cq)
                }
            }
        }
    };
    // SAFETY: `context` is the domain's own context, which outlives the domain.
    let device = &unsafe { context_of(context) }?.driver;
    let place = Place::from(domain.allocators.as_ref(), Kind::QueuePair)?;
    let init = QpInit {
        service,
        send_cq,
        receives,
        cap: cap_from(&init_attr.cap),
        signal_all: init_attr.signal_all,
        block_own_multicast: init_attr.block_own_multicast,
    };
    let staging = init_attr.send_ops.map(Staging::new).transpose()?;
    let driver = device.create_qp(&domain.driver, init)?;
    Ok(create_handle(
        place, context, &init_attr, &objects, driver, staging, uses,
    ))
}

/// Creates the target of an XRC connection.
///
/// A target sends nothing, and receives into the shared receive queues of its XRC domain.
///
/// # Safety
/// `context` must be null or an opened device. `init_attr.xrcd` must be null or a live XRC domain
/// created by this library.
unsafe fn create_target(
    context: *mut ibv_context,
    init_attr: QpInitAttr,
) -> Result<(*mut ibv_qp, ibv_qp_cap), Errno> {
    // SAFETY: `context` and `init_attr.xrcd` are null or live: the caller's contract, section
    // Safety.
    let (device, domain) = unsafe { (context_of(context)?, object::state_of(init_attr.xrcd)?) };
    let init = QpInit {
        service: QpType::XrcTgt,
        send_cq: None,
        receives: ReceivesFrom::Domain(Arc::clone(&domain.driver)),
        cap: cap_from(&init_attr.cap),
        signal_all: false,
        block_own_multicast: init_attr.block_own_multicast,
    };
    // The protection domains of the shared receive queues decide what memory a target reaches, so
    // its own is empty.
    let driver = device.driver.create_qp(&Pd::new(), init)?;
    let uses = vec![domain.users.add()];
    let objects = QpObjects::none();
    Ok(create_handle(
        Place::on_heap(),
        context,
        &init_attr,
        &objects,
        driver,
        None,
        uses,
    ))
}

/// The objects whose pointers an `ibv_qp` has as members.
struct QpObjects {
    pd: *mut ibv_pd,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
}

impl QpObjects {
    fn none() -> Self {
        Self {
            pd: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
        }
    }
}

/// Creates the `ibv_qp` of a queue pair of the driver, and returns it with its capacities.
fn create_handle(
    place: Place<ibv_qp_ex>,
    context: *mut ibv_context,
    init_attr: &QpInitAttr,
    objects: &QpObjects,
    driver: Arc<Qp>,
    staging: Option<Staging>,
    uses: Vec<Use>,
) -> (*mut ibv_qp, ibv_qp_cap) {
    let mut handle = ibv_qp_ex::zeroed();
    handle.qp_base.context = context;
    handle.qp_base.qp_context = init_attr.qp_context;
    handle.qp_base.pd = objects.pd;
    handle.qp_base.send_cq = objects.send_cq;
    handle.qp_base.recv_cq = objects.recv_cq;
    handle.qp_base.srq = objects.srq;
    handle.qp_base.handle = object::number();
    handle.qp_base.qp_num = driver.qpn().get();
    handle.qp_base.state = driver.state() as ibv_qp_state;
    handle.qp_base.qp_type = init_attr.qp_type;
    qp_ex::fill(&mut handle);
    let state = QueuePair {
        driver: Arc::clone(&driver),
        staging,
        flows: Users::default(),
        ownership: Ownership::Created,
        _uses: uses,
    };
    let qp = place.make(handle, state);
    driver.origin().set_tag(qp.expose_provenance());
    (qp.cast(), to_ibv_qp_cap(&driver.cap()))
}

fn service_of(init_attr: &QpInitAttr) -> Result<QpType, Errno> {
    let name = match init_attr.qp_type {
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

/// Returns the completion queue, if it belongs to `context`.
///
/// # Errors
/// `EINVAL` if `cq` is null or belongs to another context.
///
/// # Safety
/// `cq` must be null or a completion queue created by this library that stays live for `'a`.
pub(super) unsafe fn queue_in<'a>(
    cq: *mut ibv_cq,
    context: *mut ibv_context,
) -> Result<&'a CompletionQueue, Errno> {
    // SAFETY: `cq` is null or live: the caller's contract, section Safety. `context` is read only
    // after `queue_of` has rejected a null `cq`, and without a reference.
    let (queue, its) = unsafe { (queue_of(cq)?, (&raw const (*cq).context).read()) };
    if ptr::eq(its, context) {
        Ok(queue)
    } else {
        Err(Errno(libc::EINVAL))
    }
}

/// Returns the shared receive queue, if it belongs to `context`; `None` if `srq` is null.
///
/// # Errors
/// `EINVAL` if it belongs to another context.
///
/// # Safety
/// `srq` must be null or a shared receive queue created by this library that stays live for `'a`.
unsafe fn shared_in<'a>(
    srq: *mut ibv_srq,
    context: *mut ibv_context,
) -> Result<Option<&'a SharedQueue>, Errno> {
    if srq.is_null() {
        return Ok(None);
    }
    // SAFETY: `srq` is non-null (checked above) and live: the caller's contract, section Safety.
    // `context` is read without a reference.
    let (queue, its) = unsafe { (shared_of(srq)?, (&raw const (*srq).context).read()) };
    if ptr::eq(its, context) {
        Ok(Some(queue))
    } else {
        Err(Errno(libc::EINVAL))
    }
}

/// Sets the state that the program reads in its `ibv_qp`.
///
/// # Safety
/// `qp` must be a live queue pair created by this library.
unsafe fn update_state(qp: *mut ibv_qp, state: ibv_qp_state) {
    // SAFETY: `qp` is live: the caller's contract, section Safety. `state` is a `u32` that is
    // aligned for an atomic, and this library accesses it only atomically; how the program reads it
    // is the program's responsibility.
    unsafe { AtomicU32::from_ptr(&raw mut (*qp).state) }.store(state, Ordering::Relaxed);
}

/// Removes the attributes that do not apply to a service. Programs give each half of an XRC
/// connection the attributes of both; as in the kernel, each half takes its own.
fn meaningful(service: QpType, mask: AttrMask) -> AttrMask {
    match service {
        QpType::XrcIni => mask - (AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER),
        QpType::XrcTgt => {
            mask - (AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY)
        }
        _ => mask,
    }
}

/// Changes attributes of a queue pair.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. `attr` must be null or point to
/// readable attributes.
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    entry::status("ibv_modify_qp", || {
        // SAFETY: `qp` is null or live, and `attr` null or readable: the caller's contract, section
        // Safety.
        let (pair, attr) = unsafe { (pair_of(qp)?, entry::read(attr)?) };
        let mask = meaningful(pair.driver.service(), mask_from(attr_mask)?);
        let driver_attr = attributes_from(&attr, mask)?;
        pair.driver.modify(&driver_attr, mask)?;
        if mask.contains(AttrMask::STATE) {
            // SAFETY: `qp` is non-null, since `pair_of` accepted it, and live: the caller's
            // contract, section Safety.
            unsafe { update_state(qp, attr.qp_state) };
        }
        Ok(())
    })
}

/// Reads all attributes of a queue pair, whatever the mask asks for.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. `attr` and `init_attr` must be
/// null or point to writable attributes.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    entry::status("ibv_query_qp", || {
        // SAFETY: `qp` is null or a live queue pair: the caller's contract, section Safety.
        let pair = unsafe { pair_of(qp) }?;
        let cap = pair.driver.cap();
        let ibv_attr = to_ibv_qp_attr(&pair.driver.attributes(), &cap);
        // SAFETY: `qp` is non-null, since `pair_of` accepted it, and live: the caller's contract,
        // section Safety. These members do not change after creation, and are read without a
        // reference.
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
            cap: to_ibv_qp_cap(&cap),
            qp_type,
            sq_sig_all: c_int::from(pair.driver.signals_all()),
        };
        // SAFETY: `qp` is non-null and live, and `attr` and `init_attr` are null or writable: the
        // caller's contract, section Safety.
        unsafe {
            update_state(qp, ibv_attr.qp_state);
            entry::write(attr, ibv_attr)?;
            entry::write(init_attr, init)
        }
    })
}

/// Implements `modify_qp_rate_limit` of a context.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. `attr` must be null or point to
/// readable attributes.
pub(super) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    entry::status("ibv_modify_qp_rate_limit", || {
        // SAFETY: `qp` is null or live, and `attr` null or readable: the caller's contract, section
        // Safety.
        let (pair, attr) = unsafe { (pair_of(qp)?, entry::read(attr)?) };
        if attr.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // `typical_pkt_sz` is ignored: the limit applies to actual packet sizes.
        Ok(pair.driver.limit_rate(attr.rate_limit, attr.max_burst_sz)?)
    })
}

/// Returns whether data is written in order, so that a program may poll memory instead of waiting
/// for the completion.
///
/// Always 0: within a packet the processor may copy bytes in any order.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library.
pub unsafe extern "C" fn ibv_query_qp_data_in_order(
    qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    entry::value("ibv_query_qp_data_in_order", 0, || {
        // SAFETY: `qp` is null or a live queue pair: the caller's contract, section Safety.
        if let Err(error) = unsafe { pair_of(qp) } {
            errno::set(error);
        }
        0
    })
}

/// Destroys a queue pair.
///
/// Returns `EBUSY` while it is attached to a multicast group, or a flow steers frames to it. Waits
/// until the program has acknowledged all events of it that it has received.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. No other call may use it now or
/// later.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    entry::status("ibv_destroy_qp", || {
        // SAFETY: `qp` is null or a live queue pair: the caller's contract, section Safety.
        let pair = unsafe { pair_of(qp) }?;
        if !pair.driver.groups().is_empty() {
            return Err(Errno(libc::EBUSY));
        }
        pair.flows.check_none()?;
        pair.destroy();
        // SAFETY: `qp` is live, and no other call uses it: the caller's contract, section Safety.
        // After `destroy` no event refers to it.
        drop(unsafe { object::free(qp.cast::<ibv_qp_ex>()) });
        Ok(())
    })
}
