//! Which process listens for a service.
//!
//! A listener holds two names (`net::names`) for each of its addresses: one says that there is a
//! listener, and only one can have it; the other ends in the slot of its process, and says where. The
//! names of other users are others, since their processes share no address with this one.

use crate::event_queue::lock;
use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use urxe_net::SLOTS;
use urxe_net::names::{Lookup, Name};
use urxe_proto::cm::ListenAt;
use urxe_proto::cm::wire::ServiceId;
use urxe_proto::ids::Gid;

/// How many look-ups are remembered.
const REMEMBERED: usize = 1024;

/// The entry of a listener, until this is dropped.
#[derive(Debug)]
pub(super) struct Entry {
    _exists: Name,
    _where_it_is: Name,
}

/// All listeners of this user on this host.
#[derive(Debug)]
pub(super) struct Directory {
    slot: u8,
    user: u32,
    /// Where listeners were found last: they are looked for there first.
    found: Mutex<HashMap<(ServiceId, ListenAt), u8>>,
}

impl Directory {
    /// As the process in `slot` sees it.
    pub(super) fn new(slot: u8) -> Self {
        Directory {
            slot,
            user: rustix::process::getuid().as_raw(),
            found: Mutex::default(),
        }
    }

    /// Makes a listener known. `None` when there is one already.
    pub(super) fn enter(&self, service: ServiceId, at: ListenAt) -> io::Result<Option<Entry>> {
        let Some(exists) = Name::take(&self.name(service, at))? else {
            return Ok(None);
        };
        let where_it_is = Name::take(&self.name_in(service, at, self.slot))?;
        Ok(where_it_is.map(|where_it_is| Entry {
            _exists: exists,
            _where_it_is: where_it_is,
        }))
    }

    /// The slot of the process that listens for a service at an address of this host.
    pub(super) fn find(&self, service: ServiceId, address: Gid) -> Option<u8> {
        let look = || -> io::Result<Option<u8>> {
            let lookup = Lookup::new()?;
            for at in [ListenAt::One(address), ListenAt::wildcard_for(address)] {
                if lookup.is_taken(&self.name(service, at))? {
                    return self.slot_of(&lookup, service, at);
                }
            }
            Ok(None)
        };
        match look() {
            Ok(found) => found.filter(|slot| *slot != self.slot),
            Err(error) => {
                tracing::warn!(%error, "cannot look for a listener");
                None
            }
        }
    }

    /// Where a listener is that exists.
    fn slot_of(&self, lookup: &Lookup, service: ServiceId, at: ListenAt) -> io::Result<Option<u8>> {
        let remembered = lock(&self.found).get(&(service, at)).copied();
        for slot in remembered.into_iter().chain(0..SLOTS) {
            if lookup.is_taken(&self.name_in(service, at, slot))? {
                let mut found = lock(&self.found);
                if found.len() >= REMEMBERED {
                    found.clear();
                }
                found.insert((service, at), slot);
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    fn name(&self, service: ServiceId, at: ListenAt) -> String {
        let at = match at {
            ListenAt::One(gid) => gid.to_ip().to_string(),
            ListenAt::AllV4 => "all-v4".to_owned(),
            ListenAt::AllV6 => "all-v6".to_owned(),
        };
        format!("cm/listen/{}/{:x}/{at}", self.user, service.0)
    }

    fn name_in(&self, service: ServiceId, at: ListenAt, slot: u8) -> String {
        format!("{}/{slot}", self.name(service, at))
    }
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
        assert_eq!(other.find(service, address), None);
        let entry = mine.enter(service, ListenAt::AllV4).unwrap().unwrap();
        assert_eq!(other.find(service, address), Some(7));
        assert_eq!(mine.find(service, address), None);
        assert!(other.enter(service, ListenAt::AllV4).unwrap().is_none());
        // The listener of one address comes before that of all.
        let one = ListenAt::One(address);
        let third = Directory::new(9);
        let exact = third.enter(service, one).unwrap().unwrap();
        assert_eq!(other.find(service, address), Some(9));
        drop(exact);
        assert_eq!(other.find(service, address), Some(7));
        drop(entry);
        assert_eq!(other.find(service, address), None);
    }

    #[test]
    fn all_addresses_are_those_of_one_ip_version() {
        let (mine, other) = (Directory::new(7), Directory::new(200));
        let service = service();
        let _entry = mine.enter(service, ListenAt::AllV6).unwrap().unwrap();
        assert_eq!(
            other.find(service, Gid::from_ip([127, 0, 0, 1].into())),
            None
        );
        let v6 = std::net::Ipv6Addr::LOCALHOST;
        assert_eq!(other.find(service, Gid::from(v6)), Some(7));
    }
}
