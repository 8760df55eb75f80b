//! Transmission: a queue pair sends up to a quantum, in batches, each to one destination.

use super::effects::Effects;
use super::flow_control::SameHostPeer;
use super::host::QpHost;
use super::pacer::Pacer;
use super::pair::{Inner, Qp};
use super::queued_handles::QueuedHandles;
use super::stalled::Stalled;
use super::transport::{Next, Transport};
use crate::counters::Traffic;
use crate::memory::regions::RegionTable;
use crate::ports::route::Route;
use crate::ports::{BatchPool, LocalPort};
use crate::scheduling::limits::{FLUSH_CHARGE, TX_BUDGET, WRITABLE_TIMEOUT};
use std::sync::Arc;
use urxe_net::{Path, SendBatch, now};
use urxe_proto::time::Time;

/// The socket has no room for the rest of a batch.
pub(super) struct Blocked;

/// Responses of a queue pair that is being destroyed, for which the socket has no room.
#[must_use]
pub(crate) struct UnsentBatch {
    batch: Box<SendBatch>,
    pool: Arc<BatchPool>,
}

impl UnsentBatch {
    pub(super) fn new(batch: Box<SendBatch>, pool: &Arc<BatchPool>) -> Self {
        UnsentBatch {
            batch,
            pool: Arc::clone(pool),
        }
    }

    /// Sends the responses, and sleeps up to [`WRITABLE_TIMEOUT`] for room in the socket. Drops
    /// what is left then. The caller must hold no lock.
    pub(crate) fn send(mut self) {
        if !self.batch.is_empty() {
            let until = now() + WRITABLE_TIMEOUT;
            while self.batch.flush_blocking().blocked && now() < until {}
            self.batch.discard();
        }
        self.pool.put(self.batch);
    }
}

impl Qp {
    /// Sends the delayed ACK, unless it has been sent already.
    pub(crate) fn send_delayed_ack(self: &Arc<Self>, regions: &RegionTable) -> Effects {
        let mut inner = self.lock();
        if inner.delayed_ack.remove_from_list() {
            self.transmit(&mut inner, now(), regions);
        }
        inner.take_effects()
    }

    /// Sends the deferred sends; `None` when there are none. `is_late` is true when the flush timer
    /// has expired, and false when a call of the application triggers the flush.
    pub(crate) fn send_deferred(
        self: &Arc<Self>,
        is_late: bool,
        regions: &RegionTable,
    ) -> Option<Effects> {
        let mut inner = self.lock();
        if !inner.coalescing.remove_from_list() {
            return None;
        }
        match is_late {
            true => inner.coalescing.flush_timed_out(now()),
            false => inner.coalescing.flushed_in_time(),
        }
        self.transmit(&mut inner, now(), regions);
        Some(inner.take_effects())
    }

    /// Transmits when the queue pair is served among those with more to send.
    pub(crate) fn transmit_ready(self: &Arc<Self>, regions: &RegionTable) -> Effects {
        let mut inner = self.lock();
        inner.queued = false;
        self.transmit(&mut inner, now(), regions);
        inner.take_effects()
    }

    /// Transmits after the limiter of its destination has granted a quantum.
    pub(crate) fn take_quantum(self: &Arc<Self>, regions: &RegionTable) -> Effects {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if let Some(share) = &mut inner.share {
            share.granted(&mut inner.transport);
        }
        self.transmit(inner, now(), regions);
        inner.take_effects()
    }

    /// Resumes transmission: the socket has room again.
    pub(crate) fn on_writable(self: &Arc<Self>, regions: &RegionTable) -> Effects {
        let mut inner = self.lock();
        inner.awaits_writable = false;
        self.transmit(&mut inner, now(), regions);
        inner.take_effects()
    }

    /// Sends a keep-alive probe to the peer. Returns false if the queue pair cannot send one.
    pub(crate) fn probe(&self) -> (bool, Effects) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let Some(Route { local, path }) = &inner.route else {
            return (false, inner.take_effects());
        };
        let mut batch = self.batches.take();
        batch.begin(path);
        let sent = inner.transport.poll_keep_alive(now(), &mut *batch);
        let out = (&mut inner.traffic, &mut inner.effects);
        // A probe for which the socket has no room counts as lost, and is repeated at a later
        // check.
        if let Err(Blocked) = send_batch(&mut batch, path, local, out) {
            batch.discard();
        }
        self.batches.put(batch);
        (sent, inner.take_effects())
    }

    /// Sends what may be sent at `now`, up to one budget. If more remains, the queue pair is ready
    /// for another one.
    pub(crate) fn transmit(self: &Arc<Self>, inner: &mut Inner, now: Time, regions: &RegionTable) {
        let mut batch = None;
        self.transmit_with(inner, now, regions, &mut batch);
        if let Some(batch) = batch {
            self.batches.put(batch);
        }
    }

    /// [`Qp::transmit`] with a batch of the caller's. On return `batch` holds the batch that was
    /// used, for the next call.
    pub(super) fn transmit_with(
        self: &Arc<Self>,
        inner: &mut Inner,
        now: Time,
        regions: &RegionTable,
        batch: &mut Option<Box<SendBatch>>,
    ) {
        if let Some(frames) = &self.frames {
            self.transmit_frames(inner, frames, regions);
            return;
        }
        inner.delayed_ack.release();
        inner.effects.coalesced += inner.coalescing.release();
        if inner.stalled.is_none() || self.send_stalled(inner) {
            inner.follow_migration();
            // The common case after an ACK for the only outstanding request. With a rate limiter,
            // `transmit_batch` must run, because it sets the timer.
            if (inner.pacer.is_some() || !inner.transport.is_idle())
                && let Some(spent) = self.transmit_batch(inner, now, regions, batch)
            {
                self.transmit_more(inner, spent, regions, batch);
            }
        }
        self.publish(inner, regions);
    }

    /// Sends further batches after one of `spent` bytes, until there is no more to send, or the
    /// budget is spent.
    #[inline(never)]
    fn transmit_more(
        self: &Arc<Self>,
        inner: &mut Inner,
        spent: u64,
        regions: &RegionTable,
        batch: &mut Option<Box<SendBatch>>,
    ) {
        let mut budget = TX_BUDGET.saturating_sub(spent);
        while budget > 0 {
            match self.transmit_batch(inner, now(), regions, batch) {
                Some(spent) => budget = budget.saturating_sub(spent),
                None => return,
            }
        }
        // A queue pair that is on the list already keeps its one entry.
        inner.effects.ready |= !std::mem::replace(&mut inner.queued, true);
    }

    /// Sends one batch to one destination. Returns its charge against the budget, in bytes, if
    /// there is more to send.
    ///
    /// Not inlined into the loop over batches: usually there is one, and the compiler would compute
    /// before the loop what no iteration changes.
    #[inline(never)]
    fn transmit_batch(
        self: &Arc<Self>,
        inner: &mut Inner,
        now: Time,
        regions: &RegionTable,
        batch: &mut Option<Box<SendBatch>>,
    ) -> Option<u64> {
        if inner.same_host_peer.is_some() {
            let interval = SameHostPeer::probe_interval();
            inner.transport.set_probe_interval(interval);
        }
        let route = next_route(&inner.transport, &inner.route, &mut inner.handles)?;
        let Route { local, path } = route;
        if path.socket().is_full() {
            // No packet is staged for a full socket, so waiting queue pairs hold no batch.
            wait_until_writable(&mut inner.awaits_writable, &mut inner.effects, path);
            return None;
        }
        if let Some(share) = &inner.share {
            share.renew_spent(&mut inner.transport);
        }
        let batch = batch.get_or_insert_with(|| self.batches.take());
        batch.begin(path);
        batch.set_now(now);
        let mut host = self.host(regions);
        let mut more = match &mut inner.pacer {
            None => inner.transport.poll_transmit(now, &mut host, &mut **batch),
            Some(pacer) => {
                // The rate limiter's timer resumes transmission.
                inner.paced_until = poll_paced(&mut inner.transport, pacer, now, &mut host, batch);
                false
            }
        };
        let out = (&mut inner.traffic, &mut inner.effects);
        let Ok(spent) = send_batch(batch, path, local, out) else {
            inner.stalled = Some(Stalled {
                batch: std::mem::take(batch),
                route: route.clone(),
                until: now + WRITABLE_TIMEOUT,
            });
            wait_until_writable(&mut inner.awaits_writable, &mut inner.effects, path);
            return None;
        };
        if let Some(share) = &mut inner.share
            && inner.transport.needs_send_quantum()
        {
            more |= share.request(self, &mut inner.transport);
        }
        more.then_some(spent)
    }

    /// Sends the stalled batch, or drops it after its timeout. Returns false while it still waits.
    #[cold]
    fn send_stalled(&self, inner: &mut Inner) -> bool {
        let Some(mut stalled) = inner.stalled.take() else {
            return true;
        };
        let Route { local, path } = &stalled.route;
        let out = (&mut inner.traffic, &mut inner.effects);
        if send_batch(&mut stalled.batch, path, local, out).is_err() {
            if now() < stalled.until {
                wait_until_writable(&mut inner.awaits_writable, &mut inner.effects, path);
                inner.stalled = Some(stalled);
                return false;
            }
            inner.drop_batch(&mut stalled.batch);
        }
        self.batches.put(stalled.batch);
        true
    }
}

/// Stages what a rate limiter permits. Returns when it permits more; [`Time::NEVER`] if there is no
/// more to send.
#[inline(never)]
fn poll_paced(
    transport: &mut Transport,
    pacer: &mut Pacer,
    now: Time,
    host: &mut QpHost<'_>,
    batch: &mut SendBatch,
) -> Time {
    let mut sink = pacer.limit(now, batch);
    let more = transport.poll_transmit(now, host, &mut sink);
    let taken = sink.taken();
    pacer.spend(now, taken);
    if more { pacer.next() } else { Time::NEVER }
}

/// Requests that the queue pair resumes when the socket of `path` has room.
fn wait_until_writable(awaits_writable: &mut bool, effects: &mut Effects, path: &Path) {
    if !std::mem::replace(awaits_writable, true) {
        effects.blocked_on = Some(Arc::clone(path.socket()));
    }
}

impl Inner {
    /// Drops a batch for which the socket has no room, and counts its packets.
    fn drop_batch(&mut self, batch: &mut SendBatch) {
        self.traffic.stall_timed_out(batch.packets() as u64);
        batch.discard();
    }

    /// Takes the stalled batch, so that its packets precede those staged next; without one, an
    /// empty batch.
    pub(super) fn take_stalled_batch(&mut self, pool: &BatchPool) -> Box<SendBatch> {
        match self.stalled.take() {
            Some(stalled) => stalled.batch,
            None => pool.take(),
        }
    }
}

/// Returns the route of the next packet; `None` when nothing can be sent, or no route is known.
fn next_route<'a>(
    transport: &Transport,
    route: &'a Option<Route>,
    handles: &'a mut QueuedHandles,
) -> Option<&'a Route> {
    match transport.next_destination() {
        Next::Peer => route.as_ref(),
        Next::Handle(number) => handles.route_of(number),
        Next::Nothing => {
            handles.clear();
            None
        }
        Next::Waits => None,
    }
}

/// Passes a batch to the kernel. Returns its charge against the budget, in bytes. Packets for which
/// the socket has no room stay in the batch.
#[inline(always)]
pub(super) fn send_batch(
    batch: &mut SendBatch,
    path: &Path,
    local: &LocalPort,
    (traffic, effects): (&mut Traffic, &mut Effects),
) -> Result<u64, Blocked> {
    let report = batch.flush();
    traffic.sent(&report, path.is_multicast());
    if let Some(error) = &report.error {
        tracing::debug!(%error, lost = report.lost, "packets could not be sent");
        local.failed(error);
    }
    effects.delayed_until = effects.delayed_until.min(local.endpoint().delayed_until());
    match report.blocked {
        true => Err(Blocked),
        false => Ok(report.bytes.max(FLUSH_CHARGE)),
    }
}
