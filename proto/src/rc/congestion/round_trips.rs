//! What round trips show about the queue of a path.

/// The queueing delay up to which a path counts as idle, as a fraction (1/8) of the shortest round
/// trip. HyStart++ (RFC 9406) ends slow start there.
const IDLE_FRACTION: u64 = 8;

/// The queueing delay beyond which a queue counts as long, as a fraction (1/2) of the shortest
/// round trip. The packets in flight then exceed by half what fills the path.
const LONG_FRACTION: u64 = 2;

/// The shortest and the last round trip of a path, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    shortest: Option<u64>,
    last: u64,
}

impl RoundTrips {
    /// Adds a sample.
    #[inline]
    pub(super) fn add(&mut self, took: u64) {
        let shortest = self.shortest.map_or(took, |shortest| shortest.min(took));
        self.shortest = Some(shortest);
        self.last = took;
    }

    /// The part of the last round trip, 0 to 1, for which its packet was in a queue.
    #[inline]
    pub(super) fn queued(&self) -> f32 {
        let queued = self.last - self.shortest.unwrap_or(self.last);
        queued as f32 / self.last.max(1) as f32
    }

    /// Whether the last round trip is known and shows no queue.
    #[inline]
    pub(super) fn show_no_queue(&self) -> bool {
        self.exceeds_by_at_most(IDLE_FRACTION)
    }

    /// Whether the last round trip shows a long queue, or none is known.
    #[inline]
    pub(super) fn show_long_queue(&self) -> bool {
        !self.exceeds_by_at_most(LONG_FRACTION)
    }

    #[inline]
    fn exceeds_by_at_most(&self, fraction: u64) -> bool {
        self.shortest
            .is_some_and(|shortest| self.last - shortest <= shortest / fraction)
    }
}
