//! The slot of a process: its place among those that share port 4791.
//!
//! A slot is a number from 0 to 254, and the top 8 bits of every QPN of the process, so that a QPN
//! names its process. To hold a slot is to hold its name (see `names`), whatever containers and user
//! namespaces the processes live in. The same socket takes the datagrams that other processes pass
//! on.

use crate::error::OpenError;
use crate::names::{self, Lookup, Presence, Watch};
use crate::process_socket::ProcessSocket;
use rustix::process::{Uid, getuid};
use socket2::{SockAddr, Socket};
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use urxe_proto::time::Time;

/// How many processes share a network namespace. Slot 255 does not exist: its QPNs are those of
/// probes and of multicast.
pub const SLOTS: u8 = 255;

/// How many low bits of a QPN the process numbers itself.
pub const QPN_BITS: u32 = 16;

/// QPNs 0 and 1 are those of the management interfaces, which belong to no process (9.2.4).
const FIRST_QPN: u32 = 2;

/// For how long nobody looks again who is in a slot in which there was nobody of this user: a look costs a socket, and
/// anybody can send datagrams for slots that are empty. Who takes one opens the port next, which
/// takes about as long.
const STRANGE: Duration = Duration::from_millis(10);

/// A slot that this process holds.
#[derive(Debug)]
pub(super) struct Slot {
    number: u8,
    socket: ProcessSocket,
    presence: Presence,
    user: Uid,
    /// What is known of other slots.
    others: Mutex<HashMap<u8, Other>>,
}

/// Who is in another slot.
#[derive(Debug)]
enum Other {
    /// A process of this user: nobody else is told anything.
    Trusted(Watch),
    /// Nobody, or another user's process. It is so until then.
    Strange(Time),
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
                        others: Mutex::default(),
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
    fn trusts(&self, number: u8, now: Time) -> bool {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        match others.get(&number) {
            Some(Other::Trusted(known)) if !known.has_ended() => return true,
            Some(Other::Strange(until)) if now < *until => return false,
            _ => {}
        }
        let found = watch(number).ok().flatten();
        let is_ours = |found: &Watch| found.user().is_ok_and(|user| user == self.user);
        let (other, trusted) = match found {
            Some(found) if is_ours(&found) => (Other::Trusted(found), true),
            found => {
                if found.is_some() {
                    tracing::debug!(
                        number,
                        "the slot is another user's: nothing is passed on to it"
                    );
                }
                (Other::Strange(now + STRANGE), false)
            }
        };
        others.insert(number, other);
        trusted
    }

    /// Sends a message to the process in another slot, in two parts.
    pub(super) fn pass(&self, to: u8, header: &[u8], bytes: &[u8], now: Time) -> Passed {
        if !self.trusts(to, now) {
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
pub fn watch(number: u8) -> io::Result<Option<Watch>> {
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
        assert_eq!(b.pass(a.number(), b"head", b"body", Time(0)), Passed::On);
    }

    #[test]
    fn nothing_is_passed_on_to_a_slot_of_another_user() {
        let mut ours = Slot::claim().unwrap();
        let theirs = Slot::claim().unwrap();
        assert_eq!(
            ours.pass(theirs.number(), b"head", b"body", Time(0)),
            Passed::On
        );
        ours.user = Uid::from_raw(getuid().as_raw() + 1);
        // It is known while it lasts; somebody may take the slot as soon as it has ended.
        let number = theirs.number();
        drop(theirs);
        let next = Slot::claim().unwrap();
        if next.number() == number {
            assert_eq!(
                ours.pass(number, b"head", b"body", Time(0)),
                Passed::NobodyThere
            );
        }
        assert!(!ours.trusts(next.number(), Time(0)));
    }

    #[test]
    fn nobody_looks_again_at_once_who_is_in_an_empty_slot() {
        // So many processes are in no test's network.
        const EMPTY: u8 = SLOTS - 2;
        let ours = Slot::claim().unwrap();
        let then = Time(0) + STRANGE;
        assert!(!ours.trusts(EMPTY, Time(0)));
        let taken = Presence::announce(&presence_name(EMPTY)).unwrap().unwrap();
        for now in [Time(0), Time(then.0 - 1)] {
            assert_eq!(ours.pass(EMPTY, b"head", b"", now), Passed::NobodyThere);
        }
        assert!(ours.trusts(EMPTY, then));
        // The end of a process is noticed at once.
        drop(taken);
        assert!(!ours.trusts(EMPTY, then));
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
            others: Mutex::default(),
        };
        let first = slot(0);
        assert_eq!(first.qpns(), 2..=0xffff);
        let last = slot(254);
        assert_eq!(last.qpns(), 0xfe_0000..=0xfe_ffff);
    }
}
