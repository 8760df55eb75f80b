//! The local addresses that this process has opened.

use super::append_list::AppendList;
use super::waker::Waker;
use super::watch::WatchSet;
use crate::lock_order::{Ordered, Rank};
use crate::loss::{ClosedDescriptors, is_loss};
use crate::sync::{Mutex, lock};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use urxe_net::{Endpoint, LocalAddress, OpenError, RecvBatch, SendBatch, Shared};
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

/// A local address with its sockets and receive buffers.
pub(crate) struct LocalPort {
    endpoint: Endpoint,
    pub(crate) receiver: Mutex<Receiver>,
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
            receiver: Mutex::default(),
            loss: Arc::clone(&self.loss),
        });
        tracing::debug!(%address, "opened port 4791");
        // The set is level-triggered: the progress thread wakes for a packet until it finds the
        // address in the list.
        self.watch
            .watch(port.endpoint.fd(), port.endpoint.service_fd())
            .map_err(|source| OpenError::System {
                what: "watching a socket",
                source,
            })?;
        self.list.push(Arc::clone(&port));
        Ok(port)
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
