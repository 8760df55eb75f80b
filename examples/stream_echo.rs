//! An echo server of byte streams on tokio, and a client.
//!
//! ```text
//! cargo run --example stream_echo --features tokio
//! cargo run --example stream_echo --features tokio -- server 0.0.0.0:7471
//! cargo run --example stream_echo --features tokio -- client 192.0.2.1:7471 some words
//! ```
//!
//! Without arguments both are tasks of one process.
//!
//! The streams are rsockets: `urxe run -- rstream -s 192.0.2.1 -C 1 -S 65536 -I 100` measures round
//! trips with this server, and with one message a transfer.

use std::env;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use urxe::net::{RdmaListener, RdmaStream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match &args[..] {
        ["server", address] => {
            let listener = RdmaListener::bind(address)?;
            println!("listening on {}", listener.local_addr());
            runtime()?.block_on(serve(listener))?;
        }
        ["client", address, words @ ..] if !words.is_empty() => {
            let text = words.join(" ");
            println!("{}", runtime()?.block_on(echo_of(address, &text))?);
        }
        [] => {
            // More than the buffers of both ends hold.
            let text = "0123456789".repeat(100_000);
            let echo = runtime()?.block_on(echo_here(&text))?;
            println!("{} of {} bytes came back", echo.len(), text.len());
            if echo != text {
                return Err("the echo differs".into());
            }
        }
        _ => {
            return Err(
                "usage: stream_echo [server ADDRESS:PORT | client ADDRESS:PORT WORD...]".into(),
            );
        }
    }
    Ok(())
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_io().build()
}

async fn serve(listener: RdmaListener) -> io::Result<()> {
    loop {
        let stream = listener.accept().await?;
        tokio::spawn(async move {
            if let Err(error) = echo(stream).await {
                eprintln!("{error}");
            }
        });
    }
}

/// Echoes data until the client sends no more.
async fn echo(mut stream: RdmaStream) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return stream.shutdown().await,
            len => stream.write_all(&buffer[..len]).await?,
        }
    }
}

/// Sends the text, ends that direction, and returns what the server sends until its end.
async fn echo_of(server: &str, text: &str) -> io::Result<String> {
    let (mut reader, mut writer) = RdmaStream::connect(server).await?.into_split();
    let send = async {
        writer.write_all(text.as_bytes()).await?;
        writer.shutdown().await
    };
    let mut echo = String::new();
    tokio::try_join!(send, reader.read_to_string(&mut echo))?;
    Ok(echo)
}

/// Returns the echo of a server that is a task of this process.
async fn echo_here(text: &str) -> io::Result<String> {
    let listener = RdmaListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr().to_string();
    let server = tokio::spawn(serve(listener));
    let echo = echo_of(&address, text).await;
    server.abort();
    echo
}

#[test]
fn it_works() -> io::Result<()> {
    let text = "0123456789".repeat(100_000);
    assert_eq!(runtime()?.block_on(echo_here(&text))?, text);
    Ok(())
}
