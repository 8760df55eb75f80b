//! Connections between processes of one user that share a network namespace.
//!
//! A process listens on a Unix socket with an abstract name. Others connect to it to send messages,
//! or to detect its end, which the kernel reports as a hang-up. Abstract names have no permissions:
//! any process in the network namespace can connect, and can take a free name. So each side asks
//! the kernel for the user of the other (`SO_PEERCRED`) before it reads or sends, and closes the
//! connection of another user at once.
//!
//! Messages of another user are never received. Receiving a message, or closing a socket with
//! unread messages, can block: a message may carry a descriptor (`SCM_RIGHTS`) whose closing
//! blocks, such as a TCP socket with `SO_LINGER`. The kernel closes it in the thread that discards
//! the message.
//!
//! - A client receives nothing: it shuts its receiving side down before it connects.
//! - A listener refuses descriptors where the kernel supports that (`SO_PASSRIGHTS`, Linux 6.16).
//! - On older kernels an accepted connection may hold a message before its user is known. So there
//!   a separate thread closes connections of other users.

use crate::clock;
use crate::message_headers::Message;
use crate::names::address;
use crate::process_socket::ProcessSocket;
use crate::qpn::SLOTS;
use crate::receive::{InboundState, RecvBatch};
use crate::sync::lock;
use crate::sys::{peer_credentials, set_option};
use crate::thread;
use crate::user::User;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use socket2::{Domain, Socket, Type};
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;
use urxe_proto::time::Time;

/// The option that makes a Unix socket accept descriptors (Linux 6.16, `asm-generic/socket.h`).
#[cfg(not(any(target_arch = "mips", target_arch = "mips64", target_arch = "sparc64")))]
const SO_PASSRIGHTS: libc::c_int = 83;
/// On these architectures socket options are numbered differently. No option has this number.
#[cfg(any(target_arch = "mips", target_arch = "mips64", target_arch = "sparc64"))]
const SO_PASSRIGHTS: libc::c_int = libc::c_int::MAX;

/// The maximum number of connections accepted per call, so that other work of the thread proceeds.
const MAX_ACCEPTS: usize = 16;

/// The maximum number of open connections. Each process of this user may have one for messages, one
/// to detect the end of this process, and one to query its counters. Further ones wait in the
/// kernel's backlog.
const MAX_LINKS: usize = 3 * SLOTS as usize;

/// The maximum number of other users' connections that wait for the closing thread.
const MAX_CLOSING: usize = 64;

/// The time after which accepting is tried again when it failed or a limit was reached.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum number of ready sockets handled per call.
const MAX_EVENTS: usize = 8;

/// The epoll data of the listener; that of a connection is its number, from 1.
const LISTENER: u64 = 0;

/// The connecting end of a connection. The other side does not depend on its lifetime.
#[derive(Debug)]
pub struct Link(ProcessSocket);

/// The result of a connection attempt.
#[derive(Debug)]
pub(super) enum Connected {
    /// A process of this user.
    Ours(Link),
    /// No process listens, or another user's does.
    Refused,
    /// The backlog is full.
    BacklogFull,
}

impl Link {
    /// Connects to the process that holds a name, to send messages and to detect its end.
    pub(super) fn to(name: &str, user: User) -> io::Result<Connected> {
        let socket = open()?;
        socket.shutdown(Shutdown::Read)?;
        Self::connect(socket, name, user)
    }

    /// Connects to send a query and receive the answer. Threads that serve queue pairs must not
    /// call this: on kernels without `SO_PASSRIGHTS` another user who has taken the name can make
    /// it block.
    pub(super) fn to_query(name: &str, user: User) -> io::Result<Connected> {
        let socket = open()?;
        refuse_descriptors(&socket);
        Self::connect(socket, name, user)
    }

    fn connect(socket: ProcessSocket, name: &str, user: User) -> io::Result<Connected> {
        match socket.connect(&address(name)?) {
            Ok(()) => {}
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ECONNREFUSED) => Ok(Connected::Refused),
                    Some(libc::EAGAIN) => Ok(Connected::BacklogFull),
                    _ => Err(error),
                };
            }
        }
        let is_ours = user.is_peer_of(socket.as_fd())?;
        Ok(match is_ours {
            true => Connected::Ours(Link(socket)),
            false => Connected::Refused,
        })
    }

    /// Sends one message, given in parts.
    pub(super) fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        send(&self.0, parts)
    }

    /// Receives an answer. Returns `None` when the process has ended, or the answer is too long.
    pub(super) fn receive(&self, batch: &mut RecvBatch) -> Option<Vec<u8>> {
        batch.fill(self.0.as_fd()).ok()?;
        let (mut messages, _) = batch.parts();
        let (message, bytes) = messages.next()?;
        (!message.truncated && !bytes.is_empty()).then(|| bytes.to_vec())
    }

    /// The liveness socket: poll reports `POLLHUP` on it when the process ends.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The PID of the process in this PID namespace; 0 when it is not visible from here.
    pub(super) fn pid(&self) -> u32 {
        pid_of(&self.0)
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::empty())];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

/// An accepted connection of a process of this user.
#[derive(Debug)]
pub(super) struct Accepted(ProcessSocket);

impl Accepted {
    /// Sends an answer.
    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        send(&self.0, &[message])
    }

    /// See [`Link::pid`].
    pub(super) fn pid(&self) -> u32 {
        pid_of(&self.0)
    }
}

/// A listener that accepts connections of this user's processes, and receives their messages.
#[derive(Debug)]
pub(super) struct LinkListener {
    listener: ProcessSocket,
    /// An epoll descriptor: readable when the listener or an accepted connection is.
    events: OwnedFd,
    user: User,
    other_users: OtherUsers,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    links: HashMap<u64, Arc<Accepted>>,
    next: u64,
    /// Whether connections are accepted. If not, accepting resumes at `retry_at`, or when one is
    /// closed.
    accepts: bool,
    retry_at: Time,
}

impl LinkListener {
    /// Takes a name and listens. Returns `None` when another socket has the name.
    pub(super) fn listen(name: &str) -> io::Result<Option<LinkListener>> {
        Self::listen_as(name, User::of_this_process())
    }

    pub(super) fn listen_as(name: &str, user: User) -> io::Result<Option<LinkListener>> {
        let listener = open()?;
        // Accepted connections inherit the option from the listener as soon as they are connected.
        let other_users = match refuse_descriptors(&listener) {
            true => OtherUsers::CloseInline,
            false => OtherUsers::start()?,
        };
        match listener.bind(&address(name)?) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => return Ok(None),
            Err(e) => return Err(e),
        }
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // A process that cannot identify its own user only holds the name, without listening.
        // Others get a refused connection and do not mistake a closed one for the end of this
        // process.
        if user.is_known() {
            listener.listen(libc::SOMAXCONN)?;
            let number = epoll::EventData::new_u64(LISTENER);
            epoll::add(&events, &*listener, number, epoll::EventFlags::IN)?;
        }
        Ok(Some(LinkListener {
            listener,
            events,
            user,
            other_users,
            state: Mutex::new(State {
                links: HashMap::new(),
                next: LISTENER + 1,
                accepts: true,
                retry_at: Time::NEVER,
            }),
        }))
    }

    /// The descriptor that is readable when [`LinkListener::recv`] has work to do.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Accepts connections, and calls `f` with each message received. Returns the number of
    /// messages; more may be queued when it is not 0.
    pub(super) fn recv(
        &self,
        batch: &mut RecvBatch,
        mut f: impl FnMut(&Arc<Accepted>, &Message, &[u8], &mut InboundState),
    ) -> io::Result<usize> {
        let (mut count, is_new) = self.recv_ready(batch, &mut f)?;
        // A process connects when it has a message to send, so that a new connection usually has
        // one already.
        if is_new {
            count += self.recv_ready(batch, &mut f)?.0;
        }
        Ok(count)
    }

    /// Serves the descriptors that are ready now. Returns the number of messages, and whether there
    /// were connections to accept.
    fn recv_ready(
        &self,
        batch: &mut RecvBatch,
        f: &mut impl FnMut(&Arc<Accepted>, &Message, &[u8], &mut InboundState),
    ) -> io::Result<(usize, bool)> {
        let mut buffer = [MaybeUninit::uninit(); MAX_EVENTS];
        let ready = match epoll::wait(&self.events, &mut buffer, Some(&Timespec::default())) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => return Ok((0, false)),
            Err(error) => return Err(error.into()),
        };
        let (mut count, mut is_new) = (0, false);
        for event in ready {
            let number = event.data.u64();
            if number == LISTENER {
                self.accept();
                is_new = true;
                continue;
            }
            let link = self.state().links.get(&number).map(Arc::clone);
            let Some(link) = link else { continue };
            let mut has_ended = !matches!(batch.fill(link.0.as_fd()), Ok(1..));
            let (messages, state) = batch.parts();
            for (message, bytes) in messages {
                // A closed connection yields empty messages.
                if bytes.is_empty() {
                    has_ended = true;
                    break;
                }
                count += 1;
                f(&link, &message, bytes, state);
            }
            if has_ended {
                drop(link);
                self.state().links.remove(&number);
                self.set_accepting(true);
            }
        }
        Ok((count, is_new))
    }

    /// Accepts connections of this user, and closes those of other users.
    fn accept(&self) {
        for _ in 0..MAX_ACCEPTS {
            if self.state().links.len() >= MAX_LINKS || self.other_users.is_full() {
                return self.set_accepting(false);
            }
            let socket = match self.listener.accept() {
                Ok((socket, _)) => ProcessSocket::from(socket),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    // Descriptors or memory may be available again later.
                    _ => return self.set_accepting(false),
                },
            };
            let is_ours = self.user.is_peer_of(socket.as_fd()).unwrap_or(false);
            if !is_ours {
                self.other_users.close(socket);
                continue;
            }
            let mut state = self.state();
            let number = state.next;
            state.next += 1;
            let data = epoll::EventData::new_u64(number);
            if epoll::add(&self.events, &*socket, data, epoll::EventFlags::IN).is_ok() {
                state.links.insert(number, Arc::new(Accepted(socket)));
            }
        }
    }

    /// Sets whether the listener makes [`LinkListener::fd`] readable.
    fn set_accepting(&self, accepts: bool) {
        let mut state = self.state();
        if state.accepts == accepts {
            return;
        }
        let flags = match accepts {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::empty(),
        };
        let number = epoll::EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&self.events, &*self.listener, number, flags) {
            tracing::debug!(%error, "cannot change whether connections are accepted");
        }
        state.accepts = accepts;
        state.retry_at = match accepts {
            true => Time::NEVER,
            false => clock::now() + ACCEPT_RETRY_INTERVAL,
        };
    }

    /// The time of the next call of [`LinkListener::retry`].
    pub(super) fn next_deadline(&self) -> Time {
        self.state().retry_at
    }

    /// Resumes accepting connections, if it is time.
    pub(super) fn retry(&self) {
        if self.next_deadline() <= clock::now() {
            self.set_accepting(true);
        }
    }
}

/// The handling of other users' connections.
#[derive(Debug)]
enum OtherUsers {
    /// They hold no descriptors, so closing them never blocks.
    CloseInline,
    /// A separate thread closes them.
    CloseInThread {
        close: mpsc::Sender<ProcessSocket>,
        waiting: Arc<AtomicUsize>,
    },
}

impl OtherUsers {
    /// Starts the closing thread.
    fn start() -> io::Result<OtherUsers> {
        let (close, closing) = mpsc::channel::<ProcessSocket>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&waiting);
        thread::spawn("urxe-closer", move || {
            for socket in closing {
                drop(socket);
                left.fetch_sub(1, Ordering::Relaxed);
            }
        })?;
        Ok(OtherUsers::CloseInThread { close, waiting })
    }

    fn close(&self, socket: ProcessSocket) {
        match self {
            OtherUsers::CloseInline => drop(socket),
            OtherUsers::CloseInThread { close, waiting } => {
                waiting.fetch_add(1, Ordering::Relaxed);
                // This fails only if the thread has ended, which it does with the listener.
                let _ = close.send(socket);
            }
        }
    }

    fn is_full(&self) -> bool {
        match self {
            OtherUsers::CloseInline => false,
            OtherUsers::CloseInThread { waiting, .. } => {
                waiting.load(Ordering::Relaxed) >= MAX_CLOSING
            }
        }
    }
}

/// Opens a non-blocking, close-on-exec Unix socket that keeps message boundaries.
fn open() -> io::Result<ProcessSocket> {
    let kind = Type::SEQPACKET.nonblocking().cloexec();
    Socket::new(Domain::UNIX, kind, None).map(ProcessSocket::from)
}

/// Makes the kernel refuse messages with descriptors (the sender gets EPERM). Returns false where
/// the kernel lacks that.
fn refuse_descriptors(socket: &Socket) -> bool {
    set_option(socket.as_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, 0_i32).is_ok()
}

fn send(socket: &Socket, parts: &[&[u8]]) -> io::Result<()> {
    let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    socket.send_vectored_with_flags(&parts, flags).map(drop)
}

fn pid_of(socket: &Socket) -> u32 {
    let credentials = peer_credentials(socket.as_fd());
    credentials.map_or(0, |credentials| credentials.pid.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    /// A time longer than any test takes.
    const LINGER_TIME: Duration = Duration::from_secs(30);

    fn unique() -> String {
        format!("test/link/{:x}", crate::random::any::<u128>())
    }

    fn link(name: &str) -> Link {
        match Link::to(name, User::of_this_process()).unwrap() {
            Connected::Ours(link) => link,
            other => panic!("{other:?}"),
        }
    }

    /// Returns a socket whose closing blocks until its peer, also returned, has read everything.
    fn lingering() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let socket = Socket::from(socket);
        socket.set_linger(Some(LINGER_TIME)).unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.send(&[0; 1 << 16]).is_ok() {}
        // Closing blocks although the socket is non-blocking.
        (socket, peer)
    }

    fn send_with(link: &Link, descriptor: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        let descriptors = [descriptor];
        let mut buffer = [MaybeUninit::uninit(); 64];
        let mut control = SendAncillaryBuffer::new(&mut buffer);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let parts = [IoSlice::new(b"message")];
        sendmsg(link.fd(), &parts, &mut control, SendFlags::NOSIGNAL)
    }

    /// Sets the listener up as on a kernel that does not refuse descriptors.
    fn accept_descriptors(listener: &mut LinkListener) {
        let _ = set_option(
            listener.listener.as_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            1_i32,
        );
        listener.other_users = OtherUsers::start().unwrap();
    }

    fn none(_: &Arc<Accepted>, _: &Message, _: &[u8], _: &mut InboundState) {
        panic!("a message of another user was received");
    }

    #[test]
    fn only_messages_of_this_user_are_received() {
        let (ours, theirs) = (unique(), unique());
        let open = LinkListener::listen(&ours).unwrap().unwrap();
        let closed = LinkListener::listen_as(&theirs, User::other())
            .unwrap()
            .unwrap();
        link(&ours).send(&[b"mes", b"sage"]).unwrap();
        let other = link(&theirs);
        other.send(&[b"message"]).unwrap();
        let mut batch = RecvBatch::new();
        closed.recv(&mut batch, none).unwrap();
        assert!(other.has_ended());
        let mut got = Vec::new();
        while got.is_empty() {
            let take = |_: &_, _: &_, bytes: &[u8], _: &mut _| got.push(bytes.to_vec());
            open.recv(&mut batch, take).unwrap();
        }
        assert_eq!(got, [b"message"]);
    }

    #[test]
    fn connections_of_other_users_hold_no_descriptors() {
        const MANY: usize = 200;
        let name = unique();
        let listener = LinkListener::listen_as(&name, User::other())
            .unwrap()
            .unwrap();
        let mut batch = RecvBatch::new();
        for _ in 0..MANY {
            let other = link(&name);
            while !other.has_ended() {
                listener.recv(&mut batch, none).unwrap();
            }
        }
        assert!(listener.state().links.is_empty());
    }

    #[test]
    fn descriptors_are_refused_where_the_kernel_supports_it() {
        let name = unique();
        let listener = LinkListener::listen(&name).unwrap().unwrap();
        let sent = send_with(&link(&name), listener.fd());
        match listener.other_users {
            OtherUsers::CloseInline => assert_eq!(sent, Err(rustix::io::Errno::PERM)),
            OtherUsers::CloseInThread { .. } => assert_eq!(sent, Ok(7)),
        }
    }

    #[test]
    fn descriptor_whose_closing_blocks_does_not_block_the_receiver() {
        let name = unique();
        let mut listener = LinkListener::listen_as(&name, User::other())
            .unwrap()
            .unwrap();
        accept_descriptors(&mut listener);
        let other = link(&name);
        let (socket, mut peer) = lingering();
        send_with(&other, socket.as_fd()).unwrap();
        drop(socket);
        let mut batch = RecvBatch::new();
        while !other.has_ended() {
            listener.recv(&mut batch, none).unwrap();
        }
        // The closing thread is still blocked.
        let OtherUsers::CloseInThread { waiting, .. } = &listener.other_users else {
            panic!("there is no closing thread");
        };
        assert_eq!(waiting.load(Ordering::Relaxed), 1);
        peer.read_to_end(&mut Vec::new()).unwrap();
        while waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn listener_cannot_send_to_a_connected_client() {
        let name = unique();
        let listener = LinkListener::listen(&name).unwrap().unwrap();
        let link = link(&name);
        link.send(&[b"query"]).unwrap();
        let (mut batch, mut answered) = (RecvBatch::new(), None);
        while answered.is_none() {
            let take = |from: &Arc<Accepted>, _: &_, _: &[u8], _: &mut _| {
                answered = Some(from.send(b"answer"));
            };
            listener.recv(&mut batch, take).unwrap();
        }
        let error = answered.unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
    }
}
