//! The length of READ requests that are outstanding one at a time (`max_rd_atomic` 1).
//!
//! The path is idle for a round trip between two such requests. To use 0.9 of the path, a request
//! asks for about ten times as much as the path carries in a round trip. That exceeds the
//! congestion window, which WRITEs and SENDs use too, so these requests have a limit of their own.

use crate::psn::Psn;
use crate::time::Time;
use std::time::Duration;

/// The length grows until the arrival of the responses takes this number of round trips.
const ROUND_TRIPS: u32 = 16;

/// The most responses that a request asks for: 1/32 of the PSN space.
const MAX_LENGTH: u32 = 1 << 19;

/// The growth of the length after a loss, as a fraction (1/16).
const GROWTH_FRACTION: u32 = 16;

/// An outstanding request of which no response was found lost.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    first: Psn,
    end: Psn,
    sent: Time,
    /// The time from the request to its first response.
    round_trip: Option<Duration>,
}

/// The length of READ requests beyond the congestion window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SingleRead {
    /// The number of responses that a request may ask for; 0 while the window permits more.
    length: u32,
    outstanding: Option<Outstanding>,
    /// Whether a response was ever lost, so that the length grows slowly.
    has_lost: bool,
}

impl SingleRead {
    /// Returns the number of responses that a request may ask for, unless the window permits more.
    pub(super) fn length(&self) -> u32 {
        self.length
    }

    /// Returns whether a request is outstanding of which no response was found lost.
    pub(super) fn is_outstanding(&self) -> bool {
        self.outstanding.is_some()
    }

    /// Records a new request for the responses from `first` up to `end`.
    pub(super) fn sent(&mut self, first: Psn, end: Psn, now: Time) {
        self.outstanding = Some(Outstanding {
            first,
            end,
            sent: now,
            round_trip: None,
        });
    }

    /// Handles the arrival of all responses before `una`. The length grows if a complete request
    /// asked for as many responses as permitted, and for `base` or more.
    #[inline]
    pub(super) fn progressed(&mut self, una: Psn, base: u32, now: Time) {
        if self.outstanding.is_some() {
            self.measure(una, base, now);
        }
    }

    fn measure(&mut self, una: Psn, base: u32, now: Time) {
        let Some(outstanding) = &mut self.outstanding else {
            return;
        };
        if !una.after(outstanding.first) {
            return;
        }
        let took = now.since(outstanding.sent);
        let round_trip = *outstanding.round_trip.get_or_insert(took);
        if una.before(outstanding.end) {
            return;
        }
        let packets = outstanding.end.diff(outstanding.first) as u32;
        self.outstanding = None;
        let is_full = packets >= self.length.max(base);
        if is_full && took - round_trip < round_trip * ROUND_TRIPS {
            let length = match self.has_lost {
                false => packets * 2,
                true => packets + (packets / GROWTH_FRACTION).max(1),
            };
            self.length = length.min(MAX_LENGTH);
        }
    }

    /// Halves the length after the loss of a response, once for each request.
    pub(super) fn lost(&mut self) {
        if self.outstanding.take().is_some() {
            self.length /= 2;
            self.has_lost = true;
        }
    }

    /// Starts over, on another path.
    pub(super) fn reset(&mut self) {
        *self = SingleRead::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u32 = 64;
    const ROUND_TRIP: Duration = Duration::from_millis(10);

    /// Makes the longest permitted request, over a path that carries `rate` packets in a round
    /// trip. Returns its length.
    fn request(read: &mut SingleRead, rate: u32) -> u32 {
        let (first, now) = (Psn::new(0xff_fff0), Time(0));
        let packets = read.length().max(BASE);
        read.sent(first, first + packets, now);
        read.progressed(first.next(), BASE, now + ROUND_TRIP);
        let took = ROUND_TRIP + ROUND_TRIP * packets / rate;
        read.progressed(first + packets, BASE, now + took);
        packets
    }

    #[test]
    fn length_grows_to_many_round_trips_of_the_path() {
        let mut read = SingleRead::default();
        let lengths = [(); 20].map(|()| request(&mut read, 1000));
        assert_eq!(lengths[..3], [64, 128, 256]);
        assert!((16_000..32_000).contains(&lengths[19]), "{lengths:?}");
    }

    #[test]
    fn loss_halves_the_length_once_for_a_request() {
        let mut read = SingleRead::default();
        for _ in 0..20 {
            request(&mut read, 1000);
        }
        let before = read.length();
        read.sent(Psn::new(1), Psn::new(2), Time(0));
        read.lost();
        read.lost();
        assert_eq!(read.length(), before / 2);
        request(&mut read, 1000);
        assert_eq!(read.length(), before / 2 + before / 32);
    }

    #[test]
    fn short_request_does_not_grow() {
        let mut read = SingleRead::default();
        read.sent(Psn::new(1), Psn::new(2), Time(0));
        read.progressed(Psn::new(2), BASE, Time(0) + ROUND_TRIP);
        assert_eq!(read.length(), 0);
        assert!(!read.is_outstanding());
    }
}
