//! Fast retransmit: selective repeat or go-back-N, depending on the peer (9.7.5.1.2;
//! `docs/CONGESTION.md`).

use super::{Requester, Step};
use crate::host::{Host, Transmit};
use crate::psn::Psn;
use crate::service::Context;

/// The behaviour of the peer's responder at a gap, as far as known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Peer {
    /// Unknown. One packet is retransmitted, and its acknowledgement shows the behaviour.
    Unknown,
    /// It keeps requests behind a gap: only the missing packets are sent again.
    Keeps,
    /// It drops requests behind a gap, as it may (9.7.5.1.2): all of them are sent again.
    Drops,
}

/// A selective retransmission, usually of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Repair {
    psn: Psn,
    /// The PSN after the last retransmitted packet.
    pub(super) end: Psn,
    /// The PSN after the highest one sent before the retransmission.
    beyond: Psn,
    sent: bool,
    /// Whether no other packet is sent until it is acknowledged.
    alone: bool,
}

/// With at most this many packets in flight, go back N instead of probing the peer's behaviour.
///
/// The loss of so few packets also does not classify the peer as [`Peer::Drops`].
const FEW: i32 = 4;

impl Requester {
    /// Retransmits from `una`, selectively if later packets may have arrived.
    ///
    /// If the last retransmission ended at `una`, a run of packets was lost: the number doubles.
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

    /// Retransmits the oldest packet after some round trips without an answer, as a tail loss
    /// probe.
    ///
    /// A responder cannot detect the loss of the tail, since nothing follows it. Returns false when
    /// there is no packet to send.
    pub(super) fn probe_tail(&mut self) -> bool {
        self.repair(1, false) || self.probe_oldest()
    }

    /// Schedules the retransmission of up to `packets` packets from `una` on.
    ///
    /// Returns false if none can be retransmitted selectively: a READ or another request with a
    /// response is repeated as a request.
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

    /// Sends the scheduled retransmission. Returns false when the sink is full.
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
                // The rest is sent when it is found missing.
                Some(Step::Full) => full = true,
                Some(Step::Wait) if self.next_psn != self.una && self.unsendable.is_none() => {
                    repair.end = self.next_psn;
                }
                // The memory is not accessible any more: the cursor stays at the work request.
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

    /// Whether sending pauses until an acknowledgement shows how the peer treats a gap.
    pub(super) fn awaits_repair(&self) -> bool {
        self.repair
            .is_some_and(|repair| repair.alone && repair.psn == self.una)
    }

    /// Learns the peer's behaviour at a gap from an acknowledgement of all before `end`.
    ///
    /// Returns the number of packets behind the retransmission that must have been lost or dropped.
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

    /// Retransmits `packets` packets from `una` on that the peer lacks and cannot report as a gap.
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
