//! Queue pairs: the protocol's state machine (`machine`) joined with memory and completion queues
//! (`host`) and the network.
//!
//! A queue pair has three locks, always taken in this order: the table of memory regions for reading,
//! `inner` with the state machine, then those of its receive queue (for the target of an extended reliable connection: of its
//! domain, and of the shared queue) and completion queues.

mod destinations;
mod error;
mod farewell;
mod frames;
mod holders;
mod host;
mod init;
mod machine;
mod multicast;
mod pace;
mod posting;
mod receives;
mod share;

pub use error::{CreateError, ModifyError};
pub use init::{MAX_INLINE, MAX_QP_WR, MAX_SGE, QpCap, QpInit, ReceivesFrom};
pub use multicast::MulticastError;
pub use posting::{Posting, To};
pub use share::Share;

use crate::counters::{DeviceCounters, QpTotals, Traffic};
use crate::cq::Cq;
use crate::device::Device;
use crate::engine::{self, Local};
use crate::event_queue::{AckCount, lock};
use crate::events::AsyncEvents;
use crate::net::{NetCounters, Path, SendBatch, now};
use crate::pd::Pd;
use crate::raw::Frames;
use crate::regions::{RegionTable, regions};
use crate::route::{Route, RouteError};
use crate::xrcd::Xrcd;
use destinations::Destinations;
use holders::Holders;
use host::QpHost;
use machine::{Machine, Next};
use pace::Pacer;
use receives::Source;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::qp::{AddressVector, AttrMask, Counters, QpAttr, QpState, QpType, TransitionError};
use urxe_proto::queue::PostError;
use urxe_proto::time::Time;
use urxe_proto::ud::NetworkHeader;
use urxe_proto::wire::Packet;
use urxe_proto::work::Sge;

/// How many bytes a queue pair sends before others have their turn.
const TURN: u64 = 1 << 20;

/// What giving a batch to the kernel counts for, however little is in it, as when datagrams go to
/// many destinations.
const FLUSH_COSTS: u64 = 16 << 10;

/// How often a batch that the socket has no room for is offered again, a millisecond each.
const PATIENCE: usize = 16;

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    me: Weak<Qp>,
    qpn: Qpn,
    service: QpType,
    cap: QpCap,
    pd: Arc<Pd>,
    device: Arc<Device>,
    counters: Arc<DeviceCounters>,
    events: Arc<AsyncEvents>,
    send_cq: Option<Arc<Cq>>,
    signal_all: bool,
    holders: Holders,
    receives: Source,
    inner: Mutex<Inner>,
    /// The multicast groups that it is attached to.
    groups: Mutex<Vec<Gid>>,
    /// The interface's frames, for raw packets.
    frames: Option<Frames>,
    /// The state, to be read without a lock.
    state: AtomicU32,
    /// Asynchronous events that the program has not acknowledged.
    pub async_acks: AckCount,
    /// A number for whoever made this queue pair, to find its own object by.
    pub tag: AtomicUsize,
}

struct Inner {
    machine: Machine,
    /// What went over the network.
    traffic: Traffic,
    /// A connected queue pair's way to its peer, from RTR on.
    route: Option<Route>,
    /// The one that it may migrate to.
    alternate: Option<Route>,
    /// Where the datagrams go that a datagram queue pair has to send.
    destinations: Destinations,
    /// What limits its rate, if anything does.
    pacer: Option<Pacer>,
    /// Until when it holds back what it has to send.
    paced_until: Time,
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
            .field("machine", &self.machine)
            .field("armed", &self.armed)
            .finish()
    }
}

impl Inner {
    /// If the connection has migrated, packets go by the alternate path from now on (17.2.8).
    fn follow_migration(&mut self) {
        if self.machine.take_migrated() {
            self.route = self.alternate.take();
        }
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
        if !init.is_possible() {
            return Err(CreateError::Queues(init.service));
        }
        let cap = init.actual_cap();
        if !cap.is_possible() {
            return Err(CreateError::Capacity);
        }
        let mut frames = frames::open(device, &init)?;
        let make = |qpn| {
            let frames = frames.take();
            let max_frame = frames.as_ref().map_or(0, Frames::max);
            let inner = Inner {
                machine: Machine::new(qpn, &init, cap, device.active_mtu(), max_frame),
                traffic: Traffic::default(),
                route: None,
                alternate: None,
                destinations: Destinations::default(),
                pacer: None,
                paced_until: Time::NEVER,
                armed: Time::NEVER,
                touched: false,
                queued: false,
            };
            Arc::new_cyclic(|me| Qp {
                me: Weak::clone(me),
                qpn,
                service: init.service,
                cap,
                pd: Arc::clone(pd),
                device: Arc::clone(device),
                counters: engine::get().counters_of(device.name()),
                events: Arc::clone(events),
                send_cq: init.send_cq.clone(),
                signal_all: init.signal_all,
                holders: Holders::new(),
                receives: Source::new(&init),
                inner: Mutex::new(inner),
                groups: Mutex::default(),
                frames,
                state: AtomicU32::new(QpState::Reset as u32),
                async_acks: AckCount::default(),
                tag: AtomicUsize::new(0),
            })
        };
        let qp = engine::get().add_qp(make)?;
        for cq in qp.cqs() {
            cq.attach(&qp);
        }
        qp.watch_frames()?;
        Ok(qp)
    }

    /// The completion queues that it alone decides on, each once.
    fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        let send = self.send_cq.as_ref();
        let other = |cq: &&Arc<Cq>| send.is_none_or(|send| !Arc::ptr_eq(send, cq));
        send.into_iter().chain(self.receives.cq().filter(other))
    }

    /// The domain whose shared queues it receives into, as the target of an extended reliable
    /// connection.
    pub fn domain(&self) -> Option<&Arc<Xrcd>> {
        self.receives.domain()
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The service that it gives.
    pub fn service(&self) -> QpType {
        self.service
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
        lock(&self.inner).machine.attributes()
    }

    /// What happened on it.
    pub fn counters(&self) -> Counters {
        *lock(&self.inner).machine.counters()
    }

    /// The device that it belongs to.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// All that is counted on it.
    pub(crate) fn totals(&self) -> QpTotals {
        let inner = lock(&self.inner);
        QpTotals {
            transport: *inner.machine.counters(),
            traffic: inner.traffic,
        }
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
        self.modify_with_burst(attr, mask, 0)
    }

    /// Limits the rate at which it sends, in kbit/s, with bursts of about so many bytes; 0 is for no
    /// limit, and for the usual bursts. What it answers to its peer counts, but short answers are not
    /// held back.
    ///
    /// # Errors
    /// [`ModifyError::Transition`] unless it is in RTS; [`ModifyError::Pacing`] for raw packets.
    pub fn limit_rate(self: &Arc<Self>, rate: u32, burst: u32) -> Result<(), ModifyError> {
        if self.state() != QpState::Rts {
            return Err(TransitionError::Unexpected(AttrMask::RATE_LIMIT).into());
        }
        let attr = QpAttr {
            rate_limit: rate,
            ..QpAttr::default()
        };
        self.modify_with_burst(&attr, AttrMask::RATE_LIMIT, burst)
    }

    fn modify_with_burst(
        self: &Arc<Self>,
        attr: &QpAttr,
        mask: AttrMask,
        burst: u32,
    ) -> Result<(), ModifyError> {
        let limits = mask.contains(AttrMask::RATE_LIMIT) && attr.rate_limit > 0;
        if limits && self.frames.is_some() {
            return Err(ModifyError::Pacing);
        }
        if mask.contains(AttrMask::PATH_MTU) {
            self.check_path_mtu(attr)?;
        }
        let opens = mask.contains(AttrMask::STATE) && attr.state == QpState::Init;
        if opens && self.frames.is_none() {
            match self.service {
                // No path says which address its datagrams come to.
                QpType::Ud => engine::get().open_all(self.device.sources())?,
                _ => engine::get().open_any(self.device.sources())?,
            }
        }
        // Opening sockets comes before the locks: whoever receives holds the list of sockets.
        let way = |bit, av| match mask.contains(bit) {
            true => self.route(attr, mask, av).map(Some),
            false => Ok(None),
        };
        let route = way(AttrMask::AV, &attr.av)?;
        let alternate = way(AttrMask::ALT_PATH, &attr.alt_av)?;
        let held = regions();
        let mut inner = lock(&self.inner);
        let before = inner.machine.state();
        if mask.contains(AttrMask::STATE) && matches!(attr.state, QpState::Err | QpState::Reset) {
            self.say_farewell(&mut inner, held.table());
        }
        inner
            .machine
            .modify(attr, mask, now(), &mut self.host(held.table()))?;
        if let Some(route) = route {
            inner.route = Some(route);
        }
        if let Some(alternate) = alternate {
            inner.alternate = Some(alternate);
        }
        let after = inner.machine.state();
        if after == QpState::Reset {
            inner.route = None;
            inner.alternate = None;
            inner.destinations.clear();
            inner.pacer = None;
            if before != QpState::Reset {
                self.purge();
            }
        }
        if mask.contains(AttrMask::RATE_LIMIT) {
            inner.pacer = Pacer::new(attr.rate_limit, burst);
        }
        self.transmit(&mut inner, held.table());
        Ok(())
    }

    /// Takes back its completions.
    fn purge(&self) {
        for cq in self.cqs() {
            cq.purge(self.qpn);
        }
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

    /// A way to the peer.
    fn route(
        &self,
        attr: &QpAttr,
        mask: AttrMask,
        av: &AddressVector,
    ) -> Result<Route, RouteError> {
        let dest_qpn = match mask.contains(AttrMask::DEST_QPN) {
            true => attr.dest_qpn,
            false => self.attributes().dest_qpn,
        };
        let flow_key = self.qpn.get().rotate_left(8) ^ dest_qpn.get();
        Route::new(&self.device, av, flow_key)
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
        self.receives.post(wr_id, sges)?;
        if self.state().flushes_receives() {
            self.flush_posted();
        }
        Ok(())
    }

    /// Ends receives that were posted while, or just before, it went to error.
    fn flush_posted(&self) {
        let held = regions();
        let mut inner = lock(&self.inner);
        inner.machine.receive_posted(&mut self.host(held.table()));
    }

    /// Handles a packet. True when it has to be given a chance to send, and was not on the caller's
    /// list yet.
    pub(crate) fn handle(
        &self,
        now: Time,
        network: &NetworkHeader,
        packet: &Packet<'_>,
        regions: &RegionTable,
    ) -> bool {
        let mut inner = lock(&self.inner);
        let taken = inner.machine.counters().received_packets;
        inner
            .machine
            .handle_packet(now, network, packet, &mut self.host(regions));
        let taken = inner.machine.counters().received_packets > taken;
        inner.traffic.received(packet, taken);
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
        if inner.machine.deadline() <= now {
            inner.machine.handle_timeout(now, &mut self.host(regions));
            if inner.machine.state() == QpState::Err {
                tracing::debug!(qp = %self.qpn, counters = ?inner.machine.counters(),
                    network = ?engine::get().net_counters().map(NetCounters::snapshot),
                    "the peer does not answer any more");
            }
            self.transmit(&mut inner, regions);
        } else if inner.paced_until <= now {
            inner.paced_until = Time::NEVER;
            self.transmit(&mut inner, regions);
        } else {
            self.settle(&mut inner, regions);
        }
    }

    /// Its completion queue overran.
    pub(crate) fn fail(&self, now: Time, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        inner.machine.fail(now, &mut self.host(regions));
        self.settle(&mut inner, regions);
    }

    /// Takes it off the network, unless others have opened it, takes back its events and
    /// completions, and waits until the program is done with those events that it has. To be called
    /// before the last reference goes.
    pub fn destroy(&self) {
        self.left_by(Holders::leave_maker);
        self.events.retract_qp(self);
        self.async_acks.wait();
    }

    /// Someone who had it leaves; `leave` says whether that was the last.
    fn left_by(&self, leave: impl FnOnce(&Holders) -> bool) {
        // Whoever tells its holders of an event does so with this lock.
        let inner = lock(&self.inner);
        let last = leave(&self.holders);
        drop(inner);
        if last {
            self.end();
        }
    }

    /// Takes it off the network, and takes back its completions.
    fn end(&self) {
        let engine = engine::get();
        let held = regions();
        let mut inner = lock(&self.inner);
        self.say_farewell(&mut inner, held.table());
        // Without a way to anybody it carries out no work request any more, and binds no window.
        inner.route = None;
        inner.destinations.clear();
        drop(inner);
        held.table().free_windows_of(self.qpn);
        drop(held);
        self.leave_groups();
        self.unwatch_frames();
        let mut past = lock(&self.counters.past);
        engine.remove_qp(self.qpn);
        *past += &self.totals();
        drop(past);
        engine.wait_for_delayed();
        self.purge();
    }

    fn host<'a>(&'a self, regions: &'a RegionTable) -> QpHost<'a> {
        QpHost { qp: self, regions }
    }

    /// Sends all that may go now, but lets others have their turn.
    fn transmit(self: &Arc<Self>, inner: &mut Inner, regions: &RegionTable) {
        if let Some(frames) = &self.frames {
            self.transmit_frames(inner, frames, regions);
            return;
        }
        inner.follow_migration();
        let Inner {
            machine,
            traffic,
            route,
            destinations,
            pacer,
            paced_until,
            queued,
            ..
        } = inner;
        let mut batch = None;
        let mut turn = TURN;
        let mut more = true;
        while more && turn > 0 {
            let Some(Route { local, path }) = next_way(machine, route, destinations) else {
                more = false;
                break;
            };
            let batch = batch.get_or_insert_with(|| engine::get().take_batch());
            batch.begin(path);
            let (now, mut host) = (now(), self.host(regions));
            more = match pacer {
                None => machine.poll_transmit(now, &mut host, batch),
                Some(pacer) => {
                    let mut sink = pacer.limit(now, batch);
                    let more = machine.poll_transmit(now, &mut host, &mut sink);
                    let taken = sink.taken();
                    pacer.spend(now, taken);
                    // The timer goes on with it.
                    *paced_until = if more { pacer.next() } else { Time::NEVER };
                    false
                }
            };
            turn = turn.saturating_sub(send_batch(batch, path, local, traffic));
        }
        if let Some(batch) = batch {
            engine::get().return_batch(batch);
        }
        // Whoever is on the list already gets one turn all the same.
        if more && !std::mem::replace(queued, true) {
            engine::get().ready(Arc::clone(self));
        }
        self.settle(inner, regions);
    }

    /// Keeps what others see of the state machine in step with it.
    fn settle(&self, inner: &mut Inner, regions: &RegionTable) {
        let deadline = inner.machine.deadline().min(inner.paced_until);
        if deadline < inner.armed {
            inner.armed = deadline;
            engine::get().arm_timer(self.qpn, deadline);
        }
        let state = inner.machine.state();
        let before = self.state.swap(state as u32, Ordering::AcqRel);
        if state.flushes_receives() && before != state as u32 {
            // One that was posted before the others could see the new state.
            inner.machine.receive_posted(&mut self.host(regions));
        }
    }
}

/// Where the next packet goes; `None` when there is nothing to send, or nowhere to.
fn next_way<'a>(
    machine: &Machine,
    route: &'a Option<Route>,
    destinations: &'a mut Destinations,
) -> Option<&'a Route> {
    match machine.next_destination() {
        Next::Peer => route.as_ref(),
        Next::Handle(number) => destinations.way_to(number),
        Next::Nothing => {
            destinations.clear();
            None
        }
        Next::Waits => None,
    }
}

/// Gives a batch to the kernel. Returns how much of a turn that was.
fn send_batch(batch: &mut SendBatch, path: &Path, local: &Local, traffic: &mut Traffic) -> u64 {
    let sent = flush(batch, path, traffic);
    let held_until = local.endpoint().held_until();
    if held_until != Time::NEVER {
        engine::get().deadline_moved(held_until);
    }
    sent.map_or(TURN, |bytes| bytes.max(FLUSH_COSTS))
}

/// Gives a batch to the kernel, waiting a little while the socket has no room. What does not go
/// then is lost, and repeated like anything lost. Returns how many bytes went; `None` when there was
/// no room to the end: then it is for others to have the locks.
fn flush(batch: &mut SendBatch, path: &Path, traffic: &mut Traffic) -> Option<u64> {
    let mut bytes = 0;
    for _ in 0..PATIENCE {
        let report = batch.flush();
        traffic.sent(&report, path.peer().ip().is_multicast());
        bytes += report.bytes;
        if let Some(error) = &report.error {
            tracing::debug!(%error, lost = report.lost, "packets could not be sent");
        }
        if !report.blocked {
            return Some(bytes);
        }
    }
    traffic.gave_up(batch.packets() as u64);
    batch.discard();
    None
}
