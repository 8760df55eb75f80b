//! The tolerance of reordering (RFC 8985, section 6.2).
//!
//! A responder reports a gap at the first packet behind it. On a path that reorders, the missing
//! packet is late, not lost, and arrives soon after. So once a retransmission has proved needless,
//! later ones wait for a part of the round trip first, as RACK does. A path that does not reorder
//! costs no such delay.
//!
//! RACK marks a packet as lost when another one that was sent after it has been acknowledged for
//! that long. So one wait covers all packets that were in flight when it began: if one of them is
//! lost, the gaps behind it are repaired at once.

use crate::psn::Psn;
use crate::time::Time;

/// The unit of the tolerance, as a fraction (1/4) of the shortest round trip.
const UNIT_FRACTION: u64 = 4;

/// The maximum tolerance, in such units: one round trip.
const MAX_UNITS: u64 = UNIT_FRACTION;

/// The tolerance ends after this many repairs that were needed.
const REPAIRS: u32 = 16;

/// A packet is acknowledged too soon after its retransmission if within this fraction (1/2) of the
/// shortest round trip: the original has arrived.
const SOON_FRACTION: u64 = 2;

/// A reported gap that is not repaired yet.
#[derive(Clone, Copy, Debug)]
struct Gap {
    psn: Psn,
    /// When it is repaired.
    until: Time,
    /// The PSN after the last packet that was sent before the report.
    sent_end: Psn,
}

/// What a requester knows about reordering on its path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reordering {
    /// The tolerance, in units.
    units: u64,
    /// The number of repairs after which the tolerance ends.
    repairs_left: u32,
    waiting: Option<Gap>,
    /// Packets before this PSN are lost if they are missing: one of them was.
    lost_before: Option<Psn>,
    /// The last repaired packet, if it was retransmitted only once, and when.
    repaired: Option<(Psn, Time)>,
    /// The PSN after the highest one that was retransmitted.
    retransmitted_end: Option<Psn>,
}

impl Reordering {
    /// Handles the report of a gap at `psn`, with all packets before `sent_end` sent. Returns
    /// whether to wait until [`Reordering::deadline`] before its repair. The round trip is in
    /// nanoseconds.
    pub(super) fn gap_reported(
        &mut self,
        psn: Psn,
        sent_end: Psn,
        now: Time,
        shortest_round_trip: u64,
    ) -> bool {
        let is_lost = is_within(self.lost_before, psn, sent_end);
        if self.units == 0 || is_lost || is_within(self.retransmitted_end, psn, sent_end) {
            return false;
        }
        if !self.awaits(psn) {
            self.waiting = Some(Gap {
                psn,
                until: now.after_nanos(shortest_round_trip * self.units / UNIT_FRACTION),
                sent_end,
            });
        }
        true
    }

    /// Whether the gap at `psn` was reported and is not repaired yet.
    pub(super) fn awaits(&self, psn: Psn) -> bool {
        self.waiting.is_some_and(|gap| gap.psn == psn)
    }

    /// The time at which [`Reordering::expire`] is to be called.
    #[inline]
    pub(super) fn deadline(&self) -> Time {
        self.waiting.map_or(Time::NEVER, |gap| gap.until)
    }

    /// Whether the reported gap is to be repaired now.
    pub(super) fn expire(&mut self, now: Time) -> bool {
        let gap = self.waiting.take_if(|gap| gap.until <= now);
        if let Some(gap) = gap {
            self.lost_before = Some(gap.sent_end);
        }
        gap.is_some()
    }

    /// Records that the gap at `psn` is repaired, with all packets before `sent_end` sent.
    pub(super) fn repaired(&mut self, psn: Psn, sent_end: Psn, now: Time) {
        self.waiting = None;
        let was_retransmitted = is_within(self.retransmitted_end, psn, sent_end);
        self.repaired = (!was_retransmitted).then_some((psn, now));
        self.repairs_left = self.repairs_left.saturating_sub(1);
        if self.repairs_left == 0 {
            self.units = 0;
        }
    }

    /// Records that a packet or request whose last PSN is before `end` is sent again, for any
    /// reason.
    pub(super) fn retransmitted(&mut self, end: Psn, sent_end: Psn) {
        if !is_within(self.retransmitted_end, end, sent_end) {
            self.retransmitted_end = Some(end);
        }
    }

    /// Handles the acknowledgement of all packets before `una`. Returns whether the last repair was
    /// needless: its packet was late.
    #[inline]
    pub(super) fn acknowledged(
        &mut self,
        una: Psn,
        now: Time,
        shortest_round_trip: Option<u64>,
    ) -> bool {
        self.waiting.take_if(|gap| gap.psn.before(una));
        let repaired = self.repaired.take_if(|(psn, _)| psn.before(una));
        if let Some((_, at)) = repaired
            && let Some(shortest) = shortest_round_trip
            && now.nanos_since(at) < shortest / SOON_FRACTION
        {
            self.units = (self.units + 1).min(MAX_UNITS);
            self.repairs_left = REPAIRS;
            return true;
        }
        false
    }

    /// Forgets the gaps; what is known about the path stays.
    pub(super) fn clear(&mut self) {
        self.waiting = None;
        self.repaired = None;
    }
}

/// Whether `psn` is before `end`.
///
/// An `end` after `sent_end` is stale: PSNs have wrapped around half of their space.
fn is_within(end: Option<Psn>, psn: Psn, sent_end: Psn) -> bool {
    end.is_some_and(|end| psn.before(end) && !end.after(sent_end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: u64 = 8_000_000;

    /// The PSN after the last packet sent.
    const END: Psn = Psn::new(1000);

    fn ms(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    fn gap_reported(reordering: &mut Reordering, psn: u32, at: u64) -> bool {
        reordering.gap_reported(Psn::new(psn), END, ms(at), ROUND_TRIP)
    }

    /// Repairs the gap at `psn`, with one packet, at this time.
    fn repair(reordering: &mut Reordering, psn: u32, at: u64) {
        reordering.repaired(Psn::new(psn), END, ms(at));
        reordering.retransmitted(Psn::new(psn + 1), END);
    }

    fn acknowledge(reordering: &mut Reordering, una: u32, at: u64) -> bool {
        reordering.acknowledged(Psn::new(una), ms(at), Some(ROUND_TRIP))
    }

    /// The tolerance after a repair that was acknowledged after 1 ms.
    fn tolerant() -> Reordering {
        let mut reordering = Reordering::default();
        assert!(!gap_reported(&mut reordering, 1, 0));
        repair(&mut reordering, 1, 0);
        assert!(acknowledge(&mut reordering, 5, 1));
        reordering
    }

    #[test]
    fn needless_repair_delays_the_next_one_by_a_quarter_of_a_round_trip() {
        let mut reordering = tolerant();
        assert!(gap_reported(&mut reordering, 7, 10));
        assert_eq!(reordering.deadline(), ms(12));
        assert!(gap_reported(&mut reordering, 7, 11));
        assert!(!reordering.expire(ms(11)));
        assert!(reordering.expire(ms(12)));
        assert_eq!(reordering.deadline(), Time::NEVER);
    }

    #[test]
    fn late_packet_ends_the_wait() {
        let mut reordering = tolerant();
        assert!(gap_reported(&mut reordering, 7, 10));
        assert!(!acknowledge(&mut reordering, 8, 11));
        assert_eq!(reordering.deadline(), Time::NEVER);
    }

    #[test]
    fn one_wait_covers_all_packets_in_flight() {
        let mut reordering = tolerant();
        assert!(gap_reported(&mut reordering, 7, 10));
        assert!(reordering.expire(ms(12)));
        repair(&mut reordering, 7, 12);
        assert!(!acknowledge(&mut reordering, 9, 20));
        assert!(!gap_reported(&mut reordering, 9, 20));
        assert!(!gap_reported(&mut reordering, 999, 20));
        // It was sent after the report.
        assert!(reordering.gap_reported(Psn::new(1000), Psn::new(1100), ms(20), ROUND_TRIP));
    }

    #[test]
    fn tolerance_ends_after_16_needed_repairs() {
        let mut reordering = tolerant();
        for n in 0..REPAIRS {
            let (psn, sent_end) = (Psn::new(10 + 10 * n), Psn::new(20 + 10 * n));
            assert!(reordering.gap_reported(psn, sent_end, ms(20), ROUND_TRIP));
            assert!(reordering.expire(ms(30)));
            reordering.repaired(psn, sent_end, ms(30));
            reordering.retransmitted(psn.next(), sent_end);
            assert!(!acknowledge(&mut reordering, psn.next().get(), 38));
        }
        assert!(!gap_reported(&mut reordering, 999, 40));
    }

    #[test]
    fn loss_that_is_repaired_in_a_round_trip_shows_no_reordering() {
        let mut reordering = Reordering::default();
        repair(&mut reordering, 1, 0);
        assert!(!acknowledge(&mut reordering, 5, 8));
        assert!(!gap_reported(&mut reordering, 7, 10));
    }

    /// The acknowledgement may answer the first of its retransmissions.
    #[test]
    fn packet_that_was_retransmitted_twice_shows_no_reordering() {
        let mut reordering = Reordering::default();
        reordering.retransmitted(Psn::new(2), END);
        repair(&mut reordering, 1, 7);
        assert!(!acknowledge(&mut reordering, 5, 8));
        assert!(!gap_reported(&mut reordering, 7, 10));
    }

    /// It is repaired at once: one of its copies is late, or both are lost.
    #[test]
    fn packet_that_was_retransmitted_is_not_awaited() {
        let mut reordering = tolerant();
        reordering.retransmitted(Psn::new(8), END);
        assert!(!gap_reported(&mut reordering, 7, 10));
        assert!(gap_reported(&mut reordering, 8, 10));
    }

    #[test]
    fn state_of_packets_half_of_the_psn_space_ago_is_stale() {
        let mut reordering = tolerant();
        reordering.retransmitted(Psn::new(500), END);
        let later = Psn::new(500) + (1 << 23) + 100;
        assert!(later.before(Psn::new(500)));
        assert!(reordering.gap_reported(later, later + 10, ms(20), ROUND_TRIP));
    }
}
