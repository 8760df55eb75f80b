//! The state machine of one side of a stream.
//!
//! It decides where data is written. Memory, queue pair and blocking belong to its owner.
//!
//! The receive buffer has two halves. Each half is advertised to the peer as a target when it is
//! empty. The peer fills a target from start to end, then the next one. Each write carries a
//! message in its immediate data, for which the peer needs a credit. Control messages need no
//! credit; their number is limited.

use super::wire::{Area, ConnData, Control, IomapEntry, Message, Order, TARGETS};
use crate::ids::RKey;
use std::collections::VecDeque;

/// The most outstanding control messages. They need no credit from the peer.
pub const CONTROL_SLOTS: u16 = 4;

/// The free bytes of the send buffer that a send requires.
pub const LOW_WATER: u32 = 2048;

/// The most bytes of one RDMA WRITE.
pub const MAX_TRANSFER: u32 = 65_536;

/// The sizes of a stream's queues and buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Work requests of the send queue, more than [`CONTROL_SLOTS`].
    pub send_queue: u16,
    /// Receives of the receive queue, at least 2.
    pub receive_queue: u16,
    /// Bytes of the send buffer, at least [`LOW_WATER`].
    pub send_buffer: u32,
    /// Bytes of the receive buffer, at least 2.
    pub receive_buffer: u32,
    /// Entries of the list of mapped memory.
    pub iomap_entries: u16,
}

/// The address and remote key of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteBuffer {
    /// The address of the first byte.
    pub addr: u64,
    /// The remote key.
    pub key: RKey,
}

impl RemoteBuffer {
    fn area(self, offset: u32, len: u32) -> Area {
        Area {
            addr: self.addr.wrapping_add(offset.into()),
            key: self.key,
            len,
        }
    }
}

/// The list of targets in local memory, which the peer writes.
pub trait Targets {
    /// Reads an entry.
    fn entry(&self, index: usize) -> Area;
}

/// A contiguous part of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Piece {
    /// The offset of the first byte.
    pub offset: u32,
    /// The length in bytes.
    pub len: u32,
}

/// The place of outgoing data until its work request completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Staging {
    /// Inline in the work request.
    Inline,
    /// In the send buffer, in one piece or, wrapping around its end, in two; the second may be
    /// empty.
    Buffer([Piece; 2]),
}

/// An RDMA WRITE of data, to be posted in the order in which writes are returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Write {
    /// The ID for the work request, for [`Stream::completed`].
    pub number: u64,
    /// The remote address.
    pub addr: u64,
    /// The remote key.
    pub key: RKey,
    /// The immediate data; without it the write consumes no receive of the peer.
    pub imm: Option<u32>,
    /// The length in bytes.
    pub len: u32,
    /// The place to which the data must be copied before posting.
    pub staging: Staging,
}

/// An RDMA WRITE with a control message or an entry of the target list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ControlWrite {
    /// The ID for the work request, for [`Stream::completed`].
    pub number: u64,
    /// The remote address.
    pub addr: u64,
    /// The remote key.
    pub key: RKey,
    /// The immediate data, if any.
    pub imm: Option<u32>,
    /// The entry to write, if any.
    pub entry: Option<[u8; Area::BYTES]>,
}

/// A violation of the protocol by the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The peer reports more data than it was given room for.
    #[error("the peer reports a write of {0} bytes, more than it was given room for")]
    TooMuch(u32),
    /// The peer sent more messages than it was given credits for.
    #[error("the peer sent more messages than it was given credit for")]
    TooMany,
    /// The message is not defined in this version of the protocol.
    #[error("the peer sent an unknown message, {0:#010x}")]
    Unknown(u32),
}

/// The state of a stream's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The connection is established.
    Connected,
    /// The connection was closed by either side.
    Disconnected,
    /// The connection failed.
    Failed,
}

/// The direction of a shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// Receiving.
    Read,
    /// Sending.
    Write,
    /// Both directions.
    Both,
}

/// Work request IDs: flags in the upper half, the bytes of the send buffer in use in the lower
/// half.
const NUMBER_CONTROL: u64 = 1 << 62;
const NUMBER_DISCONNECT: u64 = 1 << 61;

/// The sending direction.
#[derive(Debug)]
struct Sending {
    /// Free work requests for data.
    slots: u16,
    /// All work requests for data.
    all_slots: u16,
    /// The send buffer: its size, the offset of the next byte, and the free bytes.
    size: u32,
    at: u32,
    free: u32,
    /// The data messages sent, and the limit up to which credits allow, both modulo 2^16.
    sent: u16,
    granted: u16,
    /// The rest of each of the peer's targets, and the index of the current one.
    targets: [Area; TARGETS as usize],
    next: usize,
    /// The index of the entry that the peer writes next.
    next_entry: usize,
}

/// The receiving direction.
#[derive(Debug)]
struct Receiving {
    /// The receive buffer: its size, and the offset of the next byte to read.
    size: u32,
    at: u32,
    /// The unread bytes of each message, in order.
    messages: VecDeque<u32>,
    /// Bytes that the peer may still write.
    room: u32,
    /// Bytes read since the last half was advertised, and the offset of the next half to advertise.
    freed: u32,
    next_half: u32,
    /// Messages read, modulo 2^16, and the count at which to send credits; the size of the receive
    /// queue.
    read: u16,
    send_credits_at: u16,
    queue: u16,
}

/// The parameters of the peer.
#[derive(Clone, Copy, Debug)]
struct Peer {
    data: ConnData,
    /// The index of the entry in the peer's target list to write next.
    entry: u32,
}

/// One side of a stream.
#[derive(Debug)]
pub struct Stream {
    sending: Sending,
    receiving: Receiving,
    buffer: RemoteBuffer,
    peer: Peer,
    /// Outstanding control messages.
    control: u16,
    phase: Phase,
    readable: bool,
    writable: bool,
}

/// Returns the private data with which a side announces its parameters.
pub fn connection_data(sizes: &Sizes, buffer: RemoteBuffer, targets: RemoteBuffer) -> ConnData {
    ConnData {
        order: Order::NATIVE,
        credits: sizes.receive_queue,
        iomap_entries: sizes.iomap_entries,
        targets: targets.area(0, TARGETS),
        buffer: buffer.area(0, sizes.receive_buffer / 2),
    }
}

impl Stream {
    /// Returns a connected stream with the receive buffer at `buffer`.
    pub fn new(sizes: &Sizes, buffer: RemoteBuffer, peer: ConnData) -> Self {
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
                next_entry: 1 % TARGETS as usize,
            },
            receiving: Receiving {
                size: 2 * half,
                at: 0,
                messages: VecDeque::new(),
                room: half,
                freed: half,
                next_half: half,
                read: 0,
                send_credits_at: sizes.receive_queue / 2,
                queue: sizes.receive_queue,
            },
            buffer,
            // Entry 0 is the buffer announced in the private data.
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

    /// The state of the connection.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether more data may arrive.
    pub fn is_readable(&self) -> bool {
        self.readable && self.phase == Phase::Connected
    }

    /// Whether data can ever be sent again.
    pub fn is_writable(&self) -> bool {
        self.writable && self.phase == Phase::Connected
    }

    /// Whether data can be read.
    pub fn has_data(&self) -> bool {
        !self.receiving.messages.is_empty()
    }

    /// The number of messages of which data can be read.
    pub fn unread(&self) -> usize {
        self.receiving.messages.len()
    }

    /// Whether data can be sent now.
    pub fn can_send(&self) -> bool {
        self.is_writable()
            && self.has_send_room()
            && self.sending.sent != self.sending.granted
            && self.sending.targets[self.sending.next].len > 0
    }

    /// Whether a work request and enough of the send buffer are free.
    fn has_send_room(&self) -> bool {
        self.sending.slots > 0 && self.sending.free >= LOW_WATER.min(self.sending.size)
    }

    /// Whether all data sent has been acknowledged, or never will be.
    pub fn is_drained(&self) -> bool {
        self.phase != Phase::Connected
            || self.control == 0 && self.sending.slots == self.sending.all_slots
    }

    /// Prepares a write of up to `wanted` bytes. Up to `inline` bytes bypass the send buffer.
    ///
    /// `None` unless [`Stream::can_send`]. The caller must post the write.
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

    /// Prepares a write of up to `wanted` bytes to memory that the peer has mapped.
    ///
    /// `None` unless [`Stream::can_send_directly`]. The caller must post the write.
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

    /// Whether data can be written to memory that the peer has mapped.
    pub fn can_send_directly(&self) -> bool {
        self.is_writable() && self.has_send_room()
    }

    /// The number of entries of the peer's list of mapped memory.
    pub fn peer_iomap_entries(&self) -> u16 {
        self.peer.data.iomap_entries
    }

    /// Prepares the advertisement of memory mapped for the peer. `None` when it cannot be sent now.
    ///
    /// It uses no credit, because the peer never returns one for it.
    pub fn advertise_iomap(&mut self, index: u16, entry: &IomapEntry) -> Option<IomapWrite> {
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

    /// Handles the completion of a receive: immediate data `imm` and `written` bytes.
    ///
    /// # Errors
    /// [`StreamError`] when the peer violates the protocol; the stream has failed then.
    pub fn received(
        &mut self,
        imm: u32,
        written: u32,
        targets: &impl Targets,
    ) -> Result<(), StreamError> {
        let taken = self.handle_message(imm, written, targets);
        if taken.is_err() {
            self.fail();
        }
        taken
    }

    fn handle_message(
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
                // With data, the next entry of the target list has been written. It must not be
                // read before its own message arrives, because only then is the peer's write
                // complete.
                if written > 0 {
                    sending.targets[sending.next_entry] = targets.entry(sending.next_entry);
                    sending.next_entry = (sending.next_entry + 1) % sending.targets.len();
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

    /// The next contiguous bytes to read, or `None`.
    pub fn next_piece(&self) -> Option<Piece> {
        let len = *self.receiving.messages.front()?;
        Some(self.receiving.piece(self.receiving.at, len))
    }

    /// The unread pieces in order, up to `most` bytes, for peeking.
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

    /// Removes `len` bytes of [`Stream::next_piece`] after they were read.
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

    /// Prepares a message with new credits and targets, if one is due.
    ///
    /// The caller must post it, and call again until it returns `None`.
    pub fn credit_update(&mut self) -> Option<ControlWrite> {
        let half = self.receiving.size / 2;
        let has_room = self.receiving.freed >= half;
        // A serial comparison, modulo 2^16.
        let due = self
            .receiving
            .read
            .wrapping_sub(self.receiving.send_credits_at) as i16
            >= 0;
        if !(has_room || due) || !self.has_control_slot() {
            return None;
        }
        let receiving = &mut self.receiving;
        receiving.send_credits_at = receiving.read.wrapping_add(receiving.queue / 2);
        let credits = Message::Credits(receiving.read.wrapping_add(receiving.queue)).to_imm();
        let mut write = ControlWrite {
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
            write.addr = list.addr.wrapping_add(offset);
            write.key = list.key;
            write.entry = Some(area.to_bytes(self.peer.data.order));
            self.peer.entry = (self.peer.entry + 1) % list.len;
        }
        self.control += 1;
        Some(write)
    }

    /// Whether a control message can be sent.
    pub fn has_control_slot(&self) -> bool {
        self.phase == Phase::Connected && self.control < CONTROL_SLOTS
    }

    /// Shuts down one or both directions; returns the control message to send with
    /// [`Stream::send_control`].
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

    /// Prepares a control message. `None` when too many are outstanding, or the connection has
    /// ended.
    pub fn send_control(&mut self, control: Control) -> Option<ControlWrite> {
        if !self.has_control_slot() {
            return None;
        }
        self.control += 1;
        let (number, imm) = match control {
            Control::Disconnect => (NUMBER_CONTROL | NUMBER_DISCONNECT, Some(control)),
            Control::Shutdown => (NUMBER_CONTROL, Some(control)),
            // A keepalive only needs the acknowledgement of the peer's queue pair.
            Control::KeepAlive => (NUMBER_CONTROL, None),
        };
        Some(ControlWrite {
            number,
            addr: 0,
            key: RKey(0),
            imm: imm.map(|control| Message::Control(control).to_imm()),
            entry: None,
        })
    }

    /// Handles the completion of a work request, by its ID.
    pub fn completed(&mut self, number: u64, success: bool) {
        if number & NUMBER_CONTROL != 0 {
            self.control = self.control.saturating_sub(1);
        } else {
            self.sending.slots += 1;
            // The lower half of the ID.
            self.sending.free += number as u32;
        }
        if !success && self.phase == Phase::Connected {
            self.fail();
        } else if number & NUMBER_DISCONNECT != 0 {
            self.disconnect();
        }
    }

    /// Marks the connection as closed.
    pub fn disconnect(&mut self) {
        if self.phase == Phase::Connected {
            self.phase = Phase::Disconnected;
        }
    }

    /// Marks the connection as failed.
    pub fn fail(&mut self) {
        self.phase = Phase::Failed;
    }
}

/// An RDMA WRITE of an entry of the peer's list of mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct IomapWrite {
    /// The ID for the work request, for [`Stream::completed`].
    pub number: u64,
    /// The remote address.
    pub addr: u64,
    /// The remote key.
    pub key: RKey,
    /// The immediate data.
    pub imm: u32,
    /// The entry.
    pub entry: [u8; IomapEntry::BYTES],
}

/// The bytes of the send buffer that a write occupies until it completes.
fn staged(staging: Staging) -> u64 {
    match staging {
        Staging::Inline => 0,
        Staging::Buffer(pieces) => pieces.iter().map(|piece| u64::from(piece.len)).sum(),
    }
}

impl Sending {
    /// Takes a work request and up to `len` bytes of the send buffer.
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
    /// The piece of up to `len` bytes from `at`, which ends at the end of the buffer.
    fn piece(&self, at: u32, len: u32) -> Piece {
        Piece {
            offset: at,
            len: len.min(self.size - at),
        }
    }
}

#[cfg(test)]
mod tests;
