//! How a queue pair sends: in turns, batch by batch, along the way of what comes next.

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

/// How many bytes a queue pair sends before others have their turn.
pub(super) const TURN: u64 = 1 << 20;

/// What giving a batch to the kernel counts for, however little is in it, as when datagrams go to
/// many destinations.
const FLUSH_COSTS: u64 = 16 << 10;

/// How long a batch waits for room in the socket. Then it is dropped, and the transport treats its
/// packets like any that the network lost.
const ROOM_TIMEOUT: Duration = Duration::from_millis(16);

/// A batch for which the socket has no room. The caller sends nothing else until it has gone out or
/// was dropped, so packets keep their order. The kernel reports room (`engine::rooms`); no thread
/// sleeps for it, since every sender holds at least the lock of its queue pair.
pub(super) struct Stalled {
    batch: SendBatch,
    route: Route,
    /// When the batch is dropped.
    pub(super) until: Time,
}

/// The socket has no room for the rest of a batch.
pub(super) struct Blocked;

/// Answers for which the socket has no room, from a queue pair that is about to end.
#[must_use]
pub(super) struct Unsent(Option<SendBatch>);

impl From<SendBatch> for Unsent {
    fn from(batch: SendBatch) -> Self {
        if batch.is_empty() {
            engine::get().return_batch(batch);
            return Unsent(None);
        }
        Unsent(Some(batch))
    }
}

impl Unsent {
    /// Sends them, and sleeps for room if need be. No lock may be held.
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
    /// Sends all that may go now, but lets others have their turn.
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
                // Nothing is staged, so few batches exist however many queue pairs wait.
                self.wait_for_room(awaits_room, path);
                more = false;
                break;
            }
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
        // Whoever is on the list already gets one turn all the same.
        if more && !std::mem::replace(queued, true) {
            engine::get().ready(Arc::clone(self));
        }
        self.settle(inner, regions);
    }
}

impl Qp {
    /// Has the engine let it go on when the socket of `path` has room.
    fn wait_for_room(self: &Arc<Self>, awaits_room: &mut bool, path: &Path) {
        if !std::mem::replace(awaits_room, true) {
            engine::get().wait_for_room(self, path);
        }
    }

    /// The socket that it waits for has room.
    pub(crate) fn room_found(self: &Arc<Self>, regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        inner.awaits_room = false;
        self.transmit(&mut inner, regions);
    }

    /// Sends the batch that waits for room, or drops it when it has waited too long. False while it
    /// waits on.
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
    /// Gives up a batch for which the socket has no room.
    fn drop_batch(&mut self, batch: &mut SendBatch) {
        self.traffic.gave_up(batch.packets() as u64);
        batch.discard();
    }

    /// Takes the batch that waits for room, so that it goes out before what its new owner stages, or
    /// else an empty one.
    pub(super) fn take_stalled_batch(&mut self) -> SendBatch {
        match self.stalled.take() {
            Some(stalled) => stalled.batch,
            None => engine::get().take_batch(),
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

/// Gives a batch to the kernel. Returns how much of a turn that was; what the socket has no room for
/// stays in the batch.
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
