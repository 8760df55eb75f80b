//! Queue pairs that wait for room in the send buffer of a socket.
//!
//! A queue pair finds a socket full with its lock held, and mostly with the table of memory regions
//! held for reading, so it must not sleep. It adds itself to the list here, then asks the kernel to
//! report room. The report wakes the progress thread, in all of its modes, which takes the list and
//! lets each queue pair send.
//!
//! A queue pair that is added after the list was taken asks after that, and the kernel reports at
//! once if there is room by then, so no wake-up is lost. A queue pair is on the list once; if the
//! socket is full again when it is served, it goes back.

use super::Engine;
use crate::event_queue::lock;
use crate::qp::Qp;
use crate::regions::regions;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use urxe_net::{Path, TxSocket};

/// The number of reports that are taken at a time. A process has few sockets that send.
const REPORTS: usize = 32;

/// The queue pairs, and the sockets that they wait for.
#[derive(Debug)]
pub(super) struct Rooms {
    waiting: Mutex<Vec<(Weak<Qp>, Arc<TxSocket>)>>,
    /// Readable when a socket has room and its report has not been taken.
    reports: OwnedFd,
}

impl Rooms {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Rooms {
            waiting: Mutex::default(),
            reports: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    fn add(&self, qp: &Arc<Qp>, socket: &Arc<TxSocket>) {
        // With the lock held, so that the first two queue pairs of a socket do not both add it.
        let mut waiting = lock(&self.waiting);
        waiting.push((Arc::downgrade(qp), Arc::clone(socket)));
        if let Err(error) = self.ask(socket.fd()) {
            tracing::warn!(%error, "room in a socket will not be noticed");
            socket.set_full(false);
        }
    }

    /// Has the kernel report once when the socket has room.
    fn ask(&self, socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let once = epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT;
        let data = epoll::EventData::new_u64(0);
        match epoll::modify(&self.reports, socket, data, once) {
            Err(Errno::NOENT) => epoll::add(&self.reports, socket, data, once),
            result => result,
        }
    }

    /// Takes the pending reports. False when there are none.
    fn take_reports(&self) -> bool {
        let mut events = Vec::with_capacity(REPORTS);
        let timeout = Timespec::default();
        let taken = epoll::wait(&self.reports, spare_capacity(&mut events), Some(&timeout));
        matches!(taken, Ok(1..))
    }
}

/// Readable when waiting queue pairs may send.
impl AsFd for Rooms {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }
}

impl Engine {
    /// Adds `qp` to the queue pairs that wait for room in the socket of `path`. [`Qp::room_found`]
    /// is called when there is room.
    pub(crate) fn wait_for_room(&self, qp: &Arc<Qp>, path: &Path) {
        if let Some(network) = self.network.get() {
            network.rooms.add(qp, path.socket());
        }
    }

    /// Lets queue pairs send whose sockets have room. The caller must hold no lock.
    pub(super) fn use_rooms(&self) {
        let Some(network) = self.network.get() else {
            return;
        };
        if !network.rooms.take_reports() {
            return;
        }
        let waiting = std::mem::take(&mut *lock(&network.rooms.waiting));
        for (_, socket) in &waiting {
            socket.set_full(false);
        }
        for (qp, socket) in waiting {
            // A queue pair before this one may have filled the socket again.
            if let Some(qp) = qp.upgrade() {
                match socket.is_full() {
                    true => network.rooms.add(&qp, &socket),
                    false => qp.room_found(regions().table()),
                }
            }
        }
    }
}
