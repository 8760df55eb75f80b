//! A packet socket, which sends and receives the frames of one interface.

use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use urxe_net::process_socket::ProcessSocket;

/// The length of a VLAN tag in bytes. The kernel removes the tag from frames.
const TAG: usize = 4;
/// The offset of the tag in a frame: after the two addresses.
const TAG_AT: usize = 12;

/// The packet socket. It receives no frames initially.
#[derive(Debug)]
pub(super) struct FrameSocket {
    socket: ProcessSocket,
    interface: u32,
}

impl FrameSocket {
    /// Opens a socket for the interface with this index.
    ///
    /// # Errors
    /// `EPERM` without the capability `CAP_NET_RAW`, and other errors of the system calls.
    pub(super) fn new(interface: u32) -> io::Result<Self> {
        let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None)?;
        let socket = ProcessSocket::from(socket);
        let on: libc::c_int = 1;
        // SAFETY: `on` is an int that is alive during the call, and the length is that of an int.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_AUXDATA,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = FrameSocket { socket, interface };
        socket.receive(false)?;
        Ok(socket)
    }

    /// Enables or disables receiving.
    pub(super) fn receive(&self, on: bool) -> io::Result<()> {
        let protocol = if on { libc::ETH_P_ALL as u16 } else { 0 };
        // SAFETY: the closure writes a complete `sockaddr_ll` to `storage`, which has room for any
        // address, and sets `len` to its length.
        let (_, address) = unsafe {
            SockAddr::try_init(|storage, len| {
                let address = storage.cast::<libc::sockaddr_ll>();
                let mut ll: libc::sockaddr_ll = zeroed();
                ll.sll_family = libc::AF_PACKET as u16;
                ll.sll_protocol = protocol.to_be();
                ll.sll_ifindex = self.interface.cast_signed();
                address.write(ll);
                *len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
                Ok(())
            })
        }?;
        self.socket.bind(&address)
    }

    /// Returns the descriptor, which is readable when a frame has arrived.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a frame.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.socket.send(frame).map(drop)
    }

    /// Receives the next frame into `buffer`, whose length must be at least that of a tag plus the
    /// longest frame.
    pub(super) fn next<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Next<'a>> {
        let (room, body) = (TAG, &mut buffer[TAG..]);
        let mut control = [MaybeUninit::<u64>::uninit(); 16];
        let mut piece = libc::iovec {
            iov_base: body.as_mut_ptr().cast(),
            iov_len: body.len(),
        };
        // SAFETY: both structures consist of integers and pointers, for which zero is a valid
        // value.
        let (mut message, mut from): (libc::msghdr, libc::sockaddr_ll) =
            unsafe { (zeroed(), zeroed()) };
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the pointers of `message` refer to `from`, `piece`, `body` and `control`, which
        // outlive the call, and its lengths are theirs.
        let got = unsafe {
            libc::recvmsg(
                self.socket.as_raw_fd(),
                &raw mut message,
                libc::MSG_DONTWAIT,
            )
        };
        let Ok(len) = usize::try_from(got) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Next::Nothing),
                _ => Err(error),
            };
        };
        // The loopback interface delivers each frame that it sends as a received frame, too.
        let comes_again =
            from.sll_hatype == libc::ARPHRD_LOOPBACK && from.sll_pkttype == libc::PACKET_OUTGOING;
        if comes_again || message.msg_flags & libc::MSG_TRUNC != 0 || len < TAG_AT {
            return Ok(Next::Unusable);
        }
        // SAFETY: `recvmsg` succeeded, so it has filled `message` in, and `control` is alive.
        let Some((tpid, tci)) = (unsafe { tag(&message) }) else {
            return Ok(Next::Frame(&buffer[room..room + len]));
        };
        buffer.copy_within(room..room + TAG_AT, 0);
        buffer[TAG_AT..TAG_AT + 2].copy_from_slice(&tpid.to_be_bytes());
        buffer[TAG_AT + 2..TAG_AT + TAG].copy_from_slice(&tci.to_be_bytes());
        Ok(Next::Frame(&buffer[..room + len]))
    }
}

/// The result of a receive.
pub(super) enum Next<'a> {
    /// A frame.
    Frame(&'a [u8]),
    /// A truncated frame, one too short for two addresses, or a duplicate.
    Unusable,
    /// No frame.
    Nothing,
}

/// Returns the protocol and the contents of a frame's VLAN tag; `None` if the frame had none.
///
/// # Safety
/// `recvmsg` must have filled `message` in, and its control buffer must be alive.
unsafe fn tag(message: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: `recvmsg` has written complete control messages to a live buffer: the caller's
    // contract, section Safety. `CMSG_NXTHDR` stays within that buffer.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while !at.is_null() {
            let header = at.read_unaligned();
            if header.cmsg_level == libc::SOL_PACKET && header.cmsg_type == libc::PACKET_AUXDATA {
                let data = libc::CMSG_DATA(at).cast::<libc::tpacket_auxdata>();
                let aux = data.read_unaligned();
                let valid = aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
                return valid.then_some((aux.tp_vlan_tpid, aux.tp_vlan_tci));
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    None
}
