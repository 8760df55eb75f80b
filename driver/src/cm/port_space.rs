//! Ports of the connection manager, unique on the host as those of sockets are.
//!
//! The kernel's connection manager has a table; there is no such table among processes. Here a port
//! is held by names that the kernel gives to one process at a time (`net::names`): one name for each
//! address, and one for all addresses of an IP version. Who takes the name of an address then looks
//! whether somebody has that of all; who takes that of all then looks for each address of the host. So
//! of two who are not to have a port together at least one finds out.

use crate::event_queue::lock;
use crate::net::list_interfaces;
use crate::net::names::{Lookup, Name};
use crate::per_process::PerProcess;
use crate::random;
use rustix::thread::{CapabilitySet, capabilities};
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub use urxe_proto::cm::wire::{PortSpace, ServiceId};

/// What somebody wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortWish {
    /// In which port space.
    pub space: PortSpace,
    /// At which address; unspecified for all of its IP version.
    pub address: IpAddr,
    /// The port; 0 for any that is free.
    pub port: u16,
    /// Whether all addresses of IPv6 are meant to be those of IPv4 too.
    pub both_versions: bool,
    /// Whether to share it with others of this process that wish so too.
    pub reuse: bool,
}

/// Why a port cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Somebody has it: EADDRINUSE.
    #[error("port {port} is taken: end who has it, or use another (0 is any that is free)")]
    InUse {
        /// The port.
        port: u16,
    },
    /// It is for the system's services: EACCES.
    #[error(
        "ports below {first_free} are for programs with the capability CAP_NET_BIND_SERVICE: use \
         another than {port}"
    )]
    Privileged {
        /// The port.
        port: u16,
        /// The first that is for everybody.
        first_free: u16,
    },
    /// All that may be given out are taken: EADDRNOTAVAIL.
    #[error("all ports of net.ipv4.ip_local_port_range are taken")]
    NoneFree,
    /// The system cannot give the name.
    #[error("a port could not be taken: {0}")]
    System(#[from] io::Error),
}

impl PortError {
    /// What programs get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::InUse { .. } => libc::EADDRINUSE,
            Self::Privileged { .. } => libc::EACCES,
            Self::NoneFree => libc::EADDRNOTAVAIL,
            Self::System(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// The addresses at which an owner has a port.
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

    /// All addresses of the IP version of one.
    fn all_like(address: IpAddr) -> Reach {
        match address {
            IpAddr::V4(_) => Reach::AllV4,
            IpAddr::V6(_) => Reach::AllV6,
        }
    }

    /// Whether there is an address in both.
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

/// A port of this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    space: PortSpace,
    port: u16,
}

impl Key {
    fn name(self, reach: Reach) -> String {
        format!("cm/{:x}/{}/{reach}", self.space as u16, self.port)
    }
}

#[derive(Debug)]
struct Owner {
    reaches: Vec<Reach>,
    reuse: AtomicBool,
    listens: AtomicBool,
}

impl Owner {
    fn meets(&self, reaches: &[Reach]) -> bool {
        reaches
            .iter()
            .any(|reach| self.reaches.iter().any(|other| other.meets(*reach)))
    }
}

/// Who has a port in this process, and the names that keep other processes away from it.
#[derive(Debug, Default)]
struct Port {
    owners: Vec<Arc<Owner>>,
    names: HashMap<Reach, Name>,
}

#[derive(Debug, Default)]
struct Ports {
    held: HashMap<Key, Port>,
    /// The last one that was given out: it is not given out twice running, as its peers may still
    /// remember it.
    last: u16,
}

static PORTS: PerProcess<Mutex<Ports>> = PerProcess::new();

fn ports() -> &'static Mutex<Ports> {
    PORTS.get(Mutex::default)
}

/// This process is a forked child, and the ports its parent's.
pub(crate) fn forget() {
    PORTS.forget();
}

/// A port that is held until this is dropped.
#[derive(Debug)]
pub struct PortClaim {
    key: Key,
    owner: Arc<Owner>,
}

impl PortClaim {
    /// Takes a port.
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
        check_privilege(wish.port)?;
        let key = Key {
            space: wish.space,
            port: wish.port,
        };
        if ports.take(key, &owner)? {
            Ok(PortClaim { key, owner })
        } else {
            Err(PortError::InUse { port: wish.port })
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.key.port
    }

    /// Whether others of this process may share it, if they wish so too.
    pub fn set_reuse(&self, reuse: bool) {
        self.owner.reuse.store(reuse, Ordering::Relaxed);
    }

    /// From now on nobody shares it: what comes for a listener must be for one alone.
    ///
    /// # Errors
    /// [`PortError::InUse`] when somebody shares it now.
    pub fn listen(&self) -> Result<(), PortError> {
        let ports = lock(ports());
        let shared = ports.held.get(&self.key).is_some_and(|port| {
            let other = |owner: &&Arc<Owner>| !Arc::ptr_eq(owner, &self.owner);
            let mut others = port.owners.iter().filter(other);
            others.any(|owner| owner.meets(&self.owner.reaches))
        });
        if shared {
            return Err(PortError::InUse {
                port: self.key.port,
            });
        }
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
        port.names
            .retain(|reach, _| owners.iter().any(|owner| owner.reaches.contains(reach)));
        if port.owners.is_empty() {
            ports.held.remove(&self.key);
        }
    }
}

impl Ports {
    /// Takes any port that nobody has at all.
    fn take_any(&mut self, space: PortSpace, owner: &Arc<Owner>) -> Result<PortClaim, PortError> {
        let range = local_port_range();
        let count = range.len();
        let start = random::below(count);
        for step in 0..count {
            let port = range.start() + ((start + step) % count) as u16;
            let key = Key { space, port };
            let usable = !self.held.contains_key(&key) && (port != self.last || count == 1);
            if usable && self.take(key, owner)? {
                self.last = port;
                let owner = Arc::clone(owner);
                return Ok(PortClaim { key, owner });
            }
        }
        Err(PortError::NoneFree)
    }

    /// Makes `owner` one of the owners of a port, if it may be.
    fn take(&mut self, key: Key, owner: &Arc<Owner>) -> io::Result<bool> {
        let held = self.held.get(&key);
        let in_the_way = |other: &Arc<Owner>| {
            let flag = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
            let shares = flag(&other.reuse) && flag(&owner.reuse) && !flag(&other.listens);
            !shares && other.meets(&owner.reaches)
        };
        if held.is_some_and(|port| port.owners.iter().any(in_the_way)) {
            return Ok(false);
        }
        let ours = |reach: &Reach| held.is_some_and(|port| port.names.contains_key(reach));
        let mut names = Vec::new();
        for reach in owner.reaches.iter().filter(|reach| !ours(reach)) {
            match Name::take(&key.name(*reach))? {
                Some(name) => names.push((*reach, name)),
                None => return Ok(false),
            }
        }
        let lookup = Lookup::new()?;
        for reach in owner.reaches.iter().flat_map(|reach| others(*reach)) {
            if !ours(&reach) && lookup.is_taken(&key.name(reach))? {
                return Ok(false);
            }
        }
        let port = self.held.entry(key).or_default();
        port.names.extend(names);
        port.owners.push(Arc::clone(owner));
        Ok(true)
    }
}

/// The names of other processes that `reach` meets, beside its own.
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

/// Whether this process may have a port at all.
fn check_privilege(port: u16) -> Result<(), PortError> {
    const USUAL: u16 = 1024;
    let first_free = read_numbers("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .and_then(|numbers| numbers.first().copied())
        .unwrap_or(USUAL);
    if port >= first_free {
        return Ok(());
    }
    let ours = capabilities(None).map_err(io::Error::from)?;
    if ours.effective.contains(CapabilitySet::NET_BIND_SERVICE) {
        return Ok(());
    }
    Err(PortError::Privileged { port, first_free })
}

/// From where ports are chosen.
fn local_port_range() -> RangeInclusive<u16> {
    const USUAL: RangeInclusive<u16> = 32768..=60999;
    match read_numbers("/proc/sys/net/ipv4/ip_local_port_range").as_deref() {
        Some(&[low, high]) if 0 < low && low <= high => low..=high,
        _ => USUAL,
    }
}

fn read_numbers(path: &str) -> Option<Vec<u16>> {
    let text = fs::read_to_string(path).ok()?;
    text.split_whitespace()
        .map(|number| number.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: &str = "127.0.0.1";
    /// Nobody has it here; to hold a port at an address that address need not be there.
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

    #[track_caller]
    fn refused(wish: PortWish) {
        let error = PortClaim::take(wish).unwrap_err();
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
    fn names_of_other_processes_count() {
        let free = any(LOOPBACK);
        let key = free.key;
        drop(free);
        // As another process would hold it.
        let name = Name::take(&key.name(Reach::AllV4)).unwrap().unwrap();
        refused(wish(LOOPBACK, key.port));
        refused(wish("0.0.0.0", key.port));
        drop(name);
        let _name = Name::take(&key.name(Reach::of(LOOPBACK.parse().unwrap())));
        refused(wish("0.0.0.0", key.port));
        PortClaim::take(wish(ELSEWHERE, key.port)).unwrap();
    }
}
