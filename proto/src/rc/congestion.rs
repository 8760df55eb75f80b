//! How many packets of a connection may be under way: a window that learns from loss.
//!
//! With go-back-N an overrun socket buffer costs the whole window, so the window matters more here
//! than in TCP. The specification leaves the choice free: it only bounds what may be outstanding.

use crate::time::Time;
use std::fmt::Debug;

/// A policy for the window of one connection.
pub trait Controller: Debug + Send {
    /// How many packets may be under way now; at least 1.
    fn window(&self) -> u32;

    /// `packets` were acknowledged for the first time.
    fn acknowledged(&mut self, now: Time, packets: u32);

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

/// The least that halving leaves: enough that a lost packet is noticed by the one behind it.
const MINIMUM_AFTER_LOSS: f32 = 4.0;

/// Additive increase, multiplicative decrease with slow start, as TCP's first congestion control
/// had it (RFC 5681), bounded by what the receiver's socket buffer is believed to hold.
#[derive(Debug)]
pub struct Aimd {
    window: f32,
    threshold: f32,
    limit: f32,
    /// Window and threshold before the silence that lasts, or that ended without a loss so far.
    before_silence: Option<(f32, f32)>,
}

impl Aimd {
    /// A fresh window of at most `limit` packets.
    pub fn new(limit: u32) -> Self {
        let limit = limit.max(1) as f32;
        Aimd {
            window: (INITIAL_WINDOW as f32).min(limit),
            threshold: limit,
            limit,
            before_silence: None,
        }
    }
}

impl Controller for Aimd {
    fn window(&self) -> u32 {
        (self.window as u32).max(1)
    }

    fn acknowledged(&mut self, _now: Time, packets: u32) {
        let packets = packets as f32;
        let growth = if self.window < self.threshold {
            packets
        } else {
            packets / self.window
        };
        self.window = (self.window + growth).min(self.limit);
    }

    fn lost(&mut self, _now: Time) {
        self.window = (self.window / 2.0).max(MINIMUM_AFTER_LOSS).min(self.limit);
        self.threshold = self.window;
        self.before_silence = None;
    }

    fn silent(&mut self, _now: Time) {
        self.before_silence
            .get_or_insert((self.window, self.threshold));
        self.threshold = (self.window / 2.0).max(MINIMUM_AFTER_LOSS).min(self.limit);
        self.window = 1.0;
    }

    fn not_silent(&mut self, _now: Time) {
        if let Some((window, threshold)) = self.before_silence.take() {
            self.window = self.window.max(window);
            self.threshold = threshold;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_grows_to_its_limit_and_halves_on_loss() {
        let mut aimd = Aimd::new(64);
        assert_eq!(aimd.window(), INITIAL_WINDOW);
        aimd.acknowledged(Time(0), 16);
        assert_eq!(aimd.window(), 32);
        aimd.acknowledged(Time(0), 1000);
        assert_eq!(aimd.window(), 64);
        aimd.lost(Time(0));
        assert_eq!(aimd.window(), 32);
        aimd.acknowledged(Time(0), 32);
        assert_eq!(aimd.window(), 33);
    }

    #[test]
    fn silence_that_was_none_costs_nothing() {
        let mut aimd = Aimd::new(64);
        aimd.acknowledged(Time(0), 16);
        aimd.silent(Time(1));
        aimd.silent(Time(2));
        assert_eq!(aimd.window(), 1);
        aimd.not_silent(Time(3));
        assert_eq!(aimd.window(), 32);
        aimd.silent(Time(4));
        aimd.lost(Time(5));
        aimd.not_silent(Time(6));
        assert!(aimd.window() < 32);
    }

    #[test]
    fn silence_leaves_one_packet_and_loss_never_less_than_one() {
        let mut aimd = Aimd::new(2);
        for _ in 0..5 {
            aimd.lost(Time(0));
        }
        assert!(aimd.window() >= 1);
        aimd.silent(Time(0));
        assert_eq!(aimd.window(), 1);
    }
}
