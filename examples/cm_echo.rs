//! An echo server and its client, which find each other by IP address and port, as programs of librdmacm do:
//!
//! ```text
//! cargo run --example cm_echo -- server 0.0.0.0:7471
//! cargo run --example cm_echo -- client 192.0.2.1:7471 "some words"
//! ```
//! The server serves each client in a thread of its own until it is stopped. Its private data says how
//! long a message may be.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;
use urxe::cm::{self, Connection, Listener, Options, Request, Route};
use urxe::{CompletionQueue, ReceiveRequest, RemoteAccess, SendRequest, WcStatus};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The longest message.
const LONGEST: u16 = 4096;

/// How often the server looks whether its client has left.
const LOOK: Duration = Duration::from_millis(100);

fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["server", address] => serve(&Listener::bind(address.parse()?)?),
        ["client", address, message] => {
            println!("{}", ask(address.parse()?, message)?);
            Ok(())
        }
        _ => Err("say `server ADDRESS:PORT` or `client ADDRESS:PORT MESSAGE`".into()),
    }
}

fn serve(listener: &Listener) -> Result<()> {
    println!("listening at {}", listener.local_addr());
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

/// Sends back what comes, until the client leaves.
fn echo(request: Request) -> Result<()> {
    let context = request.device().open()?;
    let (pd, cq) = (context.pd(), context.completion_queue()?);
    let memory = pd.register(LONGEST.into(), RemoteAccess::empty())?;
    let qp = pd.queue_pair(&cq, &cq).build()?;
    qp.post_receive(ReceiveRequest::into(memory.slice(..)?))?;
    let connection = request.accept(qp, &Options::with_private_data(&LONGEST.to_be_bytes()))?;
    while let Some(len) = message(&connection, &cq)? {
        let qp = connection.queue_pair();
        qp.post_send(SendRequest::send(memory.slice(..len)?))?;
        // The message has gone out when the receive takes its place.
        cq.wait()?.result?;
        qp.post_receive(ReceiveRequest::into(memory.slice(..)?))?;
    }
    Ok(connection.disconnect()?)
}

/// The length of the next message; `None` when the client has left.
fn message(connection: &Connection, cq: &CompletionQueue) -> Result<Option<usize>> {
    loop {
        if let Some(received) = cq.wait_timeout(LOOK)? {
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

/// Sends a message, and returns what comes back.
fn ask(server: SocketAddr, message: &str) -> Result<String> {
    let route = Route::resolve(server)?;
    let context = route.device().open()?;
    let (pd, cq) = (context.pd(), context.completion_queue()?);
    let memory = pd.register(LONGEST.into(), RemoteAccess::empty())?;
    let qp = pd.queue_pair(&cq, &cq).build()?;
    qp.post_receive(ReceiveRequest::into(memory.slice(..)?).id(1))?;
    let connection = route.connect(qp, &Options::default())?;
    let longest = connection.private_data().first_chunk().copied();
    if message.len() > u16::from_be_bytes(longest.unwrap_or_default()).into() {
        return Err("the message is longer than the server takes".into());
    }
    let source = pd.register_vec(message.as_bytes().to_vec(), RemoteAccess::empty())?;
    let request = SendRequest::send(source.slice(..)?);
    connection.queue_pair().post_send(request)?;
    let answer = loop {
        let completion = cq.wait()?;
        if completion.wr_id == 1 {
            break String::from_utf8(completion.data()?)?;
        }
        completion.result?;
    };
    connection.disconnect()?;
    Ok(answer)
}

#[test]
fn it_works() -> Result<()> {
    let listener = Listener::bind("127.0.0.1:0".parse()?)?;
    let server = listener.local_addr();
    let serving = thread::spawn(move || -> Result<()> {
        for _ in 0..3 {
            echo(listener.next()?)?;
        }
        Ok(())
    });
    for message in ["one", "two", &"long ".repeat(800)] {
        assert_eq!(ask(server, message)?, message);
    }
    serving.join().expect("the server does not panic")
}
