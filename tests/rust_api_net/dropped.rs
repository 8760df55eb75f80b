//! Streams that tasks drop while the peer does not acknowledge.

use crate::{TIMEOUT, pattern};
use std::env;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use tokio::io::AsyncWriteExt;
use urxe::net::{RdmaListener, RdmaStream};

/// The variable with the TCP address of the first process, set for the second one.
const CONNECT_TO: &str = "STREAM_TEST_CONNECT_TO";

/// The bytes that the peer acknowledges before it is stopped.
const FIRST: usize = 1000;
const ALL: usize = 60_000;

/// The second process. Dropping this ends it.
struct Peer(Child);

impl Peer {
    /// Stops the process. Returns when none of its threads runs.
    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: `status` is writable and outlives the call.
        let stopped = unsafe { libc::waitpid(self.0.id() as i32, &mut status, libc::WUNTRACED) };
        assert!(stopped > 0 && libc::WIFSTOPPED(status), "status {status}");
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill(2) accesses no memory. The child was not reaped, so its PID is not reused.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The second process: receives a stream to its end, and reports what it received.
fn receive(control: &mut TcpStream) {
    let listener = RdmaListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().port();
    control.write_all(&port.to_be_bytes()).unwrap();
    let mut stream = listener.accept_blocking().unwrap();
    let mut received = vec![0; FIRST];
    stream.read_exact(&mut received).unwrap();
    control.write_all(&[0]).unwrap();
    let ended = stream.read_to_end(&mut received);
    let is_exact = ended.is_ok() && received == pattern(ALL);
    control.write_all(&[u8::from(is_exact)]).unwrap();
}

#[test]
fn a_dropped_stream_delivers_its_data_while_the_task_goes_on() {
    if let Ok(address) = env::var(CONNECT_TO) {
        return receive(&mut TcpStream::connect(address).unwrap());
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = "dropped::a_dropped_stream_delivers_its_data_while_the_task_goes_on";
    let peer = Command::new(env::current_exe().unwrap())
        .args(["--exact", name])
        .env(CONNECT_TO, listener.local_addr().unwrap().to_string())
        .stdout(Stdio::null())
        .spawn();
    let peer = Peer(peer.unwrap());
    let (mut control, _) = listener.accept().unwrap();
    control.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut port = [0; 2];
    control.read_exact(&mut port).unwrap();
    let address = (Ipv4Addr::LOCALHOST, u16::from_be_bytes(port));
    let data = pattern(ALL);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut stream = RdmaStream::connect(address).await.unwrap();
        AsyncWriteExt::write_all(&mut stream, &data[..FIRST])
            .await
            .unwrap();
        control.read_exact(&mut [0]).unwrap();
        peer.stop();
        // The buffers have room for it, and the stopped peer does not acknowledge it.
        AsyncWriteExt::write_all(&mut stream, &data[FIRST..])
            .await
            .unwrap();
        drop(stream);
        peer.signal(libc::SIGCONT);
    });
    let mut is_exact = [0];
    control.read_exact(&mut is_exact).unwrap();
    assert_eq!(is_exact, [1], "the peer received other data");
}
