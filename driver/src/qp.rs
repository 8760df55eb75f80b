//! Queue pairs: the protocol's state machine joined with memory, completion queues and the network.
//!
//! A queue pair has three locks, always taken in this order: the table of memory regions for reading,
//! `inner` with the state machine, then those of its receive queue and completion queues.

use crate::cq::Cq;
use crate::device::Device;
use crate::engine::{self, Local};
use crate::event_queue::{AckCount, lock};
use crate::events::{AsyncEvent, AsyncEvents, EventObject};
use crate::mr::{RegionTable, regions};
use crate::net::{NetCounters, OpenError, Path, PathOptions, SendBatch, now};
use crate::pd::Pd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use urxe_proto::host::{
    Access, AtomicOp, Completions, Memory, MemoryError, QpEvent, Receive, Receives,
};
use urxe_proto::ids::{Gid, Qpn, RKey};
use urxe_proto::qp::{AttrMask, QpAttr, QpState, TransitionError};
use urxe_proto::queue::{PostError, RecvQueue, SendQueueSize};
use urxe_proto::rc::{Counters, RcConfig, RcQp};
use urxe_proto::time::Time;
use urxe_proto::wire::Packet;
use urxe_proto::work::{Completion, Payload, SendFlags, SendOp, SendWr, Sge};

/// The most work requests a queue may have.
pub const MAX_QP_WR: u32 = 32_768;
/// The most scatter/gather elements a work request may have.
pub const MAX_SGE: u32 = 32;
/// The most inline data a work request may have, in bytes.
pub const MAX_INLINE: u32 = 1024;

/// How many bytes of a connection may be under way: what fits a receive buffer of the usual
/// `rmem_max`, 212,992 bytes, which the kernel doubles.
const WINDOW_BYTES: u32 = 256 * 1024;

/// How many batches a queue pair sends before others have their turn.
const TURN: usize = 4;

/// How often a batch that the socket has no room for is offered again, a millisecond each.
const PATIENCE: usize = 16;

/// What a queue pair is created with (11.2.4.1).
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Capacities of the queues.
    pub cap: QpCap,
    /// Whether every send makes a completion.
    pub signal_all: bool,
}

/// The capacities of a queue pair's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCap {
    /// Sends outstanding, at most [`MAX_QP_WR`].
    pub max_send_wr: u32,
    /// Receives outstanding, at most [`MAX_QP_WR`].
    pub max_recv_wr: u32,
    /// Elements of a send, at most [`MAX_SGE`].
    pub max_send_sge: u32,
    /// Elements of a receive, at most [`MAX_SGE`].
    pub max_recv_sge: u32,
    /// Inline data of a send in bytes, at most [`MAX_INLINE`].
    pub max_inline: u32,
}

impl QpCap {
    fn is_possible(&self) -> bool {
        self.max_send_wr <= MAX_QP_WR
            && self.max_recv_wr <= MAX_QP_WR
            && self.max_send_sge <= MAX_SGE
            && self.max_recv_sge <= MAX_SGE
            && self.max_inline <= MAX_INLINE
    }
}

/// Why a queue pair cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// Beyond the device's limits: EINVAL.
    #[error(
        "a queue has at most {MAX_QP_WR} work requests of {MAX_SGE} elements, and {MAX_INLINE} \
         bytes of inline data"
    )]
    Capacity,
    /// All numbers are taken: ENOMEM.
    #[error("all queue pair numbers of this process are taken")]
    NoNumber,
    /// The network part cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl CreateError {
    /// What verbs programs get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Capacity => libc::EINVAL,
            Self::NoNumber => libc::ENOMEM,
            Self::Open(error) => error.errno(),
        }
    }
}

/// Why a queue pair cannot be modified.
#[derive(Debug, thiserror::Error)]
pub enum ModifyError {
    /// Not this way, or not with these attributes: EINVAL.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// The address vector has no GID of the peer, which RoCE needs (A17.4): EINVAL.
    #[error(
        "the program gave no GID for the peer, and RoCE has no other address: tell both sides \
         which GID index to use (ibv_rc_pingpong and its like: `-g 0`)"
    )]
    NoPeerGid,
    /// The port has no such GID: EINVAL.
    #[error("{device} has no GID with index {index}: `urxe devices` lists them")]
    NoSuchGid {
        /// The device.
        device: String,
        /// The index asked for.
        index: u8,
    },
    /// The interface is too small for the packets: EINVAL.
    #[error("{device} carries packets of at most {active} bytes, not {asked}: lower the path MTU")]
    PathMtu {
        /// The device.
        device: String,
        /// What it carries.
        active: usize,
        /// What was asked for.
        asked: usize,
    },
    /// The network part cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl ModifyError {
    /// What verbs programs get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Transition(_)
            | Self::NoPeerGid
            | Self::NoSuchGid { .. }
            | Self::PathMtu { .. } => libc::EINVAL,
            Self::Open(error) => error.errno(),
        }
    }
}

/// A reliable connected queue pair.
#[derive(Debug)]
pub struct Qp {
    me: Weak<Qp>,
    qpn: Qpn,
    cap: QpCap,
    pd: Arc<Pd>,
    device: Arc<Device>,
    events: Arc<AsyncEvents>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    signal_all: bool,
    receives: Mutex<RecvQueue>,
    inner: Mutex<Inner>,
    /// The state, to be read without a lock.
    state: AtomicU32,
    /// Asynchronous events that the program has not acknowledged.
    pub async_acks: AckCount,
    /// A number for whoever made this queue pair, to find its own object by.
    pub tag: AtomicUsize,
}

struct Inner {
    rc: RcQp,
    /// The way to the peer, from RTR on, and the sockets that it needs.
    route: Option<(Arc<Local>, Path)>,
    /// The deadline that the engine's timers know of.
    armed: Time,
    /// Packets came, and it has not sent since.
    touched: bool,
    /// It waits for its next turn to send: the engine has it on its list.
    queued: bool,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("rc", &self.rc)
            .field("armed", &self.armed)
            .finish()
    }
}

impl Qp {
    /// Creates one in RESET (11.2.4.1).
    ///
    /// # Errors
    /// See [`CreateError`].
    pub fn create(
        device: &Arc<Device>,
        events: &Arc<AsyncEvents>,
        pd: &Arc<Pd>,
        init: QpInit,
    ) -> Result<Arc<Qp>, CreateError> {
        if !init.cap.is_possible() {
            return Err(CreateError::Capacity);
        }
        let cap = init.cap;
        let make = |qpn| {
            let config = RcConfig {
                qpn,
                send: SendQueueSize {
                    max_wr: cap.max_send_wr,
                    max_sge: cap.max_send_sge,
                    max_inline: cap.max_inline,
                },
                signal_all: init.signal_all,
                window_bytes: WINDOW_BYTES,
            };
            let inner = Inner {
                rc: RcQp::new(config),
                route: None,
                armed: Time::NEVER,
                touched: false,
                queued: false,
            };
            Arc::new_cyclic(|me| Qp {
                me: Weak::clone(me),
                qpn,
                cap,
                pd: Arc::clone(pd),
                device: Arc::clone(device),
                events: Arc::clone(events),
                send_cq: Arc::clone(&init.send_cq),
                recv_cq: Arc::clone(&init.recv_cq),
                signal_all: init.signal_all,
                receives: Mutex::new(RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge)),
                inner: Mutex::new(inner),
                state: AtomicU32::new(QpState::Reset as u32),
                async_acks: AckCount::default(),
                tag: AtomicUsize::new(0),
            })
        };
        let qp = engine::get().add_qp(make)?;
        qp.send_cq.attach(&qp);
        if !Arc::ptr_eq(&qp.send_cq, &qp.recv_cq) {
            qp.recv_cq.attach(&qp);
        }
        Ok(qp)
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its capacities.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Whether every send makes a completion.
    pub fn signals_all(&self) -> bool {
        self.signal_all
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        QpState::from_number(self.state.load(Ordering::Acquire)).unwrap_or_default()
    }

    /// Its attributes.
    pub fn attributes(&self) -> QpAttr {
        lock(&self.inner).rc.attributes()
    }

    /// What happened on it.
    pub fn counters(&self) -> Counters {
        *lock(&self.inner).rc.counters()
    }

    /// The number that whoever made it has set, see [`Qp::tag`].
    pub fn tag(&self) -> usize {
        self.tag.load(Ordering::Acquire)
    }

    /// Changes attributes and state (11.2.4.2).
    ///
    /// # Errors
    /// See [`ModifyError`]; nothing has changed then.
    pub fn modify(self: &Arc<Self>, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
        if mask.contains(AttrMask::PATH_MTU) {
            self.check_path_mtu(attr)?;
        }
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Init {
            engine::get().open_any(self.device.sources())?;
        }
        // Opening sockets comes before the locks: whoever receives holds the list of sockets.
        let route = match mask.contains(AttrMask::AV) {
            true => Some(self.route(attr, mask)?),
            false => None,
        };
        let held = regions();
        let mut inner = lock(&self.inner);
        let before = inner.rc.state();
        inner
            .rc
            .modify(attr, mask, now(), &mut self.host(held.table()))?;
        if let Some(route) = route {
            inner.route = Some(route);
        }
        let after = inner.rc.state();
        if after == QpState::Reset {
            inner.route = None;
            if before != QpState::Reset {
                self.send_cq.purge(self);
                self.recv_cq.purge(self);
            }
        }
        self.transmit(&mut inner, held.table());
        Ok(())
    }

    fn check_path_mtu(&self, attr: &QpAttr) -> Result<(), ModifyError> {
        let active = self.device.active_mtu();
        if attr.path_mtu > active {
            return Err(ModifyError::PathMtu {
                device: self.device.name().to_owned(),
                active: active.bytes(),
                asked: attr.path_mtu.bytes(),
            });
        }
        Ok(())
    }

    /// The way to the peer that an address vector names.
    fn route(&self, attr: &QpAttr, mask: AttrMask) -> Result<(Arc<Local>, Path), ModifyError> {
        let av = &attr.av;
        if !av.is_global || av.dgid.is_zero() {
            return Err(ModifyError::NoPeerGid);
        }
        let address = self
            .device
            .source(av.sgid_index)
            .ok_or_else(|| ModifyError::NoSuchGid {
                device: self.device.name().to_owned(),
                index: av.sgid_index,
            })?;
        let dest_qpn = match mask.contains(AttrMask::DEST_QPN) {
            true => attr.dest_qpn,
            false => self.attributes().dest_qpn,
        };
        let local = engine::get().local(address)?;
        let options = PathOptions {
            flow_key: self.qpn.get().rotate_left(8) ^ dest_qpn.get(),
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
            flow_label: av.flow_label,
        };
        let path = local.endpoint().path(av.dgid.to_ip(), options)?;
        Ok((local, path))
    }

    /// Starts posting sends; they go out when the [`Posting`] is dropped, together.
    pub fn start_posting(self: &Arc<Self>) -> Posting<'_> {
        let held = regions();
        let inner = lock(&self.inner);
        Posting {
            qp: self,
            inner,
            held,
            now: now(),
        }
    }

    /// Posts a receive (11.4.1.2).
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if !self.state().takes_receives() {
            return Err(PostError::State);
        }
        lock(&self.receives).post(wr_id, sges)?;
        if self.state().flushes_receives() {
            self.flush_posted();
        }
        Ok(())
    }

    /// Ends receives that were posted while, or just before, it went to error.
    fn flush_posted(&self) {
        let held = regions();
        let mut inner = lock(&self.inner);
        inner.rc.receive_posted(&mut self.host(held.table()));
    }

    /// Handles a packet. True when it has to be given a chance to send, and was not on the caller's
    /// list yet.
    pub(crate) fn handle(
        &self,
        now: Time,
        from: Gid,
        packet: &Packet<'_>,
        regions: &RegionTable,
    ) -> bool {
        let mut inner = lock(&self.inner);
        inner
            .rc
            .handle_packet(now, from, packet, &mut self.host(regions));
        !std::mem::replace(&mut inner.touched, true)
    }

    /// Sends what packets, or the lack of them, have brought about.
    pub(crate) fn go_on(self: &Arc<Self>, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        inner.touched = false;
        self.transmit(&mut inner, regions);
    }

    /// Its next turn to send has come.
    pub(crate) fn take_turn(self: &Arc<Self>, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        inner.queued = false;
        self.transmit(&mut inner, regions);
    }

    /// A deadline that the timers were given has come.
    pub(crate) fn timer_fired(self: &Arc<Self>, at: Time, now: Time, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        if inner.armed != at {
            // An earlier deadline took its place.
            return;
        }
        inner.armed = Time::NEVER;
        if inner.rc.deadline() <= now {
            inner.rc.handle_timeout(now, &mut self.host(regions));
            if inner.rc.state() == QpState::Err {
                tracing::debug!(qp = %self.qpn, counters = ?inner.rc.counters(),
                    network = ?engine::get().net_counters().map(NetCounters::snapshot),
                    "the peer does not answer any more");
            }
            self.transmit(&mut inner, regions);
        } else {
            self.settle(&mut inner, regions);
        }
    }

    /// Its completion queue overran.
    pub(crate) fn fail(&self, now: Time, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        inner.rc.fail(now, &mut self.host(regions));
        self.settle(&mut inner, regions);
    }

    /// Takes it off the network, takes back its events and completions, and waits until the program
    /// is done with those events that it has. To be called before the last reference goes.
    pub fn destroy(&self) {
        let engine = engine::get();
        engine.remove_qp(self.qpn);
        if let Some((local, _)) = lock(&self.inner).route.take() {
            engine.wait_for_delayed(&local);
        }
        self.send_cq.purge(self);
        self.recv_cq.purge(self);
        self.events.retract_qp(self);
        self.async_acks.wait();
    }

    fn host<'a>(&'a self, regions: &'a RegionTable) -> QpHost<'a> {
        QpHost { qp: self, regions }
    }

    /// Sends all that may go now, but lets others have their turn.
    fn transmit(self: &Arc<Self>, inner: &mut Inner, regions: &RegionTable) {
        let Inner {
            rc, route, queued, ..
        } = inner;
        if let Some((local, path)) = route {
            let engine = engine::get();
            let mut batch = engine.take_batch();
            batch.begin(path);
            let mut more = true;
            for _ in 0..TURN {
                more = rc.poll_transmit(now(), &mut self.host(regions), &mut batch);
                let sent = flush(&mut batch);
                if !more || !sent {
                    break;
                }
            }
            engine.return_batch(batch);
            let held_until = local.endpoint().held_until();
            if held_until != Time::NEVER {
                engine.deadline_moved(held_until);
            }
            // Whoever is on the list already gets one turn all the same.
            if more && !std::mem::replace(queued, true) {
                engine.ready(Arc::clone(self));
            }
        }
        self.settle(inner, regions);
    }

    /// Keeps what others see of the state machine in step with it.
    fn settle(&self, inner: &mut Inner, regions: &RegionTable) {
        let deadline = inner.rc.deadline();
        if deadline < inner.armed {
            inner.armed = deadline;
            engine::get().arm_timer(self.qpn, deadline);
        }
        let state = inner.rc.state();
        let before = self.state.swap(state as u32, Ordering::AcqRel);
        if state.flushes_receives() && before != state as u32 {
            // One that was posted before the others could see the new state.
            inner.rc.receive_posted(&mut self.host(regions));
        }
    }
}

/// Gives a batch to the kernel, waiting a little while the socket has no room. What does not go
/// then is lost, and repeated like anything lost. False when there was no room to the end: then it is
/// for others to have the locks.
fn flush(batch: &mut SendBatch) -> bool {
    for _ in 0..PATIENCE {
        let report = batch.flush();
        if let Some(error) = &report.error {
            tracing::debug!(%error, lost = report.lost, "packets could not be sent");
        }
        if !report.blocked {
            return true;
        }
    }
    batch.discard();
    false
}

/// Sends that are being posted. They go out together when this is dropped.
pub struct Posting<'a> {
    qp: &'a Arc<Qp>,
    inner: std::sync::MutexGuard<'a, Inner>,
    held: crate::mr::Regions,
    now: Time,
}

impl Posting<'_> {
    /// Checks that `count` sends can be posted as far as the state and the queue's room go. Nothing
    /// else posts meanwhile, so whoever has checked this and the requests themselves posts all or
    /// none.
    ///
    /// # Errors
    /// [`PostError::State`] and [`PostError::Full`].
    pub fn check_room(&self, count: usize) -> Result<(), PostError> {
        if !self.inner.rc.state().takes_sends() {
            return Err(PostError::State);
        }
        if count > self.inner.rc.send_queue_room() as usize {
            return Err(PostError::Full);
        }
        Ok(())
    }

    /// Posts a send (11.4.1.1).
    ///
    /// # Errors
    /// See [`PostError`]; those posted before stay posted.
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let mut host = self.qp.host(self.held.table());
        self.inner.rc.post_send(wr, self.now, &mut host)
    }

    /// Posts a send whose data is taken now, from memory that needs no key.
    ///
    /// # Safety
    /// The elements' memory is mapped.
    ///
    /// # Errors
    /// See [`PostError`].
    pub unsafe fn post_inline(
        &mut self,
        wr_id: u64,
        op: SendOp,
        flags: SendFlags,
        sges: &[Sge],
    ) -> Result<(), PostError> {
        let mut data = [0; MAX_INLINE as usize];
        let mut used = 0;
        for sge in sges {
            let room = data[used..].get_mut(..sge.length as usize);
            let room = room.ok_or(PostError::TooMuchInline)?;
            // SAFETY: the caller's promise.
            unsafe { crate::memory::copy_out(sge.addr, room) };
            used += sge.length as usize;
        }
        self.post(&SendWr {
            wr_id,
            op,
            flags,
            payload: Payload::Inline(&data[..used]),
            dest: None,
        })
    }
}

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        self.qp.transmit(&mut self.inner, self.held.table());
    }
}

/// A queue pair's surroundings, as its state machine sees them.
struct QpHost<'a> {
    qp: &'a Qp,
    regions: &'a RegionTable,
}

impl Memory for QpHost<'_> {
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), MemoryError> {
        self.regions.check_local(&self.qp.pd, sges, access)
    }

    fn gather(&self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.regions.gather(&self.qp.pd, sges, offset, out)
    }

    fn scatter(&self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.regions.scatter(&self.qp.pd, sges, offset, data)
    }

    fn check_remote(
        &self,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), MemoryError> {
        self.regions
            .remote(&self.qp.pd, rkey, addr, len, access)
            .map(|_| ())
    }

    fn remote_read(&self, rkey: RKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.regions.remote_read(&self.qp.pd, rkey, addr, out)
    }

    fn remote_write(&self, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.regions.remote_write(&self.qp.pd, rkey, addr, data)
    }

    fn remote_atomic(&self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        self.regions.remote_atomic(&self.qp.pd, rkey, addr, op)
    }

    fn invalidate(&self, _rkey: RKey) -> Result<(), MemoryError> {
        // Only memory windows and regions of the kernel's fast registration can be invalidated by
        // a peer (10.6.7.2.7), and there are none.
        Err(MemoryError::Permission)
    }
}

impl Receives for QpHost<'_> {
    fn take_receive(&mut self, into: &mut Receive) -> bool {
        lock(&self.qp.receives).take(into)
    }

    fn receive_credits(&self) -> Option<u32> {
        Some(lock(&self.qp.receives).len())
    }
}

impl Completions for QpHost<'_> {
    fn send_completed(&mut self, completion: Completion) {
        // An overrun takes the queue pair to error by way of the engine.
        let _ = self.qp.send_cq.push(completion, false);
    }

    fn receive_completed(&mut self, completion: Completion, solicited: bool) {
        let _ = self.qp.recv_cq.push(completion, solicited);
    }

    fn event(&mut self, event: QpEvent) {
        let Some(qp) = self.qp.me.upgrade() else {
            return;
        };
        let event = AsyncEvent {
            kind: event.into(),
            object: EventObject::Qp(qp),
        };
        self.qp.events.push(event);
    }
}
