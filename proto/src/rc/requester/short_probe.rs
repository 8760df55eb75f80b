//! Short probes: duplicates of requests that are done, which the responder acknowledges without
//! executing them (9.7.5.1.1).

use crate::host::Transmit;
use crate::ids::RKey;
use crate::service::Context;
use crate::wire::{Header, Reth};

/// The purpose of a short probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// It follows READ responses, so its answer shows that those that did not arrive were lost.
    Responses,
    /// It follows the timeout of a long packet. Its answer shows that the peer is reachable.
    Reachability,
}

/// A probe that is a short packet: a duplicate of a request that is done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum ShortProbe {
    /// None since the last progress.
    #[default]
    None,
    /// It is sent with the next transmission.
    Due(Purpose),
    /// It is not answered.
    Sent(Purpose),
    /// The peer has answered it, without progress since.
    Answered,
}

/// Sends `header`, of a WRITE with a PSN that is done, without data.
///
/// The responder acknowledges it as a duplicate, without executing it (9.7.5.1.1). Returns false
/// when the sink is full.
pub(super) fn send_duplicate<T: Transmit>(
    cx: &mut Context<'_>,
    header: Header,
    out: &mut T,
) -> bool {
    let nothing = Reth {
        addr: 0,
        rkey: RKey(0),
        length: 0,
    };
    let header = header.with_ack_req(true).with_reth(nothing);
    cx.send_header(&header, out)
}
