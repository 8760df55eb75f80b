//! The content of a capture.

use std::time::Duration;

use super::finding::Finding;
use super::follow::Followed;
use super::packet::Packet;

/// The packets of a capture and their analysis.
#[derive(Debug, Default)]
pub struct Dissection {
    pub frames: u64,
    /// Frames of a link layer that is not supported.
    pub unsupported: u64,
    /// Packets with the right ICRC.
    pub right: u64,
    /// Packets with a wrong ICRC.
    pub wrong: u64,
    /// Truncated packets, whose ICRC is not known.
    pub truncated: u64,
    pub malformed: u64,
    /// Packets that were captured at two interfaces, or twice at one.
    pub copies: u64,
    pub duration: Duration,
    /// Why reading ended before the end of the file.
    pub cut: Option<String>,
    pub packets: Vec<Packet>,
    pub connections: Vec<Followed>,
    pub findings: Vec<Finding>,
}

impl Dissection {
    /// The number of RoCEv2 packets.
    pub fn roce(&self) -> u64 {
        self.right + self.wrong + self.truncated
    }

    /// Whether there are RoCEv2 packets, and no faults.
    pub fn is_faultless(&self) -> bool {
        self.roce() > 0 && !self.findings.iter().any(|finding| finding.kind.is_fault())
    }
}
