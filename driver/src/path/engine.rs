//! The state of one process: its sockets, queue pairs, timers and lists.

use super::deferred_lists::DeferredLists;
use super::groups::Groups;
use super::mtu_check::MtuCheck;
use super::timer_fd::TimerFd;
use super::writable::WritableWaiters;
use crate::loss::ClosedDescriptors;
use crate::ports::{BatchPool, LocalPort, Ports, Receiver, Waker, WatchSet};
use crate::queues::cq::{Cq, CqMonitor};
use crate::queues::gsi::Gsi;
use crate::queues::qp::Qp;
use crate::queues::table::QpTable;
use crate::scheduling::affinity::Affinities;
use crate::scheduling::blocking::ReceiveBeforeSleep;
use crate::scheduling::destinations::DestinationLimiters;
use crate::scheduling::polling::Polling;
use crate::scheduling::timers::Timers;
use crate::scheduling::watchdog::Watchdog;
use crate::sync::{Mutex, lock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};
use urxe_net::{Counter, NetCounters, Shared, random};
use urxe_proto::ids::Qpn;
use urxe_proto::rc::OutOfOrderBudget;

/// The limit of bytes in the out-of-order queues of all connections: the windows of 64 connections
/// that recover from a loss at the same time.
const OUT_OF_ORDER_BYTES: usize = 32 << 20;

/// The counters of the engine, beside [`urxe_net::NetCounters`] and those of each queue pair.
#[derive(Debug, Default)]
pub struct EngineCounters {
    /// Packets that violate the wire format.
    pub malformed: Counter,
    /// Packets for a queue pair that does not exist.
    pub unknown_qp: Counter,
    /// Times that the progress thread woke up.
    pub wakeups: Counter,
    /// Sends that were deferred, and sent in one batch with later ones.
    pub coalesced_sends: Counter,
    /// Times that the flush timer expired for the deferred sends of a queue pair.
    pub flush_timeouts: Counter,
    /// Acknowledgements that were delayed for the program's answer.
    pub delayed_acks: Counter,
    /// Awaited writes that arrived before a completion was returned to an application that polls
    /// memory.
    pub writes_awaited: Counter,
    /// Timeouts of packets that are longer than the path's MTU, or may be.
    pub path_mtu_exceeded: Counter,
    /// Times that all queue pairs failed after a panic.
    pub panics: Counter,
}

/// The engine of one process: its sockets, queue pairs, timers and progress thread.
#[derive(Debug)]
pub struct Engine {
    /// A random number that distinguishes the reports of this process from those of others.
    pub(super) instance: u64,
    pub(super) network: OnceLock<Network>,
    pub(super) opening: Mutex<()>,
    pub(super) loss: Arc<ClosedDescriptors>,
    pub(super) waker: Arc<Waker>,
    pub(super) qps: Arc<QpTable>,
    /// Queue pairs for raw packets, each of which receives from a socket of its own.
    pub(super) raw: RwLock<Vec<Weak<Qp>>>,
    /// Set when `raw` has entries; read without a lock.
    pub(super) has_raw: AtomicBool,
    pub(super) cqs: Arc<CqMonitor<Cq>>,
    pub(super) timers: Timers,
    /// The limits of bytes in flight to each process of this host.
    pub(super) limiters: DestinationLimiters<Qp>,
    /// Queue pairs that have more to send than one budget.
    pub(super) ready: Mutex<Vec<Arc<Qp>>>,
    /// Set when `ready` may have entries; read without a lock.
    pub(super) has_ready: AtomicBool,
    pub(super) batches: Arc<BatchPool>,
    /// The memory that is left for out-of-order queues.
    pub(super) out_of_order: Arc<OutOfOrderBudget>,
    pub(super) polling: Polling,
    pub(super) affinities: Affinities,
    pub(super) receive_before_sleep: ReceiveBeforeSleep,
    pub(super) counters: EngineCounters,
    pub(super) mtu_check: MtuCheck,
    /// A thread panicked, and the queue pairs are not yet in the error state.
    pub(super) has_panicked: AtomicBool,
}

/// The part of the engine that exists once the first object has needed the network.
pub(super) struct Network {
    pub(super) shared: Arc<Shared>,
    pub(super) ports: Arc<Ports>,
    pub(super) groups: Groups,
    /// Queue pair 1.
    pub(super) gsi: Gsi,
    /// Receive buffers for datagrams that other processes forwarded.
    pub(super) forwarded: Mutex<Receiver>,
    /// Queue pairs with deferred sends or a delayed ACK.
    pub(super) deferred: DeferredLists,
    /// Queue pairs that wait for a socket to have room.
    pub(super) writable: WritableWaiters,
    pub(super) watch: Arc<WatchSet>,
    /// Wakes the progress thread when the program's polls have stopped.
    pub(super) watchdog: Watchdog<TimerFd>,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network")
            .field("slot", &self.shared.slot())
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(super) fn new() -> Self {
        let loss = Arc::default();
        let waker = Arc::new(Waker::new(&loss));
        Engine {
            instance: random::any(),
            network: OnceLock::new(),
            opening: Mutex::new(()),
            loss,
            qps: Arc::default(),
            raw: RwLock::default(),
            has_raw: AtomicBool::new(false),
            cqs: Arc::new(CqMonitor::new(&waker)),
            waker,
            timers: Timers::new(),
            limiters: DestinationLimiters::default(),
            ready: Mutex::default(),
            has_ready: AtomicBool::new(false),
            batches: Arc::default(),
            out_of_order: Arc::new(OutOfOrderBudget::new(OUT_OF_ORDER_BYTES)),
            polling: Polling::default(),
            affinities: Affinities::default(),
            receive_before_sleep: ReceiveBeforeSleep::new(),
            counters: EngineCounters::default(),
            mtu_check: MtuCheck::default(),
            has_panicked: AtomicBool::new(false),
        }
    }

    /// Returns the counters of the engine.
    pub fn counters(&self) -> &EngineCounters {
        &self.counters
    }

    /// Returns the counters of the network part, or `None` before it is opened.
    pub fn net_counters(&self) -> Option<&NetCounters> {
        let network = self.network.get()?;
        Some(network.shared.counters())
    }

    /// Returns the number of connections that wait for room to send to a process of this host.
    pub fn connections_awaiting_quantum(&self) -> usize {
        self.limiters.waiting()
    }

    /// Returns how often a connection has waited for room to send to a process of this host.
    pub fn quantum_waits(&self) -> u64 {
        self.limiters.waits()
    }

    /// Returns the number of receive sockets of all open addresses.
    pub fn receive_sockets(&self) -> usize {
        let ports = self.network.get().map(|network| network.ports.list());
        let sockets = |port: &Arc<LocalPort>| port.receive_sockets().count();
        ports.map_or(0, |ports| ports.iter().map(sockets).sum())
    }

    /// Returns the completion queues that need the progress thread.
    pub(crate) fn cqs(&self) -> &Arc<CqMonitor<Cq>> {
        &self.cqs
    }

    /// Returns the limits of bytes in flight to each process of this host.
    pub(crate) fn limiters(&self) -> &DestinationLimiters<Qp> {
        &self.limiters
    }

    /// Returns the record of the program's polls.
    pub(crate) fn polling(&self) -> &Polling {
        &self.polling
    }

    /// Returns the queue pair with this number.
    pub(crate) fn qp(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        self.qps.find(qpn)
    }

    /// Removes a queue pair from the table. When this returns, no thread handles packets for it.
    pub(crate) fn remove_qp(&self, qpn: Qpn) {
        let removed = self.qps.write().remove(qpn);
        drop(removed);
    }

    /// Returns the queue pairs for raw packets.
    pub(super) fn raw(&self) -> RwLockReadGuard<'_, Vec<Weak<Qp>>> {
        self.raw.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a queue pair for raw packets. When this returns, no thread receives frames for it.
    pub(crate) fn remove_raw(&self, qp: &Qp) {
        let mut raw = self.raw.write().unwrap_or_else(PoisonError::into_inner);
        raw.retain(|other| !std::ptr::eq(other.as_ptr(), qp));
        self.has_raw.store(!raw.is_empty(), Ordering::Release);
    }

    /// Adds a queue pair that has more to send than one budget.
    pub(super) fn add_ready(&self, qp: Arc<Qp>) {
        lock(&self.ready).push(qp);
        self.has_ready.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Removes the queue pairs that have more to send than one budget, and returns them.
    pub(super) fn take_ready(&self) -> Vec<Arc<Qp>> {
        if !self.has_ready.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut ready = lock(&self.ready);
        self.has_ready.store(false, Ordering::Release);
        std::mem::take(&mut *ready)
    }
}
