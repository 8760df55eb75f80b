//! Servers that fork for each connection. An rsocket is no use to a forked child, so where the environment has
//! `RDMAV_FORK_SAFE` a connection begins as one of TCP, and becomes an rsocket when it is first used, by the child.
//!
//! What the ends say to each other is rdma-core's. The server's end listens for a connection by RDMA at the port that the
//! connection by TCP came to, and says so by four zero bytes; the client's end, which has waited for them, makes
//! that connection, and both forget the one by TCP. Several children cannot do so at one port at once: they take turns.
//!
//! A client that is no rsocket is found out by what it has sent, or by its end; the connection stays one of TCP then.
//! One that has sent nothing yet gets the four zero bytes, as nothing tells it from an rsocket.

use std::env;
use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use libc::{nfds_t, pollfd, sockaddr, socklen_t};

use crate::descriptor::close_really;
use crate::next::keep_errno;
use crate::rdma;
use crate::side::{self, Name, Side, copy};
use crate::socket::make_rsocket;
use crate::table::{self, Deferred, Kind, Target};

/// What the server's end says when it listens.
const LISTENING: [u8; 4] = [0; 4];

/// How long after the client's end of the connection by TCP the one by RDMA may still come, in milliseconds.
const GRACE: c_int = 1000;

/// Whether such a socket's connections are put off.
pub fn defers(kind: c_int, protocol: c_int) -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    let is_wanted = || {
        let value = env::var("RDMAV_FORK_SAFE").unwrap_or_default();
        value.trim().parse::<i64>().is_ok_and(|value| value != 0)
    };
    let is_stream = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM;
    is_stream && matches!(protocol, 0 | libc::IPPROTO_TCP) && *WANTED.get_or_init(is_wanted)
}

/// What a number stands for, when it is to be used.
pub fn settled(number: c_int) -> Option<Arc<Target>> {
    let target = table::find(number)?;
    settle(&target, |_| true);
    Some(target)
}

/// Makes the connection of a server's end, if it was put off. The client's waits for it, whatever the server waits for.
pub fn settle_accepted(target: &Target) {
    settle(target, |deferred| deferred == Deferred::Accepted);
}

fn settle(target: &Target, is_due: impl Fn(Deferred) -> bool) {
    let end = || match target.kind() {
        Kind::Deferred(end @ (Deferred::Connected | Deferred::Accepted)) if is_due(end) => {
            Some(end)
        }
        _ => None,
    };
    if end().is_none() {
        return;
    }
    let _settling = target.settling();
    // Another thread may have done it.
    let Some(end) = end() else {
        return;
    };
    keep_errno(|| {
        let tcp = target.target();
        let rsocket = match end {
            Deferred::Accepted => accept(tcp),
            _ => connect(tcp),
        };
        let Some(rsocket) = rsocket else {
            target.becomes(Kind::Kernel);
            return;
        };
        copy((Side::Kernel, tcp), (Side::Rdma, rsocket));
        target.replace(Kind::Rsocket, rsocket);
        // SAFETY: nobody else has the number any more, here; a parent may have the connection.
        unsafe {
            libc::shutdown(tcp, libc::SHUT_RDWR);
            close_really(tcp);
        }
    });
}

/// The client's end: an rsocket that is connected, if the server's end listens for one.
fn connect(tcp: c_int) -> Option<c_int> {
    let mut said = [1; LISTENING.len()];
    if !hears(tcp, &mut said) || said != LISTENING {
        return None;
    }
    let (to, len) = side::name(tcp, |tcp, to, len| {
        // SAFETY: room, and how much of it.
        Some(unsafe { libc::getpeername(tcp, to, len) })
    })?;
    let made = make_rsocket(c_int::from(to.ss_family), libc::SOCK_STREAM, 0);
    let connected = made.filter(|rsocket| {
        // SAFETY: an address of this length.
        let failed = unsafe { rdma::connect(*rsocket, (&raw const to).cast(), len) } != 0;
        if failed {
            rdma::close(*rsocket);
        }
        !failed
    });
    if connected.is_none() {
        // It was not the program's.
        // SAFETY: room for as much as is said.
        unsafe {
            libc::recv(
                tcp,
                said.as_mut_ptr().cast(),
                said.len(),
                libc::MSG_DONTWAIT,
            )
        };
    }
    connected
}

/// Waits until the server has said as much, which is left to be read; false if it never will.
fn hears(tcp: c_int, said: &mut [u8]) -> bool {
    loop {
        let mut fds = [asked(tcp)];
        // SAFETY: one, and room for as much as is said.
        let got = unsafe {
            libc::poll(fds.as_mut_ptr(), 1, -1);
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            libc::recv(tcp, said.as_mut_ptr().cast::<c_void>(), said.len(), flags)
        };
        match usize::try_from(got) {
            Ok(got) if got == said.len() => return true,
            // An end, or some of them: four bytes come in one piece, or not for this.
            Ok(_) => return false,
            Err(_) if is_nothing_yet() => {}
            Err(_) => return false,
        }
    }
}

/// Whether a call has failed because it was too early.
fn is_nothing_yet() -> bool {
    let errno = std::io::Error::last_os_error().raw_os_error();
    matches!(errno, Some(libc::EAGAIN | libc::EINTR))
}

fn asked(fd: c_int) -> pollfd {
    pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// The server's end: an rsocket that was accepted, if the client makes the connection.
fn accept(tcp: c_int) -> Option<c_int> {
    let (here, len) = Side::Kernel.own_name(tcp)?;
    let _turn = Turn::take()?;
    let mut byte = 0_u8;
    // SAFETY: room for a byte.
    let got = unsafe {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        libc::recv(tcp, (&raw mut byte).cast(), 1, flags)
    };
    if got >= 0 || !is_nothing_yet() {
        // It does not wait to be told.
        return None;
    }
    let listener = listen(&(here, len))?;
    // SAFETY: as many bytes as is said.
    let told = unsafe {
        libc::send(
            tcp,
            LISTENING.as_ptr().cast(),
            LISTENING.len(),
            libc::MSG_NOSIGNAL,
        )
    };
    let accepted = match usize::try_from(told) {
        Ok(told) if told == LISTENING.len() => accept_from(listener, tcp),
        _ => None,
    };
    rdma::close(listener);
    accepted
}

/// An rsocket that listens where the connection by TCP came to.
fn listen((here, len): &Name) -> Option<c_int> {
    type Bind = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    type Listen = unsafe extern "C" fn(c_int, c_int) -> c_int;
    let listener = make_rsocket(c_int::from(here.ss_family), libc::SOCK_STREAM, 0)?;
    Side::Rdma.set(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    // SAFETY: the functions' types, and an address of this length.
    let listens = unsafe {
        match (rdma::RBIND.get::<Bind>(), rdma::RLISTEN.get::<Listen>()) {
            (Some(bind), Some(listen)) => rdma::inside(|| {
                bind(listener, ptr::from_ref(here).cast(), *len) == 0 && listen(listener, 1) == 0
            }),
            _ => false,
        }
    };
    if !listens {
        rdma::close(listener);
    }
    listens.then_some(listener)
}

/// Waits for the connection by RDMA, or until the one by TCP shows that none will come.
fn accept_from(listener: c_int, tcp: c_int) -> Option<c_int> {
    type Accept = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    type Poll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
    // SAFETY: the functions' types, as many as is said, and no name asked for.
    unsafe {
        let (accept, poll) = (rdma::RACCEPT.get::<Accept>()?, rdma::RPOLL.get::<Poll>()?);
        let mut fds = [asked(listener), asked(tcp)];
        let mut wait = |count, timeout| {
            let found = rdma::inside(|| poll(fds.as_mut_ptr(), count, timeout));
            (found, fds[0].revents, fds[1].revents)
        };
        let comes = loop {
            match wait(2, -1) {
                (-1, ..) if is_nothing_yet() => {}
                (-1, ..) => break false,
                (_, 0, 0) => {}
                // A client that has connected ends the connection by TCP.
                (_, 0, _) => break wait(1, GRACE).1 != 0,
                _ => break true,
            }
        };
        let accepted = match comes {
            true => rdma::inside(|| accept(listener, ptr::null_mut(), ptr::null_mut())),
            false => -1,
        };
        (accepted >= 0).then_some(accepted)
    }
}

/// The right of one process of this user to listen for a moment where others do, too. The kernel takes it back when the
/// process ends.
struct Turn(c_int);

impl Turn {
    /// Waits for it.
    fn take() -> Option<Turn> {
        // SAFETY: a C string, and room for what is written.
        unsafe {
            let user = libc::geteuid();
            let name = CString::new(format!("/dev/shm/urxe-rsocket-fork-{user}")).ok()?;
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
            let file = libc::open(name.as_ptr(), flags, 0o600);
            if file < 0 {
                return None;
            }
            let turn = Turn(file);
            // Nobody else's, who could keep it for ever.
            let mut found: libc::stat = std::mem::zeroed();
            if libc::fstat(file, &raw mut found) != 0 || found.st_uid != user {
                return None;
            }
            while libc::flock(file, libc::LOCK_EX) != 0 {
                if !is_nothing_yet() {
                    return None;
                }
            }
            Some(turn)
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // SAFETY: its own.
        unsafe { close_really(self.0) };
    }
}
