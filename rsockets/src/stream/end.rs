//! The queue pair, memory and completions of one end of a stream: what the state machine decides is done
//! here.

use super::super::data::{Sink, Source};
use super::super::device::Opened;
use super::super::error::Error;
use super::super::settings::Settings;
use super::super::wait::{Waited, Waiters};
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

/// The number of receives; those of sends have this bit clear.
const RECEIVE: u64 = 1 << 63;

/// How many completions are taken at once.
const BATCH: usize = 32;

/// A peer without a receive tries again after this: 0.01 ms (9.7.5.2.8). Receives come back at once.
const MIN_RNR_TIMER: u8 = 1;

/// Where the list of mapped memory begins, behind the targets.
const IOMAP_AT: usize = TARGETS as usize * Area::BYTES;

/// One end of a stream.
#[derive(Debug)]
pub(super) struct End {
    /// Once the peer is known.
    pub stream: Option<Stream>,
    parts: Parts,
}

/// What the state machine decides about. The queue pair is destroyed before its memory goes.
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

impl Waited for End {
    fn process(&mut self) -> bool {
        match &mut self.stream {
            Some(stream) => self.parts.process(stream),
            None => false,
        }
    }

    fn arm(&self) {
        self.parts.cq.arm(false);
    }
}

impl End {
    /// Makes all that an end needs; receives are posted.
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
        parts.bring_to(id, QpState::Init)?;
        for _ in 0..sizes.receive_queue {
            parts.qp.post_receive(RECEIVE, &[])?;
        }
        let stream = None;
        Ok(End { stream, parts })
    }

    /// Its sizes.
    pub fn sizes(&self) -> Sizes {
        self.parts.sizes
    }

    /// Its queue pair.
    pub fn qpn(&self) -> Qpn {
        self.parts.qp.qpn()
    }

    /// What the peer must know of this end.
    pub fn introduction(&self) -> ConnData {
        let parts = &self.parts;
        connection_data(
            &parts.sizes,
            place(&parts.receive_buffer),
            place(&parts.lists),
        )
    }

    /// Connects the queue pair to the peer's, which `id` knows.
    pub fn connect(&mut self, id: &Id, peer: ConnData) -> Result<(), Error> {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.parts.bring_to(id, state)?;
        }
        let buffer = place(&self.parts.receive_buffer);
        self.stream = Some(Stream::new(&self.parts.sizes, buffer, peer));
        Ok(())
    }

    /// The connection has ended, or broke. All that is outstanding ends, so that a thread that waits for a
    /// completion gets one.
    pub fn flush(&self) {
        let attr = QpAttr {
            state: QpState::Err,
            ..QpAttr::default()
        };
        if let Err(error) = self.parts.qp.modify(&attr, AttrMask::STATE) {
            tracing::debug!(%error, "the queue pair of a stream stays as it is");
        }
    }

    /// Sends some of the data, if there is room.
    pub fn send(&mut self, source: &mut dyn Source) -> Result<(), Error> {
        let wanted = u32::try_from(source.left()).unwrap_or(u32::MAX);
        if let Some(stream) = &mut self.stream
            && let Some(write) = stream.send(wanted, self.parts.inline)
        {
            self.parts.post_write(stream, &write, source)?;
        }
        Ok(())
    }

    /// Writes some of the data directly to the peer's memory, if there is room; how much.
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

    /// Tells the peer of memory that is mapped for it.
    pub fn tell_iomap(&mut self, index: u16, entry: &IomapEntry) {
        if let Some(stream) = &mut self.stream
            && let Some(write) = stream.advertise_iomap(index, entry)
        {
            self.parts.post_iomap(stream, &write);
        }
    }

    /// Posts what the state machine wants the peer to know.
    pub fn tell(&mut self, notice: impl FnOnce(&mut Stream) -> Option<ControlWrite>) {
        if let Some(stream) = &mut self.stream
            && let Some(notice) = notice(stream)
        {
            self.parts.post_notice(stream, &notice);
        }
    }

    /// Gives what has come; takes it away unless it is only looked at.
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

    /// The peer's mapped memory that has a byte of this offset.
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
        // The region was made for as many entries as there are.
        match self.0.read(index * Area::BYTES, &mut entry) {
            Ok(()) => Area::from_bytes(&entry, Order::NATIVE),
            Err(_) => Area::default(),
        }
    }
}

impl Parts {
    fn bring_to(&self, id: &Id, state: QpState) -> Result<(), Error> {
        let (mut attr, mask) = id.qp_attributes(state)?;
        attr.min_rnr_timer = MIN_RNR_TIMER;
        Ok(self.qp.modify(&attr, mask)?)
    }

    /// Takes completions, and tells the peer what it must know. True when something changed.
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
                tracing::debug!(status = ?completion.status, "a stream failed");
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
        // In error it is of no use any more, and completes at once.
        if let Err(error) = self.qp.post_receive(RECEIVE, &[]) {
            tracing::debug!(%error, "no more receives");
        }
    }

    /// Tells the peer of room and credit.
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

    /// Posts a write. One that cannot be posted has failed, and the stream with it.
    fn post(&self, stream: &mut Stream, number: u64, op: SendOp, payload: Payload<'_>) {
        let posted = self.qp.start_posting().post(&SendWr {
            wr_id: number,
            op,
            flags: SendFlags::SIGNALED,
            payload,
            dest: None,
        });
        if let Err(error) = posted {
            tracing::debug!(%error, "a stream failed");
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
