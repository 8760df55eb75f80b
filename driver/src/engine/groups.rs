//! Multicast groups: one socket for each group on each interface that queue pairs of this process
//! are attached to.

use super::{Driver, Engine, Receiver};
use crate::qp::Qp;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use urxe_net::{Group, LocalAddress, OpenError};

/// A group that is joined, with its socket and receive buffers.
pub(super) struct Joined {
    pub(super) group: Group,
    pub(super) receiver: Mutex<Receiver>,
}

/// All joined groups. A thread that changes them also changes the attached queue pairs, and locks
/// this list first.
#[derive(Default)]
pub(super) struct Groups {
    list: RwLock<Vec<Arc<Joined>>>,
    /// Whether the list has entries; read without a lock.
    any: AtomicBool,
}

impl Groups {
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub(super) fn list(&self) -> RwLockReadGuard<'_, Vec<Arc<Joined>>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Attaches a queue pair to a group on an interface. The first queue pair joins the group
    /// through the local address `from`.
    pub(crate) fn attach(
        &self,
        qp: &Arc<Qp>,
        from: LocalAddress,
        (ip, interface): (IpAddr, u32),
    ) -> Result<(), OpenError> {
        let local = self.local(from)?;
        let network = self.network()?;
        let group = LocalAddress::group(ip, interface);
        let mut list = network
            .groups
            .list
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if !list.iter().any(|joined| joined.group.address() == group) {
            let joined = Joined {
                group: local.endpoint.join(ip, interface)?,
                receiver: Mutex::default(),
            };
            network
                .progress
                .watch_packets(joined.group.fd())
                .map_err(|source| OpenError::System {
                    what: "watching a socket",
                    source,
                })?;
            tracing::debug!(%group, "joined a multicast group");
            list.push(Arc::new(joined));
            network.groups.any.store(true, Ordering::Release);
        }
        let mut qps = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        qps.attach(group, qp);
        Ok(())
    }

    /// Detaches a queue pair. When this returns, it receives nothing more from the group, and the
    /// group is left if no queue pair is attached. False when it was not attached.
    pub(crate) fn detach(&self, qp: &Qp, (ip, interface): (IpAddr, u32)) -> bool {
        let Some(network) = self.network.get() else {
            return false;
        };
        let group = LocalAddress::group(ip, interface);
        let mut list = network
            .groups
            .list
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let mut qps = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        let found = qps.detach(group, qp);
        if qps.members(group).is_empty() {
            list.retain(|joined| joined.group.address() != group);
            network
                .groups
                .any
                .store(!list.is_empty(), Ordering::Release);
        }
        found
    }

    /// Receives one batch from a group, unless another thread is receiving from it. True when there
    /// were packets.
    pub(super) fn receive_group(&self, joined: &Joined) -> bool {
        let mut receiver = match joined.receiver.try_lock() {
            Ok(receiver) => receiver,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return false,
        };
        self.handle_batch(&mut receiver, Driver::Other, |batch, f| {
            match joined.group.recv(batch, f) {
                Ok(count) => count > 0,
                Err(error) => {
                    tracing::warn!(%error, group = %joined.group.address(), "receiving failed");
                    false
                }
            }
        })
    }
}
