//! The receive that goes with the message under way.

use crate::host::{Completions, Host, Receive};
use crate::ids::{Qpn, Srqn};
use crate::service::{Context, receive_completion};
use crate::work::{Completion, WcStatus};

/// The receive that a message has taken. On the unreliable services it may be one that a message had
/// taken that was dropped: the next message uses it (9.9.3, class D).
#[derive(Debug, Default)]
pub(crate) struct HeldReceive {
    receive: Receive,
    held: bool,
}

impl HeldReceive {
    /// Takes a receive unless one is held, from `srq` where a request names one (A14); false when
    /// there is none.
    pub(crate) fn hold<H: Host>(&mut self, srq: Option<Srqn>, host: &mut H) -> bool {
        if !self.held {
            self.receive.srq = srq;
            self.held = host.take_receive(&mut self.receive);
        }
        self.held
    }

    /// How many bytes go into it.
    pub(crate) fn room(&self) -> u64 {
        let lengths = self.receive.sges.iter().map(|sge| u64::from(sge.length));
        lengths.sum()
    }

    /// It itself.
    pub(crate) fn receive(&self) -> &Receive {
        &self.receive
    }

    /// It ends as `completion`, which has its number, says.
    pub(crate) fn complete<H: Completions>(
        &mut self,
        completion: Completion,
        solicited: bool,
        host: &mut H,
    ) {
        self.held = false;
        host.receive_completed(&self.receive, completion, solicited);
    }

    /// If there is one, it ends without a message. Says whether there was one.
    pub(crate) fn end<H: Completions>(&mut self, qpn: Qpn, status: WcStatus, host: &mut H) -> bool {
        let held = std::mem::take(&mut self.held);
        if held {
            let completion = receive_completion(qpn, &self.receive, status);
            host.receive_completed(&self.receive, completion, true);
        }
        held
    }

    /// The message is longer than the receive. One of the queue pair's own queue waits for another
    /// message; one of a shared queue, where others may take what is larger, ends (9.9.3, classes D
    /// and E).
    pub(crate) fn too_small<H: Host>(&mut self, cx: &mut Context<'_>, host: &mut H) {
        cx.counters.receive_too_small += 1;
        if host.receive_credits().is_none() {
            self.end(cx.qpn, WcStatus::LocLenErr, host);
        }
    }
}
