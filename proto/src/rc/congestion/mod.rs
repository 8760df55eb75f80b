//! Congestion control: the window of packets that a connection may have in flight.
//!
//! The specification only bounds the packets outstanding and leaves the rest to the implementation.
//! The algorithms are `cubic`, `delay`, `loss` and `veno`. Congestion notifications limit the
//! window of each. `docs/CONGESTION.md` compares them.

mod controller;
mod cubic;
mod delay;
mod loss;
mod notification;
mod round_trips;
mod veno;

use super::loss_recovery::RoundTripSample;
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::time::Time;
use controller::{Controller, Growth, Sizes};
use cubic::Cubic;
use delay::Delay;
use loss::Loss;
pub(super) use notification::NOTIFICATION_INTERVAL;
use notification::NotificationLimit;
use round_trips::RoundTrips;
use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;
use veno::Veno;

/// The initial window, in packets.
pub(super) const INITIAL_WINDOW: u32 = 16;

/// The congestion control algorithms.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum Algorithm {
    /// CUBIC (RFC 9438).
    Cubic,
    /// Based on round-trip times, like Swift (SIGCOMM 2020).
    Delay,
    /// Based on losses (RFC 5681).
    Loss,
    /// CUBIC that tells random losses from those of a queue, like TCP Veno.
    #[default]
    Veno,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 4] = [
        Algorithm::Cubic,
        Algorithm::Delay,
        Algorithm::Loss,
        Algorithm::Veno,
    ];

    /// The name by which the algorithm is selected.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Cubic => "cubic",
            Algorithm::Delay => "delay",
            Algorithm::Loss => "loss",
            Algorithm::Veno => "veno",
        }
    }

    fn controller(self, sizes: Sizes) -> Box<dyn Controller> {
        match self {
            Algorithm::Cubic => Box::new(Cubic::new(sizes)),
            Algorithm::Delay => Box::new(Delay::new(sizes)),
            Algorithm::Loss => Box::new(Loss::new(sizes)),
            Algorithm::Veno => Box::new(Veno::new(sizes)),
        }
    }
}

impl Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for an unknown algorithm name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "there is no way to control congestion called «{0}»: the names are cubic, delay, loss and \
     veno"
)]
pub struct UnknownAlgorithm(String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let named = Self::ALL.into_iter().find(|known| known.name() == name);
        named.ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// The largest window, in packets.
///
/// It is a small part of the PSN space: a responder takes requests this far ahead of the expected
/// PSN for new ones.
pub(super) const MAX_WINDOW: u32 = 1 << 16;

impl Sizes {
    /// Returns the sizes for packets of `mtu`.
    fn new(mtu: Mtu, limits: WindowLimits) -> Self {
        let packets = |bytes: u32| (bytes / mtu.bytes() as u32).clamp(1, MAX_WINDOW) as f32;
        let base = packets(limits.base_bytes);
        Sizes {
            initial: base.min(INITIAL_WINDOW as f32),
            startup: base.min(default_receive_buffer_packets(mtu) as f32),
            base,
            limit: base.max(packets(limits.max_bytes)),
        }
    }
}

/// The limits of a congestion window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowLimits {
    /// The bytes that may be in flight on any path: what the receive buffer of a peer holds.
    pub base_bytes: u32,
    /// The bytes that may be in flight on a path whose round trip shows no long queue. READ
    /// requests with `max_rd_atomic` 1 may ask for more if this exceeds `base_bytes`.
    pub max_bytes: u32,
}

impl WindowLimits {
    /// Limits the window to this number of bytes on all paths.
    pub const fn fixed(bytes: u32) -> Self {
        WindowLimits {
            base_bytes: bytes,
            max_bytes: bytes,
        }
    }
}

/// Returns the number of separate packets that fit a receive buffer of the default
/// `net.core.rmem_max`.
///
/// The default is 212,992 bytes. The kernel doubles it and charges memory: twice the size of the
/// data, at least 1 KiB, plus the metadata. Coalesced packets (GRO) take less.
fn default_receive_buffer_packets(mtu: Mtu) -> u32 {
    const BUFFER: u32 = 2 * 212_992;
    const METADATA: u32 = 320;
    const MIN_CHARGE: u32 = 1024;
    BUFFER / ((2 * mtu.bytes() as u32).max(MIN_CHARGE) + METADATA)
}

/// The window of one connection: that of its controller, limited by notifications.
#[derive(Debug)]
pub(super) struct Window {
    controller: Box<dyn Controller>,
    notification: NotificationLimit,
    round_trips: RoundTrips,
    /// The controller's window. It and `packets` are read several times for each packet, and change
    /// less often, so they are kept.
    controlled: u32,
    /// The window, see [`Window::packets`].
    packets: u32,
    /// The base window and the maximum window, in packets.
    base: u32,
    limit: u32,
    /// Whether the window never exceeds the base window.
    is_short_path: bool,
    /// A loss before this PSN does not reduce the window again (the recovery point of RFC 6675).
    recovery_point: Psn,
    /// The number of losses since a loss or a timeout has reduced the window, with that loss.
    losses: u32,
    /// What last reduced the window, and the controller before that.
    reduced: Option<(Reduction, Box<dyn Controller>)>,
}

/// What has reduced the window, which it may turn out to have done for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reduction {
    /// A gap.
    Loss,
    /// A timeout, the first of those without an answer in between.
    Timeout,
}

impl Window {
    pub(super) fn new(algorithm: Algorithm, mtu: Mtu, limits: WindowLimits) -> Self {
        let sizes = Sizes::new(mtu, limits);
        let controller = algorithm.controller(sizes);
        let window = controller.window();
        Window {
            controller,
            notification: NotificationLimit::default(),
            round_trips: RoundTrips::default(),
            controlled: window,
            packets: window,
            base: sizes.base as u32,
            limit: sizes.limit as u32,
            is_short_path: false,
            recovery_point: Psn::default(),
            losses: 0,
            reduced: None,
        }
    }

    /// The congestion window in packets; at least 1.
    #[inline]
    pub(super) fn packets(&self) -> u32 {
        self.packets
    }

    /// Whether the window is in slow start.
    pub(super) fn in_slow_start(&self) -> bool {
        let is_idle = self.round_trips.show_no_queue();
        self.controller.in_slow_start(is_idle)
    }

    /// Updates the window after a change of the controller, the notifications or the path.
    fn update(&mut self) {
        self.controlled = self.controller.window();
        let window = self.notification.limit(self.controlled);
        self.packets = match self.is_short_path {
            true => window.min(self.base),
            false => window,
        };
    }

    /// The base window, in packets.
    #[inline]
    pub(super) fn base(&self) -> u32 {
        self.base
    }

    /// Whether more than the base window may be in flight, if the path needs it.
    pub(super) fn may_exceed_base(&self) -> bool {
        !self.is_short_path && self.limit > self.base
    }

    /// Sets whether the window never exceeds the base window.
    pub(super) fn set_short_path(&mut self, is_short_path: bool) {
        self.is_short_path = is_short_path;
        self.update();
    }

    /// Handles an acknowledgement of `packets` packets, with `in_flight` packets in flight before.
    #[inline]
    pub(super) fn acknowledged(&mut self, now: Time, packets: u32, in_flight: u32) {
        if self.notification.is_active() {
            self.notification.advance(now);
            self.update();
        }
        let window = self.controlled;
        // While notifications limit the window, the controller's window is not fully used.
        if self.packets != window {
            return;
        }
        // A window beyond the base grows only if the path needs it: the application uses it (RFC
        // 7661), and the packets do not only wait in a queue.
        let is_used = in_flight * 2 >= window;
        let exceeds_base = self.may_exceed_base() && is_used && !self.round_trips.show_long_queue();
        let limit = match exceeds_base {
            true => self.limit,
            false => self.base,
        };
        if window < limit {
            let growth = Growth {
                is_idle: self.round_trips.show_no_queue(),
                queued: self.round_trips.queued(),
                limit: limit as f32,
            };
            self.controller.acknowledged(now, packets, growth);
            self.update();
        }
    }

    /// Handles the first packet after the connection was idle for longer than a timeout.
    pub(super) fn restart_after_idle(&mut self) {
        self.controller.restart_after_idle();
        self.update();
    }

    /// Handles a round-trip sample. The controller gets about one for each round trip.
    #[inline]
    pub(super) fn round_trip(&mut self, now: Time, sample: RoundTripSample) {
        let RoundTripSample { took, begins_round } = sample;
        self.round_trips.add(took);
        if begins_round {
            self.notification.round_trip(took);
            let took = Duration::from_nanos(took);
            if self.controller.round_trip(now, took) {
                self.update();
            }
        }
    }

    /// Handles a loss shown by a gap, with the packets from `una` to `sent_end` in flight.
    ///
    /// It reduces the window once for all packets in flight, and further if many of them are lost.
    pub(super) fn lost(&mut self, now: Time, una: Psn, sent_end: Psn) {
        let point = self.recovery_point;
        // The point is stale if it is after `sent_end`: PSNs have wrapped around half of their
        // space.
        if !una.before(point) || point.after(sent_end) {
            self.reduced = Some((Reduction::Loss, self.controller.copy()));
            self.controller.lost(now, self.round_trips.queued());
            self.recovery_point = sent_end;
            self.losses = 1;
        } else {
            self.losses = self.losses.saturating_add(1);
            self.controller.lost_again(self.losses);
        }
        self.update();
    }

    /// Handles a timeout without an answer, with the packets from `una` to before `sent_end` in
    /// flight.
    pub(super) fn timed_out(&mut self, now: Time, una: Psn, sent_end: Psn) {
        let is_first = !matches!(self.reduced, Some((Reduction::Timeout, _)));
        // All that was in flight at an earlier timeout has been acknowledged since.
        if is_first || !una.before(self.recovery_point) {
            self.reduced = Some((Reduction::Timeout, self.controller.copy()));
        }
        self.controller.timed_out(now);
        self.update();
        self.recovery_point = sent_end;
        self.losses = 0;
    }

    /// Restores the window after a timeout: an answer to an earlier packet arrived after it.
    ///
    /// A descheduled peer is often late.
    pub(super) fn timeout_was_spurious(&mut self) {
        self.undo(Reduction::Timeout);
    }

    /// Restores the window after a gap before `una`: its packet was late, not lost.
    ///
    /// If other packets of the window were lost, the window stays.
    pub(super) fn loss_was_spurious(&mut self, una: Psn) {
        if self.losses == 1 && self.undo(Reduction::Loss) {
            self.recovery_point = una;
        }
    }

    /// Restores the window if this has reduced it last. Returns whether it has.
    #[cold]
    fn undo(&mut self, reduction: Reduction) -> bool {
        let undone = self.reduced.take_if(|(by, _)| *by == reduction);
        if let Some((_, controller)) = undone
            && controller.window() > self.controller.window()
        {
            self.controller = controller;
            self.update();
            return true;
        }
        false
    }

    /// Makes losses of packets before this PSN leave the window unchanged.
    pub(super) fn ignore_losses_before(&mut self, psn: Psn) {
        self.recovery_point = psn;
    }

    /// Handles a CNP.
    pub(super) fn cnp_received(&mut self, now: Time) {
        self.notification.cnp_received(now, self.packets);
        self.update();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::nanos;

    const LIMITS: WindowLimits = WindowLimits {
        base_bytes: 256 << 10,
        max_bytes: 256 << 20,
    };

    const LONG: Duration = Duration::from_millis(50);

    fn sample(took: Duration) -> RoundTripSample {
        let begins_round = true;
        RoundTripSample {
            took: nanos(took),
            begins_round,
        }
    }

    /// A window after `rounds` round trips of this length, in which `used` of the window is used.
    fn after(algorithm: Algorithm, rounds: u32, took: Duration, used: f32) -> Window {
        let mut window = Window::new(algorithm, Mtu::B4096, LIMITS);
        for round in 0..rounds {
            let now = Time(0) + took * round;
            let packets = (window.packets() as f32 * used) as u32;
            window.round_trip(now, sample(took));
            window.acknowledged(now, packets, packets);
        }
        window
    }

    #[test]
    fn window_grows_to_its_limit_within_20_round_trips_without_a_queue() {
        for algorithm in Algorithm::ALL {
            let limit = (LIMITS.max_bytes / 4096).min(MAX_WINDOW);
            assert_eq!(after(algorithm, 20, LONG, 1.0).packets(), limit);
        }
    }

    #[test]
    fn window_stops_growing_when_the_round_trips_show_a_queue() {
        for algorithm in Algorithm::ALL {
            let mut window = after(algorithm, 8, LONG, 1.0);
            let before = window.packets();
            assert!(before > window.base());
            for round in 0..100 {
                let now = Time(1 << 40) + LONG * round;
                window.round_trip(now, sample(LONG * 2));
                window.acknowledged(now, window.packets(), window.packets());
            }
            assert!(window.packets() <= before);
        }
    }

    #[test]
    fn window_beyond_the_base_grows_only_if_it_is_used() {
        for algorithm in Algorithm::ALL {
            let window = after(algorithm, 400, LONG, 0.25);
            assert!(window.packets() <= 2 * window.base());
        }
    }

    #[test]
    fn window_of_a_short_path_is_the_base_window_at_most() {
        for algorithm in Algorithm::ALL {
            let mut window = after(algorithm, 20, LONG, 1.0);
            window.set_short_path(true);
            assert_eq!(window.packets(), window.base());
        }
    }

    #[test]
    fn idle_connection_restarts_with_the_base_window_in_slow_start() {
        for algorithm in Algorithm::ALL {
            let mut window = after(algorithm, 20, LONG, 1.0);
            let before = window.packets();
            window.restart_after_idle();
            assert_eq!(window.packets(), window.base());
            window.acknowledged(Time(1 << 40), window.base(), window.base());
            assert_eq!(window.packets(), 2 * window.base());
            assert!(window.packets() < before);
        }
    }

    #[test]
    fn spurious_timeouts_are_undone() {
        for algorithm in Algorithm::ALL {
            let mut window = after(algorithm, 8, LONG, 1.0);
            let before = window.packets();
            window.timed_out(Time(1 << 40), Psn::new(0), Psn::new(100));
            window.timed_out(Time(1 << 41), Psn::new(0), Psn::new(100));
            assert_eq!(window.packets(), 1);
            window.timeout_was_spurious();
            assert_eq!(window.packets(), before);
            window.timed_out(Time(1 << 42), Psn::new(100), Psn::new(200));
            window.lost(Time(1 << 43), Psn::new(200), Psn::new(300));
            window.timeout_was_spurious();
            assert!(window.packets() < before);
        }
    }

    #[test]
    fn window_before_an_answered_timeout_is_not_restored() {
        for algorithm in Algorithm::ALL {
            let mut window = after(algorithm, 8, LONG, 1.0);
            window.timed_out(Time(1 << 40), Psn::new(0), Psn::new(100));
            let reduced = window.packets();
            window.timed_out(Time(1 << 41), Psn::new(100), Psn::new(200));
            window.timeout_was_spurious();
            assert_eq!(window.packets(), reduced);
        }
    }

    #[test]
    fn spurious_loss_is_undone_unless_others_were_lost() {
        for algorithm in Algorithm::ALL {
            let mut window = after(algorithm, 8, LONG, 1.0);
            let before = window.packets();
            let (now, end) = (Time(1 << 40), Psn::new(100));
            window.lost(now, Psn::new(10), end);
            window.loss_was_spurious(Psn::new(11));
            assert_eq!(window.packets(), before);
            window.lost(now, Psn::new(20), end);
            let reduced = window.packets();
            assert!(reduced < before);
            window.lost(now, Psn::new(30), end);
            window.loss_was_spurious(Psn::new(31));
            assert_eq!(window.packets(), reduced);
        }
    }

    #[test]
    fn algorithms_are_found_by_their_names() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        let error = "bbr".parse::<Algorithm>().unwrap_err();
        assert!(error.to_string().contains("bbr"));
    }

    /// The capacities were measured with the default buffer on loopback, for separate datagrams
    /// (`docs/CONGESTION.md`).
    #[test]
    fn slow_start_ends_below_the_default_receive_buffer() {
        let fit = [332, 332, 184, 97, 50];
        for (mtu, fit) in Mtu::ALL.into_iter().zip(fit) {
            let startup = default_receive_buffer_packets(mtu);
            assert!(startup <= fit && startup * 10 >= fit * 9, "{mtu:?}");
            for algorithm in Algorithm::ALL {
                let mut window = Window::new(algorithm, mtu, LIMITS);
                let most = (256 << 10) / mtu.bytes() as u32;
                // Ten round trips of doubling would exceed it by far.
                window.round_trip(Time(0), sample(Duration::from_micros(50)));
                for round in 0..10 {
                    let now = Time(round * 100_000);
                    window.round_trip(now, sample(Duration::from_micros(100)));
                    window.acknowledged(now, window.packets(), window.packets());
                    assert!(window.packets() <= (startup + startup / 2).min(most));
                }
            }
        }
    }
}
