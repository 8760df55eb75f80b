//! Placement of received data: the message in progress, and the receive that it consumes.
//!
//! It is common to all services. They differ in the order of their checks, and in what they do
//! about an error: a NAK, a drop, or a completion with an error.

use crate::host::{Access, Completions, Host, MemoryError, Receive, RemoteKey};
use crate::ids::{Qpn, RKey, Srqn};
use crate::service::{Context, receive_completion};
use crate::wire::{Header, OpcodeInfo, Operation, Packet};
use crate::work::{Completion, Extra, IpVersion, MAX_MESSAGE, Sge, WcOpcode, WcStatus};

/// The message in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    /// A SEND of which this many bytes have arrived.
    Send(u32),
    /// An RDMA WRITE.
    Write(Write),
}

/// The progress of an RDMA WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Write {
    /// The address of the next byte.
    addr: u64,
    /// The remote key.
    key: RemoteKey,
    /// Bytes still to arrive.
    left: u32,
    /// Bytes of the whole message.
    pub(crate) len: u32,
}

/// Why a SEND or a datagram is not placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlacementError {
    /// No receive is available.
    NoReceive,
    /// The message is longer than its receive, or than the longest message.
    TooLong,
    /// The memory of the receive is not writable.
    Protection,
}

/// The fields of a receive completion that do not result from the placement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageInfo {
    pub(crate) src_qp: Qpn,
    pub(crate) extra: Extra,
    /// The version of the IP header that the receive begins with, if it does.
    pub(crate) grh: Option<IpVersion>,
    pub(crate) solicited: bool,
}

/// The message in progress and its receive.
///
/// On UC and UD, a receive of a dropped message stays for the next one (9.9.3, class D).
#[derive(Debug, Default)]
pub(crate) struct Placement {
    message: Option<Message>,
    /// Valid while `has_receive` is set.
    receive: Receive,
    has_receive: bool,
}

impl Placement {
    /// Whether a packet may follow in the message in progress, or begin the next one (9.7.4.1.2,
    /// table 40).
    pub(crate) fn permits(&self, info: &OpcodeInfo) -> bool {
        match (self.message, info.position.starts()) {
            (None, starts) => starts,
            (Some(_), true) => false,
            (Some(Message::Send(_)), false) => info.operation == Operation::Send,
            (Some(Message::Write(_)), false) => info.operation == Operation::Write,
        }
    }

    /// Ends the message in progress without completing it. Returns whether there was one.
    pub(crate) fn drop_message(&mut self) -> bool {
        self.message.take().is_some()
    }

    /// Takes a receive unless there is one, from `srq` where a request names one (A14).
    ///
    /// Returns false when none is available.
    pub(crate) fn take_receive<H: Host>(&mut self, srq: Option<Srqn>, host: &mut H) -> bool {
        if !self.has_receive {
            self.receive.srq = srq;
            self.has_receive = host.take_receive(&mut self.receive);
        }
        self.has_receive
    }

    /// Places the payload of a SEND packet. Returns the length of the message with its last packet.
    pub(crate) fn place_send<H: Host>(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        host: &mut H,
    ) -> Result<Option<u32>, PlacementError> {
        let received = match self.message {
            Some(Message::Send(received)) => received,
            _ => 0,
        };
        let srq = packet.header.srq();
        let received = self.place(srq, received, &[packet.payload], host)?;
        let is_complete = info.position.ends();
        self.message = (!is_complete).then_some(Message::Send(received));
        Ok(is_complete.then_some(received))
    }

    /// Places a whole message, the concatenation of `pieces`. Returns its length.
    pub(crate) fn place_message<H: Host>(
        &mut self,
        pieces: &[&[u8]],
        host: &mut H,
    ) -> Result<u32, PlacementError> {
        self.place(None, 0, pieces, host)
    }

    /// Places `pieces` after the first `offset` bytes of the receive. Returns the offset after
    /// them.
    fn place<H: Host>(
        &mut self,
        srq: Option<Srqn>,
        offset: u32,
        pieces: &[&[u8]],
        host: &mut H,
    ) -> Result<u32, PlacementError> {
        if !self.take_receive(srq, host) {
            return Err(PlacementError::NoReceive);
        }
        let lengths = pieces.iter().map(|piece| piece.len() as u64);
        let total = u64::from(offset) + lengths.sum::<u64>();
        if total > self.room() || total > MAX_MESSAGE {
            return Err(PlacementError::TooLong);
        }
        let mut at = u64::from(offset);
        for piece in pieces {
            host.fill_receive(&self.receive, at, piece)
                .map_err(|_| PlacementError::Protection)?;
            at += piece.len() as u64;
        }
        Ok(total as u32)
    }

    /// Returns the progress of the WRITE that a packet belongs to.
    ///
    /// `None` if the packet does not fit: the message must have exactly the announced length
    /// (9.7.4.1.6).
    pub(crate) fn write_of(&self, packet: &Packet<'_>, info: &OpcodeInfo) -> Option<Write> {
        let write = match (self.message, &packet.header.reth) {
            (Some(Message::Write(write)), _) => write,
            (_, Some(reth)) => Write {
                addr: reth.addr,
                key: remote_key(&packet.header, reth.rkey),
                left: reth.length,
                len: reth.length,
            },
            _ => return None,
        };
        let (payload, left) = (packet.payload.len() as u64, u64::from(write.left));
        let fits = match info.position.ends() {
            true => payload == left,
            false => payload < left,
        };
        (fits && u64::from(write.len) <= MAX_MESSAGE).then_some(write)
    }

    /// Checks at the start of a WRITE that the peer may write all of its range.
    ///
    /// A WRITE of length 0 needs no access rights (9.7.4.1.5).
    pub(crate) fn check_write<H: Host>(
        write: &Write,
        info: &OpcodeInfo,
        host: &H,
    ) -> Result<(), MemoryError> {
        if !info.position.starts() || write.len == 0 {
            return Ok(());
        }
        let len = u64::from(write.len);
        host.check_remote(write.key, write.addr, len, Access::REMOTE_WRITE)
    }

    /// Places the payload of a WRITE packet.
    pub(crate) fn place_write<H: Host>(
        &mut self,
        write: Write,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        host: &H,
    ) -> Result<(), MemoryError> {
        let payload = packet.payload;
        if !payload.is_empty() {
            host.remote_write(write.key, write.addr, payload)?;
        }
        let rest = Write {
            addr: write.addr.wrapping_add(payload.len() as u64),
            left: write.left - payload.len() as u32,
            ..write
        };
        self.message = (!info.position.ends()).then_some(Message::Write(rest));
        Ok(())
    }

    /// Completes the receive with a message of `byte_len` bytes.
    pub(crate) fn complete<H: Completions>(
        &mut self,
        cx: &mut Context<'_>,
        opcode: WcOpcode,
        byte_len: u32,
        info: MessageInfo,
        host: &mut H,
    ) {
        cx.counters.receives_done += 1;
        let completion = Completion {
            wr_id: self.receive.wr_id,
            status: WcStatus::Success,
            opcode,
            byte_len,
            qpn: cx.qpn,
            src_qp: info.src_qp,
            extra: info.extra,
            grh: info.grh,
        };
        self.has_receive = false;
        host.receive_completed(&self.receive, completion, info.solicited);
    }

    /// Ends the message in progress, and completes its receive, if any, with an error.
    ///
    /// Returns whether there was a receive.
    pub(crate) fn abort<H: Completions>(
        &mut self,
        qpn: Qpn,
        status: WcStatus,
        host: &mut H,
    ) -> bool {
        self.message = None;
        let has_receive = std::mem::take(&mut self.has_receive);
        if has_receive {
            let completion = receive_completion(qpn, &self.receive, status);
            host.receive_completed(&self.receive, completion, true);
        }
        has_receive
    }

    /// Handles a message that is longer than the receive (9.9.3, classes D and E).
    ///
    /// A receive of the queue pair's own queue stays for the next message. A receive of a shared
    /// queue completes with an error, because the next message may belong to another queue pair.
    pub(crate) fn receive_too_small<H: Host>(&mut self, cx: &mut Context<'_>, host: &mut H) {
        cx.counters.receive_too_small += 1;
        self.message = None;
        if host.receive_credits().is_none() {
            self.abort(cx.qpn, WcStatus::LocLenErr, host);
        }
    }

    /// The number of bytes that the receive can take.
    #[inline]
    fn room(&self) -> u64 {
        Sge::total_length(&self.receive.sges)
    }
}

/// Returns the key of a request, with the protection domain in which it is valid.
///
/// It is that of the queue pair, or of the shared receive queue that an XRC request names (A14).
pub(crate) fn remote_key(header: &Header, rkey: RKey) -> RemoteKey {
    RemoteKey {
        rkey,
        srq: header.srq(),
    }
}
