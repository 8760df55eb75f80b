//! `urxe-model MTU BYTES PORT [SERVER]`: the way of data through urxe without the protocol.
//!
//! Payload is staged with its CRC into batches, which the kernel takes whole (GSO) and passes up whole (GRO); the other
//! process checks each CRC, copies the payload out, and answers each batch with a short packet. There are no
//! queue pairs, keys, completions or retransmissions: what urxe falls behind this is what the protocol costs. The client
//! prints a line with perftest's columns.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_net::{
    Datagram, Endpoint, LocalAddress, Options, Path, PathOptions, RecvBatch, SendBatch, Shared,
};
use urxe_proto::host::Transmit;
use urxe_proto::wire::Bth;

/// What a batch holds, about what the kernel takes at once.
const BATCH: u64 = 60 << 10;

/// How many batches are under way.
const WINDOW: u64 = 3;

/// The usual loopback interface.
const LOOPBACK: u32 = 1;

/// How long nothing may arrive: there is no retransmission here.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often who has nothing else to do looks after the port that both ends share.
const SERVICE: Duration = Duration::from_millis(1);

/// How long both do nothing else, until each has learnt which socket is whose: what is sent before takes detours.
const SETTLING: Duration = Duration::from_millis(200);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mtu, bytes, port, server) = match &arguments[..] {
        [mtu, bytes, port] => (mtu, bytes, port, None),
        [mtu, bytes, port, server] => (mtu, bytes, port, Some(server)),
        _ => return Err("usage: urxe-model MTU BYTES PORT [SERVER]".into()),
    };
    let (mtu, bytes, port) = (mtu.parse()?, bytes.parse()?, port.parse()?);
    match server {
        None => serve(mtu, bytes, port),
        Some(server) => send(mtu, bytes, (server.parse()?, port)),
    }
}

/// One end of the stream.
struct End {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    path: Path,
    /// The number that packets for the other end bear.
    peer: u32,
    batch: SendBatch,
    received: RecvBatch,
    served: Instant,
}

impl End {
    /// Makes a socket, and exchanges numbers with the other end over TCP.
    fn new(tcp: &mut TcpStream) -> Result<Self> {
        let (from, to) = (tcp.local_addr()?.ip(), tcp.peer_addr()?.ip());
        let shared = Shared::new(Options::default())?;
        let endpoint = shared.open(LocalAddress::new(from, LOOPBACK))?;
        let path = endpoint.path(to, PathOptions::default())?;
        tcp.write_all(&shared.qpns().start().to_be_bytes())?;
        let mut peer = [0; 4];
        tcp.read_exact(&mut peer)?;
        let mut batch = SendBatch::default();
        batch.begin(&path);
        Ok(End {
            shared,
            endpoint,
            path,
            peer: u32::from_be_bytes(peer),
            batch,
            received: RecvBatch::new(),
            served: Instant::now(),
        })
    }

    fn stage(&mut self, payload: &[u8]) -> Result<()> {
        let room = self.batch.stage(Bth::LEN + payload.len());
        let (header, data) = room.ok_or("a batch is full")?.split_at_mut(Bth::LEN);
        header.fill(0);
        header[4..8].copy_from_slice(&self.peer.to_be_bytes());
        data.copy_from_slice(payload);
        self.batch.commit();
        Ok(())
    }

    fn flush(&mut self) {
        self.batch.flush();
        self.batch.begin(&self.path);
    }

    /// Receives once; how many packets came, in whatever way. What they hold is copied to `into`.
    fn receive(&mut self, into: &mut [u8]) -> Result<u64> {
        let mut packets = 0;
        let mut take = |datagram: &Datagram<'_>| {
            let payload = &datagram.packet()[Bth::LEN..];
            into[..payload.len()].copy_from_slice(payload);
            packets += 1;
        };
        let batch = &mut self.received;
        if self.endpoint.recv(batch, &mut take)? == 0 && self.served.elapsed() > SERVICE {
            self.served = Instant::now();
            self.shared.recv_forwarded(batch, &mut take)?;
            self.endpoint.service(batch, &mut take)?;
        }
        Ok(packets)
    }
}

fn serve(mtu: usize, bytes: u64, port: u16) -> Result<()> {
    let (mut tcp, _) = TcpListener::bind(("0.0.0.0", port))?.accept()?;
    let mut end = End::new(&mut tcp)?;
    let mut memory = vec![0; mtu];
    let (in_batch, packets) = (BATCH / mtu as u64, bytes / mtu as u64);
    let (mut received, mut answered) = (0, 0);
    let mut last = Instant::now();
    while received < packets && last.elapsed() < PATIENCE {
        let new = end.receive(&mut memory)?;
        if new == 0 {
            std::thread::yield_now();
            continue;
        }
        last = Instant::now();
        received += new;
        while answered + in_batch <= received {
            answered += in_batch;
            end.stage(&[])?;
        }
        end.flush();
    }
    std::hint::black_box(&memory);
    tcp.write_all(&received.to_be_bytes())?;
    Ok(())
}

fn send(mtu: usize, bytes: u64, server: (IpAddr, u16)) -> Result<()> {
    let mut tcp = TcpStream::connect(server)?;
    let mut end = End::new(&mut tcp)?;
    let memory = vec![7; mtu];
    let (in_batch, packets) = (BATCH / mtu as u64, bytes / mtu as u64);
    let batches = packets / in_batch;
    let (mut sent, mut answered) = (0, 0);
    let beginning = Instant::now();
    while beginning.elapsed() < SETTLING {
        end.receive(&mut [])?;
        std::thread::yield_now();
    }
    let start = Instant::now();
    let mut last = start;
    while answered < batches {
        while sent < batches && sent < answered + WINDOW {
            for _ in 0..in_batch {
                end.stage(&memory)?;
            }
            end.flush();
            sent += 1;
        }
        let new = end.receive(&mut [])?;
        if new > 0 {
            last = Instant::now();
            answered += new;
        } else if last.elapsed() > PATIENCE {
            return Err("a packet was lost, which this cannot repeat".into());
        } else {
            std::thread::yield_now();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let carried = (answered * in_batch) as f64;
    let mib = carried * mtu as f64 / seconds / f64::from(1 << 20);
    println!("{mtu} {carried} 0 {mib:.2} {:.6}", carried / seconds / 1e6);
    Ok(())
}
