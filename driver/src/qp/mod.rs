//! Queue pairs: the transport's state machine (`machine`), its memory and completion queues
//! (`host`), and the network.
//!
//! Lock order of a queue pair: the table of memory regions (for reading), then `inner` with the
//! state machine, then the receive queue and the completion queues. For an XRC target the receive
//! queue's locks are that of its domain and that of the shared receive queue.

mod answering;
mod destinations;
mod error;
mod farewell;
mod frames;
mod gathered;
mod holders;
mod host;
mod incoming;
mod init;
mod machine;
mod modify;
mod multicast;
mod neighbour;
mod pace;
mod passenger;
mod posting;
mod receives;
mod sending;
mod share;

pub use error::{CreateError, ModifyError};
pub(crate) use incoming::Incoming;
pub use init::{MAX_INLINE, MAX_QP_WR, MAX_SGE, QpCap, QpInit, ReceivesFrom};
pub use multicast::MulticastError;
pub use posting::{Posting, To};
pub use share::Share;

use crate::counters::{DeviceCounters, QpTotals, Traffic};
use crate::cq::Cq;
use crate::device::Device;
use crate::engine;
use crate::event_queue::{AckCount, lock};
use crate::events::AsyncEvents;
use crate::pd::Pd;
use crate::raw::Frames;
use crate::regions::{RegionTable, regions};
use crate::route::Route;
use crate::xrcd::Xrcd;
use answering::Answering;
use destinations::Destinations;
use gathered::Gathered;
use holders::Holders;
use host::QpHost;
use machine::Machine;
use neighbour::Neighbour;
use pace::Pacer;
use passenger::Passenger;
use receives::Source;
use sending::Stalled;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use urxe_net::{NetCounters, now};
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::qp::{Counters, QpAttr, QpState, QpType};
use urxe_proto::queue::{NoMemory, PostError};
use urxe_proto::time::Time;
use urxe_proto::work::Sge;

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
    block_own_multicast: bool,
    holders: Holders,
    receives: Source,
    inner: Mutex<Inner>,
    /// The multicast groups that the queue pair is attached to.
    groups: Mutex<Vec<Gid>>,
    /// The interface's packet socket, for raw packet queue pairs.
    frames: Option<Frames>,
    /// A copy of the state that is readable without a lock.
    state: AtomicU32,
    /// Asynchronous events that the application has not acknowledged.
    pub async_acks: AckCount,
    /// An opaque value that the creator of the queue pair sets, to find its own object.
    pub tag: AtomicUsize,
}

struct Inner {
    machine: Machine,
    /// Counters of bytes and packets sent and received.
    traffic: Traffic,
    /// The route of a connected queue pair to its peer, from RTR on.
    route: Option<Route>,
    /// The alternate route, for path migration.
    alternate: Option<Route>,
    /// Set for an unreliable connection to a process of this host, whose receive buffer it must not
    /// overrun.
    neighbour: Option<Neighbour>,
    /// Set for a reliable connection to a process of this host, which a destination limiter
    /// governs.
    passenger: Option<Passenger>,
    /// The address handles of the datagrams in the send queue.
    destinations: Destinations,
    /// The rate limiter, if a rate limit is set.
    pacer: Option<Pacer>,
    /// The time at which the rate limiter lets the next burst go.
    paced_until: Time,
    /// A batch for which the socket has no room.
    stalled: Option<Stalled>,
    /// The engine lists the queue pair among those that wait for room in a socket.
    awaits_room: bool,
    /// The earliest deadline that the engine's timers hold for this queue pair.
    armed: Time,
    /// Packets have been received since the last transmission.
    touched: bool,
    /// The engine lists the queue pair among those with more to send.
    queued: bool,
    /// State of send coalescing.
    gathered: Gathered,
    /// State of the delayed ACK.
    answering: Answering,
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
    /// Sets the route that packets take from now on.
    fn set_route(&mut self, route: Option<Route>) {
        let is_unreliable = matches!(self.machine, Machine::Uc(_));
        let connection = route.as_ref().filter(|_| is_unreliable);
        self.neighbour = connection.and_then(Neighbour::at_the_end_of);
        let passenger = |route| Passenger::on(route, &self.machine);
        self.passenger = route.as_ref().and_then(passenger);
        self.machine.require_grants(self.passenger.is_some());
        self.route = route;
    }

    /// Switches to the alternate route if the connection has migrated (17.2.8).
    fn follow_migration(&mut self) {
        if self.machine.take_migrated() {
            let alternate = self.alternate.take();
            self.set_route(alternate);
        }
    }
}

impl Qp {
    /// Creates a queue pair in RESET (11.2.4.1).
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
        let make = |qpn| -> Result<Arc<Qp>, NoMemory> {
            let frames = frames.take();
            let max_frame = frames.as_ref().map_or(0, Frames::max);
            let inner = Inner {
                machine: Machine::new(
                    qpn,
                    &init,
                    cap,
                    device.active_mtu(),
                    max_frame,
                    engine::get().congestion(),
                    engine::get().out_of_order(),
                )?,
                traffic: Traffic::default(),
                route: None,
                alternate: None,
                neighbour: None,
                passenger: None,
                destinations: Destinations::default(),
                pacer: None,
                paced_until: Time::NEVER,
                stalled: None,
                awaits_room: false,
                armed: Time::NEVER,
                touched: false,
                queued: false,
                gathered: Gathered::default(),
                answering: Answering::default(),
            };
            let receives = Source::new(&init)?;
            Ok(Arc::new_cyclic(|me| Qp {
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
                block_own_multicast: init.block_own_multicast,
                holders: Holders::new(),
                receives,
                inner: Mutex::new(inner),
                groups: Mutex::default(),
                frames,
                state: AtomicU32::new(QpState::Reset as u32),
                async_acks: AckCount::default(),
                tag: AtomicUsize::new(0),
            }))
        };
        let qp = engine::get().add_qp(make)?;
        for cq in qp.cqs() {
            cq.attach(&qp);
        }
        qp.watch_frames()?;
        Ok(qp)
    }

    /// The completion queues that the queue pair itself names, each once.
    fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        let send = self.send_cq.as_ref();
        let other = |cq: &&Arc<Cq>| send.is_none_or(|send| !Arc::ptr_eq(send, cq));
        send.into_iter().chain(self.receives.cq().filter(other))
    }

    /// The XRC domain into whose shared receive queues the queue pair receives, if it is an XRC
    /// target.
    pub fn domain(&self) -> Option<&Arc<Xrcd>> {
        self.receives.domain()
    }

    /// The queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The transport service.
    pub fn service(&self) -> QpType {
        self.service
    }

    /// The capacities of the queues.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Whether every send generates a completion.
    pub fn signals_all(&self) -> bool {
        self.signal_all
    }

    /// The current state. When it reads as an error state, the completion of that error is in the
    /// completion queue.
    pub fn state(&self) -> QpState {
        lock(&self.inner).machine.state()
    }

    /// The state after the last change, read without the lock.
    fn last_state(&self) -> QpState {
        QpState::from_number(self.state.load(Ordering::Acquire)).unwrap_or_default()
    }

    /// The current attributes.
    pub fn attributes(&self) -> QpAttr {
        lock(&self.inner).machine.attributes()
    }

    /// The transport's counters.
    pub fn counters(&self) -> Counters {
        *lock(&self.inner).machine.counters()
    }

    /// The device that the queue pair belongs to.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// All counters of the queue pair: the transport's and the network's.
    pub(crate) fn totals(&self) -> QpTotals {
        let inner = lock(&self.inner);
        QpTotals {
            transport: *inner.machine.counters(),
            traffic: inner.traffic,
        }
    }

    /// The value that the creator has set, see [`Qp::tag`].
    pub fn tag(&self) -> usize {
        self.tag.load(Ordering::Acquire)
    }

    /// Removes the queue pair's completions from its completion queues.
    fn purge(&self) {
        for cq in self.cqs() {
            cq.purge(self.qpn);
        }
    }

    /// Starts to post sends. They are transmitted when the [`Posting`] is dropped, or later,
    /// together with the posts that follow (send coalescing).
    pub fn start_posting(self: &Arc<Self>) -> Posting<'_> {
        let held = regions();
        let inner = lock(&self.inner);
        Posting {
            qp: self,
            inner,
            held,
            now: now(),
            sends: 0,
            bytes: 0,
            _call: engine::get().call_to_post(),
        }
    }

    /// Posts a receive (11.4.1.2).
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if !self.last_state().accepts_receives() {
            return Err(PostError::State);
        }
        self.receives.post(wr_id, sges)?;
        if self.last_state().flushes_receives() {
            self.flush_posted();
        }
        Ok(())
    }

    /// Flushes receives that were posted while the queue pair entered the error state.
    fn flush_posted(&self) {
        let held = regions();
        let mut inner = lock(&self.inner);
        inner.machine.receive_posted(&mut self.host(held.table()));
    }

    /// Transmits after packets were received. `polls` is the process's number of empty polls, if a
    /// poll of the application received these packets; in that case the ACK may be delayed, to be
    /// sent with the next post.
    pub(crate) fn go_on(self: &Arc<Self>, polls: Option<u64>, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        inner.touched = false;
        let holds = |polls| inner.machine.defer_ack() && inner.answering.holds(now(), polls);
        if !engine::get().may_hold_acks() || !polls.is_some_and(holds) {
            self.transmit(&mut inner, regions);
            return;
        }
        self.settle(&mut inner, regions);
        let is_listed = inner.answering.list();
        engine::get().counters().held_acks.add(1);
        if !is_listed && !engine::get().hold_ack(self) {
            self.transmit(&mut inner, regions);
        }
    }

    /// Sends the delayed ACK, unless it has been sent already.
    pub(crate) fn send_held(self: &Arc<Self>, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        if inner.answering.unlist() {
            self.transmit(&mut inner, regions);
        }
    }

    /// Sends the deferred sends. `was_left_lying` is true when the flush timeout expired, and false
    /// when a call of the application triggers the flush.
    pub(crate) fn send_gathered(self: &Arc<Self>, was_left_lying: bool, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        if !inner.gathered.unlist() {
            return;
        }
        if was_left_lying {
            inner.gathered.left_lying(now());
            engine::get().counters().gathered_late.add(1);
        } else {
            inner.gathered.collected();
        }
        self.transmit(&mut inner, regions);
    }

    /// Transmits when the queue pair's turn on the engine's list of senders comes.
    pub(crate) fn take_turn(self: &Arc<Self>, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        inner.queued = false;
        self.transmit(&mut inner, regions);
    }

    /// Transmits after a [`Passage`](engine::Passage), the limiter of its destination, has granted
    /// a quantum.
    pub(crate) fn take_passage(self: &Arc<Self>, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        let Inner {
            passenger, machine, ..
        } = &mut *inner;
        if let Some(passenger) = passenger {
            passenger.called(machine);
        }
        self.transmit(&mut inner, regions);
    }

    /// Handles the expiry of the timer that was armed for `at`.
    pub(crate) fn timer_fired(self: &Arc<Self>, at: Time, now: Time, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        if inner.armed != at {
            // A timer for an earlier deadline has replaced this one.
            return;
        }
        inner.armed = Time::NEVER;
        if inner.machine.deadline() <= now {
            inner.machine.handle_timeout(now, &mut self.host(regions));
            if let Some(passenger) = &mut inner.passenger {
                passenger.set_unheard(true);
            }
            if inner.machine.state() == QpState::Err {
                tracing::debug!(qp = %self.qpn, counters = ?inner.machine.counters(),
                    network = ?engine::get().net_counters().map(NetCounters::snapshot),
                    "the peer does not answer any more");
            }
            self.transmit(&mut inner, regions);
        } else if inner
            .stalled
            .as_ref()
            .is_some_and(|batch| batch.until <= now)
        {
            self.transmit(&mut inner, regions);
        } else if inner.paced_until <= now {
            inner.paced_until = Time::NEVER;
            self.transmit(&mut inner, regions);
        } else {
            self.settle(&mut inner, regions);
        }
    }

    /// Moves the queue pair to the error state after its completion queue overran.
    pub(crate) fn fail(&self, now: Time, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        inner.machine.fail(now, &mut self.host(regions));
        self.settle(&mut inner, regions);
    }

    /// Releases the creator's ownership, removes the queue pair's events, and waits until the
    /// application has acknowledged those that it has taken. The last owner's release takes the
    /// queue pair off the network and removes its completions. Must be called before the last
    /// reference is dropped.
    pub fn destroy(self: &Arc<Self>) {
        self.left_by(Holders::leave_maker);
        self.events.retract_qp(self);
        self.async_acks.wait();
    }

    /// Releases one ownership with `leave`, which returns whether it was the last.
    fn left_by(self: &Arc<Self>, leave: impl FnOnce(&Holders) -> bool) {
        // Events are delivered to the owners under this lock.
        let inner = lock(&self.inner);
        let last = leave(&self.holders);
        drop(inner);
        if last {
            self.end();
        }
    }

    /// Takes the queue pair off the network, and removes its completions.
    fn end(self: &Arc<Self>) {
        let engine = engine::get();
        engine.send_gathered();
        let held = regions();
        let mut inner = lock(&self.inner);
        // Another thread may have taken the queue pair off the list of deferred sends, and would
        // send after the removal.
        if !inner.gathered.is_empty() {
            self.transmit(&mut inner, held.table());
        }
        let unsent = self.say_farewell(&mut inner, held.table());
        // Without a route the queue pair executes no work request and binds no memory window.
        inner.set_route(None);
        inner.alternate = None;
        inner.destinations.clear();
        drop(inner);
        held.table().free_windows_of(self.qpn);
        drop(held);
        unsent.send();
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

    /// Publishes the state machine's state: in-flight bytes, timer and state copy.
    fn settle(&self, inner: &mut Inner, regions: &RegionTable) {
        if let Some(passenger) = &mut inner.passenger {
            passenger.count(&inner.machine);
        }
        let room_timeout = inner
            .stalled
            .as_ref()
            .map_or(Time::NEVER, |batch| batch.until);
        let deadline = (inner.machine.deadline())
            .min(inner.paced_until)
            .min(room_timeout);
        if deadline < inner.armed {
            inner.armed = deadline;
            engine::get().arm_timer(self.qpn, deadline);
        }
        let state = inner.machine.state();
        let before = self.state.swap(state as u32, Ordering::AcqRel);
        if state.flushes_receives() && before != state as u32 {
            // Flush receives that were posted before the new state was published.
            inner.machine.receive_posted(&mut self.host(regions));
        }
    }
}
