//! The record of the program's polls, for the progress thread and for the threads that poll.

use super::affinity::{AFFINITIES, Affinity};
use super::contention::Contention;
use super::limits::{
    EMPTY_POLLS_BEFORE_YIELD, LONG_YIELD_THRESHOLD, MAX_MISSES, SHARED_PROCESSOR_YIELD,
    WRITE_POLLS, WRITE_TIMEOUT,
};
use crate::sync::{Mutex, lock};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use urxe_proto::time::Time;

/// The record of the program's polls. A *poll* is a call of the program that takes completions. A
/// poll that finds none receives packets.
///
/// There is a record for each [affinity](super::affinity), so that threads with completion queues
/// of their own do not write to one cache line. The progress thread adds them up.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    records: [CachePadded<PollRecord>; AFFINITIES],
    /// The number of peers' writes to the program's memory so far that gave no completion.
    written: CachePadded<AtomicU64>,
    detector: CachePadded<MemoryPollDetector>,
}

/// The polls of the completion queues with one affinity, and the posts to their queue pairs.
#[derive(Debug, Default)]
struct PollRecord {
    /// The number of polls so far.
    polls: AtomicU64,
    /// The number of the program's threads that are in a post or a poll.
    calls: AtomicU32,
    /// The number of posts and polls that have begun so far.
    begun: AtomicU64,
    /// The value of `begun` when the last poll returned a completion.
    returned: AtomicU64,
    empty: EmptyPolls,
}

/// The record of one affinity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Polls<'a> {
    affinity: Affinity,
    polling: &'a Polling,
    record: &'a PollRecord,
}

/// The polls that found no completion in the queue, and therefore received packets.
#[derive(Debug, Default)]
struct EmptyPolls {
    count: AtomicU64,
    /// The number of consecutive empty polls since the last packet, plus `idle_at_packet`. Does not
    /// grow beyond [`EMPTY_POLLS_BEFORE_YIELD`].
    idle: AtomicU32,
    /// The value of `idle` after a poll that received packets: 0, or [`EMPTY_POLLS_BEFORE_YIELD`]
    /// if the first empty poll pauses already.
    idle_at_packet: AtomicU32,
    /// Whether the next pause is a sleep, because contention is expected.
    sleeps: AtomicBool,
    /// The durations of a pause after which the next one is of the same kind: the shortest, and
    /// the size of the range, in nanoseconds.
    usual_pause: AtomicU64,
    usual_range: AtomicU64,
    /// The time at which the present empty poll began; 0 if no thread is in one.
    since: AtomicU64,
    /// The sum of their recorded durations, in nanoseconds.
    spent: AtomicU64,
    contention: Mutex<Contention>,
}

/// The result of one round of the network's work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Driven {
    /// There was work, or packets were received.
    Worked,
    /// There was nothing to do.
    Idle,
    /// Nothing was received, and another thread is receiving from a socket.
    Busy,
}

/// How a poll that received nothing gives the processor to other threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// By a `sched_yield`.
    Yield,
    /// By a sleep of at most [`super::limits::POLL_SLEEP`], which a packet ends.
    Sleep,
}

/// The detector of an application that polls memory after it has received a completion.
#[derive(Debug, Default)]
struct MemoryPollDetector {
    /// The number of further misses after which the application no longer counts as one that polls
    /// memory; 0 if it does not count as one.
    misses: AtomicU32,
    /// The number of awaited writes that have arrived.
    hits: AtomicU64,
    /// The value of `written` at the last post, or at the last [`Polling::take_written`]. The
    /// program has read the memory of these writes.
    taken: AtomicU64,
    /// Whether the awaited write did not arrive, so that the program polls memory now.
    is_polling_memory: AtomicBool,
}

impl Polling {
    /// Returns the record of an affinity.
    #[inline]
    pub(crate) fn of(&self, affinity: Affinity) -> Polls<'_> {
        Polls {
            affinity,
            polling: self,
            record: &self.records[affinity.number()],
        }
    }

    fn sum(&self, of: impl Fn(&PollRecord) -> u64) -> u64 {
        let records = self.records.iter();
        records.fold(0, |sum, record| sum.wrapping_add(of(record)))
    }

    /// Returns the number of polls so far.
    pub(crate) fn polls(&self) -> u64 {
        self.sum(|record| record.polls.load(Ordering::Relaxed))
    }

    /// Returns the number of polls that found no completion in the queue.
    pub(crate) fn empty_polls(&self) -> u64 {
        self.sum(|record| record.empty.count.load(Ordering::Relaxed))
    }

    /// Returns the number of posts and polls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.sum(|record| record.begun.load(Ordering::Relaxed))
    }

    /// Returns the time that the program's polls have spent on receiving so far.
    pub(crate) fn spent(&self, now: Time) -> Duration {
        Duration::from_nanos(self.sum(|record| record.empty.spent(now)))
    }

    /// Returns whether a thread of the program is in a post or a poll, running or preempted.
    pub(crate) fn is_in_call(&self) -> bool {
        let in_call = |record: &CachePadded<PollRecord>| record.calls.load(Ordering::Relaxed) > 0;
        self.records.iter().any(in_call)
    }

    /// Counts a write of a peer to the program's memory. The first one makes the program count as
    /// one that polls memory.
    pub(crate) fn record_write(&self) {
        if self.written.fetch_add(1, Ordering::Relaxed) == 0 {
            self.record_memory_polling();
        }
    }

    /// Returns whether a write arrived that the program has not seen, and marks it as seen.
    pub(crate) fn take_written(&self) -> bool {
        let (written, taken) = (&*self.written, &self.detector.taken);
        let now = written.load(Ordering::Relaxed);
        let is_new = taken.load(Ordering::Relaxed) != now;
        if is_new {
            taken.store(now, Ordering::Relaxed);
        }
        is_new
    }

    /// Makes the program count as one that polls memory: packets were waiting, and it neither
    /// received them nor called the library.
    pub(crate) fn record_memory_polling(&self) {
        self.detector.misses.store(MAX_MISSES, Ordering::Relaxed);
    }

    /// Returns whether the program counts as one that polls memory.
    #[inline]
    pub(crate) fn polls_memory(&self) -> bool {
        self.detector.misses.load(Ordering::Relaxed) > 0
    }

    /// Returns whether the program polls memory for a write that did not arrive in time, and clears
    /// the flag.
    pub(crate) fn take_polls_memory(&self) -> bool {
        self.detector
            .is_polling_memory
            .swap(false, Ordering::Relaxed)
    }

    /// Returns how often an awaited write arrived before the completion was returned.
    pub(crate) fn detector_hits(&self) -> u64 {
        self.detector.hits.load(Ordering::Relaxed)
    }
}

impl<'a> Polls<'a> {
    /// Returns the affinity whose record this is.
    pub(crate) fn affinity(self) -> Affinity {
        self.affinity
    }

    /// Returns the number of polls so far.
    pub(crate) fn count(self) -> u64 {
        self.record.polls.load(Ordering::Relaxed)
    }

    /// Returns the number of polls that found no completion in the queue.
    pub(crate) fn empty(self) -> u64 {
        self.record.empty.count.load(Ordering::Relaxed)
    }

    /// Begins a post or a poll of a thread of the program.
    #[inline]
    pub(crate) fn call(self) -> Call<'a> {
        self.record.calls.fetch_add(1, Ordering::Relaxed);
        add(&self.record.begun, 1);
        Call {
            calls: &self.record.calls,
            yields: false,
        }
    }

    /// Begins a post of a thread of the program. The post answers all writes before it, so these
    /// are not awaited any more. `leaves_packets_to_polls` says that the progress thread relies on
    /// the program's polls.
    pub(crate) fn call_to_post(self, leaves_packets_to_polls: impl FnOnce() -> bool) -> Call<'a> {
        let mut call = self.call();
        let misses_left = self.polling.detector.misses.load(Ordering::Relaxed);
        if misses_left > 0 {
            self.polling.take_written();
            call.yields = misses_left < MAX_MISSES || !leaves_packets_to_polls();
        }
        call
    }

    /// Counts a poll.
    #[inline]
    pub(crate) fn polled(self) {
        add(&self.record.polls, 1);
    }

    /// Records that the poll which began last returns a completion.
    #[inline]
    pub(crate) fn returned(self) {
        let begun = self.record.begun.load(Ordering::Relaxed);
        self.record.returned.store(begun, Ordering::Relaxed);
    }

    /// Returns whether the poll that began last directly follows one that returned a completion.
    ///
    /// The program then drains its queue, and handles the completions when the queue is empty; for
    /// instance, it posts the next receives. If such a poll received packets, the queue would never
    /// be empty while a fast peer sends.
    #[inline]
    pub(crate) fn drains(self) -> bool {
        let begun = self.record.begun.load(Ordering::Relaxed);
        begun.wrapping_sub(self.record.returned.load(Ordering::Relaxed)) == 1
    }

    /// Runs `receive` as a poll that found no completion, and returns its result. `pause` runs if
    /// neither it nor the polls before it received any packets, and no other thread was receiving.
    ///
    /// Records the duration, except for the first [`EMPTY_POLLS_BEFORE_YIELD`] consecutive polls
    /// that receive nothing: these are short, and reading the clock would be a tenth of their cost.
    pub(crate) fn empty_poll(
        self,
        receive: impl FnOnce(Time) -> Driven,
        pause: impl FnOnce(Pause),
    ) -> Driven {
        let empty = &self.record.empty;
        let begun = urxe_net::now();
        add(&empty.count, 1);
        empty.since.store(begun.0, Ordering::Relaxed);
        let idle = empty.idle.load(Ordering::Relaxed);
        let pauses = idle >= EMPTY_POLLS_BEFORE_YIELD;
        let driven = receive(begun);
        let now = match (driven, pauses) {
            (Driven::Worked, _) => {
                let idle = empty.idle_at_packet.load(Ordering::Relaxed);
                empty.idle.store(idle, Ordering::Relaxed);
                Some(urxe_net::now())
            }
            (Driven::Idle, true) => Some(empty.pause(begun, pause)),
            (Driven::Idle, false) => {
                empty.idle.store(idle + 1, Ordering::Relaxed);
                None
            }
            // The caller waits for that thread.
            (Driven::Busy, _) => None,
        };
        // Of several threads that poll, one may clear the time of another. The value only has to
        // show whether any of them polls.
        empty.since.store(0, Ordering::Relaxed);
        if let Some(now) = now {
            add(&empty.spent, now.0.saturating_sub(begun.0));
        }
        driven
    }

    /// Begins to wait for the peer's write before a completion is returned to an application that
    /// polls memory. `None` if the application does not count as one.
    pub(crate) fn await_write(self) -> Option<AwaitedWrite<'a>> {
        let misses_left = self.polling.detector.misses.load(Ordering::Relaxed);
        (misses_left > 0).then(|| AwaitedWrite {
            polls: self,
            misses_left,
            begun: urxe_net::now(),
            empty_polls: 0,
        })
    }
}

/// The wait for a write to memory that the application polls.
///
/// Such an application makes no further call until its peer's write arrives, so only the progress
/// thread would receive that write. The wait takes at most [`WRITE_POLLS`] consecutive empty polls
/// and [`WRITE_TIMEOUT`].
pub(crate) struct AwaitedWrite<'a> {
    polls: Polls<'a>,
    misses_left: u32,
    begun: Time,
    empty_polls: u32,
}

/// The next step of a wait for a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Awaited {
    /// The caller polls once, and calls [`AwaitedWrite::polled`].
    Poll,
    /// The write has arrived.
    Arrived,
    /// No write arrived in time. The caller wakes the progress thread, which now receives for the
    /// program. Without the wake-up the thread would receive only at its next check.
    Missed,
}

impl EmptyPolls {
    /// Returns the sum of their durations at `now`, in nanoseconds.
    fn spent(&self, now: Time) -> u64 {
        let spent = self.spent.load(Ordering::Relaxed);
        match self.since.load(Ordering::Relaxed) {
            0 => spent,
            since => spent + now.since(Time(since)).as_nanos() as u64,
        }
    }

    /// Gives the processor to other threads, in a poll that began at `begun`, and returns the time
    /// after that.
    fn pause(&self, begun: Time, pause: impl FnOnce(Pause)) -> Time {
        let sleeps = self.sleeps.load(Ordering::Relaxed);
        pause(if sleeps { Pause::Sleep } else { Pause::Yield });
        let now = urxe_net::now();
        // In nanoseconds, since a `Duration` has to be divided into seconds.
        let took = now.0.wrapping_sub(begun.0);
        let beyond = took.wrapping_sub(self.usual_pause.load(Ordering::Relaxed));
        if beyond >= self.usual_range.load(Ordering::Relaxed) {
            self.paused(now, now.since(begun), sleeps);
        }
        now
    }

    /// Records a pause of a poll that ended at `now` after `took`, and chooses when and how the
    /// next empty polls pause.
    ///
    /// A yield that gave the processor away probably gave it to the peer, which needs it again for
    /// the next answer: until then further polls would be empty as well.
    #[cold]
    fn paused(&self, now: Time, took: Duration, slept: bool) {
        let mut contention = lock(&self.contention);
        if slept {
            contention.woke(now);
        } else {
            contention.yielded(now, took);
        }
        let sleeps = contention.is_expected(now);
        let gave_away = !slept && took >= SHARED_PROCESSOR_YIELD;
        let idle = if sleeps || gave_away {
            EMPTY_POLLS_BEFORE_YIELD
        } else {
            0
        };
        // While each yield is short, or each gives the processor away for a short time, nothing
        // changes. Each sleep is recorded.
        let shared = SHARED_PROCESSOR_YIELD.as_nanos() as u64;
        let long = LONG_YIELD_THRESHOLD.as_nanos() as u64;
        let (shortest, range) = match (sleeps, gave_away) {
            (true, _) => (0, 0),
            (false, true) => (shared, long - shared),
            (false, false) => (0, shared),
        };
        self.usual_pause.store(shortest, Ordering::Relaxed);
        self.usual_range.store(range, Ordering::Relaxed);
        self.sleeps.store(sleeps, Ordering::Relaxed);
        self.idle_at_packet.store(idle, Ordering::Relaxed);
    }
}

impl AwaitedWrite<'_> {
    /// Returns what the caller does next.
    pub(crate) fn next(&mut self) -> Awaited {
        let polling = self.polls.polling;
        let detector = &polling.detector;
        if self.empty_polls < WRITE_POLLS {
            if polling.take_written() {
                detector.misses.store(MAX_MISSES, Ordering::Relaxed);
                detector.hits.fetch_add(1, Ordering::Relaxed);
                return Awaited::Arrived;
            }
            self.empty_polls += 1;
            return Awaited::Poll;
        }
        detector
            .misses
            .store(self.misses_left - 1, Ordering::Relaxed);
        detector.is_polling_memory.store(true, Ordering::Relaxed);
        Awaited::Missed
    }

    /// Records a poll, and whether it received packets: more of the same message may follow. The
    /// time is also checked after polls that may have yielded or slept.
    #[inline]
    pub(crate) fn polled(&mut self, worked: bool) {
        let idle = &self.polls.record.empty.idle;
        if worked || idle.load(Ordering::Relaxed) >= EMPTY_POLLS_BEFORE_YIELD {
            if urxe_net::now().since(self.begun) >= WRITE_TIMEOUT {
                self.empty_polls = WRITE_POLLS;
            } else if worked {
                self.empty_polls = 0;
            }
        }
    }
}

/// Adds without an atomic read-modify-write. Of two concurrent additions one may be lost. The sums
/// only decide whether the program polls all the time, and an empty poll should cost little.
#[inline]
fn add(sum: &AtomicU64, more: u64) {
    sum.store(
        sum.load(Ordering::Relaxed).wrapping_add(more),
        Ordering::Relaxed,
    );
}

/// A post or poll of the program, for as long as this value exists.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    calls: &'a AtomicU32,
    /// Whether the thread yields the processor when the call ends, since it may poll memory next.
    /// Over loopback its packets may have woken the peer's progress thread on the same processor,
    /// and the kernel would preempt this thread at the scheduler's tick only.
    yields: bool,
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
        if self.yields {
            rustix::thread::sched_yield();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduling::affinity::Affinities;

    #[test]
    fn a_detected_write_is_reported_once() {
        let polling = Polling::default();
        assert!(!polling.take_written());
        polling.record_write();
        assert!(polling.take_written());
        assert!(!polling.take_written());
    }

    fn of(polling: &Polling) -> Polls<'_> {
        polling.of(Affinity::default())
    }

    /// Makes a poll that receives nothing, and returns its pause, if it made one.
    fn idle_poll(polling: &Polling, took: Duration) -> Option<Pause> {
        poll(polling, Driven::Idle, took)
    }

    /// Makes a poll that finds no completion, and returns its pause, which takes the time `took`.
    fn poll(polling: &Polling, driven: Driven, took: Duration) -> Option<Pause> {
        let mut paused = None;
        of(polling).empty_poll(
            |_| driven,
            |pause| {
                paused = Some(pause);
                std::thread::sleep(took);
            },
        );
        paused
    }

    #[test]
    fn empty_polls_sleep_after_a_yield_that_took_long() {
        let polling = Polling::default();
        let no_time = Duration::ZERO;
        for _ in 0..EMPTY_POLLS_BEFORE_YIELD {
            assert_eq!(idle_poll(&polling, no_time), None);
        }
        let slice = Duration::from_millis(4);
        assert_eq!(idle_poll(&polling, slice), Some(Pause::Yield));
        assert_eq!(poll(&polling, Driven::Worked, no_time), None);
        assert_eq!(idle_poll(&polling, no_time), Some(Pause::Sleep));
    }

    #[test]
    fn empty_polls_yield_at_once_while_yields_give_the_processor_away() {
        let polling = Polling::default();
        let packet = || assert_eq!(poll(&polling, Driven::Worked, Duration::ZERO), None);
        let yielded = |took| {
            of(&polling)
                .record
                .empty
                .paused(urxe_net::now(), took, false)
        };
        yielded(SHARED_PROCESSOR_YIELD);
        packet();
        assert_eq!(idle_poll(&polling, Duration::ZERO), Some(Pause::Yield));
        yielded(SHARED_PROCESSOR_YIELD - Duration::from_nanos(1));
        packet();
        assert_eq!(idle_poll(&polling, Duration::ZERO), None);
    }

    #[test]
    fn a_poll_beside_a_thread_that_receives_does_not_pause() {
        let polling = Polling::default();
        for _ in 0..2 * EMPTY_POLLS_BEFORE_YIELD {
            assert_eq!(poll(&polling, Driven::Busy, Duration::ZERO), None);
        }
    }

    #[test]
    fn polls_are_recorded_for_each_affinity_and_added_up() {
        let polling = Polling::default();
        let affinities = Affinities::default();
        let [first, second] = [(); 2].map(|()| polling.of(affinities.next()));
        first.polled();
        second.polled();
        second.polled();
        assert_eq!((first.count(), second.count(), polling.polls()), (1, 2, 3));
        let call = second.call();
        assert!(polling.is_in_call());
        drop(call);
        assert!(!polling.is_in_call() && polling.calls() == 1);
    }

    #[test]
    fn one_poll_after_a_completion_finds_the_end_of_the_queue() {
        let polling = Polling::default();
        drop(of(&polling).call());
        drop(of(&polling).call());
        assert!(!of(&polling).drains());
        of(&polling).returned();
        drop(of(&polling).call());
        assert!(of(&polling).drains());
        drop(of(&polling).call());
        assert!(!of(&polling).drains());
        of(&polling).returned();
        drop(of(&polling).call_to_post(|| true));
        drop(of(&polling).call());
        assert!(
            !of(&polling).drains(),
            "an answer to the message may arrive"
        );
    }

    #[test]
    fn a_post_takes_the_writes_before_it() {
        let polling = Polling::default();
        polling.record_write();
        drop(of(&polling).call_to_post(|| true));
        assert!(!polling.take_written());
        polling.record_write();
        assert!(polling.take_written());
    }

    #[test]
    fn a_post_before_polls_of_memory_yields() {
        let polling = Polling::default();
        assert!(
            !of(&polling).call_to_post(|| false).yields,
            "no writes to poll for"
        );
        polling.record_write();
        assert!(
            !of(&polling).call_to_post(|| true).yields,
            "its polls receive"
        );
        assert!(of(&polling).call_to_post(|| false).yields);
        polling
            .detector
            .misses
            .store(MAX_MISSES - 1, Ordering::Relaxed);
        assert!(
            of(&polling).call_to_post(|| true).yields,
            "its last poll missed the write"
        );
    }

    #[test]
    fn the_first_write_starts_the_detector_and_later_ones_do_not() {
        let polling = Polling::default();
        let misses = || polling.detector.misses.load(Ordering::Relaxed);
        assert_eq!(misses(), 0);
        polling.record_write();
        assert_eq!(misses(), MAX_MISSES);
        polling.detector.misses.store(0, Ordering::Relaxed);
        polling.record_write();
        assert_eq!(misses(), 0, "the detector has run out of misses");
    }
}
