//! What the progress thread sees of the program, and how it sleeps by that.

use super::Engine;
use super::handover::Mode;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use urxe_proto::time::Time;

/// How long the program may be silent before its packets are looked after.
const PATIENCE: Duration = Duration::from_millis(1);

/// The same where a look takes long.
const LONGEST_PATIENCE: Duration = Duration::from_millis(8);

/// How many times longer than a look the time between two is at least.
const LOOK_SELDOM: u32 = 20;

/// How much longer the program may be silent that was found polling at each of the last looks. A look costs the program
/// more than it costs the thread: an interrupt, twice a change of threads, and on a virtual machine what its host makes of it.
const TRUSTED_LONGER: u32 = 4;

/// How many polls within [`PATIENCE`] say that the program polls all the time. One that waits for
/// events polls once or twice for each, and its completion queue is armed while it waits.
const BUSY_POLLS: u64 = 8;

/// How long packets are watched for after a program was found to wait for one without receiving, as
/// one does that spins on memory until its peer has written there. It may well poll, for completions
/// of sends that are there at once. For each such time there is one
/// packet that had to wait for [`PATIENCE`].
const WATCHFUL: Duration = Duration::from_millis(100);

/// How long to look for packets before sleeping, where the last one came within that time: to be woken takes a
/// large part of it. So a thread that sleeps a lot never does.
const SPIN: Duration = Duration::from_micros(50);

/// The same in looks, where a look takes long, as on an emulated machine: so does the peer's answer there.
const SPIN_LOOKS: u32 = 20;

/// But no longer than this.
const LONGEST_SPIN: Duration = Duration::from_micros(500);

/// A `sched_yield` that takes this long has given the processor to a thread that keeps it. Where the
/// kernel lets a thread that yields forfeit its slice, the next chance to run may come with the
/// scheduler's tick.
const LONG_YIELD: Duration = Duration::from_micros(500);

/// So many bytes since the last packet are part of a long message, of which more is coming. The
/// thread spins and yields then as if no other thread wanted the processor: a program that polls
/// memory receives the rest faster in its own calls than the two do in turns.
const LONG_MESSAGE: u64 = 16 << 10;

/// How long the thread leaves packets to a thread of the program that is in one of our calls. It
/// sleeps, since that thread may poll memory when its call ends, and would not return the processor
/// to a thread that has yielded.
const GIVE_WAY: Duration = Duration::from_micros(20);

/// How long the thread sleeps between packets instead of spinning after a long yield. A packet that
/// wakes a sleeping thread lets it preempt, which no packet does for a thread that has yielded. The
/// time doubles with each long yield, since finding out anew costs one more of them.
const CONTENDED: Duration = Duration::from_millis(100);
const LONGEST_CONTENDED: Duration = Duration::from_millis(1600);

/// Whether other threads want the processor that the progress thread runs on.
#[derive(Default)]
struct Contention {
    /// Until when they are expected to.
    until: Time,
    /// For how long that was expected last.
    period: Duration,
}

impl Contention {
    fn is_expected(&self, now: Time) -> bool {
        now < self.until
    }

    /// A `sched_yield` that returned at `now` took this long.
    fn yielded(&mut self, now: Time, took: Duration) {
        if took < LONG_YIELD {
            self.period = Duration::ZERO;
            return;
        }
        self.period = (2 * self.period).clamp(CONTENDED, LONGEST_CONTENDED);
        self.until = now + self.period;
    }
}

/// What the thread saw of the program so far.
#[derive(Default)]
pub(super) struct Seen {
    polls: u64,
    /// The time that the program spent receiving.
    spent: Duration,
    /// When it looked at both.
    polls_at: Time,
    /// How often the program's polls received what it would have spun for.
    paid: u64,
    returns: u64,
    /// Until when not to rely on the program's polling.
    watchful_until: Time,
    /// When packets were there last, in watching.
    received_at: Time,
    /// The last pause between packets was short.
    spins: bool,
    contention: Contention,
    /// What the process received last was part of a long message.
    is_long: bool,
    /// The bytes that the process had received by then.
    bytes: u64,
    /// How long a look in watching takes that finds nothing, about.
    look: Duration,
    /// How long a look takes, about.
    cost: Duration,
    /// The time that the thread had spent at the last, if that was just before.
    own_time: Option<Duration>,
    /// How many times longer than [`PATIENCE`] the program is relied on.
    trust: u32,
}

/// A moment in which the thread sleeps.
pub(super) struct Moment {
    /// For how long, if the program may still be at it then.
    pub(super) patience: Duration,
    /// Whether not to sleep at all, since more packets are expected.
    pub(super) spins: bool,
    /// What was when it began, if the program is relied on.
    relied_on: Option<Start>,
}

struct Start {
    at: Time,
    calls: u64,
    /// The process's time.
    spent: Duration,
}

impl Seen {
    /// How to sleep, by what happened since the last time.
    pub(super) fn choose(&mut self, engine: &Engine) -> Mode {
        let now = urxe_net::now();
        let polls = self.look_at_polls(engine, now) && now >= self.watchful_until;
        engine.handover.choose(polls, &mut self.returns)
    }

    /// Whether the program polls all the time.
    fn look_at_polls(&mut self, engine: &Engine, now: Time) -> bool {
        let (polls, spent) = (engine.polling.polls(), engine.polling.spent(now));
        let polled = polls.wrapping_sub(self.polls);
        let elapsed = now.since(self.polls_at);
        // Where each poll takes long there are few of them.
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

    /// The thread is about to sleep in this way.
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

    /// How long to let the program poll before the next look: no more than a twentieth of a processor's time goes
    /// for looking.
    fn patience(&mut self) -> Duration {
        let own_time = time_of(ClockId::ThreadCPUTime);
        if let Some(before) = self.own_time.replace(own_time) {
            let took = own_time.saturating_sub(before).min(LONGEST_PATIENCE);
            self.cost = (self.cost * 7 + took) / 8;
        }
        self.trust = (2 * self.trust).clamp(1, TRUSTED_LONGER);
        (self.cost * LOOK_SELDOM).clamp(PATIENCE * self.trust, LONGEST_PATIENCE)
    }

    /// Packets wait for the program, which was relied on and does not receive them at this moment.
    pub(super) fn found_waiting(&mut self, engine: &Engine, moment: &Moment) {
        if moment.program_computed(engine) {
            self.watchful_until = urxe_net::now() + WATCHFUL;
            engine.polling.program_spins();
        } else {
            // It may have begun to look at memory a while ago.
            self.trust = 0;
        }
    }

    /// Receives what is there, and what follows closely; but others have their turn after a while.
    pub(super) fn watch(&mut self, engine: &Engine) {
        let (start, polls) = (urxe_net::now(), engine.polling.polls());
        let mut now = start;
        let mut found = false;
        if self.is_contended(now) && engine.polling.is_called() {
            // A thread that polls receives by itself, and would end its call and poll memory if it
            // found this thread receiving. One that posts does not, so this is done once.
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
                // A program that polls, however seldom, looks for itself.
                let alone = engine.polling.polls() == polls;
                self.spins = alone && before.since(self.received_at) < self.spin();
                self.received_at = now;
                continue;
            }
            self.look = (self.look * 7 + now.since(before)) / 8;
            let spins = self.spins_still();
            // Others may need this very processor: a thread of the peer's, or one of the program's that
            // receives where nothing was found.
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

    /// Whether packets were there within the time of [`Seen::spin`], and follow each other closely, and
    /// no other thread is expected to keep the processor.
    fn spins_still(&self) -> bool {
        let now = urxe_net::now();
        let is_close = self.spins && now.since(self.received_at) < self.spin();
        is_close && !self.is_contended(now)
    }

    /// Whether to sleep rather than to yield.
    fn is_contended(&self, now: Time) -> bool {
        self.contention.is_expected(now) && !self.is_long
    }

    /// What counts as closely.
    fn spin(&self) -> Duration {
        (self.look * SPIN_LOOKS).clamp(SPIN, LONGEST_SPIN)
    }
}

impl Moment {
    /// Whether the program was relied on, and is in none of our calls.
    pub(super) fn program_is_elsewhere(&self, engine: &Engine) -> bool {
        self.relied_on.is_some() && !engine.polling.is_called()
    }

    /// Whether the program, which was relied on, had a processor and was in none of our calls: one that was
    /// preempted could not poll, and is none that looks at memory. Nor is one that was left alone for a moment only, until
    /// an alarm went off.
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

/// What a clock of the process's, or of this thread's, shows.
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
