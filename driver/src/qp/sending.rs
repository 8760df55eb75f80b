//! How a queue pair sends: in turns, batch by batch, along the way of what comes next.

use super::destinations::Destinations;
use super::machine::{Machine, Next};
use super::neighbour::Neighbour;
use super::{Inner, Qp};
use crate::counters::Traffic;
use crate::engine::{self, Local};
use crate::regions::RegionTable;
use crate::route::Route;
use std::sync::Arc;
use urxe_net::{Path, SendBatch, now};
use urxe_proto::time::Time;

/// How many bytes a queue pair sends before others have their turn.
pub(super) const TURN: u64 = 1 << 20;

/// What giving a batch to the kernel counts for, however little is in it, as when datagrams go to
/// many destinations.
const FLUSH_COSTS: u64 = 16 << 10;

/// How often a batch that the socket has no room for is offered again, a millisecond each.
const PATIENCE: usize = 16;

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
            ..
        } = inner;
        let mut batch = None;
        let mut turn = TURN;
        let mut more = true;
        while more && turn > 0 {
            let Some(Route { local, path }) = next_way(machine, route, destinations) else {
                more = false;
                break;
            };
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
            turn = turn.saturating_sub(send_batch(batch, path, local, traffic));
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

/// Gives a batch to the kernel. Returns how much of a turn that was.
pub(super) fn send_batch(
    batch: &mut SendBatch,
    path: &Path,
    local: &Local,
    traffic: &mut Traffic,
) -> u64 {
    let sent = flush(batch, path, local, traffic);
    let held_until = local.endpoint().held_until();
    if held_until != Time::NEVER {
        engine::get().deadline_moved(held_until);
    }
    sent.map_or(TURN, |bytes| bytes.max(FLUSH_COSTS))
}

/// Gives a batch to the kernel, waiting a little while the socket has no room. What does not go
/// then is lost, and repeated like anything lost. Returns how many bytes went; `None` when there was
/// no room to the end: then it is for others to have the locks.
fn flush(batch: &mut SendBatch, path: &Path, local: &Local, traffic: &mut Traffic) -> Option<u64> {
    let mut bytes = 0;
    for _ in 0..PATIENCE {
        let report = batch.flush();
        traffic.sent(&report, path.peer().ip().is_multicast());
        bytes += report.bytes;
        if let Some(error) = &report.error {
            tracing::debug!(%error, lost = report.lost, "packets could not be sent");
            if engine::is_loss(error) {
                local.lost_descriptors();
            }
        }
        if !report.blocked {
            return Some(bytes);
        }
    }
    traffic.gave_up(batch.packets() as u64);
    batch.discard();
    None
}
