//! The background thread of the process. It accepts connections, handles connection events,
//! receives introductions of datagram peers, sends keep-alive probes, and closes connections whose
//! program does not wait for it.

use crate::error::Error;
use crate::sync::lock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::HashMap;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use urxe_driver::cm::{Event, EventChannel};
use urxe_net::thread;

/// A stream, as the thread serves it.
pub(super) trait Stream: fmt::Debug + Send + Sync {
    /// Returns the tag of its identifier.
    fn service_number(&self) -> usize;

    /// Handles an event of its identifier.
    fn handle_event(&self, event: &Event);

    /// Returns the interval of keep-alive probes.
    fn keep_idle(&self) -> Duration;

    /// Sends a keep-alive probe.
    fn keep_alive(&self);
}

/// A socket that receives introductions of datagram peers.
pub(super) trait Datagrams: fmt::Debug + Send + Sync {
    /// Returns the UDP socket on which they arrive.
    fn udp(&self) -> &OwnedFd;

    /// Receives pending introductions.
    fn receive_introductions(&self);
}

/// A connection that is being closed.
pub(super) trait Closing: fmt::Debug + Send + Sync {
    /// Returns the descriptor that is readable when there may be progress, once
    /// [`Closing::advance`] has returned false.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Closes the connection if that does not block. Returns whether it is closed.
    fn advance(&self) -> bool;
}

/// The objects that the thread serves.
#[derive(Debug)]
pub(super) struct Service {
    events: Arc<EventChannel>,
    wake: OwnedFd,
    next: AtomicUsize,
    /// Streams by the tag of their identifiers.
    streams: Mutex<HashMap<usize, Weak<dyn Stream>>>,
    /// Streams without another owner: connections that are being accepted.
    kept: Mutex<HashMap<usize, Arc<dyn Stream>>>,
    /// The times of the next keep-alive probes.
    kept_alive: Mutex<HashMap<usize, Instant>>,
    datagrams: Mutex<Vec<Weak<dyn Datagrams>>>,
    /// Connections that are being closed.
    closing: Mutex<Vec<Arc<dyn Closing>>>,
}

static SERVICE: Mutex<Option<(u32, Arc<Service>)>> = Mutex::new(None);

/// Returns the service of this process. A forked child gets one of its own.
///
/// # Errors
/// Fails if the process has no descriptors or threads left.
pub(super) fn get() -> Result<Arc<Service>, Error> {
    let mut current = lock(&SERVICE);
    if let Some((owner, service)) = &*current {
        if *owner == process::id() {
            return Ok(Arc::clone(service));
        }
        // The parent's service shares its descriptors; dropping it would close the parent's
        // sockets.
        std::mem::forget(Arc::clone(service));
    }
    let service = Arc::new(Service {
        events: Arc::new(EventChannel::of_rare_events()?),
        wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(Error::from)?,
        next: AtomicUsize::new(1),
        streams: Mutex::default(),
        kept: Mutex::default(),
        kept_alive: Mutex::default(),
        datagrams: Mutex::default(),
        closing: Mutex::default(),
    });
    let runs = Arc::clone(&service);
    thread::spawn("urxe-rsockets", move || runs.run())?;
    *current = Some((process::id(), Arc::clone(&service)));
    Ok(service)
}

impl Service {
    /// Returns the event channel of identifiers.
    pub fn channel(&self) -> &Arc<EventChannel> {
        &self.events
    }

    /// Registers a stream for events and returns the tag for its identifier.
    pub fn register(&self, socket: Weak<dyn Stream>) -> usize {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.streams).insert(number, socket);
        number
    }

    /// Owns a stream until it is released.
    pub fn keep(&self, socket: Arc<dyn Stream>) {
        lock(&self.kept).insert(socket.service_number(), socket);
    }

    /// Releases the service's reference to a stream, to which the caller has another one. Returns
    /// whether there was one.
    pub fn release(&self, socket: &dyn Stream) -> bool {
        let kept = lock(&self.kept).remove(&socket.service_number());
        kept.is_some()
    }

    /// Removes a stream that is being closed.
    pub fn forget(&self, socket: &dyn Stream) {
        lock(&self.streams).remove(&socket.service_number());
        self.end_keep_alive(socket);
        self.release(socket);
    }

    /// Starts keep-alive probes.
    pub fn begin_keep_alive(&self, socket: &dyn Stream) {
        let at = Instant::now() + socket.keep_idle();
        lock(&self.kept_alive).insert(socket.service_number(), at);
        self.wake();
    }

    /// Stops keep-alive probes.
    pub fn end_keep_alive(&self, socket: &dyn Stream) {
        lock(&self.kept_alive).remove(&socket.service_number());
    }

    /// Receives introductions for a datagram socket.
    pub fn register_datagrams(&self, socket: Weak<dyn Datagrams>) {
        lock(&self.datagrams).push(socket);
        self.wake();
    }

    /// Removes a datagram socket that is being closed.
    pub fn unregister_datagrams(&self, socket: &dyn Datagrams) {
        lock(&self.datagrams).retain(|other| !std::ptr::addr_eq(other.as_ptr(), socket));
        self.wake();
    }

    /// Closes a connection as soon as that does not have to wait for the peer.
    pub fn close_later(&self, closing: Arc<dyn Closing>) {
        lock(&self.closing).push(closing);
        self.wake();
    }

    fn wake(&self) {
        // Fails only if the descriptor is readable already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        while self.wait() {
            while let Some(event) = self.events.take() {
                self.dispatch(&event);
            }
            self.keep_alive();
        }
    }

    /// Waits for events and receives introductions. Returns whether the descriptors are still open:
    /// the program may have closed them, as closefrom(3) does.
    fn wait(&self) -> bool {
        let datagrams: Vec<_> = {
            let mut known = lock(&self.datagrams);
            known.retain(|socket| socket.strong_count() > 0);
            known.iter().filter_map(Weak::upgrade).collect()
        };
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.events.fd(), PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        let sockets = datagrams.iter();
        fds.extend(sockets.map(|socket| PollFd::new(socket.udp(), PollFlags::IN)));
        let closing = lock(&self.closing).clone();
        let connections = closing.iter();
        fds.extend(
            connections.map(|closing| PollFd::from_borrowed_fd(closing.fd(), PollFlags::IN)),
        );
        let timeout = self.next_keep_alive().map(|left| {
            // Rounded up, so that the probe is due after the wait.
            let left = left + Duration::from_millis(1);
            Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        if let Err(error) = poll(&mut fds, timeout.as_ref()) {
            tracing::debug!(%error, "poll failed");
        }
        if fds[..2]
            .iter()
            .any(|fd| fd.revents().contains(PollFlags::NVAL))
        {
            return false;
        }
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        let ready: Vec<_> = fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect();
        let (of_datagrams, of_closing) = ready.split_at(datagrams.len());
        for (socket, _) in datagrams
            .iter()
            .zip(of_datagrams)
            .filter(|(_, ready)| **ready)
        {
            socket.receive_introductions();
        }
        for (closing, _) in closing.iter().zip(of_closing).filter(|(_, ready)| **ready) {
            if closing.advance() {
                lock(&self.closing).retain(|other| !Arc::ptr_eq(other, closing));
            }
        }
        true
    }

    /// Returns the time until the next keep-alive probe.
    fn next_keep_alive(&self) -> Option<Duration> {
        let first = lock(&self.kept_alive).values().min().copied();
        first.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn dispatch(&self, event: &Event) {
        let socket = lock(&self.streams)
            .get(&event.owner().tag())
            .and_then(Weak::upgrade);
        match socket {
            Some(socket) => socket.handle_event(event),
            // A connection request whose listener was closed.
            None if event.listener.is_some() => event.id.close(),
            None => {}
        }
    }

    fn keep_alive(&self) {
        let now = Instant::now();
        let due: Vec<usize> = {
            let kept_alive = lock(&self.kept_alive);
            let due = kept_alive.iter().filter(|(_, at)| **at <= now);
            due.map(|(number, _)| *number).collect()
        };
        for number in due {
            let socket = lock(&self.streams).get(&number).and_then(Weak::upgrade);
            match socket {
                Some(socket) => {
                    socket.keep_alive();
                    let next = now + socket.keep_idle();
                    if let Some(at) = lock(&self.kept_alive).get_mut(&number) {
                        *at = next;
                    }
                }
                None => drop(lock(&self.kept_alive).remove(&number)),
            }
        }
    }
}
