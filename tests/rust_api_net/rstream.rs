//! `rstream` of librdmacm at the other end of a stream.

use crate::{TIMEOUT, listener, pattern};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use urxe::net::RdmaStream;

/// A program of librdmacm under `urxe run`, which is ended with the test.
struct Program(Child);

impl Program {
    fn start(words: &str) -> Program {
        let child = Command::new(urxe_tests::built("urxe"))
            .args(["run", "--sysfs", "no", "--"])
            .args(words.split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Program(child.expect("the command is built"))
    }

    /// Waits for its success.
    fn finish(mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the program hangs");
            thread::sleep(Duration::from_millis(20));
        }
        let status = self.0.wait().unwrap();
        let [mut out, mut err] = [String::new(), String::new()];
        self.0
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut out)
            .unwrap();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        assert!(status.success(), "{status}\n{out}\n{err}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The transfers of `rstream`: so many, of so many bytes.
const TRANSFERS: (usize, usize) = (50, 100_000);

#[test]
fn rstream_is_a_client_of_a_listener() {
    let (listener, address) = listener();
    let (count, size) = TRANSFERS;
    let port = address.port();
    let client = Program::start(&format!(
        "rstream -s 127.0.0.1 -p {port} -T v -I {count} -C 1 -S {size}"
    ));
    let mut stream = listener.accept_blocking().unwrap();
    // With one transfer in each direction an iteration is an echo.
    let mut buffer = vec![0; size];
    let mut echoed = 0;
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => break,
            len => stream.write_all(&buffer[..len]).unwrap(),
        }
        echoed += 1;
    }
    assert!(echoed > count, "{echoed} reads");
    client.finish();
}

#[test]
fn rstream_is_the_server_of_a_stream() {
    let (count, size) = TRANSFERS;
    // A free port: that of a listener which is closed.
    let (listener, address) = listener();
    drop(listener);
    let port = address.port();
    let server = Program::start(&format!("rstream -p {port} -I {count} -C 1 -S {size}"));
    let deadline = Instant::now() + TIMEOUT;
    let mut stream = loop {
        match RdmaStream::connect_blocking(address) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    let mut sync = [0; 16];
    stream.write_all(&sync).unwrap();
    stream.read_exact(&mut sync).unwrap();
    let data = pattern(size);
    let mut received = vec![0; size];
    for _ in 0..count {
        stream.write_all(&data).unwrap();
        stream.read_exact(&mut received).unwrap();
    }
    stream.shutdown_blocking(Shutdown::Both).unwrap();
    server.finish();
}
