//! Recovery of missing READ responses: which are kept, and how the others are requested again
//! (9.7.5.2.4).
//!
//! A responder answers in PSN order, so a response behind a gap shows that the responses in the gap
//! were lost. Responses behind a gap are kept only if they belong to the same work request. READ
//! after READ is ordered (10.8.3.3): a later work request must not return older data than an
//! earlier one. Once a part of the earlier READ is executed again, the responses that the later one
//! received before are stale. They are dropped, and the later READ is requested again after the
//! earlier one.
//!
//! On a path that reorders, the response in a gap may be late. While the requester waits for it,
//! nothing is executed again, so responses to later READs are kept as well. They are dropped when
//! the wait ends without it, or if the MSN of the late response shows that it was sent after them:
//! then the network has duplicated the request, which was executed a second time.
//!
//! Responses of the first and of the second execution are indistinguishable by their contents. The
//! requester relies on a network that delivers in order, as the specification assumes, or reorders
//! by less than a round trip: a stale response then arrives while the gap is open.

use super::send_cursor::SendCursor;
use super::short_probe::{Purpose, ShortProbe, send_duplicate};
use super::{Requester, Step};
use crate::host::{Host, Memory, Transmit};
use crate::psn::Psn;
use crate::queue::SendWqe;
use crate::service::Context;
use crate::time::Time;
use crate::wire::{Aeth, Headers, Operation, Position};
use crate::work::{Payload, SendOp, WcStatus};

/// A request that is to be repeated.
struct Missing {
    /// Its work request.
    index: u64,
    wqe: SendWqe,
    /// The first PSN, and the PSN after the last response.
    from: Psn,
    end: Psn,
}

impl Requester {
    /// Delivers a response behind a gap, if it belongs to the oldest work request, or to a later one
    /// while the response in the gap may be late. Returns whether it was kept.
    ///
    /// Any other response is dropped. If the length does not match, or the memory is not writable,
    /// the response is requested again and the error reported when it is the oldest.
    pub(super) fn keep_response<H: Host>(
        &mut self,
        cx: &Context<'_>,
        psn: Psn,
        data: &[u8],
        aeth: Option<&Aeth>,
        host: &mut H,
    ) -> bool {
        // After the requester has gone back, everything from the cursor on is requested again.
        if self.has_gone_back() || !self.scoreboard.has_room() {
            return false;
        }
        let Some((index, wqe)) = self.work_request_of(psn) else {
            return false;
        };
        let is_later = index != self.queue.head();
        if !matches!(wqe.op, SendOp::Read { .. }) || (is_later && !self.may_be_late(cx.now)) {
            return false;
        }
        let (packet, mtu) = (psn.diff(wqe.first_psn) as u32, cx.attr.path_mtu);
        if data.len() != wqe.payload_of(packet, mtu) {
            return false;
        }
        let Payload::Sges(sges) = self.queue.payload(index, &wqe) else {
            return false;
        };
        let offset = u64::from(packet) * mtu.bytes() as u64;
        let is_kept = host.scatter(sges, offset, data).is_ok();
        if is_kept {
            self.scoreboard.add(psn);
            if is_later && let Some(aeth) = aeth {
                self.scoreboard.note_later_msn(aeth.msn);
            }
        }
        is_kept
    }

    /// Returns the work request with this PSN in flight, and its index.
    fn work_request_of(&self, psn: Psn) -> Option<(u64, SendWqe)> {
        let head = self.queue.head();
        let oldest = self.queue.get(head)?;
        if !oldest.ends_before(psn) {
            return Some((head, *oldest));
        }
        // The first PSNs of the others are in flight, so they compare serially.
        let (mut index, mut end) = (head, self.begun);
        while end - index > 1 {
            let middle = index.midpoint(end);
            match self.queue.get(middle)?.first_psn.after(psn) {
                true => end = middle,
                false => index = middle,
            }
        }
        let wqe = self.queue.get(index)?;
        (!wqe.ends_before(psn)).then_some((index, *wqe))
    }

    /// Handles the loss of the response with PSN `una`, given that the peer has executed all
    /// requests before `executed`.
    ///
    /// Missing responses are requested again (9.7.5.2.4), on a path that reorders after a wait.
    pub(super) fn response_lost(&mut self, cx: &mut Context<'_>, executed: Psn) {
        if !self.has_gone_back() {
            self.scoreboard.note_executed(executed);
            if self.may_be_late(cx.now) {
                return;
            }
            self.note_missing(executed);
        }
        let whole = self.requests.original_end(self.una);
        let last_part = whole.and_then(|whole| self.requests.part_end_before(whole));
        if last_part.is_none_or(|part| executed.after(part)) {
            self.scoreboard.attempt.is_original_executed = true;
        }
        let may_be_in_flight =
            self.recovery.is_duplicate_report(self.una, cx.now) || self.was_just_requested(cx.now);
        if may_be_in_flight && !self.scoreboard.answers_later_repetition(executed.prev()) {
            return;
        }
        self.repair_responses(cx, executed);
    }

    /// Requests the missing responses before `executed` again.
    pub(super) fn repair_responses(&mut self, cx: &mut Context<'_>, executed: Psn) {
        cx.counters.responses_lost += 1;
        self.recovery.gap_repaired(self.una, self.sent_end, cx.now);
        self.window.lost(cx.now, self.una, self.sent_end);
        self.single_read.lost();
        if self.has_gone_back() {
            self.go_back();
        } else {
            self.recovery.stop_measuring();
            self.drop_later_responses();
            self.scoreboard.restart(executed);
        }
    }

    /// Records that the responses before `end` that did not arrive are missing, not late.
    fn note_missing(&mut self, end: Psn) {
        self.drop_later_responses();
        self.scoreboard.note_missing(end);
    }

    /// Drops the responses to later work requests that were kept while a response might be late:
    /// they are older than the second execution of the oldest one.
    fn drop_later_responses(&mut self) {
        if self.scoreboard.awaits_late_response()
            && let Some(oldest) = self.queue.get(self.queue.head())
        {
            self.scoreboard.drop_from(oldest.end_psn());
        }
    }

    /// Drops the responses to later work requests if a response of the oldest one, which may have
    /// been late, was sent after them.
    pub(super) fn check_execution_order(&mut self, aeth: Option<&Aeth>) {
        if aeth.is_some_and(|aeth| self.scoreboard.is_newer_than_later(aeth.msn)) {
            self.drop_later_responses();
        }
    }

    /// Whether to wait for the response with PSN `una`: the path reorders, and the response was
    /// neither requested again nor dropped.
    ///
    /// Then no request from `una` on was sent twice, so all responses belong to their only
    /// execution, and those to later work requests are kept too.
    fn may_be_late(&mut self, now: Time) -> bool {
        !self.scoreboard.has_missing()
            && !self.scoreboard.was_dropped(self.una)
            && (self.recovery).tolerates_gap(self.una, self.sent_end, now)
            && self.scoreboard.await_late_response()
    }

    /// Whether the response with PSN `una` was requested too recently to be considered lost.
    fn was_just_requested(&self, now: Time) -> bool {
        let oldest = self.scoreboard.repeated.front();
        oldest.is_some_and(|(_, at)| self.recovery.is_recent(*at, now))
    }

    /// Repeats the oldest request for its missing responses.
    ///
    /// Returns false if it has no responses, or nothing is in flight.
    pub(super) fn request_oldest(&mut self) -> bool {
        let oldest = self.queue.get(self.queue.head());
        let is_answered = self.in_flight() > 0 && oldest.is_some_and(|wqe| wqe.op.has_response());
        if is_answered {
            self.recovery.stop_measuring();
            let end = self
                .requests
                .original_end(self.una)
                .unwrap_or(self.una.next());
            self.drop_later_responses();
            self.scoreboard.restart(end);
        }
        is_answered
    }

    /// Probes for the oldest request, if it has responses. Returns false if it has none.
    ///
    /// The probe is one packet whose answer is one packet: the repeated request if one response is
    /// missing, else a duplicate of a request that is done. The responder answers the duplicate
    /// after the responses, so the answer shows that those that did not arrive are lost. A peer
    /// that is only late has then sent them already.
    pub(super) fn probe_responses(&mut self) -> bool {
        let oldest = self.queue.get(self.queue.head());
        if self.in_flight() == 0 || !oldest.is_some_and(|wqe| wqe.op.has_response()) {
            return false;
        }
        let end = self.requests.original_end(self.una);
        let is_one = end.is_none_or(|end| end == self.una.next());
        // If a repeated request is not answered, the peer may not accept it; the next one differs.
        let was_repeated = self.scoreboard.attempt.end.is_some();
        if is_one || was_repeated || self.has_gone_back() {
            return self.request_in_turn();
        }
        self.short_probe = ShortProbe::Due(Purpose::Responses);
        true
    }

    /// Repeats the oldest request, and after its answer the next.
    ///
    /// Returns false if the oldest request has no responses.
    fn request_in_turn(&mut self) -> bool {
        let is_answered = self.request_oldest();
        if is_answered {
            self.scoreboard.probe_until = Some(self.sent_end);
        }
        is_answered
    }

    /// Sends the probe that is due. Returns false when the sink is full.
    #[cold]
    pub(super) fn transmit_short_probe<T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut T,
    ) -> bool {
        let ShortProbe::Due(purpose) = self.short_probe else {
            return true;
        };
        let Some(oldest) = self.queue.get(self.queue.head()) else {
            return true;
        };
        let (write, only) = (Operation::Write, Position::Only);
        let header = cx.request_header(oldest, write, only, Headers::empty(), self.una.prev());
        let is_sent = send_duplicate(cx, header, out);
        if is_sent {
            self.short_probe = ShortProbe::Sent(purpose);
        }
        is_sent
    }

    /// Handles an ACK of `psn` if it answers the probe without progress. Returns whether it does.
    ///
    /// If it follows READ responses, all that were outstanding when it was sent are lost. A
    /// responder may acknowledge less than the last response that it sent (Linux's rxe).
    #[inline]
    pub(super) fn probe_answered(&mut self, cx: &mut Context<'_>, psn: Psn) -> bool {
        let ShortProbe::Sent(purpose) = self.short_probe else {
            return false;
        };
        if !psn.before(self.una) {
            return false;
        }
        self.short_probe = ShortProbe::Answered;
        if purpose == Purpose::Reachability {
            return true;
        }
        cx.counters.responses_lost += 1;
        self.recovery.probe_answered(cx.now);
        self.window.lost(cx.now, self.una, self.sent_end);
        self.single_read.lost();
        self.request_in_turn();
        true
    }

    /// Continues the recovery after the oldest missing response has arrived and `una` has advanced.
    pub(super) fn response_arrived<H: Host>(&mut self, cx: &mut Context<'_>, host: &mut H) {
        // Later WRITEs and SENDs may already be done, and so may READs behind them.
        while let Some(executed) = self.scoreboard.executed() {
            self.advance(cx, executed, host);
            let reached = self.scoreboard.join(self.una);
            if reached == self.una {
                break;
            }
            self.done_until(cx, reached, host);
        }
        let una = self.una;
        let repeated = &mut self.scoreboard.repeated;
        let mut answered = None;
        while let Some(&(end, _)) = repeated.front()
            && !end.after(una)
        {
            repeated.pop_front();
            answered = Some(end);
        }
        let is_requested = !repeated.is_empty();
        // The response was late. There may be another gap behind it.
        if self.scoreboard.awaits_late_response()
            && !self.may_be_late(cx.now)
            && let Some(executed) = self.scoreboard.executed()
        {
            self.note_missing(executed);
        }
        if self.scoreboard.nak.take_if(|psn| *psn == una).is_some() {
            self.retransmit();
        } else if self.scoreboard.missing.is_some() {
            if !is_requested {
                // It is requested with the next transmission; another report of the gap is a
                // duplicate.
                self.recovery.gap_retransmitted(una, cx.now);
            }
        } else if self.scoreboard.probe_until.is_some() && !is_requested {
            if answered == Some(una) {
                self.request_oldest();
            } else {
                // The response arrived without being requested again: it was late, not lost.
                self.scoreboard.probe_until = None;
            }
        }
    }

    /// Sends repeated requests for missing responses. Returns false when the sink is full.
    #[cold]
    pub(super) fn transmit_missing<M: Memory, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        memory: &M,
        out: &mut T,
    ) -> bool {
        while let Some(missing) = self.next_missing() {
            let Missing { index, wqe, .. } = missing;
            let cursor = SendCursor {
                index,
                packet: missing.from.diff(wqe.first_psn) as u32,
                psn: missing.from,
                ..self.cursor
            };
            let packets = missing.end.diff(missing.from) as u32;
            match self.request(cx, cursor, &wqe, packets, memory, out) {
                Step::Sent(_) => {}
                // The memory is not accessible any more: sending stops at the work request.
                Step::Wait => {
                    self.set_cursor_back(cursor);
                    return true;
                }
                Step::Full => return false,
            }
            self.scoreboard.repeated.push_back((missing.end, cx.now));
        }
        true
    }

    /// Whether the response to a new request at the cursor would be dropped: it would arrive before
    /// responses of an earlier work request that are missing and cannot be requested yet.
    pub(super) fn would_drop_response(&self, cursor: SendCursor) -> bool {
        if cursor.index == self.queue.head() {
            return false;
        }
        let unrequested = || {
            let (_, _, from) = self.oldest_unrequested()?;
            let end = self.requests.original_end(from)?;
            // Unless all responses to the request are known to be missing, new requests may show it.
            Some(
                self.scoreboard
                    .missing
                    .is_some_and(|missing| !end.after(missing)),
            )
        };
        unrequested() == Some(true)
    }

    /// Returns the oldest missing response that was not requested again: the index of its work
    /// request, the work request, and the PSN.
    fn oldest_unrequested(&self) -> Option<(u64, &SendWqe, Psn)> {
        let missing = self.scoreboard.missing?;
        let mut from = self.una;
        if let Some((end, _)) = self.scoreboard.repeated.back()
            && end.after(from)
        {
            from = *end;
        }
        let mut index = self.queue.head();
        loop {
            from = self.scoreboard.skip_received(from);
            if !from.before(missing) {
                return None;
            }
            let wqe = self.queue.get(index)?;
            if !wqe.op.is_local() && !wqe.ends_before(from) {
                if wqe.op.has_response() {
                    return Some((index, wqe, from));
                }
                // The peer has executed it, or is about to.
                if !wqe.ends_before(missing) {
                    return None;
                }
                from = wqe.end_psn();
            }
            index += 1;
        }
    }

    /// Returns the next request to repeat, in PSN order, within the window.
    #[inline]
    fn next_missing(&self) -> Option<Missing> {
        let missing = self.scoreboard.missing?;
        let (index, wqe, from) = self.oldest_unrequested()?;
        let end = self.requests.original_end(from)?;
        let end = if from == self.una {
            let gap_end = self.scoreboard.gap_end(from).unwrap_or(end);
            let shortest = earliest([self.requests.repeated_end(from)?, gap_end, missing]);
            self.attempt_end(from, shortest)
        } else {
            // Partial requests are repeated one at a time. A responder may discard its replay state
            // before a repeated READ: Linux's rxe advances the start of the range that it can
            // replay, and would then drop a repetition of an earlier part. Other requests are
            // repeated as a whole, once all of their responses are known to be missing.
            let is_start = from == wqe.first_psn || self.requests.ends_original(from);
            let in_window = end.diff(self.una) as u32 <= self.window.packets();
            if !is_start
                || end.after(missing)
                || !in_window
                || self.requests.repeated_end(from)? != end
            {
                return None;
            }
            end
        };
        Some(Missing {
            index,
            wqe: *wqe,
            from,
            end,
        })
    }

    /// Returns the end of a repeated request that begins at `from`.
    ///
    /// `shortest` is the end of the missing range or of the window, whichever is first.
    ///
    /// A responder may not accept a request for a part of an earlier one: it answers with a NAK, or
    /// not at all. So when a request for the oldest missing response is not answered, the next one
    /// extends to the end of the original request. The original request may have been lost and a
    /// part of it executed by itself; the responder then accepts no request that extends beyond the
    /// end of that part. So unless a response shows that the original request was executed, the
    /// ends of such parts are tried after that.
    pub(super) fn attempt_end(&self, from: Psn, shortest: Psn) -> Psn {
        let attempt = &self.scoreboard.attempt;
        let whole = self.requests.original_end(from).unwrap_or(shortest);
        match attempt.end {
            _ if from != self.una => shortest,
            _ if attempt.refused.is_some() => whole,
            None => shortest,
            Some(last) if !last.after(shortest) => whole,
            Some(_) if attempt.was_partial && attempt.is_original_executed => whole,
            Some(last) => {
                let part = self.requests.part_end_before(last);
                part.filter(|end| end.after(shortest)).unwrap_or(shortest)
            }
        }
    }

    /// Records an attempt to request the response with PSN `una`, up to `end`.
    pub(super) fn note_attempt(&mut self, end: Psn) {
        let whole = self.requests.original_end(self.una);
        let attempt = &mut self.scoreboard.attempt;
        attempt.end = Some(end);
        let is_partial = whole.is_some_and(|whole| end.before(whole));
        attempt.was_partial |= is_partial;
        attempt.was_whole |= !is_partial;
    }

    /// Whether the oldest missing response was requested again, but never to the end of the
    /// original request.
    pub(super) fn awaits_partial(&self) -> bool {
        let attempt = &self.scoreboard.attempt;
        attempt.end.is_some() && !attempt.was_whole
    }

    /// Whether the NAK for `psn` refuses a partial request only.
    ///
    /// If so, the whole rest of the original request is requested before the NAK becomes final.
    pub(super) fn refuses_partial(&mut self, psn: Psn, status: WcStatus, now: Time) -> bool {
        if psn != self.una {
            return false;
        }
        let whole = self.requests.original_end(psn);
        let attempt = &mut self.scoreboard.attempt;
        let is_partial = |(end, whole): (Psn, Psn)| end.before(whole);
        if attempt.end.zip(whole).is_some_and(is_partial) {
            attempt.refused = Some(status);
            self.recovery.gap_retransmitted(psn, now);
            if self.has_gone_back() {
                self.go_back();
            } else {
                self.request_oldest();
            }
            return true;
        }
        // A duplicate of the NAK, or one sent before the whole request was executed.
        attempt.refused.is_some() && self.recovery.is_duplicate_report(psn, now)
    }

    /// Returns the status of a work request whose retries are exhausted.
    pub(super) fn exhausted_status(&self) -> WcStatus {
        let refused = self.scoreboard.attempt.refused;
        refused.unwrap_or(WcStatus::RetryExcErr)
    }
}

/// Returns the first of three PSNs that are close to each other.
fn earliest([first, second, third]: [Psn; 3]) -> Psn {
    let earlier = |a: Psn, b: Psn| if b.before(a) { b } else { a };
    earlier(earlier(first, second), third)
}
