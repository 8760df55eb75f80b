//! Adaptive polling: how the progress thread sleeps, by the calls that the program makes.
//!
//! While the program polls, the thread *relies* on it to receive packets: it sleeps for a bounded
//! time ([`Mode::PollersReceive`]), and then *checks* whether packets are waiting although the
//! program made no call. Otherwise it receives itself ([`Mode::Receiving`]).

use super::contention::Contention;
use super::handoff::{Handoff, Mode};
use super::limits::{
    BUSY_POLL, BUSY_POLL_EMPTY_POLLS, BUSY_POLLS, CHECK_INTERVAL, EMPTY_POLLS_AFTER_ARM,
    INTERVAL_PER_COST, LONG_MESSAGE, MAX_BUSY_POLL, MAX_CHECK_BACK_OFF, MAX_CHECK_INTERVAL,
    MAX_SPIN_BACK_OFF, RECEIVE_PERIOD,
};
use super::polling::Polling;
use std::time::Duration;
use urxe_proto::time::Time;

/// Trials of busy polling without yields while contention is expected.
///
/// A wake-up costs more than a short spin. If the peer runs on another processor, the next packet
/// ends the spin. If the peer needs this processor, no packet arrives: the trial fails, and doubles
/// the number of packets before the next trial.
#[derive(Debug, Default)]
struct SpinTrials {
    /// Whether the thread spins until the next packet.
    is_spinning: bool,
    /// The number of packets before the next trial.
    skip: u32,
    /// The value of `skip` after the last failure.
    back_off: u32,
}

impl SpinTrials {
    /// Records a packet that arrived shortly after the last one.
    fn received(&mut self) {
        if self.is_spinning {
            self.back_off = 0;
        } else if self.skip == 0 {
            self.is_spinning = true;
        } else {
            self.skip -= 1;
        }
    }

    /// Records that the thread is about to sleep, so that a trial in progress has failed.
    fn end(&mut self) {
        if std::mem::take(&mut self.is_spinning) {
            self.back_off = (2 * self.back_off).clamp(1, MAX_SPIN_BACK_OFF);
            self.skip = self.back_off;
        }
    }
}

/// The state of adaptive polling.
#[derive(Default)]
pub(crate) struct AdaptivePolling {
    polls: u64,
    /// The value of [`Polling::spent`] at `polls_at`.
    spent: Duration,
    /// The time at which `polls` and `spent` were read.
    polls_at: Time,
    /// The number of awaited writes that the program's polls have received, see
    /// [`Polling::detector_hits`].
    hits: u64,
    returns: u64,
    /// The number of requests for a notification, and the number of empty polls when that number
    /// was first read.
    arms: u64,
    empty_polls: u64,
    /// The time until which the thread watches the sockets, however often the program polls.
    receives_until: Time,
    /// The time at which the thread last received packets while watching.
    received_at: Time,
    /// Whether the time between the last two receptions was short ([`Self::busy_poll_time`]).
    has_short_gap: bool,
    contention: Contention,
    spins: SpinTrials,
    /// Whether the last packets were part of a long message ([`LONG_MESSAGE`]).
    is_long: bool,
    /// The bytes that the process had received at `received_at`.
    bytes: u64,
    /// The smoothed duration of an empty poll of this thread while watching.
    poll_time: Duration,
    /// The smoothed processor time of one check.
    check_cost: Duration,
    /// The thread's processor time at the last check, if the thread has been yielding since.
    own_time: Option<Duration>,
    /// The interval between checks, in units of [`CHECK_INTERVAL`].
    check_back_off: u32,
}

/// The processor times from which the length of a sleep is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTimes {
    /// The processor time of the progress thread.
    pub(crate) thread: Duration,
    /// The processor time of the process.
    pub(crate) process: Duration,
}

/// One sleep of the thread.
pub(crate) struct Interval {
    /// The longest duration of the sleep, in the modes that bound it.
    pub(crate) limit: Duration,
    /// Whether the thread polls instead of sleeping, since more packets are expected.
    pub(crate) busy_polls: bool,
    /// The state at its begin, if the thread relies on the program to receive.
    relied_on: Option<Start>,
}

struct Start {
    at: Time,
    calls: u64,
    /// The processor time of the process.
    spent: Duration,
}

impl AdaptivePolling {
    /// Chooses how to sleep, from the calls of the program since the last choice.
    pub(crate) fn choose(&mut self, polling: &Polling, handoff: &Handoff, now: Time) -> Mode {
        let polls = self.polls_all_the_time(polling, now) && now >= self.receives_until;
        let ignored_arms = self.arms_before_polls(polling, handoff.arms());
        let polls_memory = polling.polls_memory();
        handoff.choose(polls, polls_memory, ignored_arms, &mut self.returns)
    }

    /// Returns `arms`, the number of requests for a notification, if the program went on polling
    /// after the last one, and otherwise 0.
    ///
    /// A program that polls one queue and uses another one by events leaves the second one armed.
    /// Its polls receive the packets of both.
    fn arms_before_polls(&mut self, polling: &Polling, arms: u64) -> u64 {
        let empty_polls = polling.empty_polls();
        if std::mem::replace(&mut self.arms, arms) != arms {
            self.empty_polls = empty_polls;
        }
        let polled = empty_polls.wrapping_sub(self.empty_polls);
        if polled >= EMPTY_POLLS_AFTER_ARM {
            arms
        } else {
            0
        }
    }

    /// Returns whether the program polls all the time.
    fn polls_all_the_time(&mut self, polling: &Polling, now: Time) -> bool {
        let (polls, spent) = (polling.polls(), polling.spent(now));
        let polled = polls.wrapping_sub(self.polls);
        let elapsed = now.since(self.polls_at);
        // Where each poll takes long, there are few of them.
        let for_long = spent.saturating_sub(self.spent) >= elapsed / 2;
        let is_over = elapsed >= CHECK_INTERVAL;
        if polled >= BUSY_POLLS || is_over {
            (self.polls, self.spent, self.polls_at) = (polls, spent, now);
        }
        let hits = polling.detector_hits();
        if std::mem::replace(&mut self.hits, hits) != hits {
            self.receives_until = now;
        }
        if polling.take_polls_memory() {
            self.receives_until = now + RECEIVE_PERIOD;
        }
        polled >= BUSY_POLLS || (is_over && for_long)
    }

    /// Begins a sleep in `mode`. `times` reads the processor times.
    pub(crate) fn begin_sleep(
        &mut self,
        polling: &Polling,
        mode: Mode,
        now: Time,
        times: impl FnOnce() -> CpuTimes,
    ) -> Interval {
        if mode != Mode::PollersReceive {
            self.own_time = None;
            self.check_back_off = 0;
            let busy_polls = mode == Mode::Receiving && self.busy_polls(now);
            if !busy_polls {
                self.spins.end();
            }
            return Interval {
                limit: CHECK_INTERVAL,
                busy_polls,
                relied_on: None,
            };
        }
        let times = times();
        Interval {
            limit: self.next_interval(times.thread),
            busy_polls: false,
            relied_on: Some(Start {
                at: now,
                calls: polling.calls(),
                spent: times.process,
            }),
        }
    }

    /// Returns the time until the next check of a program that polls: checks take at most a
    /// twentieth of a processor's time, as far as [`MAX_CHECK_INTERVAL`] permits.
    fn next_interval(&mut self, own_time: Duration) -> Duration {
        if let Some(before) = self.own_time.replace(own_time) {
            let took = own_time.saturating_sub(before).min(MAX_CHECK_INTERVAL);
            self.check_cost = (self.check_cost * 7 + took) / 8;
        }
        self.check_back_off = (2 * self.check_back_off).clamp(1, MAX_CHECK_BACK_OFF);
        let least = CHECK_INTERVAL * self.check_back_off;
        (self.check_cost * INTERVAL_PER_COST).clamp(least, MAX_CHECK_INTERVAL)
    }

    /// Records that packets are waiting although the program was relied on to receive them.
    /// `is_armed` is whether the program may sleep until a notification; `spent` reads the
    /// processor time of the process.
    pub(crate) fn found_packets(
        &mut self,
        polling: &Polling,
        interval: &Interval,
        is_armed: bool,
        now: Time,
        spent: impl FnOnce() -> Duration,
    ) {
        if interval.program_computed(polling, now, spent) {
            self.receives_until = now + RECEIVE_PERIOD;
            polling.record_memory_polling();
        } else if is_armed && interval.program_is_silent(polling) {
            self.receives_until = now + RECEIVE_PERIOD;
        } else {
            // The program may have begun to poll memory during the last interval: check again soon.
            self.check_back_off = 0;
        }
    }

    /// Records that a poll, which began at `begun`, received packets by `now`. `bytes` are those
    /// that the process has received so far; `alone` is whether the program made no poll meanwhile.
    pub(crate) fn received(&mut self, begun: Time, now: Time, bytes: u64, alone: bool) {
        self.is_long = bytes.wrapping_sub(self.bytes) >= LONG_MESSAGE;
        self.bytes = bytes;
        // A program that polls, even rarely, receives by itself.
        self.has_short_gap = alone && begun.since(self.received_at) < self.busy_poll_time();
        self.received_at = now;
        if self.has_short_gap && self.contention.is_expected(now) {
            self.spins.received();
        }
    }

    /// Records the duration of a poll that received nothing.
    pub(crate) fn received_nothing(&mut self, took: Duration) {
        self.poll_time = (self.poll_time * 7 + took) / 8;
    }

    /// Records a `sched_yield` that returned at `now` after `took`.
    pub(crate) fn yielded(&mut self, now: Time, took: Duration) {
        self.contention.yielded(now, took);
    }

    /// Records that the thread woke up at `now`.
    pub(crate) fn woke(&mut self, now: Time) {
        if self.contention.is_expected(now) {
            self.contention.woke(now);
        }
    }

    /// Returns whether packets follow each other closely, and the last one arrived within the
    /// busy-poll time. Under contention, only trials busy-poll.
    pub(crate) fn busy_polls(&self, now: Time) -> bool {
        let is_close = self.has_short_gap && now.since(self.received_at) < self.busy_poll_time();
        is_close && (self.yields(now) || self.spins.is_spinning)
    }

    /// Returns whether a busy poll that received nothing yields. Under contention it keeps the
    /// processor.
    pub(crate) fn yields(&self, now: Time) -> bool {
        !self.contention.is_expected(now)
    }

    /// Returns whether to sleep instead of yielding to a thread of the program that is in a call.
    pub(crate) fn is_contended(&self, now: Time) -> bool {
        self.contention.is_expected(now) && !self.is_long
    }

    /// Returns the busy-poll time, which is also the largest gap between packets that counts as
    /// short.
    fn busy_poll_time(&self) -> Duration {
        (self.poll_time * BUSY_POLL_EMPTY_POLLS).clamp(BUSY_POLL, MAX_BUSY_POLL)
    }
}

impl Interval {
    /// Returns whether the thread relied on the program, and no thread of it is in a post or poll.
    pub(crate) fn program_is_outside_calls(&self, polling: &Polling) -> bool {
        self.relied_on.is_some() && !polling.is_in_call()
    }

    /// Returns whether the thread relied on the program, and the program used a processor without a
    /// post or a poll. A preempted program cannot poll, so it does not count as one that polls
    /// memory. A sleep shorter than [`CHECK_INTERVAL`], as a flush timeout ends it, is no evidence.
    fn program_computed(
        &self,
        polling: &Polling,
        now: Time,
        spent: impl FnOnce() -> Duration,
    ) -> bool {
        let Some(start) = &self.relied_on else {
            return false;
        };
        let elapsed = now.since(start.at);
        let is_long = elapsed >= CHECK_INTERVAL && self.program_is_silent(polling);
        is_long && spent().saturating_sub(start.spent) >= elapsed / 2
    }

    /// Returns whether the thread relied on the program, and the program neither posted nor polled.
    fn program_is_silent(&self, polling: &Polling) -> bool {
        (self.relied_on.as_ref())
            .is_some_and(|start| polling.calls() == start.calls && !polling.is_in_call())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduling::affinity::Affinity;
    use crate::scheduling::polling::Driven;

    /// Makes `count` polls that find nothing.
    fn poll(polling: &Polling, count: u64) {
        let polls = polling.of(Affinity::default());
        for _ in 0..count {
            drop(polls.call());
            polls.polled();
            polls.empty_poll(|_| Driven::Idle, |_| ());
        }
    }

    #[test]
    fn each_failed_spin_doubles_the_packets_before_the_next() {
        let mut spins = SpinTrials::default();
        for packets in [1, 2, 4, 8, 16, 32, 64, 64] {
            spins.received();
            assert!(spins.is_spinning);
            spins.end();
            for _ in 0..packets {
                assert!(!spins.is_spinning);
                spins.received();
            }
            assert!(!spins.is_spinning);
        }
    }

    #[test]
    fn a_spin_that_a_packet_ends_continues() {
        let mut spins = SpinTrials::default();
        for _ in 0..100 {
            spins.received();
            assert!(spins.is_spinning);
        }
        spins.end();
        spins.received();
        spins.received();
        assert!(spins.is_spinning, "successes reset the back-off");
    }

    #[test]
    fn thread_relies_on_polls_that_continue_after_a_queue_was_armed() {
        let (polling, handoff) = (Polling::default(), Handoff::new());
        let mut policy = AdaptivePolling::default();
        let mut choose = |polls| {
            poll(&polling, polls);
            policy.choose(&polling, &handoff, Time(1))
        };
        assert!(!handoff.arm());
        assert_eq!(choose(BUSY_POLLS), Mode::Receiving);
        assert_eq!(choose(BUSY_POLLS), Mode::Receiving, "it may sleep next");
        assert_eq!(choose(EMPTY_POLLS_AFTER_ARM), Mode::PollersReceive);
        assert!(handoff.rearm(), "the thread must watch again");
        assert_eq!(choose(EMPTY_POLLS_AFTER_ARM), Mode::Receiving);
        assert_eq!(choose(EMPTY_POLLS_AFTER_ARM), Mode::PollersReceive);
    }
}
