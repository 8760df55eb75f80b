//! Servers that fork for each connection. A forked child cannot use its parent's rsockets. With
//! `RDMAV_FORK_SAFE` in the environment a connection therefore begins as TCP, and becomes an
//! rsocket on its first use, by the child.
//!
//! The protocol is rdma-core's. The server's end listens for an RDMA connection at the port of the
//! TCP connection and announces that by four zero bytes. The client's end waits for them and
//! connects by RDMA. Then both close the TCP connection. A lock serializes children that listen at
//! the same port.
//!
//! A client without rsockets is detected by the data or the end of stream that it has sent; the
//! connection then remains TCP. A client that has sent nothing receives the four zero bytes,
//! because it cannot be distinguished from an rsocket.

use std::env;
use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use libc::{nfds_t, pollfd, sockaddr, socklen_t};

use crate::create::make_rsocket;
use crate::kernel::close_descriptor;
use crate::next::preserve_errno;
use crate::rdma;
use crate::side::{self, Name, Side, copy};
use crate::table::{self, Deferred, Kind, Target};

/// The server's announcement that it listens.
const LISTENING: [u8; 4] = [0; 4];

/// The time for the RDMA connection to arrive after the client has closed TCP, in milliseconds.
const RDMA_CONNECT_TIMEOUT_MS: c_int = 1000;

/// Returns whether connections of such a socket are deferred.
pub fn defers(kind: c_int, protocol: c_int) -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    let is_wanted = || {
        let value = env::var("RDMAV_FORK_SAFE").unwrap_or_default();
        value.trim().parse::<i64>().is_ok_and(|value| value != 0)
    };
    let is_stream = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM;
    is_stream && matches!(protocol, 0 | libc::IPPROTO_TCP) && *WANTED.get_or_init(is_wanted)
}

/// Returns the target of a descriptor for use; resolves a deferred connection first.
pub fn resolved(number: c_int) -> Option<Arc<Target>> {
    let target = table::find(number)?;
    resolve(&target, |_| true);
    Some(target)
}

/// Resolves a deferred connection at the server's end. That of the client resolves when it is used.
pub fn resolve_accepted(target: &Target) {
    resolve(target, |deferred| deferred == Deferred::Accepted);
}

fn resolve(target: &Target, is_due: impl Fn(Deferred) -> bool) {
    let end = || match target.kind() {
        Kind::Deferred(end @ (Deferred::Connected | Deferred::Accepted)) if is_due(end) => {
            Some(end)
        }
        _ => None,
    };
    if end().is_none() {
        return;
    }
    let _resolving = target.resolving();
    // Another thread may have resolved it.
    let Some(end) = end() else {
        return;
    };
    preserve_errno(|| {
        let tcp = target.target();
        let rsocket = match end {
            Deferred::Accepted => accept(tcp),
            _ => connect(tcp),
        };
        let Some(rsocket) = rsocket else {
            target.set_kind(Kind::Kernel);
            return;
        };
        copy((Side::Kernel, tcp), (Side::Rdma, rsocket));
        target.replace(Kind::Rsocket, rsocket);
        // SAFETY: no other code of this process uses the number any more: `replace` has removed it
        // from the target. A parent may still have the connection.
        unsafe {
            libc::shutdown(tcp, libc::SHUT_RDWR);
            close_descriptor(tcp);
        }
    });
}

/// Returns a connected rsocket for the client's end, if the server's end listens.
fn connect(tcp: c_int) -> Option<c_int> {
    let mut received = [1; LISTENING.len()];
    if !receives_announcement(tcp, &mut received) || received != LISTENING {
        return None;
    }
    let (to, len) = side::name(tcp, |tcp, to, len| {
        // SAFETY: [`side::name`] passes a buffer with its length.
        Some(unsafe { libc::getpeername(tcp, to, len) })
    })?;
    let made = make_rsocket(c_int::from(to.ss_family), libc::SOCK_STREAM, 0);
    let connected = made.filter(|rsocket| {
        // SAFETY: `to` is an address of length `len`.
        let failed = unsafe { rdma::connect(*rsocket, (&raw const to).cast(), len) } != 0;
        if failed {
            rdma::close(*rsocket);
        }
        !failed
    });
    if connected.is_none() {
        // Removes the announcement, which is not for the program.
        //
        // SAFETY: the buffer has the length that is passed.
        unsafe {
            libc::recv(
                tcp,
                received.as_mut_ptr().cast(),
                received.len(),
                libc::MSG_DONTWAIT,
            )
        };
    }
    connected
}

/// Waits for the server's announcement and leaves it in the stream. Returns false on other data.
fn receives_announcement(tcp: c_int, received: &mut [u8]) -> bool {
    loop {
        let mut fds = [poll_in(tcp)];
        // SAFETY: `fds` has one element, and the buffer has the length that is passed.
        let got = unsafe {
            libc::poll(fds.as_mut_ptr(), 1, -1);
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            libc::recv(
                tcp,
                received.as_mut_ptr().cast::<c_void>(),
                received.len(),
                flags,
            )
        };
        match usize::try_from(got) {
            Ok(got) if got == received.len() => return true,
            // The end of the stream, or other data: the four bytes arrive in one piece.
            Ok(_) => return false,
            Err(_) if would_block() => {}
            Err(_) => return false,
        }
    }
}

/// Returns whether the last call failed because it would wait or was interrupted.
fn would_block() -> bool {
    let errno = std::io::Error::last_os_error().raw_os_error();
    matches!(errno, Some(libc::EAGAIN | libc::EINTR))
}

fn poll_in(fd: c_int) -> pollfd {
    pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Returns an accepted rsocket for the server's end, if the client connects by RDMA.
fn accept(tcp: c_int) -> Option<c_int> {
    let (here, len) = Side::Kernel.own_name(tcp)?;
    let _lock = ListenLock::take()?;
    let mut byte = 0_u8;
    // SAFETY: the buffer has room for one byte.
    let got = unsafe {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        libc::recv(tcp, (&raw mut byte).cast(), 1, flags)
    };
    if got >= 0 || !would_block() {
        // The client has sent data or closed, so it does not wait for the announcement.
        return None;
    }
    let listener = listen(&(here, len))?;
    // SAFETY: the buffer has the length that is passed.
    let sent = unsafe {
        libc::send(
            tcp,
            LISTENING.as_ptr().cast(),
            LISTENING.len(),
            libc::MSG_NOSIGNAL,
        )
    };
    let accepted = match usize::try_from(sent) {
        Ok(sent) if sent == LISTENING.len() => accept_from(listener, tcp),
        _ => None,
    };
    rdma::close(listener);
    accepted
}

/// Creates an rsocket that listens at the local address of the TCP connection.
fn listen((here, len): &Name) -> Option<c_int> {
    type Bind = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    type Listen = unsafe extern "C" fn(c_int, c_int) -> c_int;
    let listener = make_rsocket(c_int::from(here.ss_family), libc::SOCK_STREAM, 0)?;
    Side::Rdma.set(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    // SAFETY: the functions have these types, and `here` is an address of length `len`.
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

/// Waits for the RDMA connection, or until the TCP connection shows that none will come.
fn accept_from(listener: c_int, tcp: c_int) -> Option<c_int> {
    type Accept = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    type Poll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
    // SAFETY: the functions have these types, the array has the length that is passed, and null
    // pointers request no address.
    unsafe {
        let (accept, poll) = (rdma::RACCEPT.get::<Accept>()?, rdma::RPOLL.get::<Poll>()?);
        let mut fds = [poll_in(listener), poll_in(tcp)];
        let mut wait = |count, timeout| {
            let found = rdma::inside(|| poll(fds.as_mut_ptr(), count, timeout));
            (found, fds[0].revents, fds[1].revents)
        };
        let comes = loop {
            match wait(2, -1) {
                (-1, ..) if would_block() => {}
                (-1, ..) => break false,
                (_, 0, 0) => {}
                // The client closes TCP after it has connected.
                (_, 0, _) => break wait(1, RDMA_CONNECT_TIMEOUT_MS).1 != 0,
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

/// A lock among this user's processes, held while listening at a shared port. The kernel releases
/// it when the process ends.
struct ListenLock(c_int);

impl ListenLock {
    /// Acquires the lock.
    fn take() -> Option<ListenLock> {
        // SAFETY: the name is NUL-terminated, and `found` is valid for writes.
        unsafe {
            let user = libc::geteuid();
            let name = CString::new(format!("/dev/shm/urxe-rsocket-fork-{user}")).ok()?;
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
            let file = libc::open(name.as_ptr(), flags, 0o600);
            if file < 0 {
                return None;
            }
            let lock = ListenLock(file);
            // A file of another user could be locked forever.
            let mut found: libc::stat = std::mem::zeroed();
            if libc::fstat(file, &raw mut found) != 0 || found.st_uid != user {
                return None;
            }
            while libc::flock(file, libc::LOCK_EX) != 0 {
                if !would_block() {
                    return None;
                }
            }
            Some(lock)
        }
    }
}

impl Drop for ListenLock {
    fn drop(&mut self) {
        // SAFETY: the lock owns the descriptor.
        unsafe { close_descriptor(self.0) };
    }
}
