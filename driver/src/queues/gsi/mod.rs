//! Queue pair 1, the general services interface: communication management MADs in both directions.
//!
//! Several processes share queue pair 1, as they share port 4791: `docs/CM.md` describes how each
//! MAD reaches its process. `inbox` holds received MADs, `directory` finds the processes with
//! listeners, `sender` sends MADs, `pending` keeps REQs without a listener, `liveness` detects lost
//! peers.
//!
//! Events are delivered without any lock, by one thread at a time, so that each handler gets them
//! in order.

mod deferred;
mod directory;
mod error;
mod inbox;
mod liveness;
mod pending;
mod sender;

pub use error::GsiError;

use crate::loss::ClosedDescriptors;
use crate::ports::{BatchPool, Ports, Waker, WatchSet};
use crate::queues::qp::{Effects, Qp};
use crate::queues::table::QpTable;
use crate::sync::{Mutex, MutexGuard, lock};
use directory::{Directory, Entry};
use inbox::{Inbox, ReceivedMad};
use liveness::{Liveness, Lost};
use pending::{PendingReqs, Request};
use sender::Sender;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use urxe_net::random;
use urxe_net::{Datagram, LocalAddress, Shared, now};
use urxe_proto::cm::wire::private_data::{Info, PrivateData};
use urxe_proto::cm::wire::{
    Addressee, Message, RejectReason, ServiceId, disconnect, mra, rej, rtu,
};
use urxe_proto::cm::{
    Accept, Address, CallError, CommId, Connect, ConnectionParameters, Counters, Event, Ids,
    ListenAt, ListenerId, Manager, MraWhen, Resolve, SidrAnswer, State,
};
use urxe_proto::ids::Gid;
use urxe_proto::time::Time;
use urxe_proto::wire::Packet;

/// A receiver of the events of listeners, connections or resolutions.
pub trait Handler: Send + Sync + fmt::Debug {
    /// Handles an event. The caller holds no lock, so all calls are permitted.
    fn handle(&self, gsi: &Gsi, event: Event);
}

/// A source of communication IDs, whose first byte is the slot of the process.
#[derive(Debug)]
struct SlotIds {
    slot: u8,
}

impl Ids for SlotIds {
    fn comm_id(&mut self) -> u32 {
        let [_, rest @ ..] = random::any::<u32>().to_be_bytes();
        u32::from_be_bytes([self.slot, rest[0], rest[1], rest[2]])
    }

    fn transaction(&mut self) -> u64 {
        random::any()
    }
}

/// Queue pair 1 of this process.
#[derive(Debug)]
pub struct Gsi {
    inbox: Inbox,
    pending: PendingReqs,
    inner: Mutex<Inner>,
    /// The deadline of the manager's timers, readable without the lock.
    deadline: AtomicU64,
    /// Whether events are pending.
    events: AtomicBool,
    directory: Directory,
    sender: Sender,
    liveness: Liveness,
    ports: Arc<Ports>,
    qps: Arc<QpTable>,
    waker: Arc<Waker>,
    loss: Arc<ClosedDescriptors>,
}

/// The parts of the engine that queue pair 1 uses.
pub(crate) struct GsiResources {
    pub(crate) ports: Arc<Ports>,
    pub(crate) qps: Arc<QpTable>,
    pub(crate) batches: Arc<BatchPool>,
    pub(crate) waker: Arc<Waker>,
    pub(crate) watch: Arc<WatchSet>,
    pub(crate) loss: Arc<ClosedDescriptors>,
}

#[derive(Debug)]
struct Inner {
    manager: Manager<SlotIds>,
    handlers: HashMap<CommId, Arc<dyn Handler>>,
    listeners: HashMap<ListenerId, Arc<dyn Handler>>,
    /// Whether a thread is delivering events.
    delivering: bool,
}

/// A listener; dropping it ends listening. Requests that it has received may still be answered.
#[derive(Debug)]
pub struct Listener {
    gsi: &'static Gsi,
    id: ListenerId,
    entries: Vec<Entry>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.gsi.is_usable() {
            return;
        }
        let mut inner = lock(&self.gsi.inner);
        inner.manager.close(self.id);
        let handler = inner.listeners.remove(&self.id);
        drop(inner);
        drop(handler);
    }
}

impl Gsi {
    /// Creates queue pair 1 for the process in `slot`, with a liveness timeout for silent peers.
    pub(crate) fn new(slot: u8, timeout: Option<Duration>, resources: GsiResources) -> Self {
        let GsiResources {
            ports,
            qps,
            batches,
            waker,
            watch,
            loss,
        } = resources;
        Gsi {
            liveness: Liveness::new(slot, timeout, Arc::clone(&qps), watch),
            inbox: Inbox::default(),
            pending: PendingReqs::default(),
            inner: Mutex::new(Inner {
                manager: Manager::new(SlotIds { slot }),
                handlers: HashMap::new(),
                listeners: HashMap::new(),
                delivering: false,
            }),
            deadline: AtomicU64::new(Time::NEVER.0),
            events: AtomicBool::new(false),
            directory: Directory::new(slot),
            sender: Sender::new(Arc::clone(&ports), batches, Arc::clone(&waker)),
            ports,
            qps,
            waker,
            loss,
        }
    }

    /// Returns whether this process has opened queue pair 1, and its descriptors are usable. In a
    /// forked child, the listeners and connections belong to the parent, where they continue.
    pub(crate) fn is_usable(&self) -> bool {
        self.loss.is_usable()
    }

    /// Listens for a service at addresses of this host, and opens their sockets.
    ///
    /// # Errors
    /// [`GsiError::Listen`] or [`GsiError::InUse`] if this process or another one already listens
    /// there. [`GsiError::Open`] or [`GsiError::System`] if a system call fails.
    pub fn listen(
        &'static self,
        service: ServiceId,
        at: &[ListenAt],
        addresses: impl IntoIterator<Item = LocalAddress>,
        backlog: usize,
        handler: Arc<dyn Handler>,
    ) -> Result<Listener, GsiError> {
        for address in addresses {
            self.ports.open(address)?;
        }
        let mut inner = lock(&self.inner);
        let id = inner.manager.listen(service, at, backlog)?;
        inner.listeners.insert(id, handler);
        drop(inner);
        // From here on, dropping `listener` undoes the registration.
        let mut listener = Listener {
            gsi: self,
            id,
            entries: Vec::new(),
        };
        for at in at {
            let entry = self.directory.enter(service, *at)?;
            let entry = entry.ok_or(GsiError::InUse(service))?;
            listener.entries.push(entry);
        }
        Ok(listener)
    }

    /// Sends a request for a connection from an address of this host, and opens its socket.
    ///
    /// # Errors
    /// [`GsiError::NoCommId`] if no identifier is free; [`GsiError::Open`] if the socket cannot be
    /// opened.
    pub fn connect(
        &self,
        from: LocalAddress,
        wanted: &Connect,
        handler: Arc<dyn Handler>,
    ) -> Result<CommId, GsiError> {
        self.ports.open(from)?;
        let mut inner = lock(&self.inner);
        let id = inner.manager.connect(now(), wanted)?;
        inner.handlers.insert(id, handler);
        self.flush_and_wake(inner);
        Ok(id)
    }

    /// Sends a request for the queue pair of a service from an address of this host, and opens its
    /// socket.
    ///
    /// # Errors
    /// As [`Gsi::connect`].
    pub fn resolve(
        &self,
        from: LocalAddress,
        wanted: &Resolve,
        handler: Arc<dyn Handler>,
    ) -> Result<CommId, GsiError> {
        self.ports.open(from)?;
        let mut inner = lock(&self.inner);
        let id = inner.manager.resolve(now(), wanted)?;
        inner.handlers.insert(id, handler);
        self.flush_and_wake(inner);
        Ok(id)
    }

    /// Makes `handler` the receiver of the events of a request.
    ///
    /// # Errors
    /// [`CallError::Unknown`] if the request has already ended.
    pub fn adopt(&self, id: CommId, handler: Arc<dyn Handler>) -> Result<(), CallError> {
        let mut inner = lock(&self.inner);
        if !inner.manager.exists(id) {
            return Err(CallError::Unknown(id));
        }
        inner.handlers.insert(id, handler);
        Ok(())
    }

    /// Frees the request's place in the backlog; see [`Manager::leave_backlog`].
    pub fn leave_backlog(&self, id: CommId) {
        let mut inner = lock(&self.inner);
        inner.manager.leave_backlog(now(), id);
        self.flush_and_wake(inner);
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// See [`Manager::accept`].
    pub fn accept(&self, id: CommId, accept: &Accept) -> Result<(), CallError> {
        self.call(id, |manager| manager.accept(now(), id, accept))
    }

    /// Rejects a request, or a reply.
    ///
    /// # Errors
    /// See [`Manager::reject`].
    pub fn reject(
        &self,
        id: CommId,
        reason: RejectReason,
        info: Info,
        private_data: &PrivateData<{ rej::PRIVATE_DATA }>,
    ) -> Result<(), CallError> {
        self.call(id, |manager| {
            manager.reject(now(), id, reason, info, private_data)
        })
    }

    /// Sends the RTU: the local queue pair is ready.
    ///
    /// # Errors
    /// See [`Manager::ready`].
    pub fn ready(
        &self,
        id: CommId,
        private_data: &PrivateData<{ rtu::PRIVATE_DATA }>,
    ) -> Result<(), CallError> {
        self.call(id, |manager| manager.ready(id, private_data))?;
        self.established(id);
        Ok(())
    }

    /// Establishes a connection before its RTU, since a packet of it was received.
    ///
    /// # Errors
    /// See [`Manager::establish`].
    pub fn establish(&self, id: CommId) -> Result<(), CallError> {
        self.call(id, |manager| manager.establish(id))
    }

    /// Sends an MRA: the answer takes up to 4.096 us x 2^`service_timeout`.
    ///
    /// # Errors
    /// See [`Manager::delay`].
    pub fn delay(
        &self,
        id: CommId,
        service_timeout: u8,
        private_data: &PrivateData<{ mra::PRIVATE_DATA }>,
        when: MraWhen,
    ) -> Result<(), CallError> {
        self.call(id, |manager| {
            manager.delay(id, service_timeout, private_data, when)
        })
    }

    /// Ends a connection, or confirms that the peer ends it.
    ///
    /// # Errors
    /// See [`Manager::disconnect`].
    pub fn disconnect(
        &self,
        id: CommId,
        private_data: &PrivateData<{ disconnect::DREQ_PRIVATE_DATA }>,
    ) -> Result<(), CallError> {
        self.call(id, |manager| manager.disconnect(now(), id, private_data))
    }

    /// Answers a request for a queue pair.
    ///
    /// # Errors
    /// See [`Manager::answer`].
    pub fn answer(&self, id: CommId, answer: &SidrAnswer) -> Result<(), CallError> {
        self.call(id, |manager| manager.answer(now(), id, answer))
    }

    /// Drops the handler of a connection or resolution, and ends it.
    pub fn abandon(&self, id: CommId) {
        let mut inner = lock(&self.inner);
        inner.manager.abandon(now(), id);
        let handler = inner.handlers.remove(&id);
        self.flush_and_wake(inner);
        drop(handler);
    }

    /// Returns the state of a connection.
    pub fn state(&self, id: CommId) -> State {
        lock(&self.inner).manager.state(id)
    }

    /// Returns the parameters of a connection for its queue pair.
    pub fn parameters(&self, id: CommId) -> Option<ConnectionParameters> {
        lock(&self.inner).manager.parameters(id).copied()
    }

    /// Returns the number of connections and resolutions, including abandoned ones that have not
    /// ended.
    pub fn open(&self) -> usize {
        lock(&self.inner).manager.open()
    }

    fn call(
        &self,
        id: CommId,
        make: impl FnOnce(&mut Manager<SlotIds>) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let mut inner = lock(&self.inner);
        make(&mut inner.manager)?;
        // A connection that the application has ended has no further events.
        let handler = match inner.manager.exists(id) {
            true => None,
            false => inner.handlers.remove(&id),
        };
        self.flush_and_wake(inner);
        drop(handler);
        Ok(())
    }

    /// Puts a packet for queue pair 1 into the inbox. The caller holds locks, so it is processed
    /// later.
    pub(crate) fn enqueue(&self, datagram: &Datagram<'_>, packet: &Packet<'_>) {
        self.inbox.put(datagram, packet);
    }

    /// Returns the time at which [`Gsi::run`] has work even if no MAD is received.
    pub(crate) fn deadline(&self) -> Time {
        let checks = self.pending.next_check().min(self.liveness.next_check());
        self.manager_deadline().min(checks)
    }

    fn manager_deadline(&self) -> Time {
        Time(self.deadline.load(Ordering::Acquire))
    }

    /// Checks whether processes of peers have ended.
    pub(crate) fn check_exits(&self) {
        self.liveness.check_exits();
    }

    /// Returns the counters of the connection manager.
    pub(crate) fn counters(&self) -> Counters {
        *lock(&self.inner).manager.counters()
    }

    /// Returns the retransmission timeout that round trips to a peer require, once messages have
    /// measured one.
    pub(crate) fn retransmission_timeout(&self, peer: Gid) -> Option<Duration> {
        lock(&self.inner).manager.retransmission_timeout(peer)
    }

    /// Starts to monitor the peer of an established connection. Its exchange of messages has
    /// measured a round trip, which applies to a queue pair that is in RTS already: that of the
    /// passive end, before the first RTU of its peer.
    fn established(&self, id: CommId) {
        let inner = lock(&self.inner);
        let remote_id = inner.manager.remote_id(id);
        let parameters = inner.manager.parameters(id).copied();
        drop(inner);
        if let Some((remote_id, parameters)) = remote_id.zip(parameters) {
            if let Some(timeout) = self.retransmission_timeout(parameters.remote_gid)
                && let Some(qp) = parameters.local_qpn.and_then(|qpn| self.qps.find(qpn))
            {
                qp.seed_timeout(timeout);
            }
            self.liveness.add(id, remote_id, &parameters);
            self.waker.deadline_moved(self.liveness.next_check());
        }
    }

    /// Ends the connections whose peers are lost. Adds the effects on their queue pairs to
    /// `effects`. The caller must hold no lock.
    fn check_peers(&self, now: Time, effects: &mut Vec<(Arc<Qp>, Effects)>) {
        let is_established = |id| self.state(id) == State::Established;
        for Lost { id, ends } in self.liveness.check(now, is_established, effects) {
            let mut inner = lock(&self.inner);
            let lost = inner.manager.peer_lost(now, id);
            self.flush(inner);
            // The application gets the event before its work requests are flushed.
            self.deliver_events();
            if lost {
                tracing::debug!(%id, ?ends, "the peer of a connection is gone");
                if let Some(qp) = ends.qp(&self.qps) {
                    let wanted = qp.peer_lost();
                    effects.push((qp, wanted));
                }
            }
        }
    }

    /// Returns whether [`Gsi::run`] has work.
    pub(crate) fn has_work(&self) -> bool {
        !self.inbox.is_empty() || self.events.load(Ordering::Acquire)
    }

    /// Processes received MADs, timers and events. Returns whether there was work, and adds
    /// the effects on queue pairs to `effects`. The caller must hold no lock.
    pub(crate) fn run(&self, shared: &Shared, effects: &mut Vec<(Arc<Qp>, Effects)>) -> bool {
        let now = now();
        if self.liveness.next_check() <= now {
            self.check_peers(now, effects);
        }
        let pending = self.pending.take(now);
        let received = self.inbox.take();
        let due = self.manager_deadline() <= now;
        let idle = pending.is_empty() && received.is_empty();
        if idle && !due && !self.events.load(Ordering::Acquire) {
            return false;
        }
        let new = received.into_iter().map(|new| Request::new(new, now));
        let mine: Vec<_> = pending
            .into_iter()
            .chain(new)
            .filter_map(|request| self.route(request, now, shared))
            .collect();
        // Only the progress thread sends the packets to be forwarded that found a full queue.
        let waiting = self.pending.next_check().min(shared.next_deadline());
        self.waker.deadline_moved(waiting);
        let mut inner = lock(&self.inner);
        for mad in &mine {
            inner.manager.handle_mad(now, mad.address(), mad.payload());
        }
        if due {
            inner.manager.handle_timeout(now);
        }
        self.flush(inner);
        self.deliver_events();
        true
    }

    /// Ends all connections at the orderly exit of the process: sends a DREQ to each peer.
    pub(crate) fn disconnect_all(&self) {
        let mut inner = lock(&self.inner);
        inner.handlers.clear();
        inner.manager.abandon_all(now());
        self.flush_and_wake(inner);
    }

    /// Returns whether a peer has not answered its DREQ.
    pub(crate) fn awaits_drep(&self) -> bool {
        lock(&self.inner).manager.awaits_drep()
    }

    /// Retransmits the unanswered DREQs.
    pub(crate) fn retransmit_dreqs(&self) {
        let mut inner = lock(&self.inner);
        inner.manager.retransmit_dreqs();
        self.flush_and_wake(inner);
    }

    /// Returns a MAD that is for this process, and forwards one for another process. Keeps a
    /// request without a listener until its timeout.
    fn route(&self, request: Request, now: Time, shared: &Shared) -> Option<ReceivedMad> {
        let mad = &request.mad;
        let message = Message::parse(mad.payload()).map(|(_, message)| message);
        match message.as_ref().map(Message::addressee) {
            Ok(Addressee::Service(service)) => {
                let Address { local, remote, .. } = mad.address();
                let requested = |message: &Message| message.requested_address(local, remote);
                let address = message.as_ref().map_or(local, requested);
                if lock(&self.inner).manager.listens(service, address) {
                    return Some(request.mad);
                }
                // The process that received the request from the network passes it to all
                // candidates.
                let found = match mad.forwarded {
                    true => Vec::new(),
                    false => self.directory.find(service, address, now),
                };
                let forwarded = found.iter().filter(|slot| mad.forward(shared, **slot));
                if forwarded.count() > 0 {
                    return None;
                }
                let rejected = self.pending.keep(request, now).err()?;
                // A forwarded request may have a listener in another process, so this one
                // must not reject it.
                return (!rejected.mad.forwarded).then_some(rejected.mad);
            }
            // The process that received the MAD from the network passes it to all others.
            Ok(Addressee::AnyProcess) if !mad.forwarded => match shared.same_host_peers() {
                Ok(slots) => {
                    for slot in slots {
                        mad.forward(shared, slot);
                    }
                }
                Err(error) => tracing::warn!(%error, "other processes cannot be listed"),
            },
            // The sockets have already steered MADs with an ID; the manager counts errors.
            _ => {}
        }
        Some(request.mad)
    }

    /// Like `flush`, after a call that may hold locks: a thread without locks is woken to
    /// deliver the events.
    fn flush_and_wake(&self, inner: MutexGuard<'_, Inner>) {
        self.flush(inner);
        if self.events.load(Ordering::Acquire) {
            self.waker.wake();
        }
    }

    /// Publishes the manager's deadline and pending events, and sends its MADs.
    fn flush(&self, mut inner: MutexGuard<'_, Inner>) {
        let mut transmits = Vec::new();
        while let Some(transmit) = inner.manager.poll_transmit() {
            transmits.push(transmit);
        }
        let deadline = inner.manager.deadline();
        let before = Time(self.deadline.swap(deadline.0, Ordering::AcqRel));
        self.events
            .store(inner.manager.has_events(), Ordering::Release);
        drop(inner);
        self.sender.send(&transmits);
        if deadline < before {
            self.waker.deadline_moved(deadline);
        }
    }

    /// Delivers the events to their handlers, unless another thread is doing so.
    fn deliver_events(&self) {
        let mut inner = lock(&self.inner);
        if std::mem::replace(&mut inner.delivering, true) {
            return;
        }
        while let Some(event) = inner.manager.poll_event() {
            let id = event.id();
            let handler = match &event {
                Event::Request { listener, .. } | Event::ResolutionRequest { listener, .. } => {
                    inner.listeners.get(listener).cloned()
                }
                event if event.is_last() => inner.handlers.remove(&id),
                _ => inner.handlers.get(&id).cloned(),
            };
            drop(inner);
            if matches!(event, Event::Ready { .. } | Event::Established { .. }) {
                self.established(id);
            }
            match handler {
                Some(handler) => {
                    // A panic of one handler must not prevent other events. The panic hook has
                    // already reported it.
                    let handle = AssertUnwindSafe(|| handler.handle(self, event));
                    if catch_unwind(handle).is_err() {
                        tracing::error!(%id, "an event is lost: its handler panicked");
                    }
                }
                // A request whose listener was closed. Other events without a handler belong to
                // abandoned connections.
                None => self.abandon(id),
            }
            inner = lock(&self.inner);
        }
        inner.delivering = false;
        self.events.store(false, Ordering::Release);
    }
}
