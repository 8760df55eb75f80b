//! Pacing of SENDs, WRITEs and READ requests on long paths.
//!
//! Without it, packets leave when acknowledgements arrive, up to 64 KiB at once and a whole window
//! after idle time. Such bursts overflow the queue of a switch that holds a part of what the path
//! carries in a round trip. A token bucket spreads the window over the round trip, as Linux's TCP
//! does: tokens are PSNs, and arrive at the rate of the window per round trip, times a gain.

use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::rc::congestion::INITIAL_WINDOW;
use crate::time::{Time, nanos};
use std::time::Duration;

/// Paths with a shorter round trip are not paced: a burst would take a timer each few microseconds.
const MIN_ROUND_TRIP: Duration = Duration::from_micros(500);

/// The data of a batch in bytes, at most: about one GSO batch.
const MAX_BATCH: u32 = 64 << 10;

/// The packets of a batch, at least.
const MIN_BATCH: u32 = 2;

/// The time that a batch takes, at most, as in Linux's TCP.
const BATCH_TIME: Duration = Duration::from_millis(1);

/// The least number of batches in a window.
const BATCHES_PER_WINDOW: u32 = 8;

/// The factors of the rate, in sixteenths: during slow start, and later. They are those of Linux's
/// TCP, 2 and 1.2: the window can grow, and acknowledgements that arrive late are caught up with.
const SLOW_START_GAIN: u64 = 32;
const GAIN: u64 = 19;
const GAIN_UNIT: u64 = 16;

/// The bucket holds this many batches, so that a timer which is late by the time of a batch does
/// not reduce the rate. That is up to 1 ms, and less where the rate carries 64 KiB in less time;
/// there acknowledgements add tokens between timers. A bucket for 1 ms of any rate would send an
/// eighth of the window after idle time: READs carried up to 3 points less at short queues. It
/// holds at least the initial window, which is sent at once after idle time too.
const BUCKET_BATCHES: u32 = 2;

/// The token bucket of a requester.
#[derive(Debug)]
pub(super) struct Pacing {
    /// The packets of a batch; 0 while the path is not paced.
    batch: u32,
    /// The time in which a token arrives, in nanoseconds.
    interval: u64,
    /// The window. A READ request beyond it does not delay later packets for longer than a round
    /// trip.
    window: u32,
    /// The smoothed round trip, in nanoseconds.
    round_trip: u64,
    /// The time at which the bucket was or will be empty.
    empty_at: Time,
    /// The last grant: the tokens, and the PSN from which they are used.
    granted: u32,
    first: Psn,
}

impl Default for Pacing {
    fn default() -> Self {
        Pacing {
            batch: 0,
            interval: 0,
            window: 0,
            round_trip: 0,
            empty_at: Time(0),
            granted: 0,
            first: Psn::default(),
        }
    }
}

impl Pacing {
    /// Whether packets are paced.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.batch > 0
    }

    /// Whether a path is paced, with a window of `window` packets and a shortest round trip of
    /// `shortest` nanoseconds.
    #[inline]
    pub(super) fn is_needed(window: u32, shortest: u64) -> bool {
        shortest >= nanos(MIN_ROUND_TRIP) && window >= BATCHES_PER_WINDOW
    }

    /// Sets the rate: `window` packets in each smoothed round trip of `smoothed` nanoseconds. All
    /// PSNs before `sent_end` are used.
    pub(super) fn set_rate(
        &mut self,
        sent_end: Psn,
        window: u32,
        smoothed: u64,
        is_slow_start: bool,
        mtu: Mtu,
    ) {
        if self.batch == 0 {
            (self.first, self.granted, self.empty_at) = (sent_end, 0, Time(0));
        }
        self.window = window;
        self.round_trip = smoothed;
        let gain = match is_slow_start {
            true => SLOW_START_GAIN,
            false => GAIN,
        };
        self.interval = (smoothed * GAIN_UNIT / (gain * u64::from(window))).max(1);
        let in_time = (nanos(BATCH_TIME) / self.interval) as u32;
        self.batch = in_time
            .min(window / BATCHES_PER_WINDOW)
            .min(MAX_BATCH / mtu.bytes() as u32)
            .max(MIN_BATCH);
    }

    /// Empties the bucket, and fills it at the rate of the window without a gain: no
    /// acknowledgement limits what is sent while a gap is repaired. All PSNs before `sent_end` are
    /// used.
    pub(super) fn pace_repair(&mut self, sent_end: Psn, now: Time) {
        self.interval = (self.round_trip / u64::from(self.window)).max(1);
        (self.first, self.granted, self.empty_at) = (sent_end, 0, now);
    }

    /// Stops pacing.
    pub(super) fn stop(&mut self) {
        self.batch = 0;
    }

    fn time_for(&self, packets: u32) -> u64 {
        self.interval * u64::from(packets)
    }

    /// Returns the time at which the bucket was or will be empty, with all PSNs before `sent_end`
    /// used.
    fn empty_at(&self, sent_end: Psn) -> Time {
        let used = sent_end.diff(self.first).max(0) as u32;
        self.empty_at
            .after_nanos(self.time_for(used.min(self.window)))
    }

    /// Returns the number of PSNs that may be used at `now`, with all before `sent_end` used.
    ///
    /// After an empty bucket that is at least a batch or none.
    pub(super) fn grant(&mut self, sent_end: Psn, now: Time) -> u32 {
        let used = sent_end.diff(self.first).max(0) as u32;
        let is_drained = used >= self.granted;
        let depth = (BUCKET_BATCHES * self.batch).max(INITIAL_WINDOW);
        let empty_at = self.empty_at(sent_end);
        let tokens = now.nanos_since(empty_at) / self.interval;
        let tokens = tokens.min(u64::from(depth)) as u32;
        self.empty_at = match tokens == depth {
            true => Time(now.0.saturating_sub(self.time_for(depth))),
            false => empty_at,
        };
        self.first = sent_end;
        self.granted = match is_drained && tokens < self.batch {
            true => 0,
            false => tokens,
        };
        self.granted
    }

    /// Returns the time at which the next batch may be sent after an empty bucket, with all PSNs
    /// before `sent_end` used.
    pub(super) fn resumes_at(&self, sent_end: Psn) -> Time {
        self.empty_at(sent_end)
            .after_nanos(self.time_for(self.batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u32 = 256;
    const LONG: Duration = Duration::from_millis(10);
    /// The packets of 64 KiB, fewer than the rate carries in a millisecond.
    const BATCH: u32 = 16;

    fn paced(window: u32, round_trip: Duration, in_slow_start: bool) -> Pacing {
        let mut pacing = Pacing::default();
        let first = Psn::new(0xff_fff0);
        let smoothed = nanos(round_trip);
        pacing.set_rate(first, window, smoothed, in_slow_start, Mtu::B4096);
        pacing
    }

    /// Uses all tokens for this time; timers are late by `late`. Returns the number of packets.
    fn send(pacing: &mut Pacing, time: Duration, late: Duration) -> u32 {
        let begins = Time(1 << 40);
        let (mut now, mut sent) = (begins, 0);
        let first = pacing.first;
        while now < begins + time {
            sent += pacing.grant(first + sent, now);
            now = pacing.resumes_at(first + sent) + late;
        }
        sent
    }

    #[test]
    fn rate_is_that_of_the_window_times_the_gain() {
        for (in_slow_start, gain) in [(false, GAIN), (true, SLOW_START_GAIN)] {
            let mut pacing = paced(WINDOW, LONG, in_slow_start);
            let sent = send(&mut pacing, LONG * 100, Duration::ZERO);
            // The interval between two packets is rounded down to nanoseconds.
            let expected = WINDOW * 100 * gain as u32 / GAIN_UNIT as u32;
            let most = expected + BUCKET_BATCHES * BATCH + expected / 1000;
            assert!((expected - BATCH..=most).contains(&sent), "{sent}");
        }
    }

    #[test]
    fn late_timers_do_not_reduce_the_rate() {
        let mut pacing = paced(WINDOW, LONG, false);
        let exact = send(&mut pacing, LONG * 100, Duration::ZERO);
        let mut pacing = paced(WINDOW, LONG, false);
        let late = send(&mut pacing, LONG * 100, Duration::from_micros(300));
        assert!(late + BATCH >= exact, "{late} {exact}");
    }

    #[test]
    fn idle_bucket_holds_two_batches() {
        let mut pacing = paced(WINDOW, LONG, false);
        let first = pacing.first;
        assert_eq!(pacing.grant(first, Time(1 << 40)), 2 * BATCH);
        assert_eq!(pacing.grant(first + 2 * BATCH, Time(1 << 40)), 0);
        assert_eq!(pacing.grant(first + 2 * BATCH, Time(1 << 41)), 2 * BATCH);
    }

    #[test]
    fn idle_bucket_holds_the_initial_window() {
        let mut pacing = paced(WINDOW / 8, LONG, false);
        assert!(pacing.batch * BUCKET_BATCHES < INITIAL_WINDOW);
        assert_eq!(pacing.grant(pacing.first, Time(1 << 40)), INITIAL_WINDOW);
    }

    #[test]
    fn empty_bucket_permits_nothing_before_a_whole_batch() {
        let mut pacing = paced(WINDOW, LONG, false);
        let end = pacing.first + pacing.grant(pacing.first, Time(1 << 40));
        let at = pacing.resumes_at(end);
        assert_eq!(pacing.grant(end, Time(at.0 - 1)), 0);
        assert_eq!(pacing.grant(end, at), BATCH);
    }

    #[test]
    fn batch_lasts_a_millisecond_and_has_two_packets_to_64_kib() {
        assert_eq!(paced(1 << 16, LONG, false).batch, BATCH);
        assert_eq!(paced(64, LONG, false).batch, 7);
        assert_eq!(paced(8, LONG, false).batch, MIN_BATCH);
        // Several batches make a window.
        assert_eq!(paced(64, Duration::from_millis(1), false).batch, 8);
    }

    #[test]
    fn short_path_and_small_window_are_not_paced() {
        assert!(Pacing::is_needed(WINDOW, nanos(MIN_ROUND_TRIP)));
        assert!(!Pacing::is_needed(WINDOW, nanos(MIN_ROUND_TRIP) / 2));
        assert!(!Pacing::is_needed(BATCHES_PER_WINDOW - 1, nanos(LONG)));
    }

    #[test]
    fn request_beyond_the_window_delays_for_a_round_trip_at_most() {
        let mut pacing = paced(WINDOW, LONG, false);
        let (first, now) = (pacing.first, Time(1 << 40));
        pacing.grant(first, now);
        assert!(pacing.resumes_at(first + 100 * WINDOW) <= now + LONG);
    }
}
