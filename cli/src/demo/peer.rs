//! One of the demo's two processes. The one that acts posts all requests; its target answers, and
//! looks after what arrives. Each transfer is prepared by both, done, and verified to the last byte
//! by the side at which the data arrives.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use urxe_proto::mtu::Mtu;
use urxe_verbs::ffi::*;

use super::chain::Chain;
use super::control::{Control, ControlError, Measured, Report};
use super::pattern::{Layout, Mismatch, Pattern, mix};
use super::plan::{Operation, Plan};
use super::verbs::{Completion, Endpoint, MAX_RD_ATOMIC, Piece, RECEIVE_DEPTH, VerbsError, Work};

/// How many messages are under way at once.
const DEPTH: usize = 64;
/// A transfer without a completion for this long will not go on: the connection itself gives up
/// much earlier.
const STALL: Duration = Duration::from_secs(30);
/// How often to look at the clock while nothing completes.
const EMPTY_POLLS: u32 = 1024;
/// How often to report progress.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// The word that atomics work on, at the target, with a word on each side that they must not touch.
const ATOMIC_WORD: usize = 1;
/// Where the results of atomics go, one word a request that is under way.
const RESULTS: usize = 8;
/// Where messages begin, in words.
const MESSAGES: usize = 512;
/// Bytes in a word.
const WORD: usize = size_of::<u64>();

/// Why a peer gives up.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The C API.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The other peer.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The C API, during an operation.
    #[error("{operation}: {source}")]
    During {
        /// Which.
        operation: Operation,
        /// What it says.
        source: VerbsError,
    },
    /// The data.
    #[error("{operation}: {mismatch}")]
    Data {
        /// Of which operation.
        operation: Operation,
        /// What is wrong.
        mismatch: Mismatch,
    },
    /// Anything else that is not as it should be.
    #[error("{operation}, {what}: expected {expected}, saw {seen}")]
    Differs {
        /// During which operation.
        operation: Operation,
        /// What differs.
        what: String,
        /// What it should be.
        expected: String,
        /// What it is.
        seen: String,
    },
    /// Nothing happens any more.
    #[error("{operation}: nothing completed for {} s, after {done} of {count}", STALL.as_secs())]
    Stalled {
        /// During which operation.
        operation: Operation,
        /// How many completed.
        done: usize,
        /// Of how many.
        count: usize,
    },
    /// The command that started it has gone.
    #[error("the command that started this process has ended: {0}")]
    Orphaned(#[source] std::io::Error),
}

/// Which part a peer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Role {
    /// Posts the requests.
    Actor,
    /// Its memory and receive queue are what the requests are about.
    Target,
}

/// How a peer is set up.
pub struct Setup<'a> {
    /// Its part.
    pub role: Role,
    /// The file of `liburxe.so`.
    pub library: &'a Path,
    /// The device's name.
    pub device: &'a str,
    /// The index of the GID to use.
    pub gid_index: u8,
    /// The path MTU.
    pub mtu: Mtu,
    /// What to do.
    pub plan: &'a Plan,
}

/// Does a peer's part of the demo. The other peer is at the other end of standard input; reports go
/// to `report`.
///
/// # Errors
/// At the first thing that is not as it should be.
pub fn play(
    setup: &Setup<'_>,
    report: impl FnMut(Report) -> std::io::Result<()>,
) -> Result<(), PeerError> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let mut control = Control::new(socket.map_err(ControlError::Io)?);
    let words = MESSAGES + setup.plan.words();
    let mut endpoint = Endpoint::open(setup.library, setup.device, setup.gid_index, words)?;
    let remote = control.exchange(endpoint.address()?)?;
    endpoint.connect(remote, ibv_mtu::from(setup.mtu as u8))?;
    control.meet("connected")?;
    let mut peer = Peer {
        role: setup.role,
        endpoint,
        control,
        report,
    };
    peer.report(Report::Connected)?;
    for operation in Operation::ALL {
        let measured = peer
            .operation(operation, setup.plan)
            .map_err(|error| match error {
                PeerError::Verbs(source) => PeerError::During { operation, source },
                error => error,
            })?;
        if peer.role == Role::Actor {
            peer.report(Report::Done(operation, measured))?;
        }
    }
    // Neither may go before both are done: the other's last acknowledgement may have been lost.
    peer.control.meet("done")?;
    peer.report(Report::Finished)
}

struct Peer<R> {
    role: Role,
    endpoint: Endpoint,
    control: Control,
    report: R,
}

impl<R: FnMut(Report) -> std::io::Result<()>> Peer<R> {
    fn report(&mut self, report: Report) -> Result<(), PeerError> {
        (self.report)(report).map_err(PeerError::Orphaned)
    }

    /// All transfers of an operation. What it measured means something at the actor.
    fn operation(&mut self, operation: Operation, plan: &Plan) -> Result<Measured, PeerError> {
        let mut elapsed = Duration::ZERO;
        let mut done = 0;
        let round_trips = plan.round_trips();
        let mut each;
        if operation.is_atomic() {
            let count = usize::try_from(plan.atomics).unwrap_or(usize::MAX);
            elapsed = self.atomics(operation, count, usize::from(MAX_RD_ATOMIC), &mut None)?;
            each = Some(Vec::with_capacity(round_trips.count));
            self.atomics(operation, round_trips.count, 1, &mut each)?;
        } else {
            for (round, layout) in plan.rounds().enumerate() {
                let transfer = Transfer {
                    operation,
                    round: round as u64,
                    layout,
                    depth: DEPTH,
                    done,
                };
                elapsed += self.messages(transfer, &mut None)?;
                done += layout.count as u64;
            }
            each = Some(Vec::with_capacity(round_trips.count));
            let transfer = Transfer {
                operation,
                round: u64::MAX,
                layout: round_trips,
                depth: 1,
                done,
            };
            self.messages(transfer, &mut each)?;
        }
        let mut each = each.unwrap_or_default();
        each.sort_unstable();
        let at = |percent: usize| {
            let index = (each.len() * percent).div_ceil(100).saturating_sub(1);
            each.get(index).copied().unwrap_or_default()
        };
        Ok(Measured {
            requests: plan.requests(operation),
            elapsed,
            median: at(50),
            percentile_99: at(99),
        })
    }

    /// One round of messages.
    fn messages(
        &mut self,
        transfer: Transfer,
        each: &mut Option<Vec<Duration>>,
    ) -> Result<Duration, PeerError> {
        let Transfer {
            operation,
            round,
            layout,
            ..
        } = transfer;
        let pattern = Pattern::new(operation as u64, round, layout);
        let to = match operation {
            Operation::Read => Role::Actor,
            _ => Role::Target,
        };
        let memory = &self.endpoint.memory()[MESSAGES..];
        match self.role == to {
            true => pattern.spoil(memory),
            false => pattern.fill(memory),
        }
        let receives = self.role == Role::Target && operation.is_received();
        let posted = layout.count.min(RECEIVE_DEPTH as usize);
        if receives {
            for message in 0..posted {
                self.endpoint
                    .receive(message as u64, transfer.piece(message))?;
            }
        }
        self.control
            .meet(&format!("{operation} {round} prepared"))?;
        let elapsed = match self.role {
            Role::Actor => self.act(transfer, each)?,
            Role::Target => {
                if receives {
                    self.take(transfer, posted)?;
                }
                Duration::ZERO
            }
        };
        self.control.meet(&format!("{operation} {round} done"))?;
        if self.role == to {
            let memory = &self.endpoint.memory()[MESSAGES..];
            let verified = pattern.verify(memory);
            verified.map_err(|mismatch| PeerError::Data {
                operation,
                mismatch,
            })?;
        }
        Ok(elapsed)
    }

    /// Posts the requests of a round and waits for their completions.
    fn act(
        &mut self,
        transfer: Transfer,
        each: &mut Option<Vec<Duration>>,
    ) -> Result<Duration, PeerError> {
        let Transfer {
            operation,
            layout,
            done,
            ..
        } = transfer;
        let expected = match operation {
            Operation::Send | Operation::SendWithImmediate => IBV_WC_SEND,
            Operation::Read => IBV_WC_RDMA_READ,
            _ => IBV_WC_RDMA_WRITE,
        };
        let post = |endpoint: &mut Endpoint, message: usize| {
            let work = match operation {
                Operation::Send => Work::Send,
                Operation::SendWithImmediate => Work::SendWithImmediate(transfer.number(message)),
                Operation::WriteWithImmediate => Work::WriteWithImmediate(transfer.number(message)),
                Operation::Read => Work::Read,
                _ => Work::Write,
            };
            let piece = transfer.piece(message);
            endpoint.send(message as u64, work, piece, piece.offset)
        };
        let check = |_: &Endpoint, completion: &Completion, _| {
            differs(
                operation,
                "opcode of the completion",
                expected,
                completion.opcode,
            )
        };
        self.pipeline(
            operation,
            (layout.count, transfer.depth, done),
            post,
            check,
            each,
        )
    }

    /// Takes the messages of a round from the receive queue, into which `posted` requests went.
    fn take(&mut self, transfer: Transfer, mut posted: usize) -> Result<(), PeerError> {
        let Transfer {
            operation, layout, ..
        } = transfer;
        let opcode = match operation {
            Operation::WriteWithImmediate => IBV_WC_RECV_RDMA_WITH_IMM,
            _ => IBV_WC_RECV,
        };
        let mut completions = Vec::new();
        let mut taken = 0;
        while taken < layout.count {
            self.wait(operation, taken, layout.count, &mut completions)?;
            for completion in completions.drain(..) {
                let number = operation.has_immediate().then(|| transfer.number(taken));
                differs(
                    operation,
                    "order of receive requests",
                    taken as u64,
                    completion.id,
                )?;
                differs(
                    operation,
                    "opcode of the receive completion",
                    opcode,
                    completion.opcode,
                )?;
                differs(operation, "length", layout.size as u32, completion.byte_len)?;
                differs(
                    operation,
                    "immediate data",
                    Shown(number),
                    Shown(completion.immediate),
                )?;
                taken += 1;
                if posted < layout.count {
                    self.endpoint
                        .receive(posted as u64, transfer.piece(posted))?;
                    posted += 1;
                }
            }
        }
        Ok(())
    }

    /// Atomics on the target's word: each must find what the one before it left, so that one that
    /// is lost or done twice shows at once, and the last word shows at the end.
    fn atomics(
        &mut self,
        operation: Operation,
        count: usize,
        depth: usize,
        each: &mut Option<Vec<Duration>>,
    ) -> Result<Duration, PeerError> {
        let chain = Chain {
            operation,
            seed: mix(depth as u64),
        };
        let guards = [ATOMIC_WORD - 1, ATOMIC_WORD + 1];
        if self.role == Role::Target {
            let memory = self.endpoint.memory();
            memory[ATOMIC_WORD].store(chain.before(0), Ordering::SeqCst);
            for guard in guards {
                memory[guard].store(chain.seed, Ordering::SeqCst);
            }
        }
        self.control
            .meet(&format!("{operation} {depth} prepared"))?;
        let elapsed = match self.role {
            Role::Target => Duration::ZERO,
            Role::Actor => {
                let result = |request: usize| RESULTS + request % depth;
                let post = |endpoint: &mut Endpoint, request: usize| {
                    let slot = result(request);
                    endpoint.memory()[slot].store(!chain.before(request), Ordering::SeqCst);
                    let piece = Piece {
                        offset: slot * WORD,
                        len: WORD,
                    };
                    endpoint.send(
                        request as u64,
                        chain.work(request),
                        piece,
                        ATOMIC_WORD * WORD,
                    )
                };
                let opcode = match operation {
                    Operation::CompareAndSwap => IBV_WC_COMP_SWAP,
                    _ => IBV_WC_FETCH_ADD,
                };
                let check = |endpoint: &Endpoint, completion: &Completion, request| {
                    differs(
                        operation,
                        "opcode of the completion",
                        opcode,
                        completion.opcode,
                    )?;
                    let seen = endpoint.memory()[result(request)].load(Ordering::SeqCst);
                    let what = format!("word that atomic {request} of {count} found");
                    differs(operation, &what, Hex(chain.before(request)), Hex(seen))
                };
                self.pipeline(operation, (count, depth, 0), post, check, each)?
            }
        };
        self.control.meet(&format!("{operation} {depth} done"))?;
        if self.role == Role::Target {
            let memory = self.endpoint.memory();
            let seen = memory[ATOMIC_WORD].load(Ordering::SeqCst);
            let what = format!("word after {count} atomics, each done once");
            differs(operation, &what, Hex(chain.before(count)), Hex(seen))?;
            for guard in guards {
                let seen = memory[guard].load(Ordering::SeqCst);
                differs(operation, "word beside it", Hex(chain.seed), Hex(seen))?;
            }
        }
        Ok(elapsed)
    }

    /// Keeps `depth` of `count` requests under way, and checks that they complete in order. `done`
    /// were done before, for the reports. Where `each` is given it gets the time of each request.
    fn pipeline(
        &mut self,
        operation: Operation,
        (count, depth, done): (usize, usize, u64),
        mut post: impl FnMut(&mut Endpoint, usize) -> Result<(), VerbsError>,
        mut check: impl FnMut(&Endpoint, &Completion, usize) -> Result<(), PeerError>,
        each: &mut Option<Vec<Duration>>,
    ) -> Result<Duration, PeerError> {
        let mut completions = Vec::new();
        let mut posted = 0;
        let mut completed = 0;
        let begin = Instant::now();
        let mut reported = begin;
        while completed < count {
            let post_time = Instant::now();
            while posted < count && posted < completed + depth {
                post(&mut self.endpoint, posted)?;
                posted += 1;
            }
            self.wait(operation, completed, count, &mut completions)?;
            let now = Instant::now();
            if let Some(each) = each {
                each.push(now - post_time);
            }
            for completion in completions.drain(..) {
                differs(
                    operation,
                    "order of completions",
                    completed as u64,
                    completion.id,
                )?;
                check(&self.endpoint, &completion, completed)?;
                completed += 1;
            }
            if each.is_none() && now - reported >= REPORT_EVERY {
                reported = now;
                self.report(Report::Progress(operation, done + completed as u64))?;
            }
        }
        let elapsed = begin.elapsed();
        if each.is_none() {
            self.report(Report::Progress(operation, done + completed as u64))?;
        }
        Ok(elapsed)
    }

    /// Waits for completions.
    fn wait(
        &mut self,
        operation: Operation,
        done: usize,
        count: usize,
        completions: &mut Vec<Completion>,
    ) -> Result<(), PeerError> {
        let mut since = None;
        loop {
            for _ in 0..EMPTY_POLLS {
                self.endpoint.poll(completions)?;
                if !completions.is_empty() {
                    return Ok(());
                }
            }
            if since.get_or_insert_with(Instant::now).elapsed() > STALL {
                return Err(PeerError::Stalled {
                    operation,
                    done,
                    count,
                });
            }
        }
    }
}

/// A round of messages.
#[derive(Clone, Copy)]
struct Transfer {
    operation: Operation,
    round: u64,
    layout: Layout,
    /// How many are under way at once.
    depth: usize,
    /// How many of the operation were done in rounds before.
    done: u64,
}

impl Transfer {
    /// Where a message is, at both sides.
    fn piece(&self, message: usize) -> Piece {
        Piece {
            offset: MESSAGES * WORD + self.layout.offset(message),
            len: self.layout.size,
        }
    }

    /// The number that travels with a message as immediate data.
    fn number(&self, message: usize) -> u32 {
        mix(self.round ^ mix(message as u64)) as u32
    }
}

/// A word as atomics have it.
#[derive(PartialEq)]
struct Hex(u64);

impl std::fmt::Display for Hex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// A number that need not be there.
#[derive(PartialEq)]
struct Shown(Option<u32>);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(number) => write!(f, "{number:#010x}"),
            None => write!(f, "none"),
        }
    }
}

/// An error unless both are the same.
fn differs<T: PartialEq + std::fmt::Display>(
    operation: Operation,
    what: &str,
    expected: T,
    seen: T,
) -> Result<(), PeerError> {
    match expected == seen {
        true => Ok(()),
        false => Err(PeerError::Differs {
            operation,
            what: what.to_owned(),
            expected: expected.to_string(),
            seen: seen.to_string(),
        }),
    }
}
