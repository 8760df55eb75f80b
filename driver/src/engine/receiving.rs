//! The receive path: takes a batch from a socket, and hands each packet to its queue pair.

use super::locals::Local;
use super::table::QpTable;
use super::{Driver, Engine, Network, is_loss};
use crate::event_queue::lock;
use crate::qp::{Incoming, Qp};
use crate::regions::{RegionTable, regions};
use crate::stat;
use std::cell::LazyCell;
use std::sync::{Arc, PoisonError, TryLockError, Weak};
use urxe_net::{Datagram, RecvBatch};
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::time::Time;
use urxe_proto::ud::NetworkHeader;
use urxe_proto::wire::Packet;

/// Bytes of a batch after which its queue pairs may send: a peer whose window was full continues
/// while the rest of the batch is handled.
const STRETCH: usize = 96 << 10;

/// Buffers for receiving, and the queue pairs that received packets.
#[derive(Default)]
pub(super) struct Receiver {
    batch: RecvBatch,
    touched: Vec<Arc<Qp>>,
}

impl Engine {
    /// Receives a batch of frames for each queue pair for raw packets. True when there were any.
    pub(super) fn receive_frames(&self) -> bool {
        let raw = self.raw.read().unwrap_or_else(PoisonError::into_inner);
        let pairs = raw.iter().filter_map(Weak::upgrade);
        pairs.fold(false, |worked, qp| worked | qp.receive_frames())
    }

    /// Does the work of the progress thread alone: datagrams that other processes forwarded, and
    /// messages between processes about the port.
    pub(super) fn serve(&self, network: &Network) {
        network.gsi.look_for_ends();
        let mut receiver = lock(&network.forwarded);
        self.handle_batch(&mut receiver, Driver::Other, |batch, f| {
            match network.shared.recv_forwarded(batch, f) {
                Ok(count) => count > 0,
                Err(error) => {
                    tracing::warn!(%error, "receiving from other processes failed");
                    false
                }
            }
        });
        network.shared.answer_queries(stat::answer);
        for local in network.locals().iter() {
            self.handle_batch(&mut receiver, Driver::Other, |batch, f| {
                if let Err(error) = local.endpoint.service(batch, f) {
                    tracing::warn!(%error, "port sharing failed");
                }
                false
            });
        }
    }

    /// Receives one batch from an address, unless another thread is receiving from it. True when
    /// there were packets.
    pub(super) fn receive(&self, local: &Local, driver: Driver) -> bool {
        let mut receiver = match local.receiver.try_lock() {
            Ok(receiver) => receiver,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let worked = self.handle_batch(&mut receiver, driver, |batch, f| {
            match local.endpoint.recv(batch, f) {
                Ok(count) => count > 0,
                Err(error) => {
                    tracing::warn!(%error, address = %local.endpoint.address(), "receiving failed");
                    if is_loss(&error) {
                        self.lost_descriptors();
                    }
                    false
                }
            }
        });
        if worked {
            // Datagrams to be forwarded may have to wait, and only the progress thread sends those.
            self.deadline_moved(local.endpoint.next_deadline());
        }
        worked
    }

    /// Hands a batch to its queue pairs, and lets each send after every [`STRETCH`] bytes.
    pub(super) fn handle_batch(
        &self,
        receiver: &mut Receiver,
        driver: Driver,
        receive: impl FnOnce(&mut RecvBatch, &mut dyn FnMut(&Datagram<'_>)) -> bool,
    ) -> bool {
        let Receiver { batch, touched } = receiver;
        // Most polls receive nothing, and need no locks.
        let tables = LazyCell::new(|| (urxe_net::now(), self.qps(), regions()));
        let polls = (driver == Driver::Poll).then(|| self.polls_in_vain());
        let mut unanswered = 0;
        let mut current = None;
        let worked = receive(batch, &mut |datagram| {
            let (now, qps, held) = &*tables;
            self.handle(qps, held.table(), *now, datagram, &mut current, touched);
            unanswered += datagram.bytes.len();
            if unanswered >= STRETCH {
                unanswered = 0;
                current = None;
                answer(touched, polls, held.table());
            }
        });
        drop(current);
        if !touched.is_empty() {
            answer(touched, polls, tables.2.table());
        }
        worked
    }

    /// Hands a datagram to its queue pair, which stays locked in `current`. The caller must release
    /// that lock before it locks another queue pair.
    fn handle<'a>(
        &self,
        qps: &'a QpTable,
        regions: &RegionTable,
        now: Time,
        datagram: &Datagram<'_>,
        current: &mut Option<Incoming<'a>>,
        touched: &mut Vec<Arc<Qp>>,
    ) {
        let packet = match Packet::parse(datagram.packet()) {
            Ok(packet) => packet,
            Err(error) => {
                tracing::debug!(src = %datagram.src, %error, "dropped a malformed packet");
                self.counters.malformed.add(1);
                if let Some(network) = self.network.get() {
                    network.shared.counters().count_invalid(datagram.dst);
                }
                return;
            }
        };
        let dest_qp = packet.header.bth.dest_qp;
        if dest_qp == Qpn::GSI {
            *current = None;
            if let Some(network) = self.network.get() {
                network.gsi.arrived(datagram, &packet);
            }
            return;
        }
        let receivers = match qps.get(dest_qp) {
            Some(qp) => std::slice::from_ref(qp),
            None if dest_qp == Qpn::MULTICAST => qps.members(datagram.dst),
            None => &[],
        };
        if receivers.is_empty() {
            self.counters.unknown_qp.add(1);
            return;
        }
        let network = network_header(datagram);
        for qp in receivers {
            if dest_qp == Qpn::MULTICAST && qp.blocks(&network, &packet) {
                continue;
            }
            tracing::trace!(qp = %qp.qpn(), opcode = %packet.header.bth.opcode,
                psn = %packet.header.bth.psn, len = packet.payload.len(), "packet");
            let incoming = turn_to(current, qp);
            let writes = incoming.writes();
            if incoming.handle(now, &network, datagram.src.port(), &packet, regions) {
                touched.push(Arc::clone(qp));
            }
            if incoming.writes() != writes {
                self.polling.wrote();
            }
        }
    }
}

/// Locks `qp`, and releases the queue pair that was locked before.
fn turn_to<'c, 'a>(current: &'c mut Option<Incoming<'a>>, qp: &'a Arc<Qp>) -> &'c mut Incoming<'a> {
    if !current.as_ref().is_some_and(|current| current.is_for(qp)) {
        *current = None;
    }
    current.get_or_insert_with(|| Incoming::of(qp))
}

/// Lets each queue pair that received packets send once.
fn answer(touched: &mut Vec<Arc<Qp>>, polls: Option<u64>, regions: &RegionTable) {
    for qp in touched.drain(..) {
        qp.go_on(polls, regions);
    }
}

/// Returns the addresses and IP header fields of a datagram. The flow label is left 0.
fn network_header(datagram: &Datagram<'_>) -> NetworkHeader {
    NetworkHeader {
        source: Gid::from_ip(datagram.src.ip()),
        destination: Gid::from_ip(datagram.dst.ip()),
        traffic_class: datagram.tos,
        flow_label: 0,
        hop_limit: datagram.ttl,
    }
}
