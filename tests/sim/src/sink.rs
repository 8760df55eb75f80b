//! The packet sink of queue pairs.

use urxe_proto::host::{BatchPlace, Transmit};
use urxe_proto::time::Time;

/// The packets in a batch: fewer than the kernel accepts, so that short windows have several.
const BATCH: usize = 4;

/// A sink for one call of `poll_transmit`.
#[derive(Debug)]
pub struct Sink {
    now: Time,
    room: usize,
    /// Whether it refused a packet because it was full.
    pub refused: bool,
    staged: Vec<u8>,
    /// The packets sent.
    pub packets: Vec<Vec<u8>>,
}

impl Sink {
    /// Returns a sink for `room` packets.
    pub fn new(now: Time, room: usize) -> Self {
        Sink {
            now,
            room,
            refused: false,
            staged: Vec::new(),
            packets: Vec::new(),
        }
    }
}

impl Transmit for Sink {
    fn stage(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.packets.len() == self.room {
            self.refused = true;
            return None;
        }
        self.staged.clear();
        // A fill pattern reveals bytes that are not written.
        self.staged.resize(len, 0xa5);
        Some(&mut self.staged)
    }

    fn commit(&mut self) {
        self.packets.push(self.staged.clone());
    }

    fn cancel(&mut self) {}

    fn now(&self) -> Time {
        self.now
    }

    fn place_in_batch(&self, _len: usize) -> BatchPlace {
        BatchPlace {
            begins: self.packets.len().is_multiple_of(BATCH),
            ends: (self.packets.len() + 1).is_multiple_of(BATCH),
            capacity: BATCH as u32,
        }
    }
}
