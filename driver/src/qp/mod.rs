//! Queue pairs: the protocol's state machine (`machine`) joined with memory and completion queues
//! (`host`) and the network.
//!
//! A queue pair has three locks, always taken in this order: the table of memory regions for reading,
//! `inner` with the state machine, then those of its receive queue (for the target of an extended reliable connection: of its
//! domain, and of the shared queue) and completion queues.

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
    /// Whether it is an unreliable connection to a process of this host, which it must not overrun.
    neighbour: Option<Neighbour>,
    /// Whether it is a reliable one, which takes turns with the others.
    passenger: Option<Passenger>,
    /// Where the datagrams go that a datagram queue pair has to send.
    destinations: Destinations,
    /// What limits its rate, if anything does.
    pacer: Option<Pacer>,
    /// Until when it holds back what it has to send.
    paced_until: Time,
    /// What the socket has no room for.
    stalled: Option<Stalled>,
    /// The engine has it on its list of those that wait for room in a socket.
    awaits_room: bool,
    /// The deadline that the engine's timers know of.
    armed: Time,
    /// Packets came, and it has not sent since.
    touched: bool,
    /// It waits for its next turn to send: the engine has it on its list.
    queued: bool,
    /// What waits for more to be posted.
    gathered: Gathered,
    /// Whether an acknowledgement waits for an answer to be posted.
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
    /// From now on packets go this way.
    fn set_route(&mut self, route: Option<Route>) {
        let is_unreliable = matches!(self.machine, Machine::Uc(_));
        let connection = route.as_ref().filter(|_| is_unreliable);
        self.neighbour = connection.and_then(Neighbour::at_the_end_of);
        let passenger = |route| Passenger::on(route, &self.machine);
        self.passenger = route.as_ref().and_then(passenger);
        self.machine.require_grants(self.passenger.is_some());
        self.route = route;
    }

    /// If the connection has migrated, packets go by the alternate path from now on (17.2.8).
    fn follow_migration(&mut self) {
        if self.machine.take_migrated() {
            let alternate = self.alternate.take();
            self.set_route(alternate);
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

    /// Its state: that of an error, once its completion is there.
    pub fn state(&self) -> QpState {
        lock(&self.inner).machine.state()
    }

    /// The state that it had at the end of the last change, without waiting for one that goes on.
    fn last_state(&self) -> QpState {
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

    /// Takes back its completions.
    fn purge(&self) {
        for cq in self.cqs() {
            cq.purge(self.qpn);
        }
    }

    /// Starts posting sends; they go out together when the [`Posting`] is dropped, or a moment later
    /// with those that follow.
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

    /// Ends receives that were posted while, or just before, it went to error.
    fn flush_posted(&self) {
        let held = regions();
        let mut inner = lock(&self.inner);
        inner.machine.receive_posted(&mut self.host(held.table()));
    }

    /// Sends what packets, or the lack of them, have brought about. `polls` says how often the program has polled
    /// in vain, if it does so now: then an acknowledgement may wait for what the program posts.
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

    /// Sends the acknowledgement that waits for an answer, if it still does.
    pub(crate) fn send_held(self: &Arc<Self>, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        if inner.answering.unlist() {
            self.transmit(&mut inner, regions);
        }
    }

    /// Sends what waits for more to be posted. `was_left_lying` says that the program has not come
    /// back for it in time.
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

    /// Its next turn to send has come.
    pub(crate) fn take_turn(self: &Arc<Self>, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        inner.queued = false;
        self.transmit(&mut inner, regions);
    }

    /// It has waited for its turn on a [`Passage`](engine::Passage), which has come.
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

    /// Its completion queue overran.
    pub(crate) fn fail(&self, now: Time, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        inner.machine.fail(now, &mut self.host(regions));
        self.settle(&mut inner, regions);
    }

    /// Takes it off the network, unless others have opened it, takes back its events and
    /// completions, and waits until the program is done with those events that it has. To be called
    /// before the last reference goes.
    pub fn destroy(self: &Arc<Self>) {
        self.left_by(Holders::leave_maker);
        self.events.retract_qp(self);
        self.async_acks.wait();
    }

    /// Someone who had it leaves; `leave` says whether that was the last.
    fn left_by(self: &Arc<Self>, leave: impl FnOnce(&Holders) -> bool) {
        // Whoever tells its holders of an event does so with this lock.
        let inner = lock(&self.inner);
        let last = leave(&self.holders);
        drop(inner);
        if last {
            self.end();
        }
    }

    /// Takes it off the network, and takes back its completions.
    fn end(self: &Arc<Self>) {
        let engine = engine::get();
        engine.send_gathered();
        let held = regions();
        let mut inner = lock(&self.inner);
        // Another thread may be about to send what has waited, and would come too late.
        if !inner.gathered.is_empty() {
            self.transmit(&mut inner, held.table());
        }
        let unsent = self.say_farewell(&mut inner, held.table());
        // Without a way to anybody it carries out no work request any more, and binds no window.
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

    /// Keeps what others see of the state machine in step with it.
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
            // One that was posted before the others could see the new state.
            inner.machine.receive_posted(&mut self.host(regions));
        }
    }
}
