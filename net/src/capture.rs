//! The capture hook: passes sent and received packets to a capture file, if there is one.

use crate::counters::NetCounters;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use urxe_proto::icrc::IpId;

/// The direction of a packet, with pcapng's number for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// Received.
    In = 1,
    /// Sent.
    Out = 2,
}

/// One packet of the capture.
#[derive(Clone, Copy)]
// Without the feature no code reads the fields.
#[cfg_attr(not(feature = "capture"), expect(dead_code))]
pub(super) struct Record<'a> {
    pub(super) direction: Direction,
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// The IPv4 identification, if known.
    pub(super) ip_id: Option<IpId>,
    /// Information that the headers do not contain.
    pub(super) comment: Option<&'static str>,
    /// The UDP payload.
    pub(super) bytes: &'a [u8],
}

/// A destination of captured packets.
pub(super) trait Capture: Send + Sync {
    /// The path of the file.
    fn path(&self) -> &Path;

    /// Adds a packet. The next [`Capture::flush`] writes it to the file.
    fn record(&self, record: &Record<'_>) -> io::Result<()>;

    /// Writes the added packets. They are then in the file even if the process is killed.
    fn flush(&self) -> io::Result<()>;
}

/// The reason why the capture file cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The name is empty.
    #[error("the file name is empty: give a path, in which %p stands for the process id")]
    Empty,
    /// This build of the crate writes no captures.
    #[error("this build cannot capture packets: build it with the Cargo feature `capture`")]
    NotBuilt,
    /// The file cannot be opened or written.
    #[error(
        "cannot write {}: {source}; name a file in a directory that this user may write to",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

/// The capture of the process, if one is configured. Cloning shares it.
#[derive(Clone)]
pub(super) struct CaptureHook {
    capture: Option<Arc<dyn Capture>>,
    counters: Arc<NetCounters>,
}

impl CaptureHook {
    pub(super) fn new(capture: Option<Arc<dyn Capture>>, counters: Arc<NetCounters>) -> Self {
        CaptureHook { capture, counters }
    }

    /// Whether packets are captured.
    pub(super) fn is_active(&self) -> bool {
        self.capture.is_some()
    }

    /// The path of the capture file.
    pub(super) fn path(&self) -> Option<&Path> {
        self.capture.as_ref().map(|capture| capture.path())
    }

    /// Captures a packet. The next [`CaptureHook::flush`] writes it to the file.
    pub(super) fn record(&self, record: &Record<'_>) {
        if let Some(capture) = &self.capture {
            self.check(capture.record(record));
        }
    }

    /// Writes the captured packets to the file.
    pub(super) fn flush(&self) {
        if let Some(capture) = &self.capture {
            self.check(capture.flush());
        }
    }

    fn check(&self, result: io::Result<()>) {
        let Err(error) = result else { return };
        if self.counters.capture_errors.get() == 0 {
            tracing::warn!(%error, "the capture is incomplete");
        }
        self.counters.capture_errors.add(1);
    }
}
