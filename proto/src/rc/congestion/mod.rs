//! How many packets of a connection may be under way: a window that learns.
//!
//! The specification leaves the choice free: it only bounds what may be outstanding. What is learnt from depends on the
//! algorithm: [`loss`] or [`delay`]. Congestion notifications ([`notified`]) come on top of either.
//! `docs/CONGESTION.md` compares them.

pub mod delay;
pub mod loss;
pub mod notified;

use crate::mtu::Mtu;
use crate::time::Time;
use delay::Delay;
use loss::Loss;
use notified::Notified;
use std::fmt::{self, Debug, Display};
use std::str::FromStr;
use std::time::Duration;

/// A policy for the window of one connection.
pub trait Controller: Debug + Send {
    /// How many packets may be under way now; at least 1.
    fn window(&self) -> u32;

    /// `packets` were acknowledged for the first time.
    fn acknowledged(&mut self, now: Time, packets: u32);

    /// So long did it take from a packet to its answer. There is one such measurement at a time, so
    /// about one in a round trip.
    fn round_trip(&mut self, now: Time, took: Duration);

    /// A gap was reported: something was lost, but the path carries packets.
    fn lost(&mut self, now: Time);

    /// Nothing came back for a while.
    fn silent(&mut self, now: Time);

    /// What seemed to be silence was not: the answer to what went before it came after all. A peer
    /// that shares its processor is often late.
    fn not_silent(&mut self, now: Time);
}

/// Packets that may go out before anything is known of the path.
pub const INITIAL_WINDOW: u32 = 16;

/// The least that a loss leaves: enough that a lost packet is noticed by the one behind it.
const MINIMUM_AFTER_LOSS: f32 = 4.0;

/// Which algorithm governs the window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Algorithm {
    /// Round trips decide: [`Delay`].
    Delay,
    /// Losses decide: [`Loss`].
    #[default]
    Loss,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 2] = [Algorithm::Delay, Algorithm::Loss];

    /// Its name, by which it can be asked for.
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

/// There is no algorithm of this name.
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

/// Windows between which a controller chooses, in packets.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The first one.
    initial: f32,
    /// How far start-up may go in great steps.
    startup: f32,
    /// The largest.
    limit: f32,
}

impl Sizes {
    /// Those for packets of `mtu`, of which `limit_bytes` may be under way at most.
    pub fn new(mtu: Mtu, limit_bytes: u32) -> Self {
        let limit = (limit_bytes / mtu.bytes() as u32).max(1) as f32;
        Sizes {
            initial: limit.min(INITIAL_WINDOW as f32),
            startup: limit.min(in_usual_buffer(mtu) as f32),
            limit,
        }
    }
}

/// How many packets fit the receive buffer of the usual `net.core.rmem_max`, 212,992 bytes, when each comes by itself. The
/// kernel doubles the figure, and counts the memory that packets take: data in twice its size, 1 KiB at least, and
/// what describes it. Packets that come as one take less.
fn in_usual_buffer(mtu: Mtu) -> u32 {
    const BUFFER: u32 = 2 * 212_992;
    const DESCRIPTION: u32 = 320;
    const LEAST: u32 = 1024;
    BUFFER / ((2 * mtu.bytes() as u32).max(LEAST) + DESCRIPTION)
}

/// The window of one connection: what its controller allows, and what notifications leave of it.
#[derive(Debug)]
pub(super) struct Window {
    controller: Box<dyn Controller>,
    notified: Notified,
}

impl Window {
    pub(super) fn new(algorithm: Algorithm, mtu: Mtu, limit_bytes: u32) -> Self {
        Window {
            controller: algorithm.controller(Sizes::new(mtu, limit_bytes)),
            notified: Notified::default(),
        }
    }

    /// How many packets may be under way now; at least 1.
    pub(super) fn packets(&self) -> u32 {
        self.notified.limit(self.controller.window())
    }

    pub(super) fn acknowledged(&mut self, now: Time, packets: u32) {
        self.notified.pass(now);
        // What the controller allows is not tried while less is permitted.
        if self.packets() == self.controller.window() {
            self.controller.acknowledged(now, packets);
        }
    }

    pub(super) fn round_trip(&mut self, now: Time, took: Duration) {
        self.notified.round_trip(took);
        self.controller.round_trip(now, took);
    }

    pub(super) fn lost(&mut self, now: Time) {
        self.controller.lost(now);
    }

    pub(super) fn silent(&mut self, now: Time) {
        self.controller.silent(now);
    }

    pub(super) fn not_silent(&mut self, now: Time) {
        self.controller.not_silent(now);
    }

    /// The peer was told that packets of this connection met congestion.
    pub(super) fn notified(&mut self, now: Time) {
        let window = self.packets();
        self.notified.notified(now, window);
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

    /// What was measured with the usual buffer on loopback, datagrams one by one (`docs/CONGESTION.md`).
    #[test]
    fn start_up_does_not_overrun_a_receive_buffer_of_the_usual_size() {
        let fit = [332, 332, 184, 97, 50];
        for (mtu, fit) in Mtu::ALL.into_iter().zip(fit) {
            let startup = in_usual_buffer(mtu);
            assert!(startup <= fit && startup * 10 >= fit * 9, "{mtu:?}");
            for algorithm in Algorithm::ALL {
                let mut window = Window::new(algorithm, mtu, 256 << 10);
                let most = (256 << 10) / mtu.bytes() as u32;
                // Ten round trips of doubling would go far beyond.
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
