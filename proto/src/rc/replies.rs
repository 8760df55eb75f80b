//! What a responder has to answer, in the order of the PSNs (9.7.5.1).
//!
//! Acknowledgements that nothing separates become one. READ responses are made when there is room
//! for them, straight from memory, so a long READ holds no more than its place in the queue.

use crate::host::{Memory, Receives, RemoteKey, Transmit};
use crate::psn::Psn;
use crate::service::Context;
use crate::wire::{
    Aeth, Credits, Headers, NakCode, Operation, Position, RnrTimer, Syndrome, packet_len,
};
use std::collections::VecDeque;

/// The most answers that wait. A peer that keeps within its limits is far from it; beyond it the
/// answers to duplicates are left out, as if they had been lost.
const MOST_REPLIES: usize = 4 * super::MAX_RD_ATOMIC as usize;

/// An answer under way to the requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reply {
    /// Its PSN; for a READ that of the next response.
    psn: Psn,
    /// How many messages were completed when it was decided on (9.7.7.1). A requester may complete
    /// what the count covers, so it must not run ahead of responses that wait here.
    msn: u32,
    answer: Answer,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// Everything up to its PSN is done.
    Ack,
    /// There was no receive for the request with its PSN.
    NotReady(RnrTimer),
    /// A request was refused.
    Nak(NakCode),
    /// What a READ asked for.
    Read(ReadReply),
    /// What an atomic found; that an ATOMIC WRITE or a FLUSH is done (A19).
    Done {
        found: Option<u64>,
        /// Whether it was done earlier, and this answers a duplicate.
        again: bool,
    },
}

/// A READ that is being answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReadReply {
    /// PSN of the first response.
    pub(super) first: Psn,
    /// PSN after the last.
    pub(super) end: Psn,
    /// Where the next one's data lies.
    pub(super) addr: u64,
    /// By which key.
    pub(super) key: RemoteKey,
    /// How much is left.
    pub(super) left: u32,
    /// Whether this answers a duplicate.
    pub(super) again: bool,
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
    pub(super) fn ack(&mut self, psn: Psn, msn: u32) {
        match self.queue.back_mut() {
            Some(last) if last.answer == Answer::Ack => {
                if psn.after(last.psn) {
                    last.psn = psn;
                }
                last.msn = msn;
            }
            _ => self.push(psn, msn, Answer::Ack),
        }
    }

    /// Acknowledges everything up to `psn` in so many packets of their own.
    pub(super) fn ack_repeatedly(&mut self, psn: Psn, msn: u32, times: usize) {
        for _ in 0..times {
            self.push(psn, msn, Answer::Ack);
        }
    }

    /// Refuses the request with `psn`.
    pub(super) fn nak(&mut self, psn: Psn, msn: u32, code: NakCode) {
        let answer = Answer::Nak(code);
        self.queue.push_back(Reply { psn, msn, answer });
    }

    /// Reports that the request with `psn` is missing. That also acknowledges what came before it, so that an
    /// acknowledgement right before says nothing more.
    pub(super) fn gap(&mut self, psn: Psn, msn: u32) {
        self.gap_closed();
        if matches!(self.queue.back(), Some(last) if last.answer == Answer::Ack) {
            self.queue.pop_back();
        }
        self.nak(psn, msn, NakCode::PsnSequence);
    }

    /// A report that did not go out yet is not needed any more.
    pub(super) fn gap_closed(&mut self) {
        let reports_gap = |reply: &Reply| reply.answer == Answer::Nak(NakCode::PsnSequence);
        self.queue.retain(|reply| !reports_gap(reply));
    }

    /// Gives the last answer so many times more.
    pub(super) fn repeat_last(&mut self, times: usize) {
        if let Some(&last) = self.queue.back() {
            self.queue.extend(std::iter::repeat_n(last, times));
        }
    }

    /// Asks to send the request with `psn` again later.
    pub(super) fn not_ready(&mut self, psn: Psn, msn: u32, timer: RnrTimer) {
        self.push(psn, msn, Answer::NotReady(timer));
    }

    /// Answers an atomic by what it found, an ATOMIC WRITE or a FLUSH by nothing.
    pub(super) fn done(&mut self, psn: Psn, msn: u32, found: Option<u64>) {
        let again = false;
        self.push(psn, msn, Answer::Done { found, again });
    }

    /// The same again, unless that is to happen already.
    pub(super) fn done_again(&mut self, psn: Psn, msn: u32, found: Option<u64>) {
        let waits = |reply: &Reply| reply.psn == psn && reply.answer.is_response();
        if !self.queue.iter().any(waits) {
            let again = true;
            self.insert(psn, msn, Answer::Done { found, again });
        }
    }

    /// Answers a READ.
    pub(super) fn read(&mut self, msn: u32, read: ReadReply) {
        self.push(read.first, msn, Answer::Read(read));
    }

    /// Answers a READ again, unless all that is asked for is still to go out.
    pub(super) fn read_again(&mut self, msn: u32, read: ReadReply) {
        let (first, end) = (read.first, read.end);
        let covers = |reply: &Reply| match &reply.answer {
            Answer::Read(waits) => !reply.psn.after(first) && !waits.end.before(end),
            _ => false,
        };
        if self.queue.iter().any(covers) {
            return;
        }
        self.queue.retain(|reply| match &reply.answer {
            Answer::Read(waits) => !(reply.psn.before(end) && first.before(waits.end)),
            _ => true,
        });
        self.insert(first, msn, Answer::Read(read));
    }

    fn push(&mut self, psn: Psn, msn: u32, answer: Answer) {
        if self.queue.len() < MOST_REPLIES {
            self.queue.push_back(Reply { psn, msn, answer });
        }
    }

    /// Puts the answer to a duplicate before those to what followed it, which would be taken for
    /// the loss of this one.
    fn insert(&mut self, psn: Psn, msn: u32, answer: Answer) {
        if self.queue.len() < MOST_REPLIES {
            let follows = |reply: &Reply| reply.psn.after(psn);
            let at = self.queue.iter().position(follows);
            let at = at.unwrap_or(self.queue.len());
            self.queue.insert(at, Reply { psn, msn, answer });
        }
    }

    /// How many READs, atomics and their like wait for their first answer to go out. Answers to duplicates do
    /// not count: the network may have made them, when the requester had its answer long ago.
    pub(super) fn responses(&self) -> usize {
        let first = |reply: &&Reply| match reply.answer {
            Answer::Read(ReadReply { again, .. }) | Answer::Done { again, .. } => !again,
            _ => false,
        };
        self.queue.iter().filter(first).count()
    }

    /// The connection ends. If it ends with a NAK, that goes out still, and before it the answers
    /// to what came before it.
    pub(super) fn stop(&mut self) {
        let ends_with_nak = self.queue.back().is_some_and(
            |last| matches!(last.answer, Answer::Nak(code) if code != NakCode::PsnSequence),
        );
        if !ends_with_nak {
            self.queue.clear();
        }
    }

    /// Whether one acknowledgement of requests that went well is all there is.
    pub(super) fn is_one_ack(&self) -> bool {
        matches!(self.queue.front(), Some(reply) if reply.answer == Answer::Ack)
            && self.queue.len() == 1
    }

    /// Sends what there is room for.
    pub(super) fn transmit<H: Memory + Receives, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        host: &H,
        out: &mut T,
    ) -> Sent {
        while let Some(reply) = self.queue.front_mut() {
            let credits = match host.receive_credits() {
                Some(count) => Credits::from_count(count),
                None => Credits::INVALID,
            };
            let (operation, syndrome, original) = match &mut reply.answer {
                Answer::Read(read) => {
                    let aeth = Aeth {
                        syndrome: Syndrome::Ack(credits),
                        msn: reply.msn,
                    };
                    match send_read(cx, aeth, &mut reply.psn, read, host, out) {
                        Sent::All => {
                            self.queue.pop_front();
                            continue;
                        }
                        Sent::Full => return Sent::Full,
                        Sent::AccessLost => {
                            let code = NakCode::RemoteAccess;
                            cx.counters.count_fatal_nak(code);
                            reply.answer = Answer::Nak(code);
                            self.queue.truncate(1);
                            return Sent::AccessLost;
                        }
                    }
                }
                Answer::Ack => (Operation::Ack, Syndrome::Ack(credits), None),
                Answer::NotReady(timer) => (Operation::Ack, Syndrome::RnrNak(*timer), None),
                Answer::Nak(code) => (Operation::Ack, Syndrome::Nak(*code), None),
                Answer::Done { found, .. } => {
                    let operation = match found {
                        Some(_) => Operation::AtomicAck,
                        None => Operation::ReadResponse,
                    };
                    (operation, Syndrome::Ack(credits), *found)
                }
            };
            let msn = reply.msn;
            let mut header = cx
                .header(operation, Position::Only, Headers::empty(), reply.psn)
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

impl Answer {
    fn is_response(&self) -> bool {
        matches!(self, Answer::Read(_) | Answer::Done { .. })
    }
}

/// Sends the responses to a READ from that with PSN `next` on.
fn send_read<M: Memory, T: Transmit>(
    cx: &mut Context<'_>,
    aeth: Aeth,
    next: &mut Psn,
    read: &mut ReadReply,
    memory: &M,
    out: &mut T,
) -> Sent {
    while *next != read.end {
        let len = read.left.min(cx.attr.path_mtu.bytes() as u32);
        let position = Position::new(*next == read.first, next.next() == read.end);
        let mut header = cx
            .header(Operation::ReadResponse, position, Headers::empty(), *next)
            .with_payload_len(len as usize);
        if position != Position::Middle {
            header.aeth = Some(aeth);
        }
        let header_len = header.len();
        let Some(packet) = out.stage(packet_len(header_len, len as usize)) else {
            return Sent::Full;
        };
        header.emit(packet);
        let (data, pad) = packet[header_len..].split_at_mut(len as usize);
        pad.fill(0);
        if len > 0 && memory.remote_read(read.key, read.addr, data).is_err() {
            out.cancel();
            return Sent::AccessLost;
        }
        out.commit();
        cx.counters.sent_packets += 1;
        *next = next.next();
        read.addr = read.addr.wrapping_add(u64::from(len));
        read.left -= len;
    }
    Sent::All
}
