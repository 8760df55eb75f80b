//! Delayed ACK: which acknowledgements wait for the application's answer, to be sent in the same
//! batch (piggybacked ACK).
//!
//! An application that receives a message and answers at once would otherwise wait until the kernel
//! has sent the ACK, which takes as long as the answer itself. If the peer sleeps until a
//! completion event, the ACK would wake it once more. The ACK is delayed only if the application
//! has answered the last messages promptly, before its next empty poll. An empty poll or a wait of
//! the application sends a delayed ACK; requesting a notification does not.

use super::limits::{PROMPT_REPLY_COUNT, PROMPT_REPLY_TIME};
use urxe_proto::time::Time;

/// The delayed ACK of one queue pair, and the state by which the policy decides.
#[derive(Debug, Default)]
pub(crate) struct DelayedAck {
    /// The number of consecutive messages that the application has answered promptly.
    answered: u32,
    /// The arrival of the last unanswered message, and the number of empty polls at that time.
    open: Option<(Time, u64)>,
    is_delayed: bool,
    /// Whether the queue pair is on the engine's list of those with a delayed ACK.
    listed: bool,
}

impl DelayedAck {
    /// Decides whether the ACK for a message is delayed. A poll or a wait of the application
    /// received the message, and the ACK is all that there is to send. `polls` is the process's
    /// number of empty polls.
    pub(crate) fn delays(&mut self, now: Time, polls: u64) -> bool {
        if self.open.replace((now, polls)).is_some() {
            self.answered = 0;
        }
        self.is_delayed = self.answered >= PROMPT_REPLY_COUNT;
        self.is_delayed
    }

    /// Records a post: it answers the last message, if one is unanswered.
    pub(crate) fn posted(&mut self, now: Time, polls: u64) {
        if let Some((at, before)) = self.open.take() {
            let soon = polls == before && now.since(at) < PROMPT_REPLY_TIME;
            self.answered = if soon {
                self.answered.saturating_add(1)
            } else {
                0
            };
        }
    }

    /// Records that the queue pair is registered with the engine. Returns whether it was already.
    pub(crate) fn list(&mut self) -> bool {
        std::mem::replace(&mut self.listed, true)
    }

    /// Records that the engine has taken the queue pair off its list. Returns whether an ACK is
    /// delayed.
    pub(crate) fn remove_from_list(&mut self) -> bool {
        self.listed = false;
        self.is_delayed
    }

    /// Records that the ACK is being sent. Returns whether one was delayed.
    pub(crate) fn release(&mut self) -> bool {
        std::mem::take(&mut self.is_delayed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const STEP: Duration = Duration::from_nanos(100);

    /// Returns the state, the time and the empty polls after `count` prompt answers.
    fn delayed_ack(count: u32) -> (DelayedAck, Time, u64) {
        let (mut delayed_ack, mut now, mut polls) = (DelayedAck::default(), Time(1_000_000), 0);
        for _ in 0..count {
            polls += 3;
            now = now + STEP;
            delayed_ack.delays(now, polls);
            now = now + STEP;
            delayed_ack.posted(now, polls);
            delayed_ack.release();
        }
        (delayed_ack, now, polls)
    }

    #[test]
    fn an_ack_is_delayed_after_two_prompt_answers() {
        let (mut delayed_ack, now, polls) = delayed_ack(PROMPT_REPLY_COUNT - 1);
        assert!(!delayed_ack.delays(now, polls + 1));
        delayed_ack.posted(now + STEP, polls + 1);
        assert!(delayed_ack.delays(now + STEP, polls + 2));
        assert!(delayed_ack.release());
        assert!(!delayed_ack.release());
    }

    #[test]
    fn an_empty_poll_before_the_answer_ends_the_delay() {
        let (mut delayed_ack, now, polls) = delayed_ack(PROMPT_REPLY_COUNT);
        assert!(delayed_ack.delays(now, polls + 1));
        delayed_ack.posted(now, polls + 2);
        assert!(!delayed_ack.delays(now, polls + 3));
    }

    #[test]
    fn a_late_answer_ends_the_delay() {
        let (mut delayed_ack, now, polls) = delayed_ack(PROMPT_REPLY_COUNT);
        assert!(delayed_ack.delays(now, polls + 1));
        delayed_ack.posted(now + PROMPT_REPLY_TIME, polls + 1);
        assert!(!delayed_ack.delays(now + PROMPT_REPLY_TIME, polls + 2));
    }

    #[test]
    fn a_second_message_before_the_answer_ends_the_delay() {
        let (mut delayed_ack, now, polls) = delayed_ack(PROMPT_REPLY_COUNT);
        assert!(delayed_ack.delays(now, polls + 1));
        assert!(!delayed_ack.delays(now, polls + 1));
    }
}
