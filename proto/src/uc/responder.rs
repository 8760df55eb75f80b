//! The responder: executes messages that arrive completely, and drops the others (9.8.2.2, 9.9.3).
//!
//! Errors are not reported to the peer. An unexpected packet ends the message in progress. The next
//! first packet, whatever its PSN, starts another one. A receive taken for a dropped message is
//! kept for the next.

use crate::held_receive::HeldReceive;
use crate::host::{Access, Host};
use crate::inbound::{Inbound, InboundWrite};
use crate::psn::Psn;
use crate::service::Context;
use crate::wire::{OpcodeInfo, Operation, Packet};
use crate::work::{Completion, Extra, MAX_MESSAGE, WcOpcode, WcStatus};

/// Whether the queue pair remains operational.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(super) enum Outcome {
    /// The queue pair remains operational.
    Continue,
    /// A receive completed with an error: the queue pair enters the error state.
    Failed,
}

/// Why a packet is not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// The message is dropped; the reason has been counted.
    Drop,
    /// The receive completes with this status, and the queue pair enters the error state (9.9.3,
    /// class A).
    Fatal(WcStatus),
}

/// The responder of an unreliable connection.
#[derive(Debug, Default)]
pub(super) struct Responder {
    expected: Psn,
    inbound: Option<Inbound>,
    /// Packets up to the next first or last one belong to a dropped message, which has been
    /// counted.
    skipping: bool,
}

impl Responder {
    /// Returns a responder that expects `psn` first.
    pub(super) fn expecting(psn: Psn) -> Self {
        Responder {
            expected: psn,
            ..Responder::default()
        }
    }

    /// The expected PSN.
    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    /// Handles a packet.
    pub(super) fn handle<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        receive: &mut HeldReceive,
        host: &mut H,
    ) -> Outcome {
        let bth = &packet.header.bth;
        let info = bth.opcode.info();
        let in_sequence = bth.psn == self.expected;
        self.expected = bth.psn.next();
        if !in_sequence {
            cx.counters.out_of_sequence += 1;
        }
        if !in_sequence || !Inbound::permits(self.inbound, info) {
            let truncated = self.inbound.take().is_some();
            let headless = !truncated && !self.skipping && !info.position.starts();
            if truncated || headless {
                cx.counters.incomplete_messages += 1;
            }
            self.skipping = true;
        }
        if info.position.starts() {
            self.skipping = false;
        } else if self.skipping {
            self.skipping = !info.position.ends();
            return Outcome::Continue;
        }
        match self.execute(cx, packet, info, receive, host) {
            Ok(()) => Outcome::Continue,
            Err(Refusal::Drop) => {
                self.inbound = None;
                self.skipping = !info.position.ends();
                Outcome::Continue
            }
            Err(Refusal::Fatal(status)) => {
                self.inbound = None;
                receive.end(cx.qpn, status, host);
                Outcome::Failed
            }
        }
    }

    fn execute<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        receive: &mut HeldReceive,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let mtu = cx.attr.path_mtu.bytes();
        if !info.payload.accepts(packet.payload.len(), mtu) {
            cx.counters.malformed += 1;
            return Err(Refusal::Drop);
        }
        if info.operation == Operation::Send {
            self.send(cx, packet, info, receive, host)
        } else {
            self.write(cx, packet, info, receive, host)
        }
    }

    fn send<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        receive: &mut HeldReceive,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let received = match self.inbound {
            Some(Inbound::Send { received }) => received,
            _ => 0,
        };
        hold(cx, receive, host)?;
        let total = u64::from(received) + packet.payload.len() as u64;
        if total > receive.room() || total > MAX_MESSAGE {
            receive.too_small(cx, host);
            return Err(Refusal::Drop);
        }
        host.fill_receive(receive.receive(), u64::from(received), packet.payload)
            .map_err(|_| Refusal::Fatal(WcStatus::LocProtErr))?;
        let received = total as u32;
        if info.position.ends() {
            self.inbound = None;
            complete(cx, packet, WcOpcode::Recv, received, receive, host);
        } else {
            self.inbound = Some(Inbound::Send { received });
        }
        Ok(())
    }

    fn write<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        receive: &mut HeldReceive,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let write = match (self.inbound, &packet.header.reth) {
            (Some(Inbound::Write(write)), _) => write,
            (_, Some(reth)) => InboundWrite::new(reth, reth.rkey.into()),
            _ => {
                cx.counters.malformed += 1;
                return Err(Refusal::Drop);
            }
        };
        let payload = packet.payload;
        if !write.takes(payload.len(), info.position.ends()) || u64::from(write.len) > MAX_MESSAGE {
            cx.counters.malformed += 1;
            return Err(Refusal::Drop);
        }
        let mut permitted = cx.attr.access.contains(Access::REMOTE_WRITE);
        // A WRITE of zero length needs no access right (9.7.4.1.5).
        if info.position.starts() && write.len > 0 {
            let len = u64::from(write.len);
            let access = Access::REMOTE_WRITE;
            let checked = host.check_remote(write.key, write.addr, len, access);
            permitted = permitted && checked.is_ok();
        }
        if permitted && packet.header.imm.is_some() {
            hold(cx, receive, host)?;
        }
        if permitted && !payload.is_empty() {
            let written = host.remote_write(write.key, write.addr, payload);
            permitted = written.is_ok();
        }
        if !permitted {
            cx.counters.access_violations += 1;
            return Err(Refusal::Drop);
        }
        if !info.position.ends() {
            self.inbound = Some(Inbound::Write(write.after(payload.len())));
            return Ok(());
        }
        self.inbound = None;
        if packet.header.imm.is_some() {
            let opcode = WcOpcode::RecvWriteImm;
            complete(cx, packet, opcode, write.len, receive, host);
        } else {
            cx.counters.writes_done += 1;
        }
        Ok(())
    }
}

fn hold<H: Host>(
    cx: &mut Context<'_>,
    receive: &mut HeldReceive,
    host: &mut H,
) -> Result<(), Refusal> {
    if receive.hold(None, host) {
        return Ok(());
    }
    cx.counters.no_receive += 1;
    Err(Refusal::Drop)
}

fn complete<H: Host>(
    cx: &mut Context<'_>,
    packet: &Packet<'_>,
    opcode: WcOpcode,
    byte_len: u32,
    receive: &mut HeldReceive,
    host: &mut H,
) {
    cx.counters.receives_done += 1;
    let completion = Completion {
        wr_id: receive.receive().wr_id,
        status: WcStatus::Success,
        opcode,
        byte_len,
        qpn: cx.qpn,
        src_qp: cx.attr.dest_qpn,
        extra: packet.header.imm.map_or(Extra::None, Extra::Imm),
        grh: None,
    };
    receive.complete(completion, packet.header.bth.solicited, host);
}
