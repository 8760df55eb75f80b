//! Limiting the rate at which a queue pair sends.

use std::time::Duration;
use urxe_net::SendBatch;
use urxe_proto::host::Transmit;
use urxe_proto::time::Time;

/// How many bytes go at once where the program does not say.
const BURST: u32 = 16 << 10;

/// What is no longer than this - acknowledgements and the like - is not held back, as it is an answer
/// to what the peer sends.
const SMALL: usize = 64;

/// Keeps a rate: after a burst nothing goes until the burst has had its time.
#[derive(Debug)]
pub(super) struct Pacer {
    /// In kbit/s; not 0.
    rate: u32,
    /// In bytes; not 0.
    burst: u32,
    next: Time,
}

impl Pacer {
    /// One for `rate` kbit/s in bursts of about `burst` bytes, 0 standing for the usual ones. `None`
    /// for the rate 0, which is no limit.
    pub(super) fn new(rate: u32, burst: u32) -> Option<Self> {
        (rate > 0).then_some(Pacer {
            rate,
            burst: if burst > 0 { burst } else { BURST },
            next: Time(0),
        })
    }

    /// When more may go.
    pub(super) fn next(&self) -> Time {
        self.next
    }

    /// A sink that takes what may go now.
    pub(super) fn limit<'a>(&self, now: Time, batch: &'a mut SendBatch) -> Limited<'a> {
        let left = if now < self.next { 0 } else { self.burst };
        Limited {
            batch,
            left: u64::from(left),
            staged: 0,
            taken: 0,
        }
    }

    /// So many bytes have gone.
    pub(super) fn spend(&mut self, now: Time, bytes: u64) {
        // A kbit/s is a bit in a million nanoseconds.
        let took = bytes.saturating_mul(8_000_000) / u64::from(self.rate);
        self.next = self.next.max(now) + Duration::from_nanos(took);
    }
}

/// A sink that takes a burst. The packet that exceeds it is the last.
pub(super) struct Limited<'a> {
    batch: &'a mut SendBatch,
    left: u64,
    staged: usize,
    taken: u64,
}

impl Limited<'_> {
    /// How many bytes it has taken.
    pub(super) fn taken(&self) -> u64 {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_as_long_a_pause() {
        // A megabyte in a second.
        let mut pacer = Pacer::new(8_000, 0).unwrap();
        let now = Time(5_000_000_000);
        assert!(pacer.next() <= now);
        pacer.spend(now, 1_000_000);
        assert_eq!(pacer.next(), now + Duration::from_secs(1));
        pacer.spend(now, 500_000);
        assert_eq!(pacer.next(), now + Duration::from_millis(1500));
    }

    #[test]
    fn time_without_sending_is_not_saved_up() {
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
