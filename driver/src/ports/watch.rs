//! The descriptors that the progress thread sleeps on.

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two sets of descriptors: those that wake the progress thread in every mode, and the sockets on
/// which packets arrive.
#[derive(Debug)]
pub(crate) struct WatchSet {
    control: OwnedFd,
    sockets: OwnedFd,
    /// The number of sockets that were ever added to the second set.
    packets: AtomicUsize,
}

impl WatchSet {
    /// Creates the sets. `wake` and `forwarded` wake the thread in every mode: the second is
    /// readable when another process has connected, or has forwarded a packet.
    pub(crate) fn new(wake: BorrowedFd<'_>, forwarded: BorrowedFd<'_>) -> io::Result<Self> {
        let set = WatchSet {
            control: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sockets: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            packets: AtomicUsize::new(0),
        };
        add(&set.control, wake)?;
        add(&set.control, forwarded)?;
        Ok(set)
    }

    /// Adds the sockets of an address: `packets` for packets, `service` for port sharing.
    pub(crate) fn watch(&self, packets: BorrowedFd<'_>, service: BorrowedFd<'_>) -> io::Result<()> {
        self.watch_packets(packets)?;
        add(&self.control, service)
    }

    /// Adds a descriptor that wakes the thread in every mode when it is readable.
    pub(crate) fn watch_control(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        add(&self.control, fd)
    }

    /// Adds a connection to another process, and watches it for its end only.
    pub(crate) fn watch_end(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let none = epoll::EventFlags::empty();
        epoll::add(&self.control, fd, epoll::EventData::new_u64(0), none)?;
        Ok(())
    }

    /// Adds a socket on which packets arrive. The caller then wakes the progress thread, which may
    /// sleep on the only socket of before ([`WatchSet::watches_one`]).
    pub(crate) fn watch_packets(&self, packets: BorrowedFd<'_>) -> io::Result<()> {
        self.packets.fetch_add(1, Ordering::AcqRel);
        add(&self.sockets, packets)
    }

    /// Returns whether packets arrive at one socket only.
    pub(crate) fn watches_one(&self) -> bool {
        self.packets.load(Ordering::Acquire) == 1
    }

    /// Returns a descriptor that is readable when the thread must wake in every mode.
    pub(crate) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Returns a descriptor that is readable when a packet has arrived at any of the sockets.
    pub(crate) fn sockets(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }

    /// Returns whether packets have arrived that no thread has received.
    pub(crate) fn has_packets(&self) -> bool {
        let mut fds = [PollFd::new(&self.sockets, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    /// Returns whether the numbers of the first set and of `wake` still belong to the library: only
    /// then does the set contain `wake`.
    pub(crate) fn is_ours(&self, wake: BorrowedFd<'_>) -> bool {
        let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        epoll::modify(&self.control, wake, data, flags).is_ok()
    }
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    epoll::add(
        epoll,
        fd,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::IN,
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn threads_sleep_on_the_set_from_the_second_socket_on() {
        let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let [wake, forwarded, first, second] = [(); 4].map(|()| socket());
        let set = WatchSet::new(wake.as_fd(), forwarded.as_fd()).unwrap();
        assert!(!set.watches_one());
        set.watch_packets(first.as_fd()).unwrap();
        assert!(set.watches_one() && !set.has_packets());
        set.watch_packets(second.as_fd()).unwrap();
        assert!(!set.watches_one());
        second.send_to(b"a", second.local_addr().unwrap()).unwrap();
        assert!(set.has_packets());
    }
}
