//! Asking the processes of a network namespace what they counted.
//!
//! The asker connects to each slot (see `link`), sends [`QUESTION`], and gets one message as the
//! answer. Each side has the kernel's word for the other's user, so a process answers its own user
//! only, and only that user's answers are believed. Nobody waits for one that is stopped longer
//! than for the others.
//!
//! A process that ends sends what it counted to those who listen for that, likewise.

use crate::link::{Link, LinkListener, Reached};
use crate::receive::RecvBatch;
use crate::slot::{self, link_name};
use crate::trust::User;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// «What did you count?»
const QUESTION: &[u8] = b"urxq";

/// How many questions wait at most for the progress thread. Nobody asks so often in earnest.
pub(super) const MAX_WAITING: usize = 16;

/// Whether a message is a question.
pub(super) fn is_question(message: &[u8]) -> bool {
    message == QUESTION
}

/// What a process answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The process, as the kernel numbers it here; 0 for those of PID namespaces that cannot be
    /// seen from here.
    pub pid: u32,
    /// What it sent. Anything of this user's may have sent it.
    pub bytes: Vec<u8>,
}

/// What came of asking.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// One for each process that answered.
    pub given: Vec<Answer>,
    /// How many slots were held by processes that did not: another user's, stopped ones, or those of
    /// a urxe that does not know the question.
    pub silent: usize,
}

/// Asks every process of this network namespace and user. Those that have not answered after
/// `patience` are not waited for.
///
/// # Errors
/// When no Unix socket can be had.
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
            // One that has ended answers nothing.
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

/// How many can listen to what processes say when they end.
const LISTENERS: u8 = 64;

/// Hears what processes counted that end.
#[derive(Debug)]
pub struct Listener(LinkListener);

impl Listener {
    /// Begins to listen. `None` when too many do.
    ///
    /// # Errors
    /// When no Unix socket can be had.
    pub fn new() -> io::Result<Option<Listener>> {
        for number in 0..LISTENERS {
            if let Some(listener) = LinkListener::listen(&listener_name(number))? {
                return Ok(Some(Listener(listener)));
            }
        }
        Ok(None)
    }

    /// Readable when somebody has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// What was said by processes of this user; there may be more.
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

/// Tells who listens what this process counted: it is about to end. `answer` is asked for the text
/// only if anybody listens, and may not know. Whoever has no room for it does not hear it.
///
/// # Errors
/// When no Unix socket can be had.
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
        // Nobody serves this slot: it is as if its process were stopped.
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
