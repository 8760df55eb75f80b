//! The requester of the unreliable services. Each packet is sent once, and a work request completes
//! when its last packet is sent (9.8.2.1, 9.8.3.1).

use crate::host::{Completions, Host, Transmit};
use crate::psn::Psn;
use crate::qp::{QpAttr, QpState};
use crate::qp_base::SendSide;
use crate::queue::{NoMemory, PostError, SendQueue, SendQueueSize, SendWqe};
use crate::service::{Context, StageResult, execute_local, stage_data};
use crate::wire::{Deth, Header, Position};
use crate::work::{Destination, Payload, SendWr, UdDestination, WcStatus};
use std::ops::RangeInclusive;

/// Bit 31 of the queue key of a work request: the queue pair's own key is sent instead (10.2.5).
const OWN_QKEY: u32 = 1 << 31;

/// The result of a call to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Sent {
    /// Nothing remains to be sent.
    All,
    /// The sink is full, or the next datagram has another address handle.
    Part,
    /// A work request failed, and the others were flushed.
    Failed,
}

/// The requester of an unreliable queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    queue: SendQueue,
    signal_all: bool,
    /// The index of the next packet of the oldest work request.
    packet: u32,
    next_psn: Psn,
}

impl Requester {
    pub(crate) fn new(size: SendQueueSize, signal_all: bool) -> Result<Self, NoMemory> {
        Ok(Requester {
            queue: SendQueue::new(size)?,
            signal_all,
            packet: 0,
            next_psn: Psn::default(),
        })
    }

    pub(crate) fn size(&self) -> SendQueueSize {
        self.queue.size()
    }

    /// The number of work requests that can still be posted.
    pub(crate) fn queue_room(&self) -> u32 {
        self.queue.room()
    }

    /// The work request of the next packet. In SQD no further message is started.
    pub(crate) fn next(&self, state: QpState) -> Option<&SendWqe> {
        let may_send = match state {
            QpState::Sqd => self.packet > 0,
            _ => state.initiates(),
        };
        let oldest = self.queue.get(self.queue.head());
        oldest.filter(|_| may_send)
    }

    /// Sends packets as far as they have the same address handle.
    pub(crate) fn transmit<H: Host, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut H,
        out: &mut T,
    ) -> Sent {
        let datagram = |wqe: &SendWqe| wqe.dest.and_then(Destination::datagram);
        let handle = |wqe: &SendWqe| datagram(wqe).map(|dest| dest.handle);
        let path = self.next(cx.attr.state).and_then(handle);
        while let Some(&wqe) = self.next(cx.attr.state) {
            if handle(&wqe) != path {
                return Sent::Part;
            }
            if wqe.dest.is_some() && wqe.packets > 1 {
                // An oversized datagram completes successfully without being sent (C10-93.1.1).
                cx.counters.oversized_datagrams += 1;
                self.complete(cx, host);
                continue;
            }
            if wqe.op.is_local() {
                if let Err(status) = execute_local(&wqe.op, host) {
                    return self.fail(cx, status, host);
                }
                self.complete(cx, host);
                continue;
            }
            match self.put(cx, &wqe, host, out) {
                StageResult::Full => return Sent::Part,
                StageResult::Protection => return self.fail(cx, WcStatus::LocProtErr, host),
                StageResult::Done => {
                    cx.counters.sent_packets += 1;
                    self.next_psn = self.next_psn.next();
                    self.packet += 1;
                    if self.packet == wqe.packets {
                        self.complete(cx, host);
                    }
                }
            }
        }
        Sent::All
    }

    /// Like [`Self::transmit`], for work requests that are whole frames of lengths in `frames`.
    pub(crate) fn transmit_frames<H: Host, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        frames: RangeInclusive<usize>,
        host: &mut H,
        out: &mut T,
    ) -> Sent {
        while let Some(&wqe) = self.next(cx.attr.state) {
            let len = wqe.len as usize;
            if !frames.contains(&len) {
                return self.fail(cx, WcStatus::LocLenErr, host);
            }
            let Some(frame) = out.stage(len) else {
                return Sent::Part;
            };
            let gathered = match self.queue.payload(self.queue.head(), &wqe) {
                Payload::Sges(sges) => host.gather(sges, 0, frame),
                Payload::Inline(data) => {
                    frame.copy_from_slice(data);
                    Ok(())
                }
            };
            if gathered.is_err() {
                out.cancel();
                return self.fail(cx, WcStatus::LocProtErr, host);
            }
            out.commit();
            cx.counters.sent_packets += 1;
            self.complete(cx, host);
        }
        Sent::All
    }

    fn put<H: Host, T: Transmit>(
        &self,
        cx: &Context<'_>,
        wqe: &SendWqe,
        host: &H,
        out: &mut T,
    ) -> StageResult {
        let index = self.packet;
        let position = Position::new(index == 0, index + 1 == wqe.packets);
        let bth = cx.data_bth(wqe, position, self.next_psn);
        let headers = || {
            let header = cx.data_header(wqe, position, self.next_psn);
            match wqe.dest.and_then(Destination::datagram) {
                Some(dest) => with_destination(cx, header, &dest),
                None => header,
            }
        };
        let mtu = cx.attr.path_mtu;
        let payload = self.queue.payload(self.queue.head(), wqe);
        let offset = u64::from(index) * mtu.bytes() as u64;
        stage_data(
            bth,
            headers,
            payload,
            offset,
            wqe.payload_of(index, mtu),
            host,
            out,
        )
    }

    /// Completes the oldest work request with `status` and flushes the others.
    fn fail<H: Completions>(
        &mut self,
        cx: &mut Context<'_>,
        status: WcStatus,
        host: &mut H,
    ) -> Sent {
        if let Some(wqe) = self.queue.pop() {
            host.send_completed(cx.completion(&wqe, status));
        }
        self.flush(cx, host);
        Sent::Failed
    }

    /// Completes the oldest work request successfully.
    fn complete<H: Completions>(&mut self, cx: &mut Context<'_>, host: &mut H) {
        self.packet = 0;
        if let Some(wqe) = self.queue.pop() {
            cx.complete_send(&wqe, self.signal_all, host);
        }
    }
}

impl SendSide for Requester {
    fn reset(&mut self, attr: &QpAttr) {
        let psn = attr.sq_psn;
        self.queue.reset(psn);
        self.packet = 0;
        self.next_psn = psn;
    }

    fn configure(&mut self, _attr: &QpAttr) {}

    fn drain(&mut self) {}

    /// Whether no message is partly sent: a work request is done when its last packet is sent.
    fn is_drained(&self) -> bool {
        self.packet == 0
    }

    fn next_psn(&self) -> Psn {
        self.next_psn
    }

    fn post(&mut self, wr: &SendWr<'_>, attr: &QpAttr) -> Result<(), PostError> {
        self.queue.post(wr, attr.path_mtu)
    }

    /// PSNs continue after the last packet sent.
    fn flush<H: Completions>(&mut self, cx: &mut Context<'_>, host: &mut H) {
        cx.flush_sends(&mut self.queue, host);
        self.packet = 0;
    }
}

/// Adds the destination of a datagram to its headers.
fn with_destination(cx: &Context<'_>, mut header: Header, dest: &UdDestination) -> Header {
    let qkey = if dest.qkey.0 & OWN_QKEY != 0 {
        cx.attr.qkey
    } else {
        dest.qkey
    };
    header.bth.dest_qp = dest.qpn;
    header.with_deth(Deth {
        qkey,
        src_qp: cx.qpn,
    })
}
