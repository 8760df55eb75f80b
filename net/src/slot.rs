//! The slot of a process: its part of the QPN space among the processes that share port 4791.
//!
//! A slot is a number from 0 to 254. It is the top 8 bits of every QPN of the process, so a QPN
//! identifies its process. A process holds a slot by holding its abstract name (see `names`),
//! across containers and user namespaces. Under a second name it listens for connections of this
//! user's other processes (see `link`), which forward datagrams to it.

use crate::error::OpenError;
use crate::link::{Connected, Link, LinkListener};
use crate::names::{Lookup, Name};
use crate::qpn::{FIRST_QPN, QPN_BITS, SLOTS};
use crate::sync::lock;
use crate::user::User;
use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::time::Duration;
use urxe_proto::time::Time;

/// The time for which a slot counts as empty or another user's before it is checked again. A check
/// opens a socket, and any host can send datagrams for such slots. A process that takes a slot
/// opens the port next, which takes about as long.
const RECHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A slot that this process holds.
#[derive(Debug)]
pub(super) struct Slot {
    number: u8,
    /// The name that marks the slot as taken.
    _name: Name,
    links: LinkListener,
    user: User,
    /// The state of other slots.
    peers: Mutex<HashMap<u8, Peer>>,
}

/// The owner of another slot.
#[derive(Debug)]
enum Peer {
    /// A process of this user. Only such processes are sent anything.
    Reachable(Link),
    /// No process, or one of another user; valid until the given time.
    Absent(Time),
}

/// The result of forwarding a message to another slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Forwarded {
    /// The message is in the queue of that process.
    Sent,
    /// The queue of that process is full.
    QueueFull,
    /// No process of this user holds that slot.
    NoProcess,
}

impl Slot {
    /// Takes the lowest free slot.
    pub(super) fn claim() -> Result<Slot, OpenError> {
        for number in 0..SLOTS {
            let taken = Name::take(&name(number))
                .map_err(|e| OpenError::system("naming a Unix socket", e))?;
            let Some(name) = taken else { continue };
            // While a process ends, one of its names may be free and the other still taken.
            let listening = LinkListener::listen(&link_name(number))
                .map_err(|e| OpenError::system("listening on a Unix socket", e))?;
            if let Some(links) = listening {
                return Ok(Slot::new(number, name, links));
            }
        }
        Err(OpenError::NoFreeSlot)
    }

    fn new(number: u8, name: Name, links: LinkListener) -> Slot {
        Slot {
            number,
            _name: name,
            links,
            user: User::of_this_process(),
            peers: Mutex::default(),
        }
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

    /// The connections of this user's other processes.
    pub(super) fn links(&self) -> &LinkListener {
        &self.links
    }

    /// Sends a message, given in two parts, to the process in another slot.
    pub(super) fn send(&self, to: u8, header: &[u8], bytes: &[u8], now: Time) -> Forwarded {
        let mut peers = lock(&self.peers);
        // The second iteration reconnects if the process of the first connection has ended.
        for _ in 0..2 {
            let link = match peers.get(&to) {
                Some(Peer::Reachable(link)) => link,
                Some(Peer::Absent(until)) if now < *until => return Forwarded::NoProcess,
                _ => match Link::to(&link_name(to), self.user) {
                    Ok(Connected::Ours(link)) => {
                        peers.insert(to, Peer::Reachable(link));
                        continue;
                    }
                    Ok(Connected::BacklogFull) => return Forwarded::QueueFull,
                    failed => {
                        if let Err(error) = failed {
                            tracing::debug!(%error, to, "cannot connect to that slot");
                        }
                        peers.insert(to, Peer::Absent(now + RECHECK_INTERVAL));
                        return Forwarded::NoProcess;
                    }
                },
            };
            match link.send(&[header, bytes]) {
                Ok(()) => return Forwarded::Sent,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {
                        return Forwarded::QueueFull;
                    }
                    _ => drop(peers.remove(&to)),
                },
            }
        }
        Forwarded::NoProcess
    }
}

/// Returns the slots that processes hold now, in ascending order.
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

/// Connects to the process in a slot, to detect its end. Returns `None` when no process of this
/// user holds the slot, or its backlog of connections is full.
pub fn watch(number: u8) -> io::Result<Option<Link>> {
    Ok(
        match Link::to(&link_name(number), User::of_this_process())? {
            Connected::Ours(link) => Some(link),
            Connected::Refused | Connected::BacklogFull => None,
        },
    )
}

fn name(number: u8) -> String {
    format!("slot/{number}")
}

/// Returns the name under which the process in a slot accepts connections.
pub(super) fn link_name(number: u8) -> String {
    format!("link/{number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecvBatch;

    #[test]
    fn slots_differ_and_are_free_after_they_are_dropped() {
        let a = Slot::claim().unwrap();
        let b = Slot::claim().unwrap();
        assert_ne!(a.number(), b.number());
        let live = live_slots().unwrap();
        assert!(live.contains(&a.number()) && live.contains(&b.number()));
        assert_eq!(
            b.send(a.number(), b"head", b"body", Time(0)),
            Forwarded::Sent
        );
    }

    #[test]
    fn nothing_is_sent_to_a_slot_of_another_user() {
        let mut ours = Slot::claim().unwrap();
        let theirs = Slot::claim().unwrap();
        let number = theirs.number();
        assert_eq!(
            ours.send(number, b"head", b"body", Time(0)),
            Forwarded::Sent
        );
        // A connection to an ended process is not reused: another user may have taken the slot.
        ours.user = User::other();
        drop(theirs);
        let _next = Slot::claim().unwrap();
        let result = ours.send(number, b"head", b"body", Time(0));
        assert_eq!(result, Forwarded::NoProcess);
    }

    #[test]
    fn empty_slot_is_checked_again_after_the_interval() {
        // No test starts so many processes.
        const EMPTY: u8 = SLOTS - 2;
        let ours = Slot::claim().unwrap();
        let then = Time(0) + RECHECK_INTERVAL;
        let send = |now| ours.send(EMPTY, b"head", b"", now);
        assert_eq!(send(Time(0)), Forwarded::NoProcess);
        let taken = LinkListener::listen(&link_name(EMPTY)).unwrap().unwrap();
        for now in [Time(0), Time(then.0 - 1)] {
            assert_eq!(send(now), Forwarded::NoProcess);
        }
        assert_eq!(send(then), Forwarded::Sent);
        // The end of a process is detected without delay.
        drop(taken);
        assert_eq!(send(then), Forwarded::NoProcess);
    }

    #[test]
    fn end_of_a_process_is_reported_on_every_liveness_socket() {
        let slot = Slot::claim().unwrap();
        let early = watch(slot.number()).unwrap().unwrap();
        let mut batch = RecvBatch::new();
        slot.links().recv(&mut batch, |_, _, _, _| {}).unwrap();
        let late = watch(slot.number()).unwrap().unwrap();
        assert!(!early.has_ended() && !late.has_ended());
        drop(slot);
        assert!(early.has_ended() && late.has_ended());
    }

    #[test]
    fn closed_liveness_sockets_leave_no_connections() {
        let slot = Slot::claim().unwrap();
        let mut batch = RecvBatch::new();
        for _ in 0..2000 {
            assert!(watch(slot.number()).unwrap().is_some());
            slot.links().recv(&mut batch, |_, _, _, _| {}).unwrap();
        }
    }

    #[test]
    fn qpns_contain_the_slot_and_exclude_the_management_qpns() {
        let slot = |number| {
            let unique = format!("test/{:x}", crate::random::any::<u128>());
            let name = Name::take(&unique).unwrap().unwrap();
            let links = LinkListener::listen(&unique).unwrap().unwrap();
            Slot::new(number, name, links)
        };
        let first = slot(0);
        assert_eq!(first.qpns(), 2..=0xffff);
        let last = slot(254);
        assert_eq!(last.qpns(), 0xfe_0000..=0xfe_ffff);
    }
}
