//! The local addresses that are open.

use super::{Engine, Network, Receiver};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, RwLockReadGuard};
use std::time::Duration;
use urxe_net::{Endpoint, LocalAddress, OpenError};
use urxe_proto::ids::Gid;
use urxe_proto::time::Time;

/// A local address with its sockets and what it is received with.
pub struct Local {
    pub(super) endpoint: Endpoint,
    pub(super) receiver: Mutex<Receiver>,
    /// The address of the engine that it belongs to, to compare.
    engine: usize,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Local")
            .field(&self.endpoint.address())
            .finish()
    }
}

impl Local {
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sending failed in a way that says that a descriptor is closed. Nothing happens where the address belongs to
    /// another engine than the one in use: that of a parent, or one whose loss is known.
    pub(crate) fn lost_descriptors(&self) {
        let engine = super::get();
        if self.engine == ptr::from_ref(engine).addr() {
            engine.lost_descriptors();
        }
    }
}

impl Network {
    pub(super) fn locals(&self) -> RwLockReadGuard<'_, Vec<Arc<Local>>> {
        self.locals.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// The sockets of an address; opened by the first who asks.
    pub(crate) fn local(&self, address: LocalAddress) -> Result<Arc<Local>, OpenError> {
        let network = self.network()?;
        let mut locals = network
            .locals
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(local) = locals
            .iter()
            .find(|local| local.endpoint.address() == address)
        {
            return Ok(Arc::clone(local));
        }
        let endpoint = network.shared.open(address)?;
        tracing::debug!(%address, "opened port 4791");
        let local = Arc::new(Local {
            endpoint,
            receiver: Mutex::default(),
            engine: ptr::from_ref(self).addr(),
        });
        network
            .progress
            .watch(local.endpoint.fd(), local.endpoint.service_fd())
            .map_err(|source| OpenError::System {
                what: "watching a socket",
                source,
            })?;
        locals.push(Arc::clone(&local));
        // Something may have come already.
        self.deadline_moved(local.endpoint.next_deadline());
        Ok(local)
    }

    /// The sockets of an address that are open.
    pub(crate) fn local_of(&self, gid: Gid) -> Option<Arc<Local>> {
        let ip = gid.to_ip();
        let locals = self.network.get()?.locals();
        let found = locals
            .iter()
            .find(|local| local.endpoint.address().ip() == ip);
        found.map(Arc::clone)
    }

    /// Until when `URXE_FAULTS` holds packets of an address back.
    pub(crate) fn held_until(&self, gid: Gid) -> Time {
        self.local_of(gid)
            .map_or(Time::NEVER, |local| local.endpoint.held_until())
    }

    /// Opens one of these addresses, if none is open yet, so that a port that is taken is known
    /// before a connection is made.
    ///
    /// # Errors
    /// That of the first, when none can be opened.
    pub(crate) fn open_any(
        &self,
        addresses: impl Iterator<Item = LocalAddress>,
    ) -> Result<(), OpenError> {
        let mut first = None;
        for address in addresses {
            match self.local(address) {
                Ok(_) => return Ok(()),
                Err(error) => {
                    tracing::warn!("{error}");
                    first.get_or_insert(error);
                }
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Opens all of these addresses: whoever takes datagrams takes them at each.
    ///
    /// # Errors
    /// That of the first, when none can be opened.
    pub(crate) fn open_all(
        &self,
        addresses: impl Iterator<Item = LocalAddress>,
    ) -> Result<(), OpenError> {
        let opened: Vec<_> = addresses.map(|address| self.local(address)).collect();
        let is_any_open = opened.iter().any(Result::is_ok);
        for error in opened.into_iter().filter_map(Result::err) {
            if !is_any_open {
                return Err(error);
            }
            tracing::warn!("{error}");
        }
        Ok(())
    }

    /// Packets that `URXE_FAULTS` delays count as sent, and are to arrive though their queue pair is
    /// destroyed: waits until they are out.
    pub(crate) fn wait_for_delayed(&self) {
        /// No fault delays for longer than a person would wait.
        const PATIENCE: Duration = Duration::from_secs(1);
        let Some(network) = self.network.get() else {
            return;
        };
        let start = urxe_net::now();
        loop {
            let now = urxe_net::now();
            let held = |local: &Arc<Local>| local.endpoint.held_until();
            let at = network
                .locals()
                .iter()
                .map(held)
                .fold(Time::NEVER, Time::min);
            if at == Time::NEVER || now.since(start) > PATIENCE {
                return;
            }
            self.deadline_moved(at);
            std::thread::sleep(at.since(now).max(Duration::from_millis(1)));
        }
    }
}
