//! The calls of programs on completion queues: they receive packets and send what was deferred.

use crate::events::AsyncEvents;
use crate::path;
pub use crate::queues::cq::*;
use std::sync::Arc;
use urxe_proto::work::Completion;

impl Cq {
    /// Creates a completion queue. Its errors are reported to `events`. No device counts it.
    ///
    /// # Errors
    /// [`CqError::Size`] and [`CqError::NoMemory`].
    pub fn new(init: CqInit, events: &Arc<AsyncEvents>) -> Result<Arc<Cq>, CqError> {
        Cq::with(init, events, Arc::clone(path::get().cqs()), None)
    }

    /// Takes the oldest completions, up to the length of `into`, and returns their number. If there
    /// are none, receives packets first.
    pub fn poll(&self, into: &mut [Option<Completion>]) -> usize {
        self.poll_each(into.len(), |index, completion| {
            into[index] = Some(completion);
        })
    }

    /// Passes the oldest completions, up to `most`, to `each` with their index, and returns their
    /// number. If there are none, receives packets first. `each` is called while the queue is
    /// locked, and must not use it.
    pub fn poll_each(&self, most: usize, mut each: impl FnMut(usize, Completion)) -> usize {
        if most == 0 {
            return 0;
        }
        let take = || Some(self.take_many(most, &mut each)).filter(|taken| *taken > 0);
        path::get().poll_for(self.affinity.get(), take).unwrap_or(0)
    }

    /// Takes the oldest completion with its timestamp. If there is none, receives packets first.
    pub fn poll_stamped(&self) -> Option<(Completion, Stamp)> {
        path::get().poll_for(self.affinity.get(), || self.take())
    }

    /// Requests one notification on the channel: for the next completion, or with `solicited_only`
    /// for the next that is solicited or an error (11.4.2.2). A request for any completion
    /// overrides one for solicited ones. A completion in the queue that was added without a
    /// notification counts as the next one.
    pub fn arm(self: &Arc<Self>, solicited_only: bool) {
        // Not the delayed ACKs: a program that was notified arms, polls and answers, in this order.
        path::get().send_deferred();
        self.request_notification(solicited_only);
    }
}
