//! An echo server and client that connect by IP address and port, as librdmacm programs do.
//!
//! ```text
//! cargo run --example cm_echo -- server 0.0.0.0:7471
//! cargo run --example cm_echo -- client 192.0.2.1:7471 "some words"
//! ```
//! The server handles each client in its own thread until it is stopped. Its private data announces
//! the maximum length of a message.

use std::env;
use std::error::Error;
use std::net::ToSocketAddrs;
use std::thread;
use std::time::Duration;
use urxe::cm::{self, Connection, Listener, Options, Request, Route};
use urxe::{CompletionQueue, ReceiveRequest, RemoteAccess, SendRequest, WcStatus};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The maximum length of a message, in bytes.
const MAX_MESSAGE: u16 = 4096;

/// The interval at which the server checks for a disconnection.
const DISCONNECT_POLL_INTERVAL: Duration = Duration::from_millis(100);

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["server", address] => serve(&Listener::bind(address)?),
        ["client", address, message] => {
            println!("{}", request_echo(address, message)?);
            Ok(())
        }
        _ => Err("usage: cm_echo server ADDRESS:PORT | client ADDRESS:PORT MESSAGE".into()),
    }
}

fn serve(listener: &Listener) -> Result<()> {
    println!("listening on {}", listener.local_addr());
    loop {
        let request = listener.next()?;
        thread::spawn(move || {
            let peer = request.peer_addr();
            if let Err(error) = echo(request) {
                eprintln!("{peer:?}: {error}");
            }
        });
    }
}

/// Echoes messages until the client disconnects.
fn echo(request: Request) -> Result<()> {
    let context = request.device().open()?;
    let (pd, cq) = (context.pd(), context.completion_queue()?);
    let memory = pd.register(MAX_MESSAGE.into(), RemoteAccess::empty())?;
    let qp = pd.queue_pair(&cq, &cq).build()?;
    qp.post_receive(ReceiveRequest::into(memory.slice(..)?))?;
    let options = Options::with_private_data(&MAX_MESSAGE.to_be_bytes());
    let connection = request.accept(qp, &options)?;
    while let Some(len) = next_message(&connection, &cq)? {
        let qp = connection.queue_pair();
        qp.post_send(SendRequest::send(memory.slice(..len)?))?;
        // The send must complete before a receive may overwrite its buffer.
        cq.wait()?.result?;
        qp.post_receive(ReceiveRequest::into(memory.slice(..)?))?;
    }
    Ok(connection.disconnect()?)
}

/// Returns the length of the next message; `None` when the client has disconnected.
fn next_message(connection: &Connection, cq: &CompletionQueue) -> Result<Option<usize>> {
    loop {
        if let Some(received) = cq.wait_timeout(DISCONNECT_POLL_INTERVAL)? {
            return match received.result {
                Ok(done) => Ok(Some(done.byte_len as usize)),
                Err(error) if error.status == WcStatus::WrFlushErr => Ok(None),
                Err(error) => Err(error.into()),
            };
        }
        if let Some(cm::Event::Disconnected) = connection.try_next()? {
            return Ok(None);
        }
    }
}

/// Sends a message and returns the echo.
fn request_echo(server: impl ToSocketAddrs, message: &str) -> Result<String> {
    let route = Route::resolve(server)?;
    let context = route.device().open()?;
    let (pd, cq) = (context.pd(), context.completion_queue()?);
    let memory = pd.register(MAX_MESSAGE.into(), RemoteAccess::empty())?;
    let qp = pd.queue_pair(&cq, &cq).build()?;
    qp.post_receive(ReceiveRequest::into(memory.slice(..)?).id(1))?;
    let connection = route.connect(qp, &Options::default())?;
    let limit = connection.private_data().first_chunk().copied();
    if message.len() > u16::from_be_bytes(limit.unwrap_or_default()).into() {
        return Err("the message is longer than the server permits".into());
    }
    let source = pd.register_vec(message.as_bytes().to_vec(), RemoteAccess::empty())?;
    let request = SendRequest::send(source.slice(..)?);
    connection.queue_pair().post_send(request)?;
    let echo = loop {
        let completion = cq.wait()?;
        if completion.wr_id == 1 {
            break String::from_utf8(completion.data()?)?;
        }
        completion.result?;
    };
    connection.disconnect()?;
    Ok(echo)
}

#[test]
fn it_works() -> Result<()> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let server = listener.local_addr();
    let serving = thread::spawn(move || -> Result<()> {
        for _ in 0..3 {
            echo(listener.next()?)?;
        }
        Ok(())
    });
    for message in ["one", "two", &"long ".repeat(800)] {
        assert_eq!(request_echo(server, message)?, message);
    }
    serving.join().expect("the server does not panic")
}
