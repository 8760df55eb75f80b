//! READ responses that came behind a hole (9.7.5.2.4). A responder answers in order, so what lies before the first of them
//! is lost. They stay where they are, and only what is missing is asked for again.

use super::{Requester, Step};
use crate::host::{Host, Memory, Transmit};
use crate::psn::Psn;
use crate::queue::SendWqe;
use crate::service::Context;
use crate::work::{Payload, SendOp};
use std::collections::VecDeque;

/// With so many stretches no more is kept.
const MOST_STRETCHES: usize = 64;

/// Which responses have come behind the oldest that is missing.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// From where to where, in order; between them are holes.
    stretches: VecDeque<(Psn, Psn)>,
    /// Whether what is missing before the first is to be asked for, or, if there is none, all of the oldest request.
    wanted: bool,
    /// How far what was asked for last reaches.
    asked_until: Option<Psn>,
    /// Nothing was heard, so all that had been sent before this PSN is asked for, a request at a time.
    silent_until: Option<Psn>,
    /// The responder reported that it misses the request with this PSN, when answers before it were missing here.
    gap: Option<Psn>,
}

impl Early {
    pub(super) fn clear(&mut self) {
        self.stretches.clear();
        self.wanted = false;
        self.asked_until = None;
        self.silent_until = None;
        self.gap = None;
    }

    /// The responder misses the request with this PSN, which is to be seen to when the holes before it are closed.
    pub(super) fn note_gap(&mut self, psn: Psn) {
        if !self.stretches.is_empty() {
            self.gap = Some(psn);
        }
    }

    /// What was missing has come.
    pub(super) fn want_nothing(&mut self) {
        self.wanted = false;
    }

    /// Where the first hole ends; `None` if there is none.
    fn hole_end(&self) -> Option<Psn> {
        self.stretches.front().map(|(start, _)| *start)
    }

    fn has_room(&self) -> bool {
        self.stretches.len() < MOST_STRETCHES
    }

    /// The response with `psn` has come.
    fn add(&mut self, psn: Psn) {
        let at = self.stretches.partition_point(|(_, end)| end.before(psn));
        let next_start = self.stretches.get(at + 1).map(|(start, _)| *start);
        match self.stretches.get_mut(at) {
            Some((start, end)) if *end == psn && !psn.before(*start) => {
                *end = psn.next();
                if next_start == Some(psn.next())
                    && let Some((_, joined)) = self.stretches.remove(at + 1)
                {
                    self.stretches[at].1 = joined;
                }
            }
            Some((start, _)) if *start == psn.next() => *start = psn,
            Some((start, _)) if !psn.before(*start) => {}
            _ => self.stretches.insert(at, (psn, psn.next())),
        }
    }

    /// All before `psn` has come in order. Returns how far that reaches with what came early.
    pub(super) fn join(&mut self, psn: Psn) -> Psn {
        let mut reached = psn;
        while let Some((_, end)) =
            (self.stretches.front().copied()).filter(|(start, _)| !start.after(reached))
        {
            self.stretches.pop_front();
            if end.after(reached) {
                reached = end;
            }
        }
        reached
    }
}

impl Requester {
    /// Puts the data of a response behind a hole in its place, if nothing but other responses to READs is missing before
    /// it. What does not fit, or may not be written, is left to the one that comes in its turn.
    pub(super) fn keep_early<H: Host>(
        &mut self,
        cx: &Context<'_>,
        psn: Psn,
        data: &[u8],
        host: &mut H,
    ) {
        // Where the requester has gone back, everything from there is asked for again.
        if self.next_psn != self.sent_end || !self.early.has_room() {
            return;
        }
        let Some((at, wqe)) = self.read_behind_reads(psn) else {
            return;
        };
        let (index, mtu) = (psn.diff(wqe.first_psn) as u32, cx.attr.path_mtu);
        if data.len() != wqe.payload_of(index, mtu) {
            return;
        }
        let Payload::Sges(sges) = self.queue.payload(at, &wqe) else {
            return;
        };
        let offset = u64::from(index) * mtu.bytes() as u64;
        if host.scatter(sges, offset, data).is_ok() {
            self.early.add(psn);
        }
    }

    /// The READ that the response with `psn` belongs to, if all from the oldest work request to it are READs.
    fn read_behind_reads(&self, psn: Psn) -> Option<(u64, SendWqe)> {
        for at in self.queue.head()..self.begun {
            let wqe = self.queue.get(at)?;
            if wqe.op.is_local() {
                continue;
            }
            if !matches!(wqe.op, SendOp::Read { .. }) {
                return None;
            }
            if !wqe.ends_before(psn) {
                return Some((at, *wqe));
            }
        }
        None
    }

    /// The first hole is asked for. False if there is none: what is missing has nothing behind it.
    pub(super) fn want_hole(&mut self) -> bool {
        self.early.hole_end().is_some() && self.want_oldest()
    }

    /// The oldest request goes again, for what is missing of its answer. False if there is none.
    pub(super) fn want_oldest(&mut self) -> bool {
        let oldest = self.queue.get(self.queue.head());
        let is_asked = self.in_flight() > 0 && oldest.is_some_and(|wqe| wqe.op.has_response());
        if is_asked {
            self.measured = None;
            self.early.wanted = true;
        }
        is_asked
    }

    /// Nothing was heard for long: the oldest request goes again, and when it is answered the next. False if the oldest
    /// is none that has an answer.
    pub(super) fn probe_oldest(&mut self) -> bool {
        let is_asked = self.want_oldest();
        if is_asked {
            self.early.silent_until = Some(self.sent_end);
        }
        is_asked
    }

    /// If what was asked for is there, what is missing next has its turn.
    pub(super) fn look_for_hole(&mut self, cx: &Context<'_>) {
        let una = self.una;
        let has_come = |until: Psn| !una.before(until);
        if !self.early.asked_until.is_none_or(has_come) {
            return;
        }
        // What comes without being asked for again was only late.
        let comes = self.early.asked_until.is_some_and(|until| una.after(until));
        if comes || self.early.silent_until.is_some_and(has_come) {
            self.early.silent_until = None;
        }
        let gap = self.early.gap.take_if(|gap| has_come(*gap));
        if self.early.hole_end().is_some() {
            if self.want_oldest() {
                self.gap = Some((una, cx.now));
            }
        } else if gap == Some(una) {
            self.repeat();
        } else if self.early.silent_until.is_some() {
            self.want_oldest();
        }
    }

    /// Asks again for what is missing of the oldest answers. False when the sink is full.
    pub(super) fn transmit_hole<M: Memory, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        memory: &M,
        out: &mut T,
    ) -> bool {
        let end = self.early.hole_end().unwrap_or(self.next_psn);
        let missing = end.diff(self.una);
        if !self.early.wanted || missing <= 0 {
            return true;
        }
        let there = (self.cursor, self.cursor_packet, self.next_psn, self.asked);
        self.place_cursor();
        let Some(&wqe) = self.queue.get(self.cursor) else {
            return true;
        };
        let packets = self.piece_of(cx, &wqe).min(missing as u32);
        match self.request(cx, &wqe, packets, memory, out) {
            Step::Sent => {
                self.early.wanted = false;
                self.early.asked_until = Some(self.next_psn);
            }
            Step::Full => {}
            // Its memory is not accessible any more: there the cursor stays.
            Step::Wait => return true,
        }
        (self.cursor, self.cursor_packet, self.next_psn, self.asked) = there;
        !self.early.wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn stretches_are_what_came(first in 0_u32..1 << 24, come in prop::collection::vec(1_u32..100, 0..80)) {
            let psn = |n| Psn::new(first) + n;
            let mut early = Early::default();
            let mut set = BTreeSet::new();
            for n in come {
                early.add(psn(n));
                set.insert(n);
            }
            let stretches = early.stretches.iter();
            let in_them = stretches.flat_map(|(start, end)| {
                let start = start.diff(psn(0)) as u32;
                start..start + end.diff(psn(start)) as u32
            });
            prop_assert!(in_them.eq(set.iter().copied()));
            let joined = early.stretches.make_contiguous().windows(2).all(|w| w[0].1.before(w[1].0));
            prop_assert!(joined, "{early:?}");
            let end = (1..).find(|n| !set.contains(n)).unwrap();
            prop_assert_eq!(early.join(psn(1)), psn(end));
            prop_assert_eq!(early.hole_end(), set.range(end..).next().map(|n| psn(*n)));
        }
    }
}
