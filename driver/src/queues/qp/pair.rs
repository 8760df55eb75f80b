//! A queue pair and its state.

use super::destination::DestinationShare;
use super::effects::{Effects, PathTimeout};
use super::flow_control::SameHostPeer;
use super::init::QpCap;
use super::owners::{Owner, Owners};
use super::pacer::Pacer;
use super::queued_handles::QueuedHandles;
use super::receives::Source;
use super::stalled::Stalled;
use super::transport::Transport;
use crate::counters::{DeviceCounters, QpTotals, Traffic};
use crate::device::Device;
use crate::events::Origin;
use crate::lock_order::{Ordered, Rank};
use crate::memory::regions::{RegionTable, regions};
use crate::pd::Pd;
use crate::ports::BatchPool;
use crate::ports::route::Route;
use crate::queues::cq::Cq;
use crate::queues::raw::Frames;
use crate::queues::srq::Xrcd;
use crate::scheduling::coalescing::Coalescing;
use crate::scheduling::delayed_ack::DelayedAck;
use crate::scheduling::destinations::DestinationLimiter;
use crate::sync::{Mutex, MutexGuard, lock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use urxe_net::{FaultSpec, now, thread};
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::qp::{Counters, QpAttr, QpState, QpType};
use urxe_proto::queue::PostError;
use urxe_proto::time::Time;
use urxe_proto::work::Sge;

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) service: QpType,
    pub(crate) cap: QpCap,
    pub(crate) pd: Arc<Pd>,
    pub(crate) device: Arc<Device>,
    pub(crate) counters: Arc<DeviceCounters>,
    pub(crate) send_cq: Option<Arc<Cq>>,
    pub(crate) signal_all: bool,
    pub(crate) block_own_multicast: bool,
    pub(crate) owners: Owners,
    /// The owner that created the queue pair.
    pub(crate) creator: Arc<Owner>,
    pub(crate) receives: Source,
    pub(crate) batches: Arc<BatchPool>,
    pub(crate) inner: Mutex<Inner>,
    /// The multicast groups that the queue pair is attached to.
    pub(crate) groups: Mutex<Vec<Gid>>,
    /// The interface's packet socket, for raw packet queue pairs.
    pub(crate) frames: Option<Frames>,
    /// A copy of the state that is readable without a lock.
    pub(crate) state: AtomicU32,
    /// The faults to inject into packets sent over its routes, instead of those of `URXE_FAULTS`.
    pub(crate) faults: Mutex<Option<FaultSpec>>,
}

/// The path of a connection: the route to its peer and, for a reliable connection to a process of
/// this host, the limit of bytes in flight to that process.
#[derive(Debug)]
pub(crate) struct PeerPath {
    pub(crate) route: Route,
    pub(crate) limiter: Option<Arc<DestinationLimiter<Qp>>>,
}

/// The state of a queue pair that its lock protects.
pub(crate) struct Inner {
    pub(crate) transport: Transport,
    /// Counters of bytes and packets sent and received.
    pub(super) traffic: Traffic,
    /// The [`Counters::key_violations`] that the device's counters include.
    pub(super) counted_violations: [u64; 2],
    /// The route of a connected queue pair to its peer, from RTR on.
    pub(super) route: Option<Route>,
    /// The alternate path, for path migration.
    pub(crate) alternate: Option<PeerPath>,
    /// Set for an unreliable connection to a process of this host, whose receive buffer it must not
    /// overrun.
    pub(super) same_host_peer: Option<SameHostPeer>,
    /// The share of a reliable connection to a process of this host in the limit of that process.
    pub(super) share: Option<DestinationShare<Qp>>,
    /// The address handles of the datagrams in the send queue.
    pub(crate) handles: QueuedHandles,
    /// The rate limiter, if a rate limit is set.
    pub(crate) pacer: Option<Pacer>,
    /// The time at which the rate limiter lets the next burst go.
    pub(super) paced_until: Time,
    /// A batch for which the socket has no room.
    pub(super) stalled: Option<Stalled>,
    /// Whether the queue pair is on the engine's list of those that wait for room in a socket.
    pub(super) awaits_writable: bool,
    /// The earliest deadline that the engine's timers hold for this queue pair.
    armed: Time,
    /// Whether packets have been received since the last transmission. While this is set, the queue
    /// pair is on its receiver's list `to_answer`.
    pub(super) answer_pending: bool,
    /// Whether the queue pair is on the engine's list of those with more to send.
    pub(super) queued: bool,
    /// State of send coalescing.
    pub(crate) coalescing: Coalescing,
    /// State of the delayed ACK.
    pub(crate) delayed_ack: DelayedAck,
    /// The effects of the present call.
    pub(super) effects: Effects,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("transport", &self.transport)
            .field("armed", &self.armed)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Creates the state of a queue pair in RESET.
    pub(crate) fn new(transport: Transport) -> Self {
        Inner {
            transport,
            traffic: Traffic::default(),
            counted_violations: [0; 2],
            route: None,
            alternate: None,
            same_host_peer: None,
            share: None,
            handles: QueuedHandles::default(),
            pacer: None,
            paced_until: Time::NEVER,
            stalled: None,
            awaits_writable: false,
            armed: Time::NEVER,
            answer_pending: false,
            queued: false,
            coalescing: Coalescing::default(),
            delayed_ack: DelayedAck::default(),
            effects: Effects::default(),
        }
    }

    /// Adds the effect of a timeout, or the end of the retries, of a long packet.
    #[cold]
    pub(super) fn path_timed_out(&mut self, only_short_packets_arrive: bool) {
        if let Some(route) = &self.route {
            self.effects.timed_out = Some(Box::new(PathTimeout {
                path: route.path.clone(),
                mtu: self.transport.attributes().path_mtu,
                only_short_packets_arrive,
            }));
        }
    }

    /// Sets the path of all further packets.
    pub(crate) fn set_peer_path(&mut self, path: Option<PeerPath>) {
        let is_unreliable = matches!(self.transport, Transport::Uc(_));
        let connection = path.as_ref().filter(|_| is_unreliable);
        self.same_host_peer = connection.and_then(|path| SameHostPeer::of_route(&path.route));
        let limiter = path.as_ref().and_then(|path| path.limiter.as_ref());
        self.share = limiter.map(DestinationShare::new);
        self.transport.require_send_quanta(self.share.is_some());
        self.route = path.map(|path| path.route);
    }

    /// Switches to the alternate path if the connection has migrated (17.2.8).
    pub(super) fn follow_migration(&mut self) {
        if self.transport.take_migrated() {
            self.migrate();
        }
    }

    #[cold]
    fn migrate(&mut self) {
        let alternate = self.alternate.take();
        self.set_peer_path(alternate);
    }

    /// Returns the effects since the last call of this function, and clears them.
    pub(crate) fn take_effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    /// Returns the effects since the last call, and clears them. Usually there are none.
    #[inline]
    pub(crate) fn take_any_effects(&mut self) -> Option<Effects> {
        (!self.effects.is_empty()).then(|| self.take_effects())
    }
}

impl Qp {
    /// Locks the state.
    pub(crate) fn lock(&self) -> Ordered<MutexGuard<'_, Inner>> {
        Ordered::take(Rank::QueuePair, || lock(&self.inner))
    }

    /// Sets the retransmission timeout until the first round trip of the path is measured.
    pub(crate) fn seed_timeout(&self, timeout: Duration) {
        self.lock().transport.seed_timeout(timeout);
    }

    /// The completion queues that the queue pair itself names, each once.
    pub(crate) fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        let send = self.send_cq.as_ref();
        let other = |cq: &&Arc<Cq>| send.is_none_or(|send| !Arc::ptr_eq(send, cq));
        send.into_iter().chain(self.receives.cq().filter(other))
    }

    /// Returns whether completions of the queue pair may go to `cq`.
    pub(crate) fn completes_to(&self, cq: &Arc<Cq>) -> bool {
        let is_it = |own: &Arc<Cq>| Arc::ptr_eq(own, cq);
        let has_member = |domain: &Arc<Xrcd>| domain.any(|srq| srq.cq().is_some_and(is_it));
        self.cqs().any(is_it) || self.domain().is_some_and(has_member)
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

    /// Its identity in the asynchronous events of its creator.
    pub fn origin(&self) -> &Arc<Origin> {
        self.creator.origin()
    }

    /// The current state. When it reads as an error state, the completion of that error is in the
    /// completion queue.
    pub fn state(&self) -> QpState {
        self.lock().transport.state()
    }

    /// The state after the last change, read without the lock.
    fn last_state(&self) -> QpState {
        QpState::from_number(self.state.load(Ordering::Acquire)).unwrap_or_default()
    }

    /// The current attributes.
    pub fn attributes(&self) -> QpAttr {
        self.lock().transport.attributes()
    }

    /// The transport's counters.
    pub fn counters(&self) -> Counters {
        *self.lock().transport.counters()
    }

    /// The device that the queue pair belongs to.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// All counters of the queue pair: the transport's and the network's.
    pub(crate) fn totals(&self) -> QpTotals {
        let inner = self.lock();
        QpTotals {
            transport: *inner.transport.counters(),
            traffic: inner.traffic,
        }
    }

    /// Removes the queue pair's completions from its completion queues.
    pub(crate) fn purge(&self) {
        for cq in self.cqs() {
            cq.purge(self.qpn);
        }
    }

    /// Posts a receive (11.4.1.2). The thread may be cancelled meanwhile: no cancellation point is
    /// reached.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if !self.last_state().accepts_receives() {
            return Err(PostError::State);
        }
        self.receives.post(wr_id, sges)?;
        if self.last_state().flushes_receives() {
            thread::without_cancellation(|| self.flush_posted());
        }
        Ok(())
    }

    /// Flushes receives that were posted while the queue pair entered the error state.
    #[cold]
    fn flush_posted(&self) {
        let held = regions();
        let mut inner = self.lock();
        inner.transport.receive_posted(&mut self.host(held.table()));
    }

    /// Handles the expiry of the timer that was armed for `at`.
    pub(crate) fn timer_fired(
        self: &Arc<Self>,
        at: Time,
        now: Time,
        regions: &RegionTable,
    ) -> Effects {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if inner.armed != at {
            // A timer for an earlier deadline has replaced this one.
            return inner.take_effects();
        }
        inner.armed = Time::NEVER;
        let is_expired = inner.transport.deadline() <= now;
        if is_expired {
            let before = inner.transport.counters();
            let (timeouts, long) = (before.timeouts, before.long_packet_timeouts);
            let awaits_long = inner.transport.awaits_long_packet();
            inner.transport.handle_timeout(now, &mut self.host(regions));
            if let Some(share) = &mut inner.share {
                share.set_silent(true);
            }
            let has_failed = inner.transport.state() == QpState::Err;
            let after = inner.transport.counters();
            let only_short = has_failed && after.long_packet_timeouts > long;
            if awaits_long && (has_failed || after.timeouts > timeouts) {
                inner.path_timed_out(only_short);
            }
            if inner.transport.state() == QpState::Err {
                tracing::debug!(qp = %self.qpn, counters = ?inner.transport.counters(),
                    "the peer does not answer any more");
            }
        }
        let stall_timed_out = inner.stalled.as_ref().is_some_and(|it| it.until <= now);
        let is_paced = inner.paced_until <= now;
        if is_paced {
            // `transmit` sets it again while the rate limiter delays packets.
            inner.paced_until = Time::NEVER;
        }
        if is_expired || stall_timed_out || is_paced {
            self.transmit(inner, now, regions);
        } else {
            self.publish(inner, regions);
        }
        inner.take_effects()
    }

    /// Moves the queue pair to the error state.
    pub(crate) fn fail(&self, regions: &RegionTable) -> Effects {
        let mut inner = self.lock();
        inner.transport.fail(now(), &mut self.host(regions));
        self.publish(&mut inner, regions);
        inner.take_effects()
    }

    /// Moves the queue pair to the error state because its peer is lost.
    pub(crate) fn peer_lost(&self) -> Effects {
        let held = regions();
        let mut inner = self.lock();
        inner
            .transport
            .handle_peer_exit(now(), &mut self.host(held.table()));
        self.publish(&mut inner, held.table());
        inner.take_effects()
    }

    /// Publishes the state machine's state: in-flight bytes, timer and state copy.
    #[inline(always)]
    pub(crate) fn publish(&self, inner: &mut Inner, regions: &RegionTable) {
        let status = inner.transport.status();
        if let Some(share) = &mut inner.share {
            share.count(status.bytes_in_flight);
        }
        let stall_timeout = inner.stalled.as_ref().map_or(Time::NEVER, |it| it.until);
        let deadline = (status.deadline).min(inner.paced_until).min(stall_timeout);
        if deadline < inner.armed {
            inner.armed = deadline;
            inner.effects.deadline = deadline;
        }
        let state = status.state;
        // Written only here, with the queue pair locked.
        if self.state.load(Ordering::Relaxed) == state as u32 {
            return;
        }
        self.publish_state(state, inner, regions);
    }

    #[cold]
    fn publish_state(&self, state: QpState, inner: &mut Inner, regions: &RegionTable) {
        self.state.store(state as u32, Ordering::Release);
        if state.flushes_receives() {
            // Flush receives that were posted before the new state was published. A thread that
            // posts later sees the new state, and flushes its receive itself.
            self.receives.wait_for_posters();
            inner.transport.receive_posted(&mut self.host(regions));
        }
    }
}
