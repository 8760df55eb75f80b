//! The entries of a completion queue that are reserved for those who complete in it.
#![forbid(unsafe_code)]

use super::CompletionQueue;
use super::error::CqError;
use crate::outstanding::Outstanding;
use crate::wait::lock;
use std::sync::{Arc, PoisonError};
use urxe_driver::cq::MAX_CQE;
use urxe_proto::ids::Qpn;

impl CompletionQueue {
    /// Reserves entries for the completions of another queue pair or shared receive queue.
    pub(crate) fn reserve(&self, room: u32) -> Result<Reservation, CqError> {
        let mut reserved = lock(&self.0.reserved);
        let sum = reserved.checked_add(room).filter(|sum| *sum <= MAX_CQE);
        let sum = sum.ok_or(CqError::TooManyUsers)?;
        // The driver rounds up to 2^n - 1, so the queue grows geometrically.
        if sum > self.0.driver.capacity() {
            self.0.driver.resize(sum)?;
        }
        *reserved = sum;
        Ok(Reservation {
            cq: self.clone(),
            room,
            user: None,
        })
    }
}

/// The entries of a completion queue that are reserved for a queue pair or a shared receive queue.
///
/// Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Reservation {
    cq: CompletionQueue,
    room: u32,
    user: Option<(Qpn, Arc<Outstanding>)>,
}

impl Reservation {
    /// The completion queue.
    pub(crate) fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Registers the queue pair that uses these entries.
    pub(crate) fn attach(&mut self, qpn: Qpn, outstanding: &Arc<Outstanding>) {
        let users = &self.cq.0.users;
        let mut users = users.write().unwrap_or_else(PoisonError::into_inner);
        users.insert(qpn, Arc::clone(outstanding));
        self.user = Some((qpn, Arc::clone(outstanding)));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some((qpn, outstanding)) = &self.user {
            let users = &self.cq.0.users;
            let mut users = users.write().unwrap_or_else(PoisonError::into_inner);
            // Another queue pair may already use the number.
            if users
                .get(*qpn)
                .is_some_and(|user| Arc::ptr_eq(user, outstanding))
            {
                users.remove(*qpn);
                drop(users);
                let discarded = self.cq.0.tasks.discard(|completion| completion.qpn == *qpn);
                drop(discarded);
            }
        }
        *lock(&self.cq.0.reserved) -= self.room;
    }
}
