//! How streams come about: binding, listening, asking and being asked.

use super::super::error::Error;
use super::super::lock;
use super::link::Link;
use super::{Phase, State, StreamSocket};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use urxe_driver::cm::channel::{ConnectionDetails, Details};
use urxe_driver::cm::connection::MAX_BACKLOG;
use urxe_driver::cm::id::State as IdState;
use urxe_driver::cm::{Event, EventKind, Id, Offer};
use urxe_proto::cm::wire::RejectReason;
use urxe_proto::rsocket::wire::ConnData;

/// As often as can be: who does not answer is found out by time.
const RETRIES: u8 = 7;

impl StreamSocket {
    /// Binds it to an address.
    ///
    /// # Errors
    /// As for [`Id::bind`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        self.id.bind(address)?;
        lock(&self.state).phase = Phase::Bound;
        Ok(())
    }

    /// Listens. Connections are made from now on, whether the program accepts them at once or not.
    ///
    /// # Errors
    /// As for [`Id::listen`].
    pub fn listen(&self, backlog: i32) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let backlog = usize::try_from(backlog).unwrap_or(MAX_BACKLOG);
        state.backlog = backlog.clamp(1, MAX_BACKLOG);
        if matches!(state.phase, Phase::Listening) {
            return Ok(());
        }
        // Requests are answered at once, so few of them ever wait there.
        self.id.listen(0)?;
        state.phase = Phase::Listening;
        Ok(())
    }

    /// Takes a connection, waiting for one unless it must not.
    ///
    /// # Errors
    /// `EBADF`, as librdmacm says it, when it does not listen; `EAGAIN`.
    pub fn accept(&self) -> Result<Arc<StreamSocket>, Error> {
        if !matches!(lock(&self.state).phase, Phase::Listening) {
            return Err(Errno::BADF.into());
        }
        match self.is_nonblocking() {
            true => self.arrivals.take().ok_or(Errno::AGAIN.into()),
            false => Ok(self.arrivals.next()?),
        }
    }

    /// Connects, waiting until that is done unless it must not.
    ///
    /// # Errors
    /// `EINPROGRESS` when it must not wait; otherwise what became of it.
    pub fn connect(&self, to: SocketAddr) -> Result<(), Error> {
        let mut state = lock(&self.state);
        match &state.phase {
            Phase::Idle | Phase::Bound => {
                if let Err(error) = self.ask(&mut state, to) {
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
        drop(state);
        match self.is_nonblocking() {
            true => match &lock(&self.state).phase {
                Phase::Connecting(_) => Err(Errno::INPROGRESS.into()),
                _ => Ok(()),
            },
            false => self.wait_connected(),
        }
    }

    /// Asks the peer for a connection. The device and the way are known at once.
    fn ask(&self, state: &mut State, to: SocketAddr) -> Result<(), Error> {
        self.id.resolve_address(None, to)?;
        if self.id.state() != IdState::AddressResolved {
            return Err(Errno::NODEV.into());
        }
        self.id.resolve_route()?;
        let bound = self.id.addresses().bound.ok_or(Errno::NODEV)?;
        let link = Link::new(&bound, &state.settings, &self.id, &self.watchers)?;
        let offer = offer(&link);
        let link = Arc::new(link);
        // The answer may come at any time from now on, and waits for this lock.
        state.phase = Phase::Connecting(link);
        Ok(self.id.connect(&offer)?)
    }

    /// Waits while a connection is being made.
    ///
    /// # Errors
    /// What became of it.
    pub(super) fn wait_connected(&self) -> Result<(), Error> {
        let mut state = lock(&self.state);
        while matches!(state.phase, Phase::Connecting(_)) {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        match state.phase {
            Phase::Failed if state.error != 0 => {
                Err(Errno::from_raw_os_error(std::mem::take(&mut state.error)).into())
            }
            Phase::Failed => Err(Errno::NOTCONN.into()),
            _ => Ok(()),
        }
    }

    /// Something happened to its identifier.
    pub(crate) fn happened(&self, event: &Event) {
        match (event.kind, &event.details) {
            (EventKind::ConnectRequest, Details::Connection(asked)) => {
                self.requested(&event.id, asked);
            }
            (EventKind::ConnectResponse, Details::Connection(said)) => self.answered(said),
            (EventKind::Established, _) => self.established(),
            (EventKind::Rejected, _) => self.failed(libc::ECONNREFUSED),
            (EventKind::Unreachable, _) => self.failed(event.status.abs()),
            (EventKind::Disconnected | EventKind::DeviceRemoval, _) => self.peer_left(),
            _ => {}
        }
    }

    /// Somebody asks for a connection.
    fn requested(&self, id: &Arc<Id>, asked: &ConnectionDetails) {
        if let Err(error) = self.answer(id, asked) {
            tracing::warn!("rsocket: a connection is rejected: {error}");
            if let Err(error) = id.reject(RejectReason::CONSUMER, &[]) {
                tracing::debug!(%error, "nobody to reject");
            }
            id.close();
        }
    }

    fn answer(&self, id: &Arc<Id>, asked: &ConnectionDetails) -> Result<(), Error> {
        let peer = ConnData::parse(&asked.private_data)?;
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
        let offer = Offer {
            responder_resources: asked.responder_resources,
            initiator_depth: asked.initiator_depth,
            ..offer(&link)
        };
        lock(&fresh.state).phase = Phase::Connecting(Arc::new(link));
        // Until the peer is ready nobody else knows of it.
        self.service.keep(&fresh);
        id.accept(&offer).inspect_err(|_| {
            self.service.forget(&fresh);
        })?;
        Ok(())
    }

    /// The peer accepts.
    fn answered(&self, said: &ConnectionDetails) {
        let mut state = lock(&self.state);
        let Phase::Connecting(link) = &state.phase else {
            return;
        };
        let link = Arc::clone(link);
        let connected = ConnData::parse(&said.private_data)
            .map_err(Error::from)
            .and_then(|peer| link.connect(&self.id, peer))
            .and_then(|()| Ok(self.id.ready()?));
        match connected {
            Ok(()) => {
                link.begin();
                state.phase = Phase::Connected(link);
            }
            Err(error) => {
                tracing::warn!("rsocket: no connection: {error}");
                if let Err(error) = self.id.reject(RejectReason::CONSUMER, &[]) {
                    tracing::debug!(%error, "nobody to reject");
                }
                state.phase = Phase::Failed;
                state.error = error.errno();
            }
        }
        drop(state);
        self.changed();
    }

    /// The peer is ready, who asked for it: now it is for the program.
    fn established(&self) {
        let mut state = lock(&self.state);
        let Phase::Connecting(link) = &state.phase else {
            return;
        };
        let link = Arc::clone(link);
        link.begin();
        state.phase = Phase::Connected(link);
        let keeps_alive = state.options.keep_alive;
        drop(state);
        let Some(me) = self.service.release(self) else {
            return;
        };
        if keeps_alive {
            self.service.begin_keep_alive(self);
        }
        let listener = self.listener.as_ref().and_then(std::sync::Weak::upgrade);
        match listener {
            Some(listener) => listener.arrived(me),
            None => me.close(),
        }
    }

    /// A connection for the program to accept.
    fn arrived(&self, fresh: Arc<StreamSocket>) {
        if matches!(lock(&self.state).phase, Phase::Listening) {
            self.arrivals.push(fresh);
            self.watchers.notify();
        } else {
            fresh.close();
        }
    }

    /// No connection came about.
    fn failed(&self, errno: i32) {
        let mut state = lock(&self.state);
        if matches!(state.phase, Phase::Connecting(_)) {
            state.phase = Phase::Failed;
            state.error = errno;
        }
        drop(state);
        if let Some(me) = self.service.release(self) {
            me.close();
        }
        self.changed();
    }

    /// The peer has ended the connection.
    fn peer_left(&self) {
        let phase = lock(&self.state).phase.clone();
        match phase {
            Phase::Connected(link) => link.peer_left(),
            _ => self.failed(libc::ECONNRESET),
        }
        self.changed();
    }

    fn changed(&self) {
        self.changed.notify_all();
        self.watchers.notify();
    }
}

/// What is said to the peer.
fn offer(link: &Link) -> Offer {
    Offer {
        private_data: link.introduction().to_bytes().to_vec(),
        qpn: link.qpn(),
        flow_control: true,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        ..Offer::default()
    }
}
