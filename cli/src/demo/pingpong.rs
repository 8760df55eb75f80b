//! Debian's unmodified `ibv_rc_pingpong` through `urxe run`, where it is installed.

use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::process::{own_path, print};
use urxe_driver::device::VARIABLE;

use crate::which::find_program;

/// The name of the program.
const PROGRAM: &str = "ibv_rc_pingpong";
/// The client's error message while the server does not listen yet.
const NOT_LISTENING: &str = "Couldn't connect";
/// The time that the server has to start listening.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between the client's attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the program over a device and prints its results.
pub fn show(device: &str, gid_index: u8) -> ExitCode {
    if find_program(PROGRAM.as_ref()).is_none() {
        print(&format!(
            "{PROGRAM} is not installed (Debian: apt-get install ibverbs-utils), so the demo does \
             not run it."
        ));
        return ExitCode::SUCCESS;
    }
    match run(device, gid_index) {
        Ok(output) if output.status.success() => {
            print(&format!("{PROGRAM}, unmodified, through `urxe run`:"));
            let text = String::from_utf8_lossy(&output.stdout);
            for line in text.lines().filter(|line| line.contains(" in ")) {
                print(&format!("  {line}"));
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
            eprintln!("urxe demo: cannot run {PROGRAM}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A server process that is killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if the process has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the output of the client, or of the server if that failed.
fn run(device: &str, gid_index: u8) -> io::Result<Output> {
    // Chooses a free TCP port, over which the two sides exchange their addresses.
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
            .env(VARIABLE, device)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let mut server = Server(command().spawn()?);
    let begin = Instant::now();
    let client = loop {
        let output = command().arg(Ipv4Addr::LOCALHOST.to_string()).output()?;
        let not_listening = String::from_utf8_lossy(&output.stderr).contains(NOT_LISTENING);
        if !not_listening || server.0.try_wait()?.is_some() || begin.elapsed() > LISTEN_TIMEOUT {
            break output;
        }
        thread::sleep(RETRY_INTERVAL);
    };
    if client.status.success() {
        return Ok(client);
    }
    // If the server failed first, its output has the cause.
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
