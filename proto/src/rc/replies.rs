//! What a responder has to answer, in the order of the PSNs (9.7.5.1).
//!
//! Acknowledgements that nothing separates become one. READ responses are made when there is room
//! for them, straight from memory, so a long READ holds no more than its place in the queue.

use super::Context;
use crate::host::{Memory, Receives, Transmit};
use crate::ids::RKey;
use crate::psn::Psn;
use crate::wire::{
    Aeth, Credits, Headers, NakCode, Operation, Position, RnrTimer, Syndrome, packet_len,
};
use std::collections::VecDeque;

/// An answer under way to the requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reply {
    /// Everything up to this PSN is done.
    Ack { psn: Psn },
    /// There was no receive for the request with this PSN.
    NotReady { psn: Psn, timer: RnrTimer },
    /// A request was refused. Those that end the connection survive its end.
    Nak { psn: Psn, code: NakCode },
    /// What a READ asked for.
    Read(ReadReply),
    /// What an atomic found.
    Atomic { psn: Psn, original: u64 },
}

impl Reply {
    fn psn(&self) -> Psn {
        match *self {
            Reply::Ack { psn }
            | Reply::NotReady { psn, .. }
            | Reply::Nak { psn, .. }
            | Reply::Atomic { psn, .. } => psn,
            Reply::Read(read) => read.next,
        }
    }

    fn is_response(&self) -> bool {
        matches!(self, Reply::Read(_) | Reply::Atomic { .. })
    }
}

/// A READ that is being answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReadReply {
    /// PSN of the first response.
    pub(super) first: Psn,
    /// PSN of the next.
    pub(super) next: Psn,
    /// PSN after the last.
    pub(super) end: Psn,
    /// Where the next one's data lies.
    pub(super) addr: u64,
    /// By which key.
    pub(super) rkey: RKey,
    /// How much is left.
    pub(super) left: u32,
}

/// How sending the answers went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// All are out.
    All,
    /// The sink is full.
    Full,
    /// Memory that a READ was to read is not accessible any more. The NAK is out or queued.
    AccessLost,
}

/// The queue of answers.
#[derive(Debug, Default)]
pub(super) struct Replies {
    queue: VecDeque<Reply>,
}

impl Replies {
    /// Acknowledges everything up to `psn`.
    pub(super) fn ack(&mut self, psn: Psn) {
        match self.queue.back_mut() {
            Some(Reply::Ack { psn: last }) => {
                if psn.after(*last) {
                    *last = psn;
                }
            }
            _ => self.queue.push_back(Reply::Ack { psn }),
        }
    }

    /// Refuses the request with `psn`.
    pub(super) fn nak(&mut self, psn: Psn, code: NakCode) {
        self.queue.push_back(Reply::Nak { psn, code });
    }

    /// Asks to send the request with `psn` again later.
    pub(super) fn not_ready(&mut self, psn: Psn, timer: RnrTimer) {
        let reply = Reply::NotReady { psn, timer };
        if self.queue.back() != Some(&reply) {
            self.queue.push_back(reply);
        }
    }

    /// Answers an atomic.
    pub(super) fn atomic(&mut self, psn: Psn, original: u64) {
        let reply = Reply::Atomic { psn, original };
        if !self.queue.contains(&reply) {
            self.queue.push_back(reply);
        }
    }

    /// Answers a READ.
    pub(super) fn read(&mut self, read: ReadReply) {
        self.queue.push_back(Reply::Read(read));
    }

    /// Answers a READ again. Whoever asks again for this one will do so for what followed it.
    pub(super) fn read_again(&mut self, read: ReadReply) {
        self.queue
            .retain(|reply| !reply.is_response() || reply.psn().before(read.first));
        let at = self
            .queue
            .iter()
            .position(|reply| reply.psn().after(read.first));
        self.queue
            .insert(at.unwrap_or(self.queue.len()), Reply::Read(read));
    }

    /// How many READs and atomics wait for their answers to go out.
    pub(super) fn responses(&self) -> usize {
        self.queue
            .iter()
            .filter(|reply| reply.is_response())
            .count()
    }

    /// Forgets all but the NAK that ends the connection.
    pub(super) fn stop(&mut self) {
        self.queue.retain(
            |reply| matches!(reply, Reply::Nak { code, .. } if *code != NakCode::PsnSequence),
        );
    }

    /// Sends what there is room for. `msn` is the responder's count of messages (9.7.7.1).
    pub(super) fn transmit<H: Memory + Receives, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        msn: u32,
        host: &H,
        out: &mut T,
    ) -> Sent {
        while let Some(reply) = self.queue.front_mut() {
            let credits = || match host.receive_credits() {
                Some(count) => Credits::from_count(count),
                None => Credits::INVALID,
            };
            let (operation, psn, syndrome, original) = match *reply {
                Reply::Read(ref mut read) => match send_read(cx, msn, credits(), read, host, out) {
                    Sent::All => {
                        self.queue.pop_front();
                        continue;
                    }
                    Sent::Full => return Sent::Full,
                    Sent::AccessLost => {
                        cx.counters.fatal_naks_sent += 1;
                        let psn = read.next;
                        *reply = Reply::Nak {
                            psn,
                            code: NakCode::RemoteAccess,
                        };
                        self.queue.truncate(1);
                        return Sent::AccessLost;
                    }
                },
                Reply::Ack { psn } => (Operation::Ack, psn, Syndrome::Ack(credits()), None),
                Reply::NotReady { psn, timer } => {
                    (Operation::Ack, psn, Syndrome::RnrNak(timer), None)
                }
                Reply::Nak { psn, code } => (Operation::Ack, psn, Syndrome::Nak(code), None),
                Reply::Atomic { psn, original } => (
                    Operation::AtomicAck,
                    psn,
                    Syndrome::Ack(credits()),
                    Some(original),
                ),
            };
            let mut header = cx
                .header(operation, Position::Only, Headers::empty(), psn)
                .with_aeth(Aeth { syndrome, msn });
            header.atomic_ack = original;
            let Some(packet) = out.stage(header.len()) else {
                return Sent::Full;
            };
            header.emit(packet);
            out.commit();
            cx.counters.sent_packets += 1;
            self.queue.pop_front();
        }
        Sent::All
    }
}

fn send_read<M: Memory, T: Transmit>(
    cx: &mut Context<'_>,
    msn: u32,
    credits: Credits,
    read: &mut ReadReply,
    memory: &M,
    out: &mut T,
) -> Sent {
    while read.next.before(read.end) {
        let len = read.left.min(cx.attr.path_mtu.bytes() as u32);
        let position = Position::new(read.next == read.first, read.next.next() == read.end);
        let mut header = cx
            .header(
                Operation::ReadResponse,
                position,
                Headers::empty(),
                read.next,
            )
            .with_payload_len(len as usize);
        if position != Position::Middle {
            header.aeth = Some(Aeth {
                syndrome: Syndrome::Ack(credits),
                msn,
            });
        }
        let header_len = header.len();
        let Some(packet) = out.stage(packet_len(header_len, len as usize)) else {
            return Sent::Full;
        };
        header.emit(packet);
        let (data, pad) = packet[header_len..].split_at_mut(len as usize);
        pad.fill(0);
        if len > 0 && memory.remote_read(read.rkey, read.addr, data).is_err() {
            out.cancel();
            return Sent::AccessLost;
        }
        out.commit();
        cx.counters.sent_packets += 1;
        read.next = read.next.next();
        read.addr = read.addr.wrapping_add(u64::from(len));
        read.left -= len;
    }
    Sent::All
}
