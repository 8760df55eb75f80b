//! `URXE_FAULTS`: the faults to inject, and their text form. [`injector`] applies them.

mod emulated_link;
pub(super) mod injector;

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

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
    /// No faults yet, for sent packets.
    pub fn new(seed: u64) -> FaultSpec {
        FaultSpec {
            drop: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate: None,
            queue: DEFAULT_QUEUE,
            seed,
            direction: FaultDirection::Tx,
        }
    }

    /// Whether faults apply to sent packets.
    pub fn sends(&self) -> bool {
        self.direction != FaultDirection::Rx
    }

    /// Whether faults apply to received packets.
    pub fn receives(&self) -> bool {
        self.direction != FaultDirection::Tx
    }

    /// Whether packets spend time on the emulated path.
    pub fn delays(&self) -> bool {
        self.delay > Duration::ZERO || self.rate.is_some()
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
            let time = |time: Duration| in_largest_unit(time.as_nanos(), &TIME_UNITS);
            write!(f, "delay={}", time(self.delay))?;
            if self.jitter > Duration::ZERO {
                write!(f, "±{}", time(self.jitter))?;
            }
            write!(f, ",")?;
        }
        if let Some(rate) = self.rate {
            write!(f, "rate={},", in_largest_unit(rate.into(), &RATE_UNITS))?;
            match self.queue {
                QueueLimit::Packets(packets) => write!(f, "queue={packets},")?,
                QueueLimit::Bytes(bytes) => {
                    write!(f, "queue={},", in_largest_unit(bytes.into(), &SIZE_UNITS))?;
                }
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
        let mut spec = FaultSpec::new(0);
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

/// Units of a quantity with their sizes, those with longer names first.
type Units = [(&'static str, u64)];

const TIME_UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", NANOS)];
const NANOS: u64 = 1_000_000_000;

fn duration(text: &str) -> Option<Duration> {
    let nanoseconds = quantity(text.trim(), &TIME_UNITS, 0..=60 * NANOS)?;
    Some(Duration::from_nanos(nanoseconds))
}

/// Parses a number with one of these units, rounded to a whole number.
fn quantity(text: &str, units: &Units, range: RangeInclusive<u64>) -> Option<u64> {
    let (number, size) = units
        .iter()
        .find_map(|(unit, size)| Some((text.strip_suffix(unit)?, *size as f64)))?;
    let quantity = (decimal(number.trim_end())? * size).round() as u64;
    range.contains(&quantity).then_some(quantity)
}

/// Returns the quantity as a whole number of the largest unit that permits it.
fn in_largest_unit(quantity: u128, units: &Units) -> String {
    let divides = |(_, size): &&(&str, u64)| quantity.is_multiple_of(u128::from(*size));
    match units.iter().filter(divides).max_by_key(|(_, size)| *size) {
        Some((unit, size)) => format!("{}{unit}", quantity / u128::from(*size)),
        None => quantity.to_string(),
    }
}

const RATE_UNITS: [(&str, u64); 4] = [
    ("Gbit", 1_000_000_000),
    ("Mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];

fn rate(value: &str) -> Result<u64, ParseError> {
    quantity(value, &RATE_UNITS, 1_000..=1_000_000_000_000).ok_or_else(|| {
        let expected =
            "bits per second from 1kbit to 1000Gbit, such as 100Mbit (units: bit, kbit, Mbit, Gbit)";
        bad("rate", value, expected)
    })
}

const SIZE_UNITS: [(&str, u64); 3] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("B", 1)];

fn queue(value: &str) -> Result<QueueLimit, ParseError> {
    let packets = || {
        whole(value)
            .filter(|count| *count > 0)
            .map(QueueLimit::Packets)
    };
    let bytes = || quantity(value, &SIZE_UNITS, 1..=1 << 30).map(QueueLimit::Bytes);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        assert_eq!(shown.to_string(), "dup=0.7%,delay=1ms,seed=3,dir=tx");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(text in ".{0,60}") {
            let _ = text.parse::<FaultSpec>();
        }
    }
}
