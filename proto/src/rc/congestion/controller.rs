//! The interface of the algorithms.

use crate::time::Time;
use std::fmt::Debug;
use std::time::Duration;

/// The minimum window after a loss, large enough for later packets to reveal the next one.
pub(super) const MINIMUM_AFTER_LOSS: f32 = 4.0;

/// A congestion control algorithm for one connection.
pub(super) trait Controller: Debug + Send {
    /// The congestion window in packets; at least 1.
    fn window(&self) -> u32;

    /// Whether acknowledgements raise the window by half or more in each round trip. `is_idle` is
    /// whether the last round trip shows no queue.
    fn in_slow_start(&self, is_idle: bool) -> bool;

    /// Reports that `packets` packets were acknowledged for the first time.
    fn acknowledged(&mut self, now: Time, packets: u32, growth: Growth);

    /// Reports a round-trip sample, about one per round trip. Returns whether the window may have
    /// changed.
    fn round_trip(&mut self, now: Time, took: Duration) -> bool;

    /// Reports a loss shown by a gap: later packets were delivered. `queued` is the part of the
    /// last round trip, 0 to 1, for which its packet was in a queue.
    fn lost(&mut self, now: Time, queued: f32);

    /// Reports a further loss in the window that the last loss reduced, the `losses`th.
    fn lost_again(&mut self, _losses: u32) {}

    /// Reports a timeout without an answer.
    fn timed_out(&mut self, now: Time);

    /// Returns a copy, to which the window returns if the next reduction is spurious.
    fn copy(&self) -> Box<dyn Controller>;

    /// Reduces the window to the base window: the connection was idle, so the window may exceed
    /// what the path carries now (RFC 7661).
    fn restart_after_idle(&mut self);
}

/// The growth that a path permits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// Whether the last round trip shows no queue, so that slow start may continue beyond the
    /// receive buffer of a peer. The window then grows by half in each round trip: the effect of
    /// doubling it is known when it has doubled again, and the queue overflows.
    pub(super) is_idle: bool,
    /// The part of the last round trip, 0 to 1, for which its packet was in a queue.
    pub(super) queued: f32,
    /// The window up to which it may grow, in packets.
    pub(super) limit: f32,
}

/// The window sizes given to a controller, in packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The initial window.
    pub(super) initial: f32,
    /// The limit of slow start on a path with a queue.
    pub(super) startup: f32,
    /// The window that is permitted on any path.
    pub(super) base: f32,
    /// The maximum window, on a long path.
    pub(super) limit: f32,
}
