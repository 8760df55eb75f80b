//! Address handles: where datagrams go (11.2.2).

use crate::device::Device;
use crate::pd::Pd;
use crate::route::{Route, RouteError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use urxe_proto::ids::{Gid, QKey, Qpn};
use urxe_proto::qp::AddressVector;

/// An address handle. Datagrams that wait to be sent keep theirs alive, so a program may destroy it
/// as soon as it has posted them.
#[derive(Debug)]
pub struct AddressHandle {
    number: u64,
    pd: Arc<Pd>,
    av: AddressVector,
    route: Route,
}

impl AddressHandle {
    pub(crate) fn create(
        device: &Device,
        pd: &Arc<Pd>,
        av: AddressVector,
    ) -> Result<Arc<Self>, RouteError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(Arc::new(AddressHandle {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            pd: Arc::clone(pd),
            av,
            route: Route::new(device, &av, flow_key(&av.dgid))?,
        }))
    }

    /// Its number, which no other handle of the process has or will have.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// What it was made from.
    pub fn address(&self) -> &AddressVector {
        &self.av
    }

    pub(crate) fn route(&self) -> &Route {
        &self.route
    }
}

/// Where one datagram goes (11.4.1.1).
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// Along which way.
    pub handle: &'a Arc<AddressHandle>,
    /// The queue pair there; [`Qpn::MULTICAST`] for a group's.
    pub qpn: Qpn,
    /// The key that it must have. With bit 31 set, the sending queue pair's own goes out in its
    /// place (10.2.5).
    pub qkey: QKey,
}

/// Datagrams to one peer make one flow, so that they stay in order.
fn flow_key(dgid: &Gid) -> u32 {
    let words = dgid.0.chunks_exact(4);
    words.fold(0, |key, word| {
        key.rotate_left(5) ^ u32::from_be_bytes([word[0], word[1], word[2], word[3]])
    })
}
