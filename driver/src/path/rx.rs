//! The receive path: takes a batch from a socket, and hands each packet to its queue pair.

use super::engine::{Engine, Network};
use super::groups::Joined;
use super::report;
use crate::lock_order::{Ordered, Rank};
use crate::memory::regions::{RegionTable, regions};
use crate::ports::{LocalPort, Receiver};
use crate::queues::qp::{Incoming, Qp};
use crate::queues::table::QpMap;
use crate::scheduling::limits::ANSWER_INTERVAL;
use crate::sync::lock;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use urxe_net::thread::CancellationDisabled;
use urxe_net::{Datagram, RecvBatch, SendBatch};
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;
use urxe_proto::wire::{Packet, ParseError};

/// The kind of thread that receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Caller {
    /// A thread of the program that polls, and may answer the messages that it gets.
    Poll,
    /// The progress thread, or a thread of the program in a blocking call.
    Other,
}

impl Caller {
    /// Disables cancellation of the thread, unless the caller has done so.
    #[inline]
    fn disable_cancellation(self) -> Option<CancellationDisabled> {
        (self == Self::Poll).then(CancellationDisabled::new)
    }
}

impl Engine {
    /// Receives one batch from an address, unless another thread is receiving from it. True when
    /// there were packets.
    pub(super) fn receive(&self, port: &LocalPort, caller: Caller) -> bool {
        let Some(mut receiver) = try_lock(&port.receiver) else {
            return false;
        };
        let endpoint = port.endpoint();
        let filled = endpoint.fill(&mut receiver.batch);
        if let Ok(0) = filled {
            return false;
        }
        let _disabled = caller.disable_cancellation();
        if let Err(error) = filled {
            tracing::warn!(%error, address = %endpoint.address(), "receiving failed");
            port.failed(&error);
            return false;
        }
        self.handle_batch(&mut receiver, caller, |batch, f| endpoint.deliver(batch, f));
        if receiver.batch.has_moved_deadline() {
            // Datagrams to be forwarded may have to wait, and only the progress thread sends those.
            self.waker.deadline_moved(endpoint.next_deadline());
        }
        true
    }

    /// Receives one batch from a group, unless another thread is receiving from it. True when there
    /// were packets.
    pub(super) fn receive_group(&self, joined: &Joined) -> bool {
        let _disabled = CancellationDisabled::new();
        let Some(mut receiver) = try_lock(&joined.receiver) else {
            return false;
        };
        let group = &joined.group;
        match group.fill(&mut receiver.batch) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, group = %group.address(), "receiving failed");
                return false;
            }
        }
        self.handle_batch(&mut receiver, Caller::Other, |batch, f| {
            group.deliver(batch, f)
        });
        true
    }

    /// Receives a batch of frames for each queue pair for raw packets. True when there were any.
    pub(super) fn receive_frames(&self) -> bool {
        if !self.has_raw.load(Ordering::Acquire) {
            return false;
        }
        let _disabled = CancellationDisabled::new();
        let raw = self.raw();
        let qps = raw.iter().filter_map(Weak::upgrade);
        qps.fold(false, |worked, qp| worked | qp.receive_frames())
    }

    /// Does the work of the progress thread alone: datagrams that other processes forwarded, and
    /// messages between processes about the port.
    pub(super) fn serve(&self, network: &Network) {
        network.gsi.check_exits();
        let mut receiver = Ordered::take(Rank::Forwarded, || lock(&network.forwarded));
        self.handle_batch(&mut receiver, Caller::Other, |batch, f| {
            if let Err(error) = network.shared.recv_forwarded(batch, f) {
                tracing::warn!(%error, "receiving from other processes failed");
            }
        });
        network
            .shared
            .answer_queries(|| report::encode(&self.report()));
        for port in network.ports.list().iter() {
            self.handle_batch(&mut receiver, Caller::Other, |batch, f| {
                if let Err(error) = port.endpoint().service(batch, f) {
                    tracing::warn!(%error, "port sharing failed");
                }
            });
        }
    }

    /// Hands the datagrams that `deliver` passes on to their queue pairs, and lets each send after
    /// every [`ANSWER_INTERVAL`] bytes. The tables are locked meanwhile.
    fn handle_batch(
        &self,
        receiver: &mut Receiver,
        caller: Caller,
        deliver: impl FnOnce(&mut RecvBatch, &mut dyn FnMut(&Datagram<'_>)),
    ) {
        let Receiver {
            batch,
            to_answer,
            answers,
        } = receiver;
        let now = urxe_net::now();
        let qps = self.qps.read();
        let held = regions();
        let mut unanswered = 0;
        let mut current = None;
        deliver(batch, &mut |datagram| {
            self.handle(&qps, held.table(), now, datagram, &mut current, to_answer);
            unanswered += datagram.bytes.len();
            if unanswered >= ANSWER_INTERVAL {
                unanswered = 0;
                let waiting = (current.take(), &mut *to_answer);
                self.answer(now, waiting, answers, caller, &qps, held.table());
            }
        });
        if current.is_some() || !to_answer.is_empty() {
            self.answer(
                now,
                (current, to_answer),
                answers,
                caller,
                &qps,
                held.table(),
            );
        }
    }

    /// Hands a datagram to its queue pair, which stays locked in `current`. The queue pair that was
    /// locked there before is released, and added to `to_answer`.
    #[inline(always)]
    fn handle<'a>(
        &self,
        qps: &'a QpMap,
        regions: &RegionTable,
        now: Time,
        datagram: &Datagram<'_>,
        current: &mut Option<Incoming<'a>>,
        to_answer: &mut Vec<Qpn>,
    ) {
        let mut packet = Packet::default();
        if let Err(error) = packet.read(datagram.packet()) {
            return self.dropped_malformed(datagram, &error);
        }
        match qps.get(packet.header.bth.dest_qp) {
            Some(qp) => self.hand_over(qp, regions, now, (datagram, &packet), current, to_answer),
            None => self.handle_special(qps, regions, now, (datagram, &packet), current, to_answer),
        }
    }

    /// Hands over a packet for queue pair 1 or for a multicast group. Other packets are dropped:
    /// their queue pair does not exist.
    #[cold]
    fn handle_special<'a>(
        &self,
        qps: &'a QpMap,
        regions: &RegionTable,
        now: Time,
        (datagram, packet): (&Datagram<'_>, &Packet<'_>),
        current: &mut Option<Incoming<'a>>,
        to_answer: &mut Vec<Qpn>,
    ) {
        let receivers = match packet.header.bth.dest_qp {
            Qpn::GSI => {
                defer_answer(current, to_answer);
                if let Some(network) = self.network.get() {
                    network.gsi.enqueue(datagram, packet);
                }
                return;
            }
            Qpn::MULTICAST => qps.members(datagram.dst),
            _ => &[],
        };
        if receivers.is_empty() {
            self.counters.unknown_qp.add(1);
            return;
        }
        for qp in receivers {
            if !qp.blocks(datagram, packet) {
                self.hand_over(qp, regions, now, (datagram, packet), current, to_answer);
            }
        }
    }

    /// Hands a packet to a queue pair.
    #[inline(always)]
    fn hand_over<'a>(
        &self,
        qp: &'a Arc<Qp>,
        regions: &RegionTable,
        now: Time,
        (datagram, packet): (&Datagram<'_>, &Packet<'_>),
        current: &mut Option<Incoming<'a>>,
        to_answer: &mut Vec<Qpn>,
    ) {
        tracing::trace!(qp = %qp.qpn(), opcode = %packet.header.bth.opcode,
            psn = %packet.header.bth.psn, len = packet.payload.len(), "packet");
        if current.as_ref().is_some_and(|current| !current.is_for(qp)) {
            defer_answer(current, to_answer);
        }
        let incoming = current.get_or_insert_with(|| Incoming::of(qp));
        let wrote = incoming.handle(now, datagram, packet, regions);
        if wrote {
            self.polling.record_write();
        }
    }

    #[cold]
    fn dropped_malformed(&self, datagram: &Datagram<'_>, error: &ParseError) {
        tracing::debug!(src = %datagram.src, %error, "dropped a malformed packet");
        self.counters.malformed.add(1);
        if let Some(network) = self.network.get() {
            network.shared.counters().count_invalid(datagram.dst);
        }
    }

    /// Lets each queue pair that received packets at `now` send once: the one that is locked in
    /// `current`, and then those in `to_answer`. `batch` is used for what they send.
    fn answer(
        &self,
        now: Time,
        (current, to_answer): (Option<Incoming<'_>>, &mut Vec<Qpn>),
        batch: &mut Option<Box<SendBatch>>,
        caller: Caller,
        qps: &QpMap,
        regions: &RegionTable,
    ) {
        let may_delay = caller == Caller::Poll && self.waker.handoff().leaves_packets_to_polls();
        let empty_polls = may_delay.then(|| self.polling.empty_polls());
        let mut to_answer = to_answer.drain(..);
        let mut next = current;
        loop {
            if let Some(incoming) = next.take() {
                let qp = incoming.qp();
                let effects = incoming.answer(now, empty_polls, regions, batch);
                let delays_ack = effects.delayed_ack;
                self.apply(qp, effects);
                if delays_ack {
                    self.delay_ack(qp, regions);
                }
            }
            let Some(qpn) = to_answer.next() else { break };
            // The table has been locked since the queue pair received.
            next = (qps.get(qpn).map(Incoming::of)).filter(Incoming::is_answer_pending);
        }
    }
}

/// Locks a receiver, unless another thread receives with it.
fn try_lock(receiver: &Mutex<Receiver>) -> Option<Ordered<MutexGuard<'_, Receiver>>> {
    Ordered::try_take(Rank::Receiver, || match receiver.try_lock() {
        Ok(receiver) => Some(receiver),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    })
}

/// Releases the queue pair that is locked in `current`, and adds it to `to_answer`.
#[cold]
fn defer_answer(current: &mut Option<Incoming<'_>>, to_answer: &mut Vec<Qpn>) {
    if let Some(incoming) = current.take() {
        incoming.defer_answer(to_answer);
    }
}
