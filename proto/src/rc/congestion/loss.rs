//! Loss-based congestion control.

use super::controller::{Controller, Growth, MINIMUM_AFTER_LOSS, Sizes};
use crate::time::Time;
use std::time::Duration;

/// Additive increase, multiplicative decrease with slow start (RFC 5681).
#[derive(Clone, Debug)]
pub(super) struct Loss {
    window: f32,
    threshold: f32,
    base: f32,
    limit: f32,
    /// Whether no loss has shown yet what the path carries.
    is_lossless: bool,
}

impl Loss {
    /// Returns a controller with the initial window.
    pub(super) fn new(sizes: Sizes) -> Self {
        Loss {
            window: sizes.initial,
            threshold: sizes.startup,
            base: sizes.base,
            limit: sizes.limit,
            is_lossless: true,
        }
    }
}

impl Controller for Loss {
    fn window(&self) -> u32 {
        (self.window as u32).max(1)
    }

    fn in_slow_start(&self, is_idle: bool) -> bool {
        self.window < self.threshold || (self.is_lossless && is_idle)
    }

    fn acknowledged(&mut self, _now: Time, packets: u32, growth: Growth) {
        let packets = packets as f32;
        if self.window < self.threshold {
            self.window = (self.window + packets).min(self.threshold);
        } else if self.is_lossless && growth.is_idle {
            self.window = (self.window + packets / 2.0).min(growth.limit);
        } else {
            self.window = (self.window + packets / self.window).min(growth.limit);
        }
    }

    fn round_trip(&mut self, _now: Time, _took: Duration) -> bool {
        false
    }

    fn lost(&mut self, _now: Time, _queued: f32) {
        self.window = (self.window / 2.0).max(MINIMUM_AFTER_LOSS).min(self.limit);
        self.threshold = self.window;
        self.is_lossless = false;
    }

    fn timed_out(&mut self, _now: Time) {
        self.is_lossless = false;
        self.threshold = (self.window / 2.0).max(MINIMUM_AFTER_LOSS).min(self.limit);
        self.window = 1.0;
    }

    fn copy(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn restart_after_idle(&mut self) {
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
    use crate::rc::congestion::{INITIAL_WINDOW, WindowLimits};

    fn growth(limit: u32) -> Growth {
        Growth {
            is_idle: false,
            queued: 0.0,
            limit: limit as f32,
        }
    }

    fn loss(limit: u32) -> Loss {
        Loss::new(Sizes::new(Mtu::B256, WindowLimits::fixed(limit * 256)))
    }

    #[test]
    fn window_grows_to_its_limit_and_halves_on_loss() {
        let mut loss = loss(64);
        assert_eq!(loss.window(), INITIAL_WINDOW);
        loss.acknowledged(Time(0), 16, growth(64));
        assert_eq!(loss.window(), 32);
        loss.acknowledged(Time(0), 1000, growth(64));
        assert_eq!(loss.window(), 64);
        loss.lost(Time(0), 0.0);
        assert_eq!(loss.window(), 32);
        loss.acknowledged(Time(0), 32, growth(64));
        assert_eq!(loss.window(), 33);
    }

    #[test]
    fn timeout_leaves_one_packet_and_loss_at_least_one() {
        let mut loss = loss(2);
        for _ in 0..5 {
            loss.lost(Time(0), 0.0);
        }
        assert!(loss.window() >= 1);
        loss.timed_out(Time(0));
        assert_eq!(loss.window(), 1);
    }
}
