//! Queue pairs that wait until a socket is writable: its send buffer was full.
//!
//! A queue pair finds a socket full with its lock held, and mostly with the table of memory regions
//! held for reading, so it must not sleep. It adds itself to the list, then asks the kernel to
//! report space. The report wakes the progress thread, in all of its modes, which takes the list
//! and lets each queue pair send.
//!
//! A queue pair that is added after the list was taken asks after that, and the kernel reports at
//! once if there is space by then, so no wake-up is lost. A queue pair is on the list once; if the
//! socket is full again when it is served, it goes back.

use crate::queues::qp::Qp;
use crate::sync::{Mutex, lock};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use urxe_net::TxSocket;

/// The number of reports that are taken at a time. A process has few sockets that send.
const MAX_REPORTS: usize = 32;

/// The queue pairs, and the sockets that they wait for.
#[derive(Debug)]
pub(super) struct WritableWaiters {
    waiting: Mutex<Vec<(Weak<Qp>, Arc<TxSocket>)>>,
    /// Readable when a socket is writable and its report has not been taken.
    reports: OwnedFd,
}

impl WritableWaiters {
    pub(super) fn new() -> io::Result<Self> {
        Ok(WritableWaiters {
            waiting: Mutex::default(),
            reports: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Adds a queue pair that waits until `socket` is writable.
    pub(super) fn add(&self, qp: &Arc<Qp>, socket: &Arc<TxSocket>) {
        // With the lock held, so that the first two queue pairs of a socket do not both add it.
        let mut waiting = lock(&self.waiting);
        waiting.push((Arc::downgrade(qp), Arc::clone(socket)));
        if let Err(error) = self.ask(socket.fd()) {
            tracing::warn!(%error, "cannot wait until a socket is writable");
            socket.set_full(false);
        }
    }

    /// Has the kernel report once when the socket is writable.
    fn ask(&self, socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let once = epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT;
        let data = epoll::EventData::new_u64(0);
        match epoll::modify(&self.reports, socket, data, once) {
            Err(Errno::NOENT) => epoll::add(&self.reports, socket, data, once),
            result => result,
        }
    }

    /// Removes and returns the queue pairs, with the socket that each waits for, if any socket is
    /// writable. A send to one that is not adds its queue pair again.
    pub(super) fn take(&self) -> Vec<(Arc<Qp>, Arc<TxSocket>)> {
        if !self.take_reports() {
            return Vec::new();
        }
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for (_, socket) in &waiting {
            socket.set_full(false);
        }
        let alive = |(qp, socket): (Weak<Qp>, _)| Some((qp.upgrade()?, socket));
        waiting.into_iter().filter_map(alive).collect()
    }

    /// Takes the pending reports. False when there are none.
    fn take_reports(&self) -> bool {
        let mut events = Vec::with_capacity(MAX_REPORTS);
        let timeout = Timespec::default();
        let taken = epoll::wait(&self.reports, spare_capacity(&mut events), Some(&timeout));
        matches!(taken, Ok(1..))
    }
}

/// Readable when waiting queue pairs may send.
impl AsFd for WritableWaiters {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }
}
