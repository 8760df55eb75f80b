//! Socket options and control messages that neither `socket2` nor `rustix` has.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets a socket option whose value is plain data.
pub(super) fn set_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the call.
    let r = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if r == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns a socket option whose value is an `int`.
pub(super) fn int_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointers refer to an `int`, for which all bytes are valid, and to its length.
    // Both outlive the call.
    let r = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    match r {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the credentials of the process at the other end of a connected Unix socket, in the
/// namespaces of this process. The PID is 0 when it is not visible in this PID namespace.
pub(super) fn peer_credentials(fd: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers refer to a `ucred`, for which all bytes are valid, and to its length.
    // Both outlive the call.
    let r = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if r == 0 {
        Ok(credentials)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether the kernel gave this program more rights than its user has (set-user-ID, set-group-ID or
/// capabilities). Then the environment is not to be trusted.
pub(super) fn has_more_rights_than_its_user() -> bool {
    // SAFETY: getauxval has no preconditions; it reads the auxiliary vector of this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A buffer for the control messages of one message: at most six, of up to 12 bytes each.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control([u8; CONTROL_SIZE]);

const CONTROL_SIZE: usize = 6 * 32;

impl Control {
    /// The length for a `msghdr` that receives. The kernel may fill the whole buffer.
    pub(super) const SIZE: usize = CONTROL_SIZE;

    pub(super) const fn new() -> Self {
        Control([0; CONTROL_SIZE])
    }
}

/// A list of control messages to send, in a [`Control`].
#[derive(Clone, Copy)]
pub(super) struct ControlList {
    buffer: Control,
    used: usize,
}

impl ControlList {
    pub(super) const fn new() -> Self {
        ControlList {
            buffer: Control::new(),
            used: 0,
        }
    }

    /// Appends a control message whose value is plain data of at most 8 bytes. At most six fit.
    pub(super) fn push<T: Copy>(&mut self, level: libc::c_int, kind: libc::c_int, value: T) {
        const { assert!(size_of::<T>() <= 8) };
        // SAFETY: CMSG_SPACE and CMSG_LEN compute sizes and access no memory.
        let (space, len) = unsafe {
            (
                libc::CMSG_SPACE(size_of::<T>() as u32) as usize,
                libc::CMSG_LEN(size_of::<T>() as u32) as usize,
            )
        };
        assert!(self.used + space <= CONTROL_SIZE, "six control messages");
        // SAFETY: all zeros are a valid `cmsghdr`: its fields, one of them padding with musl, are
        // integers.
        let mut header: libc::cmsghdr = unsafe { zeroed() };
        header.cmsg_len = len as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        // SAFETY: the `space` bytes from `used` are inside the buffer (asserted). The buffer is
        // aligned to 8, and so is `used`, since CMSG_SPACE rounds up to 8. The value follows the
        // header at CMSG_LEN(0), and is written without an assumption about its alignment.
        unsafe {
            let at = self.buffer.0.as_mut_ptr().add(self.used);
            at.cast::<libc::cmsghdr>().write(header);
            at.add(libc::CMSG_LEN(0) as usize)
                .cast::<T>()
                .write_unaligned(value);
        }
        self.used += space;
    }

    /// Returns pointer and length for a `msghdr` that sends: the kernel only reads the list.
    pub(super) fn as_list(&self) -> (*mut libc::c_void, usize) {
        if self.used == 0 {
            return (std::ptr::null_mut(), 0);
        }
        (self.buffer.0.as_ptr().cast_mut().cast(), self.used)
    }
}

/// Calls `f` with the level, type and value of each control message in `list`, the part of the
/// control buffer that a receive call has filled. Ends at the first malformed one.
#[inline]
pub(super) fn for_each_control(
    mut list: &[u8],
    mut f: impl FnMut(libc::c_int, libc::c_int, &[u8]),
) {
    // SAFETY: CMSG_LEN computes a size and accesses no memory.
    let value_at = unsafe { libc::CMSG_LEN(0) } as usize;
    while list.len() >= value_at {
        // SAFETY: `list` has at least `CMSG_LEN(0)` bytes, which is the size of a header or more.
        // Every bit pattern is a valid `cmsghdr`, and `read_unaligned` needs no alignment.
        let header = unsafe { list.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        // A `u32` with musl.
        #[allow(clippy::unnecessary_cast)]
        let len = header.cmsg_len as usize;
        let Some(value) = list.get(value_at..len) else {
            return;
        };
        f(header.cmsg_level, header.cmsg_type, value);
        list = list
            .get(len.next_multiple_of(CONTROL_ALIGN)..)
            .unwrap_or(&[]);
    }
}

/// The alignment of control messages in a list.
const CONTROL_ALIGN: usize = size_of::<usize>();

/// Returns the `int` at the start of a control message, or its single byte.
pub(super) fn control_int(value: &[u8]) -> i32 {
    match value {
        [one] => i32::from(*one),
        [a, b, c, d, ..] => i32::from_ne_bytes([*a, *b, *c, *d]),
        _ => 0,
    }
}

/// A socket address in the kernel's format.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RawAddress {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl RawAddress {
    /// The length for a `msghdr` that receives.
    pub(super) const SIZE: libc::socklen_t = size_of::<libc::sockaddr_storage>() as libc::socklen_t;

    pub(super) fn empty() -> Self {
        RawAddress {
            // SAFETY: zeroes are a valid sockaddr_storage (AF_UNSPEC).
            storage: unsafe { MaybeUninit::zeroed().assume_init() },
            len: size_of::<libc::sockaddr_storage>() as libc::socklen_t,
        }
    }

    /// Returns an IP address with its port. An IPv6 flow label of 0 lets the kernel choose one.
    pub(super) fn new(address: SocketAddr, flow_label: u32) -> Self {
        let mut raw = Self::empty();
        match address {
            SocketAddr::V4(v4) => {
                let a = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(v4.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is large enough and aligned for every address type.
                unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_in>().write(a) };
                raw.len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(v6) => {
                let a = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: (flow_label & 0xf_ffff).to_be(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: sockaddr_storage is large enough and aligned for every address type.
                unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_in6>().write(a) };
                raw.len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        raw
    }

    /// Returns the IP address, or `None` for another family. The flow label is omitted: it does not
    /// identify the peer.
    pub(super) fn ip(&self) -> Option<SocketAddr> {
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the storage is at least as large and as aligned as a sockaddr_in, for
                // which every bit pattern is valid.
                let a = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(a.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: the storage is at least as large and as aligned as a sockaddr_in6, for
                // which every bit pattern is valid.
                let a = unsafe {
                    (&raw const self.storage)
                        .cast::<libc::sockaddr_in6>()
                        .read()
                };
                let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                let port = u16::from_be(a.sin6_port);
                Some(SocketAddrV6::new(ip, port, 0, a.sin6_scope_id).into())
            }
            _ => None,
        }
    }

    /// Returns pointer and length for a `msghdr` that sends.
    pub(super) fn as_name(&self) -> (*mut libc::c_void, libc::socklen_t) {
        ((&raw const self.storage).cast_mut().cast(), self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_converted_to_the_kernels_format_and_back() {
        for text in ["192.0.2.1:4791", "[2001:db8::1]:4791", "[fe80::1%3]:49152"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddress::new(address, 0x12345).ip(), Some(address));
        }
    }

    #[test]
    fn control_messages_are_read_back_as_written() {
        let mut list = ControlList::new();
        list.push(libc::IPPROTO_IP, libc::IP_TOS, 0x2e_i32);
        list.push(libc::IPPROTO_UDP, libc::UDP_SEGMENT, 1040_u16);
        list.push(libc::IPPROTO_IP, libc::IP_TTL, 64_i32);
        let mut found = Vec::new();
        for_each_control(&list.buffer.0[..list.used], |level, kind, value| {
            found.push((level, kind, value.to_vec()));
        });
        assert_eq!(found.len(), 3);
        assert_eq!(control_int(&found[0].2), 0x2e);
        assert_eq!(found[1].1, libc::UDP_SEGMENT);
        assert_eq!(found[1].2, 1040_u16.to_ne_bytes());
        assert_eq!(control_int(&found[2].2), 64);
    }

    #[test]
    fn list_of_control_messages_ends_at_a_malformed_one() {
        let mut list = ControlList::new();
        list.push(libc::IPPROTO_IP, libc::IP_TOS, 1_i32);
        let first = list.used;
        list.push(libc::IPPROTO_IP, libc::IP_TTL, 64_i32);
        let all = list.buffer.0[..list.used].to_vec();
        let count = |bytes: &[u8]| {
            let mut count = 0;
            for_each_control(bytes, |_, _, _| count += 1);
            count
        };
        assert_eq!(count(&all), 2);
        assert_eq!(count(&[]), 0);
        // The second one is longer than the list, and then shorter than a header.
        assert_eq!(count(&all[..all.len() - 8]), 1);
        for len in [usize::MAX, usize::MAX - 6, 0, 1] {
            let mut bytes = all.clone();
            bytes[first..first + size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(count(&bytes), 1, "{len}");
        }
    }
}
