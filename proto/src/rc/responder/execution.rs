//! The execution of a request with the expected PSN: the remaining checks, and each operation.

use super::super::read_reply::ReadReply;
use super::{Executed, ExecutedKind, INVALID, NO_ACCESS, Refusal, Responder};
use crate::host::{Access, AtomicOp, Completions, Host};
use crate::placement::{MessageInfo, Placement, PlacementError, remote_key};
use crate::qp::QpAttr;
use crate::queue::packets_of;
use crate::service::Context;
use crate::wire::{Feth, Header, NakCode, OpcodeInfo, Operation, Packet};
use crate::work::{Extra, MAX_MESSAGE, WcOpcode, WcStatus};

impl Responder {
    /// Executes a request whose PSN is the expected one.
    #[inline(always)]
    pub(super) fn execute<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let info = packet.header.bth.opcode.info();
        if !self.placement.permits(info) {
            return Err(INVALID);
        }
        let srq = packet.header.srq().filter(|_| info.position.starts());
        if srq.is_some_and(|srq| !host.has_srq(srq)) {
            return Err(INVALID);
        }
        check_permitted(cx.attr, info)?;
        if !info
            .payload
            .accepts(packet.payload.len(), cx.attr.path_mtu.bytes())
        {
            return Err(INVALID);
        }
        match info.operation {
            Operation::Send => self.send(cx, packet, info, host),
            Operation::Write => self.write(cx, packet, info, host),
            Operation::ReadRequest => self.read(cx, &packet.header, host),
            Operation::CompareSwap | Operation::FetchAdd => {
                self.atomic(cx, &packet.header, info, host)
            }
            Operation::AtomicWrite => self.atomic_write(cx, packet, host),
            Operation::Flush => self.flush(cx, &packet.header, host),
            _ => Err(INVALID),
        }
    }

    #[inline(always)]
    fn send<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let placed = self.placement.place_send(packet, info, host);
        let complete = placed.map_err(|error| match error {
            PlacementError::NoReceive => Refusal::NotReady,
            PlacementError::TooLong => Refusal::Fatal(NakCode::InvalidRequest, WcStatus::LocLenErr),
            PlacementError::Protection => {
                Refusal::Fatal(NakCode::RemoteOperational, WcStatus::LocProtErr)
            }
        })?;
        let Some(len) = complete else {
            self.accept(&packet.header);
            return Ok(());
        };
        let extra = match (packet.header.imm, packet.header.ieth) {
            (Some(imm), _) => Extra::Imm(imm),
            (None, Some(rkey)) => {
                let key = remote_key(&packet.header, rkey);
                host.invalidate(key).map_err(|_| INVALID)?;
                Extra::Invalidated(rkey)
            }
            (None, None) => Extra::None,
        };
        self.complete(cx, &packet.header, WcOpcode::Recv, len, extra, host);
        self.accept(&packet.header);
        Ok(())
    }

    fn write<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let write = self.placement.write_of(packet, info).ok_or(INVALID)?;
        if packet.header.imm.is_some() {
            self.take_receive(&packet.header, host)?;
        }
        Placement::check_write(&write, info, host).map_err(|_| NO_ACCESS)?;
        self.placement
            .place_write(write, packet, info, host)
            .map_err(|_| NO_ACCESS)?;
        match packet.header.imm {
            _ if !info.position.ends() => {}
            Some(imm) => {
                let extra = Extra::Imm(imm);
                let opcode = WcOpcode::RecvWriteImm;
                self.complete(cx, &packet.header, opcode, write.len, extra, host);
            }
            None => {
                cx.counters.writes_done += 1;
                self.message_done();
            }
        }
        self.accept(&packet.header);
        Ok(())
    }

    fn read<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        header: &Header,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let reth = header.reth.as_ref().ok_or(INVALID)?;
        if u64::from(reth.length) > MAX_MESSAGE {
            return Err(INVALID);
        }
        self.check_resources(cx.attr)?;
        let key = remote_key(header, reth.rkey);
        if reth.length > 0 {
            host.check_remote(key, reth.addr, u64::from(reth.length), Access::REMOTE_READ)
                .map_err(|_| NO_ACCESS)?;
        }
        let first = self.expected;
        let packets = packets_of(reth.length, cx.attr.path_mtu);
        let end = first + packets;
        let reply = ReadReply {
            first,
            end,
            addr: reth.addr,
            key,
            left: reth.length,
            is_duplicate: false,
        };
        let kind = ExecutedKind::Read {
            addr: reth.addr,
            key,
            len: reth.length,
        };
        self.remember(cx.attr, Executed { first, end, kind });
        self.expected = end;
        self.message_done();
        if cx.attr.max_dest_rd_atomic == 1 {
            self.pacing.requested(cx.now, &reply, cx.attr.path_mtu);
        }
        self.replies.read(self.msn, reply);
        Ok(())
    }

    fn atomic<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        header: &Header,
        info: &OpcodeInfo,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let atomic = header.atomic.as_ref().ok_or(INVALID)?;
        self.check_resources(cx.attr)?;
        // Atomics operate on 8 bytes at an address divisible by 8 (9.7.4.1.4).
        if !atomic.addr.is_multiple_of(8) {
            return Err(INVALID);
        }
        let op = match info.operation {
            Operation::CompareSwap => AtomicOp::CompareSwap {
                compare: atomic.compare,
                swap: atomic.swap_or_add,
            },
            _ => AtomicOp::FetchAdd(atomic.swap_or_add),
        };
        let original = host
            .remote_atomic(remote_key(header, atomic.rkey), atomic.addr, op)
            .map_err(|_| NO_ACCESS)?;
        self.respond(cx, Some(original));
        Ok(())
    }

    /// Executes an ATOMIC WRITE (A19): 8 aligned bytes, written atomically.
    fn atomic_write<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let reth = packet.header.reth.as_ref().ok_or(INVALID)?;
        let value: [u8; 8] = packet.payload.try_into().map_err(|_| INVALID)?;
        self.check_resources(cx.attr)?;
        if reth.length as usize != value.len() || !reth.addr.is_multiple_of(8) {
            return Err(INVALID);
        }
        let op = AtomicOp::Store(u64::from_ne_bytes(value));
        host.remote_atomic(remote_key(&packet.header, reth.rkey), reth.addr, op)
            .map_err(|_| NO_ACCESS)?;
        self.respond(cx, None);
        Ok(())
    }

    /// Executes a FLUSH (A19). All earlier requests have been executed.
    fn flush<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        header: &Header,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let (reth, feth) = header.reth.zip(header.feth).ok_or(INVALID)?;
        self.check_resources(cx.attr)?;
        let access = flush_access(feth).ok_or(INVALID)?;
        if !cx.attr.access.contains(access) {
            return Err(INVALID);
        }
        let range = match feth.contains(Feth::WHOLE_REGION) {
            true => None,
            false => Some((reth.addr, u64::from(reth.length))),
        };
        host.flush(remote_key(header, reth.rkey), range, access)
            .map_err(|_| NO_ACCESS)?;
        self.respond(cx, None);
        Ok(())
    }

    /// Records a request with a single response, and queues that response.
    fn respond(&mut self, cx: &Context<'_>, original: Option<u64>) {
        let (first, end) = (self.expected, self.expected.next());
        let kind = ExecutedKind::SingleResponse { original };
        self.remember(cx.attr, Executed { first, end, kind });
        self.expected = end;
        self.message_done();
        self.replies.single_response(first, self.msn, original);
    }

    /// Checks that one more READ or atomic may be outstanding, within the advertised limit
    /// (9.7.4.1.3).
    fn check_resources(&self, attr: &QpAttr) -> Result<(), Refusal> {
        let limit = usize::from(attr.max_dest_rd_atomic);
        if self.replies.responses() < limit {
            Ok(())
        } else {
            Err(INVALID)
        }
    }

    fn remember(&mut self, attr: &QpAttr, executed: Executed) {
        while self.executed.len() >= usize::from(attr.max_dest_rd_atomic).max(1) {
            self.executed.pop_front();
        }
        self.executed.push_back(executed);
        self.response_end = Some(executed.end);
    }

    fn take_receive<H: Host>(&mut self, header: &Header, host: &mut H) -> Result<(), Refusal> {
        match self.placement.take_receive(header.srq(), host) {
            true => Ok(()),
            false => Err(Refusal::NotReady),
        }
    }

    /// Accepts a packet of a SEND or WRITE, and acknowledges it if requested.
    #[inline]
    fn accept(&mut self, header: &Header) {
        if header.bth.ack_req {
            self.replies.ack(self.expected, self.msn);
        }
        self.expected = self.expected.next();
    }

    fn message_done(&mut self) {
        self.msn = (self.msn + 1) & 0xff_ffff;
    }

    fn complete<H: Completions>(
        &mut self,
        cx: &mut Context<'_>,
        header: &Header,
        opcode: WcOpcode,
        byte_len: u32,
        extra: Extra,
        host: &mut H,
    ) {
        self.message_done();
        let message = MessageInfo {
            src_qp: cx.attr.dest_qpn,
            extra,
            grh: None,
            solicited: header.bth.solicited,
        };
        self.placement.complete(cx, opcode, byte_len, message, host);
    }
}

/// Returns the rights that a FLUSH needs; `None` if it requests nothing or reserved bits (A19).
fn flush_access(feth: Feth) -> Option<Access> {
    let known = Feth::GLOBAL_VISIBILITY | Feth::PERSISTENCE | Feth::WHOLE_REGION;
    let placement = feth & (Feth::GLOBAL_VISIBILITY | Feth::PERSISTENCE);
    if placement.is_empty() || !known.contains(feth) {
        return None;
    }
    let mut access = Access::empty();
    access.set(Access::FLUSH_GLOBAL, feth.contains(Feth::GLOBAL_VISIBILITY));
    access.set(Access::FLUSH_PERSISTENT, feth.contains(Feth::PERSISTENCE));
    Some(access)
}

/// Whether the queue pair permits the operation to its peer (9.7.4.1.3).
fn check_permitted(attr: &QpAttr, info: &OpcodeInfo) -> Result<(), Refusal> {
    let needed = match info.operation {
        Operation::Write | Operation::AtomicWrite => Access::REMOTE_WRITE,
        Operation::ReadRequest => Access::REMOTE_READ,
        Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
        _ => Access::empty(),
    };
    if attr.access.contains(needed) {
        Ok(())
    } else {
        Err(INVALID)
    }
}
