//! Sending of MADs.

use crate::ports::{BatchPool, LocalPort, Ports, Waker};
use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use urxe_net::{LocalAddress, Path, PathOptions, SendBatch};
use urxe_proto::cm::wire::mad::GSI_QKEY;
use urxe_proto::cm::{Address, Transmit};
use urxe_proto::host::Transmit as _;
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::psn::Psn;
use urxe_proto::wire::{Deth, Header, Opcode, Packet};

/// The maximum number of cached paths.
const MAX_PATHS: usize = 1024;

/// The flow key of all MADs, so that all MADs of a process have one UDP source port.
const FLOW_KEY: u32 = 1;

/// Sends MADs from queue pair 1. A MAD that cannot be sent is lost, and retransmitted like any lost
/// one.
#[derive(Debug)]
pub(super) struct Sender {
    ports: Arc<Ports>,
    batches: Arc<BatchPool>,
    waker: Arc<Waker>,
    psn: AtomicU32,
    paths: Mutex<HashMap<Flow, Path>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Flow {
    local: Gid,
    remote: Gid,
    traffic_class: u8,
}

impl Sender {
    pub(super) fn new(ports: Arc<Ports>, batches: Arc<BatchPool>, waker: Arc<Waker>) -> Self {
        Sender {
            ports,
            batches,
            waker,
            psn: AtomicU32::new(0),
            paths: Mutex::default(),
        }
    }

    pub(super) fn send(&self, transmits: &[Transmit]) {
        if transmits.is_empty() {
            return;
        }
        let mut batch = self.batches.take();
        for transmit in transmits {
            self.stage(transmit, &mut batch);
            let report = batch.flush_blocking();
            if let Some(error) = &report.error {
                tracing::debug!(%error, address = ?transmit.address, "a MAD could not be sent");
            }
            batch.discard();
            if let Some(local) = self.ports.find_gid(transmit.address.local) {
                self.waker.deadline_moved(local.endpoint().delayed_until());
            }
        }
        self.batches.put(batch);
    }

    fn stage(&self, transmit: &Transmit, batch: &mut SendBatch) {
        let Some(path) = self.path(&transmit.address) else {
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

    fn path(&self, address: &Address) -> Option<Path> {
        let flow = Flow {
            local: address.local,
            remote: address.remote,
            traffic_class: address.traffic_class,
        };
        if let Some(path) = lock(&self.paths).get(&flow) {
            return Some(path.clone());
        }
        let local = self.local(address.local)?;
        let options = PathOptions {
            flow_key: FLOW_KEY,
            // The low two bits are the ECN field, which belongs to the network (A17.9.3).
            traffic_class: address.traffic_class & !3,
            ..PathOptions::default()
        };
        let path = match local.endpoint().path(address.remote.to_ip(), options) {
            Ok(path) => path,
            Err(error) => {
                tracing::debug!(%error, ?address, "a MAD has no route");
                return None;
            }
        };
        let mut paths = lock(&self.paths);
        if paths.len() >= MAX_PATHS {
            paths.clear();
        }
        paths.insert(flow, path.clone());
        Some(path)
    }

    /// Returns the sockets of an address of this host. Opens them if necessary: this process may
    /// answer for an ended one whose slot it has taken over.
    fn local(&self, gid: Gid) -> Option<Arc<LocalPort>> {
        if let Some(local) = self.ports.find_gid(gid) {
            return Some(local);
        }
        self.ports
            .open(LocalAddress::new(gid.to_ip(), 0))
            .inspect_err(|error| tracing::debug!(%error, "a MAD has no route"))
            .ok()
    }
}
