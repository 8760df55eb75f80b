//! CUBIC that tells random losses from those of a queue, as TCP Veno does.

use super::controller::{Controller, Growth, Sizes};
use super::cubic::{BETA, Cubic};
use crate::time::Time;
use std::time::Duration;

/// The packets in a queue up to which a loss counts as random (Veno's beta is 3), and the window
/// may grow in proportion.
const FEW_PACKETS: f32 = 4.0;

/// The same as a part (1/32) of the window: round trips of a long path vary.
const FEW_FRACTION: f32 = 1.0 / 32.0;

/// The factor applied to the window for a random loss. Veno has 0.8.
const AFTER_RANDOM_LOSS: f32 = 0.875;

/// The factor for a loss in a queue on a short path: Reno's (RFC 5681). Switches on short paths
/// have short queues, which a window of CUBIC's 0.7 overflows again at once, and Reno soon
/// recovers.
const AFTER_LOSS_ON_SHORT_PATH: f32 = 0.5;

/// A path with a shorter round trip is short.
const LONG_ROUND_TRIP: Duration = Duration::from_millis(5);

/// The growth of the window in each round trip without a queue on a long path, as a fraction
/// (1/16). On a short path it is less in proportion to the round trip.
const GROWTH: f32 = 1.0 / 16.0;

/// At least this many losses in a window, and at least one in so many packets of it, show that a
/// queue has overflowed, whatever the round trips show.
const OVERFLOW_LOSSES: f32 = 4.0;
const OVERFLOW_PACKETS_PER_LOSS: f32 = 16.0;

/// The window of CUBIC, with the loss discrimination of TCP Veno (Fu and Liew, IEEE JSAC 2003).
///
/// The backlog is the part of the window that is in a queue: the window times the part of the round
/// trip that exceeds the shortest one. With a backlog, the window grows and shrinks as CUBIC's
/// does, so it is fair to TCP. Without one, the path is not full: the window grows in proportion to
/// its size, and a loss takes little of it.
#[derive(Clone, Debug)]
pub(super) struct Veno {
    cubic: Cubic,
    /// Whether the last loss counted as random.
    was_random: bool,
}

impl Veno {
    /// Returns a controller with the initial window.
    pub(super) fn new(sizes: Sizes) -> Self {
        Veno {
            cubic: Cubic::new(sizes),
            was_random: false,
        }
    }

    /// Whether packets are in a queue, for the part `queued` of a round trip.
    fn has_backlog(&self, queued: f32) -> bool {
        let window = self.cubic.exact_window();
        window * queued > FEW_PACKETS.max(window * FEW_FRACTION)
    }

    /// The factor applied to the window for a loss in a queue.
    fn after_loss_in_queue(&self) -> f32 {
        match self.cubic.last_round_trip() < LONG_ROUND_TRIP {
            true => AFTER_LOSS_ON_SHORT_PATH,
            false => BETA,
        }
    }
}

impl Controller for Veno {
    fn window(&self) -> u32 {
        self.cubic.window()
    }

    fn in_slow_start(&self, is_idle: bool) -> bool {
        self.cubic.in_slow_start(is_idle)
    }

    fn acknowledged(&mut self, now: Time, packets: u32, growth: Growth) {
        if self.cubic.in_slow_start(growth.is_idle) || self.has_backlog(growth.queued) {
            self.cubic.acknowledged(now, packets, growth);
            return;
        }
        let round_trip = self.cubic.last_round_trip();
        let length = round_trip.as_secs_f32() / LONG_ROUND_TRIP.as_secs_f32();
        let part = (GROWTH * length.min(1.0)).max(1.0 / self.cubic.exact_window());
        self.cubic.raise(packets as f32 * part, growth.limit);
    }

    fn round_trip(&mut self, now: Time, took: Duration) -> bool {
        self.cubic.round_trip(now, took)
    }

    fn lost(&mut self, _now: Time, queued: f32) {
        self.was_random = !self.has_backlog(queued);
        match self.was_random {
            true => self.cubic.lost_at_random(AFTER_RANDOM_LOSS),
            false => self.cubic.lost_in_queue(self.after_loss_in_queue()),
        }
    }

    fn lost_again(&mut self, losses: u32) {
        let overflow = self.cubic.exact_window() / OVERFLOW_PACKETS_PER_LOSS;
        if self.was_random && losses as f32 >= overflow.max(OVERFLOW_LOSSES) {
            self.was_random = false;
            let factor = self.after_loss_in_queue() / AFTER_RANDOM_LOSS;
            self.cubic.reduce_further(factor);
        }
    }

    fn timed_out(&mut self, now: Time) {
        self.was_random = false;
        self.cubic.timed_out(now);
    }

    fn copy(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn restart_after_idle(&mut self) {
        self.cubic.restart_after_idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mtu::Mtu;
    use crate::rc::congestion::WindowLimits;

    const LIMIT: f32 = 10_000.0;
    const LONG: Duration = Duration::from_millis(50);
    const SHORT: Duration = Duration::from_micros(60);

    /// A controller after a random loss at a window of `packets`, on a path of this round trip.
    fn after_random_loss(packets: f32, round_trip: Duration) -> Veno {
        let limits = WindowLimits {
            base_bytes: 64 * 4096,
            max_bytes: LIMIT as u32 * 4096,
        };
        let mut veno = Veno::new(Sizes::new(Mtu::B4096, limits));
        veno.cubic.raise(packets, packets);
        veno.round_trip(Time(0), round_trip);
        veno.lost(Time(0), 0.0);
        veno
    }

    /// Acknowledges a window after a round trip of this length. Returns the growth of the window.
    fn round(veno: &mut Veno, took: Duration, queued: f32) -> f32 {
        let before = veno.cubic.exact_window();
        veno.round_trip(Time(0), took);
        let growth = Growth {
            is_idle: queued == 0.0,
            queued,
            limit: LIMIT,
        };
        veno.acknowledged(Time(0), veno.window(), growth);
        veno.cubic.exact_window() - before
    }

    #[test]
    fn loss_without_a_backlog_takes_an_eighth() {
        assert_eq!(after_random_loss(1000.0, LONG).window(), 875);
        let mut veno = after_random_loss(1000.0, LONG);
        // 4 packets, or 1/32 of the window, are no backlog.
        veno.lost(Time(0), 0.03);
        assert_eq!(veno.window(), 765);
    }

    #[test]
    fn loss_with_a_backlog_takes_as_much_as_cubic_and_on_a_short_path_half() {
        let mut veno = after_random_loss(1000.0, LONG);
        veno.lost(Time(0), 0.04);
        assert_eq!(veno.window(), 612);
        let mut veno = after_random_loss(1000.0, SHORT);
        veno.lost(Time(0), 0.04);
        assert_eq!(veno.window(), 437);
    }

    #[test]
    fn many_losses_in_a_window_count_as_losses_in_a_queue() {
        let mut veno = after_random_loss(64.0, SHORT);
        veno.lost_again(3);
        assert_eq!(veno.window(), 56);
        veno.lost_again(4);
        assert_eq!(veno.window(), 32);
        veno.lost_again(5);
        assert_eq!(veno.window(), 32);
        // A large window loses more at random.
        let mut veno = after_random_loss(1600.0, LONG);
        veno.lost_again(80);
        assert_eq!(veno.window(), 1400);
        veno.lost_again(88);
        assert_eq!(veno.window(), 1120);
    }

    #[test]
    fn window_of_a_long_path_grows_by_a_sixteenth_without_a_backlog() {
        let mut veno = after_random_loss(1000.0, LONG);
        let grown = round(&mut veno, LONG, 0.0);
        assert!((54.0..56.0).contains(&grown), "{grown}");
    }

    #[test]
    fn window_of_a_short_path_grows_by_a_packet_without_a_backlog() {
        let mut veno = after_random_loss(64.0, SHORT);
        let grown = round(&mut veno, SHORT, 0.0);
        assert!((0.9..1.1).contains(&grown), "{grown}");
    }

    #[test]
    fn window_grows_as_that_of_cubic_with_a_backlog() {
        let mut veno = after_random_loss(1000.0, LONG);
        let mut cubic = veno.cubic.clone();
        let grown = round(&mut veno, LONG, 0.1);
        cubic.round_trip(Time(0), LONG);
        let growth = Growth {
            is_idle: false,
            queued: 0.1,
            limit: LIMIT,
        };
        cubic.acknowledged(Time(0), cubic.window(), growth);
        assert_eq!(veno.window(), cubic.window());
        assert!(grown < 10.0, "{grown}");
    }

    #[test]
    fn timeout_leaves_one_packet() {
        let mut veno = after_random_loss(1000.0, LONG);
        veno.timed_out(Time(1));
        assert_eq!(veno.window(), 1);
    }
}
