//! The retransmission timeout from measured round trips (RFC 6298).
//!
//! The timeouts in the CM's messages, 4.3 s for the RDMA CM, are the longest times that an answer
//! may take. The receiver of a duplicate answers or ignores it (12.9.8.2), so a message may be
//! retransmitted sooner.

use crate::ids::Gid;
use crate::time::Time;
use std::collections::HashMap;
use std::time::Duration;

/// The largest number of peers whose round trips are kept.
const MAX_PEERS: usize = 1024;

/// The round trips of peers.
#[derive(Debug, Default)]
pub(super) struct RoundTrips(HashMap<Gid, RoundTrip>);

impl RoundTrips {
    /// Adds a measurement. Beyond [`MAX_PEERS`] it replaces those of an arbitrary peer.
    pub fn add(&mut self, peer: Gid, sample: Duration) {
        if self.0.len() >= MAX_PEERS
            && !self.0.contains_key(&peer)
            && let Some(other) = self.0.keys().next().copied()
        {
            self.0.remove(&other);
        }
        self.0.entry(peer).or_default().add(sample);
    }

    /// Returns the measured round trip of a peer.
    pub fn of(&self, peer: Gid) -> Option<RoundTrip> {
        self.0.get(&peer).copied()
    }
}

/// The smoothed round trip of an exchange of messages with a peer: the time of its program
/// included.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct RoundTrip {
    /// Mean and deviation; `None` before the first measurement.
    measured: Option<Measured>,
    /// The number of times that the timeout has been doubled since the last measurement.
    backoff: u32,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    mean: Duration,
    deviation: Duration,
}

impl RoundTrip {
    /// The timeout before the first measurement (RFC 6298, 2.1).
    pub const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

    /// The least difference between the timeout and the mean round trip: the peer's process may
    /// have to wait for a processor.
    const MIN_MARGIN: Duration = Duration::from_millis(50);

    /// The largest number of times that the timeout is doubled: from the least timeout to more than
    /// the first one.
    const MAX_BACKOFF: u32 = 5;

    /// Adds a measurement of a message that was not retransmitted (2.2, 2.3).
    pub fn add(&mut self, sample: Duration) {
        let measured = match self.measured {
            None => Measured {
                mean: sample,
                deviation: sample / 2,
            },
            Some(before) => Measured {
                mean: (before.mean * 7 + sample) / 8,
                deviation: (before.deviation * 3 + before.mean.abs_diff(sample)) / 4,
            },
        };
        self.measured = Some(measured);
        self.backoff = 0;
    }

    /// Whether there was a measurement.
    pub fn is_measured(&self) -> bool {
        self.measured.is_some()
    }

    /// Doubles the timeout until the next measurement (5.5 to 5.7). An answer to a message that was
    /// retransmitted is no measurement, so without this a timeout that is too short would stay.
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(Self::MAX_BACKOFF);
    }

    /// The retransmission timeout. It is doubled up to [`Self::FIRST_TIMEOUT`].
    pub fn timeout(&self) -> Duration {
        self.measured.map_or(Self::FIRST_TIMEOUT, |measured| {
            let timeout = measured.mean + (measured.deviation * 4).max(Self::MIN_MARGIN);
            (timeout * (1 << self.backoff)).min(timeout.max(Self::FIRST_TIMEOUT))
        })
    }
}

/// The shortest round trip of the last [`Self::PERIOD`] to twice that: as the base delay of LEDBAT
/// (RFC 6817, 4.2), it follows a path that has become longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortestRoundTrip {
    /// The shortest one of the current period, and of the one before.
    current: Duration,
    previous: Duration,
    /// The begin of the current period.
    began: Time,
}

impl Default for ShortestRoundTrip {
    fn default() -> Self {
        ShortestRoundTrip {
            current: Duration::MAX,
            previous: Duration::MAX,
            began: Time(0),
        }
    }
}

impl ShortestRoundTrip {
    /// The length of a period.
    pub const PERIOD: Duration = Duration::from_secs(60);

    /// Adds a measurement, and returns the shortest round trip.
    pub fn add(&mut self, sample: Duration, now: Time) -> Duration {
        let elapsed = now.since(self.began);
        if elapsed >= Self::PERIOD {
            self.previous = match elapsed < Self::PERIOD * 2 {
                true => self.current,
                false => Duration::MAX,
            };
            self.current = Duration::MAX;
            self.began = now;
        }
        self.current = self.current.min(sample);
        self.current.min(self.previous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_covers_four_deviations_rfc_6298() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.timeout(), Duration::from_secs(1));
        trip.add(Duration::from_millis(200));
        assert_eq!(trip.timeout(), Duration::from_millis(200 + 4 * 100));
        trip.add(Duration::from_millis(200));
        assert_eq!(trip.timeout(), Duration::from_millis(200 + 4 * 75));
        for _ in 0..1000 {
            trip.add(Duration::from_micros(20));
        }
        assert!(trip.timeout() >= RoundTrip::MIN_MARGIN + Duration::from_micros(20));
        assert!(trip.timeout() < RoundTrip::MIN_MARGIN * 2);
    }

    #[test]
    fn timeout_is_doubled_until_the_next_measurement_rfc_6298() {
        let mut trip = RoundTrip::default();
        trip.add(Duration::from_millis(20));
        let timeouts = [0; 6].map(|_: u8| {
            trip.back_off();
            trip.timeout()
        });
        let expected = [140, 280, 560, 1000, 1000, 1000];
        assert_eq!(timeouts, expected.map(Duration::from_millis));
        trip.add(Duration::from_millis(20));
        assert_eq!(trip.timeout(), Duration::from_millis(70));
        // A longer timeout that was measured is not reduced.
        trip.add(Duration::from_secs(80));
        let measured = trip.timeout();
        trip.back_off();
        assert_eq!(trip.timeout(), measured);
    }

    #[test]
    fn shortest_round_trip_is_of_two_periods_rfc_6817() {
        let mut shortest = ShortestRoundTrip::default();
        let mut after = |seconds, millis| {
            let now = Time(0) + Duration::from_secs(seconds);
            shortest.add(Duration::from_millis(millis), now).as_millis()
        };
        assert_eq!(after(1000, 5), 5);
        assert_eq!([after(1001, 3), after(1059, 8)], [3, 3]);
        // The next period, and the one after it.
        assert_eq!([after(1061, 8), after(1120, 7)], [3, 3]);
        assert_eq!(after(1121, 9), 7);
        // Nothing was measured for two periods.
        assert_eq!(after(1300, 20), 20);
    }

    #[test]
    fn round_trips_of_a_limited_number_of_peers_are_kept() {
        let mut trips = RoundTrips::default();
        let peer = |n: usize| Gid::from(std::net::Ipv6Addr::from(n as u128));
        for n in 0..MAX_PEERS * 2 {
            trips.add(peer(n), Duration::from_millis(1));
            assert!(trips.of(peer(n)).is_some());
        }
        assert_eq!(trips.0.len(), MAX_PEERS);
    }
}
