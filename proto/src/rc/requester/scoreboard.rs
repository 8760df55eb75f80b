//! The scoreboard of READ responses: which are missing, and how they are requested again (RFC 6675;
//! 9.7.5.2.4).
//!
//! A responder answers in PSN order, so a response behind a gap shows that the responses in the gap
//! were lost. Responses behind a gap are kept only if they belong to the same work request. READ
//! after READ is ordered (10.8.3.3): a later work request must not return older data than an
//! earlier one. Once a part of the earlier READ is executed again, the responses that the later one
//! received before are stale. They are dropped, and the later READ is requested again after the
//! earlier one.
//!
//! Responses of the first and of the second execution are indistinguishable by their contents. The
//! requester relies on a network that delivers in order, as the specification assumes, or reorders
//! by less than a round trip: a stale response then arrives while the gap is open.

use super::{Requester, Step};
use crate::host::{Host, Memory, Transmit};
use crate::psn::Psn;
use crate::queue::SendWqe;
use crate::service::Context;
use crate::time::Time;
use crate::work::{Payload, SendOp, WcStatus};
use std::collections::VecDeque;

/// The maximum number of received ranges; beyond it, responses behind a further gap are dropped.
const MAX_RANGES: usize = 64;

/// The responses received behind the oldest missing one, whose PSN is `una`, and the repeated
/// requests.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    /// Received ranges of the oldest work request, in order: the first PSN and the PSN after the
    /// last. The ranges are separated by gaps.
    received: VecDeque<(Psn, Psn)>,
    /// The peer has executed all requests before this PSN.
    executed: Option<Psn>,
    /// Responses before this PSN that are neither done nor received are missing: lost or dropped.
    missing: Option<Psn>,
    /// Repeated requests without an answer, in order: the PSN after the last response, and the
    /// time. Missing responses before the last of these PSNs were requested again.
    repeated: VecDeque<(Psn, Time)>,
    /// After a probe, requests sent before this PSN are repeated one at a time.
    probe_until: Option<Psn>,
    /// The PSN of a request that the responder reported missing while earlier responses were
    /// missing.
    nak: Option<Psn>,
    /// The attempts to request the response with PSN `una` again.
    attempt: Attempt,
}

/// The repeated requests for the oldest missing response.
#[derive(Clone, Copy, Debug, Default)]
struct Attempt {
    /// The PSN after the last response that the latest attempt requested.
    end: Option<Psn>,
    /// Whether an attempt requested the whole rest of the original request.
    was_whole: bool,
    /// Whether an attempt requested less.
    was_partial: bool,
    /// Whether the peer is known to have executed the original request, not only a part repeated by
    /// itself.
    is_original_executed: bool,
    /// The NAK for a partial request, as a status. The work request gets it if no attempt succeeds.
    refused: Option<WcStatus>,
}

impl Scoreboard {
    /// Clears received ranges and repeated requests when the requester goes back.
    ///
    /// The attempts for `una` stay.
    pub(super) fn clear(&mut self) {
        *self = Scoreboard {
            attempt: self.attempt,
            ..Scoreboard::default()
        };
    }

    /// Clears everything.
    pub(super) fn reset(&mut self) {
        *self = Scoreboard::default();
    }

    /// Removes the state of PSNs before `una`, which are done.
    pub(super) fn progressed(&mut self, una: Psn) {
        let is_past = |psn: &mut Psn| !psn.after(una);
        self.executed.take_if(is_past);
        self.missing.take_if(is_past);
        self.probe_until.take_if(is_past);
        self.nak.take_if(|psn| psn.before(una));
        self.attempt = Attempt::default();
    }

    /// The PSN before which the peer has executed all requests, if it is beyond `una`.
    pub(super) fn executed(&self) -> Option<Psn> {
        self.executed
    }

    /// Records that the peer has executed all requests before `end`.
    ///
    /// Responses before `end` that did not arrive are missing.
    fn note_executed(&mut self, end: Psn) {
        for known in [&mut self.executed, &mut self.missing] {
            if known.is_none_or(|psn| end.after(psn)) {
                *known = Some(end);
            }
        }
    }

    /// Records that the responder misses the request with this PSN.
    ///
    /// The request is repeated when the responses before it have arrived.
    pub(super) fn note_nak(&mut self, psn: Psn) {
        self.nak = Some(psn);
    }

    /// Schedules new requests for all responses missing before `end`.
    ///
    /// Later responses may be lost or in flight.
    fn restart(&mut self, end: Psn) {
        self.missing = Some(end);
        self.repeated.clear();
    }

    /// Whether `psn` answers a repeated request other than the first unanswered one.
    ///
    /// A responder answers in order, so the first repeated request or its response was lost.
    fn answers_later_repetition(&self, psn: Psn) -> bool {
        let (Some((first, _)), Some((last, _))) = (self.repeated.front(), self.repeated.back())
        else {
            return false;
        };
        !psn.before(*first) && psn.before(*last)
    }

    /// Returns the first PSN from `psn` on that was not received.
    fn skip_received(&self, psn: Psn) -> Psn {
        let containing = |(start, end): &&(Psn, Psn)| !start.after(psn) && end.after(psn);
        match self.received.iter().find(containing) {
            Some((_, end)) => *end,
            None => psn,
        }
    }

    /// Returns the end of the gap at `psn`; `None` if no later response was received.
    fn gap_end(&self, psn: Psn) -> Option<Psn> {
        let starts = self.received.iter().map(|(start, _)| *start);
        starts.into_iter().find(|start| start.after(psn))
    }

    fn has_room(&self) -> bool {
        self.received.len() < MAX_RANGES
    }

    /// Adds `psn` to the received ranges.
    fn add(&mut self, psn: Psn) {
        let at = self.received.partition_point(|(_, end)| end.before(psn));
        let next_start = self.received.get(at + 1).map(|(start, _)| *start);
        match self.received.get_mut(at) {
            Some((start, end)) if *end == psn && !psn.before(*start) => {
                *end = psn.next();
                if next_start == Some(psn.next())
                    && let Some((_, joined)) = self.received.remove(at + 1)
                {
                    self.received[at].1 = joined;
                }
            }
            Some((start, _)) if *start == psn.next() => *start = psn,
            Some((start, _)) if !psn.before(*start) => {}
            _ => self.received.insert(at, (psn, psn.next())),
        }
    }

    /// Returns the end of the contiguous range, given that all before `psn` is done.
    pub(super) fn join(&mut self, psn: Psn) -> Psn {
        let mut reached = psn;
        while let Some((_, end)) =
            (self.received.front().copied()).filter(|(start, _)| !start.after(reached))
        {
            self.received.pop_front();
            if end.after(reached) {
                reached = end;
            }
        }
        reached
    }
}

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
    /// Delivers a response behind a gap, if it belongs to the oldest work request.
    ///
    /// Any other response is dropped. If the length does not match, or the memory is not writable,
    /// the response is requested again and the error reported when it is the oldest.
    pub(super) fn keep_response<H: Host>(
        &mut self,
        cx: &Context<'_>,
        psn: Psn,
        data: &[u8],
        host: &mut H,
    ) {
        // After the requester has gone back, everything from the cursor on is requested again.
        if self.next_psn != self.sent_end || !self.scoreboard.has_room() {
            return;
        }
        let head = self.queue.head();
        let Some(&wqe) = self.queue.get(head) else {
            return;
        };
        if !matches!(wqe.op, SendOp::Read { .. }) || wqe.ends_before(psn) {
            return;
        }
        let (index, mtu) = (psn.diff(wqe.first_psn) as u32, cx.attr.path_mtu);
        if data.len() != wqe.payload_of(index, mtu) {
            return;
        }
        let Payload::Sges(sges) = self.queue.payload(head, &wqe) else {
            return;
        };
        let offset = u64::from(index) * mtu.bytes() as u64;
        if host.scatter(sges, offset, data).is_ok() {
            self.scoreboard.add(psn);
        }
    }

    /// Handles the loss of the response with PSN `una`, given that the peer has executed all
    /// requests before `executed`.
    ///
    /// Missing responses are requested again (9.7.5.2.4).
    pub(super) fn response_lost(&mut self, cx: &mut Context<'_>, executed: Psn) {
        let has_gone_back = self.next_psn != self.sent_end;
        if !has_gone_back {
            self.scoreboard.note_executed(executed);
        }
        let whole = self.request_end(self.una);
        let last_part = whole.and_then(|whole| self.part_end_before(whole));
        if last_part.is_none_or(|part| executed.after(part)) {
            self.scoreboard.attempt.is_original_executed = true;
        }
        let may_come = self.just_went_back_to(self.una, cx.now) || self.was_just_requested(cx.now);
        if may_come && !self.scoreboard.answers_later_repetition(executed.prev()) {
            return;
        }
        cx.counters.responses_lost += 1;
        self.gap = Some((self.una, cx.now));
        self.reduce(cx);
        if has_gone_back {
            self.go_back();
        } else {
            self.measured = None;
            self.scoreboard.restart(executed);
        }
    }

    /// Whether the response with PSN `una` was requested too recently to be considered lost.
    fn was_just_requested(&self, now: Time) -> bool {
        let oldest = self.scoreboard.repeated.front();
        oldest.is_some_and(|(_, at)| self.is_recent(*at, now))
    }

    /// Repeats the oldest request for its missing responses.
    ///
    /// Returns false if it has no responses, or nothing is in flight.
    pub(super) fn request_oldest(&mut self) -> bool {
        let oldest = self.queue.get(self.queue.head());
        let is_answered = self.in_flight() > 0 && oldest.is_some_and(|wqe| wqe.op.has_response());
        if is_answered {
            self.measured = None;
            let end = self.request_end(self.una).unwrap_or(self.una.next());
            self.scoreboard.restart(end);
        }
        is_answered
    }

    /// Probes after a timeout: repeats the oldest request, and after its answer the next.
    ///
    /// Returns false if the oldest request has no responses.
    pub(super) fn probe_oldest(&mut self) -> bool {
        let is_answered = self.request_oldest();
        if is_answered {
            self.scoreboard.probe_until = Some(self.sent_end);
        }
        is_answered
    }

    /// Continues the recovery after the oldest missing response has arrived and `una` has advanced.
    pub(super) fn response_arrived<H: Host>(&mut self, cx: &mut Context<'_>, host: &mut H) {
        // Later WRITEs and SENDs may already be done.
        if let Some(executed) = self.scoreboard.executed() {
            self.advance(cx, executed, host);
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
        if self.scoreboard.nak.take_if(|psn| *psn == una).is_some() {
            self.repeat();
        } else if self.scoreboard.missing.is_some() {
            if !is_requested {
                // It is requested with the next transmission; another report of the gap is a
                // duplicate.
                self.gap = Some((una, cx.now));
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
    pub(super) fn transmit_missing<M: Memory, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        memory: &M,
        out: &mut T,
    ) -> bool {
        while let Some(missing) = self.next_missing() {
            let Missing { index, wqe, .. } = missing;
            let there = (self.cursor, self.cursor_packet, self.next_psn, self.asked);
            self.cursor = index;
            self.cursor_packet = missing.from.diff(wqe.first_psn) as u32;
            self.next_psn = missing.from;
            let packets = missing.end.diff(missing.from) as u32;
            let step = self.request(cx, &wqe, packets, memory, out);
            // The memory is not accessible any more: the cursor stays at the work request.
            if matches!(step, Step::Wait) {
                return true;
            }
            (self.cursor, self.cursor_packet, self.next_psn, self.asked) = there;
            if matches!(step, Step::Full) {
                return false;
            }
            self.scoreboard.repeated.push_back((missing.end, cx.now));
        }
        true
    }

    /// Returns the next request to repeat, in PSN order, within the window.
    fn next_missing(&self) -> Option<Missing> {
        let missing = self.scoreboard.missing?;
        let mut from = self.una;
        if let Some((end, _)) = self.scoreboard.repeated.back()
            && end.after(from)
        {
            from = *end;
        }
        let mut index = self.queue.head();
        let wqe = loop {
            from = self.scoreboard.skip_received(from);
            if !from.before(missing) {
                return None;
            }
            let wqe = self.queue.get(index)?;
            if !wqe.op.is_local() && !wqe.ends_before(from) {
                if wqe.op.has_response() {
                    break wqe;
                }
                // The peer has executed it, or is about to.
                if !wqe.ends_before(missing) {
                    return None;
                }
                from = wqe.end_psn();
            }
            index += 1;
        };
        let end = self.request_end(from)?;
        let end = if from == self.una {
            let gap_end = self.scoreboard.gap_end(from).unwrap_or(end);
            let shortest = earliest([self.repeated_end(from)?, gap_end, missing]);
            self.attempt_end(from, shortest)
        } else {
            // Partial requests are repeated one at a time. A responder may discard its replay state
            // before a repeated READ: Linux's rxe advances the start of the range that it can
            // replay, and would then drop a repetition of an earlier part. Other requests are
            // repeated as a whole, once all of their responses are known to be missing.
            let is_start = from == wqe.first_psn || self.ends_request(from);
            let in_window = end.diff(self.una) as u32 <= self.window.packets();
            if !is_start || end.after(missing) || !in_window || self.repeated_end(from)? != end {
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
        let whole = self.request_end(from).unwrap_or(shortest);
        match attempt.end {
            _ if from != self.una => shortest,
            _ if attempt.refused.is_some() => whole,
            None => shortest,
            Some(last) if !last.after(shortest) => whole,
            Some(_) if attempt.was_partial && attempt.is_original_executed => whole,
            Some(last) => {
                let part = self.part_end_before(last);
                part.filter(|end| end.after(shortest)).unwrap_or(shortest)
            }
        }
    }

    /// Records an attempt to request the response with PSN `una`, up to `end`.
    pub(super) fn note_attempt(&mut self, end: Psn) {
        let whole = self.request_end(self.una);
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
        let whole = self.request_end(psn);
        let attempt = &mut self.scoreboard.attempt;
        let is_partial = |(end, whole): (Psn, Psn)| end.before(whole);
        if attempt.end.zip(whole).is_some_and(is_partial) {
            attempt.refused = Some(status);
            self.gap = Some((psn, now));
            if self.next_psn == self.sent_end {
                self.request_oldest();
            } else {
                self.go_back();
            }
            return true;
        }
        // A duplicate of the NAK, or one sent before the whole request was executed.
        attempt.refused.is_some() && self.just_went_back_to(psn, now)
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn received_ranges_are_what_arrived(
            first in 0_u32..1 << 24,
            arrived in prop::collection::vec(1_u32..100, 0..80),
        ) {
            let psn = |n| Psn::new(first) + n;
            let mut board = Scoreboard::default();
            let mut set = BTreeSet::new();
            for n in arrived {
                board.add(psn(n));
                set.insert(n);
            }
            let ranges = board.received.iter();
            let in_them = ranges.flat_map(|(start, end)| {
                let start = start.diff(psn(0)) as u32;
                start..start + end.diff(psn(start)) as u32
            });
            prop_assert!(in_them.eq(set.iter().copied()));
            let joined = board.received.make_contiguous().windows(2).all(|w| w[0].1.before(w[1].0));
            prop_assert!(joined, "{board:?}");
            for n in 0..100 {
                let next = (n..).find(|n| !set.contains(n)).unwrap();
                prop_assert_eq!(board.skip_received(psn(n)), psn(next));
                let end = set.range(next..).next().map(|n| psn(*n));
                prop_assert_eq!(board.gap_end(psn(next)), end);
            }
            let end = (1..).find(|n| !set.contains(n)).unwrap();
            prop_assert_eq!(board.join(psn(1)), psn(end));
            prop_assert_eq!(board.received.front().map(|(start, _)| *start), set.range(end..).next().map(|n| psn(*n)));
        }
    }
}
