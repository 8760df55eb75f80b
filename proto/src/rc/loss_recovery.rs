//! Loss recovery: when to retransmit, how often, and when to give up (9.7.5.2.8, 9.7.6.1).
//!
//! It has the retransmission timers, their back-off, the retry counters and the round-trip
//! estimator. What is retransmitted is the requester's decision.
//!
//! The local ACK timeout is designed for hardware and fabrics: applications usually set 67 ms. A
//! packet lost at the tail of a message leaves no gap for the responder to report, so a probe is
//! sent after a few round trips, as in RFC 8985. It is an ordinary retransmission, which the
//! specification permits at any time, and does not count against `retry_cnt`. The ACK timeout does,
//! and so does a gap that is reported again without progress.
//!
//! SRTT and RTTVAR are those of RFC 6298, from packets that were sent once (Karn's algorithm). The
//! timeout is 2 SRTT + 4 RTTVAR: the probe timeout of RFC 8985, 2 SRTT, and the allowance for
//! variation of RFC 6298. Each expiry doubles it once there is an estimate; the ACK timeout is not
//! doubled. The back-off ends with a valid sample or the report of a gap, not with an
//! acknowledgement: an acknowledgement of a retransmitted packet does not show that the timeout
//! exceeds the round trip.

use super::reordering::Reordering;
use crate::psn::Psn;
use crate::time::{Time, nanos};
use crate::wire::RnrTimer;
use std::collections::VecDeque;
use std::time::Duration;

/// The unit of the local ACK timeout (9.7.6.1.3): 4.096 us.
const ACK_TIMEOUT_UNIT: Duration = Duration::from_nanos(4096);

/// The factor between the requested ACK timeout and the one in use.
///
/// The specification permits up to four times the requested value (9.7.6.1.3), and NICs use it. A
/// shorter timeout could declare a distant peer on a busy host dead. Losses are still detected
/// sooner, by the probe.
const ACK_TIMEOUT_FACTOR: u32 = 4;

/// The longest ACK timeout to which the factor extends a shorter requested one. A longer requested
/// timeout is used unchanged: a busy host answers sooner, and the program expects a report about a
/// lost peer.
const MAX_EXTENDED_ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// The minimum ACK timeout, also where it exceeds four times the requested one: a descheduled peer
/// could be declared dead sooner.
const ACK_TIMEOUT_FLOOR: Duration = Duration::from_millis(10);

/// The retransmission timeout without a round-trip estimate (RFC 6298, 2.1), and the largest seed.
///
/// A shorter timeout would retransmit the first packets on a long path, and none of them would be
/// a valid sample.
const INITIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Without a round-trip estimate, and while the timer is backed off, a probe leaves this fraction
/// (1/8) of the ACK timeout for its answer: the ACK timeout counts against `retry_cnt`.
const PROBE_MARGIN: u64 = 8;
/// The minimum delay of a probe: the granularity of timers (G in RFC 6298, 1 ms in RFC 9002).
const TIMER_GRANULARITY: Duration = Duration::from_millis(1);
/// The minimum retransmission timeout, which begins with the probe: a peer that is descheduled for
/// this time costs no more than the probe. RFC 6298 (2.4) has 1 s, for wide-area paths.
const MINIMUM_TIMEOUT: Duration = Duration::from_millis(10);
/// The maximum delay of a probe or a full retransmission, unless the round-trip estimate requires
/// more.
const TIMEOUT_CEILING: Duration = Duration::from_secs(1);

/// Two reports of one gap within this time, or within a round trip, are duplicates.
const DUPLICATE_REPORT: Duration = Duration::from_micros(100);

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
    Retransmit,
    /// Repair the reported gap: its packet is lost, not only late.
    RepairGap,
    /// The RNR wait is over: continue.
    RnrOver,
    /// `retry_cnt` is exhausted.
    RetriesExceeded,
}

/// The round-trip estimator of RFC 6298. Durations are in nanoseconds.
#[derive(Debug, Default)]
struct RoundTrip {
    smoothed: Option<u64>,
    shortest: Option<u64>,
    variation: u64,
    /// The timeout that the round trips require, once one was measured, or a seed.
    timeout: Option<u64>,
    /// The packets whose round trip is being measured, in order, and when they were sent.
    timed: VecDeque<(Psn, Time)>,
    /// A sample from this PSN on updates the estimate: the packet was sent after the last update.
    next_update: Option<Psn>,
}

/// A round-trip sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RoundTripSample {
    /// The round trip in nanoseconds.
    pub(super) took: u64,
    /// Whether it is the first of a round trip, and has updated the estimate.
    pub(super) begins_round: bool,
}

impl RoundTrip {
    #[inline]
    fn update(&mut self, sample: u64) {
        self.shortest = Some(self.shortest.map_or(sample, |it| it.min(sample)));
        let (smoothed, variation) = match self.smoothed {
            None => (sample, sample / 2),
            Some(smoothed) => (
                (smoothed * 7 + sample) / 8,
                (self.variation * 3 + smoothed.abs_diff(sample)) / 4,
            ),
        };
        self.smoothed = Some(smoothed);
        self.variation = variation;
        self.timeout = Some(smoothed * 2 + variation * 4);
    }
}

/// The loss recovery of a requester.
#[derive(Debug)]
pub(super) struct LossRecovery {
    /// The ACK timeout in nanoseconds, if one is set.
    ack_timeout: Option<u64>,
    retry_cnt: u8,
    retries_left: u8,
    rnr_retry: u8,
    rnr_retries_left: u8,
    round_trip: RoundTrip,
    /// Expired timers since the last valid sample or evidence of a loss: the exponent of the
    /// back-off.
    backoff: u32,
    /// Whether a probe was sent since the last progress.
    has_probed: bool,
    next_timeout_at: Time,
    timeout_at: Time,
    rnr_until: Option<Time>,
    /// When the last packet was sent.
    sent_at: Time,
    /// The gap that last caused a retransmission, and when.
    gap: Option<(Psn, Time)>,
    reordering: Reordering,
}

impl LossRecovery {
    /// Returns stopped recovery. `timeout` is the exponent of the ACK timeout, 0 to 31: 4.096 us x
    /// 2^n, 0 for none. The retry counts are from 0 to 7; an `rnr_retry` of 7 means no limit.
    pub(super) fn new(timeout: u8, retry_cnt: u8, rnr_retry: u8) -> Self {
        let mut recovery = LossRecovery {
            ack_timeout: None,
            retry_cnt: 0,
            retries_left: 0,
            rnr_retry: 0,
            rnr_retries_left: 0,
            round_trip: RoundTrip::default(),
            backoff: 0,
            has_probed: false,
            next_timeout_at: Time::NEVER,
            timeout_at: Time::NEVER,
            rnr_until: None,
            sent_at: Time(0),
            gap: None,
            reordering: Reordering::default(),
        };
        recovery.configure(timeout, retry_cnt, rnr_retry);
        recovery
    }

    /// Applies changed attributes and resets the retry counters. Running timers continue.
    pub(super) fn configure(&mut self, timeout: u8, retry_cnt: u8, rnr_retry: u8) {
        self.ack_timeout = match timeout & 31 {
            0 => None,
            n => {
                let requested = ACK_TIMEOUT_UNIT * (1 << n);
                let extended = (requested * ACK_TIMEOUT_FACTOR)
                    .clamp(ACK_TIMEOUT_FLOOR, MAX_EXTENDED_ACK_TIMEOUT);
                Some(nanos(requested.max(extended)))
            }
        };
        self.retry_cnt = retry_cnt;
        self.retries_left = retry_cnt;
        self.rnr_retry = rnr_retry;
        self.rnr_retries_left = rnr_retry;
    }

    /// Sets the retransmission timeout until the first round-trip sample, at most
    /// [`INITIAL_TIMEOUT`]. The timer continues if it runs.
    pub(super) fn seed_timeout(&mut self, timeout: Duration) {
        if self.round_trip.smoothed.is_none() {
            self.round_trip.timeout = Some(nanos(timeout.min(INITIAL_TIMEOUT)));
        }
    }

    /// Starts the timers, unless they run, when a packet is sent.
    #[inline]
    pub(super) fn sent(&mut self, now: Time) {
        self.sent_at = now;
        if self.next_timeout_at == Time::NEVER {
            self.restart(now);
        }
    }

    /// Whether nothing was sent for longer than the timeout without back-off.
    #[inline]
    pub(super) fn was_idle(&self, now: Time) -> bool {
        self.round_trip
            .timeout
            .is_some_and(|timeout| now.nanos_since(self.sent_at) > timeout)
    }

    /// Handles progress of the acknowledgements; `outstanding` is whether packets remain in
    /// flight.
    #[inline]
    pub(super) fn progressed(&mut self, now: Time, outstanding: bool) {
        self.retries_left = self.retry_cnt;
        self.rnr_retries_left = self.rnr_retry;
        self.has_probed = false;
        if outstanding {
            self.restart(now);
        } else {
            self.stop();
        }
    }

    /// Stops the timers: no answer is outstanding.
    #[inline]
    pub(super) fn stop(&mut self) {
        self.reordering.clear();
        self.next_timeout_at = Time::NEVER;
        self.timeout_at = Time::NEVER;
    }

    /// Starts to measure the round trip of a packet that the peer answers, unless that of one of
    /// the `spacing` packets before it is being measured.
    #[inline]
    pub(super) fn measure(&mut self, psn: Psn, spacing: u32, now: Time) {
        let last = self.round_trip.timed.back();
        if last.is_none_or(|(last, _)| psn.diff(*last) >= spacing as i32) {
            self.round_trip.timed.push_back((psn, now));
        }
    }

    /// Stops the measurement: an answer could be to either transmission (Karn's algorithm).
    pub(super) fn stop_measuring(&mut self) {
        self.round_trip.timed.clear();
    }

    /// Ends the measurements of packets before `una`, with all before `sent_end` sent.
    ///
    /// Returns the sample of the last of them, which waited the least for a common acknowledgement.
    #[inline]
    pub(super) fn measured(
        &mut self,
        una: Psn,
        sent_end: Psn,
        now: Time,
    ) -> Option<RoundTripSample> {
        let round_trip = &mut self.round_trip;
        let mut last = None;
        while let Some(timed) = round_trip.timed.front().filter(|(psn, _)| psn.before(una)) {
            last = Some(*timed);
            round_trip.timed.pop_front();
        }
        let (psn, sent) = last?;
        let took = now.nanos_since(sent);
        let begins_round = round_trip.next_update.is_none_or(|next| !psn.before(next));
        if begins_round {
            round_trip.next_update = Some(sent_end);
            round_trip.update(took);
        }
        self.backoff = 0;
        Some(RoundTripSample { took, begins_round })
    }

    /// Records that the gap at `psn` caused a retransmission.
    ///
    /// A gap shows that packets are lost, not late, so the back-off ends.
    pub(super) fn gap_retransmitted(&mut self, psn: Psn, now: Time) {
        self.gap = Some((psn, now));
        self.backoff = 0;
    }

    /// Handles the report of a gap at `psn`, with all packets before `sent_end` sent. Returns
    /// whether to wait for [`Expired::RepairGap`]: the path is known to reorder, so the packet may
    /// be late.
    pub(super) fn tolerates_gap(&mut self, psn: Psn, sent_end: Psn, now: Time) -> bool {
        let shortest = self.round_trip.shortest;
        shortest.is_some_and(|it| self.reordering.gap_reported(psn, sent_end, now, it))
    }

    /// Whether the gap at `psn` was reported, and its repair waits.
    pub(super) fn awaits_late_packet(&self, psn: Psn) -> bool {
        self.reordering.awaits(psn)
    }

    /// Records that the gap at `psn` is repaired, with all packets before `sent_end` sent.
    pub(super) fn gap_repaired(&mut self, psn: Psn, sent_end: Psn, now: Time) {
        self.gap_retransmitted(psn, now);
        self.reordering.repaired(psn, sent_end, now);
    }

    /// Records that a packet or request whose last PSN is before `end` is sent again, for any
    /// reason.
    #[cold]
    pub(super) fn retransmitted(&mut self, end: Psn, sent_end: Psn) {
        self.reordering.retransmitted(end, sent_end);
    }

    /// Handles the acknowledgement of all packets before `una`. Returns whether the last repair of
    /// a gap was needless: its packet was late.
    #[inline]
    pub(super) fn acknowledged(&mut self, una: Psn, now: Time) -> bool {
        let shortest = self.round_trip.shortest;
        self.reordering.acknowledged(una, now, shortest)
    }

    /// Ends the back-off: the answer to a retransmission shows that others were lost, not late.
    pub(super) fn loss_confirmed(&mut self) {
        self.backoff = 0;
    }

    /// Restarts the timer for the requests that follow the answer to a probe. The back-off
    /// continues, since nothing was delivered.
    pub(super) fn probe_answered(&mut self, now: Time) {
        self.next_timeout_at = now.after_nanos(self.next_timeout());
    }

    /// Whether a retransmission for the gap at `psn` is too recent for another report to be new.
    pub(super) fn is_duplicate_report(&self, psn: Psn, now: Time) -> bool {
        let reported = |(gap, at): (Psn, Time)| gap == psn && self.is_recent(at, now);
        self.gap.is_some_and(reported)
    }

    /// Whether the answer to a packet sent at `sent` may still be in flight.
    pub(super) fn is_recent(&self, sent: Time, now: Time) -> bool {
        let round_trip = self.round_trip.smoothed.unwrap_or(0);
        now.nanos_since(sent) < round_trip.max(nanos(DUPLICATE_REPORT))
    }

    /// The smoothed round-trip time, once one was measured.
    pub(super) fn smoothed_round_trip(&self) -> Option<Duration> {
        self.round_trip.smoothed.map(Duration::from_nanos)
    }

    /// The retransmission timeout without back-off.
    pub(super) fn timeout(&self) -> Duration {
        let timeout = self.round_trip.timeout.map(Duration::from_nanos);
        timeout.unwrap_or(INITIAL_TIMEOUT)
    }

    /// The shortest and the smoothed round-trip time in nanoseconds, once one was measured.
    #[inline]
    pub(super) fn round_trips(&self) -> Option<(u64, u64)> {
        Some((self.round_trip.shortest?, self.round_trip.smoothed?))
    }

    /// The ACK timeout, if one is set.
    pub(super) fn ack_timeout(&self) -> Option<Duration> {
        self.ack_timeout.map(Duration::from_nanos)
    }

    /// Starts the RNR wait. Returns false when `rnr_retry` is exhausted.
    pub(super) fn receiver_not_ready(&mut self, now: Time, timer: RnrTimer) -> bool {
        if self.rnr_retry != RNR_RETRY_FOREVER {
            if self.rnr_retries_left == 0 {
                return false;
            }
            self.rnr_retries_left -= 1;
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
    #[inline]
    pub(super) fn waits_for_receiver(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// The time at which [`LossRecovery::expire`] is to be called next.
    #[inline]
    pub(super) fn deadline(&self) -> Time {
        match self.rnr_until {
            Some(until) => until,
            None => (self.next_timeout_at.min(self.timeout_at)).min(self.reordering.deadline()),
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
        if self.reordering.expire(now) {
            return Expired::RepairGap;
        }
        if now >= self.timeout_at {
            if self.retries_left == 0 {
                self.stop();
                return Expired::RetriesExceeded;
            }
            self.retries_left -= 1;
            self.backoff += 1;
            self.restart(now);
            return Expired::Retransmit;
        }
        if now >= self.next_timeout_at {
            let expired = match self.has_probed {
                false => Expired::Probe,
                true => Expired::Retransmit,
            };
            self.has_probed = true;
            self.backoff += 1;
            self.next_timeout_at = now.after_nanos(self.next_timeout());
            return expired;
        }
        Expired::Nothing
    }

    /// Resets the round-trip estimate after a change of path.
    pub(super) fn path_changed(&mut self) {
        self.round_trip = RoundTrip::default();
        self.backoff = 0;
        self.reordering = Reordering::default();
    }

    /// Stops the timers and resets the counters and the round-trip estimate; the attributes stay.
    pub(super) fn reset(&mut self) {
        self.stop();
        self.round_trip = RoundTrip::default();
        self.rnr_until = None;
        self.backoff = 0;
        self.has_probed = false;
        self.retries_left = self.retry_cnt;
        self.rnr_retries_left = self.rnr_retry;
    }

    fn restart(&mut self, now: Time) {
        self.next_timeout_at = now.after_nanos(self.next_timeout());
        let timeout_at = |timeout| now.after_nanos(timeout);
        self.timeout_at = self.ack_timeout.map_or(Time::NEVER, timeout_at);
    }

    /// The time until the next probe or, if one was sent since the last progress, until a full
    /// retransmission; in nanoseconds.
    #[inline]
    fn next_timeout(&self) -> u64 {
        let interval = match self.round_trip.timeout {
            None => nanos(INITIAL_TIMEOUT),
            Some(estimate) => {
                let floor = match self.has_probed {
                    true => nanos(MINIMUM_TIMEOUT),
                    false => nanos(TIMER_GRANULARITY),
                };
                // The timer that sent the probe does not double the retransmission timeout.
                let doublings = self.backoff.saturating_sub(self.has_probed.into()).min(10);
                // A round trip longer than the ACK timeout needs no probe before it.
                if doublings == 0 && !self.has_probed {
                    return estimate.max(floor);
                }
                let doubled = estimate.max(floor).saturating_mul(1 << doublings);
                doubled.min(nanos(TIMEOUT_CEILING).max(estimate))
            }
        };
        let before = |timeout: u64| timeout - timeout / PROBE_MARGIN;
        self.ack_timeout
            .map_or(interval, |timeout| interval.min(before(timeout)))
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
        let mut recovery = LossRecovery::new(14, 0, 0);
        recovery.sent(at(0));
        recovery.round_trip.update(nanos(Duration::from_secs(10)));
        recovery.progressed(at(0), true);
        let timeout = 4 * (4096 << 14);
        assert_eq!(recovery.deadline(), Time(timeout));
        assert_eq!(recovery.expire(Time(timeout - 1)), Expired::Nothing);
        assert_eq!(recovery.expire(Time(timeout)), Expired::RetriesExceeded);
    }

    #[test]
    fn ack_timeout_is_between_one_and_four_times_the_request() {
        for n in 12..32 {
            let requested = Duration::from_nanos(4096 << n);
            let used = LossRecovery::new(n, 7, 7).ack_timeout().unwrap();
            assert!(used >= requested && used <= 4 * requested, "{n}: {used:?}");
            assert!(
                used <= requested.max(MAX_EXTENDED_ACK_TIMEOUT),
                "{n}: {used:?}"
            );
        }
    }

    #[test]
    fn retry_cnt_expiries_are_survived_and_the_next_is_not() {
        let mut recovery = LossRecovery::new(14, 2, 0);
        recovery.sent(at(0));
        let mut timeouts = 0;
        let mut now = at(0);
        loop {
            now = now + Duration::from_millis(300);
            match recovery.expire(now) {
                Expired::Retransmit => timeouts += 1,
                Expired::Probe => {}
                Expired::RetriesExceeded => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(timeouts, 2);
    }

    #[test]
    fn timeout_0_never_gives_up() {
        let mut recovery = LossRecovery::new(0, 0, 0);
        recovery.sent(at(0));
        for second in 1..1000 {
            assert_ne!(recovery.expire(at(second * 2000)), Expired::RetriesExceeded);
        }
    }

    #[test]
    fn rnr_retry_7_is_for_ever_and_less_is_counted() {
        let mut recovery = LossRecovery::new(0, 0, 7);
        for _ in 0..1000 {
            assert!(recovery.receiver_not_ready(at(0), RnrTimer::new(1)));
        }
        let mut recovery = LossRecovery::new(0, 0, 2);
        assert!(recovery.receiver_not_ready(at(0), RnrTimer::new(1)));
        assert!(recovery.receiver_not_ready(at(0), RnrTimer::new(1)));
        assert!(!recovery.receiver_not_ready(at(0), RnrTimer::new(1)));
        recovery.progressed(at(0), false);
        assert!(recovery.receiver_not_ready(at(0), RnrTimer::new(1)));
    }

    #[test]
    fn rnr_wait_ends_after_the_timer_that_the_peer_gave() {
        let mut recovery = LossRecovery::new(14, 7, 7);
        recovery.sent(at(0));
        assert!(recovery.receiver_not_ready(at(0), RnrTimer::new(14)));
        assert_eq!(recovery.deadline(), Time(1_280_000));
        assert_eq!(recovery.expire(Time(1_279_999)), Expired::Nothing);
        assert_eq!(recovery.expire(Time(1_280_000)), Expired::RnrOver);
    }

    /// Sends a packet at `now` over a path without loss that has this round trip, and
    /// handles its acknowledgement. Returns how often the packet was sent again.
    fn send_and_acknowledge(recovery: &mut LossRecovery, now: &mut Time, took: Duration) -> u32 {
        // Each packet has a PSN of its own.
        let psn = Psn::new(now.0 as u32 % (1 << 23));
        let answer = *now + took;
        recovery.measure(psn, 1, *now);
        recovery.sent(*now);
        let mut again = 0;
        while recovery.deadline() < answer {
            let deadline = recovery.deadline();
            assert_ne!(recovery.expire(deadline), Expired::Nothing);
            recovery.stop_measuring();
            again += 1;
        }
        recovery.measured(psn.next(), psn.next(), answer);
        recovery.progressed(answer, false);
        *now = answer;
        again
    }

    #[test]
    fn back_off_is_kept_until_a_valid_sample() {
        let mut recovery = LossRecovery::new(0, 0, 0);
        let mut now = at(0);
        for _ in 0..10 {
            let again = send_and_acknowledge(&mut recovery, &mut now, Duration::from_micros(50));
            assert_eq!(again, 0);
        }
        // The path becomes longer. Packets that are sent again are no samples, so without the
        // back-off each packet would be.
        let longer = Duration::from_millis(100);
        let mut again = (0..10).map(|_| send_and_acknowledge(&mut recovery, &mut now, longer));
        assert!(again.next().unwrap() > 0);
        assert!(again.any(|count| count == 0));
        assert_eq!(again.sum::<u32>(), 0);
        assert_eq!(recovery.backoff, 0);
        assert!(recovery.smoothed_round_trip().unwrap() > Duration::from_millis(10));
    }

    #[test]
    fn first_packets_on_a_long_path_are_sent_once() {
        for timeout in [0, 14, 20] {
            let mut recovery = LossRecovery::new(timeout, 7, 0);
            let mut now = at(0);
            for _ in 0..10 {
                let took = Duration::from_millis(200);
                assert_eq!(send_and_acknowledge(&mut recovery, &mut now, took), 0);
            }
        }
    }

    #[test]
    fn seed_applies_until_the_first_sample() {
        let mut recovery = LossRecovery::new(0, 7, 0);
        recovery.seed_timeout(Duration::from_secs(9));
        assert_eq!(recovery.timeout(), INITIAL_TIMEOUT);
        recovery.seed_timeout(Duration::from_millis(150));
        recovery.sent(at(0));
        assert_eq!(recovery.deadline(), at(150));
        assert_eq!(recovery.round_trips(), None);
        recovery.stop();
        let mut now = at(1_000);
        let took = Duration::from_millis(100);
        assert_eq!(send_and_acknowledge(&mut recovery, &mut now, took), 0);
        assert_eq!(recovery.timeout(), took * 2 + took / 2 * 4);
        recovery.seed_timeout(Duration::from_millis(150));
        assert_eq!(recovery.timeout(), took * 4);
        recovery.path_changed();
        assert_eq!(recovery.timeout(), INITIAL_TIMEOUT);
    }

    #[test]
    fn peer_that_pauses_for_10_ms_costs_one_probe() {
        let mut recovery = LossRecovery::new(14, 7, 0);
        recovery.round_trip.update(nanos(Duration::from_micros(50)));
        let mut now = at(0);
        let again = send_and_acknowledge(&mut recovery, &mut now, Duration::from_millis(10));
        assert_eq!(again, 1);
    }

    #[test]
    fn minimum_retransmission_timeout_does_not_delay_the_probe_after_progress() {
        let mut recovery = LossRecovery::new(20, 0, 0);
        recovery.round_trip.update(nanos(Duration::from_micros(50)));
        recovery.sent(at(0));
        let first = recovery.deadline();
        assert_eq!(recovery.expire(first), Expired::Probe);
        // The back-off continues without a valid sample.
        recovery.progressed(at(2), true);
        assert_eq!(recovery.deadline(), at(2) + 2 * first.since(at(0)));
        assert_eq!(recovery.expire(recovery.deadline()), Expired::Probe);
        recovery.loss_confirmed();
        recovery.progressed(at(10), true);
        assert_eq!(recovery.deadline(), at(10) + first.since(at(0)));
    }

    #[test]
    fn probes_come_before_the_ack_timeout_and_back_off() {
        let mut recovery = LossRecovery::new(20, 0, 0);
        recovery.round_trip.update(nanos(Duration::from_micros(50)));
        recovery.sent(at(0));
        let first = recovery.deadline();
        assert!(first < at(10));
        assert_eq!(recovery.expire(first), Expired::Probe);
        let second = recovery.deadline();
        assert!(second.since(first) > first.since(at(0)));
        assert_eq!(recovery.expire(second), Expired::Retransmit);
        assert!(recovery.deadline().since(second) > second.since(first));
    }
}
