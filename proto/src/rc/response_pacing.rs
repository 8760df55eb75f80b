//! Pacing of the responses to long READ requests that are outstanding one at a time.
//!
//! RC has no acknowledgement for READ responses, so in general a responder cannot measure the rate
//! of the path. With `max_dest_rd_atomic` 1 it can: the next request of a long READ shows that all
//! responses to the last one have arrived. The *turnaround* is the time from sending the last
//! response to receiving that request. It is a round trip plus the time that the response spent in
//! queues.
//!
//! The path is idle from the last response until the next request arrives. To use most of the path,
//! a requester therefore asks for many times the bandwidth-delay product in each request. Responses
//! to it that are sent at once would overflow the queue of a switch.

use super::read_reply::ReadReply;
use crate::host::RemoteKey;
use crate::mtu::Mtu;
use crate::time::Time;
use std::time::Duration;

/// The responses to a request for at most this many bytes are sent at once: any path may have this
/// many bytes in flight.
const UNPACED: u32 = 256 << 10;

/// The least size of a burst in bytes: about one GSO batch.
const BATCH: u32 = 64 << 10;

/// A burst lasts for this fraction (1/16) of a round trip, unless that is less than a batch.
const BURST_FRACTION: u32 = 16;

/// Responses are spread over this many round trips at most. Another urxe asks for the data that the
/// path carries in half of them. A turnaround is also long if the program waits between READs of
/// consecutive memory, which must not slow them down without a limit.
const MAX_ROUND_TRIPS: u32 = 32;

/// A turnaround shows a queue if it exceeds the shortest by more than this fraction (1/8), as in
/// HyStart++ (RFC 9406).
const QUEUE_FRACTION: u32 = 8;

/// The responses are sent in less time than the path needs for them, to detect that it has become
/// faster. The difference is this fraction (1/16) of a round trip after a queue appeared. It
/// doubles while none appears.
const FIRST_PROBE_FRACTION: u32 = 16;
/// The upper bound of that difference, as a fraction (1/2) of a round trip.
const LAST_PROBE_FRACTION: u32 = 2;

/// The age at which the shortest turnaround is measured again, since the path may have changed.
const SHORTEST_LIFETIME: Duration = Duration::from_secs(10);

/// The request that is being answered, or was answered last.
#[derive(Clone, Copy, Debug)]
struct Current {
    /// The number of responses, and the number of responses in a burst.
    packets: u32,
    burst: u32,
    begins: Time,
    /// The time over which the bursts are spread.
    spread: Duration,
    /// When the last response was sent.
    ended: Option<Time>,
    /// Whether the spread is so long that the queue of the path empties.
    drains: bool,
    /// The key and the address that a request for the next part of the same READ has.
    next: (RemoteKey, u64),
}

/// The number of packets that a path carries in a time.
#[derive(Clone, Copy, Debug)]
struct Rate {
    packets: u32,
    time: Duration,
}

impl Rate {
    /// Returns the time that the path takes for this number of packets.
    fn time_for(self, packets: u32) -> Duration {
        let nanos = self.time.as_nanos() * u128::from(packets) / u128::from(self.packets.max(1));
        Duration::from_nanos(nanos.min(u128::from(u64::MAX)) as u64)
    }

    /// Returns the number of packets that the path carries in this time, at most `self.packets`.
    fn packets_in(self, time: Duration) -> u32 {
        let packets = time.as_nanos() * u128::from(self.packets) / self.time.as_nanos().max(1);
        packets.min(u128::from(self.packets)) as u32
    }
}

impl Current {
    /// Returns the time between two bursts.
    fn interval(&self) -> Duration {
        let rate = Rate {
            packets: self.packets,
            time: self.spread,
        };
        rate.time_for(self.burst)
    }
}

/// The pacing of the responses of one queue pair.
#[derive(Debug, Default)]
pub(super) struct ResponsePacing {
    current: Option<Current>,
    /// The shortest turnaround, and when it was measured.
    shortest: Option<(Duration, Time)>,
    rate: Option<Rate>,
    /// Whether a queue has shown the rate of the path. Until then the rate doubles with each
    /// request.
    is_measured: bool,
    /// The time by which the spread is shorter than the time that the path needs.
    probe: Duration,
}

impl ResponsePacing {
    /// Handles a new request, given that all responses to earlier ones have arrived.
    pub(super) fn requested(&mut self, now: Time, read: &ReadReply, mtu: Mtu) {
        let bytes = read.left;
        let packets = read.packets();
        // A request for other memory is not measured: the program may have waited before it.
        let last = self.current.take();
        if let Some(last) = last.filter(|last| last.next == (read.key, read.addr))
            && let Some(ended) = last.ended
        {
            self.measure(now, &last, ended);
        }
        let (mut spread, mut burst, mut drains) = (Duration::ZERO, packets, false);
        if bytes > UNPACED
            && let Some((shortest, since)) = self.shortest
        {
            drains = now.since(since) > SHORTEST_LIFETIME;
            let first = Rate {
                packets,
                time: shortest / 2,
            };
            let time = self.rate.get_or_insert(first).time_for(packets);
            spread = match drains {
                true => time + shortest,
                false => time.saturating_sub(self.probe),
            };
            spread = spread.min(shortest.saturating_mul(MAX_ROUND_TRIPS));
            let in_burst = Rate {
                packets,
                time: spread,
            };
            burst = in_burst.packets_in(shortest / BURST_FRACTION);
            burst = burst.max(BATCH / mtu.bytes() as u32);
        }
        self.current = Some(Current {
            packets,
            burst,
            begins: now,
            spread,
            ended: None,
            drains,
            next: (read.key, read.addr.wrapping_add(u64::from(bytes))),
        });
    }

    /// Measures the path at the arrival of a request at `now`. The last response to the request
    /// before it, `last`, was sent at `ended`.
    fn measure(&mut self, now: Time, last: &Current, ended: Time) {
        let turnaround = now.since(ended);
        let shortest = match self.shortest {
            Some((shortest, _)) if shortest < turnaround && !last.drains => shortest,
            _ => {
                self.shortest = Some((turnaround, now));
                turnaround
            }
        };
        let queued = turnaround - shortest;
        let shows_queue = queued > shortest / QUEUE_FRACTION;
        let Some(rate) = self.rate.filter(|_| !last.spread.is_zero()) else {
            // The responses were sent at once, so the path carried them in the time that the last
            // one was queued. The shortest turnaround includes a part of that time, so the computed
            // rate is a little too high.
            let (packets, time) = (last.packets, queued);
            self.rate = shows_queue.then_some(Rate { packets, time });
            return;
        };
        // Bounded, because a turnaround is also long if the peer was descheduled or repeated a
        // request.
        let taken = ended.since(last.begins);
        let queued = queued.min(shortest.max(taken));
        self.is_measured |= shows_queue;
        if !self.is_measured {
            let packets = rate.packets.saturating_mul(2);
            self.rate = Some(Rate { packets, ..rate });
            return;
        }
        self.rate = Some(Rate {
            packets: last.packets,
            time: taken + queued,
        });
        self.probe = match shows_queue {
            true => shortest / FIRST_PROBE_FRACTION,
            false => (self.probe * 2).min(shortest / LAST_PROBE_FRACTION),
        };
    }

    /// Returns the number of responses to the current request that may have been sent by `now`.
    pub(super) fn permitted(&self, now: Time) -> u32 {
        let Some(current) = self.current else {
            return u32::MAX;
        };
        let interval = current.interval();
        let elapsed = now.since(current.begins);
        if elapsed >= current.spread || interval.is_zero() {
            return u32::MAX;
        }
        let bursts = elapsed.as_nanos() / interval.as_nanos() + 1;
        u32::try_from(bursts * u128::from(current.burst)).unwrap_or(u32::MAX)
    }

    /// Returns the time at which more responses may be sent, after `sent` of them.
    pub(super) fn resumes_at(&self, sent: u32) -> Time {
        let Some(current) = self.current else {
            return Time::NEVER;
        };
        let bursts = sent / current.burst.max(1);
        current.begins
            + current
                .interval()
                .saturating_mul(bursts)
                .min(current.spread)
    }

    /// Records that the last response to the current request was sent.
    pub(super) fn ended(&mut self, now: Time) {
        if let Some(current) = &mut self.current {
            current.ended = Some(now);
        }
    }

    /// Lets the responses to the current request be sent at once.
    pub(super) fn stop(&mut self) {
        self.current = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RKey;
    use crate::psn::Psn;

    const MTU: Mtu = Mtu::B4096;

    /// A path with a queue, from the responder to a requester.
    struct Path {
        pacing: ResponsePacing,
        now: Time,
        round_trip: Duration,
        /// The time that the path takes for a packet.
        per_packet: Duration,
        /// The end of the memory that was requested.
        addr: u64,
        /// The most packets in the queue.
        longest_queue: u32,
    }

    impl Path {
        fn new(round_trip: Duration, per_packet: Duration) -> Self {
            Path {
                pacing: ResponsePacing::default(),
                now: Time(0),
                round_trip,
                per_packet,
                addr: 0,
                longest_queue: 0,
            }
        }

        /// Returns the number of packets that the path carries in a round trip.
        fn product(&self) -> u32 {
            (self.round_trip.as_nanos() / self.per_packet.as_nanos()) as u32
        }

        /// Answers a request for the next `packets` responses. Returns the time from the first
        /// response to the arrival of the last, without the delay of the idle path.
        fn request(&mut self, packets: u32) -> Duration {
            let bytes = packets * MTU.bytes() as u32;
            let first = Psn::new(0xff_ff00);
            let read = ReadReply {
                first,
                end: first + packets,
                addr: self.addr,
                key: RemoteKey {
                    rkey: RKey(1),
                    srq: None,
                },
                left: bytes,
                is_duplicate: false,
            };
            self.addr += u64::from(bytes);
            self.pacing.requested(self.now, &read, MTU);
            let begins = self.now;
            let mut sent = 0;
            let mut carried = begins;
            while sent < packets {
                let permitted = self.pacing.permitted(self.now).min(packets);
                assert!(permitted > sent, "{permitted} {sent} {:?}", self.pacing);
                carried = carried.max(self.now) + self.per_packet * (permitted - sent);
                sent = permitted;
                let queue = carried.since(self.now).as_nanos() / self.per_packet.as_nanos();
                self.longest_queue = self.longest_queue.max(queue as u32);
                if sent < packets {
                    self.now = self.pacing.resumes_at(sent);
                }
            }
            self.pacing.ended(self.now);
            self.now = carried + self.round_trip;
            carried.since(begins)
        }

        /// Doubles the requests up to `most` packets, and repeats the longest `times` times.
        fn start(&mut self, most: u32, times: u32) {
            let mut packets = 16;
            while packets < most {
                self.request(packets);
                packets *= 2;
            }
            for _ in 0..times {
                self.request(most);
            }
        }
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn responses_fill_a_path_and_do_not_overflow_its_queue() {
        for round_trip in [ms(1), ms(10), ms(50), ms(200)] {
            for per_packet in [330, 3_300, 33_000, 330_000].map(Duration::from_nanos) {
                let mut path = Path::new(round_trip, per_packet);
                let most = (16 * path.product()).clamp(64, 1 << 18);
                path.start(most, 10);
                let took = path.request(most);
                assert!(
                    took < (per_packet * most).mul_f64(1.05) + round_trip / 4,
                    "{round_trip:?} {per_packet:?}: {took:?}"
                );
                // Up to 128 packets may come before any measurement.
                let queue = path.longest_queue;
                let product = path.product();
                assert!(
                    queue <= product + 100,
                    "{round_trip:?} {per_packet:?}: {queue}"
                );
            }
        }
    }

    #[test]
    fn rate_follows_a_path_that_becomes_slower_or_faster() {
        let mut path = Path::new(ms(10), Duration::from_micros(10));
        path.start(16_000, 5);
        path.per_packet = Duration::from_micros(20);
        for _ in 0..4 {
            path.request(16_000);
        }
        path.longest_queue = 0;
        path.request(16_000);
        assert!(path.longest_queue <= 500, "{}", path.longest_queue);
        path.per_packet = Duration::from_micros(15);
        for _ in 0..40 {
            path.request(16_000);
        }
        let took = path.request(16_000);
        assert!(
            took < Duration::from_micros(16_000 * 15).mul_f64(1.1),
            "{took:?}"
        );
    }

    #[test]
    fn longer_round_trip_is_not_taken_for_a_queue_for_ever() {
        let mut path = Path::new(ms(10), Duration::from_micros(10));
        path.start(16_000, 5);
        path.round_trip = ms(20);
        for _ in 0..300 {
            path.request(16_000);
        }
        let took = path.request(16_000);
        assert!(took < ms(160).mul_f64(1.2), "{took:?}");
    }

    #[test]
    fn other_read_is_not_part_of_a_measurement() {
        let mut path = Path::new(ms(10), Duration::from_micros(10));
        path.start(16_000, 5);
        // The program posts the next READ a second later.
        path.now = path.now + Duration::from_secs(1);
        path.addr += 1;
        let took = path.request(16_000);
        assert!(took < ms(160).mul_f64(1.1), "{took:?}");
    }

    #[test]
    fn program_that_waits_between_reads_is_not_slowed_down_without_a_limit() {
        let mut path = Path::new(ms(1), Duration::from_micros(1));
        path.start(1_000, 5);
        for wait in [ms(0), ms(200)].into_iter().cycle().take(40) {
            path.now = path.now + wait;
            let took = path.request(1_000);
            assert!(took <= ms(33), "{took:?}");
        }
    }

    #[test]
    fn request_without_a_measured_round_trip_is_answered_at_once() {
        let mut path = Path::new(ms(10), Duration::from_micros(10));
        path.request(16_000);
        assert_eq!(path.longest_queue, 16_000);
    }
}
