//! Pending REQs: requests for which no process listens yet.
//!
//! Two applications that have agreed to connect may call listen and connect at the same time, and
//! the REQ may arrive before the listener exists. Most applications treat a REJ as final, while an
//! answer may take as long as the REQ allows: its remote CM response timeout, which is seconds.
//! Therefore a REQ waits for [`LISTENER_TIMEOUT`] before it is rejected.

use super::inbox::ReceivedMad;
use crate::sync::{Mutex, lock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use urxe_proto::time::Time;

/// The time that a request waits for a listener.
const LISTENER_TIMEOUT: Duration = Duration::from_millis(250);
/// The interval between checks for a listener.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The maximum number of waiting requests. Further ones are rejected immediately.
const MAX_PENDING: usize = 256;

/// A request, and the time at which it is rejected.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) mad: ReceivedMad,
    until: Time,
}

impl Request {
    /// Creates the entry of a request that was received at `now`.
    pub(super) fn new(mad: ReceivedMad, now: Time) -> Self {
        Request {
            mad,
            until: now + LISTENER_TIMEOUT,
        }
    }
}

/// The waiting requests.
#[derive(Debug)]
pub(super) struct PendingReqs {
    waiting: Mutex<Vec<Request>>,
    next_check: AtomicU64,
}

impl Default for PendingReqs {
    fn default() -> Self {
        PendingReqs {
            waiting: Mutex::default(),
            next_check: AtomicU64::new(Time::NEVER.0),
        }
    }
}

impl PendingReqs {
    /// Returns the time of the next check for listeners.
    pub(super) fn next_check(&self) -> Time {
        Time(self.next_check.load(Ordering::Acquire))
    }

    /// Keeps a request without a listener. Returns it as an error if its waiting time is over or
    /// there is no room.
    pub(super) fn keep(&self, request: Request, now: Time) -> Result<(), Request> {
        let mut waiting = lock(&self.waiting);
        if request.until <= now || waiting.len() >= MAX_PENDING {
            return Err(request);
        }
        waiting.push(request);
        let next = (now + CHECK_INTERVAL).min(self.next_check());
        self.next_check.store(next.0, Ordering::Release);
        Ok(())
    }

    /// Removes and returns all requests if a check for listeners is due.
    pub(super) fn take(&self, now: Time) -> Vec<Request> {
        if now < self.next_check() {
            return Vec::new();
        }
        let mut waiting = lock(&self.waiting);
        self.next_check.store(Time::NEVER.0, Ordering::Release);
        std::mem::take(&mut *waiting)
    }
}
