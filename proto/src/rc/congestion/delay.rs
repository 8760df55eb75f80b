//! Delay-based congestion control: short round trips mean no congestion, even with losses.

use super::controller::{Controller, Growth, MINIMUM_AFTER_LOSS, Sizes};
use crate::time::Time;
use std::time::Duration;

/// The queueing delay that the window aims for.
///
/// At 1 GB/s, a receive buffer of the default size holds about that much.
const TARGET: Duration = Duration::from_micros(200);

/// The target is at least this fraction (1/4) of the shortest round trip, for long paths.
const TARGET_FRACTION: u32 = 4;

/// The minimum time for which the shortest round trip is remembered; the path may change.
const SHORTEST_LIFETIME: Duration = Duration::from_secs(10);

/// The minimum factor applied to the window for round trips beyond the target.
const MIN_FACTOR: f32 = 0.5;

/// The growth of the window per round trip, as a fraction; at least one packet.
const GROWTH: f32 = 1.0 / 16.0;

/// The factor applied to the window for a loss at short round trips.
///
/// The path loses at random, or has a queue shorter than the target.
const AFTER_LOSS: f32 = 0.875;

/// The factor applied to the window for a loss at long round trips, or for many losses in a window:
/// a queue overflowed.
const AFTER_OVERFLOW: f32 = 0.5;

/// The number of losses in a window that show an overflow. With 1% of random losses, 1 window of 64
/// packets in 250 has as many.
const OVERFLOW_LOSSES: u32 = 4;

/// Keeps the queueing delay below a target, like Swift (SIGCOMM 2020).
///
/// The window grows in each round trip below the target, and shrinks in proportion to the excess. A
/// loss reduces it further if a queue explains the loss.
#[derive(Clone, Debug)]
pub(super) struct Delay {
    window: f32,
    sizes: Sizes,
    /// Whether slow start continues: neither a loss nor a queue has ended it.
    starting: bool,
    /// The window up to which slow start continues on a path with a queue.
    startup: f32,
    /// The queueing delay: the last round trip minus the shortest.
    queued: Duration,
    shortest: Shortest,
    /// Whether the last loss halved the window.
    has_halved: bool,
}

impl Delay {
    /// Returns a controller with the initial window.
    pub(super) fn new(sizes: Sizes) -> Self {
        Delay {
            window: sizes.initial,
            sizes,
            starting: true,
            startup: sizes.startup,
            queued: Duration::ZERO,
            shortest: Shortest::default(),
            has_halved: false,
        }
    }

    fn target(&self) -> Duration {
        TARGET.max(self.shortest.get() / TARGET_FRACTION)
    }

    fn shrink(&mut self, part: f32, least: f32) {
        self.starting = false;
        self.window = (self.window * part).max(least).min(self.sizes.limit);
    }
}

impl Controller for Delay {
    fn window(&self) -> u32 {
        (self.window as u32).max(1)
    }

    fn in_slow_start(&self, is_idle: bool) -> bool {
        self.starting && (self.window < self.startup || is_idle)
    }

    fn acknowledged(&mut self, _now: Time, packets: u32, growth: Growth) {
        let packets = packets as f32;
        if self.starting && self.window < self.startup {
            self.window = (self.window + packets).min(self.startup);
        } else if self.starting && growth.is_idle {
            self.window += packets / 2.0;
        } else if self.queued <= self.target() && (self.window < self.sizes.base || growth.is_idle)
        {
            self.window += packets * GROWTH.max(1.0 / self.window);
        }
        self.window = self.window.min(growth.limit);
    }

    fn round_trip(&mut self, now: Time, took: Duration) -> bool {
        self.shortest.add(now, took);
        self.queued = took.saturating_sub(self.shortest.get());
        let target = self.target();
        let shrinks = self.queued > target;
        if shrinks {
            let excess = (self.queued - target).as_secs_f32() / self.queued.as_secs_f32();
            // A descheduled peer answers late without any queue, so round trips alone do not reduce
            // the window below the initial one.
            let least = self.window.min(self.sizes.initial);
            self.shrink((1.0 - excess).max(MIN_FACTOR), least);
        }
        shrinks
    }

    fn lost(&mut self, _now: Time, _queued: f32) {
        let overflow = self.queued > self.target() / 2;
        let part = if overflow { AFTER_OVERFLOW } else { AFTER_LOSS };
        self.has_halved = overflow;
        self.shrink(part, MINIMUM_AFTER_LOSS);
    }

    fn lost_again(&mut self, losses: u32) {
        if losses >= OVERFLOW_LOSSES && !self.has_halved {
            self.shrink(AFTER_OVERFLOW / AFTER_LOSS, MINIMUM_AFTER_LOSS);
            self.has_halved = true;
        }
    }

    fn timed_out(&mut self, _now: Time) {
        self.starting = false;
        self.window = 1.0;
    }

    fn copy(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn restart_after_idle(&mut self) {
        if self.window > self.sizes.base {
            self.starting = true;
            self.startup = self.window;
            self.window = self.sizes.base;
        }
    }
}

/// The shortest round trip of the last one or two intervals of `SHORTEST_LIFETIME`.
#[derive(Clone, Debug, Default)]
struct Shortest {
    /// The minimum of the current interval, and of the one before.
    now: Option<Duration>,
    before: Option<Duration>,
    since: Time,
}

impl Shortest {
    fn add(&mut self, now: Time, took: Duration) {
        if now.since(self.since) > SHORTEST_LIFETIME {
            self.before = self.now.take();
            self.since = now;
        }
        self.now = Some(self.now.map_or(took, |least| least.min(took)));
    }

    fn get(&self) -> Duration {
        let least = [self.now, self.before].into_iter().flatten().min();
        least.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mtu::Mtu;
    use crate::rc::congestion::WindowLimits;

    const SHORT: Duration = Duration::from_micros(50);
    const LONG: Duration = Duration::from_micros(900);

    /// A controller after `rounds` round trips of length `took`, with a full window each.
    fn after(rounds: u64, took: Duration) -> Delay {
        let mut delay = Delay::new(Sizes::new(Mtu::B4096, WindowLimits::fixed(64 * 4096)));
        trips(&mut delay, rounds, took);
        delay
    }

    fn trips(delay: &mut Delay, rounds: u64, took: Duration) {
        for _ in 0..rounds {
            delay.round_trip(Time(0), took);
            let growth = Growth {
                is_idle: false,
                queued: 0.0,
                limit: delay.sizes.limit,
            };
            delay.acknowledged(Time(0), delay.window(), growth);
        }
    }

    #[test]
    fn window_grows_to_its_limit_at_short_round_trips() {
        assert_eq!(after(1, SHORT).window(), 32);
        assert_eq!(after(2, SHORT).window(), 50);
        assert_eq!(after(20, SHORT).window(), 64);
    }

    #[test]
    fn long_round_trips_shrink_the_window_to_the_initial_one_at_most() {
        let mut delay = after(20, SHORT);
        trips(&mut delay, 1, LONG);
        assert_eq!(delay.window(), 32);
        trips(&mut delay, 20, LONG);
        assert_eq!(delay.window(), 16);
        trips(&mut delay, 40, SHORT);
        assert_eq!(delay.window(), 64);
    }

    #[test]
    fn loss_reduces_the_window_by_an_eighth_or_with_a_queue_by_half() {
        let mut delay = after(20, SHORT);
        delay.lost(Time(0), 0.0);
        assert_eq!(delay.window(), 56);
        let mut delay = after(20, SHORT);
        trips(&mut delay, 1, SHORT + TARGET);
        delay.lost(Time(0), 0.0);
        assert_eq!(delay.window(), 32);
    }

    #[test]
    fn many_losses_in_a_window_halve_it() {
        let mut delay = after(20, SHORT);
        delay.lost(Time(0), 0.0);
        delay.lost_again(OVERFLOW_LOSSES);
        assert_eq!(delay.window(), 32);
        delay.lost_again(OVERFLOW_LOSSES);
        assert_eq!(delay.window(), 32);
    }

    #[test]
    fn target_grows_with_the_shortest_round_trip() {
        let far = Duration::from_millis(40);
        let mut delay = after(20, far);
        trips(&mut delay, 5, far + far / 5);
        assert_eq!(delay.window(), 64);
    }

    /// Beyond the base window, a queue shorter than the target is filled as well.
    #[test]
    fn window_beyond_the_base_grows_only_without_a_queue() {
        let limits = WindowLimits {
            base_bytes: 64 * 4096,
            max_bytes: 1024 * 4096,
        };
        let mut delay = Delay::new(Sizes::new(Mtu::B4096, limits));
        trips(&mut delay, 20, SHORT);
        delay.lost(Time(0), 0.0);
        let grow = |delay: &mut Delay, is_idle: bool| {
            for _ in 0..40 {
                let limit = delay.sizes.limit;
                delay.round_trip(Time(0), SHORT);
                let growth = Growth {
                    is_idle,
                    queued: 0.0,
                    limit,
                };
                delay.acknowledged(Time(0), delay.window(), growth);
            }
            delay.window()
        };
        let least = grow(&mut delay, false);
        assert!((64..70).contains(&least), "{least}");
        assert!(grow(&mut delay, true) > 2 * least);
    }

    #[test]
    fn timeout_leaves_one_packet() {
        let mut delay = after(20, SHORT);
        delay.timed_out(Time(1));
        assert_eq!(delay.window(), 1);
    }

    #[test]
    fn shortest_round_trip_expires() {
        let mut delay = after(20, SHORT);
        let mut now = Time(0);
        for _ in 0..100 {
            now = now + SHORTEST_LIFETIME / 20;
            delay.round_trip(now, LONG);
        }
        assert_eq!(delay.queued, Duration::ZERO);
    }
}
