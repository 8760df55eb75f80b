//! The program's polls: receiving in them, and their record for the progress thread.

use super::{Driver, Engine};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use urxe_proto::time::Time;

/// Consecutive empty polls before each further one yields the processor: the peer may be waiting
/// for it. On an idle processor a yield costs a system call.
const SPINS: u32 = 64;

/// Consecutive empty polls before a completion is returned to an application that polls memory. The
/// unit is polls, since the peer's answer takes longer where polls take longer.
const LOOKS: u32 = 64;

/// The longest time to wait for the peer's write, even while packets keep arriving.
const LONGEST_LOOK: Duration = Duration::from_millis(1);

/// Consecutive misses (no write arrived) after which an application no longer counts as one that
/// polls memory.
const MISSES: u32 = 8;

/// The record of the program's polls.
#[derive(Debug, Default)]
pub(super) struct Polling {
    /// Polls of the program so far.
    polls: CachePadded<AtomicU64>,
    /// Threads of the program that are in a post or a poll.
    calls: CachePadded<AtomicU32>,
    /// Posts and polls that have begun so far.
    begun: AtomicU64,
    in_vain: CachePadded<InVain>,
    /// Writes of peers to the program's memory that gave no completion, so far.
    written: CachePadded<AtomicU64>,
    spinner: CachePadded<Spinner>,
}

/// The polls that found no completion, and received.
#[derive(Debug, Default)]
struct InVain {
    count: AtomicU64,
    /// The length of the current run of those that received nothing either.
    idle: AtomicU32,
    /// The time at which the current one began; 0 when there is none.
    since: AtomicU64,
    /// The sum of their durations, in nanoseconds.
    spent: AtomicU64,
}

/// The detector of an application that polls memory after it has received a completion.
#[derive(Debug, Default)]
struct Spinner {
    /// Misses that are left before the application no longer counts as one that polls memory.
    misses: AtomicU32,
    /// Times that the awaited write arrived.
    paid: AtomicU64,
    /// The value of `written` at the last post, or when a write was last taken: the writes that the
    /// program has seen.
    seen: AtomicU64,
    /// The awaited write did not arrive, and the program polls memory now.
    is_alone: AtomicBool,
}

impl Polling {
    /// Returns the number of polls so far.
    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Returns the number of polls that found no completion, and received.
    pub(super) fn receives(&self) -> u64 {
        self.in_vain.count.load(Ordering::Relaxed)
    }

    /// Returns the number of posts and polls so far.
    pub(super) fn calls(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns the time that the program's polls have spent on receiving so far.
    pub(super) fn spent(&self, now: Time) -> Duration {
        let spent = Duration::from_nanos(self.in_vain.spent.load(Ordering::Relaxed));
        match self.in_vain.since.load(Ordering::Relaxed) {
            0 => spent,
            since => spent + now.since(Time(since)),
        }
    }

    /// Returns whether a thread of the program is in a post or a poll, running or preempted.
    pub(super) fn is_called(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0
    }

    /// Counts a write of a peer to the program's memory. The first one makes the program count as
    /// one that polls memory.
    pub(super) fn wrote(&self) {
        if self.written.fetch_add(1, Ordering::Relaxed) == 0 {
            self.program_spins();
        }
    }

    /// Returns whether a write arrived that the program has not seen, and marks it as seen.
    fn take_written(&self) -> bool {
        let (written, seen) = (&*self.written, &self.spinner.seen);
        let now = written.load(Ordering::Relaxed);
        let is_new = seen.load(Ordering::Relaxed) != now;
        if is_new {
            seen.store(now, Ordering::Relaxed);
        }
        is_new
    }

    /// Notes that the program was found to wait for a packet without receiving.
    pub(super) fn program_spins(&self) {
        self.spinner.misses.store(MISSES, Ordering::Relaxed);
    }

    /// Notes a post. The program has seen the writes before it.
    fn posts(&self) {
        if self.spinner.misses.load(Ordering::Relaxed) > 0 {
            self.take_written();
        }
    }

    /// Returns whether the program polls memory for a write that did not arrive in time, and clears
    /// that.
    pub(super) fn take_alone(&self) -> bool {
        self.spinner.is_alone.swap(false, Ordering::Relaxed)
    }

    /// Returns how often an awaited write arrived before the completion was returned.
    pub(super) fn paid(&self) -> u64 {
        self.spinner.paid.load(Ordering::Relaxed)
    }

    /// Runs `work` as a poll that found no completion, records its duration, and returns its
    /// result.
    fn receiving<T>(&self, work: impl FnOnce(Time) -> T) -> T {
        let since = urxe_net::now();
        add(&self.in_vain.count, 1);
        self.in_vain.since.store(since.0, Ordering::Relaxed);
        let done = work(since);
        // With several polling threads, one may clear the time of another. The value only has to
        // show whether any of them polls.
        self.in_vain.since.store(0, Ordering::Relaxed);
        let nanos = urxe_net::now().since(since).as_nanos() as u64;
        add(&self.in_vain.spent, nanos);
        done
    }
}

/// Adds without an atomic read-modify-write. Of two concurrent additions one may be lost. The sums
/// only decide whether the program polls all the time, and an empty poll should cost little.
fn add(sum: &AtomicU64, more: u64) {
    sum.store(
        sum.load(Ordering::Relaxed).wrapping_add(more),
        Ordering::Relaxed,
    );
}

/// A post or poll of the program, for as long as this value exists.
#[derive(Debug)]
pub(crate) struct Call<'a>(&'a AtomicU32);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine {
    /// Begins a post or a poll of a thread of the program.
    pub(crate) fn call(&self) -> Call<'_> {
        self.polling.calls.fetch_add(1, Ordering::Relaxed);
        add(&self.polling.begun, 1);
        Call(&self.polling.calls)
    }

    /// Begins a post of a thread of the program.
    pub(crate) fn call_to_post(&self) -> Call<'_> {
        self.polling.posts();
        self.call()
    }

    /// Returns the number of polls that found no completion.
    pub(crate) fn polls_in_vain(&self) -> u64 {
        self.polling.receives()
    }

    /// Counts a poll, and sends the deferred sends.
    pub(crate) fn polled(&self) {
        add(&self.polling.polls, 1);
        self.send_posted();
    }

    /// Receives and runs timers in a poll that found no completion. True when there was any work.
    pub(crate) fn poll(&self) -> bool {
        let idle = &self.polling.in_vain.idle;
        self.send_acks();
        self.polling.receiving(|now| {
            let before = idle.load(Ordering::Relaxed);
            let worked = self.drive_for(Driver::Poll, now);
            if worked {
                idle.store(0, Ordering::Relaxed);
            } else if before < SPINS {
                idle.store(before + 1, Ordering::Relaxed);
            } else {
                rustix::thread::sched_yield();
            }
            worked
        })
    }

    /// Receives before a completion is returned to an application that polls memory.
    ///
    /// Such an application makes no further call until its peer's write arrives, so only the
    /// progress thread would receive that write. This waits for it, at most [`LOOKS`] consecutive
    /// empty polls and [`LONGEST_LOOK`], unless the last [`MISSES`] waits were misses.
    pub(crate) fn linger(&self) {
        let Spinner {
            misses,
            paid,
            is_alone,
            ..
        } = &*self.polling.spinner;
        let left = misses.load(Ordering::Relaxed);
        if left == 0 {
            return;
        }
        let begun = urxe_net::now();
        let mut in_vain = 0;
        while in_vain < LOOKS {
            if self.polling.take_written() {
                misses.store(MISSES, Ordering::Relaxed);
                paid.fetch_add(1, Ordering::Relaxed);
                self.counters.writes_awaited.add(1);
                return;
            }
            in_vain += 1;
            if self.poll() {
                // More packets of the same message may follow.
                in_vain = 0;
                if urxe_net::now().since(begun) >= LONGEST_LOOK {
                    break;
                }
            }
        }
        misses.store(left - 1, Ordering::Relaxed);
        // The progress thread now receives for the program. Without this flag it would notice that
        // only after packets had waited.
        is_alone.store(true, Ordering::Relaxed);
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_looked_for_once() {
        let polling = Polling::default();
        assert!(!polling.take_written());
        polling.wrote();
        assert!(polling.take_written());
        assert!(!polling.take_written());
    }

    #[test]
    fn what_came_before_the_program_posted_is_what_it_answers() {
        let polling = Polling::default();
        polling.wrote();
        polling.posts();
        assert!(!polling.take_written());
        polling.wrote();
        assert!(polling.take_written());
    }

    #[test]
    fn a_program_is_taken_for_one_that_spins_from_the_first_write_on() {
        let polling = Polling::default();
        let misses = || polling.spinner.misses.load(Ordering::Relaxed);
        assert_eq!(misses(), 0);
        polling.wrote();
        assert_eq!(misses(), MISSES);
        polling.spinner.misses.store(0, Ordering::Relaxed);
        polling.wrote();
        assert_eq!(misses(), 0, "it has been found out that it does not");
    }
}
