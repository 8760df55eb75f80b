//! The planned work of one endpoint, and its expected results.
//!
//! Only one queue pair accesses its part of the peer's memory, and its work requests take effect in
//! the order of posting. So the result of each READ and atomic, and the memory at the arrival of
//! each message, are known beforehand. This holds exactly as long as a WRITE waits, by a fence, for
//! earlier READs of the same bytes.
//!
//! One region has a second writer, a program at the target, and no work request writes there. Its
//! words are versions that only grow. The result of a READ of them is not known beforehand. It must
//! consist of versions that the region held while the READ was outstanding, none older than an
//! earlier READ returned.
//! earlier READ returned.

use crate::rng::Rng;
use rand::{Rng as _, RngExt};
use std::ops::Range;
use urxe_proto::host::{Access, WindowBind};
use urxe_proto::ids::{LKey, RKey};
use urxe_proto::wire::Feth;
use urxe_proto::work::{SendFlags, SendOp, Sge};

/// The keys of an endpoint's regions; this one is the source of messages.
pub const SOURCE: u32 = 0x1001;
/// The region that the peer may write, read and access by atomics.
pub const TARGET: u32 = 0x2002;
/// The region that the peer may read while a program at the target writes it: 64-bit versions.
pub const VERSIONS: u32 = 0x5005;
/// The region for READ data and the results of atomics.
pub const SINK: u32 = 0x3003;
/// The region for received messages.
pub const RECEIVE: u32 = 0x4004;
/// The first of the keys that may be invalidated.
const FIRST_INVALIDATABLE_KEY: u32 = 0x10_0000;

/// The maximum number of elements of a work request or a receive.
pub const MAX_SGE: u32 = 32;

/// Returns the start address of region `key`.
pub fn base(key: u32) -> u64 {
    u64::from(key) << 32
}

/// The location of an operation's data.
#[derive(Clone, Debug)]
pub enum Data {
    /// In registered memory.
    Sges(Vec<Sge>),
    /// In the work request.
    Inline,
}

/// A planned work request.
#[derive(Clone, Debug)]
pub struct Op {
    /// The operation.
    pub op: SendOp,
    /// The flags.
    pub flags: SendFlags,
    /// The location of its data.
    pub data: Data,
    /// The bytes of the message, or the expected result.
    pub bytes: Vec<u8>,
    /// The change of the peer's target: an offset, and the new bytes there.
    pub effect: Option<(usize, Vec<u8>)>,
}

/// A planned receive of the peer.
#[derive(Clone, Debug)]
pub struct Reception {
    /// The buffers for the message.
    pub sges: Vec<Sge>,
    /// The index of the operation that it is for.
    pub op: usize,
}

/// The sizes and probabilities of a plan.
#[derive(Clone, Debug)]
pub struct PlanConfig {
    /// The number of work requests.
    pub ops: usize,
    /// The maximum length of most messages.
    pub longest: usize,
    /// The approximate number of bytes of all messages together.
    pub budget: usize,
    /// The maximum number of elements of a work request or receive.
    pub max_sge: usize,
    /// The maximum number of bytes of inline data.
    pub max_inline: usize,
    /// The size of the target, in bytes.
    pub target: usize,
    /// The probability that a work request is signaled.
    pub signaled: f64,
    /// The probability of an unnecessary fence.
    pub fence: f64,
    /// The weights of the twelve operations: local ones before those of annex A19, the others in
    /// the order of [`SendOp`].
    pub weights: [u32; 12],
}

/// The planned work of one endpoint.
#[derive(Debug)]
pub struct Plan {
    /// The work requests.
    pub ops: Vec<Op>,
    /// The receives that the peer posts for them.
    pub receptions: Vec<Reception>,
    /// The constant content of the source.
    pub source: Vec<u8>,
    /// The initial content of the peer's target.
    pub target: Vec<u8>,
    /// The final content of the peer's target.
    pub target_after: Vec<u8>,
    /// The size of the sink, in bytes.
    pub sink: usize,
    /// The size of the peer's receive region, in bytes.
    pub receive: usize,
    /// The peer's keys that are invalidated.
    pub keys: Vec<u32>,
    /// The keys that are bound or invalidated by local work requests, in order.
    pub local: Vec<u32>,
}

impl Plan {
    /// Returns a random plan.
    pub fn new(rng: &mut Rng, config: &PlanConfig) -> Self {
        let mut source = vec![0; config.longest.max(64)];
        rng.fill_bytes(&mut source);
        let mut target = vec![0; config.target];
        rng.fill_bytes(&mut target);
        let mut maker = PlanBuilder {
            config,
            expected_target: target.clone(),
            unfenced_reads: Vec::new(),
            plan: Plan {
                ops: Vec::new(),
                receptions: Vec::new(),
                source,
                target,
                target_after: Vec::new(),
                sink: 0,
                receive: 0,
                keys: Vec::new(),
                local: Vec::new(),
            },
        };
        let mut spent = 0;
        for _ in 0..config.ops {
            if spent > config.budget {
                break;
            }
            spent += maker.add(rng);
        }
        let mut plan = maker.plan;
        plan.target_after = maker.expected_target;
        if let Some(last) = plan.ops.last_mut() {
            last.flags |= SendFlags::SIGNALED;
        }
        plan
    }
}

impl Op {
    /// Whether it is a READ of versions.
    pub fn reads_versions(&self) -> bool {
        matches!(self.op, SendOp::Read { rkey, .. } if rkey == RKey(VERSIONS))
    }
}

impl Plan {
    /// Redirects READs, each with probability `part`, from the target to the versions.
    pub fn read_versions(&mut self, rng: &mut Rng, part: f64) {
        for op in &mut self.ops {
            if let SendOp::Read { addr, rkey } = &mut op.op
                && rng.random_bool(part)
            {
                // Aligned to words, so that no word is split between packets.
                *addr = base(VERSIONS) + ((*addr - base(TARGET)) & !7);
                *rkey = RKey(VERSIONS);
            }
        }
    }
}

struct PlanBuilder<'a> {
    config: &'a PlanConfig,
    expected_target: Vec<u8>,
    unfenced_reads: Vec<Range<usize>>,
    plan: Plan,
}

impl PlanBuilder<'_> {
    fn add(&mut self, rng: &mut Rng) -> usize {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, rng.random_bool(self.config.signaled));
        flags.set(SendFlags::SOLICITED, rng.random_bool(0.3));
        flags.set(SendFlags::FENCE, rng.random_bool(self.config.fence));
        let kind = pick(rng, &self.config.weights);
        let len = length(rng, self.config.longest);
        let op = match kind {
            0..=4 => self.data_op(rng, kind, len, flags),
            5 => self.read(rng, len, flags),
            6 | 7 => self.atomic(rng, kind, flags),
            8 | 9 => self.local(kind, flags),
            10 => self.atomic_write(rng, flags),
            _ => self.flush(rng, len, flags),
        };
        if op.flags.contains(SendFlags::FENCE) {
            self.unfenced_reads.clear();
        }
        if let SendOp::Read { addr, .. } = op.op {
            let start = (addr - base(TARGET)) as usize;
            self.unfenced_reads.push(start..start + op.bytes.len());
        }
        if let Some((at, bytes)) = &op.effect {
            self.expected_target[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        if op.op.consumes_receive() {
            self.reception(rng, &op);
        }
        let len = op.bytes.len();
        self.plan.ops.push(op);
        len
    }

    /// Returns a SEND or a WRITE, in all variants.
    fn data_op(&mut self, rng: &mut Rng, kind: usize, len: usize, mut flags: SendFlags) -> Op {
        let writes = kind >= 3;
        let mut len = if writes {
            len.min(self.config.target)
        } else {
            len
        };
        let (data, bytes) = if rng.random_bool(0.3) {
            len = len.min(self.config.max_inline);
            let mut bytes = vec![0; len];
            rng.fill_bytes(&mut bytes);
            (Data::Inline, bytes)
        } else {
            let pieces = cut(rng, len, self.config.max_sge);
            len = pieces.iter().sum();
            let mut bytes = Vec::with_capacity(len);
            let sges = pieces.iter().map(|&piece| {
                let at = rng.random_range(0..=self.plan.source.len() - piece);
                bytes.extend_from_slice(&self.plan.source[at..at + piece]);
                sge(SOURCE, at, piece)
            });
            (Data::Sges(sges.collect()), bytes)
        };
        let at = rng.random_range(0..=self.config.target - len.min(self.config.target));
        let (addr, rkey) = (base(TARGET) + at as u64, RKey(TARGET));
        let imm = rng.random();
        let op = match kind {
            0 => SendOp::Send,
            1 => SendOp::SendImm(imm),
            2 => {
                let key = FIRST_INVALIDATABLE_KEY + self.plan.keys.len() as u32;
                self.plan.keys.push(key);
                SendOp::SendInv(RKey(key))
            }
            3 => SendOp::Write { addr, rkey },
            _ => SendOp::WriteImm { addr, rkey, imm },
        };
        let effect = writes.then(|| (at, bytes.clone()));
        if writes && self.was_read(at..at + len) {
            flags |= SendFlags::FENCE;
        }
        Op {
            op,
            flags,
            data,
            bytes,
            effect,
        }
    }

    fn read(&mut self, rng: &mut Rng, len: usize, flags: SendFlags) -> Op {
        let len = len.min(self.config.target);
        let pieces = cut(rng, len, self.config.max_sge);
        let len: usize = pieces.iter().sum();
        let at = rng.random_range(0..=self.config.target - len);
        let sges = pieces.iter().map(|&piece| {
            let sge = sge(SINK, self.plan.sink, piece);
            self.plan.sink += piece + rng.random_range(0..4);
            sge
        });
        Op {
            op: SendOp::Read {
                addr: base(TARGET) + at as u64,
                rkey: RKey(TARGET),
            },
            flags,
            data: Data::Sges(sges.collect()),
            bytes: self.expected_target[at..at + len].to_vec(),
            effect: None,
        }
    }

    fn atomic(&mut self, rng: &mut Rng, kind: usize, mut flags: SendFlags) -> Op {
        // Few places, so that atomics use the same ones.
        let at = 8 * rng.random_range(0..(self.config.target / 8).min(4));
        let original = u64::from_ne_bytes(self.expected_target[at..at + 8].try_into().unwrap());
        let (addr, rkey) = (base(TARGET) + at as u64, RKey(TARGET));
        let (op, value) = if kind == 6 {
            let swap = rng.random();
            let hits = rng.random_bool(0.7);
            let compare = if hits { original } else { rng.random() };
            let op = SendOp::CompareSwap {
                addr,
                rkey,
                compare,
                swap,
            };
            (op, if compare == original { swap } else { original })
        } else {
            let add = rng.random();
            (
                SendOp::FetchAdd { addr, rkey, add },
                original.wrapping_add(add),
            )
        };
        if self.was_read(at..at + 8) {
            flags |= SendFlags::FENCE;
        }
        let sges = if self.config.max_sge > 1 && rng.random_bool(0.2) {
            vec![
                sge(SINK, self.plan.sink, 3),
                sge(SINK, self.plan.sink + 3, 5),
            ]
        } else {
            vec![sge(SINK, self.plan.sink, 8)]
        };
        self.plan.sink += 8;
        Op {
            op,
            flags,
            data: Data::Sges(sges),
            bytes: original.to_ne_bytes().to_vec(),
            effect: Some((at, value.to_ne_bytes().to_vec())),
        }
    }

    fn atomic_write(&mut self, rng: &mut Rng, mut flags: SendFlags) -> Op {
        let at = 8 * rng.random_range(0..(self.config.target / 8).min(4));
        let value: [u8; 8] = rng.random();
        if self.was_read(at..at + 8) {
            flags |= SendFlags::FENCE;
        }
        Op {
            op: SendOp::AtomicWrite {
                addr: base(TARGET) + at as u64,
                rkey: RKey(TARGET),
                value,
            },
            flags,
            data: Data::Sges(Vec::new()),
            bytes: value.to_vec(),
            effect: Some((at, value.to_vec())),
        }
    }

    fn flush(&mut self, rng: &mut Rng, len: usize, flags: SendFlags) -> Op {
        let len = len.min(self.config.target);
        let at = rng.random_range(0..=self.config.target - len);
        let mut how = Feth::GLOBAL_VISIBILITY;
        how.set(Feth::WHOLE_REGION, rng.random_bool(0.3));
        Op {
            op: SendOp::Flush {
                addr: base(TARGET) + at as u64,
                rkey: RKey(TARGET),
                len: len as u32,
                how,
            },
            flags,
            data: Data::Sges(Vec::new()),
            bytes: Vec::new(),
            effect: None,
        }
    }

    /// Returns a local operation. Each names a key of its own.
    fn local(&mut self, kind: usize, flags: SendFlags) -> Op {
        let key = RKey(self.plan.local.len() as u32);
        self.plan.local.push(key.0);
        let op = if kind == 8 {
            SendOp::BindMw(WindowBind {
                window: key,
                new_key: key,
                region: LKey(SOURCE),
                addr: base(SOURCE),
                len: 1,
                access: Access::REMOTE_READ,
            })
        } else {
            SendOp::LocalInv(key)
        };
        Op {
            op,
            flags,
            data: Data::Inline,
            bytes: Vec::new(),
            effect: None,
        }
    }

    fn reception(&mut self, rng: &mut Rng, op: &Op) {
        let slack = [0, 0, 1, 40][rng.random_range(0..4)];
        let room = match op.op {
            SendOp::WriteImm { .. } => slack,
            _ => op.bytes.len() + slack,
        };
        let mut pieces = cut(rng, room, self.config.max_sge);
        if pieces.is_empty() && room > 0 {
            pieces.push(room);
        }
        let sges = pieces.iter().map(|&piece| {
            let sge = sge(RECEIVE, self.plan.receive, piece);
            self.plan.receive += piece + rng.random_range(0..4);
            sge
        });
        let reception = Reception {
            sges: sges.collect(),
            op: self.plan.ops.len(),
        };
        self.plan.receptions.push(reception);
    }

    fn was_read(&self, range: Range<usize>) -> bool {
        self.unfenced_reads
            .iter()
            .any(|read| read.start < range.end && range.start < read.end)
    }
}

fn sge(key: u32, at: usize, len: usize) -> Sge {
    Sge {
        addr: base(key) + at as u64,
        length: len as u32,
        lkey: LKey(key),
    }
}

fn pick(rng: &mut Rng, weights: &[u32; 12]) -> usize {
    let mut at = rng.random_range(0..weights.iter().sum());
    weights
        .iter()
        .position(|&weight| {
            let hit = at < weight;
            at = at.saturating_sub(weight);
            hit
        })
        .unwrap()
}

/// Returns a length: often one at a boundary, else one of any order of magnitude.
fn length(rng: &mut Rng, longest: usize) -> usize {
    let mtu = 256 << rng.random_range(0..5);
    let len = match rng.random_range(0..10) {
        0 => 0,
        1 => 1,
        2 => mtu,
        3 => mtu - 1,
        4 => mtu + 1,
        5 => 65_536 + rng.random_range(0..3) - 1,
        _ => {
            let magnitude = rng.random_range(0.0..=(longest as f64).ln());
            magnitude.exp() as usize
        }
    };
    len.min(longest)
}

/// Cuts `len` bytes into pieces, some of them empty. If no elements are permitted, there is no
/// data.
fn cut(rng: &mut Rng, len: usize, max: usize) -> Vec<usize> {
    if max == 0 || (len == 0 && rng.random_bool(0.5)) {
        return Vec::new();
    }
    let count = if rng.random_bool(0.5) {
        1
    } else {
        rng.random_range(1..=max)
    };
    let mut cuts: Vec<_> = (1..count).map(|_| rng.random_range(0..=len)).collect();
    cuts.push(0);
    cuts.push(len);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}
