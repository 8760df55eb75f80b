//! Which sends go out at once, and which wait a moment for those that follow.
//!
//! A send by itself costs a system call, and its way through the kernel costs several times what is done
//! for it here. A program that posts many small ones in a row, each with a call of its own, gets the same as one that
//! posts a list: they go to the kernel together. What it must not feel is the wait, so a send waits only if
//!
//! - it is not among the first after a poll: who posts one and polls for its end waits for nothing;
//! - it follows the one before closely: a program that looks at memory for the answer of its peer is slower;
//! - nobody had to send for the program lately what it left lying.

use std::time::Duration;
use urxe_proto::time::Time;

/// How many posts after each poll go out at once.
const AT_ONCE: u32 = 2;

/// How many sends go together at most.
const MOST_SENDS: u32 = 32;

/// How many bytes of data go together at most: about what the kernel takes in one piece. So a message of
/// that size never waits.
const MOST_BYTES: u64 = 60_000;

/// How long the first waits at most while the program posts.
const LONGEST: Duration = Duration::from_micros(20);

/// What is posted later than this after the program came back from its last post does not follow closely.
/// The answer of a peer takes longer.
const CLOSELY: Duration = Duration::from_micros(5);

/// For how long nothing waits, at first and at most, after the program left sends lying.
const FIRST_PENANCE: Duration = Duration::from_millis(1);
const LONGEST_PENANCE: Duration = Duration::from_millis(128);

/// What waits in the send queue of one queue pair, and by what it is decided whether more does.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// How often the program had polled when it posted last.
    polls: u64,
    /// How often it has posted since it polled.
    posts: u32,
    /// When it came back from its last post.
    posted_at: Time,
    /// What waits, and since when.
    sends: u32,
    bytes: u64,
    since: Time,
    /// How long nothing waits if sends are left lying again.
    penance: Duration,
    /// Nothing waits before.
    trusted_from: Time,
    /// The engine has the queue pair on its list of those with something that waits.
    listed: bool,
}

impl Gathered {
    /// Whether sends that have just been posted wait for more. If not, all that waits goes out with
    /// them. `polls` is how often the program has polled so far. Where nothing waited before, the engine has to know:
    /// `list` is told whether the queue pair is on its list already.
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

    /// The engine has taken the queue pair off its list. Whether something waits.
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

    /// The program comes back from a post whose sends went out at once.
    pub(super) fn posted(&mut self, now: Time) {
        self.posted_at = now;
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.sends == 0
    }

    /// What waited goes out. Returns how many sends that are.
    pub(super) fn release(&mut self) -> u32 {
        self.bytes = 0;
        std::mem::take(&mut self.sends)
    }

    /// The program has come back for what waited.
    pub(super) fn collected(&mut self) {
        self.penance = Duration::ZERO;
    }

    /// The program has not come back for what waited: it may be looking at memory. It is trusted again
    /// later, and later still if that happens time and again.
    pub(super) fn left_lying(&mut self, now: Time) {
        self.penance = (self.penance * 2).clamp(FIRST_PENANCE, LONGEST_PENANCE);
        self.trusted_from = now + self.penance;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_nanos(100);

    /// A program that posts sends of 64 bytes, one by one and in a row, from a time on.
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

        /// One that has posted enough for the next to wait.
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
