//! The reaction to congestion notification packets: DCQCN's reaction point (SIGCOMM 2015), applied
//! to the window instead of the rate.
//!
//! The RoCEv2 annex defines the packet (A17.9.3) and leaves the reaction open; NICs use DCQCN.

use crate::time::Time;
use std::time::Duration;

/// The minimum interval between two CNPs of a responder: DCQCN's notification point.
pub(crate) const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);

/// The weight of one interval in the congestion estimate: DCQCN's g.
const WEIGHT: f32 = 1.0 / 256.0;

/// The interval without a CNP after which the estimate falls and the window grows.
const STEP: Duration = Duration::from_micros(55);

/// The number of steps that halve the distance to the former window: DCQCN's fast recovery.
///
/// Each later step also raises the target by one packet.
const FAST_STEPS: u32 = 5;

/// The time without a CNP after which the limit is removed.
const LIMIT_LIFETIME: Duration = Duration::from_millis(50);

/// A limit of the window, set by CNPs and raised over time.
#[derive(Debug, Default)]
pub(super) struct NotificationLimit {
    limit: Option<Limit>,
    /// The last sample, in nanoseconds.
    round_trip: u64,
}

#[derive(Debug)]
struct Limit {
    /// The limit, in packets.
    window: f32,
    /// The window that the limit approaches.
    target: f32,
    /// The congestion estimate, 0 to 1.
    congestion: f32,
    notified_at: Time,
    /// The time of the last step.
    stepped_at: Time,
    steps: u32,
}

impl NotificationLimit {
    /// Whether there is a limit.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.limit.is_some()
    }

    /// Returns `window`, reduced to the limit.
    pub(super) fn limit(&self, window: u32) -> u32 {
        match &self.limit {
            Some(limit) => window.min((limit.window as u32).max(1)),
            None => window,
        }
    }

    /// Reports a round-trip sample in nanoseconds. A step takes at least a round trip, the delay of
    /// its effect.
    pub(super) fn round_trip(&mut self, took: u64) {
        self.round_trip = took;
    }

    /// Handles a CNP that arrived at a window of `window` packets.
    pub(super) fn cnp_received(&mut self, now: Time, window: u32) {
        self.advance(now);
        let congestion = match &self.limit {
            // A CNP sooner than the interval permits is a duplicate.
            Some(limit) if now.since(limit.notified_at) < NOTIFICATION_INTERVAL / 2 => return,
            Some(limit) => limit.congestion,
            None => 1.0,
        };
        let target = window as f32;
        self.limit = Some(Limit {
            window: (target * (1.0 - congestion / 2.0)).max(1.0),
            target,
            congestion: congestion + (1.0 - congestion) * WEIGHT,
            notified_at: now,
            stepped_at: now,
            steps: 0,
        });
    }

    /// Performs the steps due at `now`.
    pub(super) fn advance(&mut self, now: Time) {
        let Some(limit) = &mut self.limit else {
            return;
        };
        if now.since(limit.notified_at) > LIMIT_LIFETIME {
            self.limit = None;
            return;
        }
        let step = STEP.max(Duration::from_nanos(self.round_trip));
        while now.since(limit.stepped_at) >= step {
            limit.stepped_at = limit.stepped_at + step;
            limit.congestion *= 1.0 - WEIGHT;
            limit.steps += 1;
            if limit.steps > FAST_STEPS {
                limit.target += 1.0;
            }
            limit.window = (limit.window + limit.target) / 2.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::nanos;

    fn at(steps: u32) -> Time {
        Time(0) + STEP * steps
    }

    #[test]
    fn first_cnp_halves_the_window_and_recovery_restores_it() {
        let mut notified = NotificationLimit::default();
        assert_eq!(notified.limit(64), 64);
        notified.cnp_received(at(0), 64);
        assert_eq!(notified.limit(64), 32);
        notified.advance(at(1));
        assert_eq!(notified.limit(64), 48);
        notified.advance(at(FAST_STEPS));
        assert_eq!(notified.limit(64), 63);
        notified.advance(at(20));
        assert!(notified.limit(128) > 64 && notified.limit(128) < 128);
    }

    #[test]
    fn reduction_is_half_of_the_estimate_which_decays_without_cnps() {
        let mut notified = NotificationLimit::default();
        notified.cnp_received(at(0), 64);
        notified.advance(at(200));
        let cut = {
            notified.cnp_received(at(200), 64);
            64 - notified.limit(64)
        };
        // (255 / 256)^200 is 0.457.
        assert_eq!(cut, 15);
    }

    #[test]
    fn duplicate_cnp_is_ignored() {
        let mut notified = NotificationLimit::default();
        notified.cnp_received(at(0), 64);
        notified.cnp_received(at(0), 32);
        assert_eq!(notified.limit(64), 32);
    }

    #[test]
    fn window_is_at_least_one_packet() {
        let mut notified = NotificationLimit::default();
        for n in 0..100 {
            let window = notified.limit(64);
            notified.cnp_received(at(n), window);
        }
        assert!(notified.limit(64) >= 1);
    }

    #[test]
    fn limit_expires() {
        let mut notified = NotificationLimit::default();
        notified.cnp_received(at(0), 64);
        notified.advance(Time(0) + LIMIT_LIFETIME + STEP);
        assert_eq!(notified.limit(1024), 1024);
    }

    #[test]
    fn steps_take_at_least_a_round_trip() {
        let mut notified = NotificationLimit::default();
        notified.round_trip(nanos(STEP * 10));
        notified.cnp_received(at(0), 64);
        notified.advance(at(9));
        assert_eq!(notified.limit(64), 32);
        notified.advance(at(10));
        assert_eq!(notified.limit(64), 48);
    }
}
