//! What congestion notification packets do to a window: the reaction point of DCQCN (SIGCOMM 2015), with the
//! rate replaced by the window. RoCEv2's annex has the packet (A17.9.3) and leaves the reaction free; NICs do this.

use crate::time::Time;
use std::time::Duration;

/// How often a responder notifies at most: DCQCN's notification point.
pub const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);

/// The weight of one interval in the estimate of congestion: DCQCN's g.
const WEIGHT: f32 = 1.0 / 256.0;

/// How long no notification must come for the estimate to sink, and for the window to rise.
const STEP: Duration = Duration::from_micros(55);

/// So many steps go halfway back to where the window was: DCQCN's fast recovery. Those after them go beyond it, by a
/// packet each.
const FAST_STEPS: u32 = 5;

/// After so long without a notification nothing is left of it.
const FORGOTTEN: Duration = Duration::from_millis(50);

/// A limit to the window that notifications set, and time takes away.
#[derive(Debug, Default)]
pub(super) struct Notified {
    limit: Option<Limit>,
    round_trip: Duration,
}

#[derive(Debug)]
struct Limit {
    /// In packets.
    window: f32,
    /// What it rises to.
    target: f32,
    /// How congested the path is: 0 to 1.
    congestion: f32,
    notified_at: Time,
    /// Until when the steps have been taken.
    stepped_at: Time,
    steps: u32,
}

impl Notified {
    /// How much it leaves of `window`.
    pub(super) fn limit(&self, window: u32) -> u32 {
        match &self.limit {
            Some(limit) => window.min((limit.window as u32).max(1)),
            None => window,
        }
    }

    /// A round trip was measured: steps are no quicker, since what they do shows no sooner.
    pub(super) fn round_trip(&mut self, took: Duration) {
        self.round_trip = took;
    }

    /// A notification came when `window` packets could be under way.
    pub(super) fn notified(&mut self, now: Time, window: u32) {
        self.pass(now);
        let congestion = match &self.limit {
            // The peer tells at most once in a while; a second copy says nothing new.
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

    /// Time has passed.
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
