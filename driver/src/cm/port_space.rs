//! Ports of the connection manager, unique on the host like the ports of sockets.
//!
//! The kernel's connection manager has a table of ports; processes have no common table. A port is
//! claimed by names that the kernel gives to one process at a time (`net::names`): one name for
//! each address, and one for all addresses of an IP version (the wildcard). A bind to a specific
//! address claims its name, then checks for the wildcard's. A bind to the wildcard claims its name,
//! then checks for each address of the host. Each side claims before it checks, so at least one of
//! two conflicting binds sees the other.
//!
//! The error of a bind is that of the kernel's `cma_check_port`: EADDRINUSE if both binds are to the
//! same address, and EADDRNOTAVAIL if one of them is to the wildcard or a loopback address.
//!
//! A bind that shares its port claims one of `SHARING` numbered names instead. It then checks for
//! an exclusive claim, and an exclusive bind checks all numbered names.

use super::port_range::{local_port_range, missing_privilege};
use super::resolve::is_of_any_device;
use crate::per_process::PerProcess;
use crate::sync::lock;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use urxe_net::list_interfaces;
use urxe_net::names::{Lookup, Name};
use urxe_net::random;

pub use urxe_proto::cm::wire::{PortSpace, ServiceId};

/// The port that a bind requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortWish {
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

/// Errors of taking a port.
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
        "ports below {first_free} are for programs with the capability CAP_NET_BIND_SERVICE: use \
         another than {port}"
    )]
    Privileged {
        /// The port.
        port: u16,
        /// The first port without privilege.
        first_free: u16,
    },
    /// All ports of the local range are in use: EADDRNOTAVAIL.
    #[error("all ports of net.ipv4.ip_local_port_range are taken")]
    NoneFree,
    /// The kernel cannot give the name.
    #[error("a port could not be taken: {0}")]
    System(#[from] io::Error),
}

impl PortError {
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

/// The addresses of an owner's port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Reach {
    One(IpAddr),
    AllV4,
    AllV6,
}

impl Reach {
    fn of(address: IpAddr) -> Reach {
        match address {
            _ if !address.is_unspecified() => Reach::One(address),
            IpAddr::V4(_) => Reach::AllV4,
            IpAddr::V6(_) => Reach::AllV6,
        }
    }

    /// Returns the wildcard of an address's IP version.
    fn all_like(address: IpAddr) -> Reach {
        match address {
            IpAddr::V4(_) => Reach::AllV4,
            IpAddr::V6(_) => Reach::AllV6,
        }
    }

    /// Returns whether the kernel's connection manager selects no device for it.
    fn is_of_any_device(self) -> bool {
        match self {
            Reach::One(address) => is_of_any_device(address),
            Reach::AllV4 | Reach::AllV6 => true,
        }
    }

    /// Returns whether both have an address in common.
    fn meets(self, other: Reach) -> bool {
        match (self, other) {
            (Reach::One(one), Reach::One(another)) => one == another,
            (Reach::One(one), all) | (all, Reach::One(one)) => all == Reach::all_like(one),
            _ => self == other,
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reach::One(address) => address.fmt(f),
            Reach::AllV4 => f.write_str("all-v4"),
            Reach::AllV6 => f.write_str("all-v6"),
        }
    }
}

/// The number of processes that may share a port. An exclusive bind checks a name for each of them.
const SHARING: u8 = 16;

/// A port of this process, with its port space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    space: PortSpace,
    port: u16,
}

impl Key {
    fn name(self, reach: Reach) -> String {
        format!("cm/{:x}/{}/{reach}", self.space as u16, self.port)
    }

    /// Returns the names of the processes that share a port, with their numbers.
    fn shared_names(self, reach: Reach) -> impl Iterator<Item = (u8, String)> {
        let name = self.name(reach);
        (0..SHARING).map(move |number| (number, format!("{name}/shared/{number}")))
    }
}

/// A conflict of two binds to a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Conflict {
    /// Both are to the same address of a device.
    Same,
    /// One of them is to the wildcard or a loopback address.
    AnyDevice,
}

impl Conflict {
    fn between(reaches: &[Reach], others: &[Reach]) -> Conflict {
        let mut all = reaches.iter().chain(others);
        match all.any(|reach| reach.is_of_any_device()) {
            true => Conflict::AnyDevice,
            false => Conflict::Same,
        }
    }

    /// Returns the conflict of two binds to the same addresses.
    fn of(reaches: &[Reach]) -> Conflict {
        Conflict::between(reaches, &[])
    }

    fn error(self, port: u16) -> PortError {
        match self {
            Conflict::Same => PortError::InUse { port },
            Conflict::AnyDevice => PortError::NotAvailable { port },
        }
    }
}

#[derive(Debug)]
struct Owner {
    reaches: Vec<Reach>,
    reuse: AtomicBool,
    listens: AtomicBool,
}

impl Owner {
    /// Returns whether it shares its port with other owners that share theirs.
    fn shares(&self) -> bool {
        self.reuse.load(Ordering::Relaxed) && !self.listens.load(Ordering::Relaxed)
    }

    fn meets(&self, reaches: &[Reach]) -> bool {
        reaches
            .iter()
            .any(|reach| self.reaches.iter().any(|other| other.meets(*reach)))
    }
}

/// The number and the name of a process that shares a port.
type Share = (u8, Name);

/// The owners of a port in this process, and the names that claim it on the host.
#[derive(Debug, Default)]
struct Port {
    owners: Vec<Arc<Owner>>,
    names: HashMap<Reach, Name>,
    /// The names of owners that share the port, with their numbers.
    shared: HashMap<Reach, Share>,
}

impl Port {
    /// Claims the names for exclusive use of the port; `None` if one of them is taken.
    fn take_alone(&self, key: Key, reaches: &[Reach]) -> io::Result<Option<Vec<(Reach, Name)>>> {
        let mut names = Vec::new();
        for reach in reaches
            .iter()
            .filter(|reach| !self.names.contains_key(reach))
        {
            match Name::take(&key.name(*reach))? {
                Some(name) => names.push((*reach, name)),
                None => return Ok(None),
            }
        }
        Ok(Some(names))
    }

    /// Claims names for sharing the port; `None` if all are taken.
    fn take_shares(&self, key: Key, reaches: &[Reach]) -> io::Result<Option<Vec<(Reach, Share)>>> {
        let mut shares = Vec::new();
        for reach in reaches
            .iter()
            .filter(|reach| !self.shared.contains_key(reach))
        {
            let mut share = None;
            for (number, name) in key.shared_names(*reach) {
                share = Name::take(&name)?.map(|name| (number, name));
                if share.is_some() {
                    break;
                }
            }
            match share {
                Some(share) => shares.push((*reach, share)),
                None => return Ok(None),
            }
        }
        Ok(Some(shares))
    }

    /// Returns where another process has the port exclusively, if an address there is also in
    /// `reach`. The name of `reach` itself is not checked.
    fn is_elsewhere(&self, lookup: &Lookup, key: Key, reach: Reach) -> io::Result<Option<Reach>> {
        for other in others(reach) {
            if !self.names.contains_key(&other) && lookup.is_taken(&key.name(other))? {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    /// Returns where other processes share the port, if an address there is also in `reach`.
    fn is_shared_elsewhere(
        &self,
        lookup: &Lookup,
        key: Key,
        reach: Reach,
    ) -> io::Result<Option<Reach>> {
        for other in others(reach).into_iter().chain([reach]) {
            let ours = self.shared.get(&other).map(|(number, _)| *number);
            for (number, name) in key.shared_names(other) {
                if Some(number) != ours && lookup.is_taken(&name)? {
                    return Ok(Some(other));
                }
            }
        }
        Ok(None)
    }
}

#[derive(Debug, Default)]
struct Ports {
    held: HashMap<Key, Port>,
    /// The port that was assigned last. It is not assigned twice in a row: peers may still have
    /// state for it.
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
    pub fn take(wish: PortWish) -> Result<PortClaim, PortError> {
        let mut reaches = vec![Reach::of(wish.address)];
        if wish.both_versions && reaches == [Reach::AllV6] {
            reaches.push(Reach::AllV4);
        }
        let owner = Arc::new(Owner {
            reaches,
            reuse: AtomicBool::new(wish.reuse),
            listens: AtomicBool::new(false),
        });
        let mut ports = lock(ports());
        if wish.port == 0 {
            return ports.take_any(wish.space, &owner);
        }
        let port = wish.port;
        if let Some(first_free) = missing_privilege(port)? {
            return Err(PortError::Privileged { port, first_free });
        }
        let key = Key {
            space: wish.space,
            port: wish.port,
        };
        match ports.take(key, &owner)? {
            None => Ok(PortClaim { key, owner }),
            Some(conflict) => Err(conflict.error(wish.port)),
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

    /// Makes the port exclusive: requests for a listener must have one destination.
    ///
    /// # Errors
    /// [`PortError::InUse`] or [`PortError::NotAvailable`] while the port is shared.
    pub fn listen(&self) -> Result<(), PortError> {
        let conflict = |conflict: Conflict| conflict.error(self.key.port);
        let mut ports = lock(ports());
        let reaches = &self.owner.reaches;
        let Some(port) = ports.held.get_mut(&self.key) else {
            // Not reached: while the claim exists, its port has an owner.
            return Err(conflict(Conflict::of(reaches)));
        };
        let other = |owner: &&Arc<Owner>| !Arc::ptr_eq(owner, &self.owner);
        let mut others = port.owners.iter().filter(other);
        if let Some(other) = others.find(|owner| owner.meets(reaches)) {
            return Err(conflict(Conflict::between(reaches, &other.reaches)));
        }
        let Some(names) = port.take_alone(self.key, reaches)? else {
            return Err(conflict(Conflict::of(reaches)));
        };
        let lookup = Lookup::new()?;
        for reach in reaches {
            if let Some(other) = port.is_shared_elsewhere(&lookup, self.key, *reach)? {
                return Err(conflict(Conflict::between(reaches, &[other])));
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
        let Some(port) = ports.held.get_mut(&self.key) else {
            return;
        };
        port.owners.retain(|owner| !Arc::ptr_eq(owner, &self.owner));
        let owners = &port.owners;
        let held = |reach: &Reach| owners.iter().any(|owner| owner.reaches.contains(reach));
        port.names.retain(|reach, _| held(reach));
        port.shared.retain(|reach, _| held(reach));
        if port.owners.is_empty() {
            ports.held.remove(&self.key);
        }
    }
}

impl Ports {
    /// Takes any port that is not in use in this process or another one.
    fn take_any(&mut self, space: PortSpace, owner: &Arc<Owner>) -> Result<PortClaim, PortError> {
        let range = local_port_range();
        let count = range.len();
        let start = random::below(count);
        for step in 0..count {
            let port = range.start() + ((start + step) % count) as u16;
            let key = Key { space, port };
            let usable = !self.held.contains_key(&key) && (port != self.last || count == 1);
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
        let nobody = Port::default();
        let held = self.held.get(&key).unwrap_or(&nobody);
        let in_the_way = |other: &Arc<Owner>| {
            let both_share = other.shares() && owner.shares();
            !both_share && other.meets(&owner.reaches)
        };
        if let Some(other) = held.owners.iter().find(|other| in_the_way(other)) {
            return Ok(Some(Conflict::between(&owner.reaches, &other.reaches)));
        }
        let with_same = Some(Conflict::of(&owner.reaches));
        let with = |other: Reach| Some(Conflict::between(&owner.reaches, &[other]));
        let lookup = Lookup::new()?;
        let (mut names, mut shared) = (Vec::new(), Vec::new());
        if owner.shares() {
            match held.take_shares(key, &owner.reaches)? {
                Some(taken) => shared = taken,
                None => return Ok(with_same),
            }
            for reach in &owner.reaches {
                if !held.names.contains_key(reach) && lookup.is_taken(&key.name(*reach))? {
                    return Ok(with_same);
                }
            }
        } else {
            match held.take_alone(key, &owner.reaches)? {
                Some(taken) => names = taken,
                None => return Ok(with_same),
            }
            for reach in &owner.reaches {
                if let Some(other) = held.is_shared_elsewhere(&lookup, key, *reach)? {
                    return Ok(with(other));
                }
            }
        }
        for reach in &owner.reaches {
            if let Some(other) = held.is_elsewhere(&lookup, key, *reach)? {
                return Ok(with(other));
            }
        }
        let port = self.held.entry(key).or_default();
        port.names.extend(names);
        port.shared.extend(shared);
        port.owners.push(Arc::clone(owner));
        Ok(None)
    }
}

/// Returns the other reaches whose names can conflict with `reach`.
fn others(reach: Reach) -> Vec<Reach> {
    let all = match reach {
        Reach::One(address) => return vec![Reach::all_like(address)],
        all => all,
    };
    let interfaces = list_interfaces().unwrap_or_else(|error| {
        tracing::debug!(%error, "the kernel does not tell the addresses");
        Vec::new()
    });
    let addresses = interfaces.iter().flat_map(|i| &i.addresses);
    addresses
        .map(|address| Reach::One(address.ip()))
        .filter(|one| one.meets(all))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: &str = "127.0.0.1";
    /// Not an address of an interface. A port can be claimed at an address that is not present.
    const ELSEWHERE: &str = "127.0.0.2";

    fn wish(address: &str, port: u16) -> PortWish {
        PortWish {
            space: PortSpace::Tcp,
            address: address.parse().unwrap(),
            port,
            both_versions: false,
            reuse: false,
        }
    }

    fn any(address: &str) -> PortClaim {
        PortClaim::take(wish(address, 0)).unwrap()
    }

    /// Every conflict of these tests is with the wildcard or a loopback address.
    #[track_caller]
    fn refused(wish: PortWish) {
        let error = PortClaim::take(wish).unwrap_err();
        assert_eq!(error.errno(), libc::EADDRNOTAVAIL, "{error}");
    }

    #[test]
    fn two_binds_to_one_address_of_a_device_are_one_too_many() {
        const OF_A_DEVICE: &str = "192.0.2.1";
        let claim = any(OF_A_DEVICE);
        let error = PortClaim::take(wish(OF_A_DEVICE, claim.port())).unwrap_err();
        assert_eq!(error.errno(), libc::EADDRINUSE, "{error}");
    }

    #[test]
    fn a_port_is_one_s_own_at_its_address_and_in_its_space() {
        let claim = any(LOOPBACK);
        let port = claim.port();
        assert!(local_port_range().contains(&port));
        refused(wish(LOOPBACK, port));
        PortClaim::take(wish(ELSEWHERE, port)).unwrap();
        let udp = PortWish {
            space: PortSpace::Udp,
            ..wish(LOOPBACK, port)
        };
        PortClaim::take(udp).unwrap();
        drop(claim);
        PortClaim::take(wish(LOOPBACK, port)).unwrap();
    }

    #[test]
    fn all_addresses_and_one_of_them_exclude_each_other() {
        let claim = any("0.0.0.0");
        refused(wish(LOOPBACK, claim.port()));
        refused(wish("0.0.0.0", claim.port()));
        PortClaim::take(wish("::1", claim.port())).unwrap();
        let claim = any("::1");
        refused(wish("::", claim.port()));
        PortClaim::take(wish("0.0.0.0", claim.port())).unwrap();
    }

    #[test]
    fn all_addresses_of_ipv6_are_those_of_ipv4_too_unless_it_is_said() {
        let claim = PortClaim::take(PortWish {
            both_versions: true,
            ..wish("::", 0)
        });
        let claim = claim.unwrap();
        refused(wish(LOOPBACK, claim.port()));
        refused(wish("0.0.0.0", claim.port()));
        let claim = any("::");
        PortClaim::take(wish("0.0.0.0", claim.port())).unwrap();
    }

    #[test]
    fn a_port_is_shared_if_all_wish_so_and_nobody_listens() {
        let shared = |port| PortWish {
            reuse: true,
            ..wish(LOOPBACK, port)
        };
        let first = PortClaim::take(shared(0)).unwrap();
        let second = PortClaim::take(shared(first.port())).unwrap();
        refused(wish(LOOPBACK, first.port()));
        assert!(first.listen().is_err());
        drop(second);
        first.listen().unwrap();
        refused(shared(first.port()));
    }

    #[test]
    fn processes_share_a_port_as_identifiers_of_one_do() {
        let shared = |address, port| PortWish {
            reuse: true,
            ..wish(address, port)
        };
        let free = any(LOOPBACK);
        let key = free.key;
        drop(free);
        let one = Reach::of(LOOPBACK.parse().unwrap());
        // The name that another process holds when it shares the port.
        let (_, name) = key.shared_names(one).next().unwrap();
        let other = Name::take(&name).unwrap().unwrap();
        let ours = PortClaim::take(shared(LOOPBACK, key.port)).unwrap();
        let everywhere = PortClaim::take(shared("0.0.0.0", key.port)).unwrap();
        drop(everywhere);
        assert_eq!(ours.listen().unwrap_err().errno(), libc::EADDRNOTAVAIL);
        drop(ours);
        refused(wish(LOOPBACK, key.port));
        refused(wish("0.0.0.0", key.port));
        PortClaim::take(wish(ELSEWHERE, key.port)).unwrap();
        drop(other);

        let ours = PortClaim::take(shared(LOOPBACK, key.port)).unwrap();
        ours.listen().unwrap();
        let lookup = Lookup::new().unwrap();
        assert!(lookup.is_taken(&key.name(one)).unwrap());
        drop(ours);
        // The name that another process holds when it does not share the port.
        let _alone = Name::take(&key.name(one)).unwrap().unwrap();
        refused(shared(LOOPBACK, key.port));
        refused(shared("0.0.0.0", key.port));
    }

    #[test]
    fn names_of_other_processes_count() {
        let free = any(LOOPBACK);
        let key = free.key;
        drop(free);
        // The name that another process holds.
        let name = Name::take(&key.name(Reach::AllV4)).unwrap().unwrap();
        refused(wish(LOOPBACK, key.port));
        refused(wish("0.0.0.0", key.port));
        drop(name);
        let _name = Name::take(&key.name(Reach::of(LOOPBACK.parse().unwrap())));
        refused(wish("0.0.0.0", key.port));
        PortClaim::take(wish(ELSEWHERE, key.port)).unwrap();
    }
}
