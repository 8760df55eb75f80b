//! The receive path: takes a batch from a socket, and hands each packet to its queue pair.

use super::engine::{Engine, Network};
use super::groups::Joined;
use super::panics::PanicGuard;
use super::report;
use crate::lock_order::{Ordered, Rank};
use crate::memory::access::expecting_unmapped;
use crate::memory::regions::{RegionTable, regions};
use crate::ports::{LocalPort, ReceiveSocket, Receiver, SeenPolls};
use crate::queues::qp::{Incoming, Qp};
use crate::queues::table::QpMap;
use crate::scheduling::affinity::Affinity;
use crate::scheduling::limits::{ANSWER_INTERVAL, FINAL_BATCHES};
use crate::sync::lock;
use std::num::NonZero;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use urxe_net::thread::CancellationDisabled;
use urxe_net::{Datagram, MAX_RECEIVE_SOCKETS, RecvBatch, SendBatch};
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;
use urxe_proto::wire::{Packet, ParseError};

/// The kind of thread that receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Caller {
    /// A thread of the program that polls a completion queue with this affinity, and may answer the
    /// messages that it gets.
    Poll(Affinity),
    /// A thread of the program in a blocking call, which may answer them as well.
    Wait,
    /// The progress thread, or a thread of the program in a call that is not about messages.
    Other,
}

impl Caller {
    /// Returns the affinity of the completion queue that is polled.
    #[inline]
    fn polls(self) -> Option<Affinity> {
        match self {
            Self::Poll(affinity) => Some(affinity),
            Self::Wait | Self::Other => None,
        }
    }

    /// Disables cancellation of the thread, unless the caller has done so.
    #[inline]
    fn disable_cancellation(self) -> Option<CancellationDisabled> {
        self.polls().map(|_| CancellationDisabled::new())
    }
}

impl Engine {
    /// Receives one batch from an address, unless another thread is receiving from it. Returns the
    /// time at which it was received; `None` if there were no packets.
    ///
    /// Inlined into its one caller, since a poll that finds nothing spends most of its time here.
    #[inline(always)]
    pub(super) fn receive(
        &self,
        port: &LocalPort,
        caller: Caller,
        is_busy: &mut bool,
    ) -> Option<Time> {
        if port.others().is_some() {
            return self.receive_from_several(port, caller, is_busy);
        }
        self.receive_from(port, (0, port.first()), caller, is_busy)
    }

    /// Receives from one of the receive sockets of an address, see [`Engine::receive`].
    #[inline(always)]
    fn receive_from(
        &self,
        port: &LocalPort,
        (number, socket): (usize, &ReceiveSocket),
        caller: Caller,
        is_busy: &mut bool,
    ) -> Option<Time> {
        let Some(mut receiver) = socket.try_lock(caller.polls()) else {
            *is_busy = true;
            return None;
        };
        self.receive_with(&mut receiver, port, number, caller)
    }

    /// Receives from an address with several receive sockets. A poll receives from the one of its
    /// affinity, and at intervals from those that no poll receives from. Other callers receive from
    /// all of them.
    #[inline(never)]
    fn receive_from_several(
        &self,
        port: &LocalPort,
        caller: Caller,
        is_busy: &mut bool,
    ) -> Option<Time> {
        let Caller::Poll(affinity) = caller else {
            return port.receive_sockets().fold(None, |received_at, socket| {
                self.receive_from(port, socket, caller, is_busy)
                    .or(received_at)
            });
        };
        let (number, socket) = port.socket_of(affinity);
        let received_at = self.receive_from(port, (number, socket), caller, is_busy);
        match port.polled(socket) {
            true => (self.receive_unpolled(port, &socket.seen, caller)).or(received_at),
            false => received_at,
        }
    }

    /// Receives from the receive sockets of an address that queue pairs use, and that no poll has
    /// received from since the last call with the same record. Returns the time at which the last
    /// batch was received.
    fn receive_unpolled(&self, port: &LocalPort, seen: &SeenPolls, caller: Caller) -> Option<Time> {
        let endpoint = port.endpoint();
        let sockets = endpoint.steered_sockets();
        // The first socket also receives what the program of another process does not distribute.
        // Such a program, or none, may distribute to more sockets than the own one.
        let is_used = |number| {
            number == 0
                || sockets < endpoint.receive_sockets()
                || self.affinities.use_socket(number, sockets)
        };
        let unpolled = port.unpolled(seen).filter(|(number, _)| is_used(*number));
        unpolled.fold(None, |received_at, socket| {
            let received = self.receive_from(port, socket, caller, &mut false);
            received.or(received_at)
        })
    }

    /// Receives at the receive sockets of completion queues that no thread polls, while the
    /// progress thread relies on polls of others.
    pub(super) fn receive_beside_polls(&self, network: &Network) {
        for port in network.ports.list().iter() {
            if port.others().is_some() {
                self.receive_unpolled(port, &port.seen_by_progress, Caller::Other);
            }
        }
    }

    /// Receives the packets that arrived at the sockets before this call, as far as
    /// [`FINAL_BATCHES`] permits, and waits for other threads that are handling some.
    pub(crate) fn receive_arrived(&self) {
        let Some(network) = self.usable_network() else {
            return;
        };
        let _disabled = CancellationDisabled::new();
        let guard = PanicGuard(self);
        for port in network.ports.list().iter() {
            for (number, socket) in port.receive_sockets() {
                let mut receiver = Ordered::take(Rank::Receiver, || lock(socket.receiver()));
                // The program may have unmapped the receives of a queue pair that it ends.
                expecting_unmapped(|| {
                    let mut batches = 0..FINAL_BATCHES;
                    while batches.next().is_some()
                        && (self.receive_with(&mut receiver, port, number, Caller::Other)).is_some()
                    {
                    }
                });
            }
        }
        guard.end();
    }

    /// Receives one batch from receive socket `number` of an address, with its locked receiver.
    /// Returns the time at which it was received; `None` if there were no packets.
    #[inline(always)]
    fn receive_with(
        &self,
        receiver: &mut Receiver,
        port: &LocalPort,
        number: usize,
        caller: Caller,
    ) -> Option<Time> {
        let endpoint = port.endpoint();
        let filled = endpoint.fill(number, &mut receiver.batch);
        if let Ok(0) = filled {
            return None;
        }
        let _disabled = caller.disable_cancellation();
        if let Err(error) = filled {
            tracing::warn!(%error, address = %endpoint.address(), "receiving failed");
            port.failed(&error);
            return None;
        }
        let now = self.handle_batch(receiver, caller, |batch, delivery| {
            endpoint.deliver(number, batch, |datagram| delivery.handle(datagram));
        });
        if receiver.batch.has_moved_deadline() {
            // Datagrams to be forwarded may have to wait, and only the progress thread sends those.
            self.waker.deadline_moved(endpoint.next_deadline());
        }
        Some(now)
    }

    /// Receives one batch from a group, unless another thread is receiving from it. Returns the
    /// time at which it was received; `None` if there were no packets.
    pub(super) fn receive_group(&self, joined: &Joined) -> Option<Time> {
        let _disabled = CancellationDisabled::new();
        let mut receiver = Ordered::try_take(Rank::Receiver, || joined.receiver.try_lock())?;
        let group = &joined.group;
        match group.fill(&mut receiver.batch) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, group = %group.address(), "receiving failed");
                return None;
            }
        }
        let now = self.handle_batch(&mut receiver, Caller::Other, |batch, delivery| {
            group.deliver(batch, |datagram| delivery.handle(datagram));
        });
        Some(now)
    }

    /// Receives a batch of frames for each queue pair for raw packets. True when there were any.
    #[inline]
    pub(super) fn receive_frames(&self) -> bool {
        self.has_raw.load(Ordering::Acquire) && self.receive_all_frames()
    }

    #[inline(never)]
    fn receive_all_frames(&self) -> bool {
        let _disabled = CancellationDisabled::new();
        let raw = self.raw();
        let qps = raw.iter().filter_map(Weak::upgrade);
        qps.fold(false, |worked, qp| worked | qp.receive_frames())
    }

    /// Does the work of the progress thread alone: datagrams that other processes forwarded, and
    /// messages between processes about the port.
    pub(super) fn serve(&self, network: &Network) {
        network.gsi.check_exits();
        self.open_wanted_sockets(network);
        let mut receiver = Ordered::take(Rank::Forwarded, || lock(&network.forwarded));
        self.handle_batch(&mut receiver, Caller::Other, |batch, delivery| {
            let each = |datagram: &Datagram<'_>| delivery.handle(datagram);
            if let Err(error) = network.shared.recv_forwarded(batch, each) {
                tracing::warn!(%error, "receiving from other processes failed");
            }
        });
        network
            .shared
            .answer_queries(|| report::encode(&self.report()));
        for port in network.ports.list().iter() {
            self.handle_batch(&mut receiver, Caller::Other, |batch, delivery| {
                let each = |datagram: &Datagram<'_>| delivery.handle(datagram);
                if let Err(error) = port.endpoint().service(batch, each) {
                    tracing::warn!(%error, "port sharing failed");
                }
            });
        }
    }

    /// Opens receive sockets where polls contend, one for each processor.
    fn open_wanted_sockets(&self, network: &Network) {
        let count = || {
            let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
            // The steering program distinguishes a power of two.
            processors.next_power_of_two().min(MAX_RECEIVE_SOCKETS)
        };
        if let Some(count) = network.ports.open_wanted_sockets(count) {
            let split = network.deferred.split(count, &self.loss);
            if let Err(error) = split {
                tracing::debug!(%error, "threads share the list of deferred packets");
            }
        }
    }

    /// Hands the datagrams that `deliver` passes to the [`Delivery`] to their queue pairs, and lets
    /// each send after every [`ANSWER_INTERVAL`] bytes. The tables are locked meanwhile. Returns
    /// the time that the queue pairs take for the arrival.
    #[inline(never)]
    fn handle_batch(
        &self,
        receiver: &mut Receiver,
        caller: Caller,
        deliver: impl FnOnce(&mut RecvBatch, &mut Delivery<'_>),
    ) -> Time {
        let now = urxe_net::now();
        let qps = self.qps.read();
        let held = regions();
        let mut delivery = Delivery {
            engine: self,
            caller,
            now,
            qps: &qps,
            regions: held.table(),
            current: None,
            to_answer: &mut receiver.to_answer,
            answers: &mut receiver.answers,
            unanswered: 0,
        };
        deliver(&mut receiver.batch, &mut delivery);
        if delivery.current.is_some() || !delivery.to_answer.is_empty() {
            delivery.answer();
        }
        now
    }
}

/// The delivery of one batch to the queue pairs, with the tables locked.
struct Delivery<'a> {
    engine: &'a Engine,
    caller: Caller,
    /// The time of the arrival.
    now: Time,
    qps: &'a QpMap,
    regions: &'a RegionTable,
    /// The queue pair of the last packet. It stays locked.
    current: Option<Incoming<'a>>,
    /// The other queue pairs that have received packets and not sent since.
    to_answer: &'a mut Vec<Qpn>,
    /// The batch for the packets that the queue pairs send.
    answers: &'a mut Option<Box<SendBatch>>,
    /// The bytes that arrived since the queue pairs last sent.
    unanswered: usize,
}

impl<'a> Delivery<'a> {
    /// Hands a datagram to its queue pair, which stays locked.
    ///
    /// The way of a packet up to the state machine is this one function, since each step consists
    /// of few instructions: what it calls has one caller each, and is inlined.
    #[inline(never)]
    fn handle(&mut self, datagram: &Datagram<'_>) {
        let handled = Packet::parse_then(datagram.packet(), |packet| {
            match self.qps.get(packet.header.bth.dest_qp) {
                Some(qp) => self.hand_over::<false>(qp, datagram, packet),
                None => self.handle_special(datagram, packet),
            }
        });
        if let Err(error) = handled {
            return self.dropped_malformed(datagram, &error);
        }
        self.unanswered += datagram.bytes.len();
        if self.unanswered >= ANSWER_INTERVAL {
            self.unanswered = 0;
            self.answer();
        }
    }

    /// Handles a packet for queue pair 1, or for a multicast group. Others are dropped: their queue
    /// pair does not exist.
    ///
    /// The members of a group are not handled in [`Delivery::handle`]: for a loop, the compiler
    /// would compute in advance what a member may need, 130 instructions for each packet.
    #[cold]
    fn handle_special(&mut self, datagram: &Datagram<'_>, packet: &Packet<'_>) {
        let receivers = match packet.header.bth.dest_qp {
            Qpn::GSI => {
                self.defer_answer();
                if let Some(network) = self.engine.network.get() {
                    network.gsi.enqueue(datagram, packet);
                }
                return;
            }
            Qpn::MULTICAST => self.qps.members(datagram.dst),
            _ => &[],
        };
        if receivers.is_empty() {
            self.engine.counters.unknown_qp.add(1);
        }
        for qp in receivers {
            if !qp.blocks(datagram, packet) {
                self.hand_over::<true>(qp, datagram, packet);
            }
        }
    }

    /// Hands a packet to a queue pair, to which it is addressed itself or by a multicast group.
    #[inline(always)]
    fn hand_over<const MULTICAST: bool>(
        &mut self,
        qp: &'a Arc<Qp>,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
    ) {
        tracing::trace!(qp = %qp.qpn(), opcode = %packet.header.bth.opcode,
            psn = %packet.header.bth.psn, len = packet.payload.len(), "packet");
        if (self.current.as_ref()).is_some_and(|current| !current.is_for(qp)) {
            self.defer_answer();
        }
        let incoming = self.current.get_or_insert_with(|| Incoming::of(qp));
        let wrote = incoming.handle::<MULTICAST>(self.now, datagram, packet, self.regions);
        if wrote {
            self.engine.polling.record_write();
        }
    }

    #[cold]
    fn dropped_malformed(&self, datagram: &Datagram<'_>, error: &ParseError) {
        tracing::debug!(src = %datagram.src, %error, "dropped a malformed packet");
        self.engine.counters.malformed.add(1);
        if let Some(network) = self.engine.network.get() {
            network.shared.counters().count_invalid(datagram.dst);
        }
    }

    /// Releases the queue pair that is locked, and adds it to `to_answer`.
    #[cold]
    fn defer_answer(&mut self) {
        if let Some(incoming) = self.current.take() {
            incoming.defer_answer(self.to_answer);
        }
    }

    /// Lets each queue pair that received packets send once: the one that is locked, and then those
    /// in `to_answer`.
    fn answer(&mut self) {
        let is_waiter = self.caller == Caller::Wait;
        let may_delay =
            self.caller != Caller::Other && self.engine.waker.handoff().may_delay_acks(is_waiter);
        if let Some(incoming) = self.current.take() {
            self.answer_from(incoming, may_delay);
        }
        if !self.to_answer.is_empty() {
            self.answer_others(may_delay);
        }
    }

    /// Lets the queue pairs in `to_answer` send once.
    #[inline(never)]
    fn answer_others(&mut self, may_delay: bool) {
        let others = std::mem::take(self.to_answer);
        for qpn in &others {
            // The table has been locked since the queue pair received.
            if let Some(incoming) = self.qps.get(*qpn).map(Incoming::of)
                && incoming.is_answer_pending()
            {
                self.answer_from(incoming, may_delay);
            }
        }
        // Its memory is used again.
        *self.to_answer = others;
        self.to_answer.clear();
    }

    /// Lets a queue pair send once. `may_delay` says whether ACKs may be delayed.
    #[inline(always)]
    fn answer_from(&mut self, incoming: Incoming<'_>, may_delay: bool) {
        let Engine { polling, .. } = self.engine;
        let qp = incoming.qp();
        let empty_polls = may_delay.then(|| polling.of(Affinity::of(qp.qpn())).empty());
        let effects = incoming.answer(self.now, empty_polls, self.regions, self.answers);
        if let Some(effects) = effects {
            let delays_ack = effects.delayed_ack;
            self.engine.apply(qp, effects);
            if delays_ack {
                let is_waiter = self.caller == Caller::Wait;
                self.engine.delay_ack(qp, is_waiter, self.regions);
            }
        }
    }
}
