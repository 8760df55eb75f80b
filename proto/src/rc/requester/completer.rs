//! The completer: handles acknowledgements, NAKs and responses (9.7.5.2).
//!
//! They advance `una` and complete the work requests before it. Evidence of a loss causes a
//! retransmission.

use super::send_cursor::SendCursor;
use super::short_probe::ShortProbe;
use super::{Outcome, Requester};
use crate::host::{Completions, Host};
use crate::psn::Psn;
use crate::queue::SendWqe;
use crate::service::Context;
use crate::wire::{Aeth, NakCode, RnrTimer, Syndrome};
use crate::work::{Payload, SendOp, WcStatus};

impl Requester {
    /// Handles an ACK or NAK packet (9.7.5.2).
    pub(in crate::rc) fn acknowledge<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        psn: Psn,
        aeth: &Aeth,
        host: &mut H,
    ) -> Outcome {
        // Stale or ghost acknowledgements are ignored (9.7.5.2.1). An ACK of the last acknowledged
        // PSN may still carry credits; a NAK must name a packet in flight.
        let oldest = match aeth.syndrome {
            Syndrome::Ack(_) => self.una.prev(),
            _ => self.una,
        };
        if matches!(aeth.syndrome, Syndrome::Ack(_)) && self.probe_answered(cx, psn) {
            return self.fail_unsendable(cx, host);
        }
        if psn.before(oldest) || !psn.before(self.sent_end) {
            cx.counters.stale_responses += 1;
            return Outcome::Continue;
        }
        match aeth.syndrome {
            Syndrome::Ack(credits) => {
                let missing = self.fast_retransmit.acknowledged(psn.next());
                let complete = self.advance(cx, psn.next(), host);
                self.update_credits(credits.count());
                if !complete {
                    self.response_lost(cx, psn.next());
                } else if missing > 0 {
                    self.retransmit_rest(missing);
                }
                self.fail_unsendable(cx, host)
            }
            Syndrome::RnrNak(timer) => self.receiver_not_ready(cx, psn, timer, host),
            Syndrome::Nak(NakCode::PsnSequence) => self.gap_reported(cx, psn, host),
            Syndrome::Nak(code) => self.request_refused(cx, psn, code, host),
            // Reserved syndromes are malformed (9.7.5.2.1) and dropped.
            _ => {
                cx.counters.malformed += 1;
                Outcome::Continue
            }
        }
    }

    /// Handles an RNR NAK: the responder had no receive for the message with `psn` (9.7.5.2.8).
    #[cold]
    fn receiver_not_ready<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        psn: Psn,
        timer: RnrTimer,
        host: &mut H,
    ) -> Outcome {
        cx.counters.rnr_naks_received += 1;
        let before = self.una;
        let complete = self.advance(cx, psn, host);
        if !complete {
            self.response_lost(cx, psn);
        } else if self.una == before && self.recovery.waits_for_receiver() {
            // The request was not retransmitted since the RNR NAK that began the wait. This one is
            // a duplicate, or answers a probe sent before the wait.
        } else if self.recovery.receiver_not_ready(cx.now, timer) {
            self.go_back();
        } else {
            cx.counters.rnr_retries_exceeded += 1;
            return self.fail(cx, WcStatus::RnrRetryExcErr, host);
        }
        self.fail_unsendable(cx, host)
    }

    /// Handles a NAK that ends the request with `psn` in error.
    #[cold]
    fn request_refused<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        psn: Psn,
        code: NakCode,
        host: &mut H,
    ) -> Outcome {
        let status = match code {
            NakCode::InvalidRequest => WcStatus::RemInvReqErr,
            NakCode::RemoteAccess => WcStatus::RemAccessErr,
            NakCode::RemoteOperational => WcStatus::RemOpErr,
            NakCode::InvalidRd => WcStatus::RemInvRdReqErr,
            _ => WcStatus::BadRespErr,
        };
        if self.refuses_partial(psn, status, cx.now) {
            return self.fail_unsendable(cx, host);
        }
        cx.counters.fatal_naks_received += 1;
        self.refused(cx, psn, status, host)
    }

    /// Handles a NAK for a PSN sequence error: the responder found a gap (9.7.5.1.2).
    #[cold]
    fn gap_reported<H: Host>(&mut self, cx: &mut Context<'_>, psn: Psn, host: &mut H) -> Outcome {
        cx.counters.sequence_naks_received += 1;
        let before = self.una;
        self.fast_retransmit.acknowledged(psn);
        let complete = self.advance(cx, psn, host);
        if !complete {
            self.response_lost(cx, psn);
            if !self.has_gone_back() {
                self.scoreboard.note_nak(psn);
            }
            return self.fail_unsendable(cx, host);
        }
        if self.una == before {
            // Linux's rxe, having sent an RNR NAK, sends this NAK for later packets. It reports no
            // loss, and the retransmission follows when the wait is over.
            if self.recovery.waits_for_receiver() {
                return self.fail_unsendable(cx, host);
            }
            let is_known = self.recovery.is_duplicate_report(psn, cx.now)
                || self.recovery.awaits_late_packet(psn);
            if is_known {
                return self.fail_unsendable(cx, host);
            }
            if !self.recovery.gap_without_progress() {
                self.note_long_packet_missing(cx);
                return Outcome::RetriesExceeded;
            }
        } else if !self.has_gone_back()
            && !self.recovery.waits_for_receiver()
            && self.fast_retransmit.is_in_flight(psn)
        {
            return self.fail_unsendable(cx, host);
        }
        let may_be_late = self.fast_retransmit.peer_keeps_requests()
            && self.recovery.tolerates_gap(psn, self.sent_end, cx.now);
        if !may_be_late {
            self.repair_gap(cx);
        }
        self.fail_unsendable(cx, host)
    }

    /// Repairs the gap at `una` that the responder has reported.
    pub(super) fn repair_gap(&mut self, cx: &mut Context<'_>) {
        self.recovery.gap_repaired(self.una, self.sent_end, cx.now);
        self.window.lost(cx.now, self.una, self.sent_end);
        self.inflate_window(cx.attr, cx.now);
        self.retransmit();
    }

    #[inline]
    fn update_credits(&mut self, count: Option<u32>) {
        // The current message has consumed its receive once one of its packets is acknowledged.
        let has_partial = self.queue.get(self.queue.head()).is_some_and(|wqe| {
            matches!(
                wqe.op,
                SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_)
            ) && self.una.after(wqe.first_psn)
        });
        self.credits.update(count, has_partial);
    }

    /// Acknowledges all before `end` and completes the work requests that are done.
    ///
    /// Returns false if it stops at a READ or an atomic before `end` whose response is missing.
    #[inline]
    pub(super) fn advance<H: Completions>(
        &mut self,
        cx: &mut Context<'_>,
        end: Psn,
        host: &mut H,
    ) -> bool {
        let reached = match self.queue.responses() {
            0 => end,
            _ => self.acknowledged_end(end),
        };
        self.done_until(cx, reached, host);
        reached == end
    }

    /// Returns the PSN up to which an acknowledgement of all before `end` is valid: `end`, or that
    /// of the first missing response before it.
    fn acknowledged_end(&self, end: Psn) -> Psn {
        let mut index = self.queue.head();
        while let Some(wqe) = self.queue.get(index) {
            // PSNs of requests not begun may be up to half of their space ahead, or appear to be
            // behind.
            let begins_later = index > self.queue.head() && !wqe.first_psn.before(end);
            if index >= self.begun || begins_later {
                break;
            }
            if wqe.op.has_response() {
                return match wqe.first_psn.after(self.una) {
                    true => wqe.first_psn,
                    false => self.una,
                };
            }
            index += 1;
        }
        end
    }

    /// Moves `una` to `reached`: everything before it is done.
    pub(super) fn done_until<H: Completions>(
        &mut self,
        cx: &mut Context<'_>,
        reached: Psn,
        host: &mut H,
    ) {
        let packets = reached.diff(self.una);
        if packets <= 0 {
            return;
        }
        // A READ request that is outstanding alone is not limited by the congestion window, so its
        // responses do not increase the window.
        let in_flight = match self.single_read.is_outstanding() {
            true => 0,
            false => self.in_flight(),
        };
        self.una = reached;
        self.inflation = 0;
        self.single_read
            .progressed(reached, self.window.base(), cx.now);
        self.short_probe = ShortProbe::None;
        self.scoreboard.progressed(reached);
        if self.recovery.acknowledged(reached, cx.now) {
            self.window.loss_was_spurious(reached);
        }
        self.complete_done(cx, reached, host);
        self.requests.progressed(reached);
        if self.cursor.psn.before(reached) {
            self.arrived_before_retransmission();
        }
        if let Some(sample) = self.recovery.measured(reached, self.sent_end, cx.now) {
            self.window.round_trip(cx.now, sample);
            self.set_pacing_rate(cx.attr);
        }
        self.window.acknowledged(cx.now, packets as u32, in_flight);
        self.recovery
            .progressed(cx.now, reached.before(self.sent_end));
    }

    /// Moves the cursor forward: packets that were sent before the requester went back have
    /// arrived.
    #[cold]
    fn arrived_before_retransmission(&mut self) {
        if self.back_for_gap {
            self.fast_retransmit.set_peer_keeps_requests();
            self.cursor = SendCursor::in_oldest(&self.queue, self.una);
        } else {
            self.window.timeout_was_spurious();
            self.undo_go_back();
        }
    }

    /// Completes the oldest work requests that are done when all PSNs before `reached` are.
    #[inline(always)]
    pub(super) fn complete_done<H: Completions>(
        &mut self,
        cx: &mut Context<'_>,
        reached: Psn,
        host: &mut H,
    ) {
        while let Some(wqe) = self.queue.get(self.queue.head()) {
            let done = match wqe.op.is_local() {
                true => self.queue.head() < self.begun,
                false => wqe.ends_before(reached),
            };
            if !done {
                break;
            }
            self.credits.complete(wqe);
            cx.complete_send(wqe, self.signal_all, host);
            self.queue.remove();
        }
    }

    /// Handles a READ response, or the response to an ATOMIC WRITE or FLUSH (9.7.5.1.9, 9.7.5.2.4).
    pub(in crate::rc) fn read_response<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        psn: Psn,
        aeth: Option<&Aeth>,
        payload: &[u8],
        host: &mut H,
    ) -> Outcome {
        let Some((head, wqe)) = self.answered(cx, psn, Some((payload, aeth)), host) else {
            return self.fail_unsendable(cx, host);
        };
        let index = psn.diff(wqe.first_psn) as u32;
        let expected = match wqe.op {
            SendOp::Read { .. } => wqe.payload_of(index, cx.attr.path_mtu),
            op if op.has_empty_response() => 0,
            _ => {
                cx.counters.stale_responses += 1;
                return Outcome::Continue;
            }
        };
        if payload.len() != expected {
            cx.counters.malformed += 1;
            return self.fail(cx, WcStatus::BadRespErr, host);
        }
        let offset = u64::from(index) * cx.attr.path_mtu.bytes() as u64;
        self.deliver(cx, head, &wqe, offset, payload, aeth, host)
    }

    /// Handles the response to an atomic, with the original value (9.7.5.2.4).
    pub(in crate::rc) fn atomic_response<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        psn: Psn,
        aeth: &Aeth,
        original: u64,
        host: &mut H,
    ) -> Outcome {
        let Some((head, wqe)) = self.answered(cx, psn, None, host) else {
            return self.fail_unsendable(cx, host);
        };
        if !wqe.op.is_atomic() {
            cx.counters.stale_responses += 1;
            return Outcome::Continue;
        }
        self.deliver(cx, head, &wqe, 0, &original.to_ne_bytes(), Some(aeth), host)
    }

    /// Returns the work request of a response, if the response is the oldest outstanding one.
    ///
    /// A response acknowledges all requests before it. A READ response behind a gap, with its
    /// `data` and its AETH, may be kept by the scoreboard.
    fn answered<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        psn: Psn,
        data: Option<(&[u8], Option<&Aeth>)>,
        host: &mut H,
    ) -> Option<(u64, SendWqe)> {
        if psn.before(self.una) || !psn.before(self.sent_end) {
            cx.counters.stale_responses += 1;
            return None;
        }
        self.fast_retransmit.acknowledged(psn.next());
        self.advance(cx, psn, host);
        if self.una != psn {
            let is_kept =
                data.is_some_and(|(data, aeth)| self.keep_response(cx, psn, data, aeth, host));
            if !is_kept {
                self.scoreboard.note_dropped(psn);
            }
            self.response_lost(cx, psn.next());
            return None;
        }
        let head = self.queue.head();
        self.queue.get(head).map(|wqe| (head, *wqe))
    }

    /// Writes the data of a response to the memory of its work request.
    #[expect(clippy::too_many_arguments, reason = "one response, taken apart")]
    fn deliver<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        head: u64,
        wqe: &SendWqe,
        offset: u64,
        data: &[u8],
        aeth: Option<&Aeth>,
        host: &mut H,
    ) -> Outcome {
        let scattered = match self.queue.payload(head, wqe) {
            Payload::Sges(sges) => host.scatter(sges, offset, data),
            Payload::Inline(_) => Ok(()),
        };
        if scattered.is_err() {
            return self.fail(cx, WcStatus::LocProtErr, host);
        }
        self.check_execution_order(aeth);
        let reached = self.scoreboard.join(self.una.next());
        self.done_until(cx, reached, host);
        if let Some(Aeth {
            syndrome: Syndrome::Ack(credits),
            ..
        }) = aeth
        {
            self.update_credits(credits.count());
        }
        self.response_arrived(cx, host);
        self.fail_unsendable(cx, host)
    }

    /// Handles a fatal NAK for the request with this PSN.
    ///
    /// Earlier work requests that are not complete are flushed: the peer is in error and will not
    /// answer them.
    fn refused<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        psn: Psn,
        status: WcStatus,
        host: &mut H,
    ) -> Outcome {
        self.advance(cx, psn, host);
        while let Some(&wqe) = self.queue.get(self.queue.head()) {
            if !wqe.ends_before(psn) {
                break;
            }
            self.queue.pop();
            host.send_completed(cx.completion(&wqe, WcStatus::WrFlushErr));
        }
        self.fail(cx, status, host)
    }
}
