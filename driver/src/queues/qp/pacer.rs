//! The rate limiter of a queue pair.

use std::time::Duration;
use urxe_net::SendBatch;
use urxe_proto::host::{BatchPlace, Transmit};
use urxe_proto::time::Time;

/// Default burst in bytes.
const BURST: u32 = 16 << 10;

/// Packets up to this many bytes - acknowledgements and the like - are never delayed, since they
/// respond to what the peer sends.
const SMALL: usize = 64;

/// A rate limiter: after a burst nothing is sent for the time that the burst takes at the rate.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// In kbit/s; not 0.
    rate: u32,
    /// In bytes; not 0.
    burst: u32,
    next: Time,
}

impl Pacer {
    /// Creates a limiter of `rate` kbit/s in bursts of about `burst` bytes; a burst of 0 selects
    /// the default. Returns `None` for the rate 0, which is no limit.
    pub(crate) fn new(rate: u32, burst: u32) -> Option<Self> {
        (rate > 0).then_some(Pacer {
            rate,
            burst: if burst > 0 { burst } else { BURST },
            next: Time(0),
        })
    }

    /// The time of the next burst.
    pub(crate) fn next(&self) -> Time {
        self.next
    }

    /// Wraps `batch` so that it takes what the limit allows at `now`.
    pub(crate) fn limit<'a>(&self, now: Time, batch: &'a mut SendBatch) -> Limited<'a> {
        let left = if now < self.next { 0 } else { self.burst };
        Limited {
            batch,
            left: u64::from(left),
            staged: 0,
            taken: 0,
        }
    }

    /// Charges `bytes` that were sent at `now`.
    pub(crate) fn spend(&mut self, now: Time, bytes: u64) {
        // One kbit/s is one bit in 1,000,000 ns.
        let took = bytes.saturating_mul(8_000_000) / u64::from(self.rate);
        self.next = self.next.max(now) + Duration::from_nanos(took);
    }
}

/// A sink that takes one burst. The packet that exceeds the burst is the last.
pub(crate) struct Limited<'a> {
    batch: &'a mut SendBatch,
    left: u64,
    staged: usize,
    taken: u64,
}

impl Limited<'_> {
    /// The number of bytes that the sink has taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }
}

impl Transmit for Limited<'_> {
    fn stage(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.left == 0 && len > SMALL {
            return None;
        }
        self.staged = len;
        self.batch.stage(len)
    }

    fn commit(&mut self) {
        let len = self.staged as u64;
        self.taken += len;
        self.left = self.left.saturating_sub(len);
        self.batch.commit();
    }

    fn cancel(&mut self) {
        self.batch.cancel();
    }

    fn now(&self) -> Time {
        self.batch.now()
    }

    fn place_in_batch(&self, len: usize) -> BatchPlace {
        self.batch.place_in_batch(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_delays_the_next_send_by_its_transmission_time() {
        // 8,000 kbit/s are one megabyte per second.
        let mut pacer = Pacer::new(8_000, 0).unwrap();
        let now = Time(5_000_000_000);
        assert!(pacer.next() <= now);
        pacer.spend(now, 1_000_000);
        assert_eq!(pacer.next(), now + Duration::from_secs(1));
        pacer.spend(now, 500_000);
        assert_eq!(pacer.next(), now + Duration::from_millis(1500));
    }

    #[test]
    fn idle_time_earns_no_credit() {
        let mut pacer = Pacer::new(8_000, 0).unwrap();
        pacer.spend(Time(0), 1_000);
        let late = Time(60_000_000_000);
        pacer.spend(late, 1_000);
        assert_eq!(pacer.next(), late + Duration::from_millis(1));
    }

    #[test]
    fn no_rate_is_no_limit() {
        assert!(Pacer::new(0, 100).is_none());
    }
}
