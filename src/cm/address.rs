//! Addresses that a program gives by name.

use super::Error;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// Calls `attempt` with each address until one succeeds, and returns its result or the last error.
pub(super) fn first_of<T>(
    addresses: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut last = None;
    for address in addresses.to_socket_addrs().map_err(Error::Address)? {
        match attempt(address) {
            Ok(value) => return Ok(value),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| {
        let message = "the name has no addresses";
        Error::Address(io::Error::new(io::ErrorKind::InvalidInput, message))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESSES: [&str; 2] = ["192.0.2.1:1", "192.0.2.2:2"];

    fn addresses() -> Vec<SocketAddr> {
        ADDRESSES.map(|address| address.parse().unwrap()).into()
    }

    #[test]
    fn the_first_address_that_can_be_used_is_used() {
        let second = first_of(&*addresses(), |address| match address.port() {
            1 => Err(Error::Unreachable),
            port => Ok(port),
        });
        assert_eq!(second.unwrap(), 2);
    }

    #[test]
    fn the_error_is_that_of_the_last_address() {
        let error = first_of(&*addresses(), |address| match address.port() {
            1 => Err::<(), _>(Error::Unreachable),
            _ => Err(Error::DeviceGone),
        });
        assert!(matches!(error, Err(Error::DeviceGone)));
    }

    #[test]
    fn a_name_without_addresses_and_a_malformed_address_are_errors() {
        let none: &[SocketAddr] = &[];
        assert!(matches!(first_of(none, Ok), Err(Error::Address(_))));
        assert!(matches!(first_of("no port", Ok), Err(Error::Address(_))));
    }
}
