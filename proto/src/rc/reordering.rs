//! The tolerance of reordering (RFC 8985, section 6.2).
//!
//! A responder reports a gap at the first packet behind it. On a path that reorders, the missing
//! packet is late, not lost, and arrives soon after. So once a retransmission has proved needless,
//! later ones wait for a part of the round trip first, as RACK does. A path that does not reorder
//! costs no such delay.

use crate::psn::Psn;
use crate::time::Time;
use std::time::Duration;

/// The unit of the tolerance, as a fraction (1/4) of the round trip.
const UNIT_FRACTION: u32 = 4;

/// The maximum tolerance, in such units: one round trip.
const MAX_UNITS: u32 = UNIT_FRACTION;

/// The tolerance ends after this many retransmissions that were needed.
const RECOVERIES: u32 = 16;

/// A packet is acknowledged too soon after its retransmission if within this fraction (1/2) of the
/// round trip: the original has arrived.
const SOON_FRACTION: u32 = 2;

/// What a requester knows about reordering on its path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reordering {
    /// The tolerance, in units.
    units: u32,
    /// The number of retransmissions after which the tolerance ends.
    recoveries_left: u32,
    /// The reported gap that is not repaired yet, and when it is.
    reported: Option<(Psn, Time)>,
    /// The last packet that was retransmitted for a gap, and when.
    retransmitted: Option<(Psn, Time)>,
}

impl Reordering {
    /// Handles the report of a gap. Returns whether to wait until [`Reordering::deadline`] before a
    /// retransmission.
    pub(super) fn gap_reported(&mut self, psn: Psn, now: Time, round_trip: Duration) -> bool {
        if self.units == 0 {
            return false;
        }
        if !self.awaits(psn) {
            let tolerance = round_trip * self.units / UNIT_FRACTION;
            self.reported = Some((psn, now + tolerance));
        }
        true
    }

    /// Whether the gap at `psn` was reported and is not repaired yet.
    pub(super) fn awaits(&self, psn: Psn) -> bool {
        self.reported.is_some_and(|(reported, _)| reported == psn)
    }

    /// The time at which [`Reordering::expire`] is to be called.
    #[inline]
    pub(super) fn deadline(&self) -> Time {
        self.reported.map_or(Time::NEVER, |(_, until)| until)
    }

    /// Whether the packet of the reported gap is to be retransmitted now.
    pub(super) fn expire(&mut self, now: Time) -> bool {
        self.reported.take_if(|(_, until)| *until <= now).is_some()
    }

    /// Records that the packet of a gap is retransmitted.
    pub(super) fn retransmitted(&mut self, psn: Psn, now: Time) {
        self.reported = None;
        self.retransmitted = Some((psn, now));
        self.recoveries_left = self.recoveries_left.saturating_sub(1);
        if self.recoveries_left == 0 {
            self.units = 0;
        }
    }

    /// Handles the acknowledgement of all packets before `una`.
    #[inline]
    pub(super) fn acknowledged(&mut self, una: Psn, now: Time, round_trip: Option<Duration>) {
        self.reported.take_if(|(psn, _)| psn.before(una));
        let retransmitted = self.retransmitted.take_if(|(psn, _)| psn.before(una));
        if let Some((_, at)) = retransmitted
            && let Some(round_trip) = round_trip
            && now.since(at) < round_trip / SOON_FRACTION
        {
            self.units = (self.units + 1).min(MAX_UNITS);
            self.recoveries_left = RECOVERIES;
        }
    }

    /// Forgets the gaps; what is known about the path stays.
    pub(super) fn clear(&mut self) {
        self.reported = None;
        self.retransmitted = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(8);

    fn ms(millis: u64) -> Time {
        Time(0) + Duration::from_millis(millis)
    }

    /// The tolerance after a retransmission that was acknowledged after 1 ms.
    fn tolerant() -> Reordering {
        let mut reordering = Reordering::default();
        assert!(!reordering.gap_reported(Psn::new(1), ms(0), ROUND_TRIP));
        reordering.retransmitted(Psn::new(1), ms(0));
        reordering.acknowledged(Psn::new(5), ms(1), Some(ROUND_TRIP));
        reordering
    }

    #[test]
    fn needless_retransmission_delays_the_next_one_by_a_quarter_of_a_round_trip() {
        let mut reordering = tolerant();
        assert!(reordering.gap_reported(Psn::new(7), ms(10), ROUND_TRIP));
        assert_eq!(reordering.deadline(), ms(12));
        assert!(reordering.gap_reported(Psn::new(7), ms(11), ROUND_TRIP));
        assert!(!reordering.expire(ms(11)));
        assert!(reordering.expire(ms(12)));
        assert_eq!(reordering.deadline(), Time::NEVER);
    }

    #[test]
    fn late_packet_ends_the_wait() {
        let mut reordering = tolerant();
        assert!(reordering.gap_reported(Psn::new(7), ms(10), ROUND_TRIP));
        reordering.acknowledged(Psn::new(8), ms(11), Some(ROUND_TRIP));
        assert_eq!(reordering.deadline(), Time::NEVER);
    }

    #[test]
    fn tolerance_ends_after_16_needed_retransmissions() {
        let mut reordering = tolerant();
        for psn in 0..RECOVERIES {
            assert!(reordering.gap_reported(Psn::new(psn), ms(20), ROUND_TRIP));
            assert!(reordering.expire(ms(30)));
            reordering.retransmitted(Psn::new(psn), ms(30));
            reordering.acknowledged(Psn::new(psn + 1), ms(38), Some(ROUND_TRIP));
        }
        assert!(!reordering.gap_reported(Psn::new(99), ms(40), ROUND_TRIP));
    }

    #[test]
    fn loss_that_is_repaired_in_a_round_trip_shows_no_reordering() {
        let mut reordering = Reordering::default();
        reordering.retransmitted(Psn::new(1), ms(0));
        reordering.acknowledged(Psn::new(5), ms(8), Some(ROUND_TRIP));
        assert!(!reordering.gap_reported(Psn::new(7), ms(10), ROUND_TRIP));
    }
}
