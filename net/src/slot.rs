//! The slot of a process: its place among those that share port 4791.
//!
//! A slot is a number from 0 to 254, and the top 8 bits of every QPN of the process, so that a QPN
//! names its process. To hold a slot is to hold its name (see `names`), whatever containers and user
//! namespaces the processes live in. Under a second name the process listens for connections of
//! this user's other processes (see `link`), which pass datagrams on to it.

use crate::error::OpenError;
use crate::link::{Link, LinkListener, Reached};
use crate::names::{Lookup, Name};
use crate::trust::User;
use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
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

/// For how long a slot counts as another user's, or empty, before it is looked at again: a look
/// costs a socket, and anybody can send datagrams for such slots. A process that takes the slot
/// opens the port next, which takes about as long.
const STRANGE: Duration = Duration::from_millis(10);

/// A slot that this process holds.
#[derive(Debug)]
pub(super) struct Slot {
    number: u8,
    /// Tells others that the slot is taken.
    _name: Name,
    links: LinkListener,
    user: User,
    /// What is known of other slots.
    others: Mutex<HashMap<u8, Other>>,
}

/// Who is in another slot.
#[derive(Debug)]
enum Other {
    /// A process of this user: others are sent nothing.
    Trusted(Link),
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
        for number in 0..SLOTS {
            let taken = Name::take(&name(number))
                .map_err(|e| OpenError::system("naming a Unix socket", e))?;
            let Some(name) = taken else { continue };
            // Of a process that is just ending one name may be free and the other not.
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
            others: Mutex::default(),
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

    /// Sends a message to the process in another slot, in two parts.
    pub(super) fn pass(&self, to: u8, header: &[u8], bytes: &[u8], now: Time) -> Passed {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        // A second time where the process that was there has ended.
        for _ in 0..2 {
            let link = match others.get(&to) {
                Some(Other::Trusted(link)) => link,
                Some(Other::Strange(until)) if now < *until => return Passed::NobodyThere,
                _ => match Link::to(&link_name(to), self.user) {
                    Ok(Reached::Ours(link)) => {
                        others.insert(to, Other::Trusted(link));
                        continue;
                    }
                    Ok(Reached::Busy) => return Passed::Overrun,
                    failed => {
                        if let Err(error) = failed {
                            tracing::debug!(%error, to, "cannot talk to the process in that slot");
                        }
                        others.insert(to, Other::Strange(now + STRANGE));
                        return Passed::NobodyThere;
                    }
                },
            };
            match link.send(&[header, bytes]) {
                Ok(()) => return Passed::On,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {
                        return Passed::Overrun;
                    }
                    _ => drop(others.remove(&to)),
                },
            }
        }
        Passed::NobodyThere
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

/// Connects to the process in a slot, to see its end. `None` when there is none of this user, or
/// too many have done so.
pub fn watch(number: u8) -> io::Result<Option<Link>> {
    Ok(
        match Link::to(&link_name(number), User::of_this_process())? {
            Reached::Ours(link) => Some(link),
            Reached::Stranger | Reached::Busy => None,
        },
    )
}

fn name(number: u8) -> String {
    format!("slot/{number}")
}

/// Under which the process in a slot accepts connections.
pub(super) fn link_name(number: u8) -> String {
    format!("link/{number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecvBatch;

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
        let number = theirs.number();
        assert_eq!(ours.pass(number, b"head", b"body", Time(0)), Passed::On);
        // It is known while it lasts; another user may take the slot as soon as it has ended.
        ours.user = User::other();
        drop(theirs);
        let _next = Slot::claim().unwrap();
        let passed = ours.pass(number, b"head", b"body", Time(0));
        assert_eq!(passed, Passed::NobodyThere);
    }

    #[test]
    fn an_empty_slot_is_looked_at_again_after_a_time() {
        // So many processes are in no test's network.
        const EMPTY: u8 = SLOTS - 2;
        let ours = Slot::claim().unwrap();
        let then = Time(0) + STRANGE;
        let pass = |now| ours.pass(EMPTY, b"head", b"", now);
        assert_eq!(pass(Time(0)), Passed::NobodyThere);
        let taken = LinkListener::listen(&link_name(EMPTY)).unwrap().unwrap();
        for now in [Time(0), Time(then.0 - 1)] {
            assert_eq!(pass(now), Passed::NobodyThere);
        }
        assert_eq!(pass(then), Passed::On);
        // The end of a process is noticed at once.
        drop(taken);
        assert_eq!(pass(then), Passed::NobodyThere);
    }

    #[test]
    fn the_end_of_a_process_is_seen_by_all_who_watch_it() {
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
    fn who_watches_no_more_takes_no_room() {
        let slot = Slot::claim().unwrap();
        let mut batch = RecvBatch::new();
        for _ in 0..2000 {
            assert!(watch(slot.number()).unwrap().is_some());
            slot.links().recv(&mut batch, |_, _, _, _| {}).unwrap();
        }
    }

    #[test]
    fn qpns_carry_the_slot_and_leave_out_the_management_ones() {
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
