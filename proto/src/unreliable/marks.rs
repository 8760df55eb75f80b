//! Marks in an unreliable connection: how far the peer has read, see [`crate::uc`].

use super::Core;
use crate::host::{Host, Transmit};
use crate::psn::Psn;
use crate::qp::PathMigState;
use crate::time::Time;
use crate::wire::{Bth, Header, Opcode};
use std::time::Duration;

/// Marks that may be unanswered while the next stretch goes out.
const UNANSWERED: i32 = 2;

/// How long the peer may take to answer: it may be without a processor.
const PATIENCE: Duration = Duration::from_millis(100);

/// So many marks in a row without an answer, and the peer is taken for one that does not know them.
const IGNORED: u32 = 10;

/// What an end of a connection knows of its marks, and of the peer's.
#[derive(Debug, Default)]
pub struct Marks {
    /// Bytes between two marks; 0 when none are sent.
    every: u32,
    /// Bytes that went out since the last mark.
    since: u64,
    /// The number of the next mark.
    next: Psn,
    /// That of the first that is not answered.
    unanswered: Psn,
    /// Since when, and for how long yet, nothing goes out.
    until: Option<Time>,
    /// Marks in a row that were not answered in time.
    ignored: u32,
    /// The last of the peer's that is to be answered, and all before it.
    owed: Option<Psn>,
}

impl Marks {
    pub(crate) fn set_every(&mut self, bytes: u32) {
        self.every = bytes;
    }

    /// The peer has sent a mark.
    pub(crate) fn owe(&mut self, number: Psn) {
        self.owed = Some(number);
    }

    /// The peer has read all up to a mark. Answers to what was not asked change nothing.
    pub(crate) fn seen(&mut self, number: Psn) {
        let ahead = number.diff(self.unanswered);
        if ahead >= self.outstanding() {
            return;
        }
        // A late one too says that the peer knows marks.
        self.ignored = 0;
        if ahead >= 0 {
            self.unanswered = number.next();
            self.until = None;
        }
    }

    /// When waiting for an answer ends.
    pub(crate) fn deadline(&self) -> Time {
        self.until.unwrap_or(Time::NEVER)
    }

    /// Gives up waiting for one answer, if it has been long enough: whether it has.
    pub(crate) fn handle_timeout(&mut self, now: Time) -> bool {
        let is_over = self.deadline() <= now;
        if is_over {
            self.unanswered = self.unanswered.next();
            self.until = None;
            self.ignored += 1;
        }
        is_over
    }

    /// Sends marks and answers between what `core` has to send, as far as that may go.
    pub(crate) fn poll_transmit<H: Host, T: Transmit>(
        &mut self,
        core: &mut Core,
        now: Time,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        // In the error state nothing goes out any more (10.3.1.7).
        if let Some(number) = self.owed.filter(|_| core.attr.state.handles_packets()) {
            if !put(core, Opcode::MarkSeen, number, out) {
                return true;
            }
            self.owed = None;
        }
        loop {
            if self.is_due() {
                if !core.has_sends() {
                    return false;
                }
                if self.outstanding() >= UNANSWERED {
                    self.until.get_or_insert(now + PATIENCE);
                    return false;
                }
                if !put(core, Opcode::Mark, self.next, out) {
                    return true;
                }
                self.next = self.next.next();
                self.since = 0;
            }
            let mut stretch = Stretch {
                left: self.left(),
                out,
                taken: 0,
                staged: 0,
            };
            let more = core.poll_transmit(now, host, &mut stretch);
            self.since += stretch.taken;
            if !more || !self.is_due() {
                return more;
            }
        }
    }

    /// Whether a mark goes before all else.
    fn is_due(&self) -> bool {
        self.left() == 0
    }

    /// How many bytes may go before the next mark.
    fn left(&self) -> u64 {
        match self.every {
            0 => u64::MAX,
            _ if self.ignored >= IGNORED => u64::MAX,
            every => u64::from(every).saturating_sub(self.since),
        }
    }

    fn outstanding(&self) -> i32 {
        self.next.diff(self.unanswered)
    }
}

/// Puts out a mark, or the answer to one. False when there is no room.
fn put<T: Transmit>(core: &Core, opcode: Opcode, number: Psn, out: &mut T) -> bool {
    let Some(packet) = out.stage(Bth::LEN) else {
        return false;
    };
    let migrated = core.attr.path_mig_state == PathMigState::Migrated;
    Header::new(opcode, core.attr.dest_qpn, number)
        .with_mig_req(migrated)
        .emit(packet);
    out.commit();
    true
}

/// A sink that is full when a mark is due. The packet that exceeds the stretch is its last.
struct Stretch<'a, T> {
    out: &'a mut T,
    left: u64,
    staged: usize,
    taken: u64,
}

impl<T: Transmit> Transmit for Stretch<'_, T> {
    fn stage(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.taken >= self.left {
            return None;
        }
        self.staged = len;
        self.out.stage(len)
    }

    fn commit(&mut self) {
        self.taken += self.staged as u64;
        self.out.commit();
    }

    fn cancel(&mut self) {
        self.out.cancel();
    }

    fn now(&self) -> Time {
        self.out.now()
    }
}
