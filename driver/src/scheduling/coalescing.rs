//! Send coalescing: which sends are transmitted at once, and which are deferred for those that
//! follow.
//!
//! A send that is transmitted alone costs a system call and a pass through the kernel's network
//! stack, several times the cost of its handling here. An application that posts many small sends
//! in a row, each with a call of its own, gets the same batches as one that posts a list. To add no
//! noticeable delay, a send is deferred only if
//!
//! - it is not among the first `SENDS_AT_ONCE` after a poll: an application that posts one send and
//!   polls for its completion is not delayed;
//! - it follows the last post within `COALESCE_INTERVAL`: an application that polls memory for its
//!   peer's answer needs longer;
//! - no back-off after a flush timeout is in force.

use super::limits::{
    COALESCE_INTERVAL, MAX_BACK_OFF, MAX_COALESCED_BYTES, MAX_COALESCED_SENDS, MAX_DEFERRAL,
    MIN_BACK_OFF, SENDS_AT_ONCE,
};
use std::time::Duration;
use urxe_proto::time::Time;

/// The deferred sends of one queue pair, and the state by which the policy decides.
#[derive(Debug, Default)]
pub(crate) struct Coalescing {
    /// The process's number of polls at the last post.
    polls: u64,
    /// The number of posts since the last poll.
    posts: u32,
    /// The time at which the last post returned.
    posted_at: Time,
    /// The deferred sends, their bytes, and the time of the first.
    sends: u32,
    bytes: u64,
    since: Time,
    /// The last back-off. It doubles with each flush timeout.
    back_off: Duration,
    /// The end of the back-off.
    back_off_until: Time,
    /// Whether the queue pair is on the engine's list of those with deferred sends.
    listed: bool,
}

impl Coalescing {
    /// Decides whether sends that have just been posted are deferred. If not, the caller transmits
    /// them with all that is deferred. `polls` is the process's number of polls. With the first
    /// deferred send, `list` is called to register the queue pair with the engine; its argument is
    /// whether it is registered already.
    pub(crate) fn defer(
        &mut self,
        now: Time,
        polls: u64,
        (sends, bytes): (u32, u64),
        list: impl FnOnce(bool),
    ) -> bool {
        let begins = self.is_empty();
        let waits = self.must_defer(now, polls, sends, bytes);
        if waits && begins {
            list(std::mem::replace(&mut self.listed, true));
        }
        waits
    }

    /// Records that the engine has taken the queue pair off its list. Returns whether sends are
    /// deferred.
    pub(crate) fn remove_from_list(&mut self) -> bool {
        self.listed = false;
        !self.is_empty()
    }

    fn must_defer(&mut self, now: Time, polls: u64, sends: u32, bytes: u64) -> bool {
        if std::mem::replace(&mut self.polls, polls) != polls {
            self.posts = 0;
        }
        self.posts = self.posts.saturating_add(1);
        let follows = now.since(self.posted_at) < COALESCE_INTERVAL;
        if self.posts <= SENDS_AT_ONCE || !follows || now < self.back_off_until {
            return false;
        }
        if self.sends == 0 {
            self.since = now;
        }
        let (all, size) = (self.sends + sends, self.bytes + bytes);
        if all >= MAX_COALESCED_SENDS
            || size >= MAX_COALESCED_BYTES
            || now.since(self.since) >= MAX_DEFERRAL
        {
            self.flushed_in_time();
            return false;
        }
        (self.sends, self.bytes) = (all, size);
        self.posted_at = now;
        true
    }

    /// Records that a post has returned whose sends were transmitted at once. `now` reads the time,
    /// if the next post may be deferred.
    pub(crate) fn posted(&mut self, now: impl FnOnce() -> Time) {
        if self.posts >= SENDS_AT_ONCE {
            self.posted_at = now();
        }
    }

    /// Returns whether nothing is deferred.
    pub(crate) fn is_empty(&self) -> bool {
        self.sends == 0
    }

    /// Records that the deferred sends are being transmitted. Returns how many there are.
    pub(crate) fn release(&mut self) -> u32 {
        self.bytes = 0;
        std::mem::take(&mut self.sends)
    }

    /// Resets the back-off: a call of the application flushes the deferred sends.
    pub(crate) fn flushed_in_time(&mut self) {
        self.back_off = Duration::ZERO;
    }

    /// Starts a back-off: the flush timeout has expired, so the application may be polling memory.
    /// Each consecutive one is twice as long, up to `MAX_BACK_OFF`.
    pub(crate) fn flush_timed_out(&mut self, now: Time) {
        self.back_off = (self.back_off * 2).clamp(MIN_BACK_OFF, MAX_BACK_OFF);
        self.back_off_until = now + self.back_off;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_nanos(100);

    /// An application that posts sends of 64 bytes, one by one and in a row.
    struct Program {
        coalescing: Coalescing,
        now: Time,
        polls: u64,
    }

    impl Program {
        fn new() -> Self {
            Program {
                coalescing: Coalescing::default(),
                now: Time(1_000_000_000),
                polls: 1,
            }
        }

        fn post_bytes(&mut self, bytes: u64) -> bool {
            self.now = self.now + SOON;
            let waits = self.coalescing.must_defer(self.now, self.polls, 1, bytes);
            if !waits {
                self.coalescing.release();
                self.coalescing.posted(|| self.now);
            }
            waits
        }

        fn post(&mut self) -> bool {
            self.post_bytes(64)
        }

        /// Returns an application that has posted enough for its next send to be deferred.
        fn busy() -> Self {
            let mut program = Program::new();
            for _ in 0..SENDS_AT_ONCE {
                program.post();
            }
            program
        }
    }

    #[test]
    fn the_first_two_sends_after_a_poll_are_not_deferred() {
        let mut program = Program::new();
        for _ in 0..3 {
            assert!(!program.post());
            assert!(!program.post());
            assert!(program.post());
            assert!(program.post());
            program.polls += 1;
            program.coalescing.release();
        }
    }

    #[test]
    fn a_batch_has_at_most_32_sends() {
        let mut program = Program::busy();
        for _ in 1..MAX_COALESCED_SENDS {
            assert!(program.post());
        }
        assert!(!program.post());
        assert!(program.coalescing.is_empty());
        assert!(program.post());
    }

    #[test]
    fn a_message_that_fills_a_batch_is_never_deferred() {
        let mut program = Program::busy();
        for _ in 0..10 {
            assert!(!program.post_bytes(65_536));
        }
    }

    #[test]
    fn deferred_bytes_fit_one_gso_send() {
        let mut program = Program::busy();
        let waited = (0..100).take_while(|_| program.post_bytes(4096)).count() as u64;
        assert!((waited + 1) * 4096 >= MAX_COALESCED_BYTES && waited * 4096 < MAX_COALESCED_BYTES);
    }

    #[test]
    fn the_first_deferred_send_waits_20_us_at_most() {
        let mut program = Program::busy();
        assert!(program.post());
        let first = program.now;
        while program.now.since(first) + SOON < MAX_DEFERRAL {
            program.now = program.now + Duration::from_micros(2);
            if !program.post() {
                break;
            }
        }
        assert!(program.coalescing.is_empty());
        assert!(program.now.since(first) <= MAX_DEFERRAL + COALESCE_INTERVAL);
    }

    #[test]
    fn a_post_after_a_gap_flushes_the_deferred_sends() {
        let mut program = Program::busy();
        assert!(program.post());
        program.now = program.now + COALESCE_INTERVAL;
        assert!(!program.post());
        assert!(program.coalescing.is_empty());
    }

    #[test]
    fn each_flush_timeout_doubles_the_back_off() {
        let mut program = Program::busy();
        let mut expected = MIN_BACK_OFF;
        for _ in 0..10 {
            assert!(program.post());
            program.coalescing.release();
            program.coalescing.flush_timed_out(program.now);
            let left = program.now;
            while !program.post() {
                program.now = program.now + Duration::from_micros(4);
            }
            let silent = program.now.since(left);
            assert!(silent >= expected && silent < expected + COALESCE_INTERVAL);
            expected = (expected * 2).min(MAX_BACK_OFF);
            program.coalescing.release();
        }
        program.coalescing.flushed_in_time();
        program.coalescing.flush_timed_out(program.now);
        assert_eq!(
            program.coalescing.back_off_until,
            program.now + MIN_BACK_OFF
        );
    }
}
