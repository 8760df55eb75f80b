//! The reaction to congestion notification packets: DCQCN's reaction point (SIGCOMM 2015), applied
//! to the window instead of the rate.
//!
//! The RoCEv2 annex defines the packet (A17.9.3) and leaves the reaction open; NICs use DCQCN.

use crate::time::Time;
use std::time::Duration;

/// The minimum interval between two CNPs of a responder: DCQCN's notification point.
pub const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);

/// The weight of one interval in the congestion estimate: DCQCN's g.
const WEIGHT: f32 = 1.0 / 256.0;

/// The interval without a CNP after which the estimate falls and the window grows.
const STEP: Duration = Duration::from_micros(55);

/// The number of steps that halve the distance to the former window: DCQCN's fast recovery.
///
/// Each later step also raises the target by one packet.
const FAST_STEPS: u32 = 5;

/// The time without a CNP after which the limit is removed.
const FORGOTTEN: Duration = Duration::from_millis(50);

/// A limit of the window, set by CNPs and raised over time.
#[derive(Debug, Default)]
pub(super) struct Notified {
    limit: Option<Limit>,
    round_trip: Duration,
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

impl Notified {
    /// Returns `window`, reduced to the limit.
    pub(super) fn limit(&self, window: u32) -> u32 {
        match &self.limit {
            Some(limit) => window.min((limit.window as u32).max(1)),
            None => window,
        }
    }

    /// Reports a round-trip sample. A step takes at least a round trip, the delay of its effect.
    pub(super) fn round_trip(&mut self, took: Duration) {
        self.round_trip = took;
    }

    /// Handles a CNP that arrived at a window of `window` packets.
    pub(super) fn notified(&mut self, now: Time, window: u32) {
        self.pass(now);
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
    pub(super) fn pass(&mut self, now: Time) {
        let Some(limit) = &mut self.limit else {
            return;
        };
        if now.since(limit.notified_at) > FORGOTTEN {
            self.limit = None;
            return;
        }
        let step = STEP.max(self.round_trip);
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

    fn at(steps: u32) -> Time {
        Time(0) + STEP * steps
    }

    #[test]
    fn the_first_notification_halves_the_window_and_recovery_takes_it_back() {
        let mut notified = Notified::default();
        assert_eq!(notified.limit(64), 64);
        notified.notified(at(0), 64);
        assert_eq!(notified.limit(64), 32);
        notified.pass(at(1));
        assert_eq!(notified.limit(64), 48);
        notified.pass(at(FAST_STEPS));
        assert_eq!(notified.limit(64), 63);
        notified.pass(at(20));
        assert!(notified.limit(128) > 64 && notified.limit(128) < 128);
    }

    #[test]
    fn the_cut_is_half_of_the_estimate_which_decays_without_notifications() {
        let mut notified = Notified::default();
        notified.notified(at(0), 64);
        notified.pass(at(200));
        let cut = {
            notified.notified(at(200), 64);
            64 - notified.limit(64)
        };
        // (255 / 256)^200 is 0.457.
        assert_eq!(cut, 15);
    }

    #[test]
    fn a_notification_that_comes_twice_counts_once() {
        let mut notified = Notified::default();
        notified.notified(at(0), 64);
        notified.notified(at(0), 32);
        assert_eq!(notified.limit(64), 32);
    }

    #[test]
    fn the_window_is_never_nothing() {
        let mut notified = Notified::default();
        for n in 0..100 {
            let window = notified.limit(64);
            notified.notified(at(n), window);
        }
        assert!(notified.limit(64) >= 1);
    }

    #[test]
    fn long_ago_is_forgotten() {
        let mut notified = Notified::default();
        notified.notified(at(0), 64);
        notified.pass(Time(0) + FORGOTTEN + STEP);
        assert_eq!(notified.limit(1024), 1024);
    }

    #[test]
    fn steps_are_no_quicker_than_round_trips() {
        let mut notified = Notified::default();
        notified.round_trip(STEP * 10);
        notified.notified(at(0), 64);
        notified.pass(at(9));
        assert_eq!(notified.limit(64), 32);
        notified.pass(at(10));
        assert_eq!(notified.limit(64), 48);
    }
}
