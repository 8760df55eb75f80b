//! The `urxe` command: lists devices, runs programs over urxe, shows their counters, and
//! demonstrates and fuzzes transfers. Each subcommand has its own module. Under the name `rdma` it
//! is the command of iproute2.

mod demo;
mod devices;
mod dissect;
mod doctor;
mod elf;
mod embedded;
mod environment;
mod fuzz;
mod headers;
mod installed;
mod launch;
mod library;
mod number;
mod pages;
mod perf;
mod private;
mod rdma;
mod run;
mod stat;
mod sysfs;
mod top;
mod vendored;
mod which;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use run::LOG;

/// RDMA verbs in user space: RoCEv2 without a NIC, a kernel module or root.
#[derive(Parser)]
#[command(
    name = "urxe",
    version,
    arg_required_else_help = true,
    after_help = "Examples:\n  \
                  urxe demo                        Transfer data between two processes\n  \
                  urxe run -- ibv_devinfo          Run a verbs program over urxe\n  \
                  urxe run --pcap out.pcapng -- ibv_rc_pingpong -g 0\n                                   \
                  Capture its packets for Wireshark"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Devices(devices::Arguments),
    Run(run::Arguments),
    Shell(run::ShellArguments),
    Env(environment::Arguments),
    Stat(stat::Arguments),
    Top(top::Arguments),
    Doctor(doctor::Arguments),
    Dissect(dissect::Arguments),
    Ping(perf::PingArguments),
    Perf(perf::PerfArguments),
    Demo(demo::Arguments),
    Fuzz(fuzz::Arguments),
    Completions(pages::CompletionArguments),
    #[command(hide = true)]
    Manual(pages::ManualArguments),
    #[command(hide = true)]
    SysfsTrial,
    #[command(hide = true)]
    SysfsCounters(sysfs::CounterArguments),
    #[command(hide = true)]
    DemoPeer(demo::PeerArguments),
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let arguments = (!rdma::is_called(&words)).then(|| parse(&words));
    if let Err(error) = start_log() {
        eprintln!(
            "urxe: invalid {LOG}: {error}; use a level, such as {LOG}=debug or \
             {LOG}=urxe_driver=trace"
        );
        let executes = |arguments: &Arguments| {
            matches!(arguments.command, Command::Run(_) | Command::Shell(_))
        };
        return match arguments.as_ref().is_some_and(executes) {
            true => ExitCode::from(run::OWN_FAILURE),
            false => ExitCode::FAILURE,
        };
    }
    let Some(arguments) = arguments else {
        return rdma::rdma(&words[1..]);
    };
    match arguments.command {
        Command::Devices(arguments) => devices::devices(&arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Shell(arguments) => run::shell(arguments),
        Command::Env(arguments) => environment::environment(&arguments),
        Command::Stat(arguments) => stat::stat(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Dissect(arguments) => dissect::dissect(&arguments),
        Command::Ping(arguments) => perf::ping(&arguments),
        Command::Perf(arguments) => perf::perf(&arguments),
        Command::Demo(arguments) => demo::demo(arguments),
        Command::Fuzz(arguments) => fuzz::fuzz(&arguments),
        Command::Completions(arguments) => pages::completions(&arguments, Arguments::command()),
        Command::Manual(arguments) => pages::manual(&arguments, Arguments::command()),
        Command::SysfsTrial => sysfs::trial(),
        Command::SysfsCounters(arguments) => sysfs::counters(arguments),
        Command::DemoPeer(arguments) => demo::peer(arguments),
    }
}

/// Parses the command line. Ends the process if it is wrong, or asks for help.
fn parse(words: &[OsString]) -> Arguments {
    Arguments::try_parse_from(words).unwrap_or_else(|error| {
        // A failed write means that the reader closed the pipe.
        let _ = error.print();
        let executes = words
            .get(1)
            .is_some_and(|word| word == "run" || word == "shell");
        // 2 could be the status of the program that these subcommands execute.
        let status = match error.use_stderr() && executes {
            true => run::OWN_FAILURE.into(),
            false => error.exit_code(),
        };
        std::process::exit(status)
    })
}

/// Starts logging to standard error if [`LOG`] is set.
fn start_log() -> Result<(), Box<dyn std::error::Error>> {
    let Some(directives) = std::env::var_os(LOG) else {
        return Ok(());
    };
    let filter = EnvFilter::try_new(directives.to_string_lossy())?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}
