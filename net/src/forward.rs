//! Forwarding of datagrams that arrived at the wrong process to the right one.
//!
//! They travel as one message on a connection to the process's slot (see `link`): a header, then
//! the datagrams as they arrived, a batch in one piece. Only processes of the same user have such a
//! connection.
//!
//! The kernel queues as many bytes as a socket's send buffer holds (`net.core.wmem_default`), and
//! misdirected datagrams come in bursts. So messages that find the queue full wait in a backlog,
//! for at most 500 ms.

use crate::address::LocalAddress;
use crate::counters::NetCounters;
use crate::receive::GroBatch;
use crate::slot::{Forwarded, Slot};
use crate::sync::lock;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use urxe_proto::time::Time;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 4] = *b"urxf";
const VERSION: u8 = 1;

/// The limit of the backlog in bytes: a window or two of every same-host peer.
const BACKLOG_LIMIT: usize = 4 << 20;

/// The interval between two attempts to send to a full queue.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The time after which a waiting message is dropped. By then the transport has retransmitted it,
/// and a stopped process must not keep others from sleeping.
const BACKLOG_TIMEOUT: Duration = Duration::from_millis(500);

/// Forwards datagrams. Those that must wait for a full queue keep their order.
#[derive(Default)]
pub(super) struct Forwarder {
    backlog: Mutex<Backlog>,
    /// Whether the backlog is not empty, readable without the lock.
    waiting: AtomicBool,
}

#[derive(Default)]
struct Backlog {
    messages: VecDeque<Waiting>,
    bytes: usize,
    retry_at: Time,
}

struct Waiting {
    to: u8,
    message: Vec<u8>,
    datagrams: u64,
    deadline: Time,
}

impl Forwarder {
    /// Forwards `batch` to the process in slot `to`, and counts the result.
    pub(super) fn forward(
        &self,
        slot: &Slot,
        counters: &NetCounters,
        to: u8,
        batch: &GroBatch<'_>,
        now: Time,
    ) -> Forwarded {
        let datagrams = batch.datagrams().count() as u64;
        let header = header(batch);
        let mut backlog = self.lock();
        let result = if backlog.messages.iter().any(|m| m.to == to) {
            Forwarded::QueueFull
        } else {
            slot.send(to, header.as_bytes(), batch.bytes, now)
        };
        match result {
            Forwarded::Sent => counters.forwarded_out.add(datagrams),
            Forwarded::NoProcess => {}
            Forwarded::QueueFull if backlog.bytes + batch.bytes.len() > BACKLOG_LIMIT => {
                counters.forward_overruns.add(datagrams);
            }
            Forwarded::QueueFull => {
                let message = [header.as_bytes(), batch.bytes].concat();
                backlog.bytes += message.len();
                backlog.messages.push_back(Waiting {
                    to,
                    message,
                    datagrams,
                    deadline: now + BACKLOG_TIMEOUT,
                });
                backlog.retry_at = now + RETRY_INTERVAL;
                self.waiting.store(true, Ordering::Relaxed);
            }
        }
        result
    }

    /// Tries to send the backlog again, if it is time.
    pub(super) fn retry(&self, slot: &Slot, counters: &NetCounters, now: Time) {
        if !self.waiting.load(Ordering::Relaxed) {
            return;
        }
        let mut backlog = self.lock();
        if backlog.retry_at > now {
            return;
        }
        let mut full = Vec::new();
        let mut rest = VecDeque::new();
        for waiting in std::mem::take(&mut backlog.messages) {
            if full.contains(&waiting.to) {
                rest.push_back(waiting);
                continue;
            }
            match slot.send(waiting.to, &waiting.message, &[], now) {
                Forwarded::Sent => counters.forwarded_out.add(waiting.datagrams),
                Forwarded::NoProcess => counters.no_such_slot.add(waiting.datagrams),
                Forwarded::QueueFull if waiting.deadline <= now => {
                    counters.forward_overruns.add(waiting.datagrams);
                }
                Forwarded::QueueFull => {
                    full.push(waiting.to);
                    rest.push_back(waiting);
                }
            }
        }
        backlog.bytes = rest.iter().map(|w| w.message.len()).sum();
        backlog.messages = rest;
        backlog.retry_at = now + RETRY_INTERVAL;
        let waiting = !backlog.messages.is_empty();
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    /// The time of the next call of [`Forwarder::retry`].
    pub(super) fn next_deadline(&self) -> Time {
        if self.waiting.load(Ordering::Relaxed) {
            self.lock().retry_at
        } else {
            Time::NEVER
        }
    }

    fn lock(&self) -> MutexGuard<'_, Backlog> {
        lock(&self.backlog)
    }
}

/// The header before the datagrams. Both ends are on one host, so it has the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    version: u8,
    /// 4 or 6: the IP version.
    family: u8,
    tos: u8,
    ttl: u8,
    src: [u8; 16],
    dst: [u8; 16],
    /// The interface of link-local addresses.
    scope_id: [u8; 4],
    src_port: [u8; 2],
    first_index: [u8; 2],
    segment: [u8; 2],
    reserved: [u8; 2],
}

/// Returns the header for the bytes of `batch`.
fn header(batch: &GroBatch<'_>) -> impl IntoBytes + Immutable + use<> {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let scope_id = match batch.src {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id().max(batch.dst.scope_id()),
    };
    Header {
        magic: MAGIC,
        version: VERSION,
        family: if batch.src.is_ipv4() { 4 } else { 6 },
        tos: batch.tos,
        ttl: batch.ttl,
        src: octets(batch.src.ip()),
        dst: octets(batch.dst.ip()),
        scope_id: scope_id.to_ne_bytes(),
        src_port: batch.src.port().to_ne_bytes(),
        first_index: batch.first_index.to_ne_bytes(),
        // A message is shorter than 64 KiB, so a segment is.
        segment: (batch.segment as u16).to_ne_bytes(),
        reserved: [0; 2],
    }
}

/// Parses a message; `None` when it is not a forwarded one.
pub(super) fn parse(message: &[u8]) -> Option<GroBatch<'_>> {
    let (header, bytes) = Header::read_from_prefix(message).ok()?;
    if header.magic != MAGIC || header.version != VERSION || bytes.is_empty() {
        return None;
    }
    let scope_id = u32::from_ne_bytes(header.scope_id);
    let src_port = u16::from_ne_bytes(header.src_port);
    let (src_ip, dst_ip) = (Ipv6Addr::from(header.src), Ipv6Addr::from(header.dst));
    let (src, dst): (SocketAddr, IpAddr) = match header.family {
        4 => {
            let v4 = |ip: Ipv6Addr| -> Option<Ipv4Addr> { ip.to_ipv4_mapped() };
            ((v4(src_ip)?, src_port).into(), v4(dst_ip)?.into())
        }
        6 => {
            let scope = if src_ip.is_unicast_link_local() {
                scope_id
            } else {
                0
            };
            let src = SocketAddrV6::new(src_ip, src_port, 0, scope);
            (src.into(), dst_ip.into())
        }
        _ => return None,
    };
    Some(GroBatch {
        src,
        dst: LocalAddress::new(dst, scope_id),
        tos: header.tos,
        ttl: header.ttl,
        first_index: u16::from_ne_bytes(header.first_index),
        segment: usize::from(u16::from_ne_bytes(header.segment)),
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forwarded_batch_equals_the_received_one() {
        for (src, dst) in [
            (
                "192.0.2.1:50000",
                LocalAddress::new([192, 0, 2, 2].into(), 4),
            ),
            (
                "[fe80::1%4]:50000",
                LocalAddress::new("fe80::2".parse().unwrap(), 4),
            ),
            (
                "[2001:db8::1]:50000",
                LocalAddress::new("2001:db8::2".parse().unwrap(), 4),
            ),
        ] {
            let batch = GroBatch {
                src: src.parse().unwrap(),
                dst,
                tos: 2,
                ttl: 63,
                first_index: 5,
                segment: 4112,
                bytes: &[7; 9000],
            };
            let mut message = header(&batch).as_bytes().to_vec();
            message.extend_from_slice(batch.bytes);
            let back = parse(&message).unwrap();
            assert_eq!((back.src, back.dst), (batch.src, batch.dst));
            assert_eq!((back.tos, back.ttl), (2, 63));
            assert_eq!((back.first_index, back.segment), (5, 4112));
            assert_eq!(back.bytes, batch.bytes);
        }
    }

    #[test]
    fn full_queue_delays_datagrams_and_keeps_their_order() {
        const MESSAGES: u16 = 2000;
        let (from, to) = (Slot::claim().unwrap(), Slot::claim().unwrap());
        let forwarder = Forwarder::default();
        let counters = NetCounters::default();
        for n in 0..MESSAGES {
            let bytes = n.to_be_bytes();
            let batch = GroBatch {
                src: "192.0.2.1:50000".parse().unwrap(),
                dst: LocalAddress::new([192, 0, 2, 2].into(), 0),
                tos: 0,
                ttl: 64,
                first_index: 0,
                segment: 0,
                bytes: &bytes,
            };
            forwarder.forward(&from, &counters, to.number(), &batch, Time(0));
        }
        let mut batch = crate::RecvBatch::new();
        let mut got = Vec::new();
        assert_ne!(
            forwarder.next_deadline(),
            Time::NEVER,
            "the queue never filled"
        );
        while got.len() < usize::from(MESSAGES) {
            let take = |_: &_, _: &_, message: &[u8], _: &mut _| {
                // Processes also receive the queries of others for their counters.
                let bytes = parse(message).map(|batch| batch.bytes.to_vec());
                got.extend(bytes.filter(|bytes| bytes.len() == 2));
            };
            to.links().recv(&mut batch, take).unwrap();
            let due = forwarder.next_deadline();
            if due != Time::NEVER {
                forwarder.retry(&from, &counters, due);
            }
        }
        let expected: Vec<_> = (0..MESSAGES).map(|n| n.to_be_bytes().to_vec()).collect();
        assert_eq!(got, expected);
        assert_eq!(forwarder.next_deadline(), Time::NEVER);
        assert_eq!(counters.forwarded_out.get(), u64::from(MESSAGES));
        assert_eq!(counters.forward_overruns.get(), 0);
    }

    proptest! {
        #[test]
        fn any_message_is_parsed_or_rejected(
            mut message in proptest::collection::vec(any::<u8>(), 0..200),
            ours: bool,
        ) {
            if ours && message.len() > 6 {
                message[..4].copy_from_slice(&MAGIC);
                message[4] = VERSION;
                message[5] = 4 + (message[5] & 2);
            }
            if let Some(batch) = parse(&message) {
                let bytes: usize = batch.datagrams().map(|d| d.bytes.len()).sum();
                prop_assert_eq!(bytes, batch.bytes.len());
            }
        }
    }
}
