//! Recognition of processes of this user.
//!
//! The kernel reports the user of a peer as mapped into this process's user namespace. A user that
//! is not mapped there is reported as the overflow user, 65534. So if this process runs as that
//! user itself, it cannot distinguish its own processes from others', and trusts none.

use crate::sys::peer_credentials;
use rustix::process::{Uid, geteuid};
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;

/// The overflow user where `/proc` does not report it.
const OVERFLOW_USER: u32 = 65_534;

/// The user of this process, or `None` if it cannot be distinguished from others. It is the
/// effective user, which is also the one that the kernel compares for `SO_REUSEPORT`.
#[derive(Clone, Copy, Debug)]
pub(super) struct User(Option<Uid>);

impl User {
    pub(super) fn of_this_process() -> User {
        let user = geteuid();
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        let map = || fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let is_ambiguous = user.as_raw() == overflow_user(overflow.as_deref()) && !maps_all(&map());
        User((!is_ambiguous).then_some(user))
    }

    /// Returns a user that this process does not run as.
    #[cfg(test)]
    pub(super) fn other() -> User {
        User(Some(Uid::from_raw(geteuid().as_raw() + 1)))
    }

    /// Whether any process is trusted.
    pub(super) fn is_known(self) -> bool {
        self.0.is_some()
    }

    /// Whether the process at the other end of a connected Unix socket is this user's. On the
    /// connecting side that is the process that called listen, with its user at that time; on the
    /// accepting side it is the process that connected.
    pub(super) fn is_peer_of(self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        let peer = peer_credentials(socket)?.uid;
        Ok(self.0.is_some_and(|user| user.as_raw() == peer))
    }
}

fn overflow_user(text: Option<&str>) -> u32 {
    text.and_then(|text| text.trim().parse().ok())
        .unwrap_or(OVERFLOW_USER)
}

/// Whether a user namespace with this map maps every user (`user_namespaces(7)`).
fn maps_all(map: &str) -> bool {
    let named = |line: &str| -> Option<u64> { line.split_whitespace().nth(2)?.parse().ok() };
    map.lines().filter_map(named).sum::<u64>() >= u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_initial_user_namespace_maps_all_users() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(!maps_all("         0       1000          1\n"));
        assert!(!maps_all("0 1000 1\n1 100000 65536\n"));
        assert!(!maps_all(""));
    }

    #[test]
    fn overflow_user_is_the_kernels() {
        assert_eq!(overflow_user(Some("99\n")), 99);
        assert_eq!(overflow_user(None), OVERFLOW_USER);
    }

    #[test]
    fn ambiguous_user_trusts_no_peer() {
        let (one, _other) =
            socket2::Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        use std::os::fd::AsFd;
        assert!(User::of_this_process().is_peer_of(one.as_fd()).unwrap());
        assert!(!User::other().is_peer_of(one.as_fd()).unwrap());
        assert!(!User(None).is_peer_of(one.as_fd()).unwrap());
    }
}
