//! The thread that does what no call of the program does: it accepts connections and learns what becomes of
//! those that are being made or ended, receives what introduces peers of datagrams, and looks whether silent
//! peers are there.

use crate::datagram::DatagramSocket;
use crate::error::Error;
use crate::lock;
use crate::stream::StreamSocket;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use urxe_driver::cm::{Event, EventChannel};
use urxe_net::thread;

/// What the thread looks after.
#[derive(Debug)]
pub(super) struct Service {
    events: Arc<EventChannel>,
    wake: OwnedFd,
    next: AtomicUsize,
    /// Sockets by the numbers in their identifiers.
    streams: Mutex<HashMap<usize, Weak<StreamSocket>>>,
    /// Those that nobody else holds yet.
    kept: Mutex<HashMap<usize, Arc<StreamSocket>>>,
    /// Those whose peers are looked for, and when.
    kept_alive: Mutex<HashMap<usize, Instant>>,
    datagrams: Mutex<Vec<Weak<DatagramSocket>>>,
}

static SERVICE: Mutex<Option<(u32, Arc<Service>)>> = Mutex::new(None);

/// That of this process; a forked child has one of its own.
///
/// # Errors
/// When the process has no descriptor, or no thread, left.
pub(super) fn get() -> Result<Arc<Service>, Error> {
    let mut current = lock(&SERVICE);
    if let Some((owner, service)) = &*current {
        if *owner == process::id() {
            return Ok(Arc::clone(service));
        }
        // The parent's: its descriptors are shared with it, and ending it would take its sockets along.
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
    });
    let runs = Arc::clone(&service);
    thread::spawn("urxe-rsockets", move || runs.run())?;
    *current = Some((process::id(), Arc::clone(&service)));
    Ok(service)
}

impl Service {
    /// Where the events of identifiers go.
    pub fn channel(&self) -> &Arc<EventChannel> {
        &self.events
    }

    /// A socket whose events are told to it; the number for its identifier.
    pub fn register(&self, socket: &Arc<StreamSocket>) -> usize {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.streams).insert(number, Arc::downgrade(socket));
        number
    }

    /// Holds a socket until it is released.
    pub fn keep(&self, socket: &Arc<StreamSocket>) {
        lock(&self.kept).insert(socket.service_number(), Arc::clone(socket));
    }

    /// Gives a socket to whoever holds it from now on.
    pub fn release(&self, socket: &StreamSocket) -> Option<Arc<StreamSocket>> {
        lock(&self.kept).remove(&socket.service_number())
    }

    /// A socket that is being closed.
    pub fn forget(&self, socket: &StreamSocket) {
        lock(&self.streams).remove(&socket.service_number());
        self.end_keep_alive(socket);
        drop(self.release(socket));
    }

    /// Looks for a socket's peer from now on.
    pub fn begin_keep_alive(&self, socket: &StreamSocket) {
        let at = Instant::now() + socket.keep_idle();
        lock(&self.kept_alive).insert(socket.service_number(), at);
        self.wake();
    }

    /// Does so no more.
    pub fn end_keep_alive(&self, socket: &StreamSocket) {
        lock(&self.kept_alive).remove(&socket.service_number());
    }

    /// Receives what introduces peers to a socket of datagrams.
    pub fn look_after(&self, socket: &Arc<DatagramSocket>) {
        lock(&self.datagrams).push(Arc::downgrade(socket));
        self.wake();
    }

    /// A socket of datagrams is being closed.
    pub fn leave_alone(&self, socket: &DatagramSocket) {
        lock(&self.datagrams).retain(|other| !std::ptr::eq(other.as_ptr(), socket));
        self.wake();
    }

    fn wake(&self) {
        // It could fail only if it were readable anyhow.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        while self.wait() {
            while let Some(event) = self.events.take() {
                self.tell(&event);
            }
            self.keep_alive();
        }
    }

    /// Waits for something to do; receives what introduces peers. False when the program has closed the
    /// descriptors, as with closefrom(3).
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
        let timeout = self.next_look().map(|left| {
            // A little more, so that the time has come then.
            let left = left + Duration::from_millis(1);
            Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        if let Err(error) = poll(&mut fds, timeout.as_ref()) {
            tracing::debug!(%error, "waiting failed");
        }
        if fds[..2]
            .iter()
            .any(|fd| fd.revents().contains(PollFlags::NVAL))
        {
            return false;
        }
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        let ready: Vec<_> = fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect();
        for (socket, _) in datagrams.iter().zip(ready).filter(|(_, ready)| *ready) {
            socket.introduced();
        }
        true
    }

    /// How long until a peer is to be looked for.
    fn next_look(&self) -> Option<Duration> {
        let first = lock(&self.kept_alive).values().min().copied();
        first.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn tell(&self, event: &Event) {
        let socket = lock(&self.streams)
            .get(&event.owner().tag())
            .and_then(Weak::upgrade);
        match socket {
            Some(socket) => socket.happened(event),
            // A request that nobody sees any more.
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
