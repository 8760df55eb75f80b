//! The engine: moves packets between the sockets and the queue pairs.
//!
//! The calling thread does the work: a post sends at once or is coalesced with the posts that
//! follow (`gathering`); a poll and a blocking wait receive. The progress thread (`progress`) does
//! it while no thread of the program calls.
//!
//! Locks, in the order in which they are taken:
//!
//! 1. the lock for opening an address;
//! 2. the list of local addresses, or of multicast groups, for reading;
//! 3. the receive buffers of a socket;
//! 4. the table of queue pairs, for reading;
//! 5. the table of memory regions, for reading;
//! 6. a queue pair;
//! 7. the lists of queue pairs with deferred sends, and of those that wait for room in a socket.
//!
//! For raw packets, the list of their queue pairs for reading and the buffer of one of them take
//! the place of 2 to 4.
//!
//! To destroy a queue pair or a region, a thread locks its table for writing. So it waits until the
//! packets that are being handled are done.

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

/// The limit of bytes in the out-of-order queues of all connections: the windows of 64 connections
/// that recover from a loss at the same time.
const OUT_OF_ORDER_BYTES: usize = 32 << 20;

/// The number of send batches that are kept for reuse: as many as threads send at once.
const SPARE_BATCHES: usize = 4;

static ENGINE: PerProcess<Engine> = PerProcess::new();

/// The engine of this process.
pub fn get() -> &'static Engine {
    ENGINE.get(Engine::new)
}

/// The engine of one process: its sockets, queue pairs, timers and progress thread.
#[derive(Debug)]
pub struct Engine {
    /// A random number that distinguishes the reports of this process from those of others.
    instance: u64,
    network: OnceLock<Network>,
    opening: Mutex<()>,
    qps: RwLock<QpTable>,
    /// Queue pairs for raw packets, each of which receives from a socket of its own.
    raw: RwLock<Vec<Weak<Qp>>>,
    timers: Timers,
    delayed: Delayed,
    /// The limits of bytes in flight to each process of this host.
    passages: Passages,
    /// Queue pairs that have more to send than one send quantum.
    ready: Mutex<Vec<Arc<Qp>>>,
    /// Set when `ready` or `overran` may have entries; read without a lock.
    has_turns: AtomicBool,
    /// Completion queues that overran; their queue pairs go to the error state.
    overran: Mutex<Vec<Arc<Cq>>>,
    #[expect(
        clippy::vec_box,
        reason = "a batch is moved several times for each send"
    )]
    batches: Mutex<Vec<Box<SendBatch>>>,
    /// The memory that is left for out-of-order queues.
    out_of_order: Arc<OutOfOrderBudget>,
    /// The hand-off between the progress thread and the program's threads.
    handover: Handover,
    polling: Polling,
    counters: EngineCounters,
    /// A thread panicked, and the queue pairs are not yet in the error state.
    has_panicked: AtomicBool,
    /// The program has closed descriptors of this engine.
    has_lost: AtomicBool,
    /// The counters of each device, by its name.
    counted: Mutex<BTreeMap<String, Arc<DeviceCounters>>>,
}

/// The kind of thread that receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Driver {
    /// A thread of the program that polls, and may answer the messages that it gets.
    Poll,
    /// The progress thread, or a thread of the program in a blocking call.
    Other,
}

/// The part of the engine that exists once the first object has needed the network.
struct Network {
    shared: Arc<Shared>,
    locals: Locals,
    groups: Groups,
    /// Queue pair 1.
    gsi: Gsi,
    /// Receive buffers for datagrams that other processes forwarded.
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

    /// Returns the random number of this process, which its reports carry.
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    /// Returns the counters of the engine.
    pub fn counters(&self) -> &EngineCounters {
        &self.counters
    }

    /// Returns the memory budget that the out-of-order queues of all connections share.
    pub(crate) fn out_of_order(&self) -> &Arc<OutOfOrderBudget> {
        &self.out_of_order
    }

    /// Returns the counters of the network part, or `None` before it is opened.
    pub fn net_counters(&self) -> Option<&NetCounters> {
        self.network
            .get()
            .map(|network| &**network.shared.counters())
    }

    /// Returns the network part. The first call takes this process's slot of port 4791 and starts
    /// the progress thread.
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
        // SAFETY: `atexit` takes an `extern "C"` function that does not unwind: `leave` catches
        // panics. It stays loaded, since the library is never unloaded. If the registration fails,
        // same-host peers notice the end of this process by its liveness socket.
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

    /// Returns queue pair 1, which carries the connection manager's messages.
    ///
    /// # Errors
    /// [`OpenError`] when the network part cannot be opened.
    pub fn gsi(&self) -> Result<&Gsi, OpenError> {
        Ok(&self.network()?.gsi)
    }

    /// Returns the congestion control algorithm of new connections.
    pub(crate) fn congestion(&self) -> Algorithm {
        let network = self.network.get();
        network.map_or_else(Algorithm::default, |n| n.shared.options().congestion)
    }

    /// Returns whether `gsi` belongs to this engine.
    pub(crate) fn has_gsi(&self, gsi: &Gsi) -> bool {
        (self.network.get()).is_some_and(|network| std::ptr::eq(&network.gsi, gsi))
    }

    /// Has the progress thread serve queue pair 1 when `fd`, a socket to another process, hangs up.
    pub(crate) fn watch_end(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self.network.get() {
            Some(network) => network.progress.watch_end(fd),
            None => Ok(()),
        }
    }

    /// Wakes the progress thread if it would sleep past `at`, when there is work to do.
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

    /// Returns the range of numbers for queue pairs and other numbered objects of this process.
    pub(crate) fn numbers(&self) -> Result<RangeInclusive<u32>, OpenError> {
        Ok(self.network()?.shared.qpns())
    }

    /// Returns the queue pair with this number.
    pub(crate) fn qp(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        self.qps().get(qpn).map(Arc::clone)
    }

    /// Removes a queue pair from the table. When this returns, no thread handles packets for it.
    pub(crate) fn remove_qp(&self, qpn: Qpn) {
        let mut qps = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        let removed = qps.remove(qpn);
        drop(qps);
        drop(removed);
    }

    fn qps(&self) -> RwLockReadGuard<'_, QpTable> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to receive the frames of a queue pair for raw packets, which arrive at `fd`.
    pub(crate) fn add_raw(&self, qp: &Arc<Qp>, fd: BorrowedFd<'_>) -> io::Result<()> {
        if let Some(network) = self.network.get() {
            network.progress.watch_packets(fd)?;
        }
        let mut raw = self.raw.write().unwrap_or_else(PoisonError::into_inner);
        raw.push(Arc::downgrade(qp));
        Ok(())
    }

    /// Removes a queue pair for raw packets. When this returns, no thread receives frames for it.
    pub(crate) fn remove_raw(&self, qp: &Qp) {
        let mut raw = self.raw.write().unwrap_or_else(PoisonError::into_inner);
        raw.retain(|other| !std::ptr::eq(other.as_ptr(), qp));
    }

    /// Takes a batch for sending: a kept one, or a new one.
    pub(crate) fn take_batch(&self) -> Box<SendBatch> {
        lock(&self.batches).pop().unwrap_or_default()
    }

    /// Returns a batch, for reuse.
    pub(crate) fn return_batch(&self, batch: Box<SendBatch>) {
        let mut batches = lock(&self.batches);
        if batches.len() < SPARE_BATCHES {
            batches.push(batch);
        }
    }

    /// Notes that a queue pair has more to send than one send quantum; others are served first.
    pub(crate) fn ready(&self, qp: Arc<Qp>) {
        lock(&self.ready).push(qp);
        self.has_turns.store(true, Ordering::Release);
        self.wake();
    }

    /// Sets a timer for a queue pair, which fires at `at` or later.
    pub(crate) fn arm_timer(&self, qpn: Qpn, at: Time) {
        let is_first = self.timers.add(qpn, at);
        // While the program polls, its polls run the timers.
        if is_first && !self.handover.may_wait_for_look() {
            self.deadline_moved(at);
        }
    }

    /// Notes that the notification of a completion queue is delayed until `until` at most.
    pub(crate) fn delay_notification(&self, cq: &Arc<Cq>, until: Time) {
        self.delayed.add(cq, until);
        self.deadline_moved(until);
    }

    /// Notes that a completion queue overran.
    pub(crate) fn cq_overran(&self, cq: Arc<Cq>) {
        lock(&self.overran).push(cq);
        self.has_turns.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the progress thread, which has work to do at once.
    pub(crate) fn wake(&self) {
        if let Some(network) = self.network.get()
            && !self.has_lost()
            && network.progress.wake().is_err_and(|error| is_loss(&error))
        {
            self.lost_descriptors();
        }
    }

    /// Notes that the program armed a completion queue: it may sleep outside urxe's calls.
    pub(crate) fn cq_armed(&self) {
        if self.handover.arm() {
            self.wake();
        }
    }

    /// Notes that a notification was given, or is not wanted any more.
    pub(crate) fn cq_disarmed(&self) {
        self.handover.disarm();
    }

    /// Receives one batch from each socket, and runs timers and pending work, once. True when there
    /// was any.
    pub fn drive(&self) -> bool {
        self.drive_for(Driver::Other, urxe_net::now())
    }

    /// [`Engine::drive`] for one kind of thread, with `now` already read.
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

    /// Runs the timers that are due, of queue pairs and of completion queues. True when there were
    /// any.
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

    /// Serves queue pairs with more to send, waiting connections, completion queues that overran,
    /// and queue pair 1. The caller must hold no lock.
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
                // A queue pair that is being destroyed is no longer in the table, and completes
                // nothing.
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

    /// Returns whether [`Engine::run_leftovers`] has work to do.
    fn has_leftovers(&self) -> bool {
        self.has_turns.load(Ordering::Acquire)
            || self.passage_calls()
            || (self.network.get()).is_some_and(|network| network.gsi.has_work())
    }

    /// Returns the time of the next work that no packet brings about.
    fn next_deadline(&self, network: &Network) -> Time {
        self.next_timer().min(self.next_service(network))
    }

    /// Returns the time of the next work that the program's polls do not do.
    fn next_service(&self, network: &Network) -> Time {
        let locals = network.locals();
        let services = locals.iter().map(|local| local.endpoint.next_deadline());
        services.fold(network.gsi.deadline(), Time::min)
    }

    fn next_timer(&self) -> Time {
        self.timers.next().min(self.delayed.next())
    }
}
