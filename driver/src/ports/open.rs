//! The local addresses that this process has opened.

use super::append_list::AppendList;
use super::waker::Waker;
use super::watch::WatchSet;
use crate::lock_order::{Ordered, Rank};
use crate::loss::{ClosedDescriptors, is_loss};
use crate::scheduling::affinity::Affinity;
use crate::scheduling::limits::{CONTENDED_POLLS, CONTENTION_PERIOD, POLLS_BEFORE_CHECK};
use crate::sync::{Mutex, MutexGuard, lock};
use crossbeam_utils::CachePadded;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use urxe_net::{
    Endpoint, LocalAddress, MAX_RECEIVE_SOCKETS, OpenError, RecvBatch, SendBatch, Shared,
};
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::time::Time;

/// The longest time for which the end of a queue pair waits for packets that `URXE_FAULTS` delays.
const DELAYED_PACKETS_TIMEOUT: Duration = Duration::from_secs(1);

/// The buffers of one receiving thread.
#[derive(Default)]
pub(crate) struct Receiver {
    pub(crate) batch: RecvBatch,
    /// The queue pairs that received packets of the present batch and have not transmitted since.
    pub(crate) to_answer: Vec<Qpn>,
    /// The batch for answers, once there was one.
    pub(crate) answers: Option<Box<SendBatch>>,
}

/// One of the receive sockets of an address.
#[derive(Default)]
pub(crate) struct ReceiveSocket {
    receiver: CachePadded<Mutex<Receiver>>,
    /// The number of times that a poll received from the socket.
    polls: CachePadded<AtomicU32>,
    /// The polls of other sockets, as polls of this one last read them.
    pub(crate) seen: SeenPolls,
    /// The affinity of the poll that last locked the receiver; [`NOT_POLLED`] after another caller.
    holder: AtomicU8,
}

/// The numbers of polls of each receive socket, as a thread last read them.
#[derive(Default)]
pub(crate) struct SeenPolls([AtomicU32; MAX_RECEIVE_SOCKETS]);

/// See [`ReceiveSocket::holder`].
const NOT_POLLED: u8 = u8::MAX;

impl ReceiveSocket {
    /// Returns the receiver, to be locked by a thread that waits for it.
    pub(crate) fn receiver(&self) -> &Mutex<Receiver> {
        &self.receiver
    }

    /// Locks the receiver, unless another thread receives with it. `poll` is the affinity of the
    /// queue that a poll of the program takes completions from, `None` for other callers.
    #[inline]
    pub(crate) fn try_lock(
        &self,
        poll: Option<Affinity>,
    ) -> Option<Ordered<MutexGuard<'_, Receiver>>> {
        let guard = Ordered::try_take(Rank::Receiver, || self.receiver.try_lock())?;
        let holder = poll.map_or(NOT_POLLED, |affinity| affinity.number() as u8);
        self.holder.store(holder, Ordering::Relaxed);
        Some(guard)
    }

    /// Returns whether a thread holds the receiver.
    pub(crate) fn is_busy(&self) -> bool {
        self.receiver.is_locked()
    }

    /// Returns whether a poll of a queue with another affinity holds the receiver, or did last.
    fn is_held_by_other(&self, affinity: Affinity) -> bool {
        let holder = self.holder.load(Ordering::Relaxed);
        holder != NOT_POLLED && usize::from(holder) != affinity.number()
    }
}

/// A local address with its sockets and receive buffers.
pub(crate) struct LocalPort {
    endpoint: Endpoint,
    first: ReceiveSocket,
    /// The further receive sockets, from number 1 on.
    others: OnceLock<Box<[ReceiveSocket]>>,
    /// Polls that found the first receive socket held by a poll with another affinity.
    contended_polls: CachePadded<AtomicU32>,
    /// The time of the first of them, in nanoseconds.
    contended_since: AtomicU64,
    /// Whether more receive sockets should be opened.
    wants_sockets: AtomicBool,
    /// The polls as the progress thread last read them.
    pub(crate) seen_by_progress: SeenPolls,
    loss: Arc<ClosedDescriptors>,
}

impl std::fmt::Debug for LocalPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LocalPort")
            .field(&self.endpoint.address())
            .finish()
    }
}

impl LocalPort {
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The first receive socket.
    #[inline]
    pub(crate) fn first(&self) -> &ReceiveSocket {
        &self.first
    }

    /// The further receive sockets, if there are any.
    #[inline]
    pub(crate) fn others(&self) -> Option<&[ReceiveSocket]> {
        self.others.get().map(|others| &**others)
    }

    /// All receive sockets with their numbers.
    pub(crate) fn receive_sockets(&self) -> impl Iterator<Item = (usize, &ReceiveSocket)> {
        let others = self.others().unwrap_or_default();
        std::iter::once(&self.first).chain(others).enumerate()
    }

    /// Returns the receive socket of an affinity with its number, according to the steering
    /// program.
    pub(crate) fn socket_of(&self, affinity: Affinity) -> (usize, &ReceiveSocket) {
        let number = affinity.socket(self.endpoint.steered_sockets());
        let others = self.others().unwrap_or_default();
        match number.checked_sub(1).and_then(|index| others.get(index)) {
            Some(socket) => (number, socket),
            None => (0, &self.first),
        }
    }

    /// Counts a poll of the receive socket `socket`. Returns whether this poll also receives from
    /// the sockets that [`LocalPort::unpolled`] returns.
    pub(crate) fn polled(&self, socket: &ReceiveSocket) -> bool {
        let polls = socket.polls.load(Ordering::Relaxed).wrapping_add(1);
        // Of two concurrent additions one may be lost.
        socket.polls.store(polls, Ordering::Relaxed);
        polls.is_multiple_of(POLLS_BEFORE_CHECK)
    }

    /// Returns the receive sockets, with their numbers, that no poll has received from since the
    /// last call with the same record.
    pub(crate) fn unpolled<'a>(
        &'a self,
        seen: &'a SeenPolls,
    ) -> impl Iterator<Item = (usize, &'a ReceiveSocket)> {
        self.receive_sockets().filter(|(number, socket)| {
            let polls = socket.polls.load(Ordering::Relaxed);
            seen.0[*number].swap(polls, Ordering::Relaxed) == polls
        })
    }

    /// Counts a poll that found the receiver locked, by a poll with another affinity. Returns true
    /// once, when the process should open more receive sockets: after [`CONTENDED_POLLS`] within
    /// [`CONTENTION_PERIOD`].
    pub(crate) fn contended(&self, affinity: Affinity) -> bool {
        if self.others().is_some() || !self.first.is_held_by_other(affinity) {
            return false;
        }
        let polls = self.contended_polls.fetch_add(1, Ordering::Relaxed);
        let now = urxe_net::now();
        if polls == 0 {
            self.contended_since.store(now.0, Ordering::Relaxed);
        }
        if polls != CONTENDED_POLLS {
            return false;
        }
        let since = Time(self.contended_since.load(Ordering::Relaxed));
        let wants = now.since(since) < CONTENTION_PERIOD;
        if wants {
            self.wants_sockets.store(true, Ordering::Release);
        } else {
            self.contended_polls.store(0, Ordering::Relaxed);
        }
        wants
    }

    /// Opens further receive sockets, `count` in all, once. After an error there may be fewer.
    /// Returns whether there are several.
    fn open_sockets(&self, count: usize, watch: &WatchSet) -> Result<bool, OpenError> {
        let opened = self.endpoint.add_receive_sockets(count);
        let open = self.endpoint.receive_sockets();
        if open > 1 {
            // Before they are watched: from now on, threads receive from all of them.
            let _ = (self.others).set((1..open).map(|_| ReceiveSocket::default()).collect());
            for fd in (1..open).filter_map(|number| self.endpoint.fd_of(number)) {
                watch.watch_packets(fd).map_err(watching)?;
            }
        }
        opened.map(|()| open > 1)
    }

    /// Reports an error of a system call, which may say that a descriptor is closed.
    pub(crate) fn failed(&self, error: &io::Error) {
        if is_loss(error) {
            self.loss.report();
        }
    }
}

/// The open addresses.
///
/// Opening an address takes up to 20 ms, and every poll reads the list, without a lock. `opening`
/// is held while an address is opened, which delays only other threads that open one.
pub(crate) struct Ports {
    shared: Arc<Shared>,
    watch: Arc<WatchSet>,
    waker: Arc<Waker>,
    loss: Arc<ClosedDescriptors>,
    list: AppendList<Arc<LocalPort>>,
    opening: Mutex<()>,
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ports").field(&self.list).finish()
    }
}

impl Ports {
    /// Creates an empty list. The progress thread receives at each address that is added.
    pub(crate) fn new(
        shared: Arc<Shared>,
        watch: Arc<WatchSet>,
        waker: Arc<Waker>,
        loss: Arc<ClosedDescriptors>,
    ) -> Self {
        Ports {
            shared,
            watch,
            waker,
            loss,
            list: AppendList::new(),
            opening: Mutex::default(),
        }
    }

    /// Returns the open addresses.
    pub(crate) fn list(&self) -> &AppendList<Arc<LocalPort>> {
        &self.list
    }

    /// Returns a descriptor that is readable when a packet has arrived, for a thread that sleeps for
    /// a short time, or that [`Waker::wake`] wakes when another socket is opened.
    ///
    /// While there is only one receive socket, it is that socket: the kernel then wakes the thread
    /// synchronously (`wake_up_sync`), so that the thread can run on the sender's processor as soon
    /// as the sender sleeps. An epoll instance that another call polls has no synchronous wake-up.
    pub(crate) fn packets(&self) -> BorrowedFd<'_> {
        match self.list.iter().next() {
            Some(port) if self.watch.watches_one() => port.endpoint.fd(),
            _ => self.watch.sockets(),
        }
    }

    fn find(&self, address: LocalAddress) -> Option<Arc<LocalPort>> {
        let mut all = self.list.iter();
        let found = all.find(|port| port.endpoint.address() == address);
        found.map(Arc::clone)
    }

    /// Returns the sockets of an address; the first call opens them.
    ///
    /// # Errors
    /// [`OpenError`] when a system call fails.
    pub(crate) fn open(&self, address: LocalAddress) -> Result<Arc<LocalPort>, OpenError> {
        let port = self.find_or_open(address, || self.shared.open(address))?;
        // Packets may have arrived already.
        self.waker.deadline_moved(port.endpoint.next_deadline());
        Ok(port)
    }

    fn find_or_open(
        &self,
        address: LocalAddress,
        open: impl FnOnce() -> Result<Endpoint, OpenError>,
    ) -> Result<Arc<LocalPort>, OpenError> {
        if let Some(port) = self.find(address) {
            return Ok(port);
        }
        let _opening = Ordered::take(Rank::Opening, || lock(&self.opening));
        // Another thread may have opened it meanwhile.
        if let Some(port) = self.find(address) {
            return Ok(port);
        }
        let port = Arc::new(LocalPort {
            endpoint: open()?,
            first: ReceiveSocket::default(),
            others: OnceLock::new(),
            contended_polls: CachePadded::default(),
            contended_since: AtomicU64::new(0),
            wants_sockets: AtomicBool::new(false),
            seen_by_progress: SeenPolls::default(),
            loss: Arc::clone(&self.loss),
        });
        tracing::debug!(%address, "opened port 4791");
        // The set is level-triggered: the progress thread wakes for a packet until it finds the
        // address in the list.
        self.watch
            .watch(port.endpoint.fd(), port.endpoint.service_fd())
            .map_err(watching)?;
        self.list.push(Arc::clone(&port));
        // The progress thread may sleep on the socket of another address alone.
        self.waker.wake();
        Ok(port)
    }

    /// Opens further receive sockets at addresses where polls contend. `count` returns how many
    /// there are then in all, a power of two. Returns that number if any were opened.
    pub(crate) fn open_wanted_sockets(&self, count: impl FnOnce() -> usize) -> Option<usize> {
        let wants = |port: &&Arc<LocalPort>| port.wants_sockets.swap(false, Ordering::AcqRel);
        let wanted: Vec<_> = self.list.iter().filter(wants).collect();
        if wanted.is_empty() {
            return None;
        }
        let count = Some(count()).filter(|count| *count > 1)?;
        let mut opened = None;
        for port in wanted {
            let address = port.endpoint.address();
            match port.open_sockets(count, &self.watch) {
                Ok(true) => {
                    tracing::debug!(%address, count, "opened receive sockets");
                    opened = Some(count);
                }
                Ok(false) => {
                    tracing::debug!(%address, "threads share a receive socket");
                }
                // Not tried again.
                Err(error) => {
                    tracing::warn!(%address, %error, "threads share a receive socket");
                }
            }
        }
        opened
    }

    /// Returns the sockets of an address if they are open.
    pub(crate) fn find_gid(&self, gid: Gid) -> Option<Arc<LocalPort>> {
        let ip = gid.to_ip();
        let found = (self.list.iter()).find(|port| port.endpoint.address().ip() == ip);
        found.map(Arc::clone)
    }

    /// Opens one of these addresses, if none is open yet, so that a port in use is reported before
    /// a connection is made.
    ///
    /// # Errors
    /// The error of the first address, when none can be opened.
    pub(crate) fn open_any(
        &self,
        addresses: impl Iterator<Item = LocalAddress>,
    ) -> Result<(), OpenError> {
        let mut first = None;
        for address in addresses {
            match self.open(address) {
                Ok(_) => return Ok(()),
                Err(error) => {
                    tracing::warn!("{error}");
                    first.get_or_insert(error);
                }
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Opens all of these addresses, for receivers of datagrams, which receive at each of them.
    ///
    /// # Errors
    /// The error of the first address, when none can be opened.
    pub(crate) fn open_all(
        &self,
        addresses: impl Iterator<Item = LocalAddress>,
    ) -> Result<(), OpenError> {
        let opened: Vec<_> = addresses.map(|address| self.open(address)).collect();
        let is_any_open = opened.iter().any(Result::is_ok);
        for error in opened.into_iter().filter_map(Result::err) {
            if !is_any_open {
                return Err(error);
            }
            tracing::warn!("{error}");
        }
        Ok(())
    }

    /// Waits, for 1 s at most, until packets that `URXE_FAULTS` delays are sent. They count as
    /// sent, and must arrive although their queue pair is destroyed.
    pub(crate) fn wait_for_delayed_packets(&self) {
        let start = urxe_net::now();
        loop {
            let now = urxe_net::now();
            let held = |port: &Arc<LocalPort>| port.endpoint.delayed_until();
            let at = self.list.iter().map(held).fold(Time::NEVER, Time::min);
            if at == Time::NEVER || now.since(start) > DELAYED_PACKETS_TIMEOUT {
                return;
            }
            self.waker.deadline_moved(at);
            std::thread::sleep(at.since(now).max(Duration::from_millis(1)));
        }
    }
}

fn watching(source: io::Error) -> OpenError {
    OpenError::System {
        what: "watching a socket",
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use urxe_net::Options;

    #[test]
    fn the_port_list_is_readable_while_a_port_opens() {
        let shared = Shared::new(Options::default()).unwrap();
        let loss = Arc::<ClosedDescriptors>::default();
        let waker = Arc::new(Waker::new(&loss));
        let watch = WatchSet::new(waker.open().unwrap(), shared.fd()).unwrap();
        let ports = Ports::new(Arc::clone(&shared), Arc::new(watch), waker, loss);
        let address = |last| LocalAddress::new([127, 0, 14, last].into(), 1);
        let (first, second) = (address(1), address(2));
        ports.open(first).unwrap();
        let (has_begun, begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        std::thread::scope(|scope| {
            let (ports, shared) = (&ports, &shared);
            let opener = scope.spawn(move || {
                ports.find_or_open(second, || {
                    has_begun.send(()).unwrap();
                    may_go_on.recv().unwrap();
                    shared.open(second)
                })
            });
            begun.recv().unwrap();
            let open_now = ports.list().iter().count();
            go_on.send(()).unwrap();
            let opened = opener.join().unwrap().unwrap();
            assert_eq!(open_now, 1);
            assert!(Arc::ptr_eq(&opened, &ports.open(second).unwrap()));
        });
        assert_eq!(ports.list().iter().count(), 2);
    }
}
