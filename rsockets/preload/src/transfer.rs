//! Sending and receiving.

use std::ffi::{c_int, c_void};

use libc::{iovec, msghdr, off_t, sockaddr, socklen_t};

use crate::call::{next, real, sockets};
use crate::fork::resolved;
use crate::table;

type Buffer = *mut c_void;
type Data = *const c_void;

real! {
    recv recvfrom recvmsg read readv send sendto sendmsg write writev sendfile sendfile64
    __read_chk __recv_chk __recvfrom_chk
}

sockets! {
    by resolved;
    fn recv(buffer: Buffer, len: usize, flags: c_int) -> isize => RRECV;
    fn recvfrom(buffer: Buffer, len: usize, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> isize => RRECVFROM;
    fn recvmsg(message: *mut msghdr, flags: c_int) -> isize => RRECVMSG;
    fn read(buffer: Buffer, len: usize) -> isize => RREAD;
    fn readv(pieces: *const iovec, count: c_int) -> isize => RREADV;
    fn send(data: Data, len: usize, flags: c_int) -> isize => RSEND;
    fn sendto(data: Data, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> isize => RSENDTO;
    fn sendmsg(message: *const msghdr, flags: c_int) -> isize => RSENDMSG;
    fn write(data: Data, len: usize) -> isize => RWRITE;
    fn writev(pieces: *const iovec, count: c_int) -> isize => RWRITEV;
}

/// Returns whether the number is an rsocket's.
fn is_rsocket(number: c_int) -> bool {
    resolved(number).is_some_and(|target| target.is_rsocket())
}

/// Returns whether the number is an rsocket's and the buffer has room for `len` bytes. Otherwise
/// the C library's function is called, which reports a buffer overflow.
fn is_rsocket_with_room(number: c_int, len: usize, room: usize) -> bool {
    len <= room && is_rsocket(number)
}

/// Interposes the fortified variant of `read`.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __read_chk(
    number: c_int,
    buffer: Buffer,
    len: usize,
    room: usize,
) -> isize {
    // SAFETY: the functions have these types, and the arguments are the caller's under the same
    // contract.
    unsafe {
        if is_rsocket_with_room(number, len, room) {
            return read(number, buffer, len);
        }
        let number = table::find(number).map_or(number, |target| target.target());
        next!(__read_chk(number: c_int, buffer: Buffer, len: usize, room: usize) -> isize)
    }
}

/// Interposes the fortified variant of `recv`.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __recv_chk(
    number: c_int,
    buffer: Buffer,
    len: usize,
    room: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the functions have these types, and the arguments are the caller's under the same
    // contract.
    unsafe {
        if is_rsocket_with_room(number, len, room) {
            return recv(number, buffer, len, flags);
        }
        let number = table::find(number).map_or(number, |target| target.target());
        next!(__recv_chk(number: c_int, buffer: Buffer, len: usize, room: usize, flags: c_int) -> isize)
    }
}

/// Interposes the fortified variant of `recvfrom`.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __recvfrom_chk(
    number: c_int,
    buffer: Buffer,
    len: usize,
    room: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> isize {
    // SAFETY: the functions have these types, and the arguments are the caller's under the same
    // contract.
    unsafe {
        if is_rsocket_with_room(number, len, room) {
            return recvfrom(number, buffer, len, flags, from, from_len);
        }
        let number = table::find(number).map_or(number, |target| target.target());
        next!(
            __recvfrom_chk(
                number: c_int,
                buffer: Buffer,
                len: usize,
                room: usize,
                flags: c_int,
                from: *mut sockaddr,
                from_len: *mut socklen_t,
            ) -> isize
        )
    }
}

/// The number of bytes to read from a file at once.
const CHUNK: usize = 1 << 16;

/// Sends a part of a file to an rsocket. The file position is that after the bytes sent.
///
/// # Safety
/// `offset` must be null or point to a writable offset.
unsafe fn send_file(to: c_int, from: c_int, offset: *mut off_t, count: usize) -> isize {
    let mut chunk = vec![0_u8; CHUNK.min(count)];
    let mut sent = 0;
    while sent < count {
        let most = chunk.len().min(count - sent);
        let buffer = chunk.as_mut_ptr().cast();
        // SAFETY: the buffer has room for `most` bytes. A non-null `offset` is readable by the
        // contract in section Safety.
        let (got, put) = unsafe {
            let got = match offset.is_null() {
                true => libc::read(from, buffer, most),
                false => libc::pread(from, buffer, most, offset.read()),
            };
            let Ok(len @ 1..) = usize::try_from(got) else {
                return if sent > 0 { sent as isize } else { got };
            };
            (got, write(to, buffer, len))
        };
        let done = put.max(0);
        // SAFETY: a non-null `offset` is readable and writable by the contract in section Safety.
        unsafe {
            match offset.is_null() {
                true if done < got => {
                    libc::lseek(from, (done - got) as off_t, libc::SEEK_CUR);
                }
                true => {}
                false => offset.write(offset.read() + done as off_t),
            }
        }
        sent += done as usize;
        if put < got {
            return if sent > 0 { sent as isize } else { put };
        }
    }
    sent as isize
}

macro_rules! sendfiles {
    ($($name:ident)*) => {
        $(
            /// Interposes the C function of this name.
            ///
            /// # Safety
            /// The contract of the C function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name(to: c_int, from: c_int, offset: *mut off_t, count: usize) -> isize {
                // SAFETY: the functions have these types, and the arguments are the caller's under
                // the same contract.
                unsafe {
                    if is_rsocket(to) {
                        return send_file(to, from, offset, count);
                    }
                    let to = table::find(to).map_or(to, |target| target.target());
                    next!($name(to: c_int, from: c_int, offset: *mut off_t, count: usize) -> isize)
                }
            }
        )*
    };
}

// `off_t` has 64 bits on all supported architectures.
sendfiles! { sendfile sendfile64 }
