//! Establishing streams: bind, listen, accept and connect.

use super::super::error::Error;
use super::super::sync::lock;
use super::super::watch::{Signals, Wake};
use super::link::Link;
use super::{Phase, State, StreamSocket};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use urxe_driver::cm::channel::{ConnectionDetails, Details};
use urxe_driver::cm::id::State as IdState;
use urxe_driver::cm::{ConnParam, Event, EventKind, Id};
use urxe_driver::waiting;
use urxe_proto::cm::wire::RejectReason;
use urxe_proto::rsocket::wire::ConnData;

/// The retry count: the maximum. A peer that does not respond is detected by its timeout.
const RETRIES: u8 = 7;

impl StreamSocket {
    /// Binds the socket to an address.
    ///
    /// # Errors
    /// Those of [`Id::bind`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        self.id.bind(address)?;
        lock(&self.state).phase = Phase::Bound;
        Ok(())
    }

    /// Listens for connections. Up to `backlog` + 1 are established before the program accepts
    /// them; further requests are answered as it accepts some.
    ///
    /// # Errors
    /// Those of [`Id::listen`].
    pub fn listen(&self, backlog: i32) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.backlog.set_limit(backlog);
        if !matches!(state.phase, Phase::Listening) {
            // The default backlog, which is that of requests without an answer.
            self.id.listen(0)?;
            state.phase = Phase::Listening;
        }
        drop(state);
        self.answer_pending();
        Ok(())
    }

    /// Accepts a connection; waits for one unless the socket is nonblocking.
    ///
    /// # Errors
    /// `EBADF` if the socket does not listen, as with librdmacm; `EAGAIN`.
    pub fn accept(&self) -> Result<Arc<StreamSocket>, Error> {
        if !matches!(lock(&self.state).phase, Phase::Listening) {
            return Err(Errno::BADF.into());
        }
        let accepted = match self.is_nonblocking() {
            true => self.arrivals.take().ok_or(Errno::AGAIN)?,
            false => self.arrivals.next()?,
        };
        self.leave_backlog();
        Ok(accepted)
    }

    /// Accepts a connection; `None` if there is none.
    ///
    /// # Errors
    /// `EBADF` if the socket does not listen.
    pub fn try_accept(&self) -> Result<Option<Arc<StreamSocket>>, Error> {
        if !matches!(lock(&self.state).phase, Phase::Listening) {
            return Err(Errno::BADF.into());
        }
        let accepted = self.arrivals.take();
        if accepted.is_some() {
            self.leave_backlog();
        }
        Ok(accepted)
    }

    /// Connects to a peer; waits for the result unless the socket is nonblocking.
    ///
    /// # Errors
    /// `EINPROGRESS` if the socket is nonblocking; otherwise the reason of the failure.
    pub fn connect(&self, to: SocketAddr) -> Result<(), Error> {
        let mut state = lock(&self.state);
        match &state.phase {
            Phase::Idle | Phase::Bound => {
                if let Err(error) = self.request(&mut state, to) {
                    state.phase = Phase::Failed;
                    state.error = error.errno();
                    return Err(error);
                }
            }
            Phase::Connecting(_) => {}
            Phase::Connected(_) => return Ok(()),
            Phase::Listening => return Err(Errno::INVAL.into()),
            Phase::Failed => return Err(Errno::NOTCONN.into()),
        }
        // The reply may arrive as soon as the lock is released. The result of a connection that is
        // established or refused by then is left to `poll` and `SO_ERROR`.
        if self.is_nonblocking() {
            return Err(Errno::INPROGRESS.into());
        }
        drop(state);
        self.wait_connected()
    }

    /// Sends a connection request. Address and route are resolved synchronously.
    fn request(&self, state: &mut State, to: SocketAddr) -> Result<(), Error> {
        self.id.resolve_address(None, to)?;
        if self.id.state() != IdState::AddressResolved {
            return Err(Errno::NODEV.into());
        }
        self.id.resolve_route()?;
        let bound = self.id.addresses().bound.ok_or(Errno::NODEV)?;
        let link = Link::new(&bound, &state.settings, &self.id, &self.watchers)?;
        let conn_param = conn_param(&link);
        let link = Arc::new(link);
        // The reply may arrive at any time; its handler waits for this lock.
        state.phase = Phase::Connecting(link);
        Ok(self.id.connect(&conn_param)?)
    }

    /// Waits until the connection is established or has failed.
    ///
    /// # Errors
    /// The reason of the failure; `EINTR`.
    pub(super) fn wait_connected(&self) -> Result<(), Error> {
        if let Some(outcome) = self.connect_outcome() {
            return outcome;
        }
        let wake = Wake::of_thread()?;
        self.watchers.add(&wake);
        let outcome = loop {
            // Cleared first: a change after the check makes the descriptor readable again.
            wake.clear();
            if let Some(outcome) = self.connect_outcome() {
                break outcome;
            }
            if let Err(error) = waiting::sleep_on(wake.fd()) {
                break Err(error.into());
            }
        };
        self.watchers.remove(&wake);
        outcome
    }

    /// Returns whether the connection was established; `None` while it is being established.
    ///
    /// # Errors
    /// The reason of the failure, once; `ENOTCONN` afterwards.
    fn connect_outcome(&self) -> Option<Result<(), Error>> {
        let mut state = lock(&self.state);
        match state.phase {
            Phase::Connecting(_) => None,
            Phase::Failed if state.error != 0 => {
                let error = Errno::from_raw_os_error(std::mem::take(&mut state.error));
                Some(Err(error.into()))
            }
            Phase::Failed => Some(Err(Errno::NOTCONN.into())),
            _ => Some(Ok(())),
        }
    }

    /// Handles an event of the socket's identifier, or of a pending request's.
    pub(super) fn on_event(&self, event: &Event) {
        match (event.kind, &event.details) {
            (EventKind::ConnectRequest, Details::Connection(request)) => {
                self.requested(&event.id, request);
            }
            (EventKind::Rejected, _) if !Arc::ptr_eq(&event.id, &self.id) => {
                lock(&self.state).backlog.withdraw(&event.id);
                event.id.close();
            }
            _ if !Arc::ptr_eq(&event.id, &self.id) => {}
            (EventKind::ConnectResponse, Details::Connection(reply)) => self.answered(reply),
            (EventKind::Established, _) => self.established(),
            (EventKind::Rejected, _) => self.failed(libc::ECONNREFUSED),
            (EventKind::Unreachable, _) => self.failed(event.status.abs()),
            (EventKind::Disconnected | EventKind::DeviceRemoval, _) => self.peer_disconnected(),
            _ => {}
        }
    }

    /// Handles a connection request.
    fn requested(&self, id: &Arc<Id>, request: &ConnectionDetails) {
        let mut state = lock(&self.state);
        if !matches!(state.phase, Phase::Listening) {
            drop(state);
            return id.close();
        }
        // While the request is pending, the listener handles its events.
        id.tag.store(self.id.tag(), Ordering::Release);
        state.backlog.add((Arc::clone(id), request.clone()));
        drop(state);
        self.answer_pending();
    }

    /// Releases a place in the backlog: the program has accepted a connection, or one has failed
    /// before that.
    fn leave_backlog(&self) {
        lock(&self.state).backlog.leave();
        self.answer_pending();
    }

    /// Answers the pending requests for which the backlog has room.
    fn answer_pending(&self) {
        loop {
            let next = lock(&self.state).backlog.admit();
            let Some((id, request)) = next else {
                return;
            };
            if let Err(error) = self.answer(&id, &request) {
                tracing::warn!("rsocket: rejecting a connection: {error}");
                if let Err(error) = id.reject(RejectReason::CONSUMER, &[]) {
                    tracing::debug!(%error, "cannot reject the request");
                }
                id.close();
                lock(&self.state).backlog.leave();
            }
        }
    }

    fn answer(&self, id: &Arc<Id>, request: &ConnectionDetails) -> Result<(), Error> {
        let peer = ConnData::parse(&request.private_data)?;
        let state = lock(&self.state);
        let (settings, options) = (state.settings, state.options);
        drop(state);
        let bound = id.addresses().bound.ok_or(Errno::NODEV)?;
        let fresh = StreamSocket::of(
            Arc::clone(&self.service),
            Arc::clone(id),
            Some(self.me.clone()),
            self.v6,
            settings,
            options,
        )?;
        let link = Link::new(&bound, &settings, id, &fresh.watchers)?;
        link.connect(id, peer)?;
        let conn_param = ConnParam {
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            ..conn_param(&link)
        };
        lock(&fresh.state).phase = Phase::Connecting(Arc::new(link));
        // Until the peer is ready, only the service owns the new socket.
        self.service.keep(Arc::<StreamSocket>::clone(&fresh));
        match id.accept(&conn_param) {
            // If the service does not keep it any more, its failure has been handled.
            Err(error) if self.service.release(&*fresh) => {
                self.service.forget(&*fresh);
                Err(error.into())
            }
            _ => Ok(()),
        }
    }

    /// Handles the peer's reply.
    fn answered(&self, reply: &ConnectionDetails) {
        let mut state = lock(&self.state);
        let Phase::Connecting(link) = &state.phase else {
            return;
        };
        let link = Arc::clone(link);
        let connected = ConnData::parse(&reply.private_data)
            .map_err(Error::from)
            .and_then(|peer| link.connect(&self.id, peer))
            .and_then(|()| Ok(self.id.ready()?));
        match connected {
            Ok(()) => {
                link.process();
                state.phase = Phase::Connected(link);
            }
            Err(error) => {
                tracing::warn!("rsocket: connection failed: {error}");
                if let Err(error) = self.id.reject(RejectReason::CONSUMER, &[]) {
                    tracing::debug!(%error, "cannot reject the reply");
                }
                state.phase = Phase::Failed;
                state.error = error.errno();
            }
        }
        self.watchers.signal(Signals::STATE);
    }

    /// Handles the end of the handshake at the accepting side: the program can accept the
    /// connection.
    fn established(&self) {
        let mut state = lock(&self.state);
        let Phase::Connecting(link) = &state.phase else {
            return;
        };
        let link = Arc::clone(link);
        link.process();
        state.phase = Phase::Connected(link);
        let keeps_alive = state.options.keep_alive;
        drop(state);
        let me = self.me.upgrade();
        let Some(me) = me.filter(|_| self.service.release(self)) else {
            return;
        };
        if keeps_alive {
            self.service.begin_keep_alive(self);
        }
        match self.listener() {
            Some(listener) => listener.arrived(me),
            None => me.close(),
        }
    }

    fn listener(&self) -> Option<Arc<StreamSocket>> {
        self.listener.as_ref()?.upgrade()
    }

    /// Queues a connection for the program to accept.
    fn arrived(&self, fresh: Arc<StreamSocket>) {
        let state = lock(&self.state);
        if matches!(state.phase, Phase::Listening) {
            self.arrivals.push(fresh);
            self.watchers.signal(Signals::INPUT);
        } else {
            drop(state);
            fresh.close();
        }
    }

    /// Records the failure of the connection.
    fn failed(&self, errno: i32) {
        let mut state = lock(&self.state);
        if matches!(state.phase, Phase::Connecting(_)) {
            state.phase = Phase::Failed;
            state.error = errno;
            self.watchers.signal(Signals::STATE);
        }
        drop(state);
        let me = self.me.upgrade();
        if let Some(me) = me.filter(|_| self.service.release(self)) {
            me.close();
            if let Some(listener) = self.listener() {
                listener.leave_backlog();
            }
        }
    }

    /// Handles the peer's disconnection.
    fn peer_disconnected(&self) {
        let phase = lock(&self.state).phase.clone();
        match phase {
            Phase::Connected(link) => link.peer_disconnected(),
            _ => self.failed(libc::ECONNRESET),
        }
        self.watchers.notify();
    }
}

/// Returns the private data for the peer.
fn conn_param(link: &Link) -> ConnParam {
    ConnParam {
        private_data: link.introduction().to_bytes().to_vec(),
        qpn: link.qpn(),
        flow_control: true,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        ..ConnParam::default()
    }
}
