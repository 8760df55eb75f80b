//! Reassembly of a message of several packets: the checks that RC and UC share.

use crate::host::RemoteKey;
use crate::wire::{OpcodeInfo, Operation, Reth};

/// A multi-packet message in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inbound {
    /// A SEND.
    Send {
        /// Bytes received so far.
        received: u32,
    },
    /// An RDMA WRITE.
    Write(InboundWrite),
}

impl Inbound {
    /// Whether a packet may follow when `current` is the message in progress (9.7.4.1.2, table 40).
    pub(crate) fn permits(current: Option<Inbound>, info: &OpcodeInfo) -> bool {
        match (current, info.position.starts()) {
            (None, starts) => starts,
            (Some(_), true) => false,
            (Some(Inbound::Send { .. }), false) => info.operation == Operation::Send,
            (Some(Inbound::Write(_)), false) => info.operation == Operation::Write,
        }
    }
}

/// The progress of an RDMA WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InboundWrite {
    /// The address of the next byte.
    pub(crate) addr: u64,
    /// The remote key of the WRITE.
    pub(crate) key: RemoteKey,
    /// Bytes still to arrive.
    pub(crate) left: u32,
    /// Bytes of the whole message.
    pub(crate) len: u32,
}

impl InboundWrite {
    /// A WRITE of which no data has arrived, to the memory that `key` names.
    pub(crate) fn new(reth: &Reth, key: RemoteKey) -> Self {
        InboundWrite {
            addr: reth.addr,
            key,
            left: reth.length,
            len: reth.length,
        }
    }

    /// Whether a packet with `payload` bytes fits: the message must have exactly the announced
    /// length (9.7.4.1.6).
    pub(crate) fn takes(&self, payload: usize, ends: bool) -> bool {
        if ends {
            payload as u64 == u64::from(self.left)
        } else {
            (payload as u64) < u64::from(self.left)
        }
    }

    /// The progress after a packet with `payload` bytes, for which [`Self::takes`] held.
    pub(crate) fn after(self, payload: usize) -> Self {
        InboundWrite {
            addr: self.addr.wrapping_add(payload as u64),
            left: self.left - payload as u32,
            ..self
        }
    }
}
