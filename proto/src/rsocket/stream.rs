//! One end of a stream. It decides what is written where; memory, queue pair and waiting are its owner's.
//!
//! The receive buffer is two halves, each told to the peer as a target when it is empty. The peer fills
//! a target from its start to its end, then the next. What is written is told by messages, for which the
//! peer needs credit; messages about the connection need none, and are few.

use super::wire::{Area, ConnData, Control, IomapEntry, Message, Order, TARGETS};
use crate::ids::RKey;
use std::collections::VecDeque;

/// How many messages about the connection may be outstanding. They need no credit of the peer's.
pub const CONTROL_SLOTS: u16 = 4;

/// Sending begins only when so many bytes of the send buffer are free.
pub const LOW_WATER: u32 = 2048;

/// The most bytes of one transfer.
pub const MAX_TRANSFER: u32 = 65_536;

/// The sizes of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Work requests of its send queue, more than [`CONTROL_SLOTS`].
    pub send_queue: u16,
    /// Receives of its receive queue, at least 2.
    pub receive_queue: u16,
    /// Bytes of its send buffer, at least [`LOW_WATER`].
    pub send_buffer: u32,
    /// Bytes of its receive buffer, at least 2.
    pub receive_buffer: u32,
    /// Entries of its list of mapped memory.
    pub iomap_entries: u16,
}

/// Where an end's memory is, as its peer names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The first byte.
    pub addr: u64,
    /// The key.
    pub key: RKey,
}

impl Place {
    fn area(self, offset: u32, len: u32) -> Area {
        Area {
            addr: self.addr.wrapping_add(offset.into()),
            key: self.key,
            len,
        }
    }
}

/// The list of targets in memory, which the peer writes.
pub trait Targets {
    /// What an entry says.
    fn entry(&self, index: usize) -> Area;
}

/// A piece of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Piece {
    /// Its first byte.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// Where data for the peer lies meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Staging {
    /// Nowhere: the work request takes it along.
    Inline,
    /// In the send buffer, in one piece or, around its end, in two; the second may be empty.
    Buffer([Piece; 2]),
}

/// An RDMA WRITE that is to be posted. The other one is posted after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// The number for its work request, for [`Stream::completed`].
    pub number: u64,
    /// Where to.
    pub addr: u64,
    /// The peer's key for it.
    pub key: RKey,
    /// Its message; without one it takes no receive of the peer's.
    pub imm: Option<u32>,
    /// Bytes.
    pub len: u32,
    /// Where they are to be put before.
    pub staging: Staging,
}

/// An RDMA WRITE about the connection or its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The number for its work request, for [`Stream::completed`].
    pub number: u64,
    /// Where to.
    pub addr: u64,
    /// The peer's key for it.
    pub key: RKey,
    /// Its message, if it has one.
    pub imm: Option<u32>,
    /// The entry that it writes, if it does.
    pub entry: Option<[u8; Area::BYTES]>,
}

/// Why an end cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StreamError {
    /// The peer says that it has written more than there is room for.
    #[error("the peer claims to have written {0} bytes, more than it was given room for")]
    TooMuch(u32),
    /// More messages than the peer has credit for.
    #[error("the peer sent more messages than it was given credit for")]
    TooMany,
    /// A message that this version of the protocol does not have.
    #[error("the peer sent an unknown message, {0:#010x}")]
    Unknown(u32),
}

/// What is left of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It is there.
    Connected,
    /// It was ended by both, or by one.
    Disconnected,
    /// It broke.
    Failed,
}

/// Which way is to be shut down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// What comes.
    Read,
    /// What goes.
    Write,
    /// Both.
    Both,
}

/// The number of a work request: its kind, and the bytes of the send buffer that it holds.
const NUMBER_CONTROL: u64 = 1 << 62;
const NUMBER_DISCONNECT: u64 = 1 << 61;

/// What goes out.
#[derive(Debug)]
struct Sending {
    /// Free work requests for data.
    slots: u16,
    /// All of them.
    all_slots: u16,
    /// The size of the send buffer, and where the next byte goes.
    size: u32,
    at: u32,
    free: u32,
    /// Messages with data that were sent, modulo 2^16, and up to which they may be.
    sent: u16,
    granted: u16,
    /// Where the peer wants data: what is left of each target, and which is next.
    targets: [Area; TARGETS as usize],
    next: usize,
    /// The entry that the peer tells next.
    told: usize,
}

/// What comes in.
#[derive(Debug)]
struct Receiving {
    /// The size of the receive buffer, and where the next byte is read.
    size: u32,
    at: u32,
    /// What was written there and not read: the bytes of each message.
    messages: VecDeque<u32>,
    /// Bytes that the peer may still write.
    room: u32,
    /// Bytes that were read since the last half was told, and where that half begins.
    freed: u32,
    next_half: u32,
    /// Messages that were read, modulo 2^16, and when it is time to tell.
    read: u16,
    tell_at: u16,
    queue: u16,
}

/// What is known of the peer.
#[derive(Clone, Copy, Debug)]
struct Peer {
    data: ConnData,
    /// The entry of its list that is to be written next.
    entry: u32,
}

/// One end of a stream.
#[derive(Debug)]
pub struct Stream {
    sending: Sending,
    receiving: Receiving,
    buffer: Place,
    peer: Peer,
    /// Messages about the connection that are outstanding.
    control: u16,
    phase: Phase,
    readable: bool,
    writable: bool,
}

/// What an end says of itself in private data.
pub fn introduce(sizes: &Sizes, buffer: Place, targets: Place) -> ConnData {
    ConnData {
        order: Order::NATIVE,
        credits: sizes.receive_queue,
        iomap_entries: sizes.iomap_entries,
        targets: targets.area(0, TARGETS),
        buffer: buffer.area(0, sizes.receive_buffer / 2),
    }
}

impl Stream {
    /// An end whose connection is there, with the receive buffer at `buffer`.
    pub fn new(sizes: &Sizes, buffer: Place, peer: ConnData) -> Self {
        let slots = sizes.send_queue.saturating_sub(CONTROL_SLOTS);
        let half = sizes.receive_buffer / 2;
        Stream {
            sending: Sending {
                slots,
                all_slots: slots,
                size: sizes.send_buffer,
                at: 0,
                free: sizes.send_buffer,
                sent: 0,
                granted: peer.credits,
                targets: [peer.buffer, Area::default()],
                next: 0,
                told: 1 % TARGETS as usize,
            },
            receiving: Receiving {
                size: 2 * half,
                at: 0,
                messages: VecDeque::new(),
                room: half,
                freed: half,
                next_half: half,
                read: 0,
                tell_at: sizes.receive_queue / 2,
                queue: sizes.receive_queue,
            },
            buffer,
            // Its first entry stands for the buffer that its private data tells.
            peer: Peer {
                data: peer,
                entry: 1 % peer.targets.len,
            },
            control: 0,
            phase: Phase::Connected,
            readable: true,
            writable: true,
        }
    }

    /// What is left of the connection.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether more may come than what is there.
    pub fn is_readable(&self) -> bool {
        self.readable && self.phase == Phase::Connected
    }

    /// Whether sending makes sense at all.
    pub fn is_writable(&self) -> bool {
        self.writable && self.phase == Phase::Connected
    }

    /// Whether something can be read.
    pub fn has_data(&self) -> bool {
        !self.receiving.messages.is_empty()
    }

    /// Whether something can be sent now.
    pub fn can_send(&self) -> bool {
        self.is_writable()
            && self.has_send_room()
            && self.sending.sent != self.sending.granted
            && self.sending.targets[self.sending.next].len > 0
    }

    /// Whether a work request and a part of the send buffer are free.
    fn has_send_room(&self) -> bool {
        self.sending.slots > 0 && self.sending.free >= LOW_WATER.min(self.sending.size)
    }

    /// Whether all that was sent has arrived, or will never.
    pub fn is_drained(&self) -> bool {
        self.phase != Phase::Connected
            || self.control == 0 && self.sending.slots == self.sending.all_slots
    }

    /// Sends up to `wanted` bytes, those up to `inline` without the send buffer. `None` unless
    /// [`Stream::can_send`].
    pub fn send(&mut self, wanted: u32, inline: u32) -> Option<Write> {
        if wanted == 0 || !self.can_send() {
            return None;
        }
        let sending = &mut self.sending;
        let target = sending.targets[sending.next];
        let len = wanted.min(target.len).min(MAX_TRANSFER);
        let (len, staging) = sending.stage(len, inline);
        let target = &mut sending.targets[sending.next];
        let (addr, key) = (target.addr, target.key);
        target.addr = target.addr.wrapping_add(len.into());
        target.len -= len;
        if target.len == 0 {
            sending.next = (sending.next + 1) % sending.targets.len();
        }
        sending.sent = sending.sent.wrapping_add(1);
        Some(Write {
            number: staged(staging),
            addr,
            key,
            imm: Some(Message::Data(len).to_imm()),
            len,
            staging,
        })
    }

    /// Writes up to `wanted` bytes to memory that the peer has mapped. `None` when there is no room for
    /// them now.
    pub fn send_directly(
        &mut self,
        addr: u64,
        key: RKey,
        wanted: u32,
        inline: u32,
    ) -> Option<Write> {
        if wanted == 0 || !self.can_send_directly() {
            return None;
        }
        let (len, staging) = self.sending.stage(wanted.min(MAX_TRANSFER), inline);
        Some(Write {
            number: staged(staging),
            addr,
            key,
            imm: None,
            len,
            staging,
        })
    }

    /// Whether there is room to write to memory that the peer has mapped.
    pub fn can_send_directly(&self) -> bool {
        self.is_writable() && self.has_send_room()
    }

    /// How many entries the peer's list of mapped memory has.
    pub fn peer_iomap_entries(&self) -> u16 {
        self.peer.data.iomap_entries
    }

    /// Tells the peer of memory that is mapped for it. `None` when there is no room for that now.
    ///
    /// It counts against no credit: the peer never gives back one for it.
    pub fn tell_iomap(&mut self, index: u16, entry: &IomapEntry) -> Option<IomapWrite> {
        if !self.can_send_directly() || index >= self.peer.data.iomap_entries {
            return None;
        }
        self.sending.slots -= 1;
        let list = self.peer.data.targets;
        let offset =
            u64::from(list.len) * Area::BYTES as u64 + u64::from(index) * IomapEntry::BYTES as u64;
        Some(IomapWrite {
            number: 0,
            addr: list.addr.wrapping_add(offset),
            key: list.key,
            imm: Message::Iomap(index.into()).to_imm(),
            entry: entry.to_bytes(self.peer.data.order),
        })
    }

    /// A message has come, with so many bytes, as the completion of its receive says.
    ///
    /// # Errors
    /// When the peer does not keep to the protocol; the stream has failed then.
    pub fn received(
        &mut self,
        imm: u32,
        written: u32,
        targets: &impl Targets,
    ) -> Result<(), StreamError> {
        let taken = self.take_message(imm, written, targets);
        if taken.is_err() {
            self.fail();
        }
        taken
    }

    fn take_message(
        &mut self,
        imm: u32,
        written: u32,
        targets: &impl Targets,
    ) -> Result<(), StreamError> {
        match Message::from_imm(imm).ok_or(StreamError::Unknown(imm))? {
            Message::Data(len) => {
                let receiving = &mut self.receiving;
                if receiving.messages.len() > receiving.queue.into() {
                    return Err(StreamError::TooMany);
                }
                let left = receiving.room.checked_sub(len);
                receiving.room = left.ok_or(StreamError::TooMuch(len))?;
                receiving.messages.push_back(len);
            }
            Message::Credits(upto) => {
                let sending = &mut self.sending;
                sending.granted = upto;
                // With bytes, they are the next entry. It is read for its own message and no sooner: only
                // then is the peer done with writing it.
                if written > 0 {
                    sending.targets[sending.told] = targets.entry(sending.told);
                    sending.told = (sending.told + 1) % sending.targets.len();
                }
            }
            Message::Iomap(_) | Message::Control(Control::KeepAlive) => {}
            Message::Control(Control::Disconnect) => self.disconnect(),
            Message::Control(Control::Shutdown) => match self.writable {
                true => self.readable = false,
                false => self.disconnect(),
            },
        }
        Ok(())
    }

    /// What can be read next, in one piece. `None` when there is nothing.
    pub fn next_piece(&self) -> Option<Piece> {
        let len = *self.receiving.messages.front()?;
        Some(self.receiving.piece(self.receiving.at, len))
    }

    /// What can be read, for whoever only looks: pieces in their order, up to `most` bytes.
    pub fn pieces(&self, most: u64) -> Vec<Piece> {
        let mut left = most;
        let mut at = self.receiving.at;
        let mut pieces = Vec::new();
        for message in &self.receiving.messages {
            let mut len = u64::from(*message).min(left) as u32;
            left -= u64::from(len);
            while len > 0 {
                let piece = self.receiving.piece(at, len);
                at = (at + piece.len) % self.receiving.size;
                len -= piece.len;
                pieces.push(piece);
            }
        }
        pieces
    }

    /// So many bytes of [`Stream::next_piece`] were read.
    pub fn consumed(&mut self, len: u32) {
        let receiving = &mut self.receiving;
        let Some(message) = receiving.messages.front_mut() else {
            return;
        };
        let len = len.min(*message);
        *message -= len;
        if *message == 0 {
            receiving.messages.pop_front();
            receiving.read = receiving.read.wrapping_add(1);
        }
        receiving.at = (receiving.at + len) % receiving.size;
        receiving.freed += len;
    }

    /// What the peer must be told of room and credit, if it is time. To be called again until there is
    /// nothing more.
    pub fn credit_notice(&mut self) -> Option<Notice> {
        let half = self.receiving.size / 2;
        let has_room = self.receiving.freed >= half;
        // Modulo 2^16.
        let due = self.receiving.read.wrapping_sub(self.receiving.tell_at) as i16 >= 0;
        if !(has_room || due) || !self.has_control_slot() {
            return None;
        }
        let receiving = &mut self.receiving;
        receiving.tell_at = receiving.read.wrapping_add(receiving.queue / 2);
        let credits = Message::Credits(receiving.read.wrapping_add(receiving.queue)).to_imm();
        let mut notice = Notice {
            number: NUMBER_CONTROL,
            addr: 0,
            key: RKey(0),
            imm: Some(credits),
            entry: None,
        };
        if has_room {
            let area = self.buffer.area(receiving.next_half, half);
            receiving.freed -= half;
            receiving.room += half;
            receiving.next_half = (receiving.next_half + half) % receiving.size;
            let list = self.peer.data.targets;
            let offset = u64::from(self.peer.entry) * Area::BYTES as u64;
            notice.addr = list.addr.wrapping_add(offset);
            notice.key = list.key;
            notice.entry = Some(area.to_bytes(self.peer.data.order));
            self.peer.entry = (self.peer.entry + 1) % list.len;
        }
        self.control += 1;
        Some(notice)
    }

    /// Whether a message about the connection can be sent.
    pub fn has_control_slot(&self) -> bool {
        self.phase == Phase::Connected && self.control < CONTROL_SLOTS
    }

    /// Shuts it down; what the peer must be told of that, for [`Stream::tell`].
    pub fn shut_down(&mut self, how: Shutdown) -> Option<Control> {
        if self.phase != Phase::Connected {
            return None;
        }
        match how {
            Shutdown::Both => {
                (self.readable, self.writable) = (false, false);
                Some(Control::Disconnect)
            }
            Shutdown::Write => {
                self.writable = false;
                Some(match self.readable {
                    true => Control::Shutdown,
                    false => Control::Disconnect,
                })
            }
            Shutdown::Read => {
                self.readable = false;
                (!self.writable).then_some(Control::Disconnect)
            }
        }
    }

    /// Tells the peer of the connection. `None` when too much is told already, or nobody is there.
    pub fn tell(&mut self, control: Control) -> Option<Notice> {
        if !self.has_control_slot() {
            return None;
        }
        self.control += 1;
        let (number, imm) = match control {
            Control::Disconnect => (NUMBER_CONTROL | NUMBER_DISCONNECT, Some(control)),
            Control::Shutdown => (NUMBER_CONTROL, Some(control)),
            // That the peer's queue pair acknowledges it is all that matters.
            Control::KeepAlive => (NUMBER_CONTROL, None),
        };
        Some(Notice {
            number,
            addr: 0,
            key: RKey(0),
            imm: imm.map(|control| Message::Control(control).to_imm()),
            entry: None,
        })
    }

    /// The work request of this number has ended, well or not.
    pub fn completed(&mut self, number: u64, success: bool) {
        if number & NUMBER_CONTROL != 0 {
            self.control = self.control.saturating_sub(1);
        } else {
            self.sending.slots += 1;
            // The lower half of the number.
            self.sending.free += number as u32;
        }
        if !success && self.phase == Phase::Connected {
            self.fail();
        } else if number & NUMBER_DISCONNECT != 0 {
            self.disconnect();
        }
    }

    /// The connection has ended.
    pub fn disconnect(&mut self) {
        if self.phase == Phase::Connected {
            self.phase = Phase::Disconnected;
        }
    }

    /// The connection broke.
    pub fn fail(&mut self) {
        self.phase = Phase::Failed;
    }
}

/// An RDMA WRITE of an entry of the peer's list of mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IomapWrite {
    /// The number for its work request, for [`Stream::completed`].
    pub number: u64,
    /// Where to.
    pub addr: u64,
    /// The peer's key for it.
    pub key: RKey,
    /// Its message.
    pub imm: u32,
    /// What to write.
    pub entry: [u8; IomapEntry::BYTES],
}

/// How many bytes of the send buffer a write holds until it is done.
fn staged(staging: Staging) -> u64 {
    match staging {
        Staging::Inline => 0,
        Staging::Buffer(pieces) => pieces.iter().map(|piece| u64::from(piece.len)).sum(),
    }
}

impl Sending {
    /// Takes a work request, and room for as many of `len` bytes as there is room for.
    fn stage(&mut self, len: u32, inline: u32) -> (u32, Staging) {
        self.slots -= 1;
        if len <= inline {
            return (len, Staging::Inline);
        }
        let len = len.min(self.free);
        let first = len.min(self.size - self.at);
        let pieces = [
            Piece {
                offset: self.at,
                len: first,
            },
            Piece {
                offset: 0,
                len: len - first,
            },
        ];
        self.at = (self.at + len) % self.size;
        self.free -= len;
        (len, Staging::Buffer(pieces))
    }
}

impl Receiving {
    /// The piece from `at` on, up to the end of the buffer.
    fn piece(&self, at: u32, len: u32) -> Piece {
        Piece {
            offset: at,
            len: len.min(self.size - at),
        }
    }
}

#[cfg(test)]
mod tests;
