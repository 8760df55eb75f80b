//! Send coalescing: which sends are transmitted at once, and which are deferred for those that
//! follow.
//!
//! A send that is transmitted alone costs a system call and a pass through the kernel's network
//! stack, several times the cost of its handling here. An application that posts many small sends
//! in a row, each with a call of its own, gets the same batches as one that posts a list. To add no
//! noticeable delay, a send is deferred only if
//!
//! - it is not among the first `AT_ONCE` after a poll: an application that posts one send and polls
//!   for its completion is not delayed;
//! - it follows the last post within `CLOSELY`: an application that polls memory for its peer's
//!   answer needs longer;
//! - no back-off after a flush timeout is in force.

use std::time::Duration;
use urxe_proto::time::Time;

/// Posts after each poll whose sends are transmitted at once.
const AT_ONCE: u32 = 2;

/// Batch limit, in sends.
const MOST_SENDS: u32 = 32;

/// Batch limit, in bytes of data: about what the kernel takes in one UDP GSO send. A message of
/// that size is never deferred.
const MOST_BYTES: u64 = 60_000;

/// Longest time that the first deferred send waits while the application keeps posting.
const LONGEST: Duration = Duration::from_micros(20);

/// A post follows closely if it begins within this time after the last post returned. A peer's
/// answer takes longer.
const CLOSELY: Duration = Duration::from_micros(5);

/// First and longest back-off, for which nothing is deferred after a flush timeout.
const FIRST_PENANCE: Duration = Duration::from_millis(1);
const LONGEST_PENANCE: Duration = Duration::from_millis(128);

/// The deferred sends of one queue pair, and the state by which the policy decides.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// The process's number of polls at the last post.
    polls: u64,
    /// Posts since the last poll.
    posts: u32,
    /// The time at which the last post returned.
    posted_at: Time,
    /// The deferred sends, their bytes, and the time of the first.
    sends: u32,
    bytes: u64,
    since: Time,
    /// The last back-off. It doubles with each flush timeout.
    penance: Duration,
    /// The end of the back-off.
    trusted_from: Time,
    /// The engine lists the queue pair among those with deferred sends.
    listed: bool,
}

impl Gathered {
    /// Decides whether sends that have just been posted are deferred. If not, the caller transmits
    /// them with all that is deferred. `polls` is the process's number of polls. With the first
    /// deferred send, `list` is called to register the queue pair with the engine; its argument is
    /// whether it is registered already.
    pub(super) fn wait(
        &mut self,
        now: Time,
        polls: u64,
        (sends, bytes): (u32, u64),
        list: impl FnOnce(bool),
    ) -> bool {
        let begins = self.is_empty();
        let waits = self.waits(now, polls, sends, bytes);
        if waits && begins {
            list(std::mem::replace(&mut self.listed, true));
        }
        waits
    }

    /// Notes that the engine has taken the queue pair off its list. Returns whether sends are
    /// deferred.
    pub(super) fn unlist(&mut self) -> bool {
        self.listed = false;
        !self.is_empty()
    }

    fn waits(&mut self, now: Time, polls: u64, sends: u32, bytes: u64) -> bool {
        if std::mem::replace(&mut self.polls, polls) != polls {
            self.posts = 0;
        }
        self.posts = self.posts.saturating_add(1);
        let follows = now.since(self.posted_at) < CLOSELY;
        if self.posts <= AT_ONCE || !follows || now < self.trusted_from {
            return false;
        }
        if self.sends == 0 {
            self.since = now;
        }
        let (all, size) = (self.sends + sends, self.bytes + bytes);
        if all >= MOST_SENDS || size >= MOST_BYTES || now.since(self.since) >= LONGEST {
            self.collected();
            return false;
        }
        (self.sends, self.bytes) = (all, size);
        self.posted_at = now;
        true
    }

    /// Notes that a post has returned whose sends were transmitted at once.
    pub(super) fn posted(&mut self, now: Time) {
        self.posted_at = now;
    }

    /// Returns whether nothing is deferred.
    pub(super) fn is_empty(&self) -> bool {
        self.sends == 0
    }

    /// Notes that the deferred sends are being transmitted. Returns how many there are.
    pub(super) fn release(&mut self) -> u32 {
        self.bytes = 0;
        std::mem::take(&mut self.sends)
    }

    /// Resets the back-off: a call of the application flushes the deferred sends.
    pub(super) fn collected(&mut self) {
        self.penance = Duration::ZERO;
    }

    /// Starts a back-off: the flush timeout has expired, so the application may be polling memory.
    /// Each one in a row is twice as long, up to `LONGEST_PENANCE`.
    pub(super) fn left_lying(&mut self, now: Time) {
        self.penance = (self.penance * 2).clamp(FIRST_PENANCE, LONGEST_PENANCE);
        self.trusted_from = now + self.penance;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_nanos(100);

    /// An application that posts sends of 64 bytes, one by one and in a row.
    struct Program {
        gathered: Gathered,
        now: Time,
        polls: u64,
    }

    impl Program {
        fn new() -> Self {
            Program {
                gathered: Gathered::default(),
                now: Time(1_000_000_000),
                polls: 1,
            }
        }

        fn post_bytes(&mut self, bytes: u64) -> bool {
            self.now = self.now + SOON;
            let waits = self.gathered.waits(self.now, self.polls, 1, bytes);
            if !waits {
                self.gathered.release();
                self.gathered.posted(self.now);
            }
            waits
        }

        fn post(&mut self) -> bool {
            self.post_bytes(64)
        }

        /// Returns an application that has posted enough for its next send to be deferred.
        fn busy() -> Self {
            let mut program = Program::new();
            for _ in 0..AT_ONCE {
                program.post();
            }
            program
        }
    }

    #[test]
    fn the_first_two_after_a_poll_go_at_once() {
        let mut program = Program::new();
        for _ in 0..3 {
            assert!(!program.post());
            assert!(!program.post());
            assert!(program.post());
            assert!(program.post());
            program.polls += 1;
            program.gathered.release();
        }
    }

    #[test]
    fn no_more_than_32_go_together() {
        let mut program = Program::busy();
        for _ in 1..MOST_SENDS {
            assert!(program.post());
        }
        assert!(!program.post());
        assert!(program.gathered.is_empty());
        assert!(program.post());
    }

    #[test]
    fn a_message_that_fills_a_batch_never_waits() {
        let mut program = Program::busy();
        for _ in 0..10 {
            assert!(!program.post_bytes(65_536));
        }
    }

    #[test]
    fn no_more_bytes_wait_than_go_in_one_piece() {
        let mut program = Program::busy();
        let waited = (0..100).take_while(|_| program.post_bytes(4096)).count() as u64;
        assert!((waited + 1) * 4096 >= MOST_BYTES && waited * 4096 < MOST_BYTES);
    }

    #[test]
    fn the_first_waits_no_longer_than_20_us_while_more_come() {
        let mut program = Program::busy();
        assert!(program.post());
        let first = program.now;
        while program.now.since(first) + SOON < LONGEST {
            program.now = program.now + Duration::from_micros(2);
            if !program.post() {
                break;
            }
        }
        assert!(program.gathered.is_empty());
        assert!(program.now.since(first) <= LONGEST + CLOSELY);
    }

    #[test]
    fn what_does_not_follow_closely_goes_at_once_with_all_that_waits() {
        let mut program = Program::busy();
        assert!(program.post());
        program.now = program.now + CLOSELY;
        assert!(!program.post());
        assert!(program.gathered.is_empty());
    }

    #[test]
    fn a_program_that_leaves_sends_lying_is_trusted_later_each_time() {
        let mut program = Program::busy();
        let mut expected = FIRST_PENANCE;
        for _ in 0..10 {
            assert!(program.post());
            program.gathered.release();
            program.gathered.left_lying(program.now);
            let left = program.now;
            while !program.post() {
                program.now = program.now + Duration::from_micros(4);
            }
            let silent = program.now.since(left);
            assert!(silent >= expected && silent < expected + CLOSELY);
            expected = (expected * 2).min(LONGEST_PENANCE);
            program.gathered.release();
        }
        program.gathered.collected();
        program.gathered.left_lying(program.now);
        assert_eq!(program.gathered.trusted_from, program.now + FIRST_PENANCE);
    }
}
