//! The exchange of counters between processes of a network namespace.
//!
//! The querying process connects to each slot (see `link`), sends [`QUERY`], and receives the
//! answer as one message. Each side checks the other's user with the kernel: a process answers only
//! its own user, and accepts only that user's answers. All are queried at once, so stopped
//! processes delay the result by one timeout.
//!
//! A process that ends sends its counters to the listeners in the same way.

use crate::link::{Connected, Link, LinkListener};
use crate::receive::RecvBatch;
use crate::slot::{self, link_name};
use crate::user::User;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// The request for a process's counters.
const QUERY: &[u8] = b"urxq";

/// The maximum number of queries that wait for the progress thread. No proper use reaches it.
pub(super) const MAX_PENDING_QUERIES: usize = 16;

/// Whether a message is a query.
pub(super) fn is_query(message: &[u8]) -> bool {
    message == QUERY
}

/// The answer of one process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answer {
    /// The PID of the process in this PID namespace; 0 if it is not visible from here.
    pub pid: u32,
    /// The text. Any program of this user may have sent it.
    pub bytes: Vec<u8>,
}

/// The answers to a query; see [`query`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Answers {
    /// The answer of each process that sent one.
    pub received: Vec<Answer>,
    /// The number of slots without an answer: their processes are another user's, stopped, or run a
    /// version of urxe without this query.
    pub unanswered: usize,
}

/// Queries every process of this network namespace and user for its counters, and returns the
/// answers that arrive before the timeout.
///
/// # Errors
/// When no Unix socket can be opened, or polling fails.
pub fn query(timeout: Duration) -> io::Result<Answers> {
    let deadline = Instant::now() + timeout;
    let user = User::of_this_process();
    let mut answers = Answers::default();
    let mut queried = Vec::new();
    for number in slot::live_slots()? {
        answers.unanswered += 1;
        if let Ok(Connected::Ours(link)) = Link::to_query(&link_name(number), user)
            && link.send(&[QUERY]).is_ok()
        {
            queried.push(link);
        }
    }
    let mut batch = RecvBatch::new();
    while !queried.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let poll_timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds: Vec<_> = queried
            .iter()
            .map(|link| PollFd::from_borrowed_fd(link.fd(), PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&poll_timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        queried.retain(|link| {
            if !ready.next().unwrap_or(false) {
                return true;
            }
            // A process that has ended sends no answer.
            if let Some(bytes) = link.receive(&mut batch) {
                answers.unanswered -= 1;
                let pid = link.pid();
                answers.received.push(Answer { pid, bytes });
            }
            false
        });
    }
    Ok(answers)
}

/// The maximum number of listeners for the counters of ending processes.
const LISTENERS: u8 = 64;

/// Receives the counters of processes that end.
#[derive(Debug)]
pub struct Listener(LinkListener);

impl Listener {
    /// Starts listening. Returns `None` when there are too many listeners.
    ///
    /// # Errors
    /// When no Unix socket can be opened.
    pub fn new() -> io::Result<Option<Listener>> {
        for number in 0..LISTENERS {
            if let Some(listener) = LinkListener::listen(&listener_name(number))? {
                return Ok(Some(Listener(listener)));
            }
        }
        Ok(None)
    }

    /// The descriptor that is readable when a process has sent its counters.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Returns the counters sent by processes of this user; more may be queued.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn take(&self) -> io::Result<Vec<Answer>> {
        let mut answers = Vec::new();
        self.0.retry();
        self.0
            .recv(&mut RecvBatch::new(), |link, message, bytes, _| {
                if !message.truncated {
                    let (pid, bytes) = (link.pid(), bytes.to_vec());
                    answers.push(Answer { pid, bytes });
                }
            })?;
        Ok(answers)
    }
}

/// Sends this process's counters to the listeners, before it ends. `answer` is called for the text
/// only if there is a listener, and may return `None`. A listener whose queue is full receives
/// nothing.
///
/// # Errors
/// When no Unix socket can be opened.
pub fn send_to_listeners(answer: impl FnOnce() -> Option<Vec<u8>>) -> io::Result<()> {
    let user = User::of_this_process();
    let mut listening = Vec::new();
    for number in 0..LISTENERS {
        if let Connected::Ours(link) = Link::to(&listener_name(number), user)? {
            listening.push(link);
        }
    }
    if listening.is_empty() {
        return Ok(());
    }
    let Some(answer) = answer() else {
        return Ok(());
    };
    for link in listening {
        let _ = link.send(&[&answer]);
    }
    Ok(())
}

fn listener_name(number: u8) -> String {
    format!("stat-listener/{number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Slot;

    #[test]
    fn only_queries_are_recognized() {
        assert!(is_query(QUERY));
        for other in [&b""[..], &QUERY[..3], b"urxq?"] {
            assert!(!is_query(other));
        }
    }

    #[test]
    fn stopped_process_delays_a_query_by_the_timeout_only() {
        // No thread serves this slot, as if its process were stopped.
        let stopped = Slot::claim().unwrap();
        let answers = query(Duration::from_millis(50)).unwrap();
        assert!(answers.unanswered >= 1, "{answers:?}");
        drop(stopped);
    }

    #[test]
    fn listener_receives_the_counters_of_a_process_that_ended() {
        let Some(listener) = Listener::new().unwrap() else {
            panic!("no other test listens here");
        };
        let sent = format!("sent by {}", std::process::id()).into_bytes();
        send_to_listeners(|| Some(sent.clone())).unwrap();
        let mut got = Vec::new();
        while !got.contains(&sent) {
            let answers = listener.take().unwrap().into_iter();
            got.extend(answers.map(|answer| answer.bytes));
        }
    }
}
