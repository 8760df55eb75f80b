//! One sweep of steering: its messages, and the answers that it has had.

use super::program::{SocketId, SocketIndices};
use crate::qpn::MAX_RECEIVE_SOCKETS;
use std::collections::BTreeMap;
use urxe_proto::time::Time;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The number of probes beyond the number of living processes: for a forked child that holds its
/// parent's socket, and for processes that join meanwhile.
pub(super) const EXTRA_PROBES: u16 = 4;

/// An opcode that no transport has, so that no probe is mistaken for a packet.
pub(super) const NO_OPCODE: u8 = 0xff;

pub(super) const PROBE_MAGIC: [u8; 4] = *b"urxp";
pub(super) const ANSWER_MAGIC: [u8; 4] = *b"urxa";

pub(super) type Nonce = [u8; 16];

/// A probe to the socket with a given index. Its first 8 bytes have the layout of a BTH.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct Probe {
    pub(super) opcode: u8,
    pub(super) flags_and_pkey: [u8; 3],
    pub(super) variant: u8,
    pub(super) slot: u8,
    pub(super) index: [u8; 2],
    pub(super) magic: [u8; 4],
    pub(super) nonce: Nonce,
}

impl Probe {
    pub(super) fn is_valid(&self) -> bool {
        self.magic == PROBE_MAGIC && self.opcode == NO_OPCODE
    }
}

/// Whether a UDP payload is a steering probe, which is no RoCE packet. Captures of the loopback
/// interface contain them.
pub fn is_steering_probe(payload: &[u8]) -> bool {
    Probe::ref_from_bytes(payload).is_ok_and(Probe::is_valid)
}

/// The answer to a probe: the socket that received it.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct Answer {
    pub(super) magic: [u8; 4],
    pub(super) slot: u8,
    /// The number of the socket in the low 4 bits, and in the high 4 bits one less than the number
    /// of the process's sockets at the address. Processes before this field send 0, which means the
    /// only socket.
    pub(super) sockets: u8,
    pub(super) index: [u8; 2],
    pub(super) nonce: Nonce,
}

impl Answer {
    /// Returns the value of [`Answer::sockets`] for one of `count` sockets.
    pub(super) fn sockets(number: usize, count: usize) -> u8 {
        let limit = MAX_RECEIVE_SOCKETS - 1;
        ((count - 1).min(limit) << 4 | number.min(limit)) as u8
    }

    /// The socket that received the probe.
    pub(super) fn socket(&self) -> SocketId {
        (self.slot, self.sockets & 0xf)
    }

    /// The number of sockets of the process.
    pub(super) fn count(&self) -> u8 {
        (self.sockets >> 4).max(self.sockets & 0xf) + 1
    }
}

/// The state of one sweep.
pub(super) struct Sweep {
    pub(super) nonce: Nonce,
    /// The first answer of each socket.
    pub(super) answers: SocketIndices,
    /// The number of sockets of each slot that has answered.
    pub(super) announced: BTreeMap<u8, u8>,
    pub(super) live: Vec<u8>,
    /// The number of probes sent: one for each index below.
    pub(super) probes: u16,
    /// The number of probes without an answer.
    pub(super) unanswered: u16,
    /// The time at which the sweep is evaluated with the answers so far; `NEVER` after that. Later
    /// answers still count.
    pub(super) deadline: Time,
    /// Whether answers have arrived since the last evaluation.
    pub(super) changed: bool,
}

impl Sweep {
    /// Records an answer. Returns whether it announces sockets that no earlier one has.
    pub(super) fn answered(&mut self, answer: &Answer) -> bool {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.answers.entry(answer.socket()).or_insert_with(|| {
            self.changed = true;
            u16::from_be_bytes(answer.index)
        });
        // The process may have opened sockets during the sweep.
        let announced = self.announced.entry(answer.slot).or_default();
        let more = *announced < answer.count();
        *announced = (*announced).max(answer.count());
        more
    }

    /// Returns the number of probes that reach all sockets which are known to exist: those that the
    /// answers announce, and one of each living process that has not answered.
    pub(super) fn needed_probes(&self) -> u16 {
        let announced = self.announced.values().copied().map(u16::from);
        let others = self.live.iter();
        let others = others.filter(|slot| !self.announced.contains_key(slot));
        announced.sum::<u16>() + others.count() as u16 + EXTRA_PROBES
    }

    /// Returns the number of probes that reach all sockets that may exist: each living process that
    /// has not answered, and a forked child that holds its parent's sockets, may have the maximum.
    pub(super) fn most_probes(&self) -> u16 {
        let live = self.live.iter();
        let silent = live.filter(|slot| !self.announced.contains_key(slot));
        self.needed_probes() + ((silent.count() + 1) * MAX_RECEIVE_SOCKETS) as u16
    }

    /// Whether each living process has answered for all its sockets.
    pub(super) fn is_complete(&self) -> bool {
        self.live.iter().all(|slot| {
            (self.announced.get(slot))
                .is_some_and(|count| (0..*count).all(|n| self.answers.contains_key(&(*slot, n))))
        })
    }

    /// Whether a socket may exist: its process lives and has not announced fewer sockets.
    pub(super) fn may_have(&self, (slot, number): SocketId) -> bool {
        let count = self.announced.get(&slot);
        self.live.contains(&slot) && count.is_none_or(|count| number < *count)
    }
}
