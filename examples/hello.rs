//! Two processes: the client sends a message, and reads a reply out of the server's memory.
//!
//! ```text
//! cargo run --release --example hello -- serve 127.0.0.1:7471
//! cargo run --release --example hello -- greet 127.0.0.1:7471
//! ```
//! For two hosts, use the server's address, and append the name of a device on each.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use urxe::{
    CompletionQueue, ConnectOptions, Endpoint, PreparedQueuePair, ProtectionDomain, QueuePair,
    ReceiveRequest, RemoteAccess, RemoteRegion, SendRequest,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const REPLY: &[u8] = b"Hello! You have read this without any action of the server.";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", address] => serve(address, "urxe_lo"),
        ["serve", address, device] => serve(address, device),
        ["greet", address] => greet(address, "urxe_lo"),
        ["greet", address, device] => greet(address, device),
        _ => Err("usage: hello serve|greet ADDRESS:PORT [DEVICE]".into()),
    }
}

fn serve(address: &str, device: &str) -> Result<()> {
    let (pd, cq) = open(device)?;
    let memory = pd.register(4096, RemoteAccess::READ)?;
    memory.write(0, REPLY)?;

    let (mut peer, _) = TcpListener::bind(address)?.accept()?;
    let qp = pd.queue_pair(&cq, &cq).build()?;
    qp.post_receive(ReceiveRequest::into(memory.slice(2048..)?))?;
    let _qp = connect(qp, &mut peer)?;
    let reply = memory.remote().slice(..REPLY.len() as u64)?;
    peer.write_all(&reply.to_bytes())?;

    println!("{}", String::from_utf8_lossy(&cq.wait()?.data()?));
    // The memory must stay registered until the peer has read it.
    peer.read_exact(&mut [0])?;
    Ok(())
}

fn greet(address: &str, device: &str) -> Result<()> {
    let (pd, cq) = open(device)?;
    let mut peer = TcpStream::connect(address)?;
    let qp = connect(pd.queue_pair(&cq, &cq).build()?, &mut peer)?;
    let mut reply = [0; RemoteRegion::BYTES];
    peer.read_exact(&mut reply)?;
    let reply = RemoteRegion::from_bytes(&reply);

    qp.post_send(SendRequest::send(b"Hello over RDMA!"))?;
    cq.wait()?.result?;
    let copy = pd.register(reply.len as usize, RemoteAccess::empty())?;
    qp.post_send(SendRequest::read(copy.slice(..)?, &reply))?;
    println!("{}", String::from_utf8_lossy(&cq.wait()?.data()?));
    peer.write_all(&[1])?;
    Ok(())
}

fn open(device: &str) -> Result<(ProtectionDomain, CompletionQueue)> {
    let context = urxe::device(device)?.open()?;
    Ok((context.pd(), context.completion_queue()?))
}

/// Exchanges endpoints over TCP and connects the queue pair.
fn connect(qp: PreparedQueuePair, peer: &mut TcpStream) -> Result<QueuePair> {
    peer.write_all(&qp.endpoint().to_bytes())?;
    let mut remote = [0; Endpoint::BYTES];
    peer.read_exact(&mut remote)?;
    let qp = qp.connect(&Endpoint::from_bytes(&remote)?, &ConnectOptions::default())?;
    // Neither end may send before both are connected.
    peer.write_all(&[1])?;
    peer.read_exact(&mut [0])?;
    Ok(qp)
}
