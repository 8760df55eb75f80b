//! The engine of the process, and opening its network part.

use super::deferred_lists::DeferredLists;
use super::engine::{Engine, Network};
use super::exit;
use super::groups::{Groups, Joined};
use super::progress;
use super::timer_fd::TimerFd;
use super::writable::WritableWaiters;
use crate::per_process::PerProcess;
use crate::ports::{Ports, WatchSet};
use crate::queues::gsi::{Gsi, GsiResources};
use crate::queues::qp::{Qp, QpResources};
use crate::scheduling::affinity::{Affinity, CqAffinity};
use crate::scheduling::watchdog::Watchdog;
use crate::sync::{Mutex, lock};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use urxe_net::{LocalAddress, OpenError, Shared, thread};
use urxe_proto::ids::Qpn;
use urxe_proto::queue::NoMemory;

static ENGINE: PerProcess<Engine> = PerProcess::new();

/// The engine of this process. A forked child has another one than its parent, and so has a process
/// that has closed the descriptors of its first one.
///
/// Objects do not hold a reference to it, which would be that of the parent in a child. The calls
/// of programs get it here and pass it on; nothing below them calls this function.
#[inline]
pub fn get() -> &'static Engine {
    ENGINE.get(Engine::new)
}

impl Engine {
    /// Returns the network part. The first call takes this process's slot of port 4791 and starts
    /// the progress thread.
    fn network(&'static self) -> Result<&'static Network, OpenError> {
        if let Some(network) = self.network.get() {
            return Ok(network);
        }
        let _opening = lock(&self.opening);
        if let Some(network) = self.network.get() {
            return Ok(network);
        }
        let shared = Shared::new(urxe_net::Options::from_env()?)?;
        let network = self.open_network(shared).map_err(starting)?;
        self.loss.on_report(|| {
            ENGINE.forget();
            let failing = thread::spawn("urxe-failing", || self.fail_all());
            if let Err(error) = failing {
                tracing::error!(%error, "the queue pairs cannot be taken to error");
            }
        });
        progress::start(self).map_err(starting)?;
        // SAFETY: `atexit` takes an `extern "C"` function that does not unwind: `leave` catches
        // panics. It stays loaded, since the library is never unloaded. If the registration fails,
        // same-host peers notice the end of this process by its liveness socket.
        unsafe { libc::atexit(at_exit) };
        Ok(self.network.get_or_init(|| network))
    }

    fn open_network(&self, shared: Arc<Shared>) -> io::Result<Network> {
        let watch = Arc::new(WatchSet::new(self.waker.open()?, shared.fd())?);
        let writable = WritableWaiters::new()?;
        watch.watch_control(writable.as_fd())?;
        let deferred = DeferredLists::new(&self.loss)?;
        tracing::debug!(slot = shared.slot(), "took a slot of port 4791");
        let ports = Arc::new(Ports::new(
            Arc::clone(&shared),
            Arc::clone(&watch),
            Arc::clone(&self.waker),
            Arc::clone(&self.loss),
        ));
        let resources = GsiResources {
            ports: Arc::clone(&ports),
            qps: Arc::clone(&self.qps),
            batches: Arc::clone(&self.batches),
            waker: Arc::clone(&self.waker),
            watch: Arc::clone(&watch),
            loss: Arc::clone(&self.loss),
        };
        Ok(Network {
            gsi: Gsi::new(shared.slot(), shared.options().keepalive_timeout, resources),
            shared,
            ports,
            groups: Groups::default(),
            forwarded: Mutex::default(),
            deferred,
            writable,
            watch,
            watchdog: Watchdog::new(TimerFd::new(&self.loss)?),
        })
    }

    /// Returns queue pair 1, which carries the connection manager's messages.
    ///
    /// # Errors
    /// [`OpenError`] when the network part cannot be opened.
    pub fn gsi(&'static self) -> Result<&'static Gsi, OpenError> {
        Ok(&self.network()?.gsi)
    }

    /// Returns the open addresses.
    pub(crate) fn ports(&'static self) -> Result<&'static Arc<Ports>, OpenError> {
        Ok(&self.network()?.ports)
    }

    /// Returns the range of numbers for queue pairs and other numbered objects of this process.
    pub(crate) fn numbers(&'static self) -> Result<RangeInclusive<u32>, OpenError> {
        Ok(self.network()?.shared.qpns())
    }

    /// Opens all of these addresses, for receivers of datagrams.
    ///
    /// # Errors
    /// The error of the first address, when none can be opened.
    pub(crate) fn open_all(
        &'static self,
        addresses: impl Iterator<Item = LocalAddress>,
    ) -> Result<(), OpenError> {
        self.ports()?.open_all(addresses)
    }

    /// Waits, for 1 s at most, until packets that `URXE_FAULTS` delays are sent.
    pub(crate) fn wait_for_delayed_packets(&self) {
        if let Some(network) = self.network.get() {
            network.ports.wait_for_delayed_packets();
        }
    }

    /// Returns the parts that a new queue pair shares with the others.
    pub(crate) fn qp_resources(&'static self) -> Result<QpResources, OpenError> {
        Ok(QpResources {
            batches: Arc::clone(&self.batches),
            out_of_order: Arc::clone(&self.out_of_order),
            congestion: self.network()?.shared.options().congestion,
        })
    }

    /// Returns the affinity of `owners`, and gives it to those that have none: that of one of them,
    /// or the next.
    pub(crate) fn affinity_of(&self, owners: &[&CqAffinity]) -> Affinity {
        let known = || owners.iter().find_map(|owner| owner.known());
        let affinity = known().unwrap_or_else(|| self.affinities.next());
        owners.iter().for_each(|owner| owner.set(affinity));
        // Another thread may have set one at the same time.
        known().unwrap_or(affinity)
    }

    /// Adds the queue pair that `make` makes for a free number, with the affinity of `owners`, its
    /// completion queues or its XRC domain, if such a number is found. Returns `None` when no
    /// number is free.
    pub(crate) fn add_qp(
        &'static self,
        owners: &[&CqAffinity],
        make: impl FnOnce(Qpn) -> Result<Arc<Qp>, NoMemory>,
    ) -> Result<Option<Result<Arc<Qp>, NoMemory>>, OpenError> {
        let range = self.numbers()?;
        let affinity = self.affinity_of(owners);
        let fits = |qpn| Affinity::of(qpn) == affinity;
        let make = |qpn| {
            self.affinities.add(Affinity::of(qpn));
            make(qpn)
        };
        Ok(self.qps.write().add(range, fits, make).transpose())
    }

    /// Starts to receive the frames of a queue pair for raw packets, which arrive at `fd`.
    pub(crate) fn add_raw(&self, qp: &Arc<Qp>, fd: BorrowedFd<'_>) -> io::Result<()> {
        if let Some(network) = self.network.get() {
            network.watch.watch_packets(fd)?;
            self.waker.wake();
        }
        let mut raw = self.raw.write().unwrap_or_else(PoisonError::into_inner);
        raw.push(Arc::downgrade(qp));
        self.has_raw.store(true, Ordering::Release);
        Ok(())
    }

    /// Attaches a queue pair to a group on an interface. The first queue pair joins the group
    /// through the local address `from`.
    pub(crate) fn attach(
        &'static self,
        qp: &Arc<Qp>,
        from: LocalAddress,
        (ip, interface): (IpAddr, u32),
    ) -> Result<(), OpenError> {
        let network = self.network()?;
        let port = network.ports.open(from)?;
        let group = LocalAddress::group(ip, interface);
        let mut list = network.groups.write();
        if !list.iter().any(|joined| joined.group.address() == group) {
            let joined = Joined {
                group: port.endpoint().join(ip, interface)?,
                receiver: Mutex::default(),
            };
            network
                .watch
                .watch_packets(joined.group.fd())
                .map_err(|source| OpenError::System {
                    what: "watching a socket",
                    source,
                })?;
            tracing::debug!(%group, "joined a multicast group");
            list.push(Arc::new(joined));
            network.groups.changed(&list);
            self.waker.wake();
        }
        self.qps.write().attach(group, qp);
        Ok(())
    }

    /// Detaches a queue pair. When this returns, it receives nothing more from the group, and the
    /// group is left if no queue pair is attached.
    pub(crate) fn detach(&self, qp: &Qp, (ip, interface): (IpAddr, u32)) {
        let Some(network) = self.network.get() else {
            return;
        };
        let group = LocalAddress::group(ip, interface);
        let mut list = network.groups.write();
        let mut qps = self.qps.write();
        qps.detach(group, qp);
        if qps.members(group).is_empty() {
            list.retain(|joined| joined.group.address() != group);
            network.groups.changed(&list);
        }
    }
}

fn starting(source: io::Error) -> OpenError {
    OpenError::System {
        what: "starting the progress thread",
        source,
    }
}

/// Ends this process's use of the network, for atexit(3), so that same-host peers lose no packets.
extern "C" fn at_exit() {
    // Neither a panic nor a pending cancellation may change the way in which the process ends.
    thread::without_cancellation(|| {
        let _ = std::panic::catch_unwind(|| exit::close_network(get()));
    });
}
