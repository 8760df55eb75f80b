//! CUBIC congestion control (RFC 9438).

use super::controller::{Controller, Growth, MINIMUM_AFTER_LOSS, Sizes};
use crate::time::Time;
use std::time::Duration;

/// The constant C of the window increase function, in packets per second cubed (RFC 9438, 5.1).
const C: f32 = 0.4;

/// The factor applied to the window for a loss (RFC 9438, 4.6).
pub(super) const BETA: f32 = 0.7;

/// The growth of the Reno-friendly window, in packets per window (RFC 9438, 4.3).
const RENO_ALPHA: f32 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// The maximum growth in a round trip, as a fraction (1/2) of the window (RFC 9438, 4.2).
const MAX_GROWTH: f32 = 0.5;

/// CUBIC: the window grows with the cube of the time since the last loss, whatever the round trip.
#[derive(Clone, Debug)]
pub(super) struct Cubic {
    window: f32,
    threshold: f32,
    base: f32,
    limit: f32,
    /// Whether no loss has shown yet what the path carries.
    is_lossless: bool,
    /// The window before the last loss, W_max, lowered if losses come at falling windows.
    window_max: f32,
    /// The current stage of congestion avoidance.
    epoch: Option<Epoch>,
    round_trip: Duration,
}

/// A stage of congestion avoidance, from a loss to the next one.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: Time,
    /// The time from the beginning until the cubic function reaches W_max, in seconds: K.
    k: f32,
    /// The value of the cubic function there.
    origin: f32,
    /// The window that Reno would have: W_est.
    reno: f32,
}

impl Cubic {
    /// Returns a controller with the initial window.
    pub(super) fn new(sizes: Sizes) -> Self {
        Cubic {
            window: sizes.initial,
            threshold: sizes.startup,
            base: sizes.base,
            limit: sizes.limit,
            is_lossless: true,
            window_max: 0.0,
            epoch: None,
            round_trip: Duration::ZERO,
        }
    }

    /// The window in packets, with its fraction.
    pub(super) fn exact_window(&self) -> f32 {
        self.window
    }

    /// The last round trip.
    pub(super) fn last_round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Multiplies the window by `factor` after a loss of a random packet. It shows no other flow,
    /// so the window before it stays the one that the cubic function approaches.
    pub(super) fn lost_at_random(&mut self, factor: f32) {
        self.window_max = self.window;
        self.reduce_to(factor);
    }

    /// Multiplies the window by `factor` after a loss in a queue.
    pub(super) fn lost_in_queue(&mut self, factor: f32) {
        self.note_maximum();
        self.reduce_to(factor);
    }

    /// Multiplies the window, which a loss has reduced, by `factor`.
    pub(super) fn reduce_further(&mut self, factor: f32) {
        self.reduce_to(factor);
    }

    /// Raises the window by `packets`, up to `limit`. A new stage of congestion avoidance begins
    /// there.
    pub(super) fn raise(&mut self, packets: f32, limit: f32) {
        self.window = (self.window + packets).min(limit);
        self.window_max = self.window_max.max(self.window);
        self.epoch = None;
    }

    fn begin_epoch(&self, now: Time) -> Epoch {
        let distance = (self.window_max - self.window).max(0.0);
        Epoch {
            began: now,
            k: (distance / C).cbrt(),
            origin: self.window_max.max(self.window),
            reno: self.window,
        }
    }

    fn avoid_congestion(&mut self, now: Time, packets: f32) {
        let mut epoch = self.epoch.unwrap_or_else(|| self.begin_epoch(now));
        let alpha = match epoch.reno < self.window_max {
            true => RENO_ALPHA,
            false => 1.0,
        };
        epoch.reno += alpha * packets / self.window;
        // The window that the function has one round trip later.
        let time = (now.since(epoch.began) + self.round_trip).as_secs_f32();
        let cubic = epoch.origin + C * (time - epoch.k).powi(3);
        let target = cubic.clamp(self.window, self.window * (1.0 + MAX_GROWTH));
        let grown = self.window + (target - self.window) * packets / self.window;
        self.window = grown.max(epoch.reno);
        self.epoch = Some(epoch);
    }

    /// Records the window at a loss. If it did not reach the last one, another flow needs a part of
    /// the path (fast convergence, RFC 9438, 4.7).
    fn note_maximum(&mut self) {
        self.window_max = match self.window < self.window_max {
            true => self.window * (1.0 + BETA) / 2.0,
            false => self.window,
        };
    }

    /// Ends slow start at `factor` times the window, and the stage of congestion avoidance.
    fn end_stage(&mut self, factor: f32) {
        let threshold = (self.window * factor).max(MINIMUM_AFTER_LOSS);
        self.threshold = threshold.min(self.limit);
        self.is_lossless = false;
        self.epoch = None;
    }

    fn reduce_to(&mut self, factor: f32) {
        self.end_stage(factor);
        self.window = self.threshold;
    }
}

impl Controller for Cubic {
    fn window(&self) -> u32 {
        (self.window as u32).max(1)
    }

    fn in_slow_start(&self, is_idle: bool) -> bool {
        self.window < self.threshold || (self.is_lossless && is_idle)
    }

    fn acknowledged(&mut self, now: Time, packets: u32, growth: Growth) {
        let packets = packets as f32;
        if self.window < self.threshold {
            self.window = (self.window + packets).min(self.threshold);
        } else if self.is_lossless && growth.is_idle {
            self.window = (self.window + packets / 2.0).min(growth.limit);
        } else {
            self.avoid_congestion(now, packets);
            self.window = self.window.min(growth.limit);
        }
    }

    fn round_trip(&mut self, _now: Time, took: Duration) -> bool {
        self.round_trip = took;
        false
    }

    fn lost(&mut self, _now: Time, _queued: f32) {
        self.lost_in_queue(BETA);
    }

    fn timed_out(&mut self, _now: Time) {
        self.note_maximum();
        self.end_stage(BETA);
        self.window = 1.0;
    }

    fn copy(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn restart_after_idle(&mut self) {
        // The time without packets does not count as growth (RFC 9438, 5.8).
        self.epoch = None;
        if self.window > self.base {
            self.threshold = self.threshold.max(self.window);
            self.window = self.base;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mtu::Mtu;
    use crate::rc::congestion::WindowLimits;

    const LIMIT: u32 = 10_000;

    /// A controller after a loss at a window of `packets`.
    fn after_loss(packets: f32) -> Cubic {
        let mut cubic = Cubic::new(Sizes::new(Mtu::B4096, WindowLimits::fixed(LIMIT * 4096)));
        cubic.window = packets;
        cubic.lost(Time(0), 0.0);
        cubic
    }

    /// Acknowledges full windows for `time`, with this round trip. Returns the window.
    fn run(cubic: &mut Cubic, now: &mut Time, time: Duration, round_trip: Duration) -> f32 {
        let end = *now + time;
        let growth = Growth {
            is_idle: false,
            queued: 0.0,
            limit: LIMIT as f32,
        };
        while *now < end {
            *now = *now + round_trip;
            cubic.round_trip(*now, round_trip);
            cubic.acknowledged(*now, cubic.window(), growth);
        }
        cubic.window
    }

    #[test]
    fn loss_reduces_the_window_to_seven_tenths() {
        assert_eq!(after_loss(1000.0).window(), 700);
    }

    #[test]
    fn window_reaches_its_former_size_after_k_whatever_the_round_trip() {
        // K is the cube root of 300 / 0.4: 9.086 s.
        for round_trip in [10, 50, 100].map(Duration::from_millis) {
            let mut cubic = after_loss(1000.0);
            let mut now = Time(0);
            let before = run(&mut cubic, &mut now, Duration::from_secs(5), round_trip);
            assert!(before < 990.0, "{before}");
            let at = run(
                &mut cubic,
                &mut now,
                Duration::from_millis(4100),
                round_trip,
            );
            if round_trip == Duration::from_millis(100) {
                assert!((at - 1000.0).abs() < 10.0, "{at}");
            }
            assert!(at >= 990.0, "{at}");
            // The function is flat there and steep later.
            let later = run(&mut cubic, &mut now, Duration::from_secs(9), round_trip);
            assert!(later - at > 200.0, "{later}");
        }
    }

    #[test]
    fn window_grows_at_least_like_reno() {
        let round_trip = Duration::from_micros(100);
        let mut cubic = after_loss(100.0);
        let mut now = Time(0);
        let rounds = 200;
        let window = run(&mut cubic, &mut now, round_trip * rounds, round_trip);
        assert!(window >= 100.0, "{window}");
    }

    #[test]
    fn second_loss_at_a_smaller_window_lowers_the_maximum_further() {
        let mut cubic = after_loss(1000.0);
        assert_eq!(cubic.window_max, 1000.0);
        cubic.lost(Time(1), 0.0);
        assert!(
            (cubic.window_max - 595.0).abs() < 1.0,
            "{}",
            cubic.window_max
        );
    }

    #[test]
    fn timeout_leaves_one_packet() {
        let mut cubic = after_loss(1000.0);
        cubic.timed_out(Time(1));
        assert_eq!(cubic.window(), 1);
    }
}
