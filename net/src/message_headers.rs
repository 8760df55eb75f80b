//! The headers that recvmmsg(2) fills, and the metadata of messages in them.

use crate::sys::{Control, RawAddress, control_int, for_each_control};
use std::net::SocketAddr;

/// The buffer size for one message: the largest GRO batch behind the header of a forwarded one.
pub(super) const MESSAGE_SIZE: usize = (64 << 10) + 256;

/// The metadata of one received message.
#[derive(Clone, Copy)]
pub(super) struct Message {
    /// The sender; `None` for a Unix socket.
    pub(super) src: Option<SocketAddr>,
    pub(super) controls: Controls,
    pub(super) len: usize,
    /// The message did not fit: the buffer holds only a part of it.
    pub(super) truncated: bool,
}

/// What the control messages of a message say.
#[derive(Clone, Copy, Default)]
pub(super) struct Controls {
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// The length of each datagram except the last; 0 when there is only one.
    pub(super) segment: u16,
    /// The message carried descriptors, which are closed.
    pub(super) had_descriptors: bool,
}

/// The length of one control message. In IPv4 and IPv6, each takes a header and a value of at most
/// 8 bytes.
const CONTROL: usize = size_of::<libc::cmsghdr>() + 8;

/// The length of the control messages of a datagram that arrives alone: type of service and time to
/// live.
const SINGLE: usize = 2 * CONTROL;

/// The length of the control messages of a GRO batch, which also have the length of its datagrams.
const BATCH: usize = 3 * CONTROL;

/// The last control messages of the two usual lengths, and what they say. Those of the next message
/// are usually the same, and comparing them costs less than reading them.
struct LastControls {
    single: ([u8; SINGLE], Controls),
    batch: ([u8; BATCH], Controls),
}

impl LastControls {
    /// No control messages: the length of the first is 0.
    fn none() -> Self {
        LastControls {
            single: ([0; SINGLE], Controls::default()),
            batch: ([0; BATCH], Controls::default()),
        }
    }

    /// Returns what `list` says, if it is one of the last.
    #[inline]
    fn find(&self, list: &[u8]) -> Option<Controls> {
        if let Ok(list) = <&[u8; SINGLE]>::try_from(list) {
            (*list == self.single.0).then_some(self.single.1)
        } else if let Ok(list) = <&[u8; BATCH]>::try_from(list) {
            (*list == self.batch.0).then_some(self.batch.1)
        } else {
            None
        }
    }

    /// Stores what `list` says, if it has one of the usual lengths.
    fn store(&mut self, list: &[u8], controls: Controls) {
        if let Ok(list) = list.try_into() {
            self.single = (list, controls);
        } else if let Ok(list) = list.try_into() {
            self.batch = (list, controls);
        }
    }
}

/// The headers that recvmmsg(2) fills, and the names and control messages that they point to.
///
/// Between two calls every header is ready, so that a receive sets nothing up: of those that it
/// fills the kernel changes lengths and flags, and [`MessageHeaders::take`] restores the lengths.
pub(super) struct MessageHeaders {
    pub(super) headers: Vec<libc::mmsghdr>,
    /// Owned here, and accessed through the headers only. They are never reallocated.
    _parts: (Vec<libc::iovec>, Vec<RawAddress>, Vec<Control>),
    last: LastControls,
}

// SAFETY: the raw pointers in the headers and iovecs point to heap memory that this value owns, or
// that the batch owns which owns this value. They are used only with exclusive access to both.
// Nothing about that memory depends on the thread.
unsafe impl Send for MessageHeaders {}

impl MessageHeaders {
    /// Creates a header for each part of `buffers` that holds a message. `buffers` must live as
    /// long as this value, in the same place.
    pub(super) fn new(buffers: &mut [u8]) -> Self {
        let mut iovecs: Vec<_> = buffers
            .chunks_exact_mut(MESSAGE_SIZE)
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        let mut names = vec![RawAddress::empty(); iovecs.len()];
        let mut controls = vec![Control::new(); iovecs.len()];
        let of = (
            iovecs.as_mut_ptr(),
            names.as_mut_ptr(),
            controls.as_mut_ptr(),
        );
        let header = |index| {
            // SAFETY: `mmsghdr` consists of integers and raw pointers, for which zeroes are valid.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = of.0.wrapping_add(index);
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = of.1.wrapping_add(index).cast();
            header.msg_hdr.msg_control = of.2.wrapping_add(index).cast();
            make_ready(&mut header.msg_hdr);
            header
        };
        MessageHeaders {
            headers: (0..iovecs.len()).map(header).collect(),
            _parts: (iovecs, names, controls),
            last: LastControls::none(),
        }
    }

    /// Returns the metadata of the message that the kernel stored with a header, and makes the
    /// header ready for the next one.
    ///
    /// # Safety
    /// The last recvmmsg(2) must have filled the header, and `take` not been called for it since.
    #[inline]
    pub(super) unsafe fn take(&mut self, index: usize) -> Message {
        let header = &mut self.headers[index];
        // For an unnamed Unix socket the kernel leaves the buffer unchanged.
        let src = match header.msg_hdr.msg_namelen {
            0 => None,
            // SAFETY: the name points to a live `RawAddress` (see `new`), which holds an address of
            // the kernel's or its initial value, and no reference to it exists.
            _ => unsafe { &*header.msg_hdr.msg_name.cast::<RawAddress>() }.ip(),
        };
        // SAFETY: recvmmsg has filled the header, and it has not been modified since: this
        // function's contract, section Safety. So the length is that of the part of the control
        // buffer that holds control messages. The buffer lives as long as this value, and no
        // reference to it exists (see `new`).
        #[allow(clippy::unnecessary_cast, reason = "the length is a `u32` with musl")]
        let list = unsafe {
            std::slice::from_raw_parts(
                header.msg_hdr.msg_control.cast::<u8>(),
                header.msg_hdr.msg_controllen as usize,
            )
        };
        let controls = match self.last.find(list) {
            Some(controls) => controls,
            // SAFETY: the list is of the message that the last recvmmsg has stored with this
            // header, and is read once: this function's contract, section Safety.
            None => unsafe { Controls::read(list, &mut self.last) },
        };
        let message = Message {
            src,
            controls,
            len: (header.msg_len as usize).min(MESSAGE_SIZE),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        };
        make_ready(&mut header.msg_hdr);
        message
    }
}

/// Sets the lengths that a receive overwrites.
fn make_ready(header: &mut libc::msghdr) {
    header.msg_namelen = RawAddress::SIZE;
    header.msg_controllen = Control::SIZE as _;
}

impl Controls {
    /// Reads the control messages of a message, and stores them in `last`.
    ///
    /// # Safety
    /// The kernel must have stored `list` with a message, and nothing else may read it: the
    /// descriptors in it are closed.
    #[inline(never)]
    unsafe fn read(list: &[u8], last: &mut LastControls) -> Controls {
        let mut controls = Controls::default();
        for_each_control(list, |level, kind, value| {
            // SAFETY: `value` is part of `list`, see this function's section Safety.
            unsafe { controls.apply(level, kind, value) };
        });
        // The same numbers of descriptors in another message are other descriptors.
        if !controls.had_descriptors {
            last.store(list, controls);
        }
        controls
    }

    /// Reads one control message.
    ///
    /// # Safety
    /// The kernel must have stored it with a message, and nothing else may read it.
    unsafe fn apply(&mut self, level: i32, kind: i32, value: &[u8]) {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.tos = control_int(value) as u8;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                self.ttl = control_int(value) as u8;
            }
            (libc::IPPROTO_UDP, libc::UDP_GRO) => {
                self.segment = u16::try_from(control_int(value)).unwrap_or(0);
            }
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                self.had_descriptors = true;
                // SAFETY: the kernel has installed these descriptors with this message, and nothing
                // else reads the control message, so nothing else owns them: this function's
                // contract, section Safety.
                unsafe { close_descriptors(value) };
            }
            _ => {}
        }
    }
}

/// Closes the descriptors in a control message. urxe sends none, but before Linux 6.16 another
/// process of this user can.
///
/// # Safety
/// The kernel must have installed the descriptors in `value` with this message, and nothing else
/// may own them.
#[cold]
unsafe fn close_descriptors(value: &[u8]) {
    for fd in value.chunks_exact(4) {
        // SAFETY: nothing else owns the descriptor: the caller's contract, section Safety.
        unsafe { libc::close(control_int(fd)) };
    }
}
