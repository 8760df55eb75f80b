//! Congestion control: the window of packets that a connection may have in flight.
//!
//! The specification only bounds the packets outstanding and leaves the rest to the implementation.
//! Two algorithms are available, `loss` and `delay`. Congestion notifications limit the window of
//! either. `docs/CONGESTION.md` compares them.

mod delay;
mod loss;
mod notification;

use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::time::Time;
use delay::Delay;
use loss::Loss;
pub(super) use notification::NOTIFICATION_INTERVAL;
use notification::NotificationLimit;
use std::fmt::{self, Debug, Display};
use std::str::FromStr;
use std::time::Duration;

/// A congestion control algorithm for one connection.
trait Controller: Debug + Send {
    /// The congestion window in packets; at least 1.
    fn window(&self) -> u32;

    /// Reports that `packets` packets were acknowledged for the first time.
    fn acknowledged(&mut self, now: Time, packets: u32);

    /// Reports a round-trip sample. One packet is timed at a time: about one sample per round trip.
    fn round_trip(&mut self, now: Time, took: Duration);

    /// Reports a loss shown by a gap: later packets were delivered.
    fn lost(&mut self, now: Time);

    /// Reports a timeout without an answer.
    fn timed_out(&mut self, now: Time);

    /// Reports that the last timeout was spurious: an answer to an earlier packet arrived after it.
    ///
    /// A descheduled peer is often late.
    fn timeout_was_spurious(&mut self, now: Time);
}

/// The initial window, in packets.
pub(super) const INITIAL_WINDOW: u32 = 16;

/// The minimum window after a loss, large enough for later packets to reveal the next one.
const MINIMUM_AFTER_LOSS: f32 = 4.0;

/// The congestion control algorithms.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum Algorithm {
    /// Based on round-trip times, like Swift (SIGCOMM 2020).
    Delay,
    /// Based on losses (RFC 5681).
    #[default]
    Loss,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 2] = [Algorithm::Delay, Algorithm::Loss];

    /// The name by which the algorithm is selected.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Delay => "delay",
            Algorithm::Loss => "loss",
        }
    }

    fn controller(self, sizes: Sizes) -> Box<dyn Controller> {
        match self {
            Algorithm::Delay => Box::new(Delay::new(sizes)),
            Algorithm::Loss => Box::new(Loss::new(sizes)),
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
#[error("there is no way to control congestion called «{0}»: the names are delay and loss")]
pub struct UnknownAlgorithm(String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let named = Self::ALL.into_iter().find(|known| known.name() == name);
        named.ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// The window sizes given to a controller, in packets.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// The initial window.
    initial: f32,
    /// The limit of slow start.
    startup: f32,
    /// The maximum window.
    limit: f32,
}

impl Sizes {
    /// Returns the sizes for packets of `mtu`, with at most `limit_bytes` bytes in flight.
    fn new(mtu: Mtu, limit_bytes: u32) -> Self {
        let limit = (limit_bytes / mtu.bytes() as u32).max(1) as f32;
        Sizes {
            initial: limit.min(INITIAL_WINDOW as f32),
            startup: limit.min(default_receive_buffer_packets(mtu) as f32),
            limit,
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
    /// A loss before this PSN does not reduce the window again (the recovery point of RFC 6675).
    recovery_point: Psn,
}

impl Window {
    pub(super) fn new(algorithm: Algorithm, mtu: Mtu, limit_bytes: u32) -> Self {
        Window {
            controller: algorithm.controller(Sizes::new(mtu, limit_bytes)),
            notification: NotificationLimit::default(),
            recovery_point: Psn::default(),
        }
    }

    /// The congestion window in packets; at least 1.
    pub(super) fn packets(&self) -> u32 {
        self.notification.limit(self.controller.window())
    }

    pub(super) fn acknowledged(&mut self, now: Time, packets: u32) {
        self.notification.advance(now);
        // While notifications limit the window, the controller's window is not fully used.
        if self.packets() == self.controller.window() {
            self.controller.acknowledged(now, packets);
        }
    }

    pub(super) fn round_trip(&mut self, now: Time, took: Duration) {
        self.notification.round_trip(took);
        self.controller.round_trip(now, took);
    }

    /// Handles a loss shown by a gap, with the packets from `una` to `sent_end` in flight.
    ///
    /// It reduces the window once for all packets in flight.
    pub(super) fn lost(&mut self, now: Time, una: Psn, sent_end: Psn) {
        let point = self.recovery_point;
        // The point is stale if it is after `sent_end`: PSNs have wrapped around half of their
        // space.
        if !una.before(point) || point.after(sent_end) {
            self.controller.lost(now);
            self.recovery_point = sent_end;
        }
    }

    /// Handles a timeout without an answer, with the packets before `sent_end` in flight.
    pub(super) fn timed_out(&mut self, now: Time, sent_end: Psn) {
        self.controller.timed_out(now);
        self.recovery_point = sent_end;
    }

    pub(super) fn timeout_was_spurious(&mut self, now: Time) {
        self.controller.timeout_was_spurious(now);
    }

    /// Makes losses of packets before this PSN leave the window unchanged.
    pub(super) fn ignore_losses_before(&mut self, psn: Psn) {
        self.recovery_point = psn;
    }

    /// Handles a CNP.
    pub(super) fn cnp_received(&mut self, now: Time) {
        let window = self.packets();
        self.notification.cnp_received(now, window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_are_found_by_their_names() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        let error = "cubic".parse::<Algorithm>().unwrap_err();
        assert!(error.to_string().contains("cubic"));
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
                let mut window = Window::new(algorithm, mtu, 256 << 10);
                let most = (256 << 10) / mtu.bytes() as u32;
                // Ten round trips of doubling would exceed it by far.
                for round in 0..10 {
                    let now = Time(round * 100_000);
                    window.round_trip(now, Duration::from_micros(100));
                    window.acknowledged(now, window.packets());
                    assert!(window.packets() <= (startup + startup / 2).min(most));
                }
            }
        }
    }
}
