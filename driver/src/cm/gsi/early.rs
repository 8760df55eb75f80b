//! Requests for which nobody listens yet.
//!
//! Two programs that agreed by other means to connect begin to listen and to ask at the same moment, and
//! the one that asks may be the faster. A rejection is final for most programs, while an answer may take
//! as long as the request allows for (its remote CM response timeout), which is seconds. So a request waits a little before it is rejected.

use super::inbox::Arrived;
use crate::event_queue::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use urxe_proto::time::Time;

/// How long a request waits for a listener.
const PATIENCE: Duration = Duration::from_millis(250);
/// How often a listener is looked for.
const LOOK: Duration = Duration::from_millis(10);
/// How many wait at most; others are rejected at once.
const ROOM: usize = 256;

/// A request, and until when it waits.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) arrived: Arrived,
    until: Time,
}

impl Request {
    /// One that has just arrived.
    pub(super) fn new(arrived: Arrived, now: Time) -> Self {
        Request {
            arrived,
            until: now + PATIENCE,
        }
    }
}

/// Those that wait.
#[derive(Debug)]
pub(super) struct Early {
    waiting: Mutex<Vec<Request>>,
    next_look: AtomicU64,
}

impl Default for Early {
    fn default() -> Self {
        Early {
            waiting: Mutex::default(),
            next_look: AtomicU64::new(Time::NEVER.0),
        }
    }
}

impl Early {
    /// When listeners are to be looked for again.
    pub(super) fn next_look(&self) -> Time {
        Time(self.next_look.load(Ordering::Acquire))
    }

    /// Keeps a request that nobody listens for. It comes back if it has waited long enough, or there
    /// is no room.
    pub(super) fn keep(&self, request: Request, now: Time) -> Result<(), Request> {
        let mut waiting = lock(&self.waiting);
        if request.until <= now || waiting.len() >= ROOM {
            return Err(request);
        }
        waiting.push(request);
        let next = (now + LOOK).min(self.next_look());
        self.next_look.store(next.0, Ordering::Release);
        Ok(())
    }

    /// Takes all of them when it is time to look again.
    pub(super) fn take(&self, now: Time) -> Vec<Request> {
        if now < self.next_look() {
            return Vec::new();
        }
        let mut waiting = lock(&self.waiting);
        self.next_look.store(Time::NEVER.0, Ordering::Release);
        std::mem::take(&mut *waiting)
    }
}
