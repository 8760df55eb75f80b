//! The receive sockets of this process at one address, as a NIC's receive queues: the steering
//! program selects one by the low bits of the destination QPN (receive-side scaling).
//!
//! All are bound to port 4791 of the address. Threads that receive for different queue pairs can
//! then read different sockets.

use crate::error::OpenError;
use crate::process_socket::ProcessSocket;
use crate::qpn::MAX_RECEIVE_SOCKETS;
use crate::sync::lock;
use std::sync::{Mutex, OnceLock};

/// The receive sockets, numbered from 0 without gaps. A socket that is open stays open until all
/// are dropped.
pub(super) struct Receivers {
    first: ProcessSocket,
    others: [OnceLock<ProcessSocket>; MAX_RECEIVE_SOCKETS - 1],
    /// Whether no socket may be added any more. Locked while sockets are added.
    is_closed: Mutex<bool>,
}

impl Receivers {
    pub(super) fn new(first: ProcessSocket) -> Self {
        Receivers {
            first,
            others: Default::default(),
            is_closed: Mutex::default(),
        }
    }

    /// The socket with number 0.
    #[inline]
    pub(super) fn first(&self) -> &ProcessSocket {
        &self.first
    }

    /// The socket with a number, if it is open.
    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&ProcessSocket> {
        match number.checked_sub(1) {
            None => Some(&self.first),
            Some(other) => self.others.get(other)?.get(),
        }
    }

    /// The open sockets, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ProcessSocket> {
        (0..MAX_RECEIVE_SOCKETS).map_while(|number| self.get(number))
    }

    /// Opens sockets with `open` until there are `count`, unless [`Receivers::close`] was called.
    /// Returns the number of open sockets, and the error if one could not be opened.
    pub(super) fn add(
        &self,
        count: usize,
        mut open: impl FnMut() -> Result<ProcessSocket, OpenError>,
    ) -> (usize, Result<(), OpenError>) {
        let is_closed = lock(&self.is_closed);
        let wanted = if *is_closed { 0 } else { count - 1 };
        let places = self.others.iter().take(wanted);
        let result = places
            .filter(|place| place.get().is_none())
            // The place is empty: only the holder of the lock fills it.
            .try_for_each(|place| open().map(|socket| drop(place.set(socket))));
        (self.iter().count(), result)
    }

    /// Prevents that sockets are added from now on.
    pub(super) fn close(&self) {
        *lock(&self.is_closed) = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::open_receiver;
    use crate::tests::own_address;
    use std::io;

    #[test]
    fn sockets_are_numbered_without_gaps_and_kept_when_one_cannot_be_opened() {
        let address = own_address();
        let open = || open_receiver(address, true);
        let receivers = Receivers::new(open().unwrap());
        assert!(receivers.get(0).is_some() && receivers.get(1).is_none());
        let mut opened = 0;
        let (count, result) = receivers.add(8, || {
            opened += 1;
            match opened {
                1..=2 => open(),
                _ => Err(OpenError::system("a test", io::ErrorKind::Other.into())),
            }
        });
        assert_eq!((count, result.is_err()), (3, true));
        assert_eq!(receivers.iter().count(), 3);
        // Fewer than there are: none is opened or closed.
        let (count, result) = receivers.add(2, || unreachable!());
        assert_eq!((count, result.is_ok()), (3, true));
        let (count, result) = receivers.add(MAX_RECEIVE_SOCKETS, open);
        assert_eq!((count, result.is_ok()), (MAX_RECEIVE_SOCKETS, true));
        assert!(receivers.get(MAX_RECEIVE_SOCKETS).is_none());
        assert!(receivers.get(usize::MAX).is_none());
    }

    #[test]
    fn none_is_added_after_the_sockets_are_closed_to_more() {
        let receivers = Receivers::new(open_receiver(own_address(), true).unwrap());
        receivers.close();
        let (count, result) = receivers.add(4, || unreachable!());
        assert_eq!((count, result.is_ok()), (1, true));
    }
}
