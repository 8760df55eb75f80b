//! The receive that the message in progress consumes.

use crate::host::{Completions, Host, Receive};
use crate::ids::{Qpn, Srqn};
use crate::service::{Context, receive_completion};
use crate::work::{Completion, WcStatus};

/// The receive of the message in progress.
///
/// On UC and UD, a receive of a dropped message stays held for the next message (9.9.3, class D).
#[derive(Debug, Default)]
pub(crate) struct HeldReceive {
    receive: Receive,
    held: bool,
}

impl HeldReceive {
    /// Takes a receive unless one is held, from `srq` where a request names one (A14).
    ///
    /// Returns false when there is none.
    pub(crate) fn hold<H: Host>(&mut self, srq: Option<Srqn>, host: &mut H) -> bool {
        if !self.held {
            self.receive.srq = srq;
            self.held = host.take_receive(&mut self.receive);
        }
        self.held
    }

    /// The number of bytes that the receive can take.
    pub(crate) fn room(&self) -> u64 {
        let lengths = self.receive.sges.iter().map(|sge| u64::from(sge.length));
        lengths.sum()
    }

    /// The receive itself; valid only while one is held.
    pub(crate) fn receive(&self) -> &Receive {
        &self.receive
    }

    /// Completes the receive with `completion`, which carries its `wr_id`.
    pub(crate) fn complete<H: Completions>(
        &mut self,
        completion: Completion,
        solicited: bool,
        host: &mut H,
    ) {
        self.held = false;
        host.receive_completed(&self.receive, completion, solicited);
    }

    /// Completes the held receive, if any, without a message. Returns whether there was one.
    pub(crate) fn end<H: Completions>(&mut self, qpn: Qpn, status: WcStatus, host: &mut H) -> bool {
        let held = std::mem::take(&mut self.held);
        if held {
            let completion = receive_completion(qpn, &self.receive, status);
            host.receive_completed(&self.receive, completion, true);
        }
        held
    }

    /// Handles a message that is longer than the receive (9.9.3, classes D and E).
    ///
    /// A receive of the queue pair's own queue stays held for the next message. A receive of a
    /// shared queue completes with an error, because the next message may belong to another queue
    /// pair.
    pub(crate) fn too_small<H: Host>(&mut self, cx: &mut Context<'_>, host: &mut H) {
        cx.counters.receive_too_small += 1;
        if host.receive_credits().is_none() {
            self.end(cx.qpn, WcStatus::LocLenErr, host);
        }
    }
}
