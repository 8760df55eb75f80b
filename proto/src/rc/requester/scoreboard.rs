//! The scoreboard: which READ responses are missing, and which requests were repeated for them
//! (RFC 6675; 9.7.5.2.4).

use crate::psn::Psn;
use crate::time::Time;
use crate::work::WcStatus;
use std::collections::VecDeque;

/// The maximum number of received ranges; beyond it, responses behind a further gap are dropped.
const MAX_RANGES: usize = 64;

/// The responses received behind the oldest missing one, whose PSN is `una`, and the repeated
/// requests.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    /// Received ranges of the oldest work request, and of later ones while a response may be late,
    /// in order: the first PSN and the PSN after the last. The ranges are separated by gaps.
    received: VecDeque<(Psn, Psn)>,
    /// The peer has executed all requests before this PSN.
    executed: Option<Psn>,
    /// Responses before this PSN that are neither done nor received are missing: lost or dropped.
    pub(super) missing: Option<Psn>,
    /// Responses before this PSN that are neither done nor received may have arrived and been
    /// dropped.
    dropped: Option<Psn>,
    /// Whether a response before `executed` may be late, so that the requester waits for it.
    awaits_late_response: bool,
    /// The lowest MSN of the responses to later work requests, which are kept meanwhile.
    later_msn: Option<Psn>,
    /// Repeated requests without an answer, in order: the PSN after the last response, and the
    /// time. Missing responses before the last of these PSNs were requested again.
    pub(super) repeated: VecDeque<(Psn, Time)>,
    /// After a probe, requests sent before this PSN are repeated one at a time.
    pub(super) probe_until: Option<Psn>,
    /// The PSN of a request that the responder reported missing while earlier responses were
    /// missing.
    pub(super) nak: Option<Psn>,
    /// The attempts to request the response with PSN `una` again.
    pub(super) attempt: Attempt,
}

/// The repeated requests for the oldest missing response.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempt {
    /// The PSN after the last response that the latest attempt requested.
    pub(super) end: Option<Psn>,
    /// Whether an attempt requested the whole rest of the original request.
    pub(super) was_whole: bool,
    /// Whether an attempt requested less.
    pub(super) was_partial: bool,
    /// Whether the peer is known to have executed the original request, not only a part repeated by
    /// itself.
    pub(super) is_original_executed: bool,
    /// The NAK for a partial request, as a status. The work request gets it if no attempt succeeds.
    pub(super) refused: Option<WcStatus>,
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
    #[inline]
    pub(super) fn progressed(&mut self, una: Psn) {
        let is_past = |psn: &mut Psn| !psn.after(una);
        if self.executed.take_if(is_past).is_some() {
            self.awaits_late_response = false;
            self.later_msn = None;
        }
        self.missing.take_if(is_past);
        self.dropped.take_if(is_past);
        self.probe_until.take_if(is_past);
        self.nak.take_if(|psn| psn.before(una));
        self.attempt = Attempt::default();
    }

    /// Whether responses are known to be missing.
    #[inline]
    pub(super) fn has_missing(&self) -> bool {
        self.missing.is_some()
    }

    /// The PSN before which the peer has executed all requests, if it is beyond `una`.
    pub(super) fn executed(&self) -> Option<Psn> {
        self.executed
    }

    /// Records that the peer has executed all requests before `end`.
    pub(super) fn note_executed(&mut self, end: Psn) {
        advance(&mut self.executed, end);
    }

    /// Records that the requester waits for a response that may be late. Returns true.
    pub(super) fn await_late_response(&mut self) -> bool {
        self.awaits_late_response = true;
        true
    }

    /// Records the MSN of a response to a later work request that is kept.
    pub(super) fn note_later_msn(&mut self, msn: u32) {
        let msn = Psn::new(msn);
        if self.later_msn.is_none_or(|lowest| msn.before(lowest)) {
            self.later_msn = Some(msn);
        }
    }

    /// Whether a response with this MSN was sent after a response to a later work request that is
    /// kept: the request was executed a second time, since the network has duplicated it.
    pub(super) fn is_newer_than_later(&self, msn: u32) -> bool {
        self.later_msn
            .is_some_and(|later| !Psn::new(msn).before(later))
    }

    /// Whether the requester waits for a response that may be late, or it has arrived and others
    /// before `executed` have not.
    pub(super) fn awaits_late_response(&self) -> bool {
        self.awaits_late_response
    }

    /// Records that the responses before `end` that did not arrive are missing, not late.
    pub(super) fn note_missing(&mut self, end: Psn) {
        self.awaits_late_response = false;
        advance(&mut self.missing, end);
    }

    /// Records that the response with this PSN arrived and was dropped.
    pub(super) fn note_dropped(&mut self, psn: Psn) {
        advance(&mut self.dropped, psn.next());
    }

    /// Whether the response with this PSN may have arrived and been dropped.
    pub(super) fn was_dropped(&self, psn: Psn) -> bool {
        self.dropped.is_some_and(|end| psn.before(end))
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
    pub(super) fn restart(&mut self, end: Psn) {
        self.missing = Some(end);
        self.awaits_late_response = false;
        self.repeated.clear();
    }

    /// Whether `psn` answers a repeated request other than the first unanswered one.
    ///
    /// A responder answers in order, so the first repeated request or its response was lost.
    pub(super) fn answers_later_repetition(&self, psn: Psn) -> bool {
        let (Some((first, _)), Some((last, _))) = (self.repeated.front(), self.repeated.back())
        else {
            return false;
        };
        !psn.before(*first) && psn.before(*last)
    }

    /// Returns the first PSN from `psn` on that was not received.
    pub(super) fn skip_received(&self, psn: Psn) -> Psn {
        let containing = |(start, end): &&(Psn, Psn)| !start.after(psn) && end.after(psn);
        match self.received.iter().find(containing) {
            Some((_, end)) => *end,
            None => psn,
        }
    }

    /// Returns the end of the gap at `psn`; `None` if no later response was received.
    pub(super) fn gap_end(&self, psn: Psn) -> Option<Psn> {
        let starts = self.received.iter().map(|(start, _)| *start);
        starts.into_iter().find(|start| start.after(psn))
    }

    pub(super) fn has_room(&self) -> bool {
        self.received.len() < MAX_RANGES
    }

    /// Adds `psn` to the received ranges.
    pub(super) fn add(&mut self, psn: Psn) {
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

    /// Drops the received responses from `end` on.
    pub(super) fn drop_from(&mut self, end: Psn) {
        self.later_msn = None;
        while let Some((start, last)) = self.received.back_mut()
            && last.after(end)
        {
            advance(&mut self.dropped, *last);
            if start.before(end) {
                *last = end;
                break;
            }
            self.received.pop_back();
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

/// Moves `known` forward to `end`.
fn advance(known: &mut Option<Psn>, end: Psn) {
    if known.is_none_or(|psn| end.after(psn)) {
        *known = Some(end);
    }
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
