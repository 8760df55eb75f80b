//! The state of the responses to a READ request.

use crate::host::RemoteKey;
use crate::psn::Psn;

/// A READ whose responses are being sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReadReply {
    /// The PSN of the first response.
    pub(super) first: Psn,
    /// The PSN after the last response.
    pub(super) end: Psn,
    /// The address of the next response's data.
    pub(super) addr: u64,
    /// The key for that memory.
    pub(super) key: RemoteKey,
    /// The remaining bytes.
    pub(super) left: u32,
    /// Whether it answers a duplicate.
    pub(super) is_duplicate: bool,
}

impl ReadReply {
    /// The number of responses.
    pub(super) fn packets(&self) -> u32 {
        self.end.diff(self.first) as u32
    }
}
