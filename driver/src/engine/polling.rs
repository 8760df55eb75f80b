//! What the program's polls do, and what the progress thread sees of them.

use super::{Driver, Engine};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use urxe_proto::time::Time;

/// How many polls in vain are made in a row before each gives way to whoever else wants the
/// processor: the peer may be waiting for it. On an idle processor that costs a system call.
const SPINS: u32 = 64;

/// How often in a row to look in vain for the peer's write before a completion is handed to a program that spins on memory
/// afterwards. In polls, since the peer needs longer for its answer where they take longer.
const LOOKS: u32 = 64;

/// For how long to look at most, however much comes.
const LONGEST_LOOK: Duration = Duration::from_millis(1);

/// After how many times in a row that no write came a program is not taken for one that spins on memory
/// any more.
const MISSES: u32 = 8;

/// What the program's polls have left behind.
#[derive(Debug, Default)]
pub(super) struct Polling {
    /// How often the program polled.
    polls: CachePadded<AtomicU64>,
    /// Its threads that post or poll at this moment.
    calls: CachePadded<AtomicU32>,
    /// How often one has begun to.
    begun: AtomicU64,
    in_vain: CachePadded<InVain>,
    /// How often a peer has written to the program's memory without a completion.
    written: CachePadded<AtomicU64>,
    spinner: CachePadded<Spinner>,
}

/// The polls that found no completion, and received.
#[derive(Debug, Default)]
struct InVain {
    count: AtomicU64,
    /// How many of them in a row received nothing either.
    idle: AtomicU32,
    /// When the one that goes on has begun; 0 when none does.
    since: AtomicU64,
    /// How many nanoseconds they have taken altogether.
    spent: AtomicU64,
}

/// A program that spins on memory when it has what it polled for.
#[derive(Debug, Default)]
struct Spinner {
    /// How many misses are left before it is none any more.
    misses: AtomicU32,
    /// How often looking for the write has paid.
    paid: AtomicU64,
    /// How many writes there were when it posted last, or was found to be given one: those it has seen.
    seen: AtomicU64,
    /// Looking has not paid, and the program looks at memory now.
    is_alone: AtomicBool,
}

impl Polling {
    /// How often the program has polled.
    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// How often it found no completion and received, as only such polls do.
    pub(super) fn receives(&self) -> u64 {
        self.in_vain.count.load(Ordering::Relaxed)
    }

    /// How often it has posted or polled.
    pub(super) fn calls(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// For how long it has received so far.
    pub(super) fn spent(&self, now: Time) -> Duration {
        let spent = Duration::from_nanos(self.in_vain.spent.load(Ordering::Relaxed));
        match self.in_vain.since.load(Ordering::Relaxed) {
            0 => spent,
            since => spent + now.since(Time(since)),
        }
    }

    /// Whether it is in one of our calls at this moment, or would be, had it the processor.
    pub(super) fn is_called(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0
    }

    /// A peer has written to the program's memory. The first time that is taken for what the program will look at.
    pub(super) fn wrote(&self) {
        if self.written.fetch_add(1, Ordering::Relaxed) == 0 {
            self.program_spins();
        }
    }

    /// Whether a write came that the program has not seen; then it has.
    fn take_written(&self) -> bool {
        let (written, seen) = (&*self.written, &self.spinner.seen);
        let now = written.load(Ordering::Relaxed);
        let is_new = seen.load(Ordering::Relaxed) != now;
        if is_new {
            seen.store(now, Ordering::Relaxed);
        }
        is_new
    }

    /// The program was found to wait for a packet without receiving it.
    pub(super) fn program_spins(&self) {
        self.spinner.misses.store(MISSES, Ordering::Relaxed);
    }

    /// The program posts. What it looked for before, it has found.
    fn posts(&self) {
        if self.spinner.misses.load(Ordering::Relaxed) > 0 {
            self.take_written();
        }
    }

    /// Whether the program has gone to look at memory for what it was not given, which is forgotten.
    pub(super) fn take_alone(&self) -> bool {
        self.spinner.is_alone.swap(false, Ordering::Relaxed)
    }

    /// How often the program's poll received what it would have spun for.
    pub(super) fn paid(&self) -> u64 {
        self.spinner.paid.load(Ordering::Relaxed)
    }

    /// A poll in vain does `work`, of which it returns what that does.
    fn receiving<T>(&self, work: impl FnOnce(Time) -> T) -> T {
        let since = urxe_net::now();
        add(&self.in_vain.count, 1);
        self.in_vain.since.store(since.0, Ordering::Relaxed);
        let done = work(since);
        // Of several threads that poll one may end the time of another; it is a measure of whether any does.
        self.in_vain.since.store(0, Ordering::Relaxed);
        let nanos = urxe_net::now().since(since).as_nanos() as u64;
        add(&self.in_vain.spent, nanos);
        done
    }
}

/// Adds to what tells whether the program polls all the time. Of two threads that do so at once one may be forgotten: that
/// is no matter, and a poll in vain should cost little.
fn add(sum: &AtomicU64, more: u64) {
    sum.store(
        sum.load(Ordering::Relaxed).wrapping_add(more),
        Ordering::Relaxed,
    );
}

/// The program posts or polls, as long as this lives.
#[derive(Debug)]
pub(crate) struct Call<'a>(&'a AtomicU32);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine {
    /// A thread of the program posts or polls.
    pub(crate) fn call(&self) -> Call<'_> {
        self.polling.calls.fetch_add(1, Ordering::Relaxed);
        add(&self.polling.begun, 1);
        Call(&self.polling.calls)
    }

    /// A thread of the program posts.
    pub(crate) fn call_to_post(&self) -> Call<'_> {
        self.polling.posts();
        self.call()
    }

    /// How often the program has polled in vain.
    pub(crate) fn polls_in_vain(&self) -> u64 {
        self.polling.receives()
    }

    /// The program polls.
    pub(crate) fn polled(&self) {
        add(&self.polling.polls, 1);
        self.send_posted();
    }

    /// The program found nothing: does the work of the network. True when there was something.
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

    /// The program found a completion. If it is one that now spins on memory until its peer writes there, nobody
    /// but the progress thread would receive that: it is looked for here, as long as this pays.
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
                // A message of many packets may be coming.
                in_vain = 0;
                if urxe_net::now().since(begun) >= LONGEST_LOOK {
                    break;
                }
            }
        }
        misses.store(left - 1, Ordering::Relaxed);
        // The progress thread receives for it then, and had better not find that out by itself.
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
