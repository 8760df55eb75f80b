//! Streams of the Rust API: blocking, on tokio and on async-io, and against librdmacm's programs.

mod blocking;
mod dropped;
mod rstream;
mod tasks;

use std::net::SocketAddr;
use std::time::Duration;
use urxe::net::{RdmaListener, RdmaStream};

/// The time after which a test counts as hung.
const TIMEOUT: Duration = Duration::from_secs(120);

/// More than the buffers of both ends hold.
const LONG: usize = 3_000_000;

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

fn listener() -> (RdmaListener, SocketAddr) {
    let listener = RdmaListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    (listener, address)
}

/// Returns the accepted end and the connecting one.
fn connected() -> (RdmaStream, RdmaStream) {
    let (listener, address) = listener();
    let client = RdmaStream::connect_blocking(address).unwrap();
    (listener.accept_blocking().unwrap(), client)
}
