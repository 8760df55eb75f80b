//! Retransmission of requests without a response, selectively or from the gap on (9.7.5.1.2;
//! `docs/CONGESTION.md`).

use super::fast_retransmit::Retransmission;
use super::send_cursor::SendCursor;
use super::short_probe::ShortProbe;
use super::{Requester, Step};
use crate::host::{Host, Transmit};
use crate::service::Context;

impl Requester {
    /// Goes back: the next packet sent is the oldest that is not done.
    pub(super) fn go_back(&mut self) {
        self.fast_retransmit.cancel();
        self.inflation = 0;
        self.scoreboard.clear();
        self.back_for_gap = false;
        self.short_probe = ShortProbe::None;
        self.recovery.stop_measuring();
        // A work request that could not be sent waits for its predecessors, which are sent again.
        self.unsendable = None;
        self.requests.go_back();
        self.set_cursor_back(SendCursor::in_oldest(&self.queue, self.una));
    }

    /// Moves the cursor to a packet that was sent before.
    pub(super) fn set_cursor_back(&mut self, to: SendCursor) {
        if !self.has_gone_back() {
            self.resume = self.cursor;
        }
        self.cursor = to;
    }

    /// Continues with new packets: the timeout for which the requester went back was spurious.
    ///
    /// A packet that was sent only once is acknowledged (F-RTO, RFC 5682). If others before the
    /// cursor's former position are lost nevertheless, the responder reports the gap, or a probe
    /// follows.
    pub(super) fn undo_go_back(&mut self) {
        self.cursor = self.resume;
        self.requests.undo_go_back();
    }

    /// Goes back because the peer reported a gap.
    fn go_back_to_gap(&mut self) {
        self.go_back();
        self.back_for_gap = true;
    }

    /// Retransmits from `una`, selectively if later packets may have arrived.
    pub(super) fn retransmit(&mut self) {
        let is_selective = self
            .fast_retransmit
            .is_selective(self.cursor.psn.diff(self.una));
        let window = self.window.packets();
        let run = (self.fast_retransmit).gap_reported(self.una, self.sent_end, window);
        let is_exclusive = !self.fast_retransmit.peer_keeps_requests();
        let is_scheduled = is_selective
            && (self.schedule(run, is_exclusive, false)
                || (!is_exclusive && self.request_oldest()));
        if !is_scheduled {
            self.go_back_to_gap();
        }
    }

    /// Sends a tail loss probe after some round trips without an answer: the oldest packet, or a
    /// packet that [`Requester::probe_responses`] selects.
    ///
    /// A responder cannot detect the loss of the tail, since nothing follows it. Returns false when
    /// there is no packet to send.
    pub(super) fn probe_tail(&mut self) -> bool {
        self.schedule(1, false, true) || self.probe_responses()
    }

    /// Schedules the retransmission of up to `packets` packets from `una` on.
    ///
    /// Returns false if none can be retransmitted selectively: a READ or another request with a
    /// response is repeated as a request.
    fn schedule(&mut self, packets: i32, is_exclusive: bool, is_probe: bool) -> bool {
        let most = packets.min(self.cursor.psn.diff(self.una));
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
        self.recovery.stop_measuring();
        self.fast_retransmit.set(Retransmission {
            psn: self.una,
            end: self.una + count as u32,
            sent_end: self.sent_end,
            is_sent: false,
            is_exclusive,
            is_probe,
        });
        true
    }

    /// Sends the scheduled retransmission, if there is one. Returns false when the sink is full.
    #[cold]
    pub(super) fn transmit_scheduled<H: Host, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        let scheduled = self.fast_retransmit.current().filter(|it| !it.is_sent);
        let Some(mut scheduled) = scheduled else {
            return true;
        };
        if scheduled.psn != self.una || self.recovery.waits_for_receiver() {
            self.fast_retransmit.cancel();
            return true;
        }
        let mut cursor = SendCursor::in_oldest(&self.queue, self.una);
        let mut full = false;
        while cursor.psn.before(scheduled.end) && !full {
            let is_queued = self.queue.get(cursor.index).is_some();
            match is_queued.then(|| self.send_data(cx, cursor, host, out)) {
                Some(Step::Sent(next)) => cursor = next,
                // The rest is sent when it is found missing.
                Some(Step::Full) => full = true,
                Some(Step::Wait) if cursor.psn != self.una && self.unsendable.is_none() => {
                    scheduled.end = cursor.psn;
                }
                // The memory is not accessible any more: sending stops at the work request.
                Some(Step::Wait) | None => {
                    self.fast_retransmit.cancel();
                    self.set_cursor_back(cursor);
                    return true;
                }
            }
        }
        if cursor.psn != self.una {
            scheduled.end = cursor.psn;
            scheduled.is_sent = true;
            self.fast_retransmit.set(scheduled);
        }
        !full
    }

    /// Retransmits `packets` packets from `una` on that the peer lacks and cannot report as a gap.
    pub(super) fn retransmit_rest(&mut self, packets: i32) {
        self.fast_retransmit.packets_missing(packets);
        self.recovery.loss_confirmed();
        if !self.fast_retransmit.peer_keeps_requests() || !self.schedule(packets, false, false) {
            self.go_back_to_gap();
        }
    }
}
