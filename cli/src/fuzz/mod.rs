//! `urxe fuzz`: checks whether another RoCE stack conforms to the specification.
//!
//! The fuzzer sends one packet at a time to one peer over one connection. Many packets break a
//! rule; the ICRC is valid unless that is the broken rule. The peer's responses are compared with
//! those that the specification allows. Each packet waits for the response to its predecessor, so
//! the peer is not flooded.

mod connection;
mod link;
mod oracle;
mod packets;
mod report;
mod rng;
mod run;
mod verdict;

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use urxe_proto::ids::{Qpn, RKey};
use urxe_proto::psn::Psn;

use crate::number;
use connection::{ConnectError, Connection, Grant};
use link::Link;
use run::{CaseEnd, ConnectionSource, Run};

/// The default port of librdmacm's examples.
const PORT: u16 = 7471;
const PACKETS: u64 = 10_000;
/// The default response timeout in milliseconds, sufficient for a peer on a busy machine.
const DEFAULT_TIMEOUT_MS: u64 = 2000;

/// Send malformed and valid packets to a RoCE peer and check its responses
#[derive(clap::Args)]
#[command(
    after_help = "Sends invalid packets, many of which end the connection; the fuzzer connects \
                  again each time. Run it only against a program that exists for the test. \
                  The peer listens through the RDMA CM, as `rping -s` does. In the private data \
                  of its REP it may grant memory: `urxe`, address (8 bytes), rkey, length, and \
                  size of each receive (4 bytes each), in network byte order. Alternatively, name \
                  a queue pair that is already connected.\n\n\
                  Exit status: 0 if all responses conform to the specification; 1 if one violates \
                  it; 2 on errors, such as a peer that cannot be reached."
)]
pub struct Arguments {
    /// Address of the peer
    peer: IpAddr,
    /// Port on which the peer listens
    #[arg(long, default_value_t = PORT, value_parser = number::within(0..=u16::MAX))]
    port: u16,
    /// Local address, whose UDP port 4791 must be free [default: the source address for the peer]
    #[arg(long)]
    from: Option<IpAddr>,
    /// Seed of the test cases [default: random]
    #[arg(long, value_parser = number::within(0..=u64::MAX))]
    seed: Option<u64>,
    /// Number of packets to send; the last test case is completed
    #[arg(long, default_value_t = PACKETS, value_parser = number::within(0..=u64::MAX))]
    packets: u64,
    /// Time to wait for a required response, in milliseconds
    #[arg(long, default_value_t = DEFAULT_TIMEOUT_MS, value_parser = number::within(1..=u64::MAX))]
    timeout: u64,
    /// Repeat one test case and print each packet
    #[arg(long, value_name = "SEED:CASE", value_parser = case, conflicts_with_all = ["seed", "packets"])]
    replay: Option<(u64, u64)>,
    /// Print the report as one line of JSON
    #[arg(long, conflicts_with = "replay")]
    json: bool,
    #[command(flatten)]
    given: ExistingConnection,
}

/// The parameters of an established connection.
#[derive(clap::Args)]
#[command(next_help_heading = "Without the RDMA CM")]
struct ExistingConnection {
    /// Queue pair number of the peer, which must use a path MTU of 256 bytes
    #[arg(long, requires_all = ["own_qpn", "psn"], conflicts_with = "port")]
    qpn: Option<u32>,
    /// Queue pair number to which the peer is connected
    #[arg(long, requires = "qpn")]
    own_qpn: Option<u32>,
    /// PSN that the peer expects
    #[arg(long, requires = "qpn")]
    psn: Option<u32>,
    /// rkey of the memory that the peer grants
    #[arg(long, requires_all = ["qpn", "addr", "len", "receive"])]
    rkey: Option<u32>,
    /// Address of the granted memory
    #[arg(long, requires = "rkey")]
    addr: Option<u64>,
    /// Length of the granted memory in bytes
    #[arg(long, requires = "rkey")]
    len: Option<u32>,
    /// Size of the peer's receive buffers in bytes
    #[arg(long, requires = "rkey")]
    receive: Option<u32>,
}

impl ExistingConnection {
    fn connection(&self) -> Option<Connection> {
        let grant = match (self.addr, self.rkey, self.len, self.receive) {
            (Some(addr), Some(rkey), Some(len), Some(receive)) => Some(Grant {
                addr,
                rkey: RKey(rkey),
                len,
                receive,
            }),
            _ => None,
        };
        Some(Connection {
            own_qpn: Qpn::new(self.own_qpn?),
            qpn: Qpn::new(self.qpn?),
            psn: Psn::new(self.psn?),
            grant,
            ids: None,
        })
    }
}

fn case(text: &str) -> Result<(u64, u64), String> {
    let numbers = text
        .split_once(':')
        .and_then(|(seed, case)| Some((seed.parse().ok()?, case.parse().ok()?)));
    numbers.ok_or_else(|| "expected a seed and a case number, such as 4711:12".to_owned())
}

/// Runs the fuzzer.
pub fn fuzz(arguments: &Arguments) -> ExitCode {
    match try_peer(arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("urxe fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns the number of violations of the specification.
fn try_peer(arguments: &Arguments) -> Result<u64, ConnectError> {
    let link = Link::open(arguments.peer, arguments.from)?;
    let source = match arguments.given.connection() {
        Some(connection) => ConnectionSource::ExistingConnection(connection),
        None => ConnectionSource::Cm(arguments.port),
    };
    let (seed, first) = match arguments.replay {
        Some(replay) => replay,
        None => (
            arguments
                .seed
                .unwrap_or_else(|| rand::random::<u32>().into()),
            0,
        ),
    };
    let timeout = Duration::from_millis(arguments.timeout);
    let mut run = Run::new(&link, source, seed, timeout, arguments.replay.is_some());
    let result = cases(&mut run, arguments, first);
    // Without a packet the error alone says what happened.
    if result.is_ok() || run.report.packets > 0 {
        match arguments.json {
            true => println!("{}", run.report.json(seed)),
            false => println!("seed {seed}: {}", run.report),
        }
    }
    result?;
    Ok(run.report.violations())
}

fn cases(run: &mut Run<'_>, arguments: &Arguments, first: u64) -> Result<(), ConnectError> {
    for number in first.. {
        if let CaseEnd::NoConnection = run.case(number)? {
            break;
        }
        if arguments.replay.is_some() || run.report.packets >= arguments.packets {
            break;
        }
    }
    run.end()
}
