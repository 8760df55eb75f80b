//! Requests that came after a hole, kept until the hole closes.
//!
//! To the peer it looks as if the network had been late with them, so it is legal whoever the peer is. They are kept
//! as they came, and carried out in their turn: nothing of them is seen in memory before that.

use crate::psn::Psn;
use crate::wire::{Header, Packet};
use std::collections::VecDeque;

/// How many PSNs after the hole a request may come and still be kept. Who wants to slip in a request that
/// will be carried out later has to guess that well.
const SPAN: i32 = 1024;

/// So far after the hole a request may come and still say that all before it is on its way. No requester has more
/// under way than that; what comes from further off is answered like any gap, and forgotten.
const PLAUSIBLE: i32 = 4 * SPAN;

/// A request that waits for those before it.
#[derive(Debug)]
pub(super) struct Kept {
    header: Header,
    payload: Box<[u8]>,
}

impl Kept {
    /// It as it came.
    pub(super) fn packet(&self) -> Packet<'_> {
        Packet {
            header: self.header,
            payload: &self.payload,
        }
    }

    fn psn(&self) -> Psn {
        self.header.bth.psn
    }

    fn bytes(&self) -> usize {
        size_of::<Kept>() + self.payload.len()
    }
}

/// The requests after a hole, in the order of their PSNs.
#[derive(Debug)]
pub(super) struct Held {
    queue: VecDeque<Kept>,
    bytes: usize,
    /// The most bytes of memory that they may take.
    most: usize,
    /// The highest PSN of a request that was not kept: whatever comes first, something is missing
    /// behind it.
    missed: Option<Psn>,
}

impl Held {
    /// Room for so many bytes of memory; 0 for nothing.
    pub(super) fn new(most: u32) -> Self {
        Held {
            queue: VecDeque::new(),
            bytes: 0,
            most: most as usize,
            missed: None,
        }
    }

    /// Keeps a request that came when `expected` was the next. One that is there already stays.
    pub(super) fn keep(&mut self, packet: &Packet<'_>, expected: Psn) {
        if self.most == 0 {
            return;
        }
        let psn = packet.header.bth.psn;
        let ahead = psn.diff(expected);
        if ahead > PLAUSIBLE {
            return;
        }
        let at = self.queue.partition_point(|kept| kept.psn().before(psn));
        if self.queue.get(at).is_some_and(|kept| kept.psn() == psn) {
            return;
        }
        let kept = Kept {
            header: packet.header,
            payload: Box::default(),
        };
        let bytes = kept.bytes() + packet.payload.len();
        if self.bytes + bytes > self.most || ahead > SPAN {
            if self.missed.is_none_or(|missed| psn.after(missed)) {
                self.missed = Some(psn);
            }
            return;
        }
        self.bytes += bytes;
        let payload = packet.payload.into();
        self.queue.insert(at, Kept { payload, ..kept });
    }

    /// Takes the request with the PSN that is expected now, and forgets those before it.
    pub(super) fn take(&mut self, expected: Psn) -> Option<Kept> {
        loop {
            let first = self.queue.front()?.psn();
            if first.after(expected) {
                return None;
            }
            let kept = self.queue.pop_front()?;
            self.bytes -= kept.bytes();
            if first == expected {
                return Some(kept);
            }
        }
    }

    /// Whether anything after `expected` is known to have come, be it kept or not. What was not kept is told
    /// once: from then on the requester knows.
    pub(super) fn tells_of_hole(&mut self, expected: Psn) -> bool {
        let missed = self.missed.take();
        !self.queue.is_empty() || missed.is_some_and(|psn| !psn.before(expected))
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.queue = VecDeque::new();
        self.bytes = 0;
        self.missed = None;
    }
}
