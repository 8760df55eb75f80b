//! The engine: moves packets between the sockets and the queue pairs.
//!
//! Whoever calls in does the work: posting sends at once, polling and waiting receive. The progress
//! thread (`progress`) does it while nobody calls.
//!
//! Locks, in the order in which they are taken: the list of local addresses or of multicast groups for
//! reading, a socket's receive buffers, the table of queue pairs for reading, the table of memory
//! regions for reading, a queue pair. For raw packets, the list of their queue pairs for reading and the
//! buffer of one come before the last two. Destroying a queue pair or a region takes its table for
//! writing, and so waits for what is being handled.

mod counting;
mod delayed;
mod groups;
mod progress;
mod table;
mod timers;

pub use counting::EngineCounters;

use crate::cm::gsi::Gsi;
use crate::counters::DeviceCounters;
use crate::cq::Cq;
use crate::event_queue::lock;
use crate::net::{
    self, Datagram, Endpoint, LocalAddress, NetCounters, OpenError, RecvBatch, SendBatch, Shared,
};
use crate::per_process::PerProcess;
use crate::qp::{CreateError, Qp};
use crate::regions::{RegionTable, regions};
use crate::stat;
use crate::thread;
use crossbeam::utils::CachePadded;
use delayed::Delayed;
use groups::Groups;
use progress::Progress;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;
use std::{io, mem};
use table::QpTable;
use timers::Timers;
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::time::Time;
use urxe_proto::ud::NetworkHeader;
use urxe_proto::wire::Packet;

/// How many polls in vain are made in a row before each gives way to whoever else wants the
/// processor: the peer may be waiting for it. On an idle processor that costs a system call.
const SPINS: u32 = 64;

/// Batches for sending that are kept; as many as threads send at once.
const SPARE_BATCHES: usize = 4;

static ENGINE: PerProcess<Engine> = PerProcess::new();

/// The engine of this process.
pub fn get() -> &'static Engine {
    ENGINE.get(Engine::new)
}

/// This process is a forked child, and the engine its parent's.
pub(crate) fn forget() {
    ENGINE.forget();
}

/// What moves packets.
#[derive(Debug)]
pub struct Engine {
    network: OnceLock<Network>,
    opening: Mutex<()>,
    qps: RwLock<QpTable>,
    /// Queue pairs for raw packets, which receive their frames themselves.
    raw: RwLock<Vec<Weak<Qp>>>,
    timers: Timers,
    delayed: Delayed,
    /// Queue pairs that have more to send than their turn allowed.
    ready: Mutex<Vec<Arc<Qp>>>,
    /// Completion queues that overran, and whose queue pairs go to error.
    overran: Mutex<Vec<Arc<Cq>>>,
    batches: Mutex<Vec<SendBatch>>,
    /// Completion queues that a program waits for.
    armed: AtomicUsize,
    /// Polls in a row that found nothing.
    idle_polls: CachePadded<AtomicU32>,
    counters: EngineCounters,
    /// What is counted of each device, by its name.
    counted: Mutex<BTreeMap<String, Arc<DeviceCounters>>>,
}

/// What is there once the first queue pair was made.
struct Network {
    shared: Arc<Shared>,
    locals: RwLock<Vec<Arc<Local>>>,
    groups: Groups,
    /// Queue pair 1.
    gsi: Gsi,
    /// For datagrams that other processes passed on.
    forwarded: Mutex<Receiver>,
    progress: Arc<Progress>,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network")
            .field("slot", &self.shared.slot())
            .finish_non_exhaustive()
    }
}

/// A local address with its sockets and what it is received with.
pub struct Local {
    endpoint: Endpoint,
    receiver: Mutex<Receiver>,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Local")
            .field(&self.endpoint.address())
            .finish()
    }
}

impl Local {
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// Buffers for receiving, and the queue pairs that what was received is for.
#[derive(Default)]
struct Receiver {
    batch: RecvBatch,
    touched: Vec<Arc<Qp>>,
}

impl Engine {
    fn new() -> Self {
        Engine {
            network: OnceLock::new(),
            opening: Mutex::new(()),
            qps: RwLock::default(),
            raw: RwLock::default(),
            timers: Timers::new(),
            delayed: Delayed::new(),
            ready: Mutex::default(),
            overran: Mutex::default(),
            batches: Mutex::default(),
            armed: AtomicUsize::new(0),
            idle_polls: CachePadded::default(),
            counters: EngineCounters::default(),
            counted: Mutex::default(),
        }
    }

    /// What it counts.
    pub fn counters(&self) -> &EngineCounters {
        &self.counters
    }

    /// What the network part counts, once there is one.
    pub fn net_counters(&self) -> Option<&NetCounters> {
        self.network
            .get()
            .map(|network| &**network.shared.counters())
    }

    /// Takes this process's slot of port 4791 and starts the progress thread, the first time.
    fn network(&self) -> Result<&Network, OpenError> {
        let _opening = lock(&self.opening);
        if let Some(network) = self.network.get() {
            return Ok(network);
        }
        let shared = Shared::new(net::Options::from_env()?)?;
        let progress = Progress::start(shared.fd()).map_err(|source| OpenError::System {
            what: "starting the progress thread",
            source,
        })?;
        tracing::debug!(slot = shared.slot(), "took a slot of port 4791");
        // SAFETY: the function takes nothing and may be called at any time. Should it not be
        // registered, neighbours find out by themselves that this process is gone.
        unsafe { libc::atexit(leave) };
        let gsi = Gsi::new(shared.slot());
        Ok(self.network.get_or_init(|| Network {
            shared,
            gsi,
            locals: RwLock::default(),
            groups: Groups::default(),
            forwarded: Mutex::default(),
            progress,
        }))
    }

    /// The sockets of an address; opened by the first who asks.
    pub(crate) fn local(&self, address: LocalAddress) -> Result<Arc<Local>, OpenError> {
        let network = self.network()?;
        let mut locals = network
            .locals
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(local) = locals
            .iter()
            .find(|local| local.endpoint.address() == address)
        {
            return Ok(Arc::clone(local));
        }
        let endpoint = network.shared.open(address)?;
        tracing::debug!(%address, "opened port 4791");
        let local = Arc::new(Local {
            endpoint,
            receiver: Mutex::default(),
        });
        network
            .progress
            .watch(local.endpoint.fd(), local.endpoint.service_fd())
            .map_err(|source| OpenError::System {
                what: "watching a socket",
                source,
            })?;
        locals.push(Arc::clone(&local));
        Ok(local)
    }

    /// The sockets of an address that are open.
    pub(crate) fn local_of(&self, gid: Gid) -> Option<Arc<Local>> {
        let ip = gid.to_ip();
        let locals = self.network.get()?.locals();
        let found = locals
            .iter()
            .find(|local| local.endpoint.address().ip() == ip);
        found.map(Arc::clone)
    }

    /// Until when `URXE_FAULTS` holds packets of an address back.
    pub(crate) fn held_until(&self, gid: Gid) -> Time {
        self.local_of(gid)
            .map_or(Time::NEVER, |local| local.endpoint.held_until())
    }

    /// Queue pair 1, with which connections are made.
    ///
    /// # Errors
    /// When the network part cannot be opened.
    pub fn gsi(&self) -> Result<&Gsi, OpenError> {
        Ok(&self.network()?.gsi)
    }

    /// Whether it is this engine's.
    pub(crate) fn has_gsi(&self, gsi: &Gsi) -> bool {
        (self.network.get()).is_some_and(|network| std::ptr::eq(&network.gsi, gsi))
    }

    /// Opens one of these addresses, if none is open yet, so that a port that is taken is known
    /// before a connection is made.
    ///
    /// # Errors
    /// That of the first, when none can be opened.
    pub(crate) fn open_any(
        &self,
        addresses: impl Iterator<Item = LocalAddress>,
    ) -> Result<(), OpenError> {
        let mut first = None;
        for address in addresses {
            match self.local(address) {
                Ok(_) => return Ok(()),
                Err(error) => {
                    tracing::warn!("{error}");
                    first.get_or_insert(error);
                }
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Opens all of these addresses: whoever takes datagrams takes them at each.
    ///
    /// # Errors
    /// That of the first, when none can be opened.
    pub(crate) fn open_all(
        &self,
        addresses: impl Iterator<Item = LocalAddress>,
    ) -> Result<(), OpenError> {
        let opened: Vec<_> = addresses.map(|address| self.local(address)).collect();
        let is_any_open = opened.iter().any(Result::is_ok);
        for error in opened.into_iter().filter_map(Result::err) {
            if !is_any_open {
                return Err(error);
            }
            tracing::warn!("{error}");
        }
        Ok(())
    }

    /// Packets that `URXE_FAULTS` delays count as sent, and are to arrive though their queue pair is
    /// destroyed: waits until they are out.
    pub(crate) fn wait_for_delayed(&self) {
        /// No fault delays for longer than a person would wait.
        const PATIENCE: Duration = Duration::from_secs(1);
        let Some(network) = self.network.get() else {
            return;
        };
        let start = net::now();
        loop {
            let now = net::now();
            let held = |local: &Arc<Local>| local.endpoint.held_until();
            let at = network
                .locals()
                .iter()
                .map(held)
                .fold(Time::NEVER, Time::min);
            if at == Time::NEVER || now.since(start) > PATIENCE {
                return;
            }
            self.deadline_moved(at);
            std::thread::sleep(at.since(now).max(Duration::from_millis(1)));
        }
    }

    /// There is something to do at `at`, which the progress thread may not know.
    pub(crate) fn deadline_moved(&self, at: Time) {
        if let Some(network) = self.network.get() {
            network.progress.deadline_moved(at);
        }
    }

    pub(crate) fn add_qp(&self, make: impl FnOnce(Qpn) -> Arc<Qp>) -> Result<Arc<Qp>, CreateError> {
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

    fn receive_frames(&self) -> bool {
        let raw = self.raw.read().unwrap_or_else(PoisonError::into_inner);
        let pairs = raw.iter().filter_map(Weak::upgrade);
        pairs.fold(false, |worked, qp| worked | qp.receive_frames())
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
        self.wake();
    }

    /// A queue pair wants to look at the clock at `at`.
    pub(crate) fn arm_timer(&self, qpn: Qpn, at: Time) {
        if self.timers.add(qpn, at) {
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
        self.wake();
    }

    /// There is something to do at once.
    pub(crate) fn wake(&self) {
        if let Some(network) = self.network.get() {
            network.progress.wake();
        }
    }

    /// A program asked for a notification: it is about to wait in its own way.
    pub(crate) fn cq_armed(&self) {
        self.armed.fetch_add(1, Ordering::SeqCst);
        if let Some(network) = self.network.get() {
            network.progress.cq_armed();
        }
    }

    /// The notification was given, or is not wanted any more.
    pub(crate) fn cq_disarmed(&self) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }

    /// The program polls.
    pub(crate) fn polled(&self) {
        if let Some(network) = self.network.get() {
            network.progress.polled();
        }
    }

    /// The program found nothing: does the work of the network.
    pub(crate) fn poll(&self) {
        if let Some(network) = self.network.get() {
            network.progress.received();
        }
        if self.drive() {
            self.idle_polls.store(0, Ordering::Relaxed);
        } else if self.idle_polls.fetch_add(1, Ordering::Relaxed) >= SPINS {
            self.idle_polls.store(SPINS, Ordering::Relaxed);
            rustix::thread::sched_yield();
        }
    }

    /// Does what there is to do, once. True when there was something.
    pub fn drive(&self) -> bool {
        let Some(network) = self.network.get() else {
            return false;
        };
        let mut worked = false;
        for local in network.locals().iter() {
            worked |= self.receive(local);
        }
        for joined in network.groups.list().iter() {
            worked |= self.receive_group(joined);
        }
        worked |= self.receive_frames();
        worked |= self.run_timers();
        worked | self.run_leftovers()
    }

    /// What only the progress thread looks at: datagrams from other processes, and what processes
    /// tell each other about the port.
    fn serve(&self, network: &Network) {
        let mut receiver = lock(&network.forwarded);
        self.handle_batch(&mut receiver, |batch, f| {
            match network.shared.recv_forwarded(batch, f) {
                Ok(count) => count > 0,
                Err(error) => {
                    tracing::warn!(%error, "the socket for forwarded packets failed");
                    false
                }
            }
        });
        network.shared.answer_questions(stat::answer);
        for local in network.locals().iter() {
            self.handle_batch(&mut receiver, |batch, f| {
                if let Err(error) = local.endpoint.service(batch, f) {
                    tracing::warn!(%error, "port sharing failed");
                }
                false
            });
        }
    }

    /// Receives one batch from an address, unless another thread is at it.
    fn receive(&self, local: &Local) -> bool {
        let mut receiver = match local.receiver.try_lock() {
            Ok(receiver) => receiver,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return false,
        };
        let worked = self.handle_batch(&mut receiver, |batch, f| {
            match local.endpoint.recv(batch, f) {
                Ok(count) => count > 0,
                Err(error) => {
                    tracing::warn!(%error, address = %local.endpoint.address(), "receiving failed");
                    false
                }
            }
        });
        if worked {
            // What is to be passed on may have to wait, and only the progress thread serves that.
            self.deadline_moved(local.endpoint.next_deadline());
        }
        worked
    }

    /// Hands a batch to its queue pairs, and then lets each send once.
    fn handle_batch(
        &self,
        receiver: &mut Receiver,
        receive: impl FnOnce(&mut RecvBatch, &mut dyn FnMut(&Datagram<'_>)) -> bool,
    ) -> bool {
        let Receiver { batch, touched } = receiver;
        let now = net::now();
        let qps = self.qps();
        let held = regions();
        let worked = receive(batch, &mut |datagram| {
            self.handle(&qps, held.table(), now, datagram, touched);
        });
        for qp in touched.drain(..) {
            qp.go_on(held.table());
        }
        worked
    }

    fn handle(
        &self,
        qps: &QpTable,
        regions: &RegionTable,
        now: Time,
        datagram: &Datagram<'_>,
        touched: &mut Vec<Arc<Qp>>,
    ) {
        let packet = match Packet::parse(datagram.packet()) {
            Ok(packet) => packet,
            Err(error) => {
                tracing::debug!(src = %datagram.src, %error, "dropped a malformed packet");
                self.counters.malformed.add(1);
                if let Some(network) = self.network.get() {
                    network.shared.count_bad(datagram.dst);
                }
                return;
            }
        };
        let dest_qp = packet.header.bth.dest_qp;
        if dest_qp == Qpn::GSI {
            if let Some(network) = self.network.get() {
                network.gsi.arrived(datagram, &packet);
            }
            return;
        }
        let receivers = match qps.get(dest_qp) {
            Some(qp) => std::slice::from_ref(qp),
            None if dest_qp == Qpn::MULTICAST => qps.members(datagram.dst),
            None => &[],
        };
        if receivers.is_empty() {
            self.counters.unknown_qp.add(1);
            return;
        }
        let network = network_header(datagram);
        for qp in receivers {
            tracing::trace!(qp = %qp.qpn(), opcode = %packet.header.bth.opcode,
                psn = %packet.header.bth.psn, len = packet.payload.len(), "packet");
            if qp.handle(now, &network, &packet, regions) {
                touched.push(Arc::clone(qp));
            }
        }
    }

    /// Lets the queue pairs and completion queues whose time has come look at the clock.
    fn run_timers(&self) -> bool {
        let now = net::now();
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
    fn run_leftovers(&self) -> bool {
        let ready = mem::take(&mut *lock(&self.ready));
        let overran = mem::take(&mut *lock(&self.overran));
        for qp in &ready {
            qp.take_turn(regions().table());
        }
        for cq in &overran {
            for qp in cq.users() {
                let qps = self.qps();
                // One that is being destroyed completes nothing any more.
                if qps
                    .get(qp.qpn())
                    .is_some_and(|known| Arc::ptr_eq(known, &qp))
                {
                    qp.fail(net::now(), regions().table());
                }
            }
        }
        let managed = (self.network.get()).is_some_and(|network| network.gsi.run(&network.shared));
        managed || !ready.is_empty() || !overran.is_empty()
    }

    /// Whether a turn waits to be taken.
    fn has_leftovers(&self) -> bool {
        !lock(&self.ready).is_empty()
            || !lock(&self.overran).is_empty()
            || (self.network.get()).is_some_and(|network| network.gsi.has_work())
    }

    /// When there is something to do though nothing arrives.
    fn next_deadline(&self, network: &Network) -> Time {
        let locals = network.locals();
        let services = locals.iter().map(|local| local.endpoint.next_deadline());
        let first = self.next_timer().min(network.gsi.deadline());
        services.fold(first, Time::min)
    }

    fn next_timer(&self) -> Time {
        self.timers.next().min(self.delayed.next())
    }

    /// Waits until `fd` is readable, and does the work of the network meanwhile. A signal ends the
    /// wait where it would end a read.
    pub(crate) fn wait_driving(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        progress::unless_it_goes_on(progress::wait_driving(self, fd))
    }
}

/// Waits until `fd` is readable, and does nothing meanwhile. A signal ends the wait where it would
/// end a read.
pub(crate) fn wait(fd: BorrowedFd<'_>) -> io::Result<()> {
    progress::unless_it_goes_on(progress::wait(fd))
}

impl Network {
    fn locals(&self) -> RwLockReadGuard<'_, Vec<Arc<Local>>> {
        self.locals.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process ends in an orderly way: its neighbours on the port shall not notice.
extern "C" fn leave() {
    // A panic must not keep the process from ending as it wanted to.
    let _ = std::panic::catch_unwind(leave_endpoints);
}

fn leave_endpoints() {
    if let Some(network) = get().network.get()
        // A forked child ends too, and the sockets are its parent's.
        && network.shared.is_ours()
        && let Ok(locals) = network.locals.try_read()
    {
        stat::say_farewell();
        drop(locals);
        take_leave_of_peers();
        network.gsi.leave();
        for local in network.locals().iter() {
            local.endpoint.leave();
        }
    }
}

/// Queue pairs that the program leaves to its end may owe their peers answers still. Another thread
/// sends them: the one that ends the process may be at anything, and have any lock.
fn take_leave_of_peers() {
    const PATIENCE: Duration = Duration::from_millis(100);
    let (tell, hear) = mpsc::channel();
    let leaving = thread::spawn("urxe-farewell", move || {
        let engine = get();
        let qps: Vec<_> = engine.qps().iter().map(Arc::clone).collect();
        qps.iter().for_each(|qp| qp.take_leave());
        if !qps.is_empty() {
            engine.wait_for_delayed();
        }
        // Nobody hears it when it took too long.
        let _ = tell.send(());
    });
    if leaving.is_ok() {
        let _ = hear.recv_timeout(PATIENCE);
    }
}

/// What is known of a datagram below UDP. The flow label is not asked for.
fn network_header(datagram: &Datagram<'_>) -> NetworkHeader {
    NetworkHeader {
        source: Gid::from_ip(datagram.src.ip()),
        destination: Gid::from_ip(datagram.dst.ip()),
        traffic_class: datagram.tos,
        flow_label: 0,
        hop_limit: datagram.ttl,
    }
}
