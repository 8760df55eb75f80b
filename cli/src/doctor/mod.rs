//! `urxe doctor`: checks what urxe needs on this host and on the path to a peer, and names the
//! remedy where something is missing.

mod check;
mod host;
mod probe;

use std::io::{self, Write as _};
use std::net::IpAddr;
use std::process::ExitCode;

use check::{Check, Verdict};

/// Check what urxe needs on this host, and on the path to a peer
#[derive(clap::Args)]
#[command(
    after_help = "Exit status: 0 if everything necessary works, with or without warnings; 1 if \
                  something necessary does not work. For the path to PEER, run `urxe doctor \
                  --listen` there."
)]
pub struct Arguments {
    /// Address of a host on which `urxe doctor --listen` runs
    #[arg(conflicts_with = "listen")]
    peer: Option<IpAddr>,
    /// Answer the probes of other hosts until the command is interrupted
    #[arg(long)]
    listen: bool,
    /// Print one line of JSON per check
    #[arg(long, conflicts_with = "listen")]
    json: bool,
}

/// Runs the checks and prints each result at once, or answers probes.
pub fn doctor(arguments: &Arguments) -> ExitCode {
    if arguments.listen {
        return match probe::listen() {
            Ok(never) => match never {},
            Err(error) => {
                eprintln!("urxe doctor: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let mut works = true;
    let mut report = |check: Check| {
        works &= check.verdict != Verdict::Failure;
        let line = match arguments.json {
            true => check.json(),
            false => check.line(),
        };
        // A failed write means that the reader closed the pipe, which is no error.
        let _ = io::stdout().write_all(line.as_bytes());
    };
    host::checks().for_each(&mut report);
    if let Some(peer) = arguments.peer {
        report(probe::peer(peer));
    }
    match works {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_follows_on_a_line_of_its_own() {
        let check = Check::warning("clock", "hpet", "use tsc");
        assert_eq!(
            check.line(),
            "warning  clock        hpet\n                      use tsc\n"
        );
        let json: serde_json::Value = serde_json::from_str(&check.json()).expect("JSON");
        assert_eq!(json["verdict"], "warning");
        assert_eq!(json["remedy"], "use tsc");
    }

    #[test]
    fn success_has_no_remedy() {
        let json: serde_json::Value =
            serde_json::from_str(&Check::ok("clock", "tsc").json()).expect("JSON");
        assert!(json["remedy"].is_null());
    }
}
