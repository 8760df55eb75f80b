//! The responder: carries out requests, and refuses those that break a rule (9.7.4, 9.7.5.1, 9.9.3).
//!
//! A request passes a chain of checks, in the specification's order: its PSN, its place in the
//! sequence of opcodes, whether this queue pair permits it, its length, whether there is a receive
//! or a resource for it, and its right to memory. Only then is anything done. Each check that fails
//! names the answer: drop, NAK, or RNR NAK.

use super::held::Held;
use super::replies::{ReadReply, Replies, Sent};
use super::requester::Outcome;
use crate::held_receive::HeldReceive;
use crate::host::{Access, AtomicOp, Completions, Host, QpEvent, RemoteKey, Transmit};
use crate::ids::RKey;
use crate::inbound::{Inbound, InboundWrite};
use crate::psn::Psn;
use crate::qp::QpAttr;
use crate::queue::packets_of;
use crate::service::Context;
use crate::wire::{Feth, Header, NakCode, OpcodeInfo, Operation, Packet, RnrTimer};
use crate::work::{Completion, Extra, MAX_MESSAGE, WcOpcode, WcStatus};
use std::collections::VecDeque;

/// Why a request is not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// There is no receive for it now.
    NotReady,
    /// It ends the connection: with this NAK, and this status for the receive that it had taken.
    Fatal(NakCode, WcStatus),
}

/// How often the last answer of a connection that loses packets is repeated, be it an acknowledgement or
/// a NAK: the next request will find nobody who answers.
const FAREWELLS: usize = 2;

const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, WcStatus::RemInvReqErr);
const NO_ACCESS: Refusal = Refusal::Fatal(NakCode::RemoteAccess, WcStatus::LocAccessErr);

/// A READ or an atomic that was carried out, kept so that a duplicate can be answered (9.7.5.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Executed {
    first: Psn,
    end: Psn,
    kind: ExecutedKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExecutedKind {
    Read {
        addr: u64,
        key: RemoteKey,
        len: u32,
    },
    /// An atomic, and what it found; or an ATOMIC WRITE or a FLUSH.
    Done {
        found: Option<u64>,
    },
}

/// What the requester was told of the request that is expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    /// Nothing.
    Nothing,
    /// That it is missing. It is told once (9.7.5.1.2).
    Missing,
    /// That there is no receive for it. It and what follows it come again.
    NotReady,
}

/// The receiving half of a reliable connection.
#[derive(Debug)]
pub(super) struct Responder {
    /// The PSN of the connection's first request.
    first: Psn,
    expected: Psn,
    /// Messages completed, modulo 2^24 (9.7.7.1).
    msn: u32,
    inbound: Option<Inbound>,
    receive: HeldReceive,
    told: Told,
    /// What came after the request that is missing.
    held: Held,
    executed: VecDeque<Executed>,
    /// The PSN after the last READ or atomic.
    response_end: Option<Psn>,
    replies: Replies,
}

impl Responder {
    /// One that keeps so many bytes of requests that came after a hole.
    pub(super) fn new(hold_bytes: u32) -> Self {
        Responder {
            first: Psn::default(),
            expected: Psn::default(),
            msn: 0,
            inbound: None,
            receive: HeldReceive::default(),
            told: Told::Nothing,
            held: Held::new(hold_bytes),
            executed: VecDeque::new(),
            response_end: None,
            replies: Replies::default(),
        }
    }

    /// Ready to receive: expects the first PSN.
    pub(super) fn start(&mut self, attr: &QpAttr, hold_bytes: u32) {
        *self = Responder {
            first: attr.rq_psn,
            expected: attr.rq_psn,
            ..Responder::new(hold_bytes)
        };
    }

    /// The PSN that is expected next.
    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    /// Handles a request packet.
    pub(super) fn handle<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Outcome {
        let psn = packet.header.bth.psn;
        let distance = psn.diff(self.expected);
        if distance > 0 {
            self.out_of_sequence(cx, packet);
            return Outcome::Continue;
        }
        if distance < 0 {
            cx.counters.duplicates += 1;
            self.duplicate(cx, &packet.header, host);
            return Outcome::Continue;
        }
        if self.told == Told::Missing {
            // If the network was only late with it, nobody needs to know.
            self.replies.gap_closed();
        }
        let outcome = self.carry_out(cx, packet, host);
        if outcome == Outcome::Continue && self.told == Told::Nothing {
            self.close_gap(cx, host)
        } else {
            self.held.clear();
            outcome
        }
    }

    /// A request came before one that is expected (9.7.5.1.2).
    fn out_of_sequence(&mut self, cx: &mut Context<'_>, packet: &Packet<'_>) {
        cx.counters.out_of_sequence += 1;
        if self.told == Told::NotReady {
            return;
        }
        self.held.keep(packet, self.expected);
        if self.told == Told::Nothing {
            self.report_gap();
        }
    }

    fn report_gap(&mut self) {
        self.told = Told::Missing;
        self.replies.gap(self.expected, self.msn);
    }

    /// What was missing has come: carries out what was kept, up to the next hole.
    fn close_gap<H: Host>(&mut self, cx: &mut Context<'_>, host: &mut H) -> Outcome {
        let mut outcome = Outcome::Continue;
        let mut any = false;
        while let Some(kept) = self.held.take(self.expected) {
            any = true;
            cx.counters.held += 1;
            outcome = self.carry_out(cx, &kept.packet(), host);
            if self.told != Told::Nothing || outcome != Outcome::Continue {
                self.held.clear();
                return outcome;
            }
        }
        // The requester asked about what was missing, and hears how far it goes now. A READ or an atomic says so
        // by its response.
        if any && self.response_end != Some(self.expected) {
            self.replies.ack(self.expected.prev(), self.msn);
        }
        if self.held.tells_of_hole(self.expected) {
            self.report_gap();
        }
        outcome
    }

    /// Carries out the request that is expected, or refuses it.
    fn carry_out<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Outcome {
        let psn = packet.header.bth.psn;
        match self.execute(cx, packet, host) {
            Ok(()) => {
                self.told = Told::Nothing;
                Outcome::Continue
            }
            Err(Refusal::NotReady) => {
                cx.counters.rnr_naks_sent += 1;
                self.told = Told::NotReady;
                self.replies
                    .not_ready(psn, self.msn, RnrTimer::new(cx.attr.min_rnr_timer));
                Outcome::Continue
            }
            Err(Refusal::Fatal(code, status)) => {
                cx.counters.count_fatal_nak(code);
                self.replies.nak(psn, self.msn, code);
                self.abort(cx, code, status, host);
                Outcome::Failed
            }
        }
    }

    /// Sends answers. Says whether the sink was full, and how it went.
    pub(super) fn transmit<H: Host, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut H,
        out: &mut T,
    ) -> (bool, Outcome) {
        let mut outcome = Outcome::Continue;
        loop {
            match self.replies.transmit(cx, host, out) {
                Sent::All => return (false, outcome),
                Sent::Full => {
                    cx.counters.answers_deferred += 1;
                    return (true, outcome);
                }
                Sent::AccessLost => {
                    self.abort(cx, NakCode::RemoteAccess, WcStatus::LocAccessErr, host);
                    outcome = Outcome::Failed;
                }
            }
        }
    }

    /// Whether one acknowledgement of requests that went well is all it has to send.
    pub(super) fn owes_one_ack(&self) -> bool {
        self.replies.is_one_ack()
    }

    /// Nobody will be here to answer when the requester repeats itself. What it would be told then, it is
    /// told now. Where a READ or an atomic came last there is nothing to say: an acknowledgement would
    /// mean that its response has arrived.
    pub(super) fn say_farewell(&mut self) {
        let answers_last = self.response_end == Some(self.expected);
        if self.expected != self.first && !answers_last {
            self.replies
                .ack_repeatedly(self.expected.prev(), self.msn, FAREWELLS);
        }
    }

    /// The queue pair leaves the states in which it handles packets. A receive that a message had
    /// taken is flushed before those that wait.
    pub(super) fn stop<H: Completions>(&mut self, cx: &mut Context<'_>, host: &mut H) {
        self.receive.end(cx.qpn, WcStatus::WrFlushErr, host);
        self.inbound = None;
        self.held.clear();
        self.replies.stop();
    }

    /// A request ended the connection, and its NAK is the last answer. Tells the program, by the receive
    /// that the request had taken, or else by an event (10.10.2.3, 11.6.3.2).
    fn abort<H: Completions>(
        &mut self,
        cx: &mut Context<'_>,
        code: NakCode,
        status: WcStatus,
        host: &mut H,
    ) {
        // In the error state a repeated request is dropped in silence (10.3.1.7).
        if cx.counters.tell_of_loss() {
            self.replies.repeat_last(FAREWELLS);
        }
        if !self.receive.end(cx.qpn, status, host) {
            host.event(match code {
                NakCode::RemoteAccess => QpEvent::AccessError,
                _ => QpEvent::RequestError,
            });
        }
        self.inbound = None;
    }

    /// A request that was carried out before (9.7.5.1.1). It does not disturb a message under way.
    fn duplicate<H: Host>(&mut self, cx: &mut Context<'_>, header: &Header, host: &mut H) {
        let psn = header.bth.psn;
        match header.bth.opcode.info().operation {
            Operation::Send | Operation::Write => {
                // Acknowledging past a READ would say that its response has arrived.
                let past_response = self.response_end.is_some_and(|end| psn.before(end));
                let done = if past_response {
                    psn
                } else {
                    self.expected.prev()
                };
                self.replies.ack(done, self.msn);
            }
            Operation::Reserved => {}
            Operation::ReadRequest => {
                if let Some(read) = self.read_again(cx, header, host) {
                    self.replies.read_again(self.msn, read);
                }
            }
            _ => {
                let saved = self.executed.iter().find(|executed| executed.first == psn);
                if let Some(Executed {
                    kind: ExecutedKind::Done { found },
                    ..
                }) = saved
                {
                    self.replies.done_again(psn, self.msn, *found);
                }
            }
        }
    }

    /// A READ that comes again may ask for the tail of what it asked for before; anything else is
    /// dropped (9.7.5.1.1).
    fn read_again<H: Host>(
        &self,
        cx: &Context<'_>,
        header: &Header,
        host: &H,
    ) -> Option<ReadReply> {
        let psn = header.bth.psn;
        let reth = header.reth.as_ref()?;
        let executed = self
            .executed
            .iter()
            .find(|executed| !psn.before(executed.first) && psn.before(executed.end))?;
        let ExecutedKind::Read { addr, key, len } = executed.kind else {
            return None;
        };
        let skipped = psn.diff(executed.first) as u64 * cx.attr.path_mtu.bytes() as u64;
        let end = psn + packets_of(reth.length, cx.attr.path_mtu);
        let fits = remote_key(header, reth.rkey) == key
            && reth.addr == addr.wrapping_add(skipped)
            && skipped + u64::from(reth.length) <= u64::from(len)
            && !end.after(executed.end);
        if !fits {
            return None;
        }
        // The key may have been taken away since.
        if reth.length > 0 {
            let len = u64::from(reth.length);
            host.check_remote(key, reth.addr, len, Access::REMOTE_READ)
                .ok()?;
        }
        Some(ReadReply {
            first: psn,
            end,
            addr: reth.addr,
            key,
            left: reth.length,
            again: true,
        })
    }

    fn execute<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let info = packet.header.bth.opcode.info();
        if !Inbound::permits(self.inbound, info) {
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

    fn send<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let received = match self.inbound {
            Some(Inbound::Send { received }) => received,
            _ => {
                self.take_receive(&packet.header, host)?;
                0
            }
        };
        let total = u64::from(received) + packet.payload.len() as u64;
        if total > self.receive.room() || total > MAX_MESSAGE {
            return Err(Refusal::Fatal(NakCode::InvalidRequest, WcStatus::LocLenErr));
        }
        host.fill_receive(self.receive.receive(), u64::from(received), packet.payload)
            .map_err(|_| Refusal::Fatal(NakCode::RemoteOperational, WcStatus::LocProtErr))?;
        let received = total as u32;
        if !info.position.ends() {
            self.inbound = Some(Inbound::Send { received });
            self.accept(&packet.header);
            return Ok(());
        }
        let extra = match (packet.header.imm, packet.header.ieth) {
            (Some(imm), _) => Extra::Imm(imm),
            (None, Some(rkey)) => {
                let key = remote_key(&packet.header, rkey);
                host.invalidate(key).map_err(|_| INVALID)?;
                Extra::Invalidated(rkey)
            }
            (None, None) => Extra::None,
        };
        self.complete(cx, &packet.header, WcOpcode::Recv, received, extra, host);
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
        let write = match (self.inbound, &packet.header.reth) {
            (Some(Inbound::Write(write)), _) => write,
            (_, Some(reth)) => InboundWrite::new(reth, remote_key(&packet.header, reth.rkey)),
            _ => return Err(INVALID),
        };
        let payload = packet.payload;
        let fits = write.takes(payload.len(), info.position.ends());
        if !fits || u64::from(write.len) > MAX_MESSAGE {
            return Err(INVALID);
        }
        if packet.header.imm.is_some() {
            self.take_receive(&packet.header, host)?;
        }
        // A write of nothing needs no right to anything (9.7.4.1.5).
        if info.position.starts() && write.len > 0 {
            let len = u64::from(write.len);
            host.check_remote(write.key, write.addr, len, Access::REMOTE_WRITE)
                .map_err(|_| NO_ACCESS)?;
        }
        if !payload.is_empty() {
            host.remote_write(write.key, write.addr, payload)
                .map_err(|_| NO_ACCESS)?;
        }
        match packet.header.imm {
            _ if !info.position.ends() => {
                self.inbound = Some(Inbound::Write(write.after(payload.len())));
            }
            Some(imm) => {
                let extra = Extra::Imm(imm);
                let opcode = WcOpcode::RecvWriteImm;
                self.complete(cx, &packet.header, opcode, write.len, extra, host);
            }
            None => self.message_done(),
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
            again: false,
        };
        let kind = ExecutedKind::Read {
            addr: reth.addr,
            key,
            len: reth.length,
        };
        self.remember(cx.attr, Executed { first, end, kind });
        self.expected = end;
        self.message_done();
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
        // 9.7.4.1.4: atomics are on 8 bytes at a multiple of 8.
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
        self.done(cx, Some(original));
        Ok(())
    }

    /// ATOMIC WRITE (A19): 8 bytes at a multiple of 8, which nobody sees half written.
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
        self.done(cx, None);
        Ok(())
    }

    /// FLUSH (A19). All that came before it has been carried out.
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
        self.done(cx, None);
        Ok(())
    }

    /// What has one response without more data than this was carried out.
    fn done(&mut self, cx: &Context<'_>, found: Option<u64>) {
        let (first, end) = (self.expected, self.expected.next());
        let kind = ExecutedKind::Done { found };
        self.remember(cx.attr, Executed { first, end, kind });
        self.expected = end;
        self.message_done();
        self.replies.done(first, self.msn, found);
    }

    /// Whether one more READ or atomic may be outstanding: the requester was told how many
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
        if self.receive.hold(header.srq(), host) {
            Ok(())
        } else {
            Err(Refusal::NotReady)
        }
    }

    /// A packet of a SEND or WRITE is done.
    fn accept(&mut self, header: &Header) {
        if header.bth.ack_req {
            self.replies.ack(self.expected, self.msn);
        }
        self.expected = self.expected.next();
    }

    fn message_done(&mut self) {
        self.msn = (self.msn + 1) & 0xff_ffff;
        self.inbound = None;
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
        cx.counters.receives_done += 1;
        let completion = Completion {
            wr_id: self.receive.receive().wr_id,
            status: WcStatus::Success,
            opcode,
            byte_len,
            qpn: cx.qpn,
            src_qp: cx.attr.dest_qpn,
            extra,
            grh: false,
        };
        self.receive
            .complete(completion, header.bth.solicited, host);
    }
}

/// A key of a request, which is to be one of the queue pair's protection domain, or of that of the
/// shared receive queue that a request of XRC names (A14).
fn remote_key(header: &Header, rkey: RKey) -> RemoteKey {
    RemoteKey {
        rkey,
        srq: header.srq(),
    }
}

/// The rights that a FLUSH needs; `None` when it asks for nothing, or for what annex A19 reserves.
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
