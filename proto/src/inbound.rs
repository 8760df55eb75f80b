//! A message that comes in piece by piece: what connected services, reliable or not, check alike.

use crate::host::RemoteKey;
use crate::wire::{OpcodeInfo, Operation, Reth};

/// A message of several packets that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inbound {
    /// A SEND, and how much of it has come.
    Send {
        /// Bytes.
        received: u32,
    },
    /// A WRITE.
    Write(InboundWrite),
}

impl Inbound {
    /// Whether a packet may come when the message under way is `current` (9.7.4.1.2, table 40).
    pub(crate) fn permits(current: Option<Inbound>, info: &OpcodeInfo) -> bool {
        match (current, info.position.starts()) {
            (None, starts) => starts,
            (Some(_), true) => false,
            (Some(Inbound::Send { .. }), false) => info.operation == Operation::Send,
            (Some(Inbound::Write(_)), false) => info.operation == Operation::Write,
        }
    }
}

/// How far a WRITE has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InboundWrite {
    /// Where the next byte goes.
    pub(crate) addr: u64,
    /// The key of that memory.
    pub(crate) key: RemoteKey,
    /// Bytes that are to come.
    pub(crate) left: u32,
    /// Bytes of the message.
    pub(crate) len: u32,
}

impl InboundWrite {
    /// One of which nothing has come, to memory that `key` must name.
    pub(crate) fn new(reth: &Reth, key: RemoteKey) -> Self {
        InboundWrite {
            addr: reth.addr,
            key,
            left: reth.length,
            len: reth.length,
        }
    }

    /// Whether a packet with `payload` bytes fits: all of the message must come, and no more than
    /// was announced (9.7.4.1.6).
    pub(crate) fn takes(&self, payload: usize, ends: bool) -> bool {
        if ends {
            payload as u64 == u64::from(self.left)
        } else {
            (payload as u64) < u64::from(self.left)
        }
    }

    /// After a packet with `payload` bytes, which fitted.
    pub(crate) fn after(self, payload: usize) -> Self {
        InboundWrite {
            addr: self.addr.wrapping_add(payload as u64),
            left: self.left - payload as u32,
            ..self
        }
    }
}
