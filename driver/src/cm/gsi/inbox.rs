//! What has come to queue pair 1 and was not looked at yet.

use crate::event_queue::lock;
use crate::net::{Datagram, Kept, Shared};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_proto::cm::Address;
use urxe_proto::cm::wire::mad::GSI_QKEY;
use urxe_proto::ids::{Gid, PKey, Qpn};
use urxe_proto::wire::{Opcode, Packet};

/// How many wait at most. Whoever sent more repeats them.
const ROOM: usize = 4096;

/// A packet with a MAD, as it came.
#[derive(Debug)]
pub(super) struct Arrived {
    datagram: Kept,
    pub(super) passed_on: bool,
    src_qp: Qpn,
    mad: Range<usize>,
}

impl Arrived {
    /// The MAD, if it is one.
    pub(super) fn mad(&self) -> &[u8] {
        &self.datagram.bytes[self.mad.clone()]
    }

    /// Where it came from, and to which address of ours.
    pub(super) fn address(&self) -> Address {
        let datagram = self.datagram.datagram();
        Address {
            local: Gid::from_ip(datagram.dst.ip()),
            remote: Gid::from_ip(datagram.src.ip()),
            remote_qpn: self.src_qp,
            traffic_class: datagram.tos,
        }
    }

    /// Hands it to the process in another slot. False when there is none.
    pub(super) fn hand_on(&self, shared: &Shared, slot: u8) -> bool {
        shared.hand_on(slot, &self.datagram.datagram())
    }
}

/// Packets, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    waiting: Mutex<Vec<Arrived>>,
    /// Whether there are any, for those who just want to know.
    some: AtomicBool,
}

impl Inbox {
    /// Puts a packet aside, if it may enter queue pair 1 (10.2.5) and there is room.
    pub(super) fn put(&self, datagram: &Datagram<'_>, packet: &Packet<'_>) {
        let header = &packet.header;
        let enters = header.bth.opcode == Opcode::UdSendOnly
            && PKey::DEFAULT.matches(header.bth.pkey)
            && header.deth.is_some_and(|deth| deth.qkey == GSI_QKEY);
        let Some(deth) = header.deth.filter(|_| enters) else {
            tracing::debug!(src = %datagram.src, "dropped a packet that may not enter queue pair 1");
            return;
        };
        let start = header.len();
        let mut waiting = lock(&self.waiting);
        if waiting.len() >= ROOM {
            tracing::debug!(src = %datagram.src, "dropped a MAD: too many wait");
            return;
        }
        waiting.push(Arrived {
            datagram: datagram.into(),
            passed_on: datagram.passed_on,
            src_qp: deth.src_qp,
            mad: start..start + packet.payload.len(),
        });
        self.some.store(true, Ordering::Release);
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.some.load(Ordering::Acquire)
    }

    /// Takes all of them.
    pub(super) fn take(&self) -> Vec<Arrived> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut waiting = lock(&self.waiting);
        self.some.store(false, Ordering::Release);
        std::mem::take(&mut *waiting)
    }
}
