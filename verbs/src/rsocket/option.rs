//! Socket options, and `rfcntl`.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

use libc::{linger, socklen_t};

use super::lookup::socket_of;
use crate::entry;
use crate::errno::{self, Errno};
use urxe_rsockets::settings::Settings;
use urxe_rsockets::stream::Options;
use urxe_rsockets::{DatagramSocket, Socket, StreamSocket};

/// The level of the options specific to rsockets.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

/// The segment size that is reported when none is known, as in librdmacm.
const USUAL_SEGMENT: c_int = 2048;

/// Reads an option value.
///
/// # Errors
/// `EINVAL` if it is null or too short.
///
/// # Safety
/// `value` must be null or point to `len` readable bytes. Every bit pattern must be a valid `T`.
unsafe fn value_of<T: Copy>(value: *const c_void, len: socklen_t) -> Result<T, Errno> {
    if value.is_null() || (len as usize) < size_of::<T>() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: `value` is not null and points to at least `size_of::<T>()` readable bytes, possibly
    // unaligned, which are a valid `T`: the caller's contract, section Safety.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// # Safety
/// `optval` must be null or point to `optlen` readable bytes.
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: socklen_t,
) -> c_int {
    entry::status_or_minus_one("rsetsockopt", || {
        let number = socket;
        match socket_of(socket)? {
            Socket::Stream(stream) => {
                // SAFETY: `optval` is null or points to `optlen` readable bytes: the caller's
                // contract, section Safety.
                unsafe { set_of_stream(&stream, level, optname, optval, optlen) }
            }
            Socket::Datagram(datagrams) if level == SOL_RDMA => {
                // SAFETY: `optval` is null or points to `optlen` readable bytes: the caller's
                // contract, section Safety.
                let value = unsafe { value_of(optval, optlen) }?;
                let mut known = true;
                let early = datagrams.change_settings(|settings| {
                    known = set_size(settings, optname, value);
                });
                check_size_settable(early, known)
            }
            Socket::Datagram(datagrams) => {
                // SAFETY: `optval` is null or points to `optlen` readable bytes: the caller's
                // contract, section Safety.
                unsafe { set_of_datagrams(number, &datagrams, level, optname, optval, optlen) }
            }
        }
    })
}

/// Returns `EINVAL` if it is too late to set a size, `ENOTSUP` if the option is unknown.
fn check_size_settable(early: bool, known: bool) -> Result<(), Errno> {
    match (early, known) {
        (false, _) => Err(Errno(libc::EINVAL)),
        (true, false) => Err(Errno(libc::ENOTSUP)),
        (true, true) => Ok(()),
    }
}

/// Sets a size. Returns false if the option is unknown.
fn set_size(settings: &mut Settings, name: c_int, value: c_int) -> bool {
    let short = u16::try_from(value).unwrap_or(if value < 0 { 0 } else { u16::MAX });
    match name {
        RDMA_SQSIZE => settings.send_queue = short,
        RDMA_RQSIZE => settings.receive_queue = short,
        RDMA_INLINE => settings.inline = short,
        RDMA_IOMAPSIZE => settings.set_iomap_entries(value),
        _ => return false,
    }
    true
}

/// Doubles a requested buffer size, as the kernel does.
fn buffer_size(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0).saturating_mul(2)
}

/// # Safety
/// `value` must be null or point to `len` readable bytes.
unsafe fn set_of_datagrams(
    number: c_int,
    datagrams: &DatagramSocket,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<(), Errno> {
    // SAFETY: `value` is null or points to `len` readable bytes: the caller's contract, section
    // Safety.
    errno::of_call(unsafe { libc::setsockopt(number, level, name, value, len) })?;
    if let (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) = (level, name) {
        // SAFETY: `value` is null or points to `len` readable bytes: the caller's contract, section
        // Safety.
        let size = buffer_size(unsafe { value_of(value, len) }?);
        // A socket in use keeps its size.
        let _ = datagrams.change_settings(|settings| match name {
            libc::SO_RCVBUF => settings.receive_buffer = size,
            _ => settings.send_buffer = size,
        });
    }
    Ok(())
}

/// # Safety
/// `value` must be null or point to `len` readable bytes.
unsafe fn set_of_stream(
    stream: &StreamSocket,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<(), Errno> {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
        // SAFETY: `value` is null or points to `len` readable bytes: the caller's contract, section
        // Safety.
        let linger: linger = unsafe { value_of(value, len) }?;
        stream.change_options(|options| options.linger = linger.l_onoff != 0);
        return Ok(());
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
        // The option has no effect.
        return Ok(());
    }
    // SAFETY: `value` is null or points to `len` readable bytes: the caller's contract, section
    // Safety.
    let number: c_int = unsafe { value_of(value, len) }?;
    let on = number != 0;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => stream.set_reuse_address(on)?,
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            // A connected socket keeps its size.
            let _ = stream.change_settings(|settings| {
                settings.receive_buffer = buffer_size(number);
            });
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            let _ = stream.change_settings(|settings| {
                settings.send_buffer = buffer_size(number);
            });
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => stream.set_keep_alive(on),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => {
            stream.change_options(|options| options.oob_inline = on);
        }
        (libc::IPPROTO_IP, libc::IP_TOS) => stream.set_type_of_service(number),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
            stream.change_options(|options| options.no_delay = on);
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => match u32::try_from(number) {
            Ok(seconds @ 1..) => stream.set_keep_idle(seconds),
            _ => return Err(Errno(libc::EINVAL)),
        },
        // The queue pair's timers and MTU apply instead.
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG) => {}
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => stream.set_v6_only(on)?,
        (SOL_RDMA, _) => {
            let mut known = true;
            let early = stream.change_settings(|settings| {
                known = set_size(settings, name, number);
            });
            return check_size_settable(early, known);
        }
        _ => return Err(Errno(libc::ENOTSUP)),
    }
    Ok(())
}

/// Writes an option value and its length.
///
/// # Errors
/// `EINVAL` if there is no room for it.
///
/// # Safety
/// `len` must be null or valid for reading and writing, and `to` null or valid for writing `*len`
/// bytes.
unsafe fn write_option<T>(value: T, to: *mut c_void, len: *mut socklen_t) -> Result<(), Errno> {
    // SAFETY: `len` and `to` are null or valid: the caller's contract, section Safety.
    unsafe {
        if to.is_null() || (entry::read(len)? as usize) < size_of::<T>() {
            return Err(Errno(libc::EINVAL));
        }
        to.cast::<T>().write_unaligned(value);
        entry::write(len, size_of::<T>() as socklen_t)
    }
}

/// Writes a structure that grows between versions, truncated to the available room.
///
/// # Errors
/// `EINVAL` without room.
///
/// # Safety
/// `len` must be null or valid for reading and writing, and `to` null or valid for writing `*len`
/// bytes.
unsafe fn write_truncated<T: Copy>(
    value: &T,
    to: *mut c_void,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    // SAFETY: `len` and `to` are null or valid: the caller's contract, section Safety.
    unsafe {
        let known = (entry::read(len)? as usize).min(size_of::<T>());
        entry::write_as_known(to.cast::<T>(), known, value)?;
        entry::write(len, known as socklen_t)
    }
}

/// # Safety
/// `optlen` must be null or valid for reading and writing, and `optval` null or valid for writing
/// as many bytes as `optlen` says.
pub unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut socklen_t,
) -> c_int {
    entry::status_or_minus_one("rgetsockopt", || {
        let stream = match socket_of(socket)? {
            Socket::Stream(stream) => stream,
            Socket::Datagram(datagrams) if level == SOL_RDMA => {
                let size = size_of_name(&datagrams.settings(), optname)?;
                // SAFETY: `optval` and `optlen` are null or valid: the caller's contract, section
                // Safety.
                return unsafe { write_option(size, optval, optlen) };
            }
            Socket::Datagram(_) => {
                // SAFETY: `optval` and `optlen` are null or valid: the caller's contract, section
                // Safety.
                let got = unsafe { libc::getsockopt(socket, level, optname, optval, optlen) };
                return errno::of_call(got);
            }
        };
        if (level, optname) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            let value = linger {
                l_onoff: stream.options().linger.into(),
                l_linger: 0,
            };
            // SAFETY: `optval` and `optlen` are null or valid: the caller's contract, section
            // Safety.
            return unsafe { write_option(value, optval, optlen) };
        }
        if (level, optname) == (libc::IPPROTO_TCP, libc::TCP_INFO) {
            // SAFETY: `optval` and `optlen` are null or valid: the caller's contract, section
            // Safety.
            return unsafe { write_truncated(&information(&stream), optval, optlen) };
        }
        let value = match level {
            SOL_RDMA => size_of_name(&stream.settings(), optname)?,
            _ => option_of_stream(&stream, level, optname)?,
        };
        // SAFETY: `optval` and `optlen` are null or valid: the caller's contract, section Safety.
        unsafe { write_option(value, optval, optlen) }
    })
}

fn size_of_name(settings: &Settings, name: c_int) -> Result<c_int, Errno> {
    Ok(match name {
        RDMA_SQSIZE => settings.send_queue,
        RDMA_RQSIZE => settings.receive_queue,
        RDMA_INLINE => settings.inline,
        RDMA_IOMAPSIZE => settings.iomap_entries,
        _ => return Err(Errno(libc::ENOTSUP)),
    }
    .into())
}

/// Returns the few members of `TCP_INFO` that apply.
fn information(stream: &StreamSocket) -> libc::tcp_info {
    /// The connection states of the `enum` in `netinet/tcp.h`.
    const ESTABLISHED: u8 = 1;
    const CLOSED: u8 = 7;
    // SAFETY: `tcp_info` consists of integers, for which zero is valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    info.tcpi_state = match stream.is_connected() {
        true => ESTABLISHED,
        false => CLOSED,
    };
    info.tcpi_snd_cwnd = stream.settings().send_queue.into();
    info
}

fn option_of_stream(stream: &StreamSocket, level: c_int, name: c_int) -> Result<c_int, Errno> {
    let options: Options = stream.options();
    let size = |size: u32| c_int::try_from(size).unwrap_or(c_int::MAX);
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse_address.into(),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keep_alive.into(),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline.into(),
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => 0,
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => stream.is_listening().into(),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => match stream.is_v6() {
            true => libc::AF_INET6,
            false => libc::AF_INET,
        },
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => size(stream.settings().receive_buffer),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => size(stream.settings().send_buffer),
        (libc::SOL_SOCKET, libc::SO_ERROR) => stream.take_error(),
        (libc::IPPROTO_IP, libc::IP_TOS) => options.type_of_service,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay.into(),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => size(options.keep_idle),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_CONGESTION) => 1,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
            let known = stream.path_mtu().map(|mtu| mtu.bytes() as c_int);
            known.unwrap_or(USUAL_SEGMENT)
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.v6_only.into(),
        _ => return Err(Errno(libc::ENOTSUP)),
    })
}

/// Like `fcntl`, except that the argument is not variadic.
///
/// C declares it variadic; the processors named in `preload` pass it in the same way.
pub extern "C" fn rfcntl(socket: c_int, cmd: c_int, arg: c_long) -> c_int {
    entry::number("rfcntl", || {
        let found = socket_of(socket)?;
        let (status, descriptor): (&AtomicI32, &AtomicI32) = match &found {
            Socket::Stream(stream) => (&stream.status_flags, &stream.descriptor_flags),
            Socket::Datagram(datagrams) => (&datagrams.status_flags, &datagrams.descriptor_flags),
        };
        // C passes an `int`.
        let given = arg as c_int;
        match cmd {
            libc::F_GETFL => Ok(libc::O_RDWR | status.load(Ordering::Relaxed)),
            libc::F_SETFL => {
                status.store(given, Ordering::Relaxed);
                Ok(0)
            }
            libc::F_GETFD => Ok(descriptor.load(Ordering::Relaxed)),
            libc::F_SETFD => {
                descriptor.store(given, Ordering::Relaxed);
                Ok(0)
            }
            _ => Err(Errno(libc::ENOTSUP)),
        }
    })
}
