//! The responder's queue of answers, sent in PSN order (9.7.5.1).
//!
//! Adjacent acknowledgements are coalesced. READ responses are built from memory when the sink has
//! room, so a long READ takes one entry in the queue.

use super::read_reply::ReadReply;
use super::response_pacing::ResponsePacing;
use crate::host::{Memory, Receives, Transmit};
use crate::psn::Psn;
use crate::service::Context;
use crate::time::Time;
use crate::wire::{
    ACK_LEN, Aeth, Credits, Headers, NakCode, Operation, Position, RnrTimer, Syndrome, emit_ack,
    packet_len,
};
use std::collections::VecDeque;

/// The maximum number of queued answers.
///
/// A peer that respects its limits stays far below; beyond it, answers to duplicates are dropped.
const MAX_REPLIES: usize = 4 * super::MAX_RD_ATOMIC as usize;

/// A queued answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reply {
    /// Its PSN; for a READ, that of the next response.
    psn: Psn,
    /// The MSN when the answer was queued (9.7.7.1). A requester may complete the messages that the
    /// MSN covers, so it must not run ahead of responses still queued.
    msn: u32,
    answer: Answer,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// An ACK of all PSNs up to and including this one.
    Ack,
    /// An RNR NAK: no receive was available for the request.
    NotReady(RnrTimer),
    /// A NAK for a sequence error or a fatal error.
    Nak(NakCode),
    /// The responses to a READ.
    Read(ReadReply),
    /// The response to an atomic with the original value, or to an ATOMIC WRITE or FLUSH (A19).
    SingleResponse {
        original: Option<u64>,
        /// Whether it answers a duplicate.
        is_duplicate: bool,
    },
}

/// The result of sending answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// All answers were sent.
    All,
    /// The sink is full.
    Full,
    /// The pacing permits the next response at this time.
    Paced(Time),
    /// The memory of a READ is no longer accessible. Its NAK takes the place of the responses.
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

    /// Acknowledges everything up to `psn`, in `times` packets.
    pub(super) fn ack_repeatedly(&mut self, psn: Psn, msn: u32, times: usize) {
        for _ in 0..times {
            self.push(psn, msn, Answer::Ack);
        }
    }

    /// Queues a NAK for the request with `psn`.
    pub(super) fn nak(&mut self, psn: Psn, msn: u32, code: NakCode) {
        let answer = Answer::Nak(code);
        self.queue.push_back(Reply { psn, msn, answer });
    }

    /// Queues a NAK for the missing request with `psn`.
    ///
    /// The NAK also acknowledges all before `psn`, so it replaces an ACK queued right before it.
    pub(super) fn gap(&mut self, psn: Psn, msn: u32) {
        self.gap_closed();
        if matches!(self.queue.back(), Some(last) if last.answer == Answer::Ack) {
            self.queue.pop_back();
        }
        self.nak(psn, msn, NakCode::PsnSequence);
    }

    /// Removes a queued NAK for a gap that has closed.
    pub(super) fn gap_closed(&mut self) {
        let reports_gap = |reply: &Reply| reply.answer == Answer::Nak(NakCode::PsnSequence);
        self.queue.retain(|reply| !reports_gap(reply));
    }

    /// Queues `times` copies of the last answer.
    pub(super) fn repeat_last(&mut self, times: usize) {
        if let Some(&last) = self.queue.back() {
            self.queue.extend(std::iter::repeat_n(last, times));
        }
    }

    /// Queues an RNR NAK for the request with `psn`.
    pub(super) fn not_ready(&mut self, psn: Psn, msn: u32, timer: RnrTimer) {
        self.push(psn, msn, Answer::NotReady(timer));
    }

    /// Queues the response to an atomic, or to an ATOMIC WRITE or FLUSH with `original` being
    /// `None`.
    pub(super) fn single_response(&mut self, psn: Psn, msn: u32, original: Option<u64>) {
        let is_duplicate = false;
        self.push(
            psn,
            msn,
            Answer::SingleResponse {
                original,
                is_duplicate,
            },
        );
    }

    /// Queues the response to a duplicate, unless a response with its PSN is queued.
    pub(super) fn repeat_single_response(&mut self, psn: Psn, msn: u32, original: Option<u64>) {
        let waits = |reply: &Reply| reply.psn == psn && reply.answer.is_response();
        if !self.queue.iter().any(waits) {
            let is_duplicate = true;
            self.insert(
                psn,
                msn,
                Answer::SingleResponse {
                    original,
                    is_duplicate,
                },
            );
        }
    }

    /// Queues the responses to a READ.
    pub(super) fn read(&mut self, msn: u32, read: ReadReply) {
        self.push(read.first, msn, Answer::Read(read));
    }

    /// Queues the responses to a repeated READ, unless all of them are queued.
    pub(super) fn repeat_read(&mut self, msn: u32, read: ReadReply) {
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
        if self.queue.len() < MAX_REPLIES {
            self.queue.push_back(Reply { psn, msn, answer });
        }
    }

    /// Inserts the answer to a duplicate before the answers to later requests.
    ///
    /// After them, the requester would take it for a loss.
    fn insert(&mut self, psn: Psn, msn: u32, answer: Answer) {
        if self.queue.len() < MAX_REPLIES {
            let follows = |reply: &Reply| reply.psn.after(psn);
            let at = self.queue.iter().position(follows);
            let at = at.unwrap_or(self.queue.len());
            self.queue.insert(at, Reply { psn, msn, answer });
        }
    }

    /// Returns the number of READs, atomics and similar requests whose first answer is queued.
    ///
    /// Answers to duplicates do not count: the network may duplicate a request that the requester
    /// knows to be answered.
    pub(super) fn responses(&self) -> usize {
        let first = |reply: &&Reply| match reply.answer {
            Answer::Read(ReadReply { is_duplicate, .. })
            | Answer::SingleResponse { is_duplicate, .. } => !is_duplicate,
            _ => false,
        };
        self.queue.iter().filter(first).count()
    }

    /// Clears the queue at the end of the connection.
    ///
    /// If the last answer is a fatal NAK, it and the answers before it are still sent.
    pub(super) fn stop(&mut self) {
        let ends_with_nak = self.queue.back().is_some_and(
            |last| matches!(last.answer, Answer::Nak(code) if code != NakCode::PsnSequence),
        );
        if !ends_with_nak {
            self.queue.clear();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a single ACK is all that is queued.
    pub(super) fn is_single_ack(&self) -> bool {
        matches!(self.queue.front(), Some(reply) if reply.answer == Answer::Ack)
            && self.queue.len() == 1
    }

    /// Sends answers until the queue is empty or the sink is full.
    pub(super) fn transmit<H: Memory + Receives, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        pacing: &mut ResponsePacing,
        host: &H,
        out: &mut T,
    ) -> Sent {
        if !self.is_single_ack() {
            return self.transmit_queue(cx, pacing, host, out);
        }
        match self.transmit_ack(cx, host, out) {
            true => Sent::All,
            false => Sent::Full,
        }
    }

    /// [`Replies::transmit`] for any answers. For a single ACK, the registers and spills of the
    /// loop would be a part of its cost.
    #[inline(never)]
    fn transmit_queue<H: Memory + Receives, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        pacing: &mut ResponsePacing,
        host: &H,
        out: &mut T,
    ) -> Sent {
        while let Some(&Reply { answer, .. }) = self.queue.front() {
            let sent = match answer {
                Answer::Ack if self.transmit_ack(cx, host, out) => Sent::All,
                Answer::Ack => Sent::Full,
                _ => self.transmit_other(cx, credits_of(host), pacing, host, out),
            };
            if sent != Sent::All {
                return sent;
            }
        }
        Sent::All
    }

    /// Sends the oldest answer, which is an ACK. Returns false when the sink is full.
    #[inline(always)]
    fn transmit_ack<R: Receives, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        receives: &R,
        out: &mut T,
    ) -> bool {
        let Some(reply) = self.queue.front() else {
            return true;
        };
        let is_sent = send_ack(cx, reply, Syndrome::Ack(credits_of(receives)), out);
        if is_sent {
            self.queue.pop_front();
        }
        is_sent
    }

    /// Sends the oldest answer, which is not an ACK.
    fn transmit_other<M: Memory, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        credits: Credits,
        pacing: &mut ResponsePacing,
        memory: &M,
        out: &mut T,
    ) -> Sent {
        let Some(reply) = self.queue.front() else {
            return Sent::All;
        };
        let syndrome = match reply.answer {
            Answer::Read(_) => return self.transmit_read(cx, credits, pacing, memory, out),
            Answer::Ack | Answer::SingleResponse { .. } => Syndrome::Ack(credits),
            Answer::NotReady(timer) => Syndrome::RnrNak(timer),
            Answer::Nak(code) => Syndrome::Nak(code),
        };
        let has_room = match reply.answer {
            Answer::SingleResponse { original, .. } => {
                send_single_response(cx, reply, original, syndrome, out)
            }
            _ => send_ack(cx, reply, syndrome, out),
        };
        if !has_room {
            return Sent::Full;
        }
        self.queue.pop_front();
        Sent::All
    }

    /// Sends responses to the READ whose answer is the oldest, and removes it after the last.
    fn transmit_read<M: Memory, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        credits: Credits,
        pacing: &mut ResponsePacing,
        memory: &M,
        out: &mut T,
    ) -> Sent {
        let Some(reply) = self.queue.front_mut() else {
            return Sent::All;
        };
        let Answer::Read(read) = &mut reply.answer else {
            return Sent::All;
        };
        let aeth = Aeth {
            syndrome: Syndrome::Ack(credits),
            msn: reply.msn,
        };
        let next = &mut reply.psn;
        let end = match read.is_duplicate {
            true => read.end,
            false => read.first + pacing.permitted(cx.now).min(read.packets()),
        };
        match send_read(cx, aeth, next, end, read, memory, out) {
            Sent::All if *next != read.end => {
                let sent = next.diff(read.first) as u32;
                Sent::Paced(pacing.resumes_at(sent))
            }
            Sent::All => {
                if !read.is_duplicate {
                    pacing.ended(cx.now);
                }
                self.queue.pop_front();
                Sent::All
            }
            sent @ (Sent::Full | Sent::Paced(_)) => sent,
            Sent::AccessLost => {
                let code = NakCode::RemoteAccess;
                cx.counters.count_fatal_nak(code);
                reply.answer = Answer::Nak(code);
                self.queue.truncate(1);
                Sent::AccessLost
            }
        }
    }
}

impl Answer {
    fn is_response(&self) -> bool {
        matches!(self, Answer::Read(_) | Answer::SingleResponse { .. })
    }
}

/// Returns the credits that an ACK grants (9.7.7.2).
#[inline]
fn credits_of<R: Receives>(receives: &R) -> Credits {
    match receives.receive_credits() {
        Some(count) => Credits::from_count(count),
        None => Credits::INVALID,
    }
}

/// Sends an ACK or NAK. Returns false when the sink is full.
///
/// Inlined into the path of an ACK, whose syndrome is known there.
#[inline(always)]
fn send_ack<T: Transmit>(
    cx: &mut Context<'_>,
    reply: &Reply,
    syndrome: Syndrome,
    out: &mut T,
) -> bool {
    let bth = cx.bth(Operation::Ack, Position::Only, Headers::empty(), reply.psn);
    let Some(packet) = out.stage(ACK_LEN) else {
        return false;
    };
    let msn = reply.msn;
    emit_ack(&bth, Aeth { syndrome, msn }, packet);
    out.commit();
    cx.counters.sent_packets += 1;
    true
}

/// Sends the response to an atomic with its `original` value, or to an ATOMIC WRITE or FLUSH. Returns
/// false when the sink is full.
fn send_single_response<T: Transmit>(
    cx: &mut Context<'_>,
    reply: &Reply,
    original: Option<u64>,
    syndrome: Syndrome,
    out: &mut T,
) -> bool {
    let operation = match original {
        Some(_) => Operation::AtomicAck,
        None => Operation::ReadResponse,
    };
    let mut header = cx.header(operation, Position::Only, Headers::empty(), reply.psn);
    let msn = reply.msn;
    header.aeth = Some(Aeth { syndrome, msn });
    header.atomic_ack = original;
    cx.send_header(&header, out)
}

/// Sends the responses to a READ, beginning with PSN `next`, up to `end`.
fn send_read<M: Memory, T: Transmit>(
    cx: &mut Context<'_>,
    aeth: Aeth,
    next: &mut Psn,
    end: Psn,
    read: &mut ReadReply,
    memory: &M,
    out: &mut T,
) -> Sent {
    while next.before(end) {
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
