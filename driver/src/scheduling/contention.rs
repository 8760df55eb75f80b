//! Contention for a processor: whether a thread that waits for packets sleeps, or polls and yields.
//!
//! A thread that yields forfeits its time slice. If another thread computes on the same processor,
//! the yield returns after a time slice of that thread, some milliseconds later, and no packet ends
//! it earlier. A sleeping thread that a packet wakes preempts the other one, so a sleep costs only
//! the wake-up. Without contention, the wake-up is most of the latency.
//!
//! Only another yield shows whether contention persists. So the thread sleeps between packets until
//! the wake-ups have cost as much as the long yield, and then yields again. This costs at most
//! twice as much as the better choice. While contention persists, each such trial doubles the
//! number of wake-ups before the next one.

use super::limits::{CONTENTION, LONG_YIELD_THRESHOLD, MAX_CONTENTION_FACTOR, WAKE_UP_COST};
use std::time::Duration;
use urxe_proto::time::Time;

/// The contention that a thread expects, from the durations of its yields.
#[derive(Debug, Default)]
pub(crate) struct Contention {
    /// The time of the last long yield.
    since: Time,
    /// The time until which contention is expected.
    until: Time,
    /// The cost of the further wake-ups after which contention is no longer expected.
    budget: Duration,
    /// The cost of the wake-ups before the next trial, in units of the cost of the long yield.
    factor: u32,
}

impl Contention {
    /// Returns whether a thread that waits should sleep instead of yielding.
    pub(crate) fn is_expected(&self, now: Time) -> bool {
        now < self.until
    }

    /// Records a `sched_yield` that returned at `now` after `took`.
    pub(crate) fn yielded(&mut self, now: Time, took: Duration) {
        if took < LONG_YIELD_THRESHOLD {
            return;
        }
        // Contention persists unless it was absent for longer than it was last expected.
        let persists = now.since(self.until) < self.until.since(self.since) + took;
        self.factor = match persists {
            true => (2 * self.factor).clamp(1, MAX_CONTENTION_FACTOR),
            false => 1,
        };
        self.since = now;
        self.until = now + CONTENTION * self.factor;
        self.budget = took * self.factor;
    }

    /// Records at `now` that the thread, which slept because contention was expected, woke up.
    pub(crate) fn woke(&mut self, now: Time) {
        self.budget = self.budget.saturating_sub(WAKE_UP_COST);
        if self.budget.is_zero() {
            self.until = self.until.min(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time(1_000_000_000);
    const YIELD: Duration = Duration::from_millis(3);

    /// Returns the wake-ups after `now` until contention is no longer expected.
    fn wake_ups(contention: &mut Contention, now: Time) -> u32 {
        let mut count = 0;
        while contention.is_expected(now) && count < 10_000 {
            contention.woke(now);
            count += 1;
        }
        count
    }

    #[test]
    fn short_yields_are_no_contention() {
        let mut contention = Contention::default();
        contention.yielded(START, LONG_YIELD_THRESHOLD - Duration::from_nanos(1));
        assert!(!contention.is_expected(START));
    }

    #[test]
    fn contention_ends_when_the_wake_ups_have_cost_as_much_as_the_yield() {
        let mut contention = Contention::default();
        contention.yielded(START, YIELD);
        assert_eq!(WAKE_UP_COST * wake_ups(&mut contention, START), YIELD);
    }

    #[test]
    fn contention_ends_without_packets() {
        let mut contention = Contention::default();
        contention.yielded(START, YIELD);
        let end = START + CONTENTION;
        assert!(contention.is_expected(Time(end.0 - 1)));
        assert!(!contention.is_expected(end));
    }

    #[test]
    fn wake_ups_for_each_trial_double_while_contention_persists() {
        let mut contention = Contention::default();
        for factor in [1, 2, 4, 8, 16, 16] {
            contention.yielded(START, YIELD);
            let cost = WAKE_UP_COST * wake_ups(&mut contention, START);
            assert_eq!(cost, YIELD * factor);
            contention.yielded(START, Duration::ZERO);
        }
        contention.yielded(START + Duration::from_secs(1), YIELD);
        let cost = WAKE_UP_COST * wake_ups(&mut contention, START);
        assert_eq!(cost, YIELD, "there was none for longer than it had lasted");
    }
}
