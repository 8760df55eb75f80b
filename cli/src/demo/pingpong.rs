//! Debian's `ibv_rc_pingpong`, unmodified, through `urxe run`: proof by a program that knows
//! nothing of urxe, where it is installed.

use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{own_path, say};
use crate::run::find_program;

/// The program.
const PROGRAM: &str = "ibv_rc_pingpong";
/// What its client says while the server does not listen yet.
const NOT_YET: &str = "Couldn't connect";
/// How long the server may take until it listens.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait until the next attempt.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs the program over a device and shows what it says.
pub fn show(device: &str, gid_index: u8) -> ExitCode {
    if find_program(PROGRAM.as_ref()).is_none() {
        say(&format!(
            "{PROGRAM} is not installed (Debian: apt-get install ibverbs-utils); with it the demo \
             would show an unmodified program, too."
        ));
        return ExitCode::SUCCESS;
    }
    match run(device, gid_index) {
        Ok(output) if output.status.success() => {
            say(&format!("{PROGRAM}, unmodified, through `urxe run`:"));
            let text = String::from_utf8_lossy(&output.stdout);
            for line in text.lines().filter(|line| line.contains(" in ")) {
                say(&format!("  {line}"));
            }
            ExitCode::SUCCESS
        }
        Ok(output) => {
            eprintln!(
                "urxe demo: {PROGRAM} failed, {}:\n{}{}",
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("urxe demo: {PROGRAM} cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A server that is killed when something else goes wrong.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The output of the client; of the server, where that failed.
fn run(device: &str, gid_index: u8) -> io::Result<Output> {
    // A TCP port that is free now; the two sides agree on the connection over it.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    drop(listener);
    let command = || {
        let mut command = Command::new(own_path());
        command
            .args([
                "run",
                "--",
                PROGRAM,
                "-d",
                device,
                "-g",
                &gid_index.to_string(),
            ])
            .args(["-p", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let mut server = Server(command().spawn()?);
    let begin = Instant::now();
    let client = loop {
        let output = command().arg(Ipv4Addr::LOCALHOST.to_string()).output()?;
        let not_yet = String::from_utf8_lossy(&output.stderr).contains(NOT_YET);
        if !not_yet || server.0.try_wait()?.is_some() || begin.elapsed() > PATIENCE {
            break output;
        }
        thread::sleep(PAUSE);
    };
    if client.status.success() {
        return Ok(client);
    }
    // Where the server failed first, it knows why.
    match server.0.try_wait()? {
        Some(status) if !status.success() => {
            let mut output = Output {
                status,
                stdout: Vec::new(),
                stderr: Vec::new(),
            };
            if let Some(mut pipe) = server.0.stdout.take() {
                pipe.read_to_end(&mut output.stdout)?;
            }
            if let Some(mut pipe) = server.0.stderr.take() {
                pipe.read_to_end(&mut output.stderr)?;
            }
            Ok(output)
        }
        _ => Ok(client),
    }
}
