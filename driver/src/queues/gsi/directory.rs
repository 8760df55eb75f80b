//! The directory of listeners: which process listens for a service.
//!
//! A listener claims two names (`net::names`) for each of its addresses. The first is exclusive:
//! there is one listener for an address. The second ends in the slot of the listener's process.
//!
//! Any user can take a free name, so names are hints only. A request is passed to every slot that
//! has a name and belongs to this user (`Shared::forward`); a process that does not listen drops
//! it. Names that another user has taken for slots of this user's processes therefore have no
//! effect. Names do not contain the user ID, which may differ between user namespaces. Ports are
//! unique among all users in the same way (`port_space`).

use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::io;
use std::time::Duration;
use urxe_net::SLOTS;
use urxe_net::names::{Lookup, Name};
use urxe_proto::cm::ListenAt;
use urxe_proto::cm::wire::ServiceId;
use urxe_proto::ids::Gid;
use urxe_proto::time::Time;

/// The maximum number of cached lookups.
const MAX_CACHED_LOOKUPS: usize = 1024;

/// The validity of a cached lookup. A lookup costs a system call for each slot.
const LOOKUP_VALIDITY: Duration = Duration::from_millis(100);

/// The names of a listener; dropping them removes the listener from the directory.
#[derive(Debug)]
pub(super) struct Entry {
    _exists: Name,
    _slot: Name,
}

/// The result of a lookup.
#[derive(Clone, Debug)]
struct Found {
    at: Time,
    slots: Vec<u8>,
}

/// The listeners of this host.
#[derive(Debug)]
pub(super) struct Directory {
    slot: u8,
    found: Mutex<HashMap<(ServiceId, ListenAt), Found>>,
}

impl Directory {
    /// Creates the directory for the process in `slot`.
    pub(super) fn new(slot: u8) -> Self {
        Directory {
            slot,
            found: Mutex::default(),
        }
    }

    /// Adds a listener for the process in this slot; returns `None` if one exists.
    pub(super) fn enter(&self, service: ServiceId, at: ListenAt) -> io::Result<Option<Entry>> {
        let Some(exists) = Name::take(&name(service, at))? else {
            return Ok(None);
        };
        let slot = Name::take(&name_in(service, at, self.slot))?;
        Ok(slot.map(|slot| Entry {
            _exists: exists,
            _slot: slot,
        }))
    }

    /// Returns the slots, except that of this process, whose names state a listener for a service
    /// at an address of this host.
    pub(super) fn find(&self, service: ServiceId, address: Gid, now: Time) -> Vec<u8> {
        let search = || -> io::Result<Vec<u8>> {
            let lookup = Lookup::new()?;
            let mut slots = Vec::new();
            for at in [ListenAt::One(address), ListenAt::wildcard_for(address)] {
                if lookup.is_taken(&name(service, at))? {
                    slots.extend(self.slots_of(&lookup, service, at, now)?);
                }
            }
            slots.retain(|slot| *slot != self.slot);
            slots.sort_unstable();
            slots.dedup();
            Ok(slots)
        };
        search().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot search for a listener");
            Vec::new()
        })
    }

    /// Returns the slots whose names state a listener for exactly this address.
    fn slots_of(
        &self,
        lookup: &Lookup,
        service: ServiceId,
        at: ListenAt,
        now: Time,
    ) -> io::Result<Vec<u8>> {
        let mut slots = Vec::new();
        if let Some(known) = lock(&self.found).get(&(service, at)).cloned()
            && now.since(known.at) < LOOKUP_VALIDITY
        {
            for slot in known.slots {
                if lookup.is_taken(&name_in(service, at, slot))? {
                    slots.push(slot);
                }
            }
        }
        if slots.is_empty() {
            for slot in 0..SLOTS {
                if lookup.is_taken(&name_in(service, at, slot))? {
                    slots.push(slot);
                }
            }
            let mut found = lock(&self.found);
            if found.len() >= MAX_CACHED_LOOKUPS {
                found.clear();
            }
            let slots = slots.clone();
            found.insert((service, at), Found { at: now, slots });
        }
        Ok(slots)
    }
}

fn name(service: ServiceId, at: ListenAt) -> String {
    let at = match at {
        ListenAt::One(gid) => gid.to_ip().to_string(),
        ListenAt::AllV4 => "all-v4".to_owned(),
        ListenAt::AllV6 => "all-v6".to_owned(),
    };
    format!("cm/listen/{:x}/{at}", service.0)
}

fn name_in(service: ServiceId, at: ListenAt, slot: u8) -> String {
    format!("{}/{slot}", name(service, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> ServiceId {
        ServiceId(urxe_net::random::any())
    }

    #[test]
    fn a_listener_is_found_by_other_processes_until_it_is_gone() {
        let (mine, other) = (Directory::new(7), Directory::new(200));
        let (service, address) = (service(), Gid::from_ip([127, 0, 0, 1].into()));
        let at = Time(0);
        assert!(other.find(service, address, at).is_empty());
        let entry = mine.enter(service, ListenAt::AllV4).unwrap().unwrap();
        assert_eq!(other.find(service, address, at), [7]);
        assert!(mine.find(service, address, at).is_empty());
        assert!(other.enter(service, ListenAt::AllV4).unwrap().is_none());
        drop(entry);
        assert!(other.find(service, address, at).is_empty());
    }

    #[test]
    fn a_squatted_name_does_not_hide_a_listener() {
        let (mine, other) = (Directory::new(7), Directory::new(200));
        let (service, address) = (service(), Gid::from_ip([127, 0, 0, 1].into()));
        let (one, all) = (ListenAt::One(address), ListenAt::AllV4);
        // Names that another user takes, for slots without a listener.
        let _squatted = [
            Name::take(&name(service, one)).unwrap().unwrap(),
            Name::take(&name_in(service, one, 3)).unwrap().unwrap(),
            Name::take(&name_in(service, all, 5)).unwrap().unwrap(),
        ];
        assert_eq!(other.find(service, address, Time(0)), [3]);
        let _entry = mine.enter(service, all).unwrap().unwrap();
        assert_eq!(other.find(service, address, Time(0)), [3, 5, 7]);
        assert_eq!(other.find(service, address, Time(1)), [3, 5, 7]);
    }

    #[test]
    fn all_addresses_are_those_of_one_ip_version() {
        let (mine, other) = (Directory::new(7), Directory::new(200));
        let service = service();
        let _entry = mine.enter(service, ListenAt::AllV6).unwrap().unwrap();
        let v4 = Gid::from_ip([127, 0, 0, 1].into());
        assert!(other.find(service, v4, Time(0)).is_empty());
        let v6 = Gid::from(std::net::Ipv6Addr::LOCALHOST);
        assert_eq!(other.find(service, v6, Time(0)), [7]);
    }
}
