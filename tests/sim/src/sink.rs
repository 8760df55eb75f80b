//! What queue pairs send into.

use urxe_proto::host::Transmit;
use urxe_proto::time::Time;

/// A sink for one round of sending.
#[derive(Debug)]
pub struct Sink {
    now: Time,
    room: usize,
    /// Whether it was asked for more than it takes.
    pub refused: bool,
    staged: Vec<u8>,
    /// What was sent.
    pub packets: Vec<Vec<u8>>,
}

impl Sink {
    /// One that takes `room` packets.
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
        // Whatever is not written shows.
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
}
