//! Sending many datagrams with one system call.
//!
//! Packets are staged back to back. Each gets its ICRC while it is still in the cache. Runs of
//! equal size become GSO batches, which the kernel takes as one message. The ICRC covers the IPv4
//! identification, which is the packet's position in the GSO batch; so one module both seals and
//! groups.

use crate::clock;
use crate::icrc::{self, MIN_PACKET, seal};
use crate::path::{Path, PathInner, SEND_FLAGS};
use crate::socket::wait_writable;
use crate::sys::ControlList;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::AsRawFd;
use urxe_proto::host::{BatchPlace, Transmit};
use urxe_proto::time::Time;

/// The number of bytes staged between two clock readings: a few microseconds' worth.
const READ_EVERY: usize = 16 << 10;

/// The default capacity of a batch, in bytes: four full GSO batches.
pub const DEFAULT_CAPACITY: usize = 4 * MAX_GROUP_BYTES;

/// The size limit of a GSO batch, in bytes: 65535 less the IPv6 and UDP headers, since the kernel
/// handles a batch as one IP packet.
const MAX_GROUP_BYTES: usize = 65_535 - 40 - 8;

/// The kernel's limit of segments per message (`UDP_MAX_SEGMENTS`), as older kernels have it.
const MAX_SEGMENTS: usize = 64;

/// The maximum number of messages per system call.
const MESSAGES: usize = 32;

/// The maximum number of messages per batch. Without GSO each is one packet.
const MAX_GROUPS: usize = 512;

/// The longest sleep of [`SendBatch::flush_blocking`] for space in the socket, per attempt.
const WAIT_MILLISECONDS: i64 = 1;

/// The result of flushing a batch.
#[derive(Default, Debug)]
pub struct SendReport {
    /// Packets that the kernel accepted.
    pub packets: u64,
    /// The UDP payload of these packets, in bytes.
    pub bytes: u64,
    /// Packets that were lost to an error.
    pub lost: u64,
    /// The last such error. The transport treats these packets as lost and retransmits them.
    pub error: Option<io::Error>,
    /// The socket had no space: the remaining packets stay in the batch for a later flush.
    pub blocked: bool,
}

impl SendReport {
    fn lost(&mut self, path: &PathInner, packets: u64, error: io::Error) {
        path.sender
            .outbound
            .counters
            .count_send_error(packets, &error);
        self.lost += packets;
        self.error = Some(error);
    }

    /// Adds the result of a later flush of the remaining packets.
    fn followed_by(mut self, rest: SendReport) -> SendReport {
        self.packets += rest.packets;
        self.bytes += rest.bytes;
        self.lost += rest.lost;
        self.error = rest.error.or(self.error);
        self.blocked = rest.blocked;
        self
    }

    /// Adds a group that the kernel has accepted, here and in the counters of the endpoint.
    #[inline]
    fn sent(&mut self, path: &PathInner, group: &Group) {
        let counters = &path.sender.outbound.counters;
        if group.count > 1 {
            counters.gso_sends.add(1);
        }
        counters.datagrams_out.add(group.count as u64);
        counters.bytes_out.add(group.bytes.len() as u64);
        self.add(group.count as u64, group.bytes.len());
    }

    fn add(&mut self, packets: u64, bytes: usize) {
        self.packets += packets;
        self.bytes += bytes as u64;
    }
}

/// A run of packets that goes to the kernel as one message.
#[derive(Debug)]
struct Group {
    bytes: Range<usize>,
    /// The length of every packet except perhaps the last.
    segment: usize,
    count: usize,
}

impl Group {
    /// Returns the segment length for the kernel; 0 for a lone packet.
    fn gso_segment(&self) -> usize {
        match self.count {
            0 | 1 => 0,
            _ => self.segment,
        }
    }

    /// Returns the ranges of the packets in the batch's buffer.
    fn packets(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Range { start, end } = self.bytes;
        let segment = self.segment;
        (start..end)
            .step_by(segment)
            .map(move |at| at..(at + segment).min(end))
    }
}

/// A batch of packets to send. A thread keeps one and uses it for every path in turn.
pub struct SendBatch {
    buffer: Vec<u8>,
    used: usize,
    groups: Vec<Group>,
    /// The number of groups that the kernel has accepted: nonzero only after it blocked.
    sent: usize,
    /// The number of packets that have been captured: nonzero only after the kernel blocked.
    captured: usize,
    /// The end of the packet that is being written, which begins at `used`; `used` while there is
    /// none.
    staged_end: usize,
    /// Whether that packet joins the last group.
    joins: bool,
    path: Option<Path>,
    max_segments: usize,
    /// The number of bytes staged at the last clock reading, and the reading; [`Time::NEVER`]
    /// before the first.
    read: Cell<(usize, Time)>,
}

impl fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBatch")
            .field("path", &self.path)
            .field("packets", &self.packets())
            .field("bytes", &self.used)
            .finish_non_exhaustive()
    }
}

impl Default for SendBatch {
    fn default() -> Self {
        Self::new(DEFAULT_CAPACITY)
    }
}

impl SendBatch {
    /// Returns an empty batch of `capacity` bytes, but of at least one full GSO batch.
    pub fn new(capacity: usize) -> Self {
        SendBatch {
            buffer: vec![0; capacity.max(MAX_GROUP_BYTES)],
            used: 0,
            groups: Vec::with_capacity(MAX_GROUPS),
            sent: 0,
            captured: 0,
            staged_end: 0,
            joins: false,
            path: None,
            max_segments: 1,
            read: Cell::new((0, Time::NEVER)),
        }
    }

    /// Selects `path` for the packets staged from now on. Packets staged for another path are
    /// flushed first; those for which the socket has no space are dropped and counted.
    #[inline]
    pub fn begin(&mut self, path: &Path) {
        self.read.set((0, Time::NEVER));
        if !self.path.as_ref().is_some_and(|current| current.is(path)) {
            self.change_path(path);
        }
    }

    #[inline(never)]
    fn change_path(&mut self, path: &Path) {
        if !self.is_empty() {
            self.flush();
            self.discard();
        }
        self.cancel();
        self.max_segments = if path.inner().sender.socket.has_gso() {
            MAX_SEGMENTS
        } else {
            1
        };
        self.path = Some(path.clone());
    }

    /// Sets the time of the packets that are staged next to a clock reading of the caller, so that
    /// the batch does not read the clock at once.
    #[inline]
    pub fn set_now(&mut self, now: Time) {
        self.read.set((self.used, now));
    }

    /// Whether no packet waits to be flushed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The number of packets that wait to be flushed.
    pub fn packets(&self) -> usize {
        self.groups[self.sent..].iter().map(|g| g.count).sum()
    }

    /// Sends everything. While the socket is full, sleeps up to 1 ms per attempt for space, and
    /// stops when there is none. The caller must hold no lock.
    pub fn flush_blocking(&mut self) -> SendReport {
        let mut report = self.flush();
        while report.blocked && self.wait_for_space() {
            let rest = self.flush();
            report = report.followed_by(rest);
        }
        report
    }

    /// Sleeps at most 1 ms for space in the socket. Returns false if it still has none.
    fn wait_for_space(&self) -> bool {
        let wait = |path: &Path| wait_writable(path.inner().sender.socket.fd(), WAIT_MILLISECONDS);
        self.path.as_ref().is_some_and(wait)
    }

    /// Sends as much as the socket has space for, without sleeping.
    #[inline(always)]
    pub fn flush(&mut self) -> SendReport {
        self.cancel();
        // Most batches are one group, which one system call sends without anything left to do.
        let mut error = None;
        if let ([group], Some(path), 0) = (&self.groups[..], &self.path, self.sent)
            && path.inner().is_direct()
        {
            let path = path.inner();
            match self.send_group(path, group) {
                Ok(()) => {
                    let mut report = SendReport::default();
                    report.sent(path, group);
                    path.sender.outbound.counters.messages_out.add(1);
                    self.clear();
                    return report;
                }
                Err(failed) => error = Some(failed),
            }
        }
        self.flush_any(error)
    }

    /// [`SendBatch::flush`] for any batch. `error` is that of a call that was to send the first
    /// unsent group.
    #[inline(never)]
    fn flush_any(&mut self, error: Option<io::Error>) -> SendReport {
        let mut report = SendReport::default();
        if self.groups.is_empty() {
            return report;
        }
        let Some(path) = self.path.take() else {
            return report;
        };
        if path.inner().has_faults() {
            self.flush_through_faults(path.inner(), &mut report);
        } else {
            if path.inner().sender.outbound.capture.is_active() {
                self.capture(path.inner());
            }
            if let Some(error) = error {
                self.send_failed(path.inner(), error, &mut report);
            }
            if !report.blocked {
                self.flush_groups(path.inner(), &mut report);
            }
        }
        self.path = Some(path);
        if !report.blocked {
            self.clear();
        }
        report
    }

    fn clear(&mut self) {
        self.groups.clear();
        self.used = 0;
        self.staged_end = 0;
        self.sent = 0;
        self.captured = 0;
    }

    /// Drops and counts the packets that could not be sent.
    pub fn discard(&mut self) {
        let left = self.packets() as u64;
        if left > 0
            && let Some(path) = &self.path
        {
            path.inner().sender.outbound.counters.send_blocked.add(left);
        }
        self.clear();
    }

    fn flush_groups(&mut self, path: &PathInner, report: &mut SendReport) {
        while self.sent < self.groups.len() {
            match self.send_some(path) {
                Ok(count) => {
                    for group in &self.groups[self.sent..self.sent + count] {
                        report.sent(path, group);
                    }
                    let counters = &path.sender.outbound.counters;
                    counters.messages_out.add(count as u64);
                    self.sent += count;
                }
                Err(error) => {
                    self.send_failed(path, error, report);
                    if report.blocked {
                        return;
                    }
                }
            }
        }
    }

    /// Handles the error of a system call that was to send the first unsent group.
    #[cold]
    fn send_failed(&mut self, path: &PathInner, error: io::Error, report: &mut SendReport) {
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN) => {
                path.sender.socket.set_full(true);
                report.blocked = true;
            }
            // EIO: the device cannot compute the checksums of segments. EINVAL: on some kernels, a
            // segment exceeds the MTU; sending the packets one by one yields the actual error.
            Some(code @ (libc::EIO | libc::EINVAL)) if self.groups[self.sent].count > 1 => {
                if code == libc::EIO {
                    path.sender.socket.give_up_gso();
                    self.max_segments = 1;
                }
                self.send_singly(path, report);
                self.sent += 1;
            }
            _ => {
                report.lost(path, self.groups[self.sent].count as u64, error);
                self.sent += 1;
            }
        }
    }

    /// Makes one system call. Returns the number of groups sent, from the first unsent one on.
    fn send_some(&mut self, path: &PathInner) -> io::Result<usize> {
        match &self.groups[self.sent..] {
            [group] => self.send_group(path, group).map(|()| 1),
            _ => self.send_many(path),
        }
    }

    /// Sends one group with one system call.
    #[inline(always)]
    fn send_group(&self, path: &PathInner, group: &Group) -> io::Result<()> {
        let bytes = &self.buffer[group.bytes.clone()];
        path.sender.send(bytes, group.gso_segment())
    }

    /// Sends several groups with one system call, see [`SendBatch::send_some`].
    #[inline(never)]
    fn send_many(&mut self, path: &PathInner) -> io::Result<usize> {
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MESSAGES];
        let mut iovecs = [const { MaybeUninit::<libc::iovec>::uninit() }; MESSAGES];
        let mut controls = [const { MaybeUninit::<ControlList>::uninit() }; MESSAGES];
        let groups = &self.groups[self.sent..];
        let count = groups.len().min(MESSAGES);
        for (i, group) in groups.iter().take(count).enumerate() {
            let bytes = &self.buffer[group.bytes.clone()];
            let iovec = iovecs[i].write(libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            });
            headers[i].write(libc::mmsghdr {
                msg_hdr: path
                    .sender
                    .message(iovec, &mut controls[i], group.gso_segment()),
                msg_len: 0,
            });
        }
        path.sender.outbound.counters.send_calls.add(1);
        // Not through the C library's function, which is a cancellation point.
        // SAFETY: the first `count` headers are initialized. The names, iovecs, buffers and control
        // messages that they point to outlive the call, which writes only the headers' `msg_len`.
        let n = unsafe {
            libc::syscall(
                libc::SYS_sendmmsg,
                path.sender.socket.fd().as_raw_fd(),
                headers.as_mut_ptr(),
                count as libc::c_uint,
                SEND_FLAGS,
            )
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// Sends the packets of the first unsent group one by one, each as a lone packet.
    #[cold]
    fn send_singly(&mut self, path: &PathInner, report: &mut SendReport) {
        for range in self.groups[self.sent].packets() {
            let packet = &mut self.buffer[range];
            seal(&path.icrc, 0, packet);
            match path.sender.send_one(packet) {
                Ok(()) => report.add(1, packet.len()),
                Err(error) => report.lost(path, 1, error),
            }
        }
    }

    /// Passes the packets one by one to the fault injector, which copies them.
    #[cold]
    fn flush_through_faults(&mut self, path: &PathInner, report: &mut SendReport) {
        for range in self.groups.iter().flat_map(Group::packets) {
            let packet = &mut self.buffer[range];
            seal(&path.icrc, 0, packet);
            report.add(1, packet.len());
            path.send_through_faults(packet);
        }
        path.sender.outbound.capture.flush();
    }

    /// Captures the packets that are not captured yet.
    #[cold]
    fn capture(&mut self, path: &PathInner) {
        let packets = self
            .groups
            .iter()
            .flat_map(|group| (0_u16..).zip(group.packets()));
        for (id, range) in packets.skip(self.captured) {
            path.sender.capture(id, &self.buffer[range]);
            self.captured += 1;
        }
        path.sender.outbound.capture.flush();
    }

    #[cold]
    fn read_clock(&self) -> Time {
        let now = clock::now();
        self.read.set((self.used, now));
        now
    }

    /// The group to which a packet of `len` bytes may be appended: the last, if it has room.
    #[inline]
    fn joined_group(&self, len: usize) -> Option<&Group> {
        self.groups[self.sent..].last().filter(|group| {
            // A shorter packet ends its group.
            let full = group.bytes.len() == group.segment * group.count;
            full && len <= group.segment
                && group.count < self.max_segments
                && group.bytes.len() + len <= MAX_GROUP_BYTES
        })
    }
}

impl Transmit for SendBatch {
    #[inline(always)]
    fn stage(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.path.is_none() || len < MIN_PACKET {
            return None;
        }
        let total = len.checked_add(icrc::LEN)?;
        let end = self.used.checked_add(total)?;
        if end > self.buffer.len() || total > MAX_GROUP_BYTES {
            return None;
        }
        let joins = self.joined_group(total).is_some();
        if !joins && self.groups.len() >= MAX_GROUPS {
            return None;
        }
        self.staged_end = end;
        self.joins = joins;
        Some(&mut self.buffer[self.used..end - icrc::LEN])
    }

    #[inline(always)]
    fn commit(&mut self) {
        let (start, end) = (self.used, self.staged_end);
        let Some(path) = self.path.as_ref().filter(|_| start < end) else {
            return;
        };
        self.used = end;
        let mut id = 0;
        match self.groups.last_mut() {
            Some(group) if self.joins => {
                id = group.count as u16;
                group.bytes.end = end;
                group.count += 1;
            }
            _ => self.groups.push(Group {
                bytes: start..end,
                segment: end - start,
                count: 1,
            }),
        }
        seal(&path.inner().icrc, id, &mut self.buffer[start..end]);
    }

    fn cancel(&mut self) {
        self.staged_end = self.used;
    }

    #[inline]
    fn now(&self) -> Time {
        let (at, then) = self.read.get();
        if then != Time::NEVER && self.used.wrapping_sub(at) < READ_EVERY {
            return then;
        }
        self.read_clock()
    }

    #[inline]
    fn place_in_batch(&self, len: usize) -> BatchPlace {
        let total = len + icrc::LEN;
        let capacity = self.max_segments.min(MAX_GROUP_BYTES / total);
        let group = self.joined_group(total);
        BatchPlace {
            begins: group.is_none(),
            ends: group.map_or(capacity == 1, |group| {
                // A shorter packet ends the group.
                total < group.segment || group.count + 1 == capacity
            }),
            capacity: capacity as u32,
        }
    }
}

impl Drop for SendBatch {
    fn drop(&mut self) {
        if !self.is_empty() {
            self.flush();
            self.discard();
        }
    }
}
