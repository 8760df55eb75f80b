//! Listeners and their backlogs.

use super::wire::ServiceId;
use crate::ids::Gid;
use std::collections::HashMap;
use std::net::IpAddr;

/// The local addresses of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ListenAt {
    /// One address.
    One(Gid),
    /// All IPv4 addresses without a listener of their own for the service.
    AllV4,
    /// All IPv6 addresses without a listener of their own for the service.
    AllV6,
}

impl ListenAt {
    /// Returns the wildcard of the IP version of `address`.
    pub fn wildcard_for(address: Gid) -> Self {
        match address.to_ip() {
            IpAddr::V4(_) => ListenAt::AllV4,
            IpAddr::V6(_) => ListenAt::AllV6,
        }
    }
}

/// The identifier of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ListenerId(u64);

/// Why a listener could not be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address has a listener for the service.
    #[error(
        "{0:?} already has a listener at this address: close it, or use another port or address"
    )]
    InUse(ServiceId),
}

#[derive(Debug)]
struct Listener {
    id: ListenerId,
    at: Vec<ListenAt>,
    backlog: usize,
    /// Unanswered requests that occupy the backlog.
    waiting: usize,
}

/// All listeners, by service.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    of: HashMap<ServiceId, Vec<Listener>>,
    services: HashMap<ListenerId, ServiceId>,
    next: u64,
}

impl Listeners {
    /// Adds a listener for `service`, whose backlog has room for `backlog` requests.
    pub fn add(
        &mut self,
        service: ServiceId,
        at: &[ListenAt],
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        let listeners = self.of.entry(service).or_default();
        let mut taken = listeners.iter().flat_map(|other| &other.at);
        if taken.any(|other| at.contains(other)) {
            return Err(ListenError::InUse(service));
        }
        let id = ListenerId(self.next);
        self.next += 1;
        listeners.push(Listener {
            id,
            at: at.to_vec(),
            backlog,
            waiting: 0,
        });
        self.services.insert(id, service);
        Ok(id)
    }

    /// Removes a listener.
    pub fn remove(&mut self, id: ListenerId) {
        let Some(service) = self.services.remove(&id) else {
            return;
        };
        if let Some(listeners) = self.of.get_mut(&service) {
            listeners.retain(|listener| listener.id != id);
            if listeners.is_empty() {
                self.of.remove(&service);
            }
        }
    }

    /// Returns the listener for `service` at `address`. A specific address takes precedence.
    pub fn find(&self, service: ServiceId, address: Gid) -> Option<ListenerId> {
        let listeners = self.of.get(&service)?;
        let at = |wanted| listeners.iter().find(move |l| l.at.contains(&wanted));
        at(ListenAt::One(address))
            .or_else(|| at(ListenAt::wildcard_for(address)))
            .map(|l| l.id)
    }

    /// Occupies an entry of the backlog. Returns false when the backlog is full.
    pub fn take(&mut self, id: ListenerId) -> bool {
        let Some(listener) = self.get(id) else {
            return false;
        };
        let free = listener.waiting < listener.backlog;
        listener.waiting += usize::from(free);
        free
    }

    /// Whether the backlog has room.
    pub fn has_room(&mut self, id: ListenerId) -> bool {
        self.get(id).is_some_and(|l| l.waiting < l.backlog)
    }

    /// Releases an entry of the backlog.
    pub fn release(&mut self, id: ListenerId) {
        if let Some(listener) = self.get(id) {
            listener.waiting -= 1;
        }
    }

    /// The number of occupied entries of all backlogs.
    pub fn waiting(&self) -> usize {
        self.of.values().flatten().map(|l| l.waiting).sum()
    }

    fn get(&mut self, id: ListenerId) -> Option<&mut Listener> {
        let service = self.services.get(&id)?;
        let listeners = self.of.get_mut(service)?;
        listeners.iter_mut().find(|listener| listener.id == id)
    }
}
