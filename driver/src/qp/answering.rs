//! Which acknowledgements wait a moment for the program's answer, to go to the kernel with it.
//!
//! A program that has polled for a message, and answers it at once, would otherwise wait until the acknowledgement
//! has gone its way through the kernel, which takes as long as the answer itself. So it waits, if the
//! program has answered the messages before before it polled in vain again; its next such poll, or its next
//! wait, sends it as well.

use std::time::Duration;
use urxe_proto::time::Time;

/// How soon an answer has to be posted.
const SOON: Duration = Duration::from_micros(20);

/// How many messages in a row have to be answered so.
const TRUSTED: u32 = 2;

/// What is known of how the program answers, and whether an acknowledgement waits.
#[derive(Debug, Default)]
pub(super) struct Answering {
    /// How many messages the program has answered soon, in a row.
    answered: u32,
    /// When the last message came that it has not answered, and how often it had polled in vain then.
    open: Option<(Time, u64)>,
    held: bool,
    /// The engine has the queue pair on its list of those with an acknowledgement that waits.
    listed: bool,
}

impl Answering {
    /// A message has come to a program that polls, and its acknowledgement is all that there is to send: whether it waits.
    /// `polls` is how often the program has polled in vain so far.
    pub(super) fn holds(&mut self, now: Time, polls: u64) -> bool {
        if self.open.replace((now, polls)).is_some() {
            self.answered = 0;
        }
        self.held = self.answered >= TRUSTED;
        self.held
    }

    /// The program posts.
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

    /// The engine has to know of what waits: whether it has the queue pair on its list already.
    pub(super) fn list(&mut self) -> bool {
        std::mem::replace(&mut self.listed, true)
    }

    /// The engine has taken the queue pair off its list. Whether an acknowledgement waits.
    pub(super) fn unlist(&mut self) -> bool {
        self.listed = false;
        self.held
    }

    /// What waited goes out. False when nothing did.
    pub(super) fn release(&mut self) -> bool {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_nanos(100);

    /// A program that has answered so many messages soon.
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
