//! Who listens, where, and how many requests may wait for each.

use super::wire::ServiceId;
use crate::ids::Gid;
use std::collections::HashMap;
use std::net::IpAddr;

/// Which of our addresses somebody listens at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ListenAt {
    /// One of them.
    One(Gid),
    /// All of IPv4 at which nobody else listens for the same service.
    AllV4,
    /// All of IPv6 at which nobody else listens for the same service.
    AllV6,
}

impl ListenAt {
    /// All addresses of the IP version of one.
    pub fn all_like(address: Gid) -> Self {
        match address.to_ip() {
            IpAddr::V4(_) => ListenAt::AllV4,
            IpAddr::V6(_) => ListenAt::AllV6,
        }
    }
}

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ListenerId(u64);

/// Why nobody can listen there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody does already.
    #[error("{0:?} has a listener at this address already: close it, or listen elsewhere")]
    InUse(ServiceId),
}

#[derive(Debug)]
struct Listener {
    id: ListenerId,
    at: Vec<ListenAt>,
    backlog: usize,
    /// Requests that the program has not answered.
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
    /// A listener for `service`. Beyond `backlog`, requests that wait for an answer are dropped.
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

    /// Takes a listener away.
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

    /// Who listens for `service` at `address`.
    pub fn find(&self, service: ServiceId, address: Gid) -> Option<ListenerId> {
        let listeners = self.of.get(&service)?;
        let at = |wanted| listeners.iter().find(move |l| l.at.contains(&wanted));
        at(ListenAt::One(address))
            .or_else(|| at(ListenAt::all_like(address)))
            .map(|l| l.id)
    }

    /// One more request waits, if it may.
    pub fn take(&mut self, id: ListenerId) -> bool {
        let Some(listener) = self.get(id) else {
            return false;
        };
        let free = listener.waiting < listener.backlog;
        listener.waiting += usize::from(free);
        free
    }

    /// A request does not wait any more.
    pub fn release(&mut self, id: ListenerId) {
        if let Some(listener) = self.get(id) {
            listener.waiting -= 1;
        }
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.of.values().flatten().map(|l| l.waiting).sum()
    }

    fn get(&mut self, id: ListenerId) -> Option<&mut Listener> {
        let service = self.services.get(&id)?;
        let listeners = self.of.get_mut(service)?;
        listeners.iter_mut().find(|listener| listener.id == id)
    }
}
