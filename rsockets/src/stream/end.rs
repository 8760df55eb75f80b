//! One end of a stream: applies the decisions of the state machine to a queue pair, memory and
//! completions.

use super::super::data::{Sink, Source};
use super::super::device::Opened;
use super::super::error::Error;
use super::super::settings::Settings;
use super::super::wait::{Progress, Waitable, Waiters};
use std::sync::Arc;
use urxe_driver::cm::Id;
use urxe_driver::owned::OwnedRegion;
use urxe_driver::qp::{MAX_INLINE, QpCap, QpInit, ReceivesFrom};
use urxe_driver::{Cq, Qp};
use urxe_proto::host::Access;
use urxe_proto::ids::{Qpn, RKey};
use urxe_proto::qp::{AttrMask, QpAttr, QpState, QpType};
use urxe_proto::rsocket::stream::{
    ControlWrite, IomapWrite, Phase, Piece, RemoteBuffer, Sizes, Staging, Stream, Targets, Write,
    connection_data,
};
use urxe_proto::rsocket::wire::{Area, ConnData, IomapEntry, Order, TARGETS};
use urxe_proto::work::{Completion, Extra, Payload, SendFlags, SendOp, SendWr, Sge, WcStatus};

/// The bit in `wr_id` that marks receives.
const RECEIVE: u64 = 1 << 63;

/// The number of completions per poll.
const BATCH: usize = 32;

/// The RNR timer: 0.01 ms (9.7.5.2.8). Receives are reposted immediately.
const MIN_RNR_TIMER: u8 = 1;

/// The offset of the list of mapped memory, after the targets.
const IOMAP_AT: usize = TARGETS as usize * Area::BYTES;

/// One end of a stream.
#[derive(Debug)]
pub(super) struct End {
    /// The state machine, once the peer is known.
    pub stream: Option<Stream>,
    parts: Parts,
}

/// The resources of a stream. The queue pair is destroyed before its memory.
#[derive(Debug)]
struct Parts {
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    sizes: Sizes,
    inline: u32,
    send_buffer: OwnedRegion,
    receive_buffer: OwnedRegion,
    lists: OwnedRegion,
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.qp.destroy();
        self.cq.retire();
    }
}

impl Waitable for End {
    fn process(&mut self) -> bool {
        match &mut self.stream {
            Some(stream) => self.parts.process(stream),
            None => false,
        }
    }

    fn progress(&self) -> Progress {
        let progress = |stream: &Stream| Progress {
            unread: stream.unread(),
            can_send: stream.can_send(),
            ended: u8::from(!stream.is_readable())
                | u8::from(!stream.is_writable()) << 1
                | u8::from(stream.phase() == Phase::Failed) << 2,
        };
        self.stream.as_ref().map_or(Progress::default(), progress)
    }

    fn arm(&self) {
        self.parts.cq.arm(false);
    }
}

impl End {
    /// Creates the resources and posts the receives.
    pub fn new(
        device: &Opened,
        settings: &Settings,
        id: &Id,
        waiters: &Waiters,
    ) -> Result<End, Error> {
        let sizes = settings.of_stream();
        let inline = u32::from(settings.inline).min(MAX_INLINE);
        let region = |len: usize, access| OwnedRegion::zeroed(&device.pd, len, access);
        let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let entries = usize::from(sizes.iomap_entries) * IomapEntry::BYTES;
        let send_buffer = region(sizes.send_buffer as usize, Access::LOCAL_WRITE)?;
        let receive_buffer = region(sizes.receive_buffer as usize, written)?;
        let lists = region(IOMAP_AT + entries, written)?;
        let completions = u32::from(sizes.send_queue) + u32::from(sizes.receive_queue);
        let channel = Some(Arc::clone(waiters.channel()));
        let cq = device.context.create_cq(completions, channel)?;
        let init = QpInit {
            service: QpType::Rc,
            send_cq: Some(Arc::clone(&cq)),
            receives: ReceivesFrom::Own(Arc::clone(&cq)),
            cap: QpCap {
                max_send_wr: sizes.send_queue.into(),
                max_recv_wr: sizes.receive_queue.into(),
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline: inline,
            },
            signal_all: true,
            block_own_multicast: false,
        };
        let parts = Parts {
            qp: device.context.create_qp(&device.pd, init)?,
            cq,
            sizes,
            inline,
            send_buffer,
            receive_buffer,
            lists,
        };
        parts.modify_to(id, QpState::Init)?;
        for _ in 0..sizes.receive_queue {
            parts.qp.post_receive(RECEIVE, &[])?;
        }
        let stream = None;
        Ok(End { stream, parts })
    }

    /// Returns the sizes.
    pub fn sizes(&self) -> Sizes {
        self.parts.sizes
    }

    /// Returns the queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.parts.qp.qpn()
    }

    /// Returns the private data for the peer.
    pub fn introduction(&self) -> ConnData {
        let parts = &self.parts;
        connection_data(
            &parts.sizes,
            place(&parts.receive_buffer),
            place(&parts.lists),
        )
    }

    /// Connects the queue pair to the peer's, whose address `id` has.
    pub fn connect(&mut self, id: &Id, peer: ConnData) -> Result<(), Error> {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.parts.modify_to(id, state)?;
        }
        let buffer = place(&self.parts.receive_buffer);
        self.stream = Some(Stream::new(&self.parts.sizes, buffer, peer));
        Ok(())
    }

    /// Moves the queue pair to the error state, so that outstanding requests complete and wake
    /// waiting threads.
    pub fn flush(&self) {
        let attr = QpAttr {
            state: QpState::Err,
            ..QpAttr::default()
        };
        if let Err(error) = self.parts.qp.modify(&attr, AttrMask::STATE) {
            tracing::debug!(%error, "cannot flush the queue pair of a stream");
        }
    }

    /// Sends as much data as there is room for.
    pub fn send(&mut self, source: &mut dyn Source) -> Result<(), Error> {
        let wanted = u32::try_from(source.left()).unwrap_or(u32::MAX);
        if let Some(stream) = &mut self.stream
            && let Some(write) = stream.send(wanted, self.parts.inline)
        {
            self.parts.post_write(stream, &write, source)?;
        }
        Ok(())
    }

    /// Writes as much data as there is room for to the peer's mapped memory. Returns the number of
    /// bytes.
    pub fn send_directly(
        &mut self,
        addr: u64,
        key: RKey,
        most: u64,
        source: &mut dyn Source,
    ) -> Result<u32, Error> {
        let wanted = u32::try_from(source.left().min(most)).unwrap_or(u32::MAX);
        if let Some(stream) = &mut self.stream
            && let Some(write) = stream.send_directly(addr, key, wanted, self.parts.inline)
        {
            self.parts.post_write(stream, &write, source)?;
            return Ok(write.len);
        }
        Ok(0)
    }

    /// Announces mapped memory to the peer.
    pub fn announce_iomap(&mut self, index: u16, entry: &IomapEntry) {
        if let Some(stream) = &mut self.stream
            && let Some(write) = stream.advertise_iomap(index, entry)
        {
            self.parts.post_iomap(stream, &write);
        }
    }

    /// Posts a control write from the state machine to the peer.
    pub fn notify(&mut self, notice: impl FnOnce(&mut Stream) -> Option<ControlWrite>) {
        if let Some(stream) = &mut self.stream
            && let Some(notice) = notice(stream)
        {
            self.parts.post_notice(stream, &notice);
        }
    }

    /// Copies received data to the program's memory; with `peek` the data remains.
    pub fn receive(&mut self, sink: &mut dyn Sink, peek: bool) -> Result<(), Error> {
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        let buffer = &self.parts.receive_buffer;
        if peek {
            for piece in stream.pieces(sink.room()) {
                sink.put_from(buffer, piece)?;
            }
            return Ok(());
        }
        while let Some(piece) = stream.next_piece()
            && sink.room() > 0
        {
            let len = u32::try_from(sink.room()).map_or(piece.len, |room| piece.len.min(room));
            sink.put_from(buffer, Piece { len, ..piece })?;
            stream.consumed(len);
            self.parts.notify_peer(stream);
        }
        Ok(())
    }

    /// Returns the entry of the peer's mapped memory that contains this offset.
    pub fn mapped_by_peer(&self, offset: u64) -> Option<IomapEntry> {
        let entries = 0..usize::from(self.parts.sizes.iomap_entries);
        let mut entries = entries.map(|index| {
            let mut bytes = [0; IomapEntry::BYTES];
            let at = IOMAP_AT + index * IomapEntry::BYTES;
            match self.parts.lists.read(at, &mut bytes) {
                Ok(()) => IomapEntry::from_bytes(&bytes, Order::NATIVE),
                Err(_) => IomapEntry::default(),
            }
        });
        entries.find(|entry| entry.contains(offset))
    }
}

/// The list of targets in its region.
struct TargetList<'a>(&'a OwnedRegion);

impl Targets for TargetList<'_> {
    fn entry(&self, index: usize) -> Area {
        let mut entry = [0; Area::BYTES];
        // The region has this number of entries.
        match self.0.read(index * Area::BYTES, &mut entry) {
            Ok(()) => Area::from_bytes(&entry, Order::NATIVE),
            Err(_) => Area::default(),
        }
    }
}

impl Parts {
    fn modify_to(&self, id: &Id, state: QpState) -> Result<(), Error> {
        let (mut attr, mask) = id.qp_attributes(state)?;
        attr.min_rnr_timer = MIN_RNR_TIMER;
        Ok(self.qp.modify(&attr, mask)?)
    }

    /// Polls completions and sends notices. Returns whether the state changed.
    fn process(&self, stream: &mut Stream) -> bool {
        let mut changed = false;
        let mut batch = [None; BATCH];
        loop {
            let taken = self.cq.poll(&mut batch);
            for completion in batch.iter_mut().take(taken).filter_map(Option::take) {
                self.take(stream, &completion);
            }
            changed |= taken > 0;
            if taken < BATCH {
                break;
            }
        }
        self.notify_peer(stream);
        changed
    }

    fn take(&self, stream: &mut Stream, completion: &Completion) {
        let success = completion.status == WcStatus::Success;
        if completion.wr_id & RECEIVE == 0 {
            if !success && stream.phase() == Phase::Connected {
                tracing::debug!(status = ?completion.status, "stream failed");
            }
            return stream.completed(completion.wr_id, success);
        }
        if !success {
            return;
        }
        let taken = match completion.extra {
            Extra::Imm(imm) => stream.received(imm, completion.byte_len, &TargetList(&self.lists)),
            _ => Ok(()),
        };
        if let Err(error) = taken {
            tracing::warn!("rsocket: {error}");
        }
        // In the error state the receive completes at once and has no effect.
        if let Err(error) = self.qp.post_receive(RECEIVE, &[]) {
            tracing::debug!(%error, "cannot post a receive");
        }
    }

    /// Sends notices of buffer space and credits to the peer.
    fn notify_peer(&self, stream: &mut Stream) {
        while let Some(notice) = stream.credit_update() {
            self.post_notice(stream, &notice);
        }
    }

    fn post_notice(&self, stream: &mut Stream, notice: &ControlWrite) {
        let entry = notice.entry.as_ref();
        let payload = Payload::Inline(entry.map_or(&[], |entry| &entry[..]));
        let op = write_op(notice.addr, notice.key, notice.imm);
        self.post(stream, notice.number, op, payload);
    }

    fn post_iomap(&self, stream: &mut Stream, write: &IomapWrite) {
        let op = write_op(write.addr, write.key, Some(write.imm));
        self.post(stream, write.number, op, Payload::Inline(&write.entry));
    }

    fn post_write(
        &self,
        stream: &mut Stream,
        write: &Write,
        source: &mut dyn Source,
    ) -> Result<(), Error> {
        let op = write_op(write.addr, write.key, write.imm);
        match write.staging {
            Staging::Inline => {
                let mut data = [0; MAX_INLINE as usize];
                let data = &mut data[..write.len as usize];
                source.take(data);
                self.post(stream, write.number, op, Payload::Inline(data));
            }
            Staging::Buffer(pieces) => {
                let mut sges = [Sge::default(); 2];
                for (piece, sge) in pieces.iter().zip(&mut sges) {
                    source.take_into(&self.send_buffer, *piece)?;
                    let (offset, len) = (piece.offset as usize, piece.len as usize);
                    *sge = self.send_buffer.sge(offset, len)?;
                }
                let used = if pieces[1].len > 0 { 2 } else { 1 };
                self.post(stream, write.number, op, Payload::Sges(&sges[..used]));
            }
        }
        Ok(())
    }

    /// Posts a write. A failure fails the stream.
    fn post(&self, stream: &mut Stream, number: u64, op: SendOp, payload: Payload<'_>) {
        let posted = self.qp.start_posting().post(&SendWr {
            wr_id: number,
            op,
            flags: SendFlags::SIGNALED,
            payload,
            dest: None,
        });
        if let Err(error) = posted {
            tracing::debug!(%error, "stream failed");
            stream.completed(number, false);
        }
    }
}

fn place(region: &OwnedRegion) -> RemoteBuffer {
    RemoteBuffer {
        addr: region.mr().addr(),
        key: region.mr().rkey(),
    }
}

fn write_op(addr: u64, rkey: RKey, imm: Option<u32>) -> SendOp {
    match imm {
        Some(imm) => SendOp::WriteImm { addr, rkey, imm },
        None => SendOp::Write { addr, rkey },
    }
}
