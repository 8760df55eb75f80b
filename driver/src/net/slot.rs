//! The slot of a process: its place among those that share port 4791.
//!
//! A slot is a number from 0 to 254, and the top 8 bits of every QPN of the process, so that a QPN
//! names its process. To hold a slot is to hold its name (see `names`), whatever containers and user
//! namespaces the processes live in. The same socket takes the datagrams that other processes pass
//! on.

use super::error::OpenError;
use super::names::{self, Lookup, Presence, Watch};
use crate::process_socket::ProcessSocket;
use rustix::process::{Uid, getuid};
use socket2::{SockAddr, Socket};
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

/// How many processes share a network namespace. Slot 255 does not exist: its QPNs are those of
/// probes and of multicast.
pub const SLOTS: u8 = 255;

/// How many low bits of a QPN the process numbers itself.
pub const QPN_BITS: u32 = 16;

/// QPNs 0 and 1 are those of the management interfaces, which belong to no process (9.2.4).
const FIRST_QPN: u32 = 2;

/// A slot that this process holds.
#[derive(Debug)]
pub(super) struct Slot {
    number: u8,
    socket: ProcessSocket,
    presence: Presence,
    user: Uid,
    /// The processes in other slots, those of this user: nobody else is told anything.
    trusted: Mutex<HashMap<u8, Watch>>,
}

/// What became of a message for another slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Passed {
    /// It is in the queue of that process.
    On,
    /// That process has too many waiting.
    Overrun,
    /// No process of this user holds that slot.
    NobodyThere,
}

impl Slot {
    /// Takes the lowest free slot.
    pub(super) fn claim() -> Result<Slot, OpenError> {
        let socket = names::socket().map_err(|e| OpenError::system("opening a Unix socket", e))?;
        socket
            .set_passcred(true)
            .map_err(|e| OpenError::system("setting up a Unix socket", e))?;
        for number in 0..SLOTS {
            // Of a process that is just ending one name may be free and the other not.
            let announced = Presence::announce(&presence_name(number))
                .map_err(|e| OpenError::system("announcing this process", e))?;
            let Some(presence) = announced else {
                continue;
            };
            let bound = address(number).and_then(|address| socket.bind(&address));
            match bound {
                Ok(()) => {
                    return Ok(Slot {
                        number,
                        socket,
                        presence,
                        user: getuid(),
                        trusted: Mutex::default(),
                    });
                }
                Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => {}
                Err(e) => return Err(OpenError::system("naming a Unix socket", e)),
            }
        }
        Err(OpenError::NoFreeSlot)
    }

    pub(super) fn number(&self) -> u8 {
        self.number
    }

    /// The QPNs that this process may give to its queue pairs.
    pub(super) fn qpns(&self) -> RangeInclusive<u32> {
        let first = u32::from(self.number) << QPN_BITS;
        let last = first | ((1 << QPN_BITS) - 1);
        first.max(FIRST_QPN)..=last
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn presence(&self) -> &Presence {
        &self.presence
    }

    /// Sends a message to a socket that is no slot.
    pub(super) fn answer(&self, to: &SockAddr, message: &[u8]) -> io::Result<()> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        self.socket.send_to_with_flags(message, to, flags).map(drop)
    }

    /// Whether the process in slot `number` is of our user. Anybody can take a name that is free, so this is
    /// asked again whenever the process that was there has ended.
    fn trusts(&self, number: u8) -> bool {
        let mut trusted = self.trusted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = trusted.get(&number)
            && !known.has_ended()
        {
            return true;
        }
        trusted.remove(&number);
        let Ok(Some(found)) = watch(number) else {
            return false;
        };
        let is_ours = found.user().is_ok_and(|user| user == self.user);
        if is_ours {
            trusted.insert(number, found);
        } else {
            tracing::debug!(
                number,
                "the slot is another user's: nothing is passed on to it"
            );
        }
        is_ours
    }

    /// Sends a message to the process in another slot, in two parts.
    pub(super) fn pass(&self, to: u8, header: &[u8], bytes: &[u8]) -> Passed {
        if !self.trusts(to) {
            return Passed::NobodyThere;
        }
        let parts = [IoSlice::new(header), IoSlice::new(bytes)];
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let sent = address(to).and_then(|address| {
            self.socket
                .send_to_vectored_with_flags(&parts, &address, flags)
        });
        match sent {
            Ok(_) => Passed::On,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Passed::Overrun,
                Some(libc::ECONNREFUSED) => Passed::NobodyThere,
                _ => {
                    tracing::debug!(%error, to, "cannot talk to the process in that slot");
                    Passed::NobodyThere
                }
            },
        }
    }
}

/// The slots that processes hold now, in ascending order.
pub(super) fn live_slots() -> io::Result<Vec<u8>> {
    let lookup = Lookup::new()?;
    let mut live = Vec::new();
    for number in 0..SLOTS {
        if lookup.is_taken(&name(number))? {
            live.push(number);
        }
    }
    Ok(live)
}

/// Watches the process in a slot. `None` when there is none, or too many watch it.
pub(crate) fn watch(number: u8) -> io::Result<Option<Watch>> {
    Watch::of(&presence_name(number))
}

/// Sends a message to the process in slot `to` from a socket that may have no slot.
pub(super) fn send(socket: &Socket, to: u8, message: &[u8]) -> io::Result<()> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    socket
        .send_to_with_flags(message, &address(to)?, flags)
        .map(drop)
}

fn address(number: u8) -> io::Result<SockAddr> {
    names::address(&name(number))
}

fn name(number: u8) -> String {
    format!("slot/{number}")
}

fn presence_name(number: u8) -> String {
    format!("alive/{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_differ_and_are_free_again_afterwards() {
        let a = Slot::claim().unwrap();
        let b = Slot::claim().unwrap();
        assert_ne!(a.number(), b.number());
        let live = live_slots().unwrap();
        assert!(live.contains(&a.number()) && live.contains(&b.number()));
        assert_eq!(b.pass(a.number(), b"head", b"body"), Passed::On);
    }

    #[test]
    fn nothing_is_passed_on_to_a_slot_of_another_user() {
        let mut ours = Slot::claim().unwrap();
        let theirs = Slot::claim().unwrap();
        assert_eq!(ours.pass(theirs.number(), b"head", b"body"), Passed::On);
        ours.user = Uid::from_raw(getuid().as_raw() + 1);
        // It is known while it lasts; somebody may take the slot as soon as it has ended.
        let number = theirs.number();
        drop(theirs);
        let next = Slot::claim().unwrap();
        if next.number() == number {
            assert_eq!(ours.pass(number, b"head", b"body"), Passed::NobodyThere);
        }
        assert!(!ours.trusts(next.number()));
    }

    #[test]
    fn the_end_of_a_process_is_seen_by_all_who_watch_it() {
        let slot = Slot::claim().unwrap();
        let early = watch(slot.number()).unwrap().unwrap();
        slot.presence().welcome();
        let late = watch(slot.number()).unwrap().unwrap();
        assert!(!early.has_ended() && !late.has_ended());
        drop(slot);
        assert!(early.has_ended() && late.has_ended());
    }

    #[test]
    fn who_watches_no_more_takes_no_room() {
        let slot = Slot::claim().unwrap();
        for _ in 0..2000 {
            assert!(watch(slot.number()).unwrap().is_some());
            slot.presence().welcome();
        }
    }

    #[test]
    fn qpns_carry_the_slot_and_leave_out_the_management_ones() {
        let slot = |number| Slot {
            number,
            socket: names::socket().unwrap(),
            presence: Presence::announce(&format!("test/{:x}", crate::random::any::<u128>()))
                .unwrap()
                .unwrap(),
            user: getuid(),
            trusted: Mutex::default(),
        };
        let first = slot(0);
        assert_eq!(first.qpns(), 2..=0xffff);
        let last = slot(254);
        assert_eq!(last.qpns(), 0xfe_0000..=0xfe_ffff);
    }
}
