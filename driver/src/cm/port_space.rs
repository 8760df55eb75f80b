//! Ports of the connection manager, unique on the host like the ports of sockets.
//!
//! The kernel's connection manager has one table of ports; urxe's processes share none. A bind
//! claims names of abstract Unix sockets, which the kernel gives to one process at a time
//! (`net::names`): one name for each address, and one for all addresses of an IP version (the
//! wildcard). A bind to a specific address claims its name, then checks for the name of the
//! wildcard. A bind to the wildcard claims its name, then checks for the name of each address of
//! the host. Each side claims before it checks, so at least one of two conflicting binds detects
//! the other.
//!
//! The error of a bind is that of the kernel's `cma_check_port`: EADDRINUSE if both binds are to
//! the same address, and EADDRNOTAVAIL if one of them is to the wildcard or a loopback address.
//!
//! A bind that shares its port claims one of `MAX_SHARING` numbered names instead. It then checks
//! for an exclusive claim, and an exclusive bind checks all numbered names.

use super::bind_address::{BindAddress, Conflict};
use super::port_range::{local_port_range, missing_privilege};
use crate::per_process::PerProcess;
use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_net::names::{Lookup, Name};
use urxe_net::random;

pub use urxe_proto::cm::wire::{PortSpace, ServiceId};

/// The port that a bind requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRequest {
    /// The port space.
    pub space: PortSpace,
    /// The address; the unspecified one covers all addresses of its IP version.
    pub address: IpAddr,
    /// The port; 0 for any free one.
    pub port: u16,
    /// Whether the unspecified IPv6 address covers IPv4 too.
    pub both_versions: bool,
    /// Whether to share the port with other binds that do so too.
    pub reuse: bool,
}

/// Errors of a bind to a port.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The port is in use at this address: EADDRINUSE.
    #[error("port {port} is in use at this address: use another one (0 selects a free one)")]
    InUse {
        /// The port.
        port: u16,
    },
    /// The port is in use, and one of the two binds is to the wildcard or a loopback address:
    /// EADDRNOTAVAIL.
    #[error("port {port} is in use: use another one (0 selects a free one)")]
    NotAvailable {
        /// The port.
        port: u16,
    },
    /// The port needs a privilege: EACCES.
    #[error(
        "port {port} needs the capability CAP_NET_BIND_SERVICE: use port {first_free} or a higher \
         one"
    )]
    Privileged {
        /// The port.
        port: u16,
        /// The first port that needs no privilege.
        first_free: u16,
    },
    /// All ports of the local range are in use: EADDRNOTAVAIL.
    #[error("all ports of net.ipv4.ip_local_port_range are taken")]
    NoneFree,
    /// A system call that claims or checks a name failed.
    #[error("the port could not be claimed by the name of a Unix socket: {0}")]
    System(#[from] io::Error),
}

impl PortError {
    /// Returns the error of a bind to `port` that conflicts with another one.
    fn of(conflict: Conflict, port: u16) -> PortError {
        match conflict {
            Conflict::Same => PortError::InUse { port },
            Conflict::AnyDevice => PortError::NotAvailable { port },
        }
    }

    /// Returns the error number that applications get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::InUse { .. } => libc::EADDRINUSE,
            Self::Privileged { .. } => libc::EACCES,
            Self::NoneFree | Self::NotAvailable { .. } => libc::EADDRNOTAVAIL,
            Self::System(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// The number of processes that may share a port. An exclusive bind checks this many names.
const MAX_SHARING: u8 = 16;

/// A port of this process, with its port space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    space: PortSpace,
    port: u16,
}

impl Key {
    fn name(self, address: BindAddress) -> String {
        format!("cm/{:x}/{}/{address}", self.space as u16, self.port)
    }

    /// Returns the names for processes that share a port, with their numbers.
    fn shared_names(self, address: BindAddress) -> impl Iterator<Item = (u8, String)> {
        let name = self.name(address);
        (0..MAX_SHARING).map(move |number| (number, format!("{name}/shared/{number}")))
    }
}

#[derive(Debug)]
struct Owner {
    addresses: Vec<BindAddress>,
    reuse: AtomicBool,
    listens: AtomicBool,
}

impl Owner {
    /// Returns whether other owners that permit it too may have the same port.
    fn shares(&self) -> bool {
        self.reuse.load(Ordering::Relaxed) && !self.listens.load(Ordering::Relaxed)
    }

    fn overlaps(&self, addresses: &[BindAddress]) -> bool {
        addresses
            .iter()
            .any(|address| self.addresses.iter().any(|other| other.overlaps(*address)))
    }
}

/// The number and the name of a process that shares a port.
type Share = (u8, Name);

/// The owners of a port in this process, and the names that claim it on the host.
#[derive(Debug, Default)]
struct Port {
    owners: Vec<Arc<Owner>>,
    names: HashMap<BindAddress, Name>,
    /// The names of owners that share the port, with their numbers.
    shared: HashMap<BindAddress, Share>,
}

impl Port {
    /// Claims the names for exclusive use of the port; `None` if one of them is taken.
    fn claim_exclusive(
        &self,
        key: Key,
        addresses: &[BindAddress],
    ) -> io::Result<Option<Vec<(BindAddress, Name)>>> {
        let mut names = Vec::new();
        for address in addresses
            .iter()
            .filter(|address| !self.names.contains_key(address))
        {
            match Name::take(&key.name(*address))? {
                Some(name) => names.push((*address, name)),
                None => return Ok(None),
            }
        }
        Ok(Some(names))
    }

    /// Claims names for sharing the port; `None` if all are taken.
    fn claim_shared(
        &self,
        key: Key,
        addresses: &[BindAddress],
    ) -> io::Result<Option<Vec<(BindAddress, Share)>>> {
        let mut shares = Vec::new();
        for address in addresses
            .iter()
            .filter(|address| !self.shared.contains_key(address))
        {
            let mut share = None;
            for (number, name) in key.shared_names(*address) {
                share = Name::take(&name)?.map(|name| (number, name));
                if share.is_some() {
                    break;
                }
            }
            match share {
                Some(share) => shares.push((*address, share)),
                None => return Ok(None),
            }
        }
        Ok(Some(shares))
    }

    /// Returns an address that overlaps `address`, and at which another process has the port
    /// exclusively. `address` itself is not checked.
    fn exclusive_elsewhere(
        &self,
        lookup: &Lookup,
        key: Key,
        address: BindAddress,
    ) -> io::Result<Option<BindAddress>> {
        for other in address.others() {
            if !self.names.contains_key(&other) && lookup.is_taken(&key.name(other))? {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    /// Returns an address, equal to `address` or overlapping it, at which other processes share the
    /// port.
    fn shared_elsewhere(
        &self,
        lookup: &Lookup,
        key: Key,
        address: BindAddress,
    ) -> io::Result<Option<BindAddress>> {
        for other in address.others().into_iter().chain([address]) {
            let own = self.shared.get(&other).map(|(number, _)| *number);
            for (number, name) in key.shared_names(other) {
                if Some(number) != own && lookup.is_taken(&name)? {
                    return Ok(Some(other));
                }
            }
        }
        Ok(None)
    }
}

#[derive(Debug, Default)]
struct Ports {
    by_key: HashMap<Key, Port>,
    /// The port that was assigned last. The next request gets another one, because peers may still
    /// have state for this one.
    last: u16,
}

static PORTS: PerProcess<Mutex<Ports>> = PerProcess::new();

fn ports() -> &'static Mutex<Ports> {
    PORTS.get(Mutex::default)
}

/// A claimed port; dropping it frees the port.
#[derive(Debug)]
pub struct PortClaim {
    key: Key,
    owner: Arc<Owner>,
}

impl PortClaim {
    /// Claims a port.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn take(request: PortRequest) -> Result<PortClaim, PortError> {
        let mut addresses = vec![BindAddress::of(request.address)];
        if request.both_versions && addresses == [BindAddress::AllV6] {
            addresses.push(BindAddress::AllV4);
        }
        let owner = Arc::new(Owner {
            addresses,
            reuse: AtomicBool::new(request.reuse),
            listens: AtomicBool::new(false),
        });
        let mut ports = lock(ports());
        if request.port == 0 {
            return ports.take_any(request.space, &owner);
        }
        let port = request.port;
        if let Some(first_free) = missing_privilege(port)? {
            return Err(PortError::Privileged { port, first_free });
        }
        let key = Key {
            space: request.space,
            port: request.port,
        };
        match ports.take(key, &owner)? {
            None => Ok(PortClaim { key, owner }),
            Some(conflict) => Err(PortError::of(conflict, request.port)),
        }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.key.port
    }

    /// Sets whether the port may be shared in this process. Sharing with other processes is decided
    /// when the port is taken.
    pub fn set_reuse(&self, reuse: bool) {
        self.owner.reuse.store(reuse, Ordering::Relaxed);
    }

    /// Makes the port exclusive, because each connection request must reach one listener.
    ///
    /// # Errors
    /// [`PortError::InUse`] or [`PortError::NotAvailable`] while the port is shared.
    pub fn listen(&self) -> Result<(), PortError> {
        let conflict = |conflict| PortError::of(conflict, self.key.port);
        let mut ports = lock(ports());
        let addresses = &self.owner.addresses;
        let Some(port) = ports.by_key.get_mut(&self.key) else {
            // Not reached: while the claim exists, its port has an owner.
            return Err(conflict(Conflict::of(addresses)));
        };
        let other = |owner: &&Arc<Owner>| !Arc::ptr_eq(owner, &self.owner);
        let mut others = port.owners.iter().filter(other);
        if let Some(other) = others.find(|owner| owner.overlaps(addresses)) {
            return Err(conflict(Conflict::between(addresses, &other.addresses)));
        }
        let Some(names) = port.claim_exclusive(self.key, addresses)? else {
            return Err(conflict(Conflict::of(addresses)));
        };
        let lookup = Lookup::new()?;
        for address in addresses {
            if let Some(other) = port.shared_elsewhere(&lookup, self.key, *address)? {
                return Err(conflict(Conflict::between(addresses, &[other])));
            }
        }
        port.names.extend(names);
        self.owner.listens.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for PortClaim {
    fn drop(&mut self) {
        let mut ports = lock(ports());
        let Some(port) = ports.by_key.get_mut(&self.key) else {
            return;
        };
        port.owners.retain(|owner| !Arc::ptr_eq(owner, &self.owner));
        let owners = &port.owners;
        let held =
            |address: &BindAddress| owners.iter().any(|owner| owner.addresses.contains(address));
        port.names.retain(|address, _| held(address));
        port.shared.retain(|address, _| held(address));
        if port.owners.is_empty() {
            ports.by_key.remove(&self.key);
        }
    }
}

impl Ports {
    /// Takes a random port that no process uses.
    fn take_any(&mut self, space: PortSpace, owner: &Arc<Owner>) -> Result<PortClaim, PortError> {
        let range = local_port_range();
        let count = range.len();
        let start = random::below(count);
        for step in 0..count {
            let port = range.start() + ((start + step) % count) as u16;
            let key = Key { space, port };
            let usable = !self.by_key.contains_key(&key) && (port != self.last || count == 1);
            if usable && self.take(key, owner)?.is_none() {
                self.last = port;
                let owner = Arc::clone(owner);
                return Ok(PortClaim { key, owner });
            }
        }
        Err(PortError::NoneFree)
    }

    /// Adds `owner` to the owners of a port, unless another owner conflicts.
    fn take(&mut self, key: Key, owner: &Arc<Owner>) -> io::Result<Option<Conflict>> {
        let unused = Port::default();
        let port = self.by_key.get(&key).unwrap_or(&unused);
        let conflicts = |other: &Arc<Owner>| {
            let both_share = other.shares() && owner.shares();
            !both_share && other.overlaps(&owner.addresses)
        };
        if let Some(other) = port.owners.iter().find(|other| conflicts(other)) {
            return Ok(Some(Conflict::between(&owner.addresses, &other.addresses)));
        }
        let with_same = Some(Conflict::of(&owner.addresses));
        let with = |other: BindAddress| Some(Conflict::between(&owner.addresses, &[other]));
        let lookup = Lookup::new()?;
        let (mut names, mut shared) = (Vec::new(), Vec::new());
        if owner.shares() {
            match port.claim_shared(key, &owner.addresses)? {
                Some(taken) => shared = taken,
                None => return Ok(with_same),
            }
            for address in &owner.addresses {
                if !port.names.contains_key(address) && lookup.is_taken(&key.name(*address))? {
                    return Ok(with_same);
                }
            }
        } else {
            match port.claim_exclusive(key, &owner.addresses)? {
                Some(taken) => names = taken,
                None => return Ok(with_same),
            }
            for address in &owner.addresses {
                if let Some(other) = port.shared_elsewhere(&lookup, key, *address)? {
                    return Ok(with(other));
                }
            }
        }
        for address in &owner.addresses {
            if let Some(other) = port.exclusive_elsewhere(&lookup, key, *address)? {
                return Ok(with(other));
            }
        }
        let port = self.by_key.entry(key).or_default();
        port.names.extend(names);
        port.shared.extend(shared);
        port.owners.push(Arc::clone(owner));
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: &str = "127.0.0.1";
    /// Not an address of an interface. A port can be claimed at an address that is not present.
    const OTHER_ADDRESS: &str = "127.0.0.2";

    fn request(address: &str, port: u16) -> PortRequest {
        PortRequest {
            space: PortSpace::Tcp,
            address: address.parse().unwrap(),
            port,
            both_versions: false,
            reuse: false,
        }
    }

    fn any(address: &str) -> PortClaim {
        PortClaim::take(request(address, 0)).unwrap()
    }

    /// Every conflict of these tests is with the wildcard or a loopback address.
    #[track_caller]
    fn refused(request: PortRequest) {
        let error = PortClaim::take(request).unwrap_err();
        assert_eq!(error.errno(), libc::EADDRNOTAVAIL, "{error}");
    }

    #[test]
    fn second_bind_to_a_device_address_fails_with_eaddrinuse() {
        const DEVICE_ADDRESS: &str = "192.0.2.1";
        let claim = any(DEVICE_ADDRESS);
        let error = PortClaim::take(request(DEVICE_ADDRESS, claim.port())).unwrap_err();
        assert_eq!(error.errno(), libc::EADDRINUSE, "{error}");
    }

    #[test]
    fn a_claim_excludes_only_its_address_and_port_space() {
        let claim = any(LOOPBACK);
        let port = claim.port();
        assert!(local_port_range().contains(&port));
        refused(request(LOOPBACK, port));
        PortClaim::take(request(OTHER_ADDRESS, port)).unwrap();
        let udp = PortRequest {
            space: PortSpace::Udp,
            ..request(LOOPBACK, port)
        };
        PortClaim::take(udp).unwrap();
        drop(claim);
        PortClaim::take(request(LOOPBACK, port)).unwrap();
    }

    #[test]
    fn wildcard_and_specific_bind_conflict() {
        let claim = any("0.0.0.0");
        refused(request(LOOPBACK, claim.port()));
        refused(request("0.0.0.0", claim.port()));
        PortClaim::take(request("::1", claim.port())).unwrap();
        let claim = any("::1");
        refused(request("::", claim.port()));
        PortClaim::take(request("0.0.0.0", claim.port())).unwrap();
    }

    #[test]
    fn ipv6_wildcard_covers_ipv4_unless_v6_only() {
        let claim = PortClaim::take(PortRequest {
            both_versions: true,
            ..request("::", 0)
        });
        let claim = claim.unwrap();
        refused(request(LOOPBACK, claim.port()));
        refused(request("0.0.0.0", claim.port()));
        let claim = any("::");
        PortClaim::take(request("0.0.0.0", claim.port())).unwrap();
    }

    #[test]
    fn a_port_is_shared_if_all_reuse_it_and_none_listens() {
        let shared = |port| PortRequest {
            reuse: true,
            ..request(LOOPBACK, port)
        };
        let first = PortClaim::take(shared(0)).unwrap();
        let second = PortClaim::take(shared(first.port())).unwrap();
        refused(request(LOOPBACK, first.port()));
        assert!(first.listen().is_err());
        drop(second);
        first.listen().unwrap();
        refused(shared(first.port()));
    }

    #[test]
    fn processes_share_a_port_under_the_same_rules() {
        let shared = |address, port| PortRequest {
            reuse: true,
            ..request(address, port)
        };
        let free = any(LOOPBACK);
        let key = free.key;
        drop(free);
        let one = BindAddress::of(LOOPBACK.parse().unwrap());
        // The name that another process holds when it shares the port.
        let (_, name) = key.shared_names(one).next().unwrap();
        let other = Name::take(&name).unwrap().unwrap();
        let own = PortClaim::take(shared(LOOPBACK, key.port)).unwrap();
        let everywhere = PortClaim::take(shared("0.0.0.0", key.port)).unwrap();
        drop(everywhere);
        assert_eq!(own.listen().unwrap_err().errno(), libc::EADDRNOTAVAIL);
        drop(own);
        refused(request(LOOPBACK, key.port));
        refused(request("0.0.0.0", key.port));
        PortClaim::take(request(OTHER_ADDRESS, key.port)).unwrap();
        drop(other);

        let own = PortClaim::take(shared(LOOPBACK, key.port)).unwrap();
        own.listen().unwrap();
        let lookup = Lookup::new().unwrap();
        assert!(lookup.is_taken(&key.name(one)).unwrap());
        drop(own);
        // The name that another process holds when it does not share the port.
        let _alone = Name::take(&key.name(one)).unwrap().unwrap();
        refused(shared(LOOPBACK, key.port));
        refused(shared("0.0.0.0", key.port));
    }

    #[test]
    fn claims_of_other_processes_conflict() {
        let free = any(LOOPBACK);
        let key = free.key;
        drop(free);
        // The name that another process holds.
        let name = Name::take(&key.name(BindAddress::AllV4)).unwrap().unwrap();
        refused(request(LOOPBACK, key.port));
        refused(request("0.0.0.0", key.port));
        drop(name);
        let _name = Name::take(&key.name(BindAddress::of(LOOPBACK.parse().unwrap())));
        refused(request("0.0.0.0", key.port));
        PortClaim::take(request(OTHER_ADDRESS, key.port)).unwrap();
    }
}
