//! `urxe ping` and `urxe perf`: latency and throughput between two hosts, by the Rust API.

mod client;
mod error;
mod latency;
mod server;
mod session;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value, json};
use urxe_driver::device;

use client::Measured;
use error::PerfError;
pub use latency::show as show_time;
use latency::{PERCENTILES, show};
use session::{MAX_SIZE, Operation, PORT, Session, WORD};

use crate::devices::explain_none;
use crate::number;

/// The most queue pairs, and the most outstanding operations of each.
const MAX_QPS: u32 = 512;
const MAX_DEPTH: u32 = 4096;

/// Send messages that a peer sends back, and show the round trips
#[derive(clap::Args)]
#[command(
    override_usage = "urxe ping [OPTIONS] PEER\n       urxe ping --listen [--port PORT]",
    after_help = "PEER runs `urxe ping --listen`; one listener also serves `urxe perf`.\n\n\
                  Exit status: 0 if every message came back; 1 if the peer cannot be reached or \
                  the connection fails."
)]
pub struct PingArguments {
    #[command(flatten)]
    end: End,
    /// Messages to send
    #[arg(long, short, default_value_t = 10, value_parser = number::within(1..=u64::MAX))]
    count: u64,
    /// Seconds between two messages
    #[arg(long, short, default_value = "0.2", value_parser = seconds, allow_negative_numbers = true)]
    interval: Duration,
    /// Bytes of a message
    #[arg(long, short, default_value_t = 64, value_parser = number::within(1..=MAX_SIZE))]
    size: u32,
}

/// Measure throughput and latency to a peer
#[derive(clap::Args)]
#[command(
    override_usage = "urxe perf [OPTIONS] PEER\n       urxe perf --listen [--port PORT]",
    after_help = "PEER runs `urxe perf --listen`; one listener also serves `urxe ping`. The \
                  latency is that of one operation, with all others outstanding: --depth 1 \
                  measures it alone. The CPU time is that of this process.\n\n\
                  Exit status: 0 if the measurement is complete; 1 if the peer cannot be reached \
                  or the connection fails."
)]
pub struct PerfArguments {
    #[command(flatten)]
    end: End,
    /// Operation to repeat
    #[arg(long, default_value = "write")]
    op: Operation,
    /// Bytes of an operation; atomics always have 8
    #[arg(long, short, default_value_t = 65536, value_parser = number::within(1..=MAX_SIZE))]
    size: u32,
    /// Queue pairs, each with a connection
    #[arg(long, default_value_t = 1, value_parser = number::within(1..=MAX_QPS))]
    qps: u32,
    /// Operations outstanding on each queue pair
    #[arg(long, default_value_t = 16, value_parser = number::within(1..=MAX_DEPTH))]
    depth: u32,
    /// Seconds to measure
    #[arg(long, short, default_value = "5", value_parser = seconds, allow_negative_numbers = true)]
    duration: Duration,
}

/// The two ends of a measurement.
#[derive(clap::Args)]
struct End {
    /// Name or address of the host that listens
    #[arg(required_unless_present = "listen", conflicts_with = "listen")]
    peer: Option<String>,
    /// Serve other hosts until the command is interrupted
    #[arg(long)]
    listen: bool,
    /// Port of the connection manager
    #[arg(long, short, default_value_t = PORT, value_parser = number::within(0..=u16::MAX))]
    port: u16,
    /// Print one line of JSON
    #[arg(long, conflicts_with = "listen")]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "expected a number of seconds, such as 0.5".to_owned())
}

/// Fails if no interface has a device.
fn require_device() -> Result<(), PerfError> {
    match device::devices() {
        Ok(devices) if devices.is_empty() => Err(PerfError::NoDevice(explain_none())),
        // The first use of a device reports why they cannot be listed.
        _ => Ok(()),
    }
}

/// Runs `urxe ping`.
pub fn ping(arguments: &PingArguments) -> ExitCode {
    finish("ping", run_ping(arguments))
}

/// Runs `urxe perf`.
pub fn perf(arguments: &PerfArguments) -> ExitCode {
    finish("perf", run_perf(arguments))
}

fn finish(command: &str, result: Result<(), PerfError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urxe {command}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_ping(arguments: &PingArguments) -> Result<(), PerfError> {
    require_device()?;
    let Some(peer) = &arguments.end.peer else {
        return server::listen(arguments.end.port);
    };
    let peer = resolve(peer, arguments.end.port)?;
    let session = Session {
        operation: Operation::Ping,
        size: arguments.size,
    };
    let each = |number, round_trip| {
        if !arguments.end.json {
            let round_trip = show(round_trip);
            print(&format!(
                "{} bytes from {}: message {number}, {round_trip}\n",
                arguments.size,
                peer.ip()
            ));
        }
    };
    let measured = client::ping(peer, session, arguments.count, arguments.interval, each)?;
    print(&match arguments.end.json {
        true => ping_json(peer, session, &measured),
        false => format!("\n{}", distribution(&measured)),
    });
    Ok(())
}

fn run_perf(arguments: &PerfArguments) -> Result<(), PerfError> {
    require_device()?;
    let Some(peer) = &arguments.end.peer else {
        return server::listen(arguments.end.port);
    };
    let peer = resolve(peer, arguments.end.port)?;
    let size = match arguments.op {
        Operation::Atomic => WORD,
        _ => arguments.size,
    };
    let session = Session {
        operation: arguments.op,
        size,
    };
    let PerfArguments {
        qps,
        depth,
        duration,
        ..
    } = *arguments;
    let measured = client::measure(peer, session, qps, depth, duration)?;
    print(&match arguments.end.json {
        true => perf_json(peer, session, arguments, &measured),
        false => perf_text(peer, session, arguments, &measured),
    });
    Ok(())
}

fn resolve(peer: &str, port: u16) -> Result<SocketAddr, PerfError> {
    let addresses = (peer, port).to_socket_addrs();
    let mut addresses = addresses.map_err(|source| PerfError::Name {
        peer: peer.to_owned(),
        source,
    })?;
    addresses
        .next()
        .ok_or_else(|| PerfError::NoAddress(peer.to_owned()))
}

/// Writes to standard output. A failed write means that the reader closed the pipe.
fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

impl Measured {
    fn bytes(&self, session: Session) -> u64 {
        self.operations * u64::from(session.size)
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The CPU time for each 10^9 bytes, in seconds.
    fn cpu_per_gigabyte(&self, session: Session) -> f64 {
        self.cpu.as_secs_f64() * 1e9 / self.bytes(session).max(1) as f64
    }
}

fn perf_text(
    peer: SocketAddr,
    session: Session,
    arguments: &PerfArguments,
    measured: &Measured,
) -> String {
    let bytes_per_second = measured.per_second(measured.bytes(session));
    let mut text = format!(
        "{} of {} bytes to {}, queue pairs: {}, depth: {}, {:.2} s\n\n\
         throughput     {:.3} GB/s ({:.2} Gbit/s), {:.0} operations/s\n\
         CPU            {:.3} s/GB, {:.2} us/operation, {:.0}% of a processor\n",
        session.operation.name(),
        session.size,
        peer.ip(),
        arguments.qps,
        arguments.depth,
        measured.elapsed.as_secs_f64(),
        bytes_per_second / 1e9,
        bytes_per_second * 8.0 / 1e9,
        measured.per_second(measured.operations),
        measured.cpu_per_gigabyte(session),
        measured.cpu.as_secs_f64() * 1e6 / measured.operations.max(1) as f64,
        100.0 * measured.cpu.as_secs_f64() / measured.elapsed.as_secs_f64(),
    );
    text += &distribution(measured);
    text
}

/// Retransmissions, percentiles and the histogram.
fn distribution(measured: &Measured) -> String {
    let Measured {
        retransmitted,
        timeouts,
        rnr_naks,
        latencies,
        ..
    } = measured;
    let mut text = format!(
        "retransmitted  {retransmitted} packets, {timeouts} timeouts, {rnr_naks} RNR NAKs\n\
         latency        min {}",
        show(latencies.min())
    );
    for (number, (name, percent)) in PERCENTILES.into_iter().enumerate() {
        // Two lines, for terminals with 80 columns.
        let separator = if number == PERCENTILES.len() / 2 {
            ",\n               "
        } else {
            ", "
        };
        let _ = write!(
            text,
            "{separator}{name} {}",
            show(latencies.percentile(percent))
        );
    }
    text + "\n\n" + &latencies.draw()
}

fn common_json(peer: SocketAddr, session: Session, measured: &Measured) -> Map<String, Value> {
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    let mut latency = Map::new();
    latency.insert("min".into(), json!(micros(measured.latencies.min())));
    for (name, percent) in PERCENTILES {
        let value = micros(measured.latencies.percentile(percent));
        latency.insert(name.into(), json!(value));
    }
    let fields = [
        ("peer", json!(peer.ip())),
        ("op", json!(session.operation.name())),
        ("size", json!(session.size)),
        ("seconds", json!(measured.elapsed.as_secs_f64())),
        ("operations", json!(measured.operations)),
        ("latency_us", Value::Object(latency)),
        ("cpu_seconds", json!(measured.cpu.as_secs_f64())),
        ("retransmitted", json!(measured.retransmitted)),
        ("timeouts", json!(measured.timeouts)),
        ("rnr_naks", json!(measured.rnr_naks)),
    ];
    let fields = fields.map(|(name, value)| (name.to_owned(), value));
    fields.into_iter().collect()
}

fn ping_json(peer: SocketAddr, session: Session, measured: &Measured) -> String {
    format!("{}\n", Value::Object(common_json(peer, session, measured)))
}

fn perf_json(
    peer: SocketAddr,
    session: Session,
    arguments: &PerfArguments,
    measured: &Measured,
) -> String {
    let mut report = common_json(peer, session, measured);
    let bytes = measured.bytes(session);
    let more = [
        ("qps", json!(arguments.qps)),
        ("depth", json!(arguments.depth)),
        ("bytes", json!(bytes)),
        ("bytes_per_second", json!(measured.per_second(bytes))),
        (
            "operations_per_second",
            json!(measured.per_second(measured.operations)),
        ),
        (
            "cpu_seconds_per_gigabyte",
            json!(measured.cpu_per_gigabyte(session)),
        ),
    ];
    report.extend(more.map(|(name, value)| (name.to_owned(), value)));
    format!("{}\n", Value::Object(report))
}
