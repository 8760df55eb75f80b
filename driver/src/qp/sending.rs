//! Transmission: a queue pair sends up to a quantum, in batches, each to one destination.

use super::destinations::Destinations;
use super::machine::{Machine, Next};
use super::neighbour::Neighbour;
use super::{Inner, Qp};
use crate::counters::Traffic;
use crate::engine::{self, Local};
use crate::event_queue::lock;
use crate::regions::RegionTable;
use crate::route::Route;
use std::sync::Arc;
use std::time::Duration;
use urxe_net::{Path, SendBatch, now};
use urxe_proto::time::Time;

/// Send quantum in bytes: what a queue pair sends before the next one is served.
pub(super) const TURN: u64 = 1 << 20;

/// Least charge in bytes for one flush to the kernel, however small the batch: datagrams to many
/// destinations need one flush each.
const FLUSH_COSTS: u64 = 16 << 10;

/// How long a batch waits for room in the socket. Then it is dropped, and the transport treats its
/// packets like any that the network lost.
const ROOM_TIMEOUT: Duration = Duration::from_millis(16);

/// A batch for which the socket has no room. The queue pair sends nothing else until the batch is
/// sent or dropped, so packets keep their order. The kernel reports room (`engine::rooms`). No
/// thread sleeps for it, since every sender holds at least the lock of its queue pair.
pub(super) struct Stalled {
    batch: Box<SendBatch>,
    route: Route,
    /// The time at which the batch is dropped.
    pub(super) until: Time,
}

/// The socket has no room for the rest of a batch.
pub(super) struct Blocked;

/// Responses of a queue pair at its end for which the socket has no room.
#[must_use]
pub(super) struct Unsent(Option<Box<SendBatch>>);

impl From<Box<SendBatch>> for Unsent {
    fn from(batch: Box<SendBatch>) -> Self {
        if batch.is_empty() {
            engine::get().return_batch(batch);
            return Unsent(None);
        }
        Unsent(Some(batch))
    }
}

impl Unsent {
    /// Sends the responses, and sleeps up to `ROOM_TIMEOUT` for room in the socket. Drops what is
    /// left then. The caller must hold no lock.
    pub(super) fn send(self) {
        let Some(mut batch) = self.0 else {
            return;
        };
        let until = now() + ROOM_TIMEOUT;
        while batch.flush_waiting().blocked && now() < until {}
        batch.discard();
        engine::get().return_batch(batch);
    }
}

impl Qp {
    /// Sends what may be sent now, up to the send quantum. If more remains, the queue pair joins
    /// the engine's list of senders.
    pub(super) fn transmit(self: &Arc<Self>, inner: &mut Inner, regions: &RegionTable) {
        if let Some(frames) = &self.frames {
            self.transmit_frames(inner, frames, regions);
            return;
        }
        inner.answering.release();
        let waited = inner.gathered.release();
        if waited > 0 {
            engine::get()
                .counters()
                .gathered_sends
                .add(u64::from(waited));
        }
        if !self.send_stalled(inner) {
            self.settle(inner, regions);
            return;
        }
        inner.follow_migration();
        // Usual after an ACK for the only outstanding request. A rate limiter's timer depends on the
        // rest of this function.
        if inner.pacer.is_none() && inner.machine.is_idle() {
            self.settle(inner, regions);
            return;
        }
        if inner.neighbour.is_some() {
            inner.machine.mark_every(Neighbour::mark_every());
        }
        let Inner {
            machine,
            traffic,
            route,
            destinations,
            pacer,
            paced_until,
            passenger,
            queued,
            stalled,
            awaits_room,
            ..
        } = inner;
        let mut batch = None;
        let mut turn = TURN;
        let mut more = true;
        while more && turn > 0 {
            let Some(way) = next_way(machine, route, destinations) else {
                more = false;
                break;
            };
            let Route { local, path } = way;
            if path.socket().is_full() {
                // Nothing is staged, so the number of batches stays small however many queue pairs
                // wait.
                self.wait_for_room(awaits_room, path);
                more = false;
                break;
            }
            let batch = batch.get_or_insert_with(|| engine::get().take_batch());
            batch.begin(path);
            let (now, mut host) = (now(), self.host(regions));
            more = match pacer {
                None => machine.poll_transmit(now, &mut host, &mut **batch),
                Some(pacer) => {
                    let mut sink = pacer.limit(now, batch);
                    let more = machine.poll_transmit(now, &mut host, &mut sink);
                    let taken = sink.taken();
                    pacer.spend(now, taken);
                    // The rate limiter's timer resumes transmission.
                    *paced_until = if more { pacer.next() } else { Time::NEVER };
                    false
                }
            };
            match send_batch(batch, path, local, traffic) {
                Ok(spent) => turn = turn.saturating_sub(spent),
                Err(Blocked) => {
                    *stalled = Some(Stalled {
                        batch: std::mem::take(batch),
                        route: way.clone(),
                        until: now + ROOM_TIMEOUT,
                    });
                    self.wait_for_room(awaits_room, path);
                    more = false;
                    break;
                }
            }
            if let Some(passenger) = passenger
                && machine.wants_grant()
            {
                more |= passenger.ask(self, machine);
            }
        }
        if let Some(batch) = batch {
            engine::get().return_batch(batch);
        }
        // A queue pair that is on the list already keeps its one entry.
        if more && !std::mem::replace(queued, true) {
            engine::get().ready(Arc::clone(self));
        }
        self.settle(inner, regions);
    }
}

impl Qp {
    /// Registers the queue pair to be resumed when the socket of `path` has room.
    fn wait_for_room(self: &Arc<Self>, awaits_room: &mut bool, path: &Path) {
        if !std::mem::replace(awaits_room, true) {
            engine::get().wait_for_room(self, path);
        }
    }

    /// Resumes transmission: the socket has room again.
    pub(crate) fn room_found(self: &Arc<Self>, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        inner.awaits_room = false;
        self.transmit(&mut inner, regions);
    }

    /// Sends the stalled batch, or drops it after its timeout. Returns false while it still waits.
    fn send_stalled(self: &Arc<Self>, inner: &mut Inner) -> bool {
        let Some(mut stalled) = inner.stalled.take() else {
            return true;
        };
        let Route { local, path } = &stalled.route;
        if send_batch(&mut stalled.batch, path, local, &mut inner.traffic).is_err() {
            if now() < stalled.until {
                self.wait_for_room(&mut inner.awaits_room, path);
                inner.stalled = Some(stalled);
                return false;
            }
            inner.drop_batch(&mut stalled.batch);
        }
        engine::get().return_batch(stalled.batch);
        true
    }
}

impl Inner {
    /// Drops a batch for which the socket has no room, and counts its packets.
    fn drop_batch(&mut self, batch: &mut SendBatch) {
        self.traffic.gave_up(batch.packets() as u64);
        batch.discard();
    }

    /// Takes the stalled batch, so that its packets precede those staged next; without one, an
    /// empty batch.
    pub(super) fn take_stalled_batch(&mut self) -> Box<SendBatch> {
        match self.stalled.take() {
            Some(stalled) => stalled.batch,
            None => engine::get().take_batch(),
        }
    }
}

/// Returns the route of the next packet; `None` when nothing can be sent, or no route is known.
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

/// Passes a batch to the kernel. Returns its charge against the send quantum, in bytes. Packets for
/// which the socket has no room stay in the batch.
pub(super) fn send_batch(
    batch: &mut SendBatch,
    path: &Path,
    local: &Local,
    traffic: &mut Traffic,
) -> Result<u64, Blocked> {
    let report = batch.flush();
    traffic.sent(&report, path.peer().ip().is_multicast());
    if let Some(error) = &report.error {
        tracing::debug!(%error, lost = report.lost, "packets could not be sent");
        if engine::is_loss(error) {
            local.lost_descriptors();
        }
    }
    let held_until = local.endpoint().held_until();
    if held_until != Time::NEVER {
        engine::get().deadline_moved(held_until);
    }
    match report.blocked {
        true => Err(Blocked),
        false => Ok(report.bytes.max(FLUSH_COSTS)),
    }
}
