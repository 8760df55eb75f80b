//! Address handles: the destinations of datagrams (11.2.2).

use crate::device::Device;
use crate::pd::Pd;
use crate::ports::Ports;
use crate::ports::route::{Route, RouteError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use urxe_proto::ids::{Gid, QKey, Qpn};
use urxe_proto::qp::AddressVector;

/// An address handle. Queued datagrams hold a reference to theirs, so an application may destroy it
/// as soon as it has posted them.
#[derive(Debug)]
pub struct AddressHandle {
    number: u64,
    pd: Arc<Pd>,
    av: AddressVector,
    route: Route,
}

impl AddressHandle {
    /// Creates an address handle. Opens the sockets of the local address that it names.
    pub(crate) fn create(
        ports: &Ports,
        device: &Device,
        pd: &Arc<Pd>,
        av: AddressVector,
    ) -> Result<Arc<Self>, RouteError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(Arc::new(AddressHandle {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            pd: Arc::clone(pd),
            av,
            route: Route::resolve(ports, device, &av, flow_key(&av.dgid), None)?,
        }))
    }

    /// The handle's number, unique in the process and never reused.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The address vector from which the handle was created.
    pub fn address(&self) -> &AddressVector {
        &self.av
    }

    pub(crate) fn route(&self) -> &Route {
        &self.route
    }
}

/// The destination of one datagram (11.4.1.1).
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// The address handle.
    pub handle: &'a Arc<AddressHandle>,
    /// The destination queue pair; [`Qpn::MULTICAST`] for a multicast group.
    pub qpn: Qpn,
    /// The Q_Key of the destination queue pair. If bit 31 is set, the Q_Key of the sending queue
    /// pair is sent instead (10.2.5).
    pub qkey: QKey,
}

/// Returns the flow key of a peer. Datagrams to one peer share a UDP source port, so they stay in
/// order.
fn flow_key(dgid: &Gid) -> u32 {
    let words = dgid.0.chunks_exact(4);
    words.fold(0, |key, word| {
        key.rotate_left(5) ^ u32::from_be_bytes([word[0], word[1], word[2], word[3]])
    })
}
