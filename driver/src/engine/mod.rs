//! The engine: moves packets between the sockets and the queue pairs.
//!
//! Whoever calls in does the work: posting sends at once, or with what follows closely (`gathering`); polling
//! and waiting receive. The progress thread (`progress`) does it while nobody calls.
//!
//! Locks, in the order in which they are taken: the one for opening an address, the list of local
//! addresses or of multicast groups for reading, a socket's receive buffers, the table of queue pairs for reading, the table of memory
//! regions for reading, a queue pair. For raw packets, the list of their queue pairs for reading and the
//! buffer of one come before the last two. The lists of those with sends that wait, and of those that wait for room in a
//! socket, come last. Destroying a queue pair or a region takes its table for
//! writing, and so waits for what is being handled.

mod counting;
mod delayed;
mod gathering;
mod groups;
mod handover;
mod leaving;
mod locals;
mod lost;
mod panics;
mod passages;
mod polling;
mod progress;
mod receiving;
mod rooms;
mod seen;
mod table;
mod timers;
mod waiter;
mod waiting;

pub use counting::EngineCounters;
pub use locals::Local;
use locals::Locals;
pub(crate) use lost::{has_lost_descriptors, is_loss};
pub(crate) use passages::{GRANT, Passage};

use crate::cm::gsi::Gsi;
use crate::counters::DeviceCounters;
use crate::cq::Cq;
use crate::event_queue::lock;
use crate::per_process::PerProcess;
use crate::qp::{CreateError, Qp};
use crate::regions::regions;
use delayed::Delayed;
use gathering::Gathering;
use groups::Groups;
use handover::Handover;
pub use leaving::is_leaving;
use panics::PanicGuard;
use passages::Passages;
pub(crate) use polling::Call;
use polling::Polling;
use progress::Progress;
use receiving::Receiver;
use rooms::Rooms;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::{io, mem};
use table::QpTable;
use timers::Timers;
use urxe_net::random;
use urxe_net::{NetCounters, OpenError, SendBatch, Shared};
use urxe_proto::ids::Qpn;
use urxe_proto::queue::NoMemory;
use urxe_proto::rc::OutOfOrderBudget;
use urxe_proto::rc::congestion::Algorithm;
use urxe_proto::time::Time;
pub(crate) use waiter::Waiter;

/// The most bytes in the out-of-order queues of all connections: the windows of 64 connections that recover
/// from a loss at the same time.
const OUT_OF_ORDER_BYTES: usize = 32 << 20;

/// Batches for sending that are kept; as many as threads send at once.
const SPARE_BATCHES: usize = 4;

static ENGINE: PerProcess<Engine> = PerProcess::new();

/// The engine of this process.
pub fn get() -> &'static Engine {
    ENGINE.get(Engine::new)
}

/// What moves packets.
#[derive(Debug)]
pub struct Engine {
    /// A random number by which reports of this process are told from others'.
    instance: u64,
    network: OnceLock<Network>,
    opening: Mutex<()>,
    qps: RwLock<QpTable>,
    /// Queue pairs for raw packets, which receive their frames themselves.
    raw: RwLock<Vec<Weak<Qp>>>,
    timers: Timers,
    delayed: Delayed,
    /// How connections to processes of this host take turns.
    passages: Passages,
    /// Queue pairs that have more to send than their turn allowed.
    ready: Mutex<Vec<Arc<Qp>>>,
    /// Whether there may be any in `ready` or `overran`, to be read without a lock.
    has_turns: AtomicBool,
    /// Completion queues that overran, and whose queue pairs go to error.
    overran: Mutex<Vec<Arc<Cq>>>,
    batches: Mutex<Vec<SendBatch>>,
    /// The memory for out-of-order queues.
    out_of_order: Arc<OutOfOrderBudget>,
    /// What the progress thread and the program's threads tell each other.
    handover: Handover,
    polling: Polling,
    counters: EngineCounters,
    /// A thread panicked, and the queue pairs have not failed yet.
    has_panicked: AtomicBool,
    /// The program has closed its descriptors.
    has_lost: AtomicBool,
    /// What is counted of each device, by its name.
    counted: Mutex<BTreeMap<String, Arc<DeviceCounters>>>,
}

/// Who does the work of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Driver {
    /// The program, which polls, and may answer what it gets.
    Poll,
    /// The progress thread, or one of the program's that waits.
    Other,
}

/// What is there once the first queue pair was made.
struct Network {
    shared: Arc<Shared>,
    locals: Locals,
    groups: Groups,
    /// Queue pair 1.
    gsi: Gsi,
    /// For datagrams that other processes passed on.
    forwarded: Mutex<Receiver>,
    gathering: Gathering,
    /// Queue pairs that wait for a socket to have room.
    rooms: Rooms,
    progress: Arc<Progress>,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network")
            .field("slot", &self.shared.slot())
            .finish_non_exhaustive()
    }
}

impl Engine {
    fn new() -> Self {
        Engine {
            instance: random::any(),
            network: OnceLock::new(),
            opening: Mutex::new(()),
            qps: RwLock::default(),
            raw: RwLock::default(),
            timers: Timers::new(),
            delayed: Delayed::new(),
            passages: Passages::default(),
            ready: Mutex::default(),
            has_turns: AtomicBool::new(false),
            overran: Mutex::default(),
            batches: Mutex::default(),
            out_of_order: Arc::new(OutOfOrderBudget::new(OUT_OF_ORDER_BYTES)),
            handover: Handover::new(),
            polling: Polling::default(),
            counters: EngineCounters::default(),
            has_panicked: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            counted: Mutex::default(),
        }
    }

    /// A random number of this process.
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    /// What it counts.
    pub fn counters(&self) -> &EngineCounters {
        &self.counters
    }

    /// The memory that the out-of-order queues of all connections share.
    pub(crate) fn out_of_order(&self) -> &Arc<OutOfOrderBudget> {
        &self.out_of_order
    }

    /// What the network part counts, once there is one.
    pub fn net_counters(&self) -> Option<&NetCounters> {
        self.network
            .get()
            .map(|network| &**network.shared.counters())
    }

    /// Takes this process's slot of port 4791 and starts the progress thread, the first time.
    fn network(&self) -> Result<&Network, OpenError> {
        if let Some(network) = self.network.get() {
            return Ok(network);
        }
        let _opening = lock(&self.opening);
        if let Some(network) = self.network.get() {
            return Ok(network);
        }
        let shared = Shared::new(urxe_net::Options::from_env()?)?;
        let failed = |source| OpenError::System {
            what: "starting the progress thread",
            source,
        };
        let gathering = Gathering::new().map_err(failed)?;
        let rooms = Rooms::new().map_err(failed)?;
        let progress = Progress::start(shared.fd()).map_err(failed)?;
        progress.watch_control(rooms.as_fd()).map_err(failed)?;
        tracing::debug!(slot = shared.slot(), "took a slot of port 4791");
        // SAFETY: the function takes nothing and may be called at any time. Should it not be
        // registered, neighbours find out by themselves that this process is gone.
        unsafe { libc::atexit(leaving::leave) };
        let gsi = Gsi::new(shared.slot(), shared.options().patience);
        Ok(self.network.get_or_init(|| Network {
            shared,
            gsi,
            locals: Locals::default(),
            groups: Groups::default(),
            forwarded: Mutex::default(),
            gathering,
            rooms,
            progress,
        }))
    }

    /// Queue pair 1, with which connections are made.
    ///
    /// # Errors
    /// When the network part cannot be opened.
    pub fn gsi(&self) -> Result<&Gsi, OpenError> {
        Ok(&self.network()?.gsi)
    }

    /// What governs how much of a connection is under way.
    pub(crate) fn congestion(&self) -> Algorithm {
        let network = self.network.get();
        network.map_or_else(Algorithm::default, |n| n.shared.options().congestion)
    }

    /// Whether it is this engine's.
    pub(crate) fn has_gsi(&self, gsi: &Gsi) -> bool {
        (self.network.get()).is_some_and(|network| std::ptr::eq(&network.gsi, gsi))
    }

    /// Looks at queue pair 1 when `fd`, which sees the end of another process, hangs up.
    pub(crate) fn watch_end(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self.network.get() {
            Some(network) => network.progress.watch_end(fd),
            None => Ok(()),
        }
    }

    /// There is something to do at `at`, which the progress thread may not know.
    pub(crate) fn deadline_moved(&self, at: Time) {
        if self.handover.deadline_moved(at) {
            self.wake();
        }
    }

    pub(crate) fn add_qp(
        &self,
        make: impl FnOnce(Qpn) -> Result<Arc<Qp>, NoMemory>,
    ) -> Result<Arc<Qp>, CreateError> {
        let range = self.numbers()?;
        let mut qps = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        qps.add(range, make)
    }

    /// The numbers that queue pairs, and other numbered objects, of this process may have.
    pub(crate) fn numbers(&self) -> Result<RangeInclusive<u32>, OpenError> {
        Ok(self.network()?.shared.qpns())
    }

    /// The queue pair of this number.
    pub(crate) fn qp(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        self.qps().get(qpn).map(Arc::clone)
    }

    /// When this returns, nobody handles packets for it any more.
    pub(crate) fn remove_qp(&self, qpn: Qpn) {
        let mut qps = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        let removed = qps.remove(qpn);
        drop(qps);
        drop(removed);
    }

    fn qps(&self) -> RwLockReadGuard<'_, QpTable> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for the frames of a queue pair for raw packets, which come by `fd`.
    pub(crate) fn add_raw(&self, qp: &Arc<Qp>, fd: BorrowedFd<'_>) -> io::Result<()> {
        if let Some(network) = self.network.get() {
            network.progress.watch_packets(fd)?;
        }
        let mut raw = self.raw.write().unwrap_or_else(PoisonError::into_inner);
        raw.push(Arc::downgrade(qp));
        Ok(())
    }

    /// When this returns, nobody receives frames for it any more.
    pub(crate) fn remove_raw(&self, qp: &Qp) {
        let mut raw = self.raw.write().unwrap_or_else(PoisonError::into_inner);
        raw.retain(|other| !std::ptr::eq(other.as_ptr(), qp));
    }

    /// A batch for sending.
    pub(crate) fn take_batch(&self) -> SendBatch {
        lock(&self.batches).pop().unwrap_or_default()
    }

    /// Gives it back.
    pub(crate) fn return_batch(&self, batch: SendBatch) {
        let mut batches = lock(&self.batches);
        if batches.len() < SPARE_BATCHES {
            batches.push(batch);
        }
    }

    /// A queue pair has more to send, after others had their turn.
    pub(crate) fn ready(&self, qp: Arc<Qp>) {
        lock(&self.ready).push(qp);
        self.has_turns.store(true, Ordering::Release);
        self.wake();
    }

    /// A queue pair wants to look at the clock at `at`.
    pub(crate) fn arm_timer(&self, qpn: Qpn, at: Time) {
        let is_first = self.timers.add(qpn, at);
        // A program that polls looks at the timers as well.
        if is_first && !self.handover.may_wait_for_look() {
            self.deadline_moved(at);
        }
    }

    /// A completion queue's notification is delayed, at most until then.
    pub(crate) fn delay_notification(&self, cq: &Arc<Cq>, until: Time) {
        self.delayed.add(cq, until);
        self.deadline_moved(until);
    }

    /// A completion queue overran.
    pub(crate) fn cq_overran(&self, cq: Arc<Cq>) {
        lock(&self.overran).push(cq);
        self.has_turns.store(true, Ordering::Release);
        self.wake();
    }

    /// There is something to do at once.
    pub(crate) fn wake(&self) {
        if let Some(network) = self.network.get()
            && !self.has_lost()
            && network.progress.wake().is_err_and(|error| is_loss(&error))
        {
            self.lost_descriptors();
        }
    }

    /// A program asked for a notification: it is about to wait in its own way.
    pub(crate) fn cq_armed(&self) {
        if self.handover.arm() {
            self.wake();
        }
    }

    /// The notification was given, or is not wanted any more.
    pub(crate) fn cq_disarmed(&self) {
        self.handover.disarm();
    }

    /// Does what there is to do, once. True when there was something.
    pub fn drive(&self) -> bool {
        self.drive_for(Driver::Other, urxe_net::now())
    }

    /// The same at `now`, or a moment later.
    fn drive_for(&self, driver: Driver, now: Time) -> bool {
        let Some(network) = self.network.get() else {
            return false;
        };
        if self.has_lost() {
            return false;
        }
        let _guard = PanicGuard(self);
        let mut worked = false;
        for local in network.locals().iter() {
            worked |= self.receive(local, driver);
        }
        if network.groups.any() {
            for joined in network.groups.list().iter() {
                worked |= self.receive_group(joined);
            }
        }
        worked |= self.receive_frames();
        worked |= self.run_timers(now);
        worked | self.run_leftovers(now)
    }

    /// Lets the queue pairs and completion queues whose time has come look at the clock.
    fn run_timers(&self, now: Time) -> bool {
        if self.next_timer() > now {
            return false;
        }
        for cq in self.delayed.take_due(now) {
            cq.delay_ended(now);
        }
        while let Some((at, qpn)) = self.timers.take_due(now) {
            let qps = self.qps();
            let held = regions();
            if let Some(qp) = qps.get(qpn) {
                qp.timer_fired(at, now, held.table());
            }
        }
        true
    }

    /// Queue pairs that wait for their next turn, completion queues that overran, and what waits at
    /// queue pair 1. No lock may be held.
    fn run_leftovers(&self, now: Time) -> bool {
        let Some(network) = self.network.get() else {
            return false;
        };
        let is_calm = !self.has_leftovers() && network.gsi.deadline() > now;
        if is_calm {
            return false;
        }
        self.has_turns.store(false, Ordering::Release);
        let ready = mem::take(&mut *lock(&self.ready));
        let overran = mem::take(&mut *lock(&self.overran));
        for qp in &ready {
            qp.take_turn(regions().table());
        }
        let granted = self.grant_passage();
        for cq in &overran {
            for qp in cq.users() {
                let qps = self.qps();
                // One that is being destroyed completes nothing any more.
                if qps
                    .get(qp.qpn())
                    .is_some_and(|known| Arc::ptr_eq(known, &qp))
                {
                    qp.fail(urxe_net::now(), regions().table());
                }
            }
        }
        let managed = network.gsi.run(&network.shared);
        managed || granted || !ready.is_empty() || !overran.is_empty()
    }

    /// Whether a turn waits to be taken.
    fn has_leftovers(&self) -> bool {
        self.has_turns.load(Ordering::Acquire)
            || self.passage_calls()
            || (self.network.get()).is_some_and(|network| network.gsi.has_work())
    }

    /// When there is something to do though nothing arrives.
    fn next_deadline(&self, network: &Network) -> Time {
        self.next_timer().min(self.next_service(network))
    }

    /// When there is something to do that polls do not see to.
    fn next_service(&self, network: &Network) -> Time {
        let locals = network.locals();
        let services = locals.iter().map(|local| local.endpoint.next_deadline());
        services.fold(network.gsi.deadline(), Time::min)
    }

    fn next_timer(&self) -> Time {
        self.timers.next().min(self.delayed.next())
    }
}
