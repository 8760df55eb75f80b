//! Sending of MADs.

use crate::engine::{self, Local};
use crate::event_queue::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use urxe_net::{LocalAddress, Path, PathOptions, SendBatch};
use urxe_proto::cm::wire::mad::GSI_QKEY;
use urxe_proto::cm::{Address, Transmit};
use urxe_proto::host::Transmit as _;
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::psn::Psn;
use urxe_proto::time::Time;
use urxe_proto::wire::{Deth, Header, Opcode, Packet};

/// The maximum number of cached paths.
const WAYS: usize = 1024;

/// The flow key of all MADs, so that all MADs of a process have one UDP source port.
const FLOW_KEY: u32 = 1;

/// Sends MADs from queue pair 1. A MAD that cannot be sent is lost, and retransmitted like any lost
/// one.
#[derive(Debug, Default)]
pub(super) struct Sender {
    psn: AtomicU32,
    ways: Mutex<HashMap<Way, Path>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Way {
    local: Gid,
    remote: Gid,
    traffic_class: u8,
}

impl Sender {
    pub(super) fn send(&self, transmits: &[Transmit]) {
        if transmits.is_empty() {
            return;
        }
        let engine = engine::get();
        let mut batch = engine.take_batch();
        for transmit in transmits {
            self.stage(transmit, &mut batch);
            let report = batch.flush_blocking();
            if let Some(error) = &report.error {
                tracing::debug!(%error, address = ?transmit.address, "a MAD could not be sent");
            }
            batch.discard();
            let held_until = engine.held_until(transmit.address.local);
            if held_until != Time::NEVER {
                engine.deadline_moved(held_until);
            }
        }
        engine.return_batch(batch);
    }

    fn stage(&self, transmit: &Transmit, batch: &mut SendBatch) {
        let Some(path) = self.way(&transmit.address) else {
            return;
        };
        let psn = Psn::new(self.psn.fetch_add(1, Ordering::Relaxed));
        let packet = Packet {
            header: Header {
                deth: Some(Deth {
                    qkey: GSI_QKEY,
                    src_qp: Qpn::GSI,
                }),
                ..Header::new(Opcode::UdSendOnly, transmit.address.remote_qpn, psn)
            },
            payload: &transmit.mad[..],
        };
        batch.begin(&path);
        if let Some(room) = batch.stage(packet.len()) {
            packet.emit(room);
            batch.commit();
        }
    }

    fn way(&self, address: &Address) -> Option<Path> {
        let way = Way {
            local: address.local,
            remote: address.remote,
            traffic_class: address.traffic_class,
        };
        if let Some(path) = lock(&self.ways).get(&way) {
            return Some(path.clone());
        }
        let local = local(address.local)?;
        let options = PathOptions {
            flow_key: FLOW_KEY,
            // The low two bits are the ECN field, which belongs to the network (A17.9.3).
            traffic_class: address.traffic_class & !3,
            ..PathOptions::default()
        };
        let path = match local.endpoint().path(address.remote.to_ip(), options) {
            Ok(path) => path,
            Err(error) => {
                tracing::debug!(%error, ?address, "there is no way for a MAD");
                return None;
            }
        };
        let mut ways = lock(&self.ways);
        if ways.len() >= WAYS {
            ways.clear();
        }
        ways.insert(way, path.clone());
        Some(path)
    }
}

/// Returns the sockets of an address of this host. Opens them if necessary: this process may answer
/// for an ended one whose slot it has taken over.
fn local(gid: Gid) -> Option<Arc<Local>> {
    let engine = engine::get();
    if let Some(local) = engine.local_of(gid) {
        return Some(local);
    }
    let address = LocalAddress::new(gid.to_ip(), 0);
    engine
        .local(address)
        .inspect_err(|error| tracing::debug!(%error, "there is no way for a MAD"))
        .ok()
}
