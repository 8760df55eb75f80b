//! Sending and receiving.

use std::ffi::{c_int, c_void};

use libc::{iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::data::Pieces;
use super::lookup::{socket_of, stream_of};
use super::name::{read_name, write_name};
use crate::entry;
use crate::errno::Errno;
use urxe_rsockets::Socket;
use urxe_rsockets::data::{Sink, Source};

/// Converts a number of bytes; a call never requests more than `ssize_t` can represent.
fn to_ssize(bytes: u64) -> ssize_t {
    bytes as ssize_t
}

fn pieces_count(count: c_int) -> Result<usize, Errno> {
    usize::try_from(count).map_err(|_| Errno(libc::EINVAL))
}

/// The room for the sender's address: pointers to the address and to its length.
type Name = (*mut sockaddr, *mut socklen_t);

/// Receives into `sink`.
///
/// # Safety
/// The length of `name` must be null or valid for reading and writing, and the address null or
/// valid for writing as many bytes.
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
        // SAFETY: both pointers of `name` are null or valid: the caller's contract, section Safety.
        unsafe { write_name(from, name.0, name.1) }?;
    }
    Ok(received)
}

/// Sends from `source`.
///
/// # Safety
/// The address of `name` must be null or point to as many readable bytes as `name` says.
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
        // SAFETY: the address points to as many readable bytes as `name` says: the caller's
        // contract, section Safety.
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
/// `buf` must be valid for writing `len` bytes.
pub unsafe extern "C" fn rrecv(
    socket: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    entry::number("rrecv", || {
        // SAFETY: `buf` is valid for writing `len` bytes: the caller's contract, section Safety.
        let received = unsafe { receive(socket, &mut Pieces::one(buf, len), flags, NO_NAME) };
        received.map(to_ssize)
    })
}

/// # Safety
/// `buf` must be valid for writing `len` bytes, `addrlen` null or valid for reading and writing,
/// and `src_addr` null or valid for writing as many bytes as `addrlen` says.
pub unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    src_addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    entry::number("rrecvfrom", || {
        // SAFETY: `buf`, `src_addr` and `addrlen` are valid, or the latter null: the caller's
        // contract, section Safety.
        let received = unsafe {
            let mut sink = Pieces::one(buf, len);
            receive(socket, &mut sink, flags, (src_addr, addrlen))
        };
        received.map(to_ssize)
    })
}

/// Returns the number of `iovec`s, which is an `int` with musl.
fn piece_count(message: &msghdr) -> usize {
    #[allow(clippy::unnecessary_cast)]
    let count = message.msg_iovlen as usize;
    count
}

/// # Safety
/// `msg` must be null or valid for reading and writing a `msghdr`, whose pieces and name are
/// writable with the lengths that it states.
pub unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    entry::number("rrecvmsg", || {
        // SAFETY: `msg` is null or valid, and so are its pieces and name: the caller's contract,
        // section Safety.
        unsafe {
            let message = entry::read(msg)?;
            if !message.msg_control.is_null() && message.msg_controllen > 0 {
                return Err(Errno(libc::ENOTSUP));
            }
            let mut sink = Pieces::of(message.msg_iov, piece_count(&message))?;
            let name = (message.msg_name.cast(), &raw mut (*msg).msg_namelen);
            let received = receive(socket, &mut sink, flags, name)?;
            (&raw mut (*msg).msg_flags).write_unaligned(0);
            Ok(to_ssize(received))
        }
    })
}

/// # Safety
/// `buf` must be valid for writing `count` bytes.
pub unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
    // SAFETY: `buf` is valid for writing `count` bytes: the caller's contract, section Safety.
    unsafe { rrecv(socket, buf, count, 0) }
}

/// # Safety
/// `iov` must point to `iovcnt` readable elements, whose pieces are writable with the lengths
/// stated.
pub unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    entry::number("rreadv", || {
        // SAFETY: `iov` points to `iovcnt` elements with writable pieces: the caller's contract,
        // section Safety.
        let received = unsafe {
            let mut sink = Pieces::of(iov, pieces_count(iovcnt)?)?;
            receive(socket, &mut sink, 0, NO_NAME)
        };
        received.map(to_ssize)
    })
}

/// # Safety
/// `buf` must point to `len` readable bytes.
pub unsafe extern "C" fn rsend(
    socket: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: `buf` points to `len` readable bytes: the caller's contract, section Safety.
    unsafe { rsendto(socket, buf, len, flags, std::ptr::null(), 0) }
}

/// # Safety
/// `buf` must point to `len` readable bytes, and `dest_addr` be null or point to `addrlen` readable
/// bytes.
pub unsafe extern "C" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    dest_addr: *const sockaddr,
    addrlen: socklen_t,
) -> ssize_t {
    entry::number("rsendto", || {
        // SAFETY: `buf` points to `len` readable bytes, and `dest_addr` is null or valid: the
        // caller's contract, section Safety.
        let sent = unsafe {
            let mut source = Pieces::one(buf.cast_mut(), len);
            send(socket, &mut source, flags, (dest_addr, addrlen))
        };
        sent.map(to_ssize)
    })
}

/// # Safety
/// `msg` must be null or valid for reading a `msghdr`, whose pieces and name are readable with the
/// lengths that it states.
pub unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    entry::number("rsendmsg", || {
        // SAFETY: `msg` is null or valid, and so are its pieces and name: the caller's contract,
        // section Safety.
        let sent = unsafe {
            let message = entry::read(msg)?;
            if !message.msg_control.is_null() && message.msg_controllen > 0 {
                return Err(Errno(libc::ENOTSUP));
            }
            let mut source = Pieces::of(message.msg_iov, piece_count(&message))?;
            let name = (message.msg_name.cast_const().cast(), message.msg_namelen);
            send(socket, &mut source, flags, name)
        };
        sent.map(to_ssize)
    })
}

/// # Safety
/// `buf` must point to `count` readable bytes.
pub unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, count: size_t) -> ssize_t {
    // SAFETY: `buf` points to `count` readable bytes: the caller's contract, section Safety.
    unsafe { rsend(socket, buf, count, 0) }
}

/// # Safety
/// `iov` must point to `iovcnt` readable elements, whose pieces are readable with the lengths
/// stated.
pub unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    entry::number("rwritev", || {
        // SAFETY: `iov` points to `iovcnt` elements with readable pieces: the caller's contract,
        // section Safety.
        let sent = unsafe {
            let mut source = Pieces::of(iov, pieces_count(iovcnt)?)?;
            send(socket, &mut source, 0, (std::ptr::null(), 0))
        };
        sent.map(to_ssize)
    })
}

/// Writes to memory that the peer has mapped, as far as it is mapped.
///
/// # Safety
/// `buf` must point to `count` readable bytes.
pub unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    let written = entry::number("riowrite", || {
        let stream = stream_of(socket)?;
        // SAFETY: `buf` points to `count` readable bytes: the caller's contract, section Safety.
        let mut source = unsafe { Pieces::one(buf.cast_mut(), count) };
        let dont_wait = flags & libc::MSG_DONTWAIT != 0;
        let written = stream.write_mapped(&mut source, offset.cast_unsigned(), dont_wait)?;
        Ok(to_ssize(written))
    });
    // The C declaration is unsigned, and errors are still -1.
    written.cast_unsigned()
}
