//! The addresses that binds are to, and their conflicts.

use super::resolve::is_of_any_device;
use std::fmt;
use std::net::IpAddr;
use urxe_net::list_interfaces;

/// The address of a bind: a specific one, or the wildcard of an IP version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum BindAddress {
    One(IpAddr),
    AllV4,
    AllV6,
}

impl BindAddress {
    pub(super) fn of(address: IpAddr) -> BindAddress {
        match address {
            _ if !address.is_unspecified() => BindAddress::One(address),
            IpAddr::V4(_) => BindAddress::AllV4,
            IpAddr::V6(_) => BindAddress::AllV6,
        }
    }

    /// Returns the wildcard of an address's IP version.
    pub(super) fn wildcard_of(address: IpAddr) -> BindAddress {
        match address {
            IpAddr::V4(_) => BindAddress::AllV4,
            IpAddr::V6(_) => BindAddress::AllV6,
        }
    }

    /// Returns whether the kernel's connection manager selects no device for it.
    pub(super) fn is_of_any_device(self) -> bool {
        match self {
            BindAddress::One(address) => is_of_any_device(address),
            BindAddress::AllV4 | BindAddress::AllV6 => true,
        }
    }

    /// Returns whether some local address matches both.
    pub(super) fn overlaps(self, other: BindAddress) -> bool {
        match (self, other) {
            (BindAddress::One(one), BindAddress::One(another)) => one == another,
            (BindAddress::One(one), all) | (all, BindAddress::One(one)) => {
                all == BindAddress::wildcard_of(one)
            }
            _ => self == other,
        }
    }

    /// Returns the other addresses whose claims conflict with a claim of this one.
    pub(super) fn others(self) -> Vec<BindAddress> {
        let all = match self {
            BindAddress::One(address) => return vec![BindAddress::wildcard_of(address)],
            all => all,
        };
        let interfaces = list_interfaces().unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot list the addresses of this host");
            Vec::new()
        });
        let addresses = interfaces.iter().flat_map(|i| &i.addresses);
        addresses
            .map(|address| BindAddress::One(address.ip()))
            .filter(|one| one.overlaps(all))
            .collect()
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindAddress::One(address) => address.fmt(f),
            BindAddress::AllV4 => f.write_str("all-v4"),
            BindAddress::AllV6 => f.write_str("all-v6"),
        }
    }
}

/// A conflict of two binds to a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Conflict {
    /// Both are to the same address of a device.
    Same,
    /// One of them is to the wildcard or a loopback address.
    AnyDevice,
}

impl Conflict {
    pub(super) fn between(addresses: &[BindAddress], others: &[BindAddress]) -> Conflict {
        let mut all = addresses.iter().chain(others);
        match all.any(|address| address.is_of_any_device()) {
            true => Conflict::AnyDevice,
            false => Conflict::Same,
        }
    }

    /// Returns the conflict of two binds that are both to `addresses`.
    pub(super) fn of(addresses: &[BindAddress]) -> Conflict {
        Conflict::between(addresses, &[])
    }
}
