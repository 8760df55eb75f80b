//! TCP ports of programs.

use std::fs;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::run::{POLL_INTERVAL, Running};

/// Waits until `server` listens.
///
/// # Panics
/// If it ends before, or exceeds `limit`; with its output.
#[track_caller]
pub fn wait_for(mut server: Running, port: u16, limit: Duration) -> Running {
    let deadline = Instant::now() + limit;
    while !listens(server.id(), port) {
        if !server.is_running() || Instant::now() >= deadline {
            panic!(
                "the server does not listen\n{}",
                server.finish(Duration::ZERO)
            );
        }
        thread::sleep(POLL_INTERVAL);
    }
    server
}

/// Returns an unused TCP port below the ephemeral range.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + (std::process::id() % 100) as u16 * 100;
    (0..10_000)
        .map(|_| first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed) % 10_000))
        .find(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok())
        .expect("a free TCP port")
}

/// Returns whether a socket listens on this TCP port in the network namespace of a process.
fn listens(process: u32, port: u16) -> bool {
    let local_port = format!(":{port:04X}");
    ["tcp", "tcp6"].into_iter().any(|table| {
        let table = fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default();
        table.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            let state = fields.nth(1).unwrap_or_default();
            // 0A is TCP_LISTEN.
            local.ends_with(&local_port) && state == "0A"
        })
    })
}
