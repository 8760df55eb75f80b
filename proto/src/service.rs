//! Code that the transport services share: headers of requests, completions, and the flush of
//! receives.

use crate::host::{Completions, Host, Memory, QpEvent, Receive, Transmit};
use crate::ids::Qpn;
use crate::psn::Psn;
use crate::qp::{Counters, PathMigState, QpAttr};
use crate::queue::{SendQueue, SendWqe};
use crate::time::Time;
use crate::wire::{
    Bth, Header, Headers, Opcode, Operation, Position, Reth, Transport, Xrceth, packet_len, pad_of,
};
use crate::work::{Completion, Destination, Extra, Payload, SendFlags, SendOp, WcOpcode, WcStatus};

/// The parts of a queue pair that its requester and responder use.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) qpn: Qpn,
    pub(crate) transport: Transport,
    pub(crate) attr: &'a QpAttr,
    pub(crate) now: Time,
    pub(crate) counters: &'a mut Counters,
}

impl Context<'_> {
    /// Sends a packet that is only a header. Returns false when the sink is full.
    pub(crate) fn send_header<T: Transmit>(&mut self, header: &Header, out: &mut T) -> bool {
        let Some(packet) = out.stage(header.len()) else {
            return false;
        };
        header.emit(packet);
        out.commit();
        self.counters.sent_packets += 1;
        true
    }

    /// Returns the BTH of a packet to the peer.
    ///
    /// # Panics
    /// When the transport has no such opcode. Posting refuses operations that have none.
    #[inline]
    pub(crate) fn bth(
        &self,
        operation: Operation,
        position: Position,
        extra: Headers,
        psn: Psn,
    ) -> Bth {
        let opcode = Opcode::of(self.transport, operation, position, extra)
            .expect("posting refuses operations that the transport has no opcodes for");
        Bth {
            mig_req: self.attr.path_mig_state == PathMigState::Migrated,
            ..Bth::new(opcode, self.attr.dest_qpn, psn)
        }
    }

    /// Returns the headers of a packet to the peer.
    ///
    /// # Panics
    /// See [`Context::bth`].
    #[inline]
    pub(crate) fn header(
        &self,
        operation: Operation,
        position: Position,
        extra: Headers,
        psn: Psn,
    ) -> Header {
        Header::of(self.bth(operation, position, extra, psn))
    }

    /// Returns the headers of a request; over XRC they name the shared receive queue (A14).
    #[inline]
    pub(crate) fn request_header(
        &self,
        wqe: &SendWqe,
        operation: Operation,
        position: Position,
        extra: Headers,
        psn: Psn,
    ) -> Header {
        let header = self.header(operation, position, extra, psn);
        match wqe.dest.and_then(Destination::srq) {
            Some(srqn) => header.with_xrceth(Xrceth { srqn }),
            None => header,
        }
    }

    /// Returns the BTH of one packet of a SEND or RDMA WRITE.
    #[inline]
    pub(crate) fn data_bth(&self, wqe: &SendWqe, position: Position, psn: Psn) -> Bth {
        let (operation, extra) = match wqe.op {
            SendOp::SendImm(_) => (Operation::Send, Headers::IMMDT),
            SendOp::SendInv(_) => (Operation::Send, Headers::IETH),
            SendOp::Write { .. } => (Operation::Write, Headers::empty()),
            SendOp::WriteImm { .. } => (Operation::Write, Headers::IMMDT),
            _ => (Operation::Send, Headers::empty()),
        };
        if !position.ends() {
            return self.bth(operation, position, Headers::empty(), psn);
        }
        let is_requested = wqe.flags.contains(SendFlags::SOLICITED);
        Bth {
            solicited: is_requested && wqe.op.consumes_receive(),
            ..self.bth(operation, position, extra, psn)
        }
    }

    /// Returns all headers of one packet of a SEND or RDMA WRITE; over XRC they name the shared
    /// receive queue (A14).
    #[inline(never)]
    pub(crate) fn data_header(&self, wqe: &SendWqe, position: Position, psn: Psn) -> Header {
        let mut header = Header::of(self.data_bth(wqe, position, psn));
        if let Some(srqn) = wqe.dest.and_then(Destination::srq) {
            header.xrceth = Some(Xrceth { srqn });
        }
        match wqe.op {
            SendOp::Write { addr, rkey } | SendOp::WriteImm { addr, rkey, .. }
                if position.starts() =>
            {
                header.reth = Some(Reth {
                    addr,
                    rkey,
                    length: wqe.len,
                });
            }
            _ => {}
        }
        if position.ends() {
            match wqe.op {
                SendOp::SendImm(imm) | SendOp::WriteImm { imm, .. } => header.imm = Some(imm),
                SendOp::SendInv(rkey) => header.ieth = Some(rkey),
                _ => {}
            }
        }
        header
    }

    /// Returns the completion of a send work request.
    #[inline]
    pub(crate) fn completion(&self, wqe: &SendWqe, status: WcStatus) -> Completion {
        Completion {
            wr_id: wqe.wr_id,
            status,
            opcode: wqe.op.completion_opcode(),
            byte_len: wqe.len,
            qpn: self.qpn,
            src_qp: self.attr.dest_qpn,
            extra: Extra::None,
            grh: None,
        }
    }

    /// Counts the success of a send work request, and completes it if it is signaled.
    pub(crate) fn complete_send<H: Completions>(
        &mut self,
        wqe: &SendWqe,
        signal_all: bool,
        host: &mut H,
    ) {
        self.counters.count_send_done(wqe.op);
        if signal_all || wqe.flags.contains(SendFlags::SIGNALED) {
            host.send_completed(self.completion(wqe, WcStatus::Success));
        }
    }

    /// Flushes all work requests of a send queue, in order (10.3.1.6, 10.3.1.7).
    pub(crate) fn flush_sends<H: Completions>(&self, queue: &mut SendQueue, host: &mut H) {
        while let Some(wqe) = queue.pop() {
            host.send_completed(self.completion(&wqe, WcStatus::WrFlushErr));
        }
    }
}

/// The result of staging a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum StageResult {
    /// The packet is queued.
    Done,
    /// The sink is full.
    Full,
    /// The payload could not be read: a local protection error.
    Protection,
}

/// Stages and commits a packet with `len` bytes of `payload`, starting at `offset`. Sets the pad
/// count of its BTH.
///
/// `headers` returns all headers of the packet. It is called for packets that have extended headers:
/// most have none, and `bth` alone stays in registers.
#[inline(always)]
pub(crate) fn stage_data<M: Memory, T: Transmit>(
    mut bth: Bth,
    headers: impl FnOnce() -> Header,
    payload: Payload<'_>,
    offset: u64,
    len: usize,
    memory: &M,
    out: &mut T,
) -> StageResult {
    bth.pad = pad_of(len);
    let header_len = bth.headers_len();
    let Some(packet) = out.stage(packet_len(header_len, len)) else {
        return StageResult::Full;
    };
    let (start, rest) = packet.split_at_mut(header_len);
    if header_len == Bth::LEN {
        bth.emit(start);
    } else {
        headers().with_payload_len(len).emit(start);
    }
    let (data, pad) = rest.split_at_mut(len);
    if !pad.is_empty() {
        pad.fill(0);
    }
    match payload {
        Payload::Sges(sges) => {
            if memory.gather(sges, offset, data).is_err() {
                out.cancel();
                return StageResult::Protection;
            }
        }
        Payload::Inline(inline) => {
            let offset = offset as usize;
            data.copy_from_slice(&inline[offset..offset + len]);
        }
    }
    out.commit();
    StageResult::Done
}

/// Executes a local operation ([`SendOp::is_local`]); does nothing for others.
///
/// The error is the status of the completion.
pub(crate) fn execute_local<M: Memory>(op: &SendOp, memory: &M) -> Result<(), WcStatus> {
    let (done, status) = match op {
        SendOp::BindMw(bind) => (memory.bind_window(bind), WcStatus::MwBindErr),
        // Verbs has no number for the specification's "memory management operation error".
        SendOp::LocalInv(rkey) => (memory.invalidate_local(*rkey), WcStatus::LocQpOpErr),
        _ => return Ok(()),
    };
    done.map_err(|_| status)
}

/// Returns the completion of a receive that ends without a message.
pub(crate) fn receive_completion(qpn: Qpn, receive: &Receive, status: WcStatus) -> Completion {
    Completion {
        wr_id: receive.wr_id,
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        qpn,
        src_qp: Qpn::default(),
        extra: Extra::None,
        grh: None,
    }
}

/// Flushes the queue pair's own receive queue, in order (10.3.1.7).
pub(crate) fn flush_receives<H: Host>(qpn: Qpn, host: &mut H) {
    if host.receive_credits().is_none() {
        // A shared receive queue keeps its receives (10.2.9.4).
        host.event(QpEvent::LastWqeReached);
        return;
    }
    let mut receive = Receive::default();
    while host.take_receive(&mut receive) {
        let status = WcStatus::WrFlushErr;
        let completion = receive_completion(qpn, &receive, status);
        host.receive_completed(&receive, completion, true);
    }
}

/// Discards the queue pair's own receives, as the transition to RESET does (10.3.1.1).
pub(crate) fn discard_receives<H: Host>(host: &mut H) {
    if host.receive_credits().is_some() {
        let mut receive = Receive::default();
        while host.take_receive(&mut receive) {}
    }
}
