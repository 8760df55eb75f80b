//! The responder: executes messages that arrive completely, and drops the others (9.8.2.2, 9.9.3).
//!
//! Errors are not reported to the peer. An unexpected packet ends the message in progress. The next
//! first packet, whatever its PSN, starts another one. A receive taken for a dropped message is
//! kept for the next.

use crate::host::{Access, Host};
use crate::placement::{MessageInfo, Placement};
use crate::psn::Psn;
use crate::service::Context;
use crate::unreliable::drop_message;
use crate::wire::{OpcodeInfo, Operation, Packet};
use crate::work::{Extra, WcOpcode, WcStatus};

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
    /// Whether packets up to the next first or last one belong to a dropped message, which has been
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
        placement: &mut Placement,
        host: &mut H,
    ) -> Outcome {
        let bth = &packet.header.bth;
        let info = bth.opcode.info();
        let in_sequence = bth.psn == self.expected;
        self.expected = bth.psn.next();
        if !in_sequence {
            cx.counters.out_of_sequence += 1;
        }
        if !in_sequence || !placement.permits(info) {
            let truncated = placement.drop_message();
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
        match execute(cx, packet, info, placement, host) {
            Ok(()) => Outcome::Continue,
            Err(Refusal::Drop) => {
                placement.drop_message();
                self.skipping = !info.position.ends();
                Outcome::Continue
            }
            Err(Refusal::Fatal(status)) => {
                placement.abort(cx.qpn, status, host);
                Outcome::Failed
            }
        }
    }
}

fn execute<H: Host>(
    cx: &mut Context<'_>,
    packet: &Packet<'_>,
    info: &OpcodeInfo,
    placement: &mut Placement,
    host: &mut H,
) -> Result<(), Refusal> {
    let mtu = cx.attr.path_mtu.bytes();
    if !info.payload.accepts(packet.payload.len(), mtu) {
        cx.counters.malformed += 1;
        return Err(Refusal::Drop);
    }
    match info.operation {
        Operation::Send => send(cx, packet, info, placement, host),
        _ => write(cx, packet, info, placement, host),
    }
}

fn send<H: Host>(
    cx: &mut Context<'_>,
    packet: &Packet<'_>,
    info: &OpcodeInfo,
    placement: &mut Placement,
    host: &mut H,
) -> Result<(), Refusal> {
    match placement.place_send(packet, info, host) {
        Ok(None) => Ok(()),
        Ok(Some(len)) => {
            complete(cx, packet, WcOpcode::Recv, len, placement, host);
            Ok(())
        }
        Err(error) => match drop_message(error, placement, cx, host) {
            Ok(()) => Err(Refusal::Drop),
            Err(status) => Err(Refusal::Fatal(status)),
        },
    }
}

fn write<H: Host>(
    cx: &mut Context<'_>,
    packet: &Packet<'_>,
    info: &OpcodeInfo,
    placement: &mut Placement,
    host: &mut H,
) -> Result<(), Refusal> {
    let Some(write) = placement.write_of(packet, info) else {
        cx.counters.malformed += 1;
        return Err(Refusal::Drop);
    };
    let has_access = cx.attr.access.contains(Access::REMOTE_WRITE)
        && Placement::check_write(&write, info, host).is_ok();
    let takes_receive = packet.header.imm.is_some();
    if has_access && takes_receive && !placement.take_receive(None, host) {
        cx.counters.no_receive += 1;
        return Err(Refusal::Drop);
    }
    if !has_access || placement.place_write(write, packet, info, host).is_err() {
        cx.counters.access_violations += 1;
        return Err(Refusal::Drop);
    }
    if takes_receive {
        let opcode = WcOpcode::RecvWriteImm;
        complete(cx, packet, opcode, write.len, placement, host);
    } else if info.position.ends() {
        cx.counters.writes_done += 1;
    }
    Ok(())
}

fn complete<H: Host>(
    cx: &mut Context<'_>,
    packet: &Packet<'_>,
    opcode: WcOpcode,
    byte_len: u32,
    placement: &mut Placement,
    host: &mut H,
) {
    let message = MessageInfo {
        src_qp: cx.attr.dest_qpn,
        extra: packet.header.imm.map_or(Extra::None, Extra::Imm),
        grh: None,
        solicited: packet.header.bth.solicited,
    };
    placement.complete(cx, opcode, byte_len, message, host);
}
