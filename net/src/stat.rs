//! The exchange of counters between processes of a network namespace.
//!
//! The asking process connects to each slot (see `link`), sends [`QUESTION`], and receives the
//! answer as one message. Each side checks the other's user with the kernel: a process answers only
//! its own user, and accepts only that user's answers. All are asked at once, so a stopped process
//! delays the result by the timeout only once.
//!
//! A process that ends sends its counters to the listeners in the same way.

use crate::link::{Link, LinkListener, Reached};
use crate::receive::RecvBatch;
use crate::slot::{self, link_name};
use crate::trust::User;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// The request for a process's counters.
const QUESTION: &[u8] = b"urxq";

/// The maximum number of questions that wait for the progress thread. No proper use reaches it.
pub(super) const MAX_WAITING: usize = 16;

/// Whether a message is a question.
pub(super) fn is_question(message: &[u8]) -> bool {
    message == QUESTION
}

/// The answer of one process.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The PID of the process in this PID namespace; 0 if it is not visible from here.
    pub pid: u32,
    /// The text. Any program of this user may have sent it.
    pub bytes: Vec<u8>,
}

/// The result of asking.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// The answer of each process that gave one.
    pub given: Vec<Answer>,
    /// The number of slots without an answer: their processes are another user's, stopped, or run a
    /// urxe that does not know the question.
    pub silent: usize,
}

/// Asks every process of this network namespace and user for its counters. `patience` is the
/// timeout for all answers together.
///
/// # Errors
/// When no Unix socket can be opened, or polling fails.
pub fn ask(patience: Duration) -> io::Result<Answers> {
    let deadline = Instant::now() + patience;
    let user = User::of_this_process();
    let mut answers = Answers::default();
    let mut asked = Vec::new();
    for number in slot::live_slots()? {
        answers.silent += 1;
        if let Ok(Reached::Ours(link)) = Link::to_ask(&link_name(number), user)
            && link.send(&[QUESTION]).is_ok()
        {
            asked.push(link);
        }
    }
    let mut batch = RecvBatch::new();
    while !asked.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds: Vec<_> = asked
            .iter()
            .map(|link| PollFd::from_borrowed_fd(link.fd(), PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        asked.retain(|link| {
            if !ready.next().unwrap_or(false) {
                return true;
            }
            // A process that has ended sends no answer.
            if let Some(bytes) = link.receive(&mut batch) {
                answers.silent -= 1;
                let pid = link.pid();
                answers.given.push(Answer { pid, bytes });
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
pub fn tell_listeners(answer: impl FnOnce() -> Option<Vec<u8>>) -> io::Result<()> {
    let user = User::of_this_process();
    let mut listening = Vec::new();
    for number in 0..LISTENERS {
        if let Reached::Ours(link) = Link::to(&listener_name(number), user)? {
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
    fn only_a_question_is_one() {
        assert!(is_question(QUESTION));
        for other in [&b""[..], &QUESTION[..3], b"urxq?"] {
            assert!(!is_question(other));
        }
    }

    #[test]
    fn who_is_silent_is_not_waited_for() {
        // No thread serves this slot, as if its process were stopped.
        let stopped = Slot::claim().unwrap();
        let answers = ask(Duration::from_millis(50)).unwrap();
        assert!(answers.silent >= 1, "{answers:?}");
        drop(stopped);
    }

    #[test]
    fn a_listener_hears_a_process_that_has_ended_since() {
        let Some(listener) = Listener::new().unwrap() else {
            panic!("so many listen in no test's network");
        };
        let told = format!("told by {}", std::process::id()).into_bytes();
        tell_listeners(|| Some(told.clone())).unwrap();
        let mut heard = Vec::new();
        while !heard.contains(&told) {
            let answers = listener.take().unwrap().into_iter();
            heard.extend(answers.map(|answer| answer.bytes));
        }
    }
}
