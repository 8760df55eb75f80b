//! Moderation of completion events: one event for several completions, so that a program that
//! sleeps between them wakes up less often.

use std::time::Duration;
use urxe_proto::time::Time;

/// The limits of the delay of an event. The first one that is reached ends the delay. Zero means no
/// limit; without limits there is no delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moderation {
    /// The number of completions.
    pub count: u16,
    /// The time since the first of them, in microseconds.
    pub period: u16,
}

/// The decision about the event for a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The event is delivered now.
    Notify,
    /// The event waits for more completions, until this time at most.
    WaitUntil(Time),
    /// The event, which is delayed already, continues to wait.
    Wait,
}

/// The moderation of the events of one completion queue.
#[derive(Debug)]
pub(crate) struct Moderator {
    moderation: Moderation,
    /// Completions since the last event.
    pending: u16,
    /// The end of the current delay; [`Time::NEVER`] when there is none.
    until: Time,
}

impl Default for Moderator {
    fn default() -> Self {
        Moderator {
            moderation: Moderation::default(),
            pending: 0,
            until: Time::NEVER,
        }
    }
}

impl Moderator {
    pub(crate) fn set(&mut self, moderation: Moderation) {
        self.moderation = moderation;
    }

    /// Counts a completion for which an event is requested, and decides about that event. `full` is
    /// whether the completion queue has no room for more.
    pub(crate) fn decide(&mut self, full: bool, now: impl FnOnce() -> Time) -> Verdict {
        let Moderation { count, period } = self.moderation;
        self.pending = self.pending.saturating_add(1);
        let enough = count > 0 && self.pending >= count;
        if full || enough || count == 0 && period == 0 {
            self.reset();
            Verdict::Notify
        } else if period > 0 && self.until == Time::NEVER {
            self.until = now() + Duration::from_micros(period.into());
            Verdict::WaitUntil(self.until)
        } else {
            Verdict::Wait
        }
    }

    /// Returns whether the delay of an event has ended at `now`.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.until <= now
    }

    /// Starts over after an event.
    pub(crate) fn reset(&mut self) {
        self.pending = 0;
        self.until = Time::NEVER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(1_000);

    fn moderator(count: u16, period: u16) -> Moderator {
        let mut moderator = Moderator::default();
        moderator.set(Moderation { count, period });
        moderator
    }

    fn verdicts(moderator: &mut Moderator, n: usize) -> Vec<Verdict> {
        (0..n).map(|_| moderator.decide(false, || NOW)).collect()
    }

    #[test]
    fn without_limits_every_completion_notifies() {
        assert_eq!(verdicts(&mut moderator(0, 0), 2), [Verdict::Notify; 2]);
        assert_eq!(verdicts(&mut moderator(1, 50), 2), [Verdict::Notify; 2]);
    }

    #[test]
    fn moderation_notifies_after_each_count() {
        use Verdict::{Notify, Wait};
        let seen = verdicts(&mut moderator(3, 0), 6);
        assert_eq!(seen, [Wait, Wait, Notify, Wait, Wait, Notify]);
    }

    #[test]
    fn the_period_runs_from_the_first_completion() {
        let mut moderator = moderator(0, 7);
        let end = Time(8_000);
        assert_eq!(
            verdicts(&mut moderator, 2),
            [Verdict::WaitUntil(end), Verdict::Wait]
        );
        assert!(!moderator.is_due(Time(7_999)));
        assert!(moderator.is_due(end));
        moderator.reset();
        assert!(!moderator.is_due(Time(9_000)));
    }

    #[test]
    fn a_full_completion_queue_notifies_at_once() {
        assert_eq!(moderator(9, 0).decide(true, || NOW), Verdict::Notify);
    }
}
