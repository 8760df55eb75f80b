//! `urxe-model MTU BYTES MEMORY MESSAGE PORT [SERVER]`: the data path of urxe without the protocol.
//!
//! The client stages payload with its CRC in batches, which the kernel segments (GSO) and coalesces
//! (GRO). The server checks each CRC, copies the payload out, and acknowledges each batch with a
//! short packet. There are no queue pairs, keys, completions or retransmissions. The difference
//! between urxe and this model is the cost of the protocol. The client prints a line with
//! perftest's columns.
//!
//! Packets are equal, and batches are full, if MESSAGE is 0. Otherwise the first packet of each
//! MESSAGE bytes has the length of one with an RETH, as the first packet of a WRITE, and the
//! batches are those that this allows.
//!
//! Both ends use MEMORY bytes for the payload, a multiple of MTU, from the beginning to the end and
//! again: as much as the messages of the compared program, since memory beyond the caches is slow.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_net::{
    Datagram, Endpoint, LocalAddress, Options, Path, PathOptions, RecvBatch, SendBatch, Shared,
};
use urxe_proto::host::Transmit;
use urxe_proto::wire::{Bth, Layout, Reth};

/// The bytes in a batch, about the most that GSO accepts.
const BATCH: u64 = 60 << 10;

/// The maximum number of batches in flight.
const WINDOW: u64 = 3;

/// The interface index of the loopback interface.
const LOOPBACK: u32 = 1;

/// The time without an arrival after which a packet counts as lost; there is no retransmission.
const LOSS_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval at which an idle end services the shared port.
const SERVICE_INTERVAL: Duration = Duration::from_millis(1);

/// The delay before the first batch. In this time both ends learn which socket serves which queue
/// pair numbers; earlier packets would be forwarded.
const WARM_UP: Duration = Duration::from_millis(200);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ([mtu, bytes, memory, message, port], server) = match &arguments[..] {
        [mtu, bytes, memory, message, port] => ([mtu, bytes, memory, message, port], None),
        [mtu, bytes, memory, message, port, server] => {
            ([mtu, bytes, memory, message, port], Some(server))
        }
        _ => return Err("usage: urxe-model MTU BYTES MEMORY MESSAGE PORT [SERVER]".into()),
    };
    let (mtu, port) = (mtu.parse()?, port.parse()?);
    let memory = Memory::new(memory.parse()?, mtu)?;
    let stream = Stream::new(bytes.parse()?, message.parse()?, mtu as u64);
    match server {
        None => serve(memory, stream, port),
        Some(server) => send(memory, stream, (server.parse()?, port)),
    }
}

/// What the client sends.
struct Stream {
    packets: u64,
    /// The packets that are sent together, and acknowledged.
    in_batch: u64,
    /// Whether the first packet of each batch is longer.
    has_longer: bool,
}

impl Stream {
    fn new(bytes: u64, message: u64, mtu: u64) -> Self {
        let has_longer = message > 0;
        let batch = if has_longer { message } else { BATCH };
        Stream {
            packets: bytes / mtu,
            in_batch: batch / mtu,
            has_longer,
        }
    }
}

/// The memory for the payload, as places of the size of a packet.
struct Memory {
    bytes: Vec<u8>,
    mtu: usize,
    next: usize,
}

impl Memory {
    fn new(size: usize, mtu: usize) -> Result<Self> {
        if size == 0 || !size.is_multiple_of(mtu) {
            return Err("MEMORY is no multiple of MTU".into());
        }
        Ok(Memory {
            // Not zero, so that each page is one of its own.
            bytes: vec![7; size],
            mtu,
            next: 0,
        })
    }

    /// Returns the place of the next packet. The first one follows the last.
    fn next(&mut self) -> &mut [u8] {
        let place = self.next;
        self.next = (place + self.mtu) % self.bytes.len();
        &mut self.bytes[place..place + self.mtu]
    }
}

/// One end of the stream.
struct End {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    path: Path,
    /// The destination queue pair number of packets to the other end.
    peer: u32,
    batch: SendBatch,
    received: RecvBatch,
    served: Instant,
}

impl End {
    /// Opens a socket, and exchanges queue pair numbers with the other end over TCP.
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

    /// Stages a packet with headers of this length.
    fn stage(&mut self, headers: usize, payload: &[u8]) -> Result<()> {
        let packet = self.batch.stage(headers + payload.len());
        let (header, data) = packet.ok_or("a batch is full")?.split_at_mut(headers);
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

    /// Receives packets, passes their payload of at most `mtu` bytes to `take`, and returns their
    /// number.
    fn receive(&mut self, mtu: usize, mut take: impl FnMut(&[u8])) -> Result<u64> {
        let mut packets = 0;
        let mut take = |datagram: &Datagram<'_>| {
            let data = &datagram.packet()[Bth::LEN..];
            take(&data[data.len().saturating_sub(mtu)..]);
            packets += 1;
        };
        let batch = &mut self.received;
        if self.endpoint.recv(batch, &mut take)? == 0 && self.served.elapsed() > SERVICE_INTERVAL {
            self.served = Instant::now();
            self.shared.recv_forwarded(batch, &mut take)?;
            self.endpoint.service(batch, &mut take)?;
        }
        Ok(packets)
    }
}

fn serve(mut memory: Memory, stream: Stream, port: u16) -> Result<()> {
    let (mut tcp, _) = TcpListener::bind(("0.0.0.0", port))?.accept()?;
    let mut end = End::new(&mut tcp)?;
    let mtu = memory.mtu;
    let Stream {
        packets, in_batch, ..
    } = stream;
    let (mut received, mut acknowledged) = (0, 0);
    let mut last = Instant::now();
    while received < packets && last.elapsed() < LOSS_TIMEOUT {
        let copy = |payload: &[u8]| memory.next()[..payload.len()].copy_from_slice(payload);
        let new = end.receive(mtu, copy)?;
        if new == 0 {
            std::thread::yield_now();
            continue;
        }
        last = Instant::now();
        received += new;
        while acknowledged + in_batch <= received {
            acknowledged += in_batch;
            end.stage(Bth::LEN, &[])?;
        }
        end.flush();
    }
    std::hint::black_box(&memory.bytes);
    tcp.write_all(&received.to_be_bytes())?;
    Ok(())
}

fn send(mut memory: Memory, stream: Stream, server: (IpAddr, u16)) -> Result<()> {
    let mut tcp = TcpStream::connect(server)?;
    let mut end = End::new(&mut tcp)?;
    let mtu = memory.mtu;
    let in_batch = stream.in_batch;
    let batches = stream.packets / in_batch;
    let first_headers = match stream.has_longer {
        true => Bth::LEN + Reth::LEN,
        false => Bth::LEN,
    };
    let (mut sent, mut acknowledged) = (0, 0);
    let beginning = Instant::now();
    while beginning.elapsed() < WARM_UP {
        end.receive(mtu, |_| {})?;
        std::thread::yield_now();
    }
    let start = Instant::now();
    let mut last = start;
    while acknowledged < batches {
        while sent < batches && sent < acknowledged + WINDOW {
            for packet in 0..in_batch {
                let headers = if packet == 0 { first_headers } else { Bth::LEN };
                end.stage(headers, memory.next())?;
            }
            end.flush();
            sent += 1;
        }
        let new = end.receive(mtu, |_| {})?;
        if new > 0 {
            last = Instant::now();
            acknowledged += new;
        } else if last.elapsed() > LOSS_TIMEOUT {
            return Err("a packet was lost; the model does not retransmit, so run it again".into());
        } else {
            std::thread::yield_now();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let carried = (acknowledged * in_batch) as f64;
    let mib = carried * mtu as f64 / seconds / f64::from(1 << 20);
    println!("{mtu} {carried} 0 {mib:.2} {:.6}", carried / seconds / 1e6);
    Ok(())
}
