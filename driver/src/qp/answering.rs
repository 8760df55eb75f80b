//! Delayed ACK: which acknowledgements wait for the application's answer, to be sent in the same
//! batch (piggybacked ACK).
//!
//! An application that polls a message and answers at once would otherwise wait until the kernel
//! has sent the ACK, which takes as long as the answer itself. The ACK is delayed only if the
//! application has answered the last messages promptly, before its next empty poll. An empty poll
//! or a wait of the application sends a delayed ACK.

use std::time::Duration;
use urxe_proto::time::Time;

/// Longest time from a message to the post that answers it promptly.
const SOON: Duration = Duration::from_micros(20);

/// Consecutive messages with a prompt answer before an ACK is delayed.
const TRUSTED: u32 = 2;

/// Whether the application answers promptly, and whether an ACK is delayed now.
#[derive(Debug, Default)]
pub(super) struct Answering {
    /// Consecutive messages that the application has answered promptly.
    answered: u32,
    /// The arrival of the last unanswered message, and the number of empty polls at that time.
    open: Option<(Time, u64)>,
    held: bool,
    /// The engine lists the queue pair among those with a delayed ACK.
    listed: bool,
}

impl Answering {
    /// Decides whether the ACK for a message is delayed. The application's poll received the
    /// message, and the ACK is all that there is to send. `polls` is the process's number of empty
    /// polls.
    pub(super) fn holds(&mut self, now: Time, polls: u64) -> bool {
        if self.open.replace((now, polls)).is_some() {
            self.answered = 0;
        }
        self.held = self.answered >= TRUSTED;
        self.held
    }

    /// Records a post: it answers the last message, if one is unanswered.
    pub(super) fn posted(&mut self, now: Time, polls: u64) {
        if let Some((at, before)) = self.open.take() {
            let soon = polls == before && now.since(at) < SOON;
            self.answered = if soon {
                self.answered.saturating_add(1)
            } else {
                0
            };
        }
    }

    /// Notes that the queue pair is registered with the engine. Returns whether it was already.
    pub(super) fn list(&mut self) -> bool {
        std::mem::replace(&mut self.listed, true)
    }

    /// Notes that the engine has taken the queue pair off its list. Returns whether an ACK is
    /// delayed.
    pub(super) fn unlist(&mut self) -> bool {
        self.listed = false;
        self.held
    }

    /// Notes that the ACK is being sent. Returns whether one was delayed.
    pub(super) fn release(&mut self) -> bool {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_nanos(100);

    /// Returns the state, the time and the empty polls after `count` prompt answers.
    fn answering(count: u32) -> (Answering, Time, u64) {
        let (mut answering, mut now, mut polls) = (Answering::default(), Time(1_000_000), 0);
        for _ in 0..count {
            polls += 3;
            now = now + MOMENT;
            answering.holds(now, polls);
            now = now + MOMENT;
            answering.posted(now, polls);
            answering.release();
        }
        (answering, now, polls)
    }

    #[test]
    fn who_has_answered_twice_is_trusted() {
        let (mut answering, now, polls) = answering(TRUSTED - 1);
        assert!(!answering.holds(now, polls + 1));
        answering.posted(now + MOMENT, polls + 1);
        assert!(answering.holds(now + MOMENT, polls + 2));
        assert!(answering.release());
        assert!(!answering.release());
    }

    #[test]
    fn who_polls_in_vain_before_answering_is_not() {
        let (mut answering, now, polls) = answering(TRUSTED);
        assert!(answering.holds(now, polls + 1));
        answering.posted(now, polls + 2);
        assert!(!answering.holds(now, polls + 3));
    }

    #[test]
    fn who_takes_long_is_not() {
        let (mut answering, now, polls) = answering(TRUSTED);
        assert!(answering.holds(now, polls + 1));
        answering.posted(now + SOON, polls + 1);
        assert!(!answering.holds(now + SOON, polls + 2));
    }

    #[test]
    fn who_gets_a_second_message_first_is_not() {
        let (mut answering, now, polls) = answering(TRUSTED);
        assert!(answering.holds(now, polls + 1));
        assert!(!answering.holds(now, polls + 1));
    }
}
