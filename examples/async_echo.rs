//! An echo server on tokio: one task for each client, and one for each message that a client sends.
//!
//! ```text
//! cargo run --example async_echo --features tokio -- server 0.0.0.0:7471
//! cargo run --example async_echo --features tokio -- client 192.0.2.1:7471 some words
//! ```

use std::env;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};
use urxe::prelude::*;
use urxe::{ErrorKind, Result};

/// The maximum length of a message, in bytes.
const MAX_MESSAGE: usize = 4096;

/// The receives that the server keeps posted.
const RECEIVES: usize = 16;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match &args[..] {
        ["server", address] => runtime()?.block_on(serve(Listener::bind(address)?))?,
        ["client", address, words @ ..] if !words.is_empty() => {
            let echoes = runtime()?.block_on(request_echoes(address, words))?;
            println!("{}", echoes.join(" "));
        }
        _ => {
            return Err(
                "usage: async_echo server ADDRESS:PORT | client ADDRESS:PORT WORD...".into(),
            );
        }
    }
    Ok(())
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_io().build()
}

async fn serve(listener: Listener) -> Result<()> {
    loop {
        let connection = Arc::new(listener.accept().await?);
        for _ in 0..RECEIVES {
            let connection = Arc::clone(&connection);
            tokio::spawn(async move {
                if let Err(error) = echo(connection.queue_pair()).await {
                    eprintln!("{:?}: {error}", connection.peer_addr());
                }
            });
        }
        tokio::spawn(async move {
            // The first event ends the connection, and with it the tasks that receive.
            let _ = connection.next_event().await;
            connection.disconnect()
        });
    }
}

/// Echoes messages in one buffer until the connection ends.
async fn echo(qp: &QueuePair) -> Result<()> {
    let memory = qp.pd().register(MAX_MESSAGE, RemoteAccess::empty())?;
    loop {
        let (received, buffer) = qp.receive(memory.slice(..)?).await;
        let len = match received {
            Ok(done) => done.byte_len as usize,
            Err(error) if error.kind() == ErrorKind::Flushed => return Ok(()),
            Err(error) => return Err(error),
        };
        qp.send(buffer.slice(..len)?).await.0?;
    }
}

/// Sends each word, and returns the echoes in the order of their arrival.
async fn request_echoes(server: &str, words: &[&str]) -> Result<Vec<String>> {
    let connection = Arc::new(urxe::connect(server).await?);
    let qp = connection.queue_pair();
    let mut tasks = Vec::new();
    for word in words {
        let source = qp
            .pd()
            .register_vec(word.as_bytes().to_vec(), RemoteAccess::empty())?;
        let inbox = qp.pd().register(MAX_MESSAGE, RemoteAccess::empty())?;
        let connection = Arc::clone(&connection);
        tasks.push(tokio::spawn(async move {
            let qp = connection.queue_pair();
            qp.send(source.slice(..)?).await.0?;
            let (received, _) = qp.receive(inbox.slice(..)?).await;
            let echo = inbox.to_vec(..received?.byte_len as usize)?;
            Ok::<_, urxe::Error>(String::from_utf8_lossy(&echo).into_owned())
        }));
    }
    let mut echoes = Vec::new();
    for task in tasks {
        echoes.push(task.await.map_err(std::io::Error::from)??);
    }
    connection.disconnect()?;
    Ok(echoes)
}

#[test]
fn it_works() -> std::result::Result<(), Box<dyn std::error::Error>> {
    runtime()?.block_on(async {
        let listener = Listener::bind("127.0.0.1:0")?;
        let address = listener.local_addr().to_string();
        let server = tokio::spawn(serve(listener));
        let mut echoes = request_echoes(&address, &["one", "two", "three"]).await?;
        echoes.sort();
        assert_eq!(echoes, ["one", "three", "two"]);
        server.abort();
        Ok(())
    })
}
