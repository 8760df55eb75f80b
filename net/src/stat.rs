//! Asking the processes of a network namespace what they counted.
//!
//! Who asks sends [`Question`] to the Unix sockets that are the slots, and listens on one whose name
//! has the question's number in it; nobody else can know that number. Each process answers with one
//! message. The kernel vouches for who sent what: a process answers its own user only, and only its
//! answers are believed. Nobody waits for one that is stopped longer than for the others.

use crate::names;
use crate::process_socket::ProcessSocket;
use crate::receive::RecvBatch;
use crate::slot::{self, Slot};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{SockAddr, Socket};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 4] = *b"urxq";

/// How many questions wait at most for the progress thread. Nobody asks so often in earnest.
pub(super) const MAX_WAITING: usize = 16;

/// «What did you count? Answer to this number.»
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Question {
    magic: [u8; 4],
    number: [u8; 16],
}

impl Question {
    fn new() -> Self {
        Question {
            magic: MAGIC,
            number: std::array::from_fn(|_| crate::random::any::<u32>() as u8),
        }
    }

    /// The question in a message, if it is one.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        let question = Self::read_from_bytes(message).ok()?;
        (question.magic == MAGIC).then_some(question)
    }

    /// Where the answer goes.
    fn return_address(&self) -> io::Result<SockAddr> {
        let number = u128::from_ne_bytes(self.number);
        names::address(&format!("stat/{number:032x}"))
    }

    /// Answers it. Who does not listen any more, or has no room, gets nothing.
    pub(super) fn answer(&self, slot: &Slot, answer: &[u8]) {
        if let Err(error) = self
            .return_address()
            .and_then(|to| slot.answer(&to, answer))
        {
            tracing::debug!(%error, "a question about the counters stays without an answer");
        }
    }
}

/// What a process answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The process, as the kernel numbers it here.
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
    let question = Question::new();
    let socket = names::socket()?;
    socket.set_passcred(true)?;
    socket.bind(&question.return_address()?)?;
    let mut answers = Answers::default();
    let mut batch = RecvBatch::new();
    // The queue of a socket is short, so what was answered is taken between the questions.
    for number in slot::live_slots()? {
        if slot::send(&socket, number, question.as_bytes()).is_ok() {
            answers.silent += 1;
        }
        take(&socket, &mut batch, &mut answers)?;
    }
    while answers.silent > 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(
            &mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)],
            Some(&timeout),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        take(&socket, &mut batch, &mut answers)?;
    }
    Ok(answers)
}

/// Takes answers that are there. Not all: somebody might send them without end.
fn take(socket: &Socket, batch: &mut RecvBatch, answers: &mut Answers) -> io::Result<()> {
    let user = rustix::process::getuid().as_raw();
    batch.fill(socket.as_fd())?;
    let (messages, _) = batch.parts();
    for (message, bytes) in messages {
        let Some(pid) = message.pid.filter(|_| message.uid == Some(user)) else {
            continue;
        };
        if message.truncated || answers.given.iter().any(|answer| answer.pid == pid) {
            continue;
        }
        answers.silent = answers.silent.saturating_sub(1);
        answers.given.push(Answer {
            pid,
            bytes: bytes.to_vec(),
        });
    }
    Ok(())
}

/// How many can listen to what processes say when they end.
const LISTENERS: u8 = 64;

/// Hears what processes counted that end.
#[derive(Debug)]
pub struct Listener(ProcessSocket);

impl Listener {
    /// Begins to listen. `None` when too many do.
    ///
    /// # Errors
    /// When no Unix socket can be had.
    pub fn new() -> io::Result<Option<Listener>> {
        let socket = names::socket()?;
        socket.set_passcred(true)?;
        for number in 0..LISTENERS {
            match socket.bind(&listener(number)?) {
                Ok(()) => return Ok(Some(Listener(socket))),
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Readable when somebody has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// What was said by processes of this user; there may be more.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn take(&self) -> io::Result<Vec<Answer>> {
        let mut answers = Answers::default();
        take(&self.0, &mut RecvBatch::new(), &mut answers)?;
        Ok(answers.given)
    }
}

/// Tells who listens what this process counted: it is about to end. `answer` is asked for the text
/// only if anybody listens, and may not know. Whoever has no room for it does not hear it.
///
/// # Errors
/// When no Unix socket can be had.
pub fn tell_listeners(answer: impl FnOnce() -> Option<Vec<u8>>) -> io::Result<()> {
    let lookup = names::Lookup::new()?;
    let listening: Vec<u8> = (0..LISTENERS)
        .filter(|number| lookup.is_taken(&listener_name(*number)).unwrap_or(false))
        .collect();
    if listening.is_empty() {
        return Ok(());
    }
    let Some(answer) = answer() else {
        return Ok(());
    };
    let socket = names::socket()?;
    for number in listening {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let _ = socket.send_to_with_flags(&answer, &listener(number)?, flags);
    }
    Ok(())
}

fn listener(number: u8) -> io::Result<SockAddr> {
    names::address(&listener_name(number))
}

fn listener_name(number: u8) -> String {
    format!("stat-listener/{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_question_is_one() {
        let question = Question::new();
        assert!(Question::parse(question.as_bytes()).is_some());
        assert!(Question::parse(&question.as_bytes()[..19]).is_none());
        assert!(Question::parse(&[question.as_bytes(), &[0]].concat()).is_none());
        assert!(Question::parse(&[0; 20]).is_none());
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
    fn question_with_a_full_queue_in_its_way_is_counted_as_silent_or_not_at_all() {
        let stopped = Slot::claim().unwrap();
        let noise = names::socket().unwrap();
        while slot::send(&noise, stopped.number(), b"noise").is_ok() {}
        // It ends, which is the point.
        ask(Duration::from_millis(50)).unwrap();
    }
}
