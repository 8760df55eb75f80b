//! Retransmission timers and retry counters (9.7.5.2.8, 9.7.6.1), with a faster probe.
//!
//! The local ACK timeout is designed for hardware and fabrics: applications usually set 67 ms. A
//! packet lost at the tail of a message leaves no gap for the responder to report, so a probe is
//! sent after a few round trips. It is an ordinary retransmission, which the specification permits
//! at any time; only the ACK timeout counts against `retry_cnt`.

use crate::time::Time;
use crate::wire::RnrTimer;
use std::time::Duration;

/// The unit of the local ACK timeout (9.7.6.1.3): 4.096 us.
const ACK_TIMEOUT_UNIT: Duration = Duration::from_nanos(4096);

/// The factor between the requested ACK timeout and the one in use.
///
/// The specification permits up to four times the requested value (9.7.6.1.3), and NICs use it. A
/// shorter timeout could declare a distant peer on a busy host dead. Losses are still repaired
/// sooner, by the probe.
const ACK_TIMEOUT_STRETCH: u32 = 4;

/// The minimum ACK timeout; below it, a descheduled peer could be declared dead.
const ACK_TIMEOUT_FLOOR: Duration = Duration::from_millis(10);

/// The delay of the first probe without a round-trip estimate.
const INITIAL_PROBE: Duration = Duration::from_millis(5);
/// The initial delay of a full retransmission without a round-trip estimate.
const INITIAL_RESEND: Duration = Duration::from_millis(20);
/// The minimum delay of a probe, which is one packet: a busy peer answers late without a loss.
const PROBE_FLOOR: Duration = Duration::from_millis(1);
/// The minimum delay of a full retransmission.
const RESEND_FLOOR: Duration = Duration::from_millis(4);
/// The maximum delay of a probe or a full retransmission.
const PROBE_CEILING: Duration = Duration::from_secs(1);

/// The `rnr_retry` value that means unlimited retries (9.7.5.2.8).
const RNR_RETRY_FOREVER: u8 = 7;

/// The action that an expired timer requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expired {
    /// No timer has expired.
    Nothing,
    /// Send the oldest unacknowledged packet again, since the last packets may have been lost.
    Probe,
    /// Go back to the oldest unacknowledged packet.
    Resend,
    /// The RNR wait is over: continue.
    RnrOver,
    /// `retry_cnt` is exhausted.
    RetriesExceeded,
}

/// The timers and counters of a requester.
#[derive(Debug)]
pub(super) struct Retransmit {
    ack_timeout: Option<Duration>,
    retry_cnt: u8,
    retries_left: u8,
    rnr_retry: u8,
    rnr_left: u8,
    smoothed: Option<Duration>,
    variation: Duration,
    backoff: u32,
    probe_at: Time,
    timeout_at: Time,
    rnr_until: Option<Time>,
}

impl Retransmit {
    /// Returns stopped timers. The arguments are the attributes of those names.
    pub(super) fn new(timeout: u8, retry_cnt: u8, rnr_retry: u8) -> Self {
        let mut timers = Retransmit {
            ack_timeout: None,
            retry_cnt: 0,
            retries_left: 0,
            rnr_retry: 0,
            rnr_left: 0,
            smoothed: None,
            variation: Duration::ZERO,
            backoff: 0,
            probe_at: Time::NEVER,
            timeout_at: Time::NEVER,
            rnr_until: None,
        };
        timers.configure(timeout, retry_cnt, rnr_retry);
        timers
    }

    /// Applies changed attributes; running timers continue.
    pub(super) fn configure(&mut self, timeout: u8, retry_cnt: u8, rnr_retry: u8) {
        self.ack_timeout = match timeout & 31 {
            0 => None,
            n => Some((ACK_TIMEOUT_UNIT * ACK_TIMEOUT_STRETCH * (1 << n)).max(ACK_TIMEOUT_FLOOR)),
        };
        self.retry_cnt = retry_cnt;
        self.retries_left = retry_cnt;
        self.rnr_retry = rnr_retry;
        self.rnr_left = rnr_retry;
    }

    /// Starts the timers, unless they run, when a packet is sent.
    pub(super) fn sent(&mut self, now: Time) {
        if self.probe_at == Time::NEVER {
            self.restart(now);
        }
    }

    /// Handles progress of the acknowledgements; `outstanding` is whether packets remain in
    /// flight.
    pub(super) fn progressed(&mut self, now: Time, outstanding: bool) {
        self.retries_left = self.retry_cnt;
        self.rnr_left = self.rnr_retry;
        self.backoff = 0;
        if outstanding {
            self.restart(now);
        } else {
            self.stop();
        }
    }

    /// Stops the timers: no answer is outstanding.
    pub(super) fn stop(&mut self) {
        self.probe_at = Time::NEVER;
        self.timeout_at = Time::NEVER;
    }

    /// Adds a round-trip sample (the estimator of RFC 6298).
    pub(super) fn round_trip(&mut self, sample: Duration) {
        match self.smoothed {
            None => {
                self.smoothed = Some(sample);
                self.variation = sample / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
                self.smoothed = Some((smoothed * 7 + sample) / 8);
            }
        }
    }

    /// The smoothed round-trip time, once one was measured.
    pub(super) fn smoothed_round_trip(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The ACK timeout, if one is set.
    pub(super) fn ack_timeout(&self) -> Option<Duration> {
        self.ack_timeout
    }

    /// Starts the RNR wait. Returns false when `rnr_retry` is exhausted.
    pub(super) fn receiver_not_ready(&mut self, now: Time, timer: RnrTimer) -> bool {
        if self.rnr_retry != RNR_RETRY_FOREVER {
            if self.rnr_left == 0 {
                return false;
            }
            self.rnr_left -= 1;
        }
        self.stop();
        self.rnr_until = Some(now + timer.duration());
        true
    }

    /// Counts a retry for a gap reported without progress. Returns false when `retry_cnt` is
    /// exhausted.
    pub(super) fn gap_without_progress(&mut self) -> bool {
        if self.retries_left == 0 {
            return false;
        }
        self.retries_left -= 1;
        true
    }

    /// Whether an RNR wait is in progress.
    pub(super) fn waits_for_receiver(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// The time at which [`Retransmit::expire`] is to be called next.
    pub(super) fn deadline(&self) -> Time {
        match self.rnr_until {
            Some(until) => until,
            None => self.probe_at.min(self.timeout_at),
        }
    }

    /// Handles the timers that have expired at `now`.
    pub(super) fn expire(&mut self, now: Time) -> Expired {
        if let Some(until) = self.rnr_until {
            if now < until {
                return Expired::Nothing;
            }
            self.rnr_until = None;
            return Expired::RnrOver;
        }
        if now >= self.timeout_at {
            if self.retries_left == 0 {
                self.stop();
                return Expired::RetriesExceeded;
            }
            self.retries_left -= 1;
            self.backoff += 1;
            self.restart(now);
            return Expired::Resend;
        }
        if now >= self.probe_at {
            let expired = match self.backoff {
                0 => Expired::Probe,
                _ => Expired::Resend,
            };
            self.backoff += 1;
            self.probe_at = now + self.probe_interval();
            return expired;
        }
        Expired::Nothing
    }

    /// Resets the round-trip estimate after a change of path.
    pub(super) fn forget_round_trip(&mut self) {
        self.smoothed = None;
        self.variation = Duration::ZERO;
    }

    /// Resets everything except the attributes.
    pub(super) fn reset(&mut self) {
        self.stop();
        self.forget_round_trip();
        self.rnr_until = None;
        self.backoff = 0;
        self.retries_left = self.retry_cnt;
        self.rnr_left = self.rnr_retry;
    }

    fn restart(&mut self, now: Time) {
        self.probe_at = now + self.probe_interval();
        self.timeout_at = self.ack_timeout.map_or(Time::NEVER, |t| now + t);
    }

    fn probe_interval(&self) -> Duration {
        let patience = self.smoothed.map(|rtt| rtt * 2 + self.variation * 4);
        let interval = match (patience, self.backoff) {
            (None, 0) => INITIAL_PROBE,
            (None, n) => INITIAL_RESEND.saturating_mul(1 << (n - 1).min(10)),
            (Some(patience), 0) => patience.max(PROBE_FLOOR),
            (Some(patience), n) => patience
                .max(RESEND_FLOOR)
                .saturating_mul(1 << (n - 1).min(10)),
        };
        interval.min(PROBE_CEILING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn ack_timeout_is_at_most_four_times_4096_ns_times_2_to_the_n() {
        let mut timers = Retransmit::new(14, 0, 0);
        timers.sent(at(0));
        timers.round_trip(Duration::from_secs(10));
        timers.progressed(at(0), true);
        let timeout = 4 * (4096 << 14);
        assert_eq!(timers.deadline(), Time(timeout));
        assert_eq!(timers.expire(Time(timeout - 1)), Expired::Nothing);
        assert_eq!(timers.expire(Time(timeout)), Expired::RetriesExceeded);
    }

    #[test]
    fn retry_cnt_expiries_are_survived_and_the_next_is_not() {
        let mut timers = Retransmit::new(14, 2, 0);
        timers.sent(at(0));
        let mut timeouts = 0;
        let mut now = at(0);
        loop {
            now = now + Duration::from_millis(300);
            match timers.expire(now) {
                Expired::Resend => timeouts += 1,
                Expired::Probe => {}
                Expired::RetriesExceeded => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(timeouts, 2);
    }

    #[test]
    fn timeout_0_never_gives_up() {
        let mut timers = Retransmit::new(0, 0, 0);
        timers.sent(at(0));
        for second in 1..1000 {
            assert_ne!(timers.expire(at(second * 2000)), Expired::RetriesExceeded);
        }
    }

    #[test]
    fn rnr_retry_7_is_for_ever_and_less_is_counted() {
        let mut timers = Retransmit::new(0, 0, 7);
        for _ in 0..1000 {
            assert!(timers.receiver_not_ready(at(0), RnrTimer::new(1)));
        }
        let mut timers = Retransmit::new(0, 0, 2);
        assert!(timers.receiver_not_ready(at(0), RnrTimer::new(1)));
        assert!(timers.receiver_not_ready(at(0), RnrTimer::new(1)));
        assert!(!timers.receiver_not_ready(at(0), RnrTimer::new(1)));
        timers.progressed(at(0), false);
        assert!(timers.receiver_not_ready(at(0), RnrTimer::new(1)));
    }

    #[test]
    fn rnr_wait_ends_after_the_timer_that_the_peer_gave() {
        let mut timers = Retransmit::new(14, 7, 7);
        timers.sent(at(0));
        assert!(timers.receiver_not_ready(at(0), RnrTimer::new(14)));
        assert_eq!(timers.deadline(), Time(1_280_000));
        assert_eq!(timers.expire(Time(1_279_999)), Expired::Nothing);
        assert_eq!(timers.expire(Time(1_280_000)), Expired::RnrOver);
    }

    #[test]
    fn probes_come_before_the_ack_timeout_and_back_off() {
        let mut timers = Retransmit::new(20, 0, 0);
        timers.round_trip(Duration::from_micros(50));
        timers.sent(at(0));
        let first = timers.deadline();
        assert!(first < at(10));
        assert_eq!(timers.expire(first), Expired::Probe);
        let second = timers.deadline();
        assert!(second.since(first) > first.since(at(0)));
        assert_eq!(timers.expire(second), Expired::Resend);
        assert!(timers.deadline().since(second) > second.since(first));
    }
}
