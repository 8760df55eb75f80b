//! The text protocol of the demo's processes. The two peers exchange addresses and synchronize over
//! a Unix socket. Both report to the command that started them. Each message is a line of words.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::time::Duration;

use super::plan::Operation;
use super::verbs::Address;

/// An error in the communication of the peers.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The other process has closed the connection.
    #[error("the other process has ended")]
    Ended,
    /// The connection failed.
    #[error("connection to the other process: {0}")]
    Io(#[from] io::Error),
    /// The other process sent an unexpected line.
    #[error("expected `{expected}` from the other process, got `{found}`")]
    Unexpected {
        /// The expected line.
        expected: String,
        /// The received line.
        found: String,
    },
}

/// A peer's connection to the other peer.
pub struct Control {
    stream: BufReader<UnixStream>,
}

impl Control {
    /// Takes over a connected socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            stream: BufReader::new(UnixStream::from(socket)),
        }
    }

    fn send(&mut self, line: &str) -> Result<(), ControlError> {
        Ok(writeln!(self.stream.get_mut(), "{line}")?)
    }

    fn receive(&mut self) -> Result<String, ControlError> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(ControlError::Ended),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Sends this peer's address and receives the other's.
    ///
    /// # Errors
    /// Fails if the other process has ended or sends something else.
    pub fn exchange(&mut self, own: Address) -> Result<Address, ControlError> {
        let Address {
            gid,
            qpn,
            psn,
            memory,
            rkey,
        } = own;
        let gid = u128::from_be_bytes(gid);
        self.send(&format!("address {gid} {qpn} {psn} {memory} {rkey}"))?;
        let line = self.receive()?;
        parse_address(&line).ok_or_else(|| ControlError::Unexpected {
            expected: "address GID QPN PSN MEMORY RKEY".to_owned(),
            found: line,
        })
    }

    /// Waits until both peers have reached this point.
    ///
    /// # Errors
    /// Fails if the other process has ended or reached another point.
    pub fn barrier(&mut self, point: &str) -> Result<(), ControlError> {
        self.send(point)?;
        let found = self.receive()?;
        match found == point {
            true => Ok(()),
            false => Err(ControlError::Unexpected {
                expected: point.to_owned(),
                found,
            }),
        }
    }
}

fn parse_address(line: &str) -> Option<Address> {
    let mut words = line.strip_prefix("address ")?.split(' ');
    let address = Address {
        gid: words.next()?.parse::<u128>().ok()?.to_be_bytes(),
        qpn: words.next()?.parse().ok()?,
        psn: words.next()?.parse().ok()?,
        memory: words.next()?.parse().ok()?,
        rkey: words.next()?.parse().ok()?,
    };
    words.next().is_none().then_some(address)
}

/// The measurements of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// The number of requests, without the latency measurement.
    pub requests: u64,
    /// Their total time, without verification.
    pub elapsed: Duration,
    /// The median time from posting to completion of a single request.
    pub median: Duration,
    /// The 99th percentile of that time.
    pub percentile_99: Duration,
}

/// A peer's report to the command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// The connection is established.
    Connected,
    /// This many requests of an operation are complete.
    Progress(Operation, u64),
    /// An operation is complete and verified.
    Done(Operation, Measured),
    /// All operations are complete and verified.
    Finished,
    /// The other peer has ended; its report has the cause.
    PeerGone,
    /// The peer failed; with the cause.
    Failed(String),
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Connected => write!(f, "connected"),
            Report::Progress(operation, requests) => {
                write!(f, "progress {} {requests}", *operation as usize)
            }
            Report::Done(operation, measured) => {
                let Measured {
                    requests,
                    elapsed,
                    median,
                    percentile_99,
                } = measured;
                let times = [elapsed, median, percentile_99].map(|time| time.as_nanos());
                let [elapsed, median, percentile_99] = times;
                let operation = *operation as usize;
                write!(
                    f,
                    "done {operation} {requests} {elapsed} {median} {percentile_99}"
                )
            }
            Report::Finished => write!(f, "finished"),
            Report::PeerGone => write!(f, "peer-gone"),
            Report::Failed(why) => write!(f, "failed {}", why.replace('\n', " ")),
        }
    }
}

impl FromStr for Report {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        parse_report(line).ok_or_else(|| format!("malformed report `{line}`"))
    }
}

fn parse_report(line: &str) -> Option<Report> {
    let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
    let mut words = rest.split(' ');
    let operation = |word: &str| Operation::ALL.get(word.parse::<usize>().ok()?).copied();
    let duration = |word: &str| Some(Duration::from_nanos(word.parse().ok()?));
    Some(match kind {
        "connected" => Report::Connected,
        "finished" => Report::Finished,
        "peer-gone" => Report::PeerGone,
        "failed" => Report::Failed(rest.to_owned()),
        "progress" => Report::Progress(operation(words.next()?)?, words.next()?.parse().ok()?),
        "done" => Report::Done(
            operation(words.next()?)?,
            Measured {
                requests: words.next()?.parse().ok()?,
                elapsed: duration(words.next()?)?,
                median: duration(words.next()?)?,
                percentile_99: duration(words.next()?)?,
            },
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn reports_survive_formatting_and_parsing() {
        let measured = Measured {
            requests: 256,
            elapsed: Duration::from_nanos(123_456_789),
            median: Duration::from_nanos(4_000),
            percentile_99: Duration::from_nanos(9_000),
        };
        let reports = [
            Report::Connected,
            Report::Progress(Operation::Read, 17),
            Report::Done(Operation::FetchAndAdd, measured),
            Report::Finished,
            Report::PeerGone,
            Report::Failed("word 3: expected 1, saw 2".to_owned()),
        ];
        for report in reports {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
        assert!("nonsense".parse::<Report>().is_err());
        assert!("done 99 1 2 3 4".parse::<Report>().is_err());
    }

    #[test]
    fn peers_exchange_addresses_and_synchronize() {
        let (a, b) = UnixStream::pair().expect("sockets");
        let address = |number| Address {
            gid: [number; 16],
            qpn: 1,
            psn: 2,
            memory: u64::MAX,
            rkey: u32::from(number),
        };
        let other = thread::spawn(move || {
            let mut control = Control::new(b.into());
            let received = control.exchange(address(2));
            control.barrier("here").map(|()| received)
        });
        let mut control = Control::new(a.into());
        assert_eq!(
            control.exchange(address(1)).expect("an address"),
            address(2)
        );
        control.barrier("here").expect("both are there");
        let received = other.join().expect("no panic").expect("both are there");
        assert_eq!(received.expect("an address"), address(1));
        assert!(matches!(
            control.barrier("later"),
            Err(ControlError::Ended | ControlError::Io(_))
        ));
    }
}
