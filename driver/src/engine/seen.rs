//! Adaptive polling: the progress thread observes the program, and chooses how it sleeps.

use super::Engine;
use super::handover::Mode;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use urxe_proto::time::Time;

/// Time without a call of the program after which the progress thread receives its packets.
const PATIENCE: Duration = Duration::from_millis(1);

/// The upper bound of that time where a check is expensive.
const LONGEST_PATIENCE: Duration = Duration::from_millis(8);

/// The least ratio of the interval between two checks to the cost of one.
const LOOK_SELDOM: u32 = 20;

/// The longest interval between two checks of a program that was polling at each of the last
/// checks, in units of [`PATIENCE`]. A check costs the program more than it costs this thread: an
/// interrupt, two thread switches, and on a virtual machine the host's share.
const TRUSTED_LONGER: u32 = 4;

/// The number of polls within [`PATIENCE`] that make the program count as polling all the time. A
/// program that waits for events polls once or twice for each, and its completion queue is armed
/// while it waits.
const BUSY_POLLS: u64 = 8;

/// Time for which the progress thread receives after it found packets that the program did not
/// receive. An application that polls memory for its peer's write is such a program. It may still
/// poll for completions of sends, which arrive at once. For each such period one packet had to wait
/// for [`PATIENCE`].
const WATCHFUL: Duration = Duration::from_millis(100);

/// Busy-poll time before the thread sleeps, if the gap between the last two packets was shorter: a
/// wake-up takes a large part of it. A thread with longer gaps never busy-polls.
const SPIN: Duration = Duration::from_micros(50);

/// The busy-poll time in empty polls, where a poll takes long, as on an emulated machine: there the
/// peer's answer takes longer as well.
const SPIN_LOOKS: u32 = 20;

/// The upper bound of the busy-poll time.
const LONGEST_SPIN: Duration = Duration::from_micros(500);

/// A `sched_yield` of at least this duration has given the processor to a thread that keeps it.
/// Where a thread that yields forfeits its time slice, its next chance to run may be the
/// scheduler's next tick.
const LONG_YIELD: Duration = Duration::from_micros(500);

/// Bytes received at once that make a packet count as part of a long message, with more to
/// follow. The thread then busy-polls and yields even under contention: a program that polls memory
/// receives the rest faster in its own calls than the two threads do by alternating.
const LONG_MESSAGE: u64 = 16 << 10;

/// Time for which the thread leaves packets to a thread of the program that is in a post or a poll.
/// It sleeps instead of yielding: that thread may poll memory when its call ends, and would then
/// not give the processor back.
const GIVE_WAY: Duration = Duration::from_micros(20);

/// Time after a long yield in which the thread sleeps between packets instead of busy-polling. A
/// packet that wakes a sleeping thread lets it preempt; no packet does that for a thread that has
/// yielded. The time doubles with each long yield, since each new trial costs one more of them.
const CONTENDED: Duration = Duration::from_millis(100);
const LONGEST_CONTENDED: Duration = Duration::from_millis(1600);

/// The contention for the processor that the progress thread runs on.
#[derive(Default)]
struct Contention {
    /// The time until which contention is expected.
    until: Time,
    /// The length of the last such period.
    period: Duration,
}

impl Contention {
    fn is_expected(&self, now: Time) -> bool {
        now < self.until
    }

    /// Records a `sched_yield` that returned at `now` after `took`.
    fn yielded(&mut self, now: Time, took: Duration) {
        if took < LONG_YIELD {
            self.period = Duration::ZERO;
            return;
        }
        self.period = (2 * self.period).clamp(CONTENDED, LONGEST_CONTENDED);
        self.until = now + self.period;
    }
}

/// The state of adaptive polling.
#[derive(Default)]
pub(super) struct Seen {
    polls: u64,
    /// The time that the program had spent on receiving.
    spent: Duration,
    /// The time at which `polls` and `spent` were read.
    polls_at: Time,
    /// The number of awaited writes that the program's polls have received, see [`Polling::paid`].
    ///
    /// [`Polling::paid`]: super::polling::Polling::paid
    paid: u64,
    returns: u64,
    /// The time until which the program's polls are not relied on.
    watchful_until: Time,
    /// The time at which the thread last received packets while watching.
    received_at: Time,
    /// The gap between the last two packets was short.
    spins: bool,
    contention: Contention,
    /// The last packets were part of a long message.
    is_long: bool,
    /// The bytes that the process had received by then.
    bytes: u64,
    /// The smoothed duration of an empty poll while watching.
    look: Duration,
    /// The smoothed processor time of one check.
    cost: Duration,
    /// The thread's processor time at the last check, if the thread has been yielding since.
    own_time: Option<Duration>,
    /// The interval between checks, in units of [`PATIENCE`].
    trust: u32,
}

/// One sleep of the thread.
pub(super) struct Moment {
    /// Its longest duration in the yielding modes.
    pub(super) patience: Duration,
    /// Whether the thread polls instead of sleeping, since more packets are expected.
    pub(super) spins: bool,
    /// The state when it began, if the program is relied on to receive.
    relied_on: Option<Start>,
}

struct Start {
    at: Time,
    calls: u64,
    /// The processor time of the process.
    spent: Duration,
}

impl Seen {
    /// Chooses how to sleep, from the calls of the program since the last choice.
    pub(super) fn choose(&mut self, engine: &Engine) -> Mode {
        let now = urxe_net::now();
        let polls = self.look_at_polls(engine, now) && now >= self.watchful_until;
        engine.handover.choose(polls, &mut self.returns)
    }

    /// Returns whether the program polls all the time.
    fn look_at_polls(&mut self, engine: &Engine, now: Time) -> bool {
        let (polls, spent) = (engine.polling.polls(), engine.polling.spent(now));
        let polled = polls.wrapping_sub(self.polls);
        let elapsed = now.since(self.polls_at);
        // Where each poll takes long, there are few of them.
        let for_long = spent.saturating_sub(self.spent) >= elapsed / 2;
        let is_over = elapsed >= PATIENCE;
        if polled >= BUSY_POLLS || is_over {
            (self.polls, self.spent, self.polls_at) = (polls, spent, now);
        }
        let paid = engine.polling.paid();
        if std::mem::replace(&mut self.paid, paid) != paid {
            self.watchful_until = now;
        }
        if engine.polling.take_alone() {
            self.watchful_until = now + WATCHFUL;
        }
        polled >= BUSY_POLLS || (is_over && for_long)
    }

    /// Begins a sleep in `mode`.
    pub(super) fn moment(&mut self, engine: &Engine, mode: Mode) -> Moment {
        if mode != Mode::YieldingToPolls {
            self.own_time = None;
            self.trust = 0;
            return Moment {
                patience: PATIENCE,
                spins: mode == Mode::Watching && self.spins_still(),
                relied_on: None,
            };
        }
        Moment {
            patience: self.patience(),
            spins: false,
            relied_on: Some(Start {
                at: urxe_net::now(),
                calls: engine.polling.calls(),
                spent: time_of(ClockId::ProcessCPUTime),
            }),
        }
    }

    /// Returns the time until the next check of a program that polls: checks take at most a
    /// twentieth of a processor's time.
    fn patience(&mut self) -> Duration {
        let own_time = time_of(ClockId::ThreadCPUTime);
        if let Some(before) = self.own_time.replace(own_time) {
            let took = own_time.saturating_sub(before).min(LONGEST_PATIENCE);
            self.cost = (self.cost * 7 + took) / 8;
        }
        self.trust = (2 * self.trust).clamp(1, TRUSTED_LONGER);
        (self.cost * LOOK_SELDOM).clamp(PATIENCE * self.trust, LONGEST_PATIENCE)
    }

    /// Records that packets are waiting although the program was relied on to receive them.
    pub(super) fn found_waiting(&mut self, engine: &Engine, moment: &Moment) {
        if moment.program_computed(engine) {
            self.watchful_until = urxe_net::now() + WATCHFUL;
            engine.polling.program_spins();
        } else {
            // It may have begun to poll memory during the last interval.
            self.trust = 0;
        }
    }

    /// Receives the packets that have arrived and those that follow closely, for at most
    /// [`PATIENCE`].
    pub(super) fn watch(&mut self, engine: &Engine) {
        let (start, polls) = (urxe_net::now(), engine.polling.polls());
        let mut now = start;
        let mut found = false;
        if self.is_contended(now) && engine.polling.is_called() {
            // A thread in a poll receives by itself, and would end its call and poll memory if it
            // found this thread receiving. A thread in a post does not receive, so this is done
            // only once.
            std::thread::sleep(GIVE_WAY);
            now = urxe_net::now();
        }
        while now.since(start) < PATIENCE {
            let before = now;
            let worked = engine.drive();
            now = urxe_net::now();
            found |= worked;
            if worked {
                let bytes = engine.net_counters().map_or(0, |net| net.bytes_in.get());
                self.is_long = bytes.wrapping_sub(self.bytes) >= LONG_MESSAGE;
                self.bytes = bytes;
                // A program that polls, however seldom, receives by itself.
                let alone = engine.polling.polls() == polls;
                self.spins = alone && before.since(self.received_at) < self.spin();
                self.received_at = now;
                continue;
            }
            self.look = (self.look * 7 + now.since(before)) / 8;
            let spins = self.spins_still();
            // Another thread may need this processor: one of the peer, or one of the program that
            // receives in its call when this thread received nothing.
            let gives_way = !found && engine.polling.is_called();
            if gives_way && self.is_contended(now) {
                std::thread::sleep(GIVE_WAY);
            } else if spins || gives_way {
                let before = urxe_net::now();
                rustix::thread::sched_yield();
                now = urxe_net::now();
                self.contention.yielded(now, now.since(before));
            }
            if !spins {
                break;
            }
        }
    }

    /// Returns whether packets follow each other closely, the last one arrived within
    /// [`Seen::spin`], and no other thread is expected to keep the processor.
    fn spins_still(&self) -> bool {
        let now = urxe_net::now();
        let is_close = self.spins && now.since(self.received_at) < self.spin();
        is_close && !self.is_contended(now)
    }

    /// Returns whether to sleep instead of yielding.
    fn is_contended(&self, now: Time) -> bool {
        self.contention.is_expected(now) && !self.is_long
    }

    /// Returns the busy-poll time, which is also the largest gap between packets that counts as
    /// short.
    fn spin(&self) -> Duration {
        (self.look * SPIN_LOOKS).clamp(SPIN, LONGEST_SPIN)
    }
}

impl Moment {
    /// Returns whether the program was relied on, and is in no post or poll.
    pub(super) fn program_is_elsewhere(&self, engine: &Engine) -> bool {
        self.relied_on.is_some() && !engine.polling.is_called()
    }

    /// Returns whether the program, which was relied on, ran without a post or a poll. A program
    /// that was preempted could not poll, and is no application that polls memory. A sleep shorter
    /// than [`PATIENCE`], which a flush timeout ended, shows nothing.
    fn program_computed(&self, engine: &Engine) -> bool {
        let Some(start) = &self.relied_on else {
            return false;
        };
        let is_silent = engine.polling.calls() == start.calls && !engine.polling.is_called();
        let elapsed = urxe_net::now().since(start.at);
        let spent = || time_of(ClockId::ProcessCPUTime).saturating_sub(start.spent);
        is_silent && elapsed >= PATIENCE && spent() >= elapsed / 2
    }
}

/// Returns the time of a clock of the process or of this thread.
fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_long_yields_contention_is_expected_for_longer_each_time() {
        let mut contention = Contention::default();
        let mut now = Time(1_000_000_000);
        contention.yielded(now, LONG_YIELD - Duration::from_nanos(1));
        assert!(!contention.is_expected(now));
        for milliseconds in [100, 200, 400, 800, 1600, 1600] {
            contention.yielded(now, LONG_YIELD);
            let period = Duration::from_millis(milliseconds);
            assert!(contention.is_expected(now + (period - Duration::from_nanos(1))));
            now = now + period;
            assert!(!contention.is_expected(now));
        }
        contention.yielded(now, Duration::ZERO);
        contention.yielded(now, LONG_YIELD);
        assert!(!contention.is_expected(now + CONTENDED));
    }
}
