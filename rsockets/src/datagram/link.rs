//! The UD queue pair of a local address, with its send and receive buffers.

use super::super::data::{Sink, Source};
use super::super::device::{self, Opened};
use super::super::error::Error;
use super::super::settings::Settings;
use super::super::wait::Waiters;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use urxe_driver::ah::Destination;
use urxe_driver::cm::id::UDP_QKEY;
use urxe_driver::cm::resolve::{self, Bound};
use urxe_driver::owned::OwnedRegion;
use urxe_driver::qp::{QpCap, QpInit, ReceivesFrom};
use urxe_driver::{AddressHandle, Cq, Qp};
use urxe_proto::host::Access;
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::qp::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use urxe_proto::rsocket::datagram::{Header, parse_source, source_header};
use urxe_proto::rsocket::stream::{LOW_WATER, Piece};
use urxe_proto::work::{Completion, Payload, SendFlags, SendOp, SendWr, Sge, WcStatus};

/// The size of a buffer: the longest datagram with its header, in bytes.
pub(super) const SLOT: u32 = LOW_WATER;

/// The bit in `wr_id` that marks receives.
const RECEIVE: u64 = 1 << 63;
/// The length of the GRH at the start of a UD receive buffer (11.4.1.2).
const GRH: usize = 40;
const BATCH: usize = 32;

/// A datagram in a receive buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub from: SocketAddr,
    slot: u32,
    /// The location of its data.
    data: Piece,
}

/// A UD queue pair. It is destroyed before its memory.
#[derive(Debug)]
pub(super) struct DatagramLink {
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    bound: Bound,
    header: Header,
    most_data: u32,
    /// The free send buffers.
    free: Vec<u32>,
    slots: u16,
    send_buffer: OwnedRegion,
    receive_buffer: OwnedRegion,
    device: Arc<Opened>,
}

impl Drop for DatagramLink {
    fn drop(&mut self) {
        self.qp.destroy();
        self.cq.retire();
    }
}

impl DatagramLink {
    /// Creates a queue pair that sends from this address and receives there.
    pub fn new(
        from: SocketAddr,
        settings: &Settings,
        waiters: &Waiters,
    ) -> Result<DatagramLink, Error> {
        let bound = resolve::device_of(from)?;
        let device = device::open(&bound.device)?;
        let (sends, receives) = settings.of_datagrams();
        let region = |slots: u16, more: usize| {
            let len = usize::from(slots) * SLOT as usize + more;
            OwnedRegion::zeroed(&device.pd, len, Access::LOCAL_WRITE)
        };
        let (send_buffer, receive_buffer) = (region(sends, 0)?, region(receives, GRH)?);
        let channel = Some(Arc::clone(waiters.channel()));
        let completions = u32::from(sends) + u32::from(receives);
        let cq = device.context.create_cq(completions, channel)?;
        let init = QpInit {
            service: QpType::Ud,
            send_cq: Some(Arc::clone(&cq)),
            receives: ReceivesFrom::Own(Arc::clone(&cq)),
            cap: QpCap {
                max_send_wr: sends.into(),
                max_recv_wr: receives.into(),
                max_send_sge: 1,
                max_recv_sge: 2,
                max_inline: 0,
            },
            signal_all: true,
            block_own_multicast: false,
        };
        let qp = device.context.create_qp(&device.pd, init)?;
        let header = source_header(from);
        let most = SLOT.min(bound.device.active_mtu().bytes() as u32);
        let link = DatagramLink {
            qp,
            cq,
            header,
            most_data: most - header.bytes().len() as u32,
            free: (0..sends.into()).collect(),
            slots: sends,
            send_buffer,
            receive_buffer,
            bound,
            device,
        };
        link.make_ready()?;
        for slot in 0..receives.into() {
            link.post_receive(slot)?;
        }
        // Threads that already wait for the socket need notifications of this queue as well.
        link.arm();
        Ok(link)
    }

    fn make_ready(&self) -> Result<(), Error> {
        let attr = |state| QpAttr {
            state,
            port: Bound::PORT,
            qkey: UDP_QKEY,
            ..QpAttr::default()
        };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        for (state, mask) in [
            (QpState::Init, init),
            (QpState::Rtr, AttrMask::STATE),
            (QpState::Rts, AttrMask::STATE | AttrMask::SQ_PSN),
        ] {
            self.qp.modify(&attr(state), mask)?;
        }
        Ok(())
    }

    fn post_receive(&self, slot: u32) -> Result<(), Error> {
        let grh = self.receive_buffer.mr().len() as usize - GRH;
        let sges = [
            self.receive_buffer.sge(grh, GRH)?,
            self.receive_buffer
                .sge((slot * SLOT) as usize, SLOT as usize)?,
        ];
        Ok(self.qp.post_receive(RECEIVE | u64::from(slot), &sges)?)
    }

    /// Returns the queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Returns the completion queue.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Requests a notification of the next completion.
    pub fn arm(&self) {
        self.cq.arm(false);
    }

    /// Returns whether there is a free send buffer.
    pub fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns whether all datagrams were sent.
    pub fn is_idle(&self) -> bool {
        self.free.len() == usize::from(self.slots)
    }

    /// Returns the largest payload of a datagram, in bytes.
    pub fn most_data(&self) -> u32 {
        self.most_data
    }

    /// Creates an address handle for a peer.
    pub fn handle_for(&self, peer: IpAddr) -> Result<Arc<AddressHandle>, Error> {
        let address = AddressVector {
            dgid: Gid::from_ip(canonical(SocketAddr::new(peer, 0))),
            sgid_index: self.bound.gid_index,
            is_global: true,
            port: Bound::PORT,
            ..AddressVector::default()
        };
        Ok(self.device.context.create_ah(&self.device.pd, address)?)
    }

    /// Polls completions. `keep` returns whether it stores a datagram. Returns whether the state
    /// changed.
    pub fn process(&mut self, mut keep: impl FnMut(Arrived) -> bool) -> bool {
        let mut changed = false;
        let mut batch = [None; BATCH];
        loop {
            let taken = self.cq.poll(&mut batch);
            for completion in batch.iter_mut().take(taken).filter_map(Option::take) {
                self.take(&completion, &mut keep);
            }
            changed |= taken > 0;
            if taken < BATCH {
                return changed;
            }
        }
    }

    fn take(&mut self, completion: &Completion, keep: &mut impl FnMut(Arrived) -> bool) {
        // The lower half of `wr_id` is the buffer's index.
        let slot = completion.wr_id as u32;
        if completion.wr_id & RECEIVE == 0 {
            return self.free.push(slot);
        }
        let arrived = match completion.status {
            WcStatus::Success => self.parse_receive(slot, completion.byte_len),
            _ => None,
        };
        if !arrived.is_some_and(keep) {
            self.repost(slot);
        }
    }

    /// Returns the datagram in a receive buffer, if it has a valid header.
    fn parse_receive(&self, slot: u32, byte_len: u32) -> Option<Arrived> {
        let len = byte_len.checked_sub(GRH as u32)?.min(SLOT);
        let at = slot * SLOT;
        let mut start = [0; Header::MAX_LEN];
        let start = &mut start[..Header::MAX_LEN.min(len as usize)];
        self.receive_buffer.read(at as usize, start).ok()?;
        let (from, header) = parse_source(start)?;
        let header = header as u32;
        let data = Piece {
            offset: at + header,
            len: len - header,
        };
        Some(Arrived { from, slot, data })
    }

    /// Copies a datagram to the program's memory, truncated to its room.
    pub fn give(&self, arrived: &Arrived, sink: &mut dyn Sink) -> Result<(), Error> {
        let len = u32::try_from(sink.room()).map_or(arrived.data.len, |r| arrived.data.len.min(r));
        let piece = Piece {
            len,
            ..arrived.data
        };
        Ok(sink.put_from(&self.receive_buffer, piece)?)
    }

    /// Returns the buffer of a datagram to the receive queue.
    pub fn release(&self, arrived: &Arrived) {
        self.repost(arrived.slot);
    }

    fn repost(&self, slot: u32) {
        if let Err(error) = self.post_receive(slot) {
            tracing::debug!(%error, "cannot post a receive");
        }
    }

    /// Sends a datagram of at most [`DatagramLink::most_data`] bytes, if there is a free buffer.
    pub fn send(
        &mut self,
        source: &mut dyn Source,
        handle: &Arc<AddressHandle>,
        qpn: Qpn,
    ) -> Result<(), Error> {
        let Some(slot) = self.free.pop() else {
            return Ok(());
        };
        let sent = self.send_from(slot, source, handle, qpn);
        if sent.is_err() {
            self.free.push(slot);
        }
        sent
    }

    fn send_from(
        &self,
        slot: u32,
        source: &mut dyn Source,
        handle: &Arc<AddressHandle>,
        qpn: Qpn,
    ) -> Result<(), Error> {
        let (at, header) = (slot * SLOT, self.header.bytes());
        let data = Piece {
            offset: at + header.len() as u32,
            len: (source.left() as u32).min(self.most_data),
        };
        self.send_buffer.write(at as usize, header)?;
        source.take_into(&self.send_buffer, data)?;
        let len = header.len() + data.len as usize;
        let sges: [Sge; 1] = [self.send_buffer.sge(at as usize, len)?];
        let wr = SendWr {
            wr_id: slot.into(),
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest: None,
        };
        let qkey = UDP_QKEY;
        let to = Destination { handle, qpn, qkey };
        Ok(self.qp.start_posting().post_to(&wr, &to)?)
    }
}

/// Returns the IP address in the form in which addresses are compared: IPv4 where possible.
pub(super) fn canonical(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}
