//! What the processes of the demo say to each other besides verbs: the two peers exchange their
//! addresses and wait for each other over a Unix socket, and both report to the command that
//! started them. Lines of words.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::time::Duration;

use super::plan::Operation;
use super::verbs::Address;

/// Why the peers do not understand each other.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The other process has closed the connection.
    #[error("the other process has ended")]
    Ended,
    /// The connection failed.
    #[error("the connection to the other process: {0}")]
    Io(#[from] io::Error),
    /// The other process said something else.
    #[error("expected `{expected}` from the other process, saw `{seen}`")]
    Unexpected {
        /// What should have come.
        expected: String,
        /// What came.
        seen: String,
    },
}

/// A peer's connection to the other one.
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

    fn say(&mut self, line: &str) -> Result<(), ControlError> {
        Ok(writeln!(self.stream.get_mut(), "{line}")?)
    }

    fn hear(&mut self) -> Result<String, ControlError> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(ControlError::Ended),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Tells the other peer where this one is, and learns where it is.
    ///
    /// # Errors
    /// When the other process has ended or says something else.
    pub fn exchange(&mut self, own: Address) -> Result<Address, ControlError> {
        let Address {
            gid,
            qpn,
            psn,
            memory,
            rkey,
        } = own;
        let gid = u128::from_be_bytes(gid);
        self.say(&format!("address {gid} {qpn} {psn} {memory} {rkey}"))?;
        let line = self.hear()?;
        parse_address(&line).ok_or_else(|| ControlError::Unexpected {
            expected: "address GID QPN PSN MEMORY RKEY".to_owned(),
            seen: line,
        })
    }

    /// Waits until both peers have come to this point.
    ///
    /// # Errors
    /// When the other process has ended, or has come to another point.
    pub fn meet(&mut self, point: &str) -> Result<(), ControlError> {
        self.say(point)?;
        let seen = self.hear()?;
        match seen == point {
            true => Ok(()),
            false => Err(ControlError::Unexpected {
                expected: point.to_owned(),
                seen,
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

/// How an operation went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// How many requests, round trips aside.
    pub requests: u64,
    /// How long they took together, checks aside.
    pub elapsed: Duration,
    /// From posting to completion of one request alone: the median.
    pub median: Duration,
    /// The time that 99 of 100 did not exceed.
    pub percentile_99: Duration,
}

/// What a peer reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// The connection is there.
    Connected,
    /// So many requests of an operation are done.
    Progress(Operation, u64),
    /// An operation is done and verified.
    Done(Operation, Measured),
    /// All is done and verified.
    Finished,
    /// The other peer has ended, for a reason that it knows.
    Deserted,
    /// It went wrong, and why.
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
            Report::Deserted => write!(f, "deserted"),
            Report::Failed(why) => write!(f, "failed {}", why.replace('\n', " ")),
        }
    }
}

impl FromStr for Report {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        parse_report(line).ok_or_else(|| format!("cannot understand the report `{line}`"))
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
        "deserted" => Report::Deserted,
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
    fn reports_come_back_as_they_went() {
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
            Report::Deserted,
            Report::Failed("word 3: expected 1, saw 2".to_owned()),
        ];
        for report in reports {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
        assert!("nonsense".parse::<Report>().is_err());
        assert!("done 99 1 2 3 4".parse::<Report>().is_err());
    }

    #[test]
    fn peers_meet_and_learn_each_others_address() {
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
            let learnt = control.exchange(address(2));
            control.meet("here").map(|()| learnt)
        });
        let mut control = Control::new(a.into());
        assert_eq!(
            control.exchange(address(1)).expect("an address"),
            address(2)
        );
        control.meet("here").expect("both are there");
        let learnt = other.join().expect("no panic").expect("both are there");
        assert_eq!(learnt.expect("an address"), address(1));
        assert!(matches!(
            control.meet("later"),
            Err(ControlError::Ended | ControlError::Io(_))
        ));
    }
}
