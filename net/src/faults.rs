//! `URXE_FAULTS`: fault injection on any network.
//!
//! The injector is between the engine and the socket, and independent of both: it drops,
//! duplicates, delays, reorders and corrupts packets of any type. Its decisions come from a seeded
//! generator and depend on the sequence of packets alone, so a seed reproduces them. The injector
//! does not sleep: [`Injector::next_deadline`] is the time of the next call of
//! [`Injector::release`].

use crate::counters::NetCounters;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use urxe_proto::time::Time;

/// The maximum number of later packets behind which a packet is moved.
const MAX_OVERTAKING: u64 = 4;

/// The time after which a held packet is sent even if no packet follows it.
const HOLD_TIME: Duration = Duration::from_millis(5);

/// The queue in front of an emulated link, if none is given: the usual length of an interface's.
const DEFAULT_QUEUE: QueueLimit = QueueLimit::Packets(1000);

/// The size of the queue in front of an emulated link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum QueueLimit {
    /// So many packets.
    Packets(u64),
    /// So many bytes, from the BTH to the ICRC.
    Bytes(u64),
}

/// The packets to which faults apply.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum FaultDirection {
    /// Sent packets.
    #[default]
    Tx,
    /// Packets received by the process that they are for. Forwarded packets are exempt.
    Rx,
    /// All of them.
    Both,
}

/// The faults to inject. Probabilities are between 0 and 1.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct FaultSpec {
    /// The probability that a packet is dropped.
    pub drop: f64,
    /// The probability that it is duplicated.
    pub duplicate: f64,
    /// The probability that it is moved behind one to four later ones.
    pub reorder: f64,
    /// The probability that one of its bits is flipped.
    pub corrupt: f64,
    /// The delay of every packet.
    pub delay: Duration,
    /// The maximum deviation from the delay, in either direction.
    pub jitter: Duration,
    /// The rate of an emulated link in bits per second, of the bytes from the BTH to the ICRC.
    pub rate: Option<u64>,
    /// The size of the queue in front of the link, which drops packets that find it full.
    pub queue: QueueLimit,
    /// The seed of all random decisions.
    pub seed: u64,
    /// The packets that faults apply to.
    pub direction: FaultDirection,
}

/// The error in a fault specification.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// A part is not of the form `name=value`.
    #[error("«{0}» is not of the form name=value; an example: drop=1%,delay=2ms,seed=7")]
    NoValue(String),
    /// No fault has this name.
    #[error(
        "unknown fault «{0}»: the names are drop, dup, reorder, corrupt, delay, rate, queue, seed and dir"
    )]
    UnknownName(String),
    /// A name occurs twice.
    #[error("«{0}» occurs twice")]
    Repeated(String),
    /// A queue without a rate would always be empty.
    #[error("queue: it needs a rate, such as rate=100Mbit,queue=64")]
    QueueWithoutRate,
    /// A value is invalid.
    #[error("{name}: «{value}» is not {expected}")]
    BadValue {
        /// The name.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// The values that are permitted.
        expected: &'static str,
    },
}

impl FaultSpec {
    /// Whether faults apply to sent packets.
    pub fn sends(&self) -> bool {
        self.direction != FaultDirection::Rx
    }

    /// Whether faults apply to received packets.
    pub fn receives(&self) -> bool {
        self.direction != FaultDirection::Tx
    }
}

/// The text that requests the same faults, including the seed: setting it reproduces a run.
impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chances = [
            ("drop", self.drop),
            ("dup", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ];
        for (name, chance) in chances.into_iter().filter(|(_, chance)| *chance > 0.0) {
            // Rounding restores the decimals of a fraction of a percent as they were written.
            let percent = (chance * 100.0 * 1e12).round() / 1e12;
            write!(f, "{name}={percent}%,")?;
        }
        if self.delay > Duration::ZERO {
            write!(f, "delay={}ns", self.delay.as_nanos())?;
            if self.jitter > Duration::ZERO {
                write!(f, "±{}ns", self.jitter.as_nanos())?;
            }
            write!(f, ",")?;
        }
        if let Some(rate) = self.rate {
            write!(f, "rate={rate}bit,")?;
            match self.queue {
                QueueLimit::Packets(packets) => write!(f, "queue={packets},")?,
                QueueLimit::Bytes(bytes) => write!(f, "queue={bytes}B,")?,
            }
        }
        let direction = match self.direction {
            FaultDirection::Tx => "tx",
            FaultDirection::Rx => "rx",
            FaultDirection::Both => "both",
        };
        write!(f, "seed={},dir={direction}", self.seed)
    }
}

impl FromStr for FaultSpec {
    type Err = ParseError;

    /// Parses `drop=1%,dup=0.5%,reorder=1%,corrupt=0.1%,delay=2ms±1ms,rate=1Gbit,queue=64,seed=7`
    /// and `dir=tx`. Every part is optional, but a queue needs a rate. Without a seed the system's
    /// generator provides one, and the log states it.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut spec = FaultSpec {
            drop: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate: None,
            queue: DEFAULT_QUEUE,
            seed: 0,
            direction: FaultDirection::Tx,
        };
        let mut seen: Vec<&str> = Vec::new();
        let text = text.trim();
        let parts = text.strip_suffix(',').unwrap_or(text).split(',');
        for part in parts.map(str::trim) {
            let Some((name, value)) = part.split_once('=') else {
                return Err(ParseError::NoValue(part.to_owned()));
            };
            let (name, value) = (name.trim(), value.trim());
            if seen.contains(&name) {
                return Err(ParseError::Repeated(name.to_owned()));
            }
            match name {
                "drop" => spec.drop = percentage("drop", value)?,
                "dup" => spec.duplicate = percentage("dup", value)?,
                "reorder" => spec.reorder = percentage("reorder", value)?,
                "corrupt" => spec.corrupt = percentage("corrupt", value)?,
                "delay" => (spec.delay, spec.jitter) = delay(value)?,
                "rate" => spec.rate = Some(rate(value)?),
                "queue" => spec.queue = queue(value)?,
                "seed" => spec.seed = seed(value)?,
                "dir" => spec.direction = direction(value)?,
                _ => return Err(ParseError::UnknownName(name.to_owned())),
            }
            seen.push(name);
        }
        if seen.contains(&"queue") && spec.rate.is_none() {
            return Err(ParseError::QueueWithoutRate);
        }
        if !seen.contains(&"seed") {
            spec.seed = crate::random::any();
        }
        Ok(spec)
    }
}

fn bad(name: &'static str, value: &str, expected: &'static str) -> ParseError {
    ParseError::BadValue {
        name,
        value: value.to_owned(),
        expected,
    }
}

/// Parses digits with at most one decimal point. `f64` would accept more, such as exponents.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let digits = text.starts_with(|c: char| c.is_ascii_digit());
    (plain && digits).then(|| text.parse().ok()).flatten()
}

fn percentage(name: &'static str, value: &str) -> Result<f64, ParseError> {
    value
        .strip_suffix('%')
        .and_then(|number| decimal(number.trim_end()))
        .filter(|percent| *percent <= 100.0)
        .map(|percent| percent / 100.0)
        .ok_or_else(|| bad(name, value, "a percentage from 0% to 100%, such as 0.5%"))
}

fn delay(value: &str) -> Result<(Duration, Duration), ParseError> {
    let parse = || {
        let (delay, jitter) = match value.split_once('±').or_else(|| value.split_once("+-")) {
            Some((delay, jitter)) => (duration(delay)?, duration(jitter)?),
            None => (duration(value)?, Duration::ZERO),
        };
        (jitter <= delay).then_some((delay, jitter))
    };
    parse().ok_or_else(|| {
        bad(
            "delay",
            value,
            "a time of at most 60s such as 2ms, or 2ms±500us with a second part no larger than \
             the first (units: ns, us, ms, s)",
        )
    })
}

fn duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let text = text.trim();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))?;
    let seconds = decimal(number.trim_end())? * unit;
    (seconds <= 60.0).then(|| Duration::from_secs_f64(seconds))
}

/// Parses a number with one of these units, rounded to a whole number.
fn quantity(text: &str, units: &[(&str, f64)], range: RangeInclusive<u64>) -> Option<u64> {
    let (number, factor) = units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let quantity = (decimal(number.trim_end())? * factor).round() as u64;
    range.contains(&quantity).then_some(quantity)
}

fn rate(value: &str) -> Result<u64, ParseError> {
    const UNITS: [(&str, f64); 4] = [("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];
    quantity(value, &UNITS, 1_000..=1_000_000_000_000).ok_or_else(|| {
        let expected =
            "bits per second from 1kbit to 1000Gbit, such as 100Mbit (units: bit, kbit, Mbit, Gbit)";
        bad("rate", value, expected)
    })
}

fn queue(value: &str) -> Result<QueueLimit, ParseError> {
    const UNITS: [(&str, f64); 3] = [("KiB", 1024.0), ("MiB", 1048576.0), ("B", 1.0)];
    let packets = || {
        whole(value)
            .filter(|count| *count > 0)
            .map(QueueLimit::Packets)
    };
    let bytes = || quantity(value, &UNITS, 1..=1 << 30).map(QueueLimit::Bytes);
    packets().or_else(bytes).ok_or_else(|| {
        let expected = "a number of packets such as 64, or of bytes such as 256KiB, at most 1024MiB \
                        (units: B, KiB, MiB)";
        bad("queue", value, expected)
    })
}

fn whole(value: &str) -> Option<u64> {
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| value.parse().ok()).flatten()
}

fn seed(value: &str) -> Result<u64, ParseError> {
    whole(value).ok_or_else(|| bad("seed", value, "a whole number below 2^64"))
}

fn direction(value: &str) -> Result<FaultDirection, ParseError> {
    match value {
        "tx" => Ok(FaultDirection::Tx),
        "rx" => Ok(FaultDirection::Rx),
        "both" => Ok(FaultDirection::Both),
        _ => Err(bad("dir", value, "tx, rx or both")),
    }
}

/// A packet that the injector can copy and modify.
pub(super) trait Packet: Clone {
    /// The bytes from the BTH to the ICRC.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Applies a specification to a sequence of packets.
pub(super) struct Injector<P> {
    spec: FaultSpec,
    counters: Arc<NetCounters>,
    generator: Xoshiro256PlusPlus,
    /// Packets held until a number of packets has passed, or until a time.
    held: Vec<Held<P>>,
    /// Packets delayed until a time; the second number keeps the order of equal times.
    delayed: BTreeMap<(Time, u64), P>,
    sequence: u64,
    link: Option<Link>,
}

/// An emulated link: packets leave it one after the other, at its rate.
struct Link {
    rate: u64,
    limit: QueueLimit,
    /// When each queued packet has left, and its bytes.
    queue: VecDeque<(Time, u64)>,
    queued_bytes: u64,
    /// When the last packet has left.
    busy_until: Time,
}

impl Link {
    /// Queues a packet of `bytes` bytes. Returns when it has left, or `None` if the queue is full.
    fn send(&mut self, bytes: u64, now: Time) -> Option<Time> {
        while let Some(&(_, left)) = self.queue.front().filter(|(at, _)| *at <= now) {
            self.queue.pop_front();
            self.queued_bytes -= left;
        }
        let is_full = match self.limit {
            QueueLimit::Packets(packets) => self.queue.len() as u64 >= packets,
            // A packet larger than the queue passes if the queue is empty.
            QueueLimit::Bytes(limit) => !self.queue.is_empty() && self.queued_bytes + bytes > limit,
        };
        if is_full {
            return None;
        }
        let takes = Duration::from_nanos(bytes * 8 * 1_000_000_000 / self.rate);
        self.busy_until = self.busy_until.max(now) + takes;
        self.queue.push_back((self.busy_until, bytes));
        self.queued_bytes += bytes;
        Some(self.busy_until)
    }
}

struct Held<P> {
    packet: P,
    overtaking_left: u64,
    until: Time,
}

/// The random decisions for one packet. Each packet takes the same number of random numbers, so the
/// decisions for one do not change those for the next.
struct Decisions {
    drop: bool,
    duplicate: bool,
    reorder: bool,
    corrupt: Option<u64>,
    overtaking: u64,
    delay: Duration,
}

impl<P: Packet> Injector<P> {
    pub(super) fn new(spec: FaultSpec, counters: Arc<NetCounters>) -> Self {
        Injector {
            spec,
            counters,
            generator: Xoshiro256PlusPlus::seed_from_u64(spec.seed),
            held: Vec::new(),
            delayed: BTreeMap::new(),
            sequence: 0,
            link: spec.rate.map(|rate| Link {
                rate,
                limit: spec.queue,
                queue: VecDeque::new(),
                queued_bytes: 0,
                busy_until: Time(0),
            }),
        }
    }

    fn decide(&mut self) -> Decisions {
        let FaultSpec {
            drop,
            duplicate,
            reorder,
            corrupt,
            delay,
            jitter,
            ..
        } = self.spec;
        let mut chance = |p: f64| unit(self.generator.next_u64()) < p;
        let drop = chance(drop);
        let duplicate = chance(duplicate);
        let reorder = chance(reorder);
        let corrupt = chance(corrupt);
        let bit = self.generator.next_u64();
        let overtaking = 1 + self.generator.next_u64() % MAX_OVERTAKING;
        let spread = jitter.mul_f64(2.0 * unit(self.generator.next_u64()));
        Decisions {
            drop,
            duplicate,
            reorder,
            corrupt: corrupt.then_some(bit),
            overtaking,
            delay: delay.saturating_sub(jitter) + spread,
        }
    }

    /// Processes a packet, and calls `emit` for each packet that is not delayed.
    pub(super) fn pass(&mut self, mut packet: P, now: Time, emit: &mut impl FnMut(P)) {
        let decisions = self.decide();
        if decisions.drop {
            self.counters.faults_dropped.add(1);
            return;
        }
        if let Some(bit) = decisions.corrupt {
            flip(packet.bytes_mut(), bit);
            self.counters.faults_corrupted.add(1);
        }
        if decisions.duplicate {
            self.counters.faults_duplicated.add(1);
            self.delay_or_emit(packet.clone(), decisions.delay, now, emit);
        }
        if decisions.reorder {
            self.counters.faults_reordered.add(1);
            self.held.push(Held {
                packet,
                overtaking_left: decisions.overtaking,
                until: now + HOLD_TIME + decisions.delay,
            });
            return;
        }
        self.delay_or_emit(packet, decisions.delay, now, emit);
        self.release_overtaken(decisions.delay, now, emit);
    }

    /// Records that a packet overtook the held ones; releases those whose count reaches 0.
    fn release_overtaken(&mut self, delay: Duration, now: Time, emit: &mut impl FnMut(P)) {
        let mut at = 0;
        while at < self.held.len() {
            self.held[at].overtaking_left -= 1;
            if self.held[at].overtaking_left == 0 {
                let held = self.held.remove(at);
                self.delay_or_emit(held.packet, delay, now, emit);
            } else {
                at += 1;
            }
        }
    }

    /// Sends a packet over the link, if there is one, and then delays it.
    fn delay_or_emit(
        &mut self,
        mut packet: P,
        delay: Duration,
        now: Time,
        emit: &mut impl FnMut(P),
    ) {
        let leaves = match &mut self.link {
            None => now,
            Some(link) => match link.send(packet.bytes_mut().len() as u64, now) {
                Some(leaves) => leaves,
                None => {
                    self.counters.faults_dropped.add(1);
                    return;
                }
            },
        };
        let arrives = leaves + delay;
        if arrives <= now {
            emit(packet);
            return;
        }
        self.counters.faults_delayed.add(1);
        self.sequence += 1;
        self.delayed.insert((arrives, self.sequence), packet);
    }

    /// The time of the next call of [`Injector::release`].
    pub(super) fn next_deadline(&self) -> Time {
        let held = self.held.iter().map(|h| h.until).min();
        let delayed = self.delayed.keys().next().map(|(time, _)| *time);
        held.into_iter().chain(delayed).min().unwrap_or(Time::NEVER)
    }

    /// Calls `emit` for each packet whose delay has ended.
    pub(super) fn release(&mut self, now: Time, emit: &mut impl FnMut(P)) {
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > now {
                break;
            }
            emit(first.remove());
        }
        let mut at = 0;
        while at < self.held.len() {
            if self.held[at].until <= now {
                emit(self.held.remove(at).packet);
            } else {
                at += 1;
            }
        }
    }
}

/// Returns a number from 0 to just below 1.
fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

fn flip(bytes: &mut [u8], random: u64) {
    let bits = bytes.len() as u64 * 8;
    if let Some(bit) = random.checked_rem(bits) {
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Packet for Vec<u8> {
        fn bytes_mut(&mut self) -> &mut [u8] {
            self
        }
    }

    fn run(text: &str, packets: u32) -> (Vec<Vec<u8>>, Arc<NetCounters>) {
        let counters = Arc::new(NetCounters::default());
        let mut injector = Injector::new(text.parse().unwrap(), counters.clone());
        let mut out = Vec::new();
        for i in 0..packets {
            let mut packet = i.to_be_bytes().to_vec();
            packet.resize(64, 0);
            injector.pass(packet, Time(u64::from(i)), &mut |p| out.push(p));
        }
        let end = Time(60_000_000_000);
        injector.release(end, &mut |p| out.push(p));
        assert_eq!(injector.next_deadline(), Time::NEVER);
        (out, counters)
    }

    #[test]
    fn all_parts_are_parsed() {
        let text = "drop=1%, dup=0.5%,reorder=2%,corrupt=0.1%,delay=2ms±500us,seed=7,dir=both";
        let spec: FaultSpec = text.parse().unwrap();
        assert_eq!(spec.drop, 0.01);
        assert_eq!(spec.duplicate, 0.005);
        assert_eq!(spec.reorder, 0.02);
        assert_eq!(spec.corrupt, 0.001);
        assert_eq!(spec.delay, Duration::from_millis(2));
        assert_eq!(spec.jitter, Duration::from_micros(500));
        assert_eq!(spec.seed, 7);
        assert!(spec.sends() && spec.receives());
        let ascii: FaultSpec = "delay=2ms+-1ms".parse().unwrap();
        assert_eq!(ascii.jitter, Duration::from_millis(1));
        assert!(ascii.sends() && !ascii.receives());
    }

    #[test]
    fn errors_name_the_field() {
        for (text, part) in [
            ("", "name=value"),
            ("drop", "drop"),
            ("drop=1", "drop"),
            ("drop=101%", "0% to 100%"),
            ("drop=-1%", "drop"),
            ("drop=nan%", "drop"),
            ("drop=1%,,", "name=value"),
            ("drop=1%,drop=2%", "twice"),
            ("loss=1%", "loss"),
            ("delay=5", "delay"),
            ("delay=1ms±2ms", "delay"),
            ("delay=61s", "delay"),
            ("seed=-1", "seed"),
            ("seed=99999999999999999999", "seed"),
            ("dir=up", "tx, rx or both"),
            ("rate=100", "rate"),
            ("rate=1bit", "rate"),
            ("rate=2000Gbit", "rate"),
            ("rate=-1Mbit", "rate"),
            ("rate=1Mbit,queue=0", "queue"),
            ("rate=1Mbit,queue=0B", "queue"),
            ("rate=1Mbit,queue=1.5", "queue"),
            ("rate=1Mbit,queue=2000MiB", "queue"),
            ("queue=64", "queue: it needs a rate"),
        ] {
            let error = text.parse::<FaultSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn display_parses_back_to_the_same_faults() {
        for text in [
            "drop=1%,dup=0.5%,reorder=7%,corrupt=0.1%,delay=2ms±1ms,seed=7,dir=rx",
            "delay=250us,seed=1,dir=both",
            "drop=0.3%,",
            "rate=2.5Gbit,queue=64",
            "delay=1ms,rate=64kbit,queue=1.5KiB,seed=2",
        ] {
            let spec = text.parse::<FaultSpec>().unwrap();
            assert_eq!(spec.to_string().parse::<FaultSpec>().unwrap(), spec);
        }
        let shown = "dup=0.7%,delay=1ms,seed=3".parse::<FaultSpec>().unwrap();
        assert_eq!(shown.to_string(), "dup=0.7%,delay=1000000ns,seed=3,dir=tx");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(text in ".{0,60}") {
            let _ = text.parse::<FaultSpec>();
        }
    }

    #[test]
    fn seed_determines_all_decisions() {
        let text = "drop=5%,dup=5%,reorder=5%,corrupt=5%,delay=1ms±1ms,seed=";
        let (first, _) = run(&format!("{text}1"), 2000);
        let (again, _) = run(&format!("{text}1"), 2000);
        let (other, _) = run(&format!("{text}2"), 2000);
        assert_eq!(first, again);
        assert_ne!(first, other);
    }

    #[test]
    fn faults_occur_with_the_requested_probability() {
        let (out, counters) = run("drop=10%,dup=5%,reorder=2%,corrupt=1%,seed=3", 100_000);
        let near = |count: u64, expected: u64| count.abs_diff(expected) < expected / 10;
        assert!(near(counters.faults_dropped.get(), 10_000));
        // No other fault applies to a dropped packet.
        assert!(near(counters.faults_duplicated.get(), 4500));
        assert!(near(counters.faults_reordered.get(), 1800));
        assert!(near(counters.faults_corrupted.get(), 900));
        let expected = 100_000 - counters.faults_dropped.get() + counters.faults_duplicated.get();
        assert_eq!(out.len() as u64, expected);
    }

    #[test]
    fn reordered_packet_follows_later_ones_and_is_not_lost() {
        let (out, counters) = run("reorder=10%,seed=5", 10_000);
        assert_eq!(out.len(), 10_000);
        let numbers: Vec<u32> = out
            .iter()
            .map(|p| u32::from_be_bytes(p[..4].try_into().unwrap()))
            .collect();
        let late = numbers.windows(2).filter(|w| w[1] < w[0]).count() as u64;
        assert!(late > 0 && late <= counters.faults_reordered.get());
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10_000).collect::<Vec<_>>());
    }

    #[test]
    fn exactly_one_bit_is_flipped() {
        let (out, _) = run("corrupt=100%,seed=5", 100);
        for (i, packet) in out.iter().enumerate() {
            let mut expected = (i as u32).to_be_bytes().to_vec();
            expected.resize(64, 0);
            let flipped: u32 = packet
                .iter()
                .zip(&expected)
                .map(|(a, b)| (a ^ b).count_ones())
                .sum();
            assert_eq!(flipped, 1);
        }
    }

    #[test]
    fn delayed_packet_is_released_at_its_time() {
        let counters = Arc::new(NetCounters::default());
        let spec = "delay=2ms,seed=1".parse().unwrap();
        let mut injector: Injector<Vec<u8>> = Injector::new(spec, counters);
        let mut out = Vec::new();
        injector.pass(vec![1], Time(1_000_000), &mut |p| out.push(p));
        assert!(out.is_empty());
        assert_eq!(injector.next_deadline(), Time(3_000_000));
        injector.release(Time(2_999_999), &mut |p| out.push(p));
        assert!(out.is_empty());
        injector.release(Time(3_000_000), &mut |p| out.push(p));
        assert_eq!(out, [vec![1]]);
    }

    /// Sends packets of 1000 bytes, all at time 0. Returns when each leaves; the others are dropped.
    fn departures(text: &str, packets: usize) -> (Vec<u64>, u64) {
        let counters = Arc::new(NetCounters::default());
        let mut injector = Injector::new(text.parse().unwrap(), counters.clone());
        for _ in 0..packets {
            injector.pass(vec![0; 1000], Time(0), &mut |_| panic!("it takes time"));
        }
        let mut left = Vec::new();
        while injector.next_deadline() != Time::NEVER {
            let now = injector.next_deadline();
            injector.release(now, &mut |_| left.push(now.0 / 1000));
        }
        (left, counters.faults_dropped.get())
    }

    #[test]
    fn packets_leave_at_the_rate_and_then_are_delayed() {
        assert_eq!(departures("rate=8Mbit", 3), (vec![1000, 2000, 3000], 0));
        let with_delay = departures("rate=8Mbit,delay=5ms", 3);
        assert_eq!(with_delay, (vec![6000, 7000, 8000], 0));
    }

    #[test]
    fn full_queue_drops_packets() {
        for queue in ["4", "4000B", "4.5KiB"] {
            let (left, dropped) = departures(&format!("rate=8Mbit,queue={queue}"), 10);
            assert_eq!((left.len(), dropped), (4, 6), "{queue}");
        }
        // A single packet passes, whatever the size of the queue.
        assert_eq!(departures("rate=8Mbit,queue=1B", 2), (vec![1000], 1));
    }

    #[test]
    fn queue_has_room_again_when_packets_have_left() {
        let spec = "rate=8Mbit,queue=2,seed=1".parse().unwrap();
        let counters = Arc::new(NetCounters::default());
        let mut injector: Injector<Vec<u8>> = Injector::new(spec, counters.clone());
        let mut left = 0;
        for millisecond in 0..100 {
            let now = Time(millisecond * 1_000_000);
            injector.release(now, &mut |_| left += 1);
            // Twice what the link carries.
            for _ in 0..2 {
                injector.pass(vec![0; 1000], now, &mut |_| panic!("it takes time"));
            }
        }
        assert_eq!(left, 99);
        assert_eq!(counters.faults_dropped.get(), 99);
    }
}
