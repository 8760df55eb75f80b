//! The `urxe` command: what this host's devices are, how to run programs over urxe, what
//! these count, and a demonstration that needs nothing else. A file a subcommand.

mod demo;
mod devices;
mod environment;
mod fuzz;
mod installed;
mod launch;
mod library;
mod run;
mod stat;
mod sysfs;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// The variable that says what to log, in the syntax of `tracing_subscriber::EnvFilter`.
const LOG: &str = "URXE_LOG";

/// RDMA verbs in user space: RoCEv2 without a NIC, a kernel module or root.
#[derive(Parser)]
#[command(name = "urxe", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the devices of this host, and why the other interfaces have none
    Devices,
    Run(run::Arguments),
    /// Print the variables with which programs are built and run over urxe: eval "$(urxe env)"
    Env,
    Stat(stat::Arguments),
    Demo(demo::Arguments),
    Fuzz(fuzz::Arguments),
    #[command(hide = true)]
    SysfsTrial,
    #[command(hide = true)]
    SysfsKeeper(sysfs::KeeperArguments),
    #[command(hide = true)]
    DemoPeer(demo::PeerArguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(error) = start_log() {
        eprintln!(
            "urxe: {LOG}: {error}; it takes levels, as in {LOG}=debug or {LOG}=urxe_driver=trace"
        );
        return ExitCode::FAILURE;
    }
    match arguments.command {
        Command::Devices => devices::devices(),
        Command::Run(arguments) => run::run(arguments),
        Command::Env => environment::environment(),
        Command::Stat(arguments) => stat::stat(arguments),
        Command::Demo(arguments) => demo::demo(arguments),
        Command::Fuzz(arguments) => fuzz::fuzz(&arguments),
        Command::SysfsTrial => sysfs::trial(),
        Command::SysfsKeeper(arguments) => sysfs::keeper(arguments),
        Command::DemoPeer(arguments) => demo::peer(arguments),
    }
}

/// Sends what [`LOG`] asks for to standard error; nothing where it is not set.
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
