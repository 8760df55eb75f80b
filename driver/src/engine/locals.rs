//! The local addresses that this process has opened.

use super::progress::Progress;
use super::{Engine, Network, Receiver};
use crate::event_queue::lock;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Duration;
use urxe_net::{Endpoint, LocalAddress, OpenError};
use urxe_proto::ids::Gid;
use urxe_proto::time::Time;

/// A local address with its sockets and receive buffers.
pub struct Local {
    pub(super) endpoint: Endpoint,
    pub(super) receiver: Mutex<Receiver>,
    /// The address in memory of the engine that it belongs to, for comparison only.
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

    /// Reports a send error that says that a descriptor is closed. It is ignored if the address
    /// belongs to an engine that is not in use: that of a parent process, or one whose loss is
    /// known.
    pub(crate) fn lost_descriptors(&self) {
        let engine = super::get();
        if self.engine == ptr::from_ref(engine).addr() {
            engine.lost_descriptors();
        }
    }
}

/// The open addresses.
///
/// Opening an address takes up to 20 ms, and every poll reads the list. So `opening` is held while
/// an address is opened, which delays only other threads that open one. The list is locked for
/// writing only to add the result.
#[derive(Default)]
pub(super) struct Locals {
    list: RwLock<Vec<Arc<Local>>>,
    /// Is taken before all other locks.
    opening: Mutex<()>,
}

impl Locals {
    pub(super) fn list(&self) -> RwLockReadGuard<'_, Vec<Arc<Local>>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`Locals::list`], or `None` while another thread changes the list.
    pub(super) fn try_list(&self) -> Option<RwLockReadGuard<'_, Vec<Arc<Local>>>> {
        match self.list.try_read() {
            Ok(list) => Some(list),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn find(&self, address: LocalAddress) -> Option<Arc<Local>> {
        let list = self.list();
        let mut all = list.iter();
        let found = all.find(|local| local.endpoint.address() == address);
        found.map(Arc::clone)
    }

    /// Returns the local address that is open at `address`. If there is none, opens it with `open`,
    /// and has `progress` watch it. `engine` is the address in memory of its engine.
    fn find_or_open(
        &self,
        address: LocalAddress,
        progress: &Progress,
        engine: usize,
        open: impl FnOnce() -> Result<Endpoint, OpenError>,
    ) -> Result<Arc<Local>, OpenError> {
        if let Some(local) = self.find(address) {
            return Ok(local);
        }
        let _opening = lock(&self.opening);
        // Another thread may have opened it meanwhile.
        if let Some(local) = self.find(address) {
            return Ok(local);
        }
        let local = Arc::new(Local {
            endpoint: open()?,
            receiver: Mutex::default(),
            engine,
        });
        tracing::debug!(%address, "opened port 4791");
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        // With the list locked, so that the progress thread finds the address when it wakes.
        progress
            .watch(local.endpoint.fd(), local.endpoint.service_fd())
            .map_err(|source| OpenError::System {
                what: "watching a socket",
                source,
            })?;
        list.push(Arc::clone(&local));
        Ok(local)
    }
}

impl Network {
    pub(super) fn locals(&self) -> RwLockReadGuard<'_, Vec<Arc<Local>>> {
        self.locals.list()
    }
}

impl Engine {
    /// Returns the sockets of an address; the first call opens them.
    pub(crate) fn local(&self, address: LocalAddress) -> Result<Arc<Local>, OpenError> {
        let network = self.network()?;
        let open = || network.shared.open(address);
        let local = network.locals.find_or_open(
            address,
            &network.progress,
            ptr::from_ref(self).addr(),
            open,
        )?;
        // Packets may have arrived already.
        self.deadline_moved(local.endpoint.next_deadline());
        Ok(local)
    }

    /// Returns the sockets of an address if they are open.
    pub(crate) fn local_of(&self, gid: Gid) -> Option<Arc<Local>> {
        let ip = gid.to_ip();
        let locals = self.network.get()?.locals();
        let found = locals
            .iter()
            .find(|local| local.endpoint.address().ip() == ip);
        found.map(Arc::clone)
    }

    /// Returns the time until which `URXE_FAULTS` delays packets of an address, or [`Time::NEVER`].
    pub(crate) fn held_until(&self, gid: Gid) -> Time {
        self.local_of(gid)
            .map_or(Time::NEVER, |local| local.endpoint.delayed_until())
    }

    /// Opens one of these addresses, if none is open yet, so that a port in use is reported before
    /// a connection is made.
    ///
    /// # Errors
    /// The error of the first address, when none can be opened.
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

    /// Opens all of these addresses, for receivers of datagrams, which receive at each of them.
    ///
    /// # Errors
    /// The error of the first address, when none can be opened.
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

    /// Waits, for 1 s at most, until packets that `URXE_FAULTS` delays are sent. They count as
    /// sent, and must arrive although their queue pair is destroyed.
    pub(crate) fn wait_for_delayed(&self) {
        /// The longest time to wait, for a fault that delays packets by more.
        const PATIENCE: Duration = Duration::from_secs(1);
        let Some(network) = self.network.get() else {
            return;
        };
        let start = urxe_net::now();
        loop {
            let now = urxe_net::now();
            let held = |local: &Arc<Local>| local.endpoint.delayed_until();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use urxe_net::{Options, Shared};

    #[test]
    fn the_open_addresses_can_be_read_while_another_is_opened() {
        let shared = Shared::new(Options::default()).unwrap();
        let progress = Progress::new(shared.fd()).unwrap();
        let locals = Locals::default();
        let address = |last| LocalAddress::new([127, 0, 14, last].into(), 1);
        let (first, second) = (address(1), address(2));
        let open = |address| locals.find_or_open(address, &progress, 0, || shared.open(address));
        open(first).unwrap();
        let (has_begun, begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        std::thread::scope(|scope| {
            let (locals, progress, shared) = (&locals, &progress, &shared);
            let opener = scope.spawn(move || {
                locals.find_or_open(second, progress, 0, || {
                    has_begun.send(()).unwrap();
                    may_go_on.recv().unwrap();
                    shared.open(second)
                })
            });
            begun.recv().unwrap();
            let open_now = locals.try_list().map(|list| list.len());
            go_on.send(()).unwrap();
            let opened = opener.join().unwrap().unwrap();
            assert_eq!(open_now, Some(1));
            assert!(Arc::ptr_eq(&opened, &open(second).unwrap()));
        });
        assert_eq!(locals.list().len(), 2);
    }
}
