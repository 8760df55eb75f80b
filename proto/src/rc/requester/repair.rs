//! Repairing a loss: packets that go again by themselves, while what came behind them may have arrived
//! (9.7.5.1.2; `docs/CONGESTION.md`).

use super::{Requester, Step};
use crate::host::{Host, Transmit};
use crate::psn::Psn;
use crate::service::Context;

/// What is known of the peer as a responder that finds a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Peer {
    /// Nothing. It will show when one packet goes again, and its answer is awaited before any other does.
    Unknown,
    /// It keeps what comes after the hole, so that only what is missing has to go again.
    Keeps,
    /// It drops what comes after the hole, as it may (9.7.5.1.2): all of it has to go again.
    Drops,
}

/// Packets that go again by themselves, or have gone: mostly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Repair {
    psn: Psn,
    /// The PSN after the last of them.
    pub(super) end: Psn,
    /// The PSN after what had been sent before.
    beyond: Psn,
    sent: bool,
    /// Whether nothing else goes until it is answered.
    alone: bool,
}

/// So few packets go again rather than that their answers are awaited one by one.
const FEW: i32 = 4;

impl Requester {
    /// Something is missing at the peer, from `una` on: it goes again, by itself if all behind it
    /// may have arrived. If what went again last ended here, there was a run of losses: twice as much goes.
    pub(super) fn repeat(&mut self) {
        let behind = self.next_psn.diff(self.una);
        let by_itself = match self.peer {
            Peer::Unknown => behind > FEW,
            Peer::Keeps => behind > 1,
            Peer::Drops => false,
        };
        let run = match self.repaired {
            Some((psn, end)) if end == self.una => 2 * end.diff(psn),
            _ => 1,
        };
        let alone = self.peer != Peer::Keeps;
        let goes = by_itself && (self.repair(run, alone) || (!alone && self.request_oldest()));
        if !goes {
            self.go_back();
            self.back_for_gap = true;
        }
    }

    /// Nothing was heard for some round trips: the oldest packet goes again, so that the peer
    /// answers. If the tail was lost there was nothing behind it by which the peer could know. False when there is none.
    pub(super) fn probe_tail(&mut self) -> bool {
        self.repair(1, false) || self.probe_oldest()
    }

    /// Sends up to `packets` again from `una` on. False when they are none that can be repeated by themselves: READs
    /// and the like go again with their answers.
    fn repair(&mut self, packets: i32, alone: bool) -> bool {
        let most = packets.min(self.next_psn.diff(self.una));
        let mut end = self.una;
        let mut index = self.queue.head();
        while end.diff(self.una) < most
            && let Some(wqe) = self.queue.get(index)
            && !wqe.op.is_local()
            && !wqe.op.has_response()
        {
            end = wqe.first_psn + wqe.packets;
            index += 1;
        }
        let count = end.diff(self.una).min(most);
        if count <= 0 {
            return false;
        }
        self.measured = None;
        self.repair = Some(Repair {
            psn: self.una,
            end: self.una + count as u32,
            beyond: self.sent_end,
            sent: false,
            alone,
        });
        true
    }

    /// Sends the packets that close a gap, if there are any to be sent. False when the sink is full.
    pub(super) fn transmit_repair<H: Host, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        let Some(mut repair) = self.repair.filter(|repair| !repair.sent) else {
            return true;
        };
        if repair.psn != self.una || self.timers.waits_for_receiver() {
            self.repair = None;
            return true;
        }
        let there = (self.cursor, self.cursor_packet, self.next_psn, self.asked);
        self.place_cursor();
        let mut full = false;
        while self.next_psn.before(repair.end) && !full {
            let wqe = self.queue.get(self.cursor).copied();
            match wqe.map(|wqe| self.send_data(cx, &wqe, host, out)) {
                Some(Step::Sent) => {}
                // The rest is asked for when it is found missing.
                Some(Step::Full) => full = true,
                Some(Step::Wait) if self.next_psn != self.una && self.unsendable.is_none() => {
                    repair.end = self.next_psn;
                }
                // Its memory is not accessible any more: there the cursor stays.
                Some(Step::Wait) | None => {
                    self.repair = None;
                    return true;
                }
            }
        }
        let sent = self.next_psn != self.una;
        if sent {
            repair.end = self.next_psn;
            repair.sent = true;
            self.repair = Some(repair);
        }
        (self.cursor, self.cursor_packet, self.next_psn, self.asked) = there;
        !full
    }

    /// Whether nothing else may go until it shows what the peer does with packets after a hole.
    pub(super) fn awaits_repair(&self) -> bool {
        self.repair
            .is_some_and(|repair| repair.alone && repair.psn == self.una)
    }

    /// The peer has everything before `end`. If that says what it did with what came after a hole, it is
    /// learnt. What must have been lost or dropped behind what went again is returned, in packets.
    pub(super) fn learn(&mut self, end: Psn) -> i32 {
        let Some(repair) = self.repair.filter(|repair| end.after(repair.psn)) else {
            return 0;
        };
        self.repair = None;
        if !repair.sent {
            return 0;
        }
        self.repaired = Some((repair.psn, repair.end));
        if end.after(repair.end) {
            self.peer = Peer::Keeps;
        }
        if end != repair.end {
            return 0;
        }
        repair.beyond.diff(end)
    }

    /// So many packets from `una` on are not there, and nothing behind them says so.
    pub(super) fn repeat_rest(&mut self, packets: i32) {
        if packets > FEW && self.peer == Peer::Unknown {
            self.peer = Peer::Drops;
        }
        if self.peer != Peer::Keeps || !self.repair(packets, false) {
            self.go_back();
            self.back_for_gap = true;
        }
    }
}
