//! The operations of the demo, and the amount of data for each.

use std::ffi::OsString;
use std::fmt;

use clap::Args;
use urxe_proto::mtu::Mtu;

use super::pattern::Layout;
use crate::number;

/// The longest message in bytes. The specification allows 2 GiB (9.7.7), this library 1 GiB.
const MAX_MESSAGE: u64 = 1 << 30;
/// The memory for a round of messages in bytes, unless a single message is longer.
const ROUND: usize = 64 << 20;
/// The longest message of the latency measurement, in bytes.
const ROUND_TRIP_SIZE: usize = 64;

/// The amounts to transfer. Both processes get the same.
#[derive(Args, Clone, Debug)]
pub struct Plan {
    /// Message size in bytes, or with a unit: KiB, MiB, GiB
    #[arg(long, default_value = "1MiB", value_parser = parse_message_size)]
    pub size: u64,
    /// Messages per operation [default: as many as --transfer requires]
    #[arg(long, conflicts_with = "transfer", value_parser = number::within(1..=u64::MAX))]
    pub iterations: Option<u64>,
    /// Data to transfer per operation, with a unit as for --size
    #[arg(long, default_value = "256MiB", value_parser = parse_size)]
    pub transfer: u64,
    /// Requests per atomic operation
    #[arg(long, default_value_t = 20_000, value_parser = number::within(1..=u64::MAX))]
    pub atomics: u64,
    /// Requests per operation to measure the latency
    #[arg(long, default_value_t = 2_000, value_parser = number::within(1..=u64::MAX))]
    pub round_trips: u64,
}

impl Plan {
    /// Returns the arguments that produce this plan.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let numbers = [
            ("--size", self.size),
            ("--iterations", self.messages()),
            ("--atomics", self.atomics),
            ("--round-trips", self.round_trips),
        ];
        let both = numbers.map(|(name, number)| [name.into(), number.to_string().into()]);
        both.into_iter().flatten().collect()
    }

    /// Returns the number of messages per operation.
    pub fn messages(&self) -> u64 {
        self.iterations
            .unwrap_or_else(|| self.transfer.div_ceil(self.size).max(1))
    }

    /// Returns the number of requests of an operation, without the latency measurement.
    pub fn requests(&self, operation: Operation) -> u64 {
        match operation.is_atomic() {
            true => self.atomics,
            false => self.messages(),
        }
    }

    /// Returns the rounds of messages of an operation that is not atomic.
    pub fn rounds(&self) -> impl Iterator<Item = Layout> {
        let size = self.message_size();
        let stride = size.next_multiple_of(size_of::<u64>());
        let most = (ROUND / stride).max(1) as u64;
        let messages = self.messages();
        (0..messages.div_ceil(most)).map(move |round| Layout {
            size,
            count: (messages - round * most).min(most) as usize,
        })
    }

    /// Returns the messages of the latency measurement.
    pub fn round_trips(&self) -> Layout {
        let most = ROUND / ROUND_TRIP_SIZE;
        Layout {
            size: self.message_size().min(ROUND_TRIP_SIZE),
            count: usize::try_from(self.round_trips).map_or(most, |count| count.min(most)),
        }
    }

    /// Returns the memory for the largest round, in words.
    pub fn words(&self) -> usize {
        let rounds = self.rounds().take(1).chain([self.round_trips()]);
        rounds.map(Layout::words).max().unwrap_or(0)
    }

    fn message_size(&self) -> usize {
        usize::try_from(self.size).expect("checked against the longest message")
    }
}

/// An operation of the demo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendWithImmediate,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteWithImmediate,
    /// RDMA READ.
    Read,
    /// Atomic compare and swap.
    CompareAndSwap,
    /// Atomic fetch and add.
    FetchAndAdd,
}

impl Operation {
    /// All operations in the order of the demo.
    pub const ALL: [Operation; 7] = [
        Operation::Send,
        Operation::SendWithImmediate,
        Operation::Write,
        Operation::WriteWithImmediate,
        Operation::Read,
        Operation::CompareAndSwap,
        Operation::FetchAndAdd,
    ];

    /// Returns whether the operation is an atomic one on a word.
    pub fn is_atomic(self) -> bool {
        matches!(self, Operation::CompareAndSwap | Operation::FetchAndAdd)
    }

    /// Returns whether each message consumes a receive request of the peer.
    pub fn is_received(self) -> bool {
        use Operation::*;
        matches!(self, Send | SendWithImmediate | WriteWithImmediate)
    }

    /// Returns whether messages carry immediate data.
    pub fn has_immediate(self) -> bool {
        matches!(
            self,
            Operation::SendWithImmediate | Operation::WriteWithImmediate
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Operation::Send => "send",
            Operation::SendWithImmediate => "send with immediate",
            Operation::Write => "write",
            Operation::WriteWithImmediate => "write with immediate",
            Operation::Read => "read",
            Operation::CompareAndSwap => "compare and swap",
            Operation::FetchAndAdd => "fetch and add",
        })
    }
}

/// Parses a path MTU in bytes.
pub fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let mtu = Mtu::ALL
        .into_iter()
        .find(|mtu| mtu.bytes().to_string() == text);
    mtu.ok_or_else(|| "the path MTU must be 256, 512, 1024, 2048 or 4096".to_owned())
}

fn parse_message_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        size @ 1..=MAX_MESSAGE => Ok(size),
        _ => Err("the message size must be 1 byte to 1GiB".to_owned()),
    }
}

/// Parses a number of bytes: `4096`, `64KiB`, `1M`.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        unit => return Err(format!("unknown unit `{unit}`: use KiB, MiB or GiB")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "expected a number and an optional unit, such as 64KiB".to_owned())?;
    let bytes = number.checked_mul(1 << shift);
    bytes
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| "the size must be from 1 byte to 16 EiB".to_owned())
}

/// Formats a number of bytes with a binary unit.
pub fn show_size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(size: u64, transfer: u64) -> Plan {
        Plan {
            size,
            iterations: None,
            transfer,
            atomics: 1,
            round_trips: 10,
        }
    }

    #[test]
    fn rounds_add_up_to_the_transfer() {
        for (size, transfer) in [
            (1 << 20, 256 << 20),
            (3, 100),
            (1000, 200 << 20),
            (200 << 20, 1),
        ] {
            let plan = plan(size, transfer);
            let rounds: Vec<_> = plan.rounds().collect();
            let count: usize = rounds.iter().map(|round| round.count).sum();
            assert_eq!(count as u64, transfer.div_ceil(size));
            assert!(
                rounds
                    .iter()
                    .all(|round| round.count > 0 && round.words() <= plan.words())
            );
        }
    }

    #[test]
    fn sizes_are_parsed_with_their_unit() {
        for (text, bytes) in [
            ("1", 1),
            ("64KiB", 65536),
            ("256MiB", 256 << 20),
            ("2 g", 2 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "MiB", "1.5MiB", "-1", "3 miles", "99999999999GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_message_size("1GiB").is_ok());
        assert!(parse_message_size("2GiB").is_err());
    }

    #[test]
    fn sizes_are_formatted_with_their_unit() {
        assert_eq!(show_size(64), "64 B");
        assert_eq!(show_size(256 << 20), "256 MiB");
        assert_eq!(show_size(1536), "1.5 KiB");
    }
}
