//! `urxe fuzz`: how well another RoCE stack keeps to the specification.
//!
//! One connection to one peer, one packet at a time: each is made, often with a rule broken, always (but
//! where the rule is that) with the right ICRC; what the peer answers is held against what the
//! specification asks. The next one waits for the answer, so nobody is flooded.

mod connection;
mod link;
mod oracle;
mod packets;
mod report;
mod run;
mod verdict;

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use urxe_proto::ids::{Qpn, RKey};
use urxe_proto::psn::Psn;

use connection::{ConnectError, Connection, Grant};
use link::Link;
use run::{Ending, Run};

/// The generator: the same everywhere, so that a seed means the same everywhere.
type Draw = rand::rngs::Xoshiro256PlusPlus;

/// The port of librdmacm's examples.
const PORT: u16 = 7471;
const PACKETS: u64 = 10_000;
/// Enough for a peer on a busy machine.
const PATIENCE: u64 = 2000;

/// Try how a peer answers to packets that break the rules: only one that you may disturb
#[derive(clap::Args)]
#[command(
    after_help = "The peer is a program that listens by the RDMA CM, as `rping -s` does. Its queue \
                  pairs end and it is asked for connections again and again. When it accepts, it may \
                  grant memory by its private data: `urxe`, address (8 bytes), key, length, and length of each \
                  receive (4 bytes each), the most significant byte first. Or give the numbers of a queue \
                  pair that is connected to ours already. The exit status is 1 where an answer departs \
                  from the specification."
)]
pub struct Arguments {
    /// The address of the peer
    peer: IpAddr,
    /// The port at which it listens
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Our address, whose port 4791 must be free [default: from which the peer is reached]
    #[arg(long)]
    from: Option<IpAddr>,
    /// Where the cases come from [default: any]
    #[arg(long)]
    seed: Option<u64>,
    /// How many packets to send, or a few more
    #[arg(long, default_value_t = PACKETS)]
    packets: u64,
    /// How long an answer may take that must come, in milliseconds
    #[arg(long, default_value_t = PATIENCE, value_parser = clap::value_parser!(u64).range(1..))]
    patience: u64,
    /// One case again, with each of its packets
    #[arg(long, value_name = "SEED:CASE", value_parser = case, conflicts_with_all = ["seed", "packets"])]
    replay: Option<(u64, u64)>,
    #[command(flatten)]
    given: Given,
}

/// A connection that exists.
#[derive(clap::Args)]
#[command(next_help_heading = "Without the RDMA CM")]
struct Given {
    /// The peer's queue pair, with a path MTU of 256 bytes
    #[arg(long, requires_all = ["own_qpn", "psn"], conflicts_with = "port")]
    qpn: Option<u32>,
    /// The queue pair to which it is connected
    #[arg(long, requires = "qpn")]
    own_qpn: Option<u32>,
    /// The PSN that it expects
    #[arg(long, requires = "qpn")]
    psn: Option<u32>,
    /// The key of memory that it grants
    #[arg(long, requires_all = ["qpn", "addr", "len", "receive"])]
    rkey: Option<u32>,
    /// The address of that memory
    #[arg(long, requires = "rkey")]
    addr: Option<u64>,
    /// Its length
    #[arg(long, requires = "rkey")]
    len: Option<u32>,
    /// The length of its receives
    #[arg(long, requires = "rkey")]
    receive: Option<u32>,
}

/// How a connection is had.
#[derive(Clone, Copy)]
enum Way {
    /// Who listens at this port is asked.
    Listener(u16),
    /// It is there.
    Given(Connection),
}

impl Given {
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
    numbers.ok_or_else(|| "a seed and a case, such as 4711:12".to_owned())
}

/// Tries the peer.
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

/// Says how many answers departed.
fn try_peer(arguments: &Arguments) -> Result<u64, ConnectError> {
    let link = Link::open(arguments.peer, arguments.from)?;
    let way = match arguments.given.connection() {
        Some(connection) => Way::Given(connection),
        None => Way::Listener(arguments.port),
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
    let patience = Duration::from_millis(arguments.patience);
    let mut run = Run::new(&link, way, seed, patience, arguments.replay.is_some());
    let went = cases(&mut run, arguments, first);
    println!("seed {seed}: {}", run.report);
    went?;
    Ok(run.report.departed())
}

fn cases(run: &mut Run<'_>, arguments: &Arguments, first: u64) -> Result<(), ConnectError> {
    for number in first.. {
        if let Ending::Over = run.case(number)? {
            break;
        }
        if arguments.replay.is_some() || run.report.packets >= arguments.packets {
            break;
        }
    }
    run.end()
}
