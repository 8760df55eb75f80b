//! One of the demo's two processes: the requester posts all requests, the responder owns the target
//! memory and receive queue. Both prepare each transfer. The side that receives the data verifies
//! it.

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

/// The number of requests in flight.
const DEPTH: usize = 64;
/// The time without a completion after which a transfer fails. The connection's own retries end
/// much earlier.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of empty polls between readings of the clock.
const EMPTY_POLLS: u32 = 1024;
/// The interval of progress reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// The index of the responder's word for atomics. Atomics must not change its neighbours.
const ATOMIC_WORD: usize = 1;
/// The index of the first result of an atomic; each request in flight has one word.
const RESULTS: usize = 8;
/// The index of the first word of messages.
const MESSAGES: usize = 512;
/// Bytes in a word.
const WORD: usize = size_of::<u64>();

/// An error that ends a peer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The C API failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The communication with the other peer failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The C API failed during an operation.
    #[error("{operation}: {source}")]
    During {
        /// The operation.
        operation: Operation,
        /// The error.
        source: VerbsError,
    },
    /// The data is wrong.
    #[error("{operation}: {mismatch}")]
    Data {
        /// The operation.
        operation: Operation,
        /// The first wrong byte.
        mismatch: Mismatch,
    },
    /// A value other than the message data is wrong.
    #[error("{operation}, {what}: expected {expected}, got {found}")]
    Differs {
        /// The operation.
        operation: Operation,
        /// The name of the value.
        what: String,
        /// The expected value.
        expected: String,
        /// The actual value.
        found: String,
    },
    /// No request completes any more.
    #[error(
        "{operation}: no completion for {} s, after {done} of {count}",
        COMPLETION_TIMEOUT.as_secs()
    )]
    Stalled {
        /// The operation.
        operation: Operation,
        /// The number of completed requests.
        done: usize,
        /// The number of requests.
        count: usize,
    },
    /// The command that started this process has ended.
    #[error("the command that started this process has ended: {0}")]
    Orphaned(#[source] std::io::Error),
}

/// The role of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Role {
    /// Posts the requests.
    Requester,
    /// Owns the target memory and the receive queue.
    Responder,
}

/// The parameters of a peer.
pub struct Setup<'a> {
    /// The role.
    pub role: Role,
    /// The path of `liburxe.so`.
    pub library: &'a Path,
    /// The device's name.
    pub device: &'a str,
    /// The index of the GID to use.
    pub gid_index: u8,
    /// The path MTU.
    pub mtu: Mtu,
    /// The amounts to transfer.
    pub plan: &'a Plan,
}

/// Performs a peer's part of the demo. Standard input is the socket to the other peer.
///
/// # Errors
/// The first failure.
pub fn run(
    setup: &Setup<'_>,
    report: impl FnMut(Report) -> std::io::Result<()>,
) -> Result<(), PeerError> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let mut control = Control::new(socket.map_err(ControlError::Io)?);
    let words = MESSAGES + setup.plan.words();
    let mut endpoint = Endpoint::open(setup.library, setup.device, setup.gid_index, words)?;
    let remote = control.exchange(endpoint.address()?)?;
    endpoint.connect(remote, ibv_mtu::from(setup.mtu as u8))?;
    control.barrier("connected")?;
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
        if peer.role == Role::Requester {
            peer.report(Report::Done(operation, measured))?;
        }
    }
    // A peer must answer retransmitted requests until both are done: its last ACK may be lost.
    peer.control.barrier("done")?;
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

    /// Performs all transfers of an operation. The measurements are valid at the requester only.
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

    /// Transfers one round of messages.
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
            Operation::Read => Role::Requester,
            _ => Role::Responder,
        };
        let memory = &self.endpoint.memory()[MESSAGES..];
        match self.role == to {
            true => pattern.invert(memory),
            false => pattern.fill(memory),
        }
        let receives = self.role == Role::Responder && operation.is_received();
        let posted = layout.count.min(RECEIVE_DEPTH as usize);
        if receives {
            for message in 0..posted {
                self.endpoint
                    .receive(message as u64, transfer.piece(message))?;
            }
        }
        self.control
            .barrier(&format!("{operation} {round} prepared"))?;
        let elapsed = match self.role {
            Role::Requester => self.request(transfer, each)?,
            Role::Responder => {
                if receives {
                    self.receive(transfer, posted)?;
                }
                Duration::ZERO
            }
        };
        self.control.barrier(&format!("{operation} {round} done"))?;
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
    fn request(
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
            differs(operation, "completion opcode", expected, completion.opcode)
        };
        self.pipeline(
            operation,
            (layout.count, transfer.depth, done),
            post,
            check,
            each,
        )
    }

    /// Receives the messages of a round. `posted` receive requests are in the queue already.
    fn receive(&mut self, transfer: Transfer, mut posted: usize) -> Result<(), PeerError> {
        let Transfer {
            operation, layout, ..
        } = transfer;
        let opcode = match operation {
            Operation::WriteWithImmediate => IBV_WC_RECV_RDMA_WITH_IMM,
            _ => IBV_WC_RECV,
        };
        let mut completions = Vec::new();
        let mut received = 0;
        while received < layout.count {
            self.wait(operation, received, layout.count, &mut completions)?;
            for completion in completions.drain(..) {
                let number = operation.has_immediate().then(|| transfer.number(received));
                differs(
                    operation,
                    "order of receive requests",
                    received as u64,
                    completion.id,
                )?;
                differs(
                    operation,
                    "receive completion opcode",
                    opcode,
                    completion.opcode,
                )?;
                differs(
                    operation,
                    "message length",
                    layout.size as u32,
                    completion.byte_len,
                )?;
                differs(
                    operation,
                    "immediate data",
                    Shown(number),
                    Shown(completion.immediate),
                )?;
                received += 1;
                if posted < layout.count {
                    self.endpoint
                        .receive(posted as u64, transfer.piece(posted))?;
                    posted += 1;
                }
            }
        }
        Ok(())
    }

    /// Performs atomics on the responder's word, and checks each result and the final value.
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
        if self.role == Role::Responder {
            let memory = self.endpoint.memory();
            memory[ATOMIC_WORD].store(chain.before(0), Ordering::SeqCst);
            for guard in guards {
                memory[guard].store(chain.seed, Ordering::SeqCst);
            }
        }
        self.control
            .barrier(&format!("{operation} {depth} prepared"))?;
        let elapsed = match self.role {
            Role::Responder => Duration::ZERO,
            Role::Requester => {
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
                    differs(operation, "completion opcode", opcode, completion.opcode)?;
                    let found = endpoint.memory()[result(request)].load(Ordering::SeqCst);
                    let what = format!("result of atomic {request} of {count}");
                    differs(operation, &what, Hex(chain.before(request)), Hex(found))
                };
                self.pipeline(operation, (count, depth, 0), post, check, each)?
            }
        };
        self.control.barrier(&format!("{operation} {depth} done"))?;
        if self.role == Role::Responder {
            let memory = self.endpoint.memory();
            let found = memory[ATOMIC_WORD].load(Ordering::SeqCst);
            let what = format!("word after {count} atomics");
            differs(operation, &what, Hex(chain.before(count)), Hex(found))?;
            for guard in guards {
                let found = memory[guard].load(Ordering::SeqCst);
                differs(
                    operation,
                    "word beside the target",
                    Hex(chain.seed),
                    Hex(found),
                )?;
            }
        }
        Ok(elapsed)
    }

    /// Keeps `depth` of `count` requests in flight and checks the order of their completions.
    /// `done` requests of the operation completed earlier. `each` receives the time of each
    /// request.
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
            if each.is_none() && now - reported >= REPORT_INTERVAL {
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

    /// Polls until there are completions.
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
            if since.get_or_insert_with(Instant::now).elapsed() > COMPLETION_TIMEOUT {
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
    /// The number of requests in flight.
    depth: usize,
    /// The number of the operation's requests in earlier rounds.
    done: u64,
}

impl Transfer {
    /// Returns the location of a message, the same at both sides.
    fn piece(&self, message: usize) -> Piece {
        Piece {
            offset: MESSAGES * WORD + self.layout.offset(message),
            len: self.layout.size,
        }
    }

    /// Returns the immediate data of a message.
    fn number(&self, message: usize) -> u32 {
        mix(self.round ^ mix(message as u64)) as u32
    }
}

/// A word in hexadecimal.
#[derive(PartialEq)]
struct Hex(u64);

impl std::fmt::Display for Hex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// Immediate data, or its absence.
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

/// Returns an error unless both values are equal.
fn differs<T: PartialEq + std::fmt::Display>(
    operation: Operation,
    what: &str,
    expected: T,
    found: T,
) -> Result<(), PeerError> {
    match expected == found {
        true => Ok(()),
        false => Err(PeerError::Differs {
            operation,
            what: what.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }),
    }
}
