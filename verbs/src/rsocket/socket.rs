//! Creating, connecting and closing sockets, and mapping memory.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use libc::{off_t, sockaddr, socklen_t};
use urxe_driver::Mr;
use urxe_proto::host::Access;
use urxe_proto::rsocket::stream::Shutdown;

use super::epoll;
use super::lookup::{socket_of, stream_of};
use super::name::{read_name, write_name};
use crate::entry;
use crate::errno::Errno;
use urxe_rsockets::{self as sockets, DatagramSocket, Socket, StreamSocket};

/// Creates an rsocket (`rsocket(7)`). Returns its number, or -1 with `errno`.
pub extern "C" fn rsocket(domain: c_int, type_: c_int, protocol: c_int) -> c_int {
    entry::number("rsocket", || {
        let flags = type_ & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let v6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return Err(Errno(libc::ENOTSUP)),
        };
        let status = match flags & libc::SOCK_NONBLOCK {
            0 => 0,
            _ => libc::O_NONBLOCK,
        };
        let descriptor = match flags & libc::SOCK_CLOEXEC {
            0 => 0,
            _ => libc::FD_CLOEXEC,
        };
        match (type_ & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                let stream = StreamSocket::new(v6)?;
                stream.status_flags.store(status, Ordering::Relaxed);
                stream.descriptor_flags.store(descriptor, Ordering::Relaxed);
                let number = stream.number();
                sockets::insert(number, Socket::Stream(stream));
                Ok(number)
            }
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                let datagrams = DatagramSocket::new(v6)?;
                datagrams.status_flags.store(status, Ordering::Relaxed);
                datagrams
                    .descriptor_flags
                    .store(descriptor, Ordering::Relaxed);
                let number = datagrams.number();
                sockets::insert(number, Socket::Datagram(datagrams));
                Ok(number)
            }
            _ => Err(Errno(libc::ENOTSUP)),
        }
    })
}

/// # Safety
/// `addr` must be null or point to `addrlen` readable bytes.
pub unsafe extern "C" fn rbind(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    entry::status_or_minus_one("rbind", || {
        let socket = socket_of(socket)?;
        // SAFETY: `addr` is null or points to `addrlen` readable bytes: the caller's contract,
        // section Safety.
        let address = unsafe { read_name(addr, addrlen) }?;
        match socket {
            Socket::Stream(stream) => Ok(stream.bind(address)?),
            Socket::Datagram(datagrams) => Ok(datagrams.bind(address)?),
        }
    })
}

/// Listens for connections with the given backlog. Returns 0, or -1 with `errno`.
pub extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    entry::status_or_minus_one("rlisten", || match socket_of(socket)? {
        Socket::Stream(stream) => Ok(stream.listen(backlog)?),
        Socket::Datagram(_) => Err(Errno(libc::EOPNOTSUPP)),
    })
}

/// # Safety
/// `addrlen` must be null or valid for reading and writing, and `addr` null or valid for writing as
/// many bytes as `addrlen` says.
pub unsafe extern "C" fn raccept(
    socket: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    entry::number("raccept", || {
        let Socket::Stream(listener) = socket_of(socket)? else {
            return Err(Errno(libc::EOPNOTSUPP));
        };
        let stream = listener.accept()?;
        // As with librdmacm, and unlike kernel sockets, connections inherit the listener's flags.
        for (from, to) in [
            (&listener.status_flags, &stream.status_flags),
            (&listener.descriptor_flags, &stream.descriptor_flags),
        ] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let number = stream.number();
        let peer = stream.peer_address();
        sockets::insert(number, Socket::Stream(stream));
        if !addr.is_null()
            && !addrlen.is_null()
            && let Some(peer) = peer
        {
            // SAFETY: `addr` and `addrlen` are null or valid: the caller's contract, section
            // Safety.
            unsafe { write_name(peer, addr, addrlen) }?;
        }
        Ok(number)
    })
}

/// # Safety
/// `addr` must be null or point to `addrlen` readable bytes.
pub unsafe extern "C" fn rconnect(
    socket: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> c_int {
    entry::status_or_minus_one("rconnect", || {
        let socket = socket_of(socket)?;
        // SAFETY: `addr` is null or points to `addrlen` readable bytes: the caller's contract,
        // section Safety.
        let address = unsafe { read_name(addr, addrlen) }?;
        match socket {
            Socket::Stream(stream) => Ok(stream.connect(address)?),
            Socket::Datagram(datagrams) => Ok(datagrams.connect(address)?),
        }
    })
}

/// Shuts down reading, writing or both. Returns 0, or -1 with `errno`.
pub extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    entry::status_or_minus_one("rshutdown", || {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno(libc::EINVAL)),
        };
        match socket_of(socket)? {
            Socket::Stream(stream) => Ok(stream.shut_down(how)?),
            // A datagram socket has no connection to shut down.
            Socket::Datagram(_) => Ok(()),
        }
    })
}

/// Closes an rsocket. Returns 0, or -1 with `errno`.
pub extern "C" fn rclose(socket: c_int) -> c_int {
    entry::status_or_minus_one("rclose", || {
        let Some(removed) = sockets::remove(socket) else {
            return epoll::close(socket);
        };
        epoll::forget(socket);
        match removed {
            Socket::Stream(stream) => stream.close(),
            Socket::Datagram(datagrams) => datagrams.close(),
        }
        Ok(())
    })
}

/// Maps memory for the peer to write to, with `PROT_WRITE`.
///
/// With `offset` -1, the offset is the address.
///
/// # Safety
/// `buf` must point to `len` bytes that stay mapped until [`riounmap`] or [`rclose`].
pub unsafe extern "C" fn riomap(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    entry::number("riomap", || {
        let stream = stream_of(socket)?;
        if prot & !(libc::PROT_WRITE | libc::PROT_NONE) != 0 || len == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let for_peer = prot & libc::PROT_WRITE != 0;
        let access = match for_peer {
            true => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            false => Access::LOCAL_WRITE,
        };
        let addr = buf.expose_provenance() as u64;
        // SAFETY: the memory stays mapped as long as the registration: the caller's contract,
        // section Safety.
        let mr = unsafe { Mr::register(&stream.domain()?, addr, len as u64, addr, access) }?;
        let offset = match offset {
            -1 => addr.cast_signed(),
            given => given,
        };
        stream.map(mr, offset.cast_unsigned(), for_peer)?;
        Ok(offset)
    })
}

/// # Safety
/// Always safe to call: `buf` is not dereferenced.
pub unsafe extern "C" fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int {
    entry::status_or_minus_one("riounmap", || {
        let stream = stream_of(socket)?;
        Ok(stream.unmap(buf.expose_provenance() as u64, len as u64)?)
    })
}
