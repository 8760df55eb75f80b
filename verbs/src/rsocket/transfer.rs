//! Sending and receiving.

use std::ffi::{c_int, c_void};

use libc::{iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::data::Pieces;
use super::name::{read_name, write_name};
use super::{socket_of, stream_of};
use crate::entry;
use crate::errno::Errno;
use urxe_rsockets::Socket;
use urxe_rsockets::data::{Sink, Source};

/// How many bytes; a call never asks for more than this can tell.
fn told(bytes: u64) -> ssize_t {
    bytes as ssize_t
}

fn pieces_count(count: c_int) -> Result<usize, Errno> {
    usize::try_from(count).map_err(|_| Errno(libc::EINVAL))
}

/// Where the sender's address is to go: to an address, and its length.
type Name = (*mut sockaddr, *mut socklen_t);

/// Receives.
///
/// # Safety
/// The name is null, or room for as many bytes as it says.
unsafe fn receive(
    socket: c_int,
    sink: &mut dyn Sink,
    flags: c_int,
    name: Name,
) -> Result<u64, Errno> {
    let (dont_wait, peek) = (flags & libc::MSG_DONTWAIT != 0, flags & libc::MSG_PEEK != 0);
    let (received, from) = match socket_of(socket)? {
        Socket::Stream(stream) => {
            let all = flags & libc::MSG_WAITALL != 0;
            let received = stream.receive(sink, dont_wait, all, peek)?;
            (received, stream.peer_address())
        }
        Socket::Datagram(datagrams) => {
            let (received, from) = datagrams.receive(sink, dont_wait, peek)?;
            (received, Some(from))
        }
    };
    if !name.0.is_null()
        && !name.1.is_null()
        && let Some(from) = from
    {
        // SAFETY: the caller's promise.
        unsafe { write_name(from, name.0, name.1) }?;
    }
    Ok(received)
}

/// Sends.
///
/// # Safety
/// The name is null or of as many bytes as it says.
unsafe fn send(
    socket: c_int,
    source: &mut dyn Source,
    flags: c_int,
    name: (*const sockaddr, socklen_t),
) -> Result<u64, Errno> {
    let dont_wait = flags & libc::MSG_DONTWAIT != 0;
    let socket = socket_of(socket)?;
    let to = match name.0.is_null() {
        true => None,
        // SAFETY: the caller's promise.
        false => Some(unsafe { read_name(name.0, name.1) }?),
    };
    match (socket, to) {
        (Socket::Stream(_), Some(_)) => Err(Errno(libc::EISCONN)),
        (Socket::Stream(stream), None) => Ok(stream.send(source, dont_wait)?),
        (Socket::Datagram(datagrams), to) => Ok(datagrams.send(source, to, dont_wait)?),
    }
}

const NO_NAME: Name = (std::ptr::null_mut(), std::ptr::null_mut());

/// # Safety
/// `buf` has room for `len` bytes.
pub unsafe extern "C" fn rrecv(
    socket: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    entry::number("rrecv", || {
        // SAFETY: the caller's promise.
        let received = unsafe { receive(socket, &mut Pieces::one(buf, len), flags, NO_NAME) };
        received.map(told)
    })
}

/// # Safety
/// `buf` has room for `len` bytes; `src_addr` and `addrlen` are null, or room for as much of an address as it
/// says.
pub unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    src_addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    entry::number("rrecvfrom", || {
        // SAFETY: the caller's promise.
        let received = unsafe {
            let mut sink = Pieces::one(buf, len);
            receive(socket, &mut sink, flags, (src_addr, addrlen))
        };
        received.map(told)
    })
}

/// # Safety
/// `msg` is null or a message whose pieces and name have the room that it says.
pub unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    entry::number("rrecvmsg", || {
        // SAFETY: the caller's promise; what is written is the program's own structure.
        unsafe {
            let message = entry::read(msg)?;
            if !message.msg_control.is_null() && message.msg_controllen > 0 {
                return Err(Errno(libc::ENOTSUP));
            }
            let mut sink = Pieces::of(message.msg_iov, message.msg_iovlen)?;
            let name = (message.msg_name.cast(), &raw mut (*msg).msg_namelen);
            let received = receive(socket, &mut sink, flags, name)?;
            (&raw mut (*msg).msg_flags).write(0);
            Ok(told(received))
        }
    })
}

/// # Safety
/// `buf` has room for `count` bytes.
pub unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { rrecv(socket, buf, count, 0) }
}

/// # Safety
/// `iov` points at as many pieces, which have the room that they say.
pub unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    entry::number("rreadv", || {
        // SAFETY: the caller's promise.
        let received = unsafe {
            let mut sink = Pieces::of(iov, pieces_count(iovcnt)?)?;
            receive(socket, &mut sink, 0, NO_NAME)
        };
        received.map(told)
    })
}

/// # Safety
/// `buf` points at `len` bytes.
pub unsafe extern "C" fn rsend(
    socket: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { rsendto(socket, buf, len, flags, std::ptr::null(), 0) }
}

/// # Safety
/// `buf` points at `len` bytes, and `dest_addr` is null or of `addrlen` bytes.
pub unsafe extern "C" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    dest_addr: *const sockaddr,
    addrlen: socklen_t,
) -> ssize_t {
    entry::number("rsendto", || {
        // SAFETY: the caller's promise.
        let sent = unsafe {
            let mut source = Pieces::one(buf.cast_mut(), len);
            send(socket, &mut source, flags, (dest_addr, addrlen))
        };
        sent.map(told)
    })
}

/// # Safety
/// `msg` is null or a message whose pieces and name are as it says.
pub unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    entry::number("rsendmsg", || {
        // SAFETY: the caller's promise.
        let sent = unsafe {
            let message = entry::read(msg)?;
            if !message.msg_control.is_null() && message.msg_controllen > 0 {
                return Err(Errno(libc::ENOTSUP));
            }
            let mut source = Pieces::of(message.msg_iov, message.msg_iovlen)?;
            let name = (message.msg_name.cast_const().cast(), message.msg_namelen);
            send(socket, &mut source, flags, name)
        };
        sent.map(told)
    })
}

/// # Safety
/// `buf` points at `count` bytes.
pub unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, count: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { rsend(socket, buf, count, 0) }
}

/// # Safety
/// `iov` points at as many pieces.
pub unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    entry::number("rwritev", || {
        // SAFETY: the caller's promise.
        let sent = unsafe {
            let mut source = Pieces::of(iov, pieces_count(iovcnt)?)?;
            send(socket, &mut source, 0, (std::ptr::null(), 0))
        };
        sent.map(told)
    })
}

/// Writes to memory that the peer has mapped, as far as it is mapped.
///
/// # Safety
/// `buf` points at `count` bytes.
pub unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    let written = entry::number("riowrite", || {
        let stream = stream_of(socket)?;
        // SAFETY: the caller's promise.
        let mut source = unsafe { Pieces::one(buf.cast_mut(), count) };
        let dont_wait = flags & libc::MSG_DONTWAIT != 0;
        let written = stream.write_mapped(&mut source, offset.cast_unsigned(), dont_wait)?;
        Ok(told(written))
    });
    // What C declares has no sign, and -1 is what it returns all the same.
    written.cast_unsigned()
}
