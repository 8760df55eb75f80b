//! Completions with the work requests that they end.
#![forbid(unsafe_code)]

use crate::completion::Completion;
use crate::outstanding::Outstanding;
use crate::work_ring::{Completed, Entry, Kind, WorkId};
use std::sync::Arc;
use urxe_proto::work::{self, WcStatus};

/// A completion and the work requests that it ends. Dropping it may deregister memory, so it must
/// not be dropped while a lock is held.
pub(super) struct Finished {
    pub(super) completion: Completion,
    pub(super) id: WorkId,
    pub(super) kind: Kind,
    /// The unsignaled work requests before it.
    pub(super) silent: Vec<Entry>,
    /// The queue pair, if tasks wait for room in its queues.
    pub(super) awaited_room: Option<Arc<Outstanding>>,
}

impl Finished {
    /// Removes the work requests that a completion ends; `None` if they were already removed.
    #[inline(never)]
    pub(super) fn of(user: &Arc<Outstanding>, completion: &work::Completion) -> Option<Self> {
        let id = WorkId::from_driver(completion.wr_id);
        let success = completion.status == WcStatus::Success;
        let Completed { entry, silent } = user.complete(id, success)?;
        Some(Finished {
            id,
            kind: entry.kind,
            completion: Completion::new(completion, entry),
            silent,
            awaited_room: user.room(id.queue()).any().then(|| Arc::clone(user)),
        })
    }
}
