//! `urxe demo`: two processes of this host connect through the verbs C API of `liburxe.so`,
//! perform every operation of a reliable connection, and verify every byte.
//!
//! The command starts itself twice ([`mod@peer`]). The peers' standard inputs are the two ends of a
//! socket pair. The command reads their reports ([`control`]) from their standard outputs.

mod chain;
mod control;
mod pattern;
mod peer;
mod pingpong;
mod plan;
mod process;
mod verbs;

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Value, json};
use urxe_driver::Device;
use urxe_driver::device::{self, devices_by_name};
use urxe_proto::ids::Gid;
use urxe_proto::mtu::Mtu;

use crate::devices::{align, explain_none};
use crate::library::{self, LibraryError};
use control::{ControlError, Measured, Report};
use peer::{PeerError, Role, Setup};
use plan::{Operation, Plan};
use process::{own_path, print};

/// The time without any report after which the demo fails. Peers report their own stalls earlier.
const REPORT_TIMEOUT: Duration = Duration::from_secs(120);
/// The time that the second peer has to report its failure after the first one did.
const SECOND_FAILURE_TIMEOUT: Duration = Duration::from_secs(2);

/// Transfer data between two processes on this host and verify every byte
#[derive(clap::Args)]
#[command(
    after_help = "Exit status: 0 if all bytes match and each atomic was executed once; 1 \
                        otherwise, and if the processes cannot be started."
)]
pub struct Arguments {
    /// Device to use [default: that of the loopback interface]
    #[arg(long, short)]
    device: Option<String>,
    /// Index of the GID to use, as `urxe devices` shows it
    #[arg(long, short, default_value_t = 0)]
    gid_index: u8,
    /// Path MTU in bytes [default: the largest that fits the interface]
    #[arg(long, short, value_parser = plan::parse_mtu)]
    mtu: Option<Mtu>,
    #[command(flatten)]
    plan: Plan,
    /// Do not run `ibv_rc_pingpong`, which otherwise runs where it is installed
    #[arg(long)]
    skip_pingpong: bool,
    /// Print one line of JSON; implies --skip-pingpong
    #[arg(long)]
    json: bool,
}

/// One of the demo's two processes
#[derive(clap::Args)]
pub struct PeerArguments {
    #[arg(long)]
    role: Role,
    #[arg(long)]
    library: PathBuf,
    #[arg(long)]
    device: String,
    #[arg(long)]
    gid_index: u8,
    #[arg(long, value_parser = plan::parse_mtu)]
    mtu: Mtu,
    #[command(flatten)]
    plan: Plan,
}

/// An error that prevents the demo, or its failure.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error(transparent)]
    Library(#[from] LibraryError),
    #[error("cannot list the devices: {0}")]
    Interfaces(#[source] io::Error),
    #[error("{0}")]
    NoDevice(String),
    #[error("no device {name}; the devices of this host are {known} (see `urxe devices`)")]
    UnknownDevice { name: String, known: String },
    #[error("{device} has no GID with index {index}; its GIDs are {known}")]
    NoGid {
        device: String,
        index: u8,
        known: String,
    },
    #[error(
        "path MTU {mtu} does not fit {interface}, whose MTU is {interface_mtu}: use at most {most}",
        mtu = .mtu.bytes(), most = .most.bytes()
    )]
    Mtu {
        mtu: Mtu,
        most: Mtu,
        interface: String,
        interface_mtu: u32,
    },
    #[error("cannot start the peer processes: {0}; `urxe doctor` checks what they need")]
    Start(#[source] io::Error),
    #[error("the {0} process: {1}")]
    Peer(&'static str, String),
    #[error("both processes: {0}")]
    Both(String),
    #[error("no report from the peer processes for {} s", REPORT_TIMEOUT.as_secs())]
    NoReport,
}

/// Runs the demo.
pub fn demo(arguments: Arguments) -> ExitCode {
    match show(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("urxe demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one of the two processes.
pub fn peer(arguments: PeerArguments) -> ExitCode {
    // A peer ends with its parent; this fails only on systems without the call.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::debug!(%error, "will not end with its parent");
    }
    let mut out = io::stdout().lock();
    let mut report = |report: Report| {
        writeln!(out, "{report}")?;
        out.flush()
    };
    let setup = Setup {
        role: arguments.role,
        library: &arguments.library,
        device: &arguments.device,
        gid_index: arguments.gid_index,
        mtu: arguments.mtu,
        plan: &arguments.plan,
    };
    match peer::run(&setup, &mut report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let last = match &error {
                PeerError::Control(ControlError::Ended) => Report::PeerGone,
                error => Report::Failed(error.to_string()),
            };
            if report(last).is_err() {
                eprintln!("urxe demo: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

fn show(arguments: &Arguments) -> Result<ExitCode, DemoError> {
    let library = library::find(library::LIBRARY)?;
    let device = choose(arguments.device.as_deref())?;
    let gid = find_gid(&device, arguments.gid_index)?;
    let mtu = find_mtu(&device, arguments.mtu)?;
    if !arguments.json {
        print(&format!(
            "Two processes on {} ({gid}), path MTU {}, messages of {}\n",
            device.name(),
            mtu.bytes(),
            plan::show_size(arguments.plan.size),
        ));
    }
    let common = [
        ("--library", library.into_os_string()),
        ("--device", device.name().into()),
        ("--gid-index", arguments.gid_index.to_string().into()),
        ("--mtu", mtu.bytes().to_string().into()),
    ];
    let mut common: Vec<OsString> = common
        .into_iter()
        .flat_map(|(name, value)| [name.into(), value])
        .collect();
    common.extend(arguments.plan.to_arguments());

    let mut peers = Peers::start(device.name(), &common)?;
    let measured = peers.follow(&arguments.plan)?;
    if arguments.json {
        let operations = operations_json(&arguments.plan, &measured);
        let document = json!({
            "device": device.name(),
            "gid": gid.to_string(),
            "path_mtu": mtu.bytes(),
            "size": arguments.plan.size,
            "operations": operations,
        });
        print(&document.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    print(&table(&arguments.plan, &measured));
    if arguments.skip_pingpong {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(pingpong::show(device.name(), arguments.gid_index))
}

/// Returns the device of this name; without a name the loopback device, or else the first.
fn choose(name: Option<&str>) -> Result<Arc<Device>, DemoError> {
    let mut found = devices_by_name().map_err(DemoError::Interfaces)?;
    if found.is_empty() {
        return Err(DemoError::NoDevice(explain_none()));
    }
    let at = match name {
        None => found
            .iter()
            .position(|device| device.is_loopback())
            .or(Some(0)),
        Some(name) => found.iter().position(|device| device.name() == name),
    };
    match (at, name) {
        (Some(at), _) => Ok(found.swap_remove(at)),
        (None, name) => Err(DemoError::UnknownDevice {
            name: name.unwrap_or_default().to_owned(),
            known: found
                .iter()
                .map(|device| device.name())
                .collect::<Vec<_>>()
                .join(", "),
        }),
    }
}

fn find_gid(device: &Device, index: u8) -> Result<Gid, DemoError> {
    device
        .gid(usize::from(index))
        .ok_or_else(|| DemoError::NoGid {
            device: device.name().to_owned(),
            index,
            known: device
                .gids()
                .into_iter()
                .map(|(index, ip)| format!("{index} ({ip})"))
                .collect::<Vec<_>>()
                .join(", "),
        })
}

fn find_mtu(device: &Device, requested: Option<Mtu>) -> Result<Mtu, DemoError> {
    let most = device.active_mtu();
    match requested {
        Some(mtu) if mtu > most => Err(DemoError::Mtu {
            mtu,
            most,
            interface: device.interface().to_owned(),
            interface_mtu: device.interface_mtu(),
        }),
        requested => Ok(requested.unwrap_or(most)),
    }
}

/// The two processes. Dropping this kills those that still run.
struct Peers {
    children: Vec<(&'static str, Child)>,
    reports: Receiver<Event>,
}

/// An event from a peer's standard output.
enum Event {
    Report(&'static str, Report),
    /// The peer closed it and ends.
    Closed(&'static str),
}

impl Peers {
    fn start(device: &str, common: &[OsString]) -> Result<Self, DemoError> {
        let (sender, reports) = mpsc::channel();
        let mut peers = Self {
            children: Vec::new(),
            reports,
        };
        let (first, second) = UnixStream::pair().map_err(DemoError::Start)?;
        for (role, socket) in [(Role::Responder, first), (Role::Requester, second)] {
            let name = match role {
                Role::Responder => "responder",
                Role::Requester => "requester",
            };
            let child = start_peer(role, socket.into(), device, common, name, &sender);
            peers
                .children
                .push((name, child.map_err(DemoError::Start)?));
        }
        Ok(peers)
    }

    /// Processes the reports until the peers end, with a progress bar on a terminal.
    fn follow(&mut self, plan: &Plan) -> Result<Vec<(Operation, Measured)>, DemoError> {
        let bar = progress_bar();
        let mut measured: Vec<(Operation, Measured)> = Vec::new();
        let (mut finished, mut peer_gone) = (Vec::new(), Vec::new());
        let result = loop {
            match self.reports.recv_timeout(REPORT_TIMEOUT) {
                Ok(Event::Report(_, Report::Connected)) => {}
                Ok(Event::Report(_, Report::Progress(operation, requests))) => {
                    let share = requests as f64 / plan.requests(operation) as f64;
                    bar.set_message(operation.to_string());
                    bar.set_position(operation as u64 * BAR + (share * BAR as f64) as u64);
                }
                Ok(Event::Report(_, Report::Done(operation, result))) => {
                    measured.push((operation, result));
                }
                Ok(Event::Report(name, Report::Finished)) => finished.push(name),
                Ok(Event::Report(name, Report::Failed(why))) => {
                    break Err(self.failure(name, why));
                }
                // The other peer reports the cause.
                Ok(Event::Report(name, Report::PeerGone)) => peer_gone.push(name),
                Ok(Event::Closed(name)) if finished.contains(&name) => {
                    if finished.len() == self.children.len() {
                        break Ok(measured);
                    }
                }
                Ok(Event::Closed(name)) if peer_gone.contains(&name) => {}
                Ok(Event::Closed(name)) => break Err(DemoError::Peer(name, self.end_of(name))),
                Err(RecvTimeoutError::Timeout) => break Err(DemoError::NoReport),
                Err(RecvTimeoutError::Disconnected) => break Ok(measured),
            }
        };
        bar.finish_and_clear();
        result
    }

    /// Returns the failure of one peer, together with that of the other if it fails too.
    fn failure(&mut self, name: &'static str, why: String) -> DemoError {
        while let Ok(event) = self.reports.recv_timeout(SECOND_FAILURE_TIMEOUT) {
            match event {
                Event::Report(other, Report::Failed(also)) if other != name => {
                    return match also == why {
                        true => DemoError::Both(why),
                        false => {
                            DemoError::Peer(name, format!("{why}; the {other} process: {also}"))
                        }
                    };
                }
                Event::Closed(other) if other != name => break,
                _ => {}
            }
        }
        DemoError::Peer(name, why)
    }

    /// Describes how a peer ended that reported no failure.
    fn end_of(&mut self, name: &'static str) -> String {
        let child = self.children.iter_mut().find(|(other, _)| *other == name);
        match child.map(|(_, child)| child.wait()) {
            Some(Ok(status)) => format!("ended early with {status}"),
            Some(Err(error)) => format!("ended early: {error}"),
            None => "not started".to_owned(),
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            // Fails if the process has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start_peer(
    role: Role,
    socket: OwnedFd,
    device: &str,
    common: &[OsString],
    name: &'static str,
    reports: &Sender<Event>,
) -> io::Result<Child> {
    let role = role.to_possible_value().expect("no role is hidden");
    let mut child = Command::new(own_path())
        .args(["demo-peer", "--role", role.get_name()])
        .args(common)
        // The loopback device is usually not among the devices by default.
        .env(device::VARIABLE, device)
        .stdin(Stdio::from(socket))
        .stdout(Stdio::piped())
        .spawn()?;
    let out = child.stdout.take();
    let reports = reports.clone();
    thread::spawn(move || {
        // After a failure the receiver has been dropped, and sends fail.
        for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()) {
            let report = line
                .map_err(|error| error.to_string())
                .and_then(|line| line.parse());
            let report = report.unwrap_or_else(Report::Failed);
            let _ = reports.send(Event::Report(name, report));
        }
        let _ = reports.send(Event::Closed(name));
    });
    Ok(child)
}

/// The length of the progress bar for each operation.
const BAR: u64 = 1000;

/// Returns a progress bar over all operations, which is visible only on a terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(Operation::ALL.len() as u64 * BAR);
    let style = ProgressStyle::with_template("{msg:22} {wide_bar} {percent:>3}% {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Formats a rate in bytes per second.
fn show_rate(rate: f64) -> String {
    match rate {
        1e8.. => format!("{:.2} GB/s", rate / 1e9),
        _ => format!("{:.2} MB/s", rate / 1e6),
    }
}

fn operations_json(plan: &Plan, measured: &[(Operation, Measured)]) -> Vec<Value> {
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    let row = |(operation, measured): &(Operation, Measured)| {
        let bytes = match operation.is_atomic() {
            true => 8,
            false => plan.size,
        };
        json!({
            "operation": operation.to_string(),
            "requests": measured.requests,
            "bytes": measured.requests * bytes,
            "seconds": measured.elapsed.as_secs_f64(),
            "latency_us": {
                "p50": micros(measured.median),
                "p99": micros(measured.percentile_99),
            },
        })
    };
    measured.iter().map(row).collect()
}

const HEADINGS: [&str; 5] = ["OPERATION", "VERIFIED", "RATE", "LATENCY", "99%"];

fn table(plan: &Plan, measured: &[(Operation, Measured)]) -> String {
    let mut rows = vec![HEADINGS.map(String::from).to_vec()];
    for (operation, measured) in measured {
        let Measured {
            requests,
            elapsed,
            median,
            percentile_99,
        } = measured;
        let seconds = elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let bytes = requests * plan.size;
        let (amount, rate) = match operation.is_atomic() {
            true => (
                format!("{requests} times"),
                format!("{:.1} k/s", *requests as f64 / seconds / 1e3),
            ),
            false => (plan::show_size(bytes), show_rate(bytes as f64 / seconds)),
        };
        let micros = |time: &Duration| format!("{:.1} us", time.as_nanos() as f64 / 1e3);
        let (median, percentile_99) = (micros(median), micros(percentile_99));
        rows.push(vec![
            operation.to_string(),
            amount,
            rate,
            median,
            percentile_99,
        ]);
    }
    format!(
        "{}\n\nAll bytes match, and each atomic was executed exactly once.\nLATENCY is the time of \
         a single request from posting to completion, the median and the\n99th percentile, for {} \
         bytes (atomics: 8 bytes).\n",
        align(&rows).join("\n"),
        plan.round_trips().size,
    )
}
