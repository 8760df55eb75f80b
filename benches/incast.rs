//! Many flows at once through one bottleneck, and small messages behind bulk, over TCP and over
//! byte streams of urxe. `benches/incast.sh` runs it on a path with a bottleneck.
//!
//! ```text
//! urxe-incast serve tcp|urxe ADDRESS:PORT
//! urxe-incast send tcp|urxe ADDRESS:PORT FLOWS BYTES
//! urxe-incast ping tcp|urxe ADDRESS:PORT COUNT
//! urxe-incast threads tcp|urxe ADDRESS:PORT THREADS COUNT
//! ```

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use urxe::net::{RdmaListener, RdmaStream};
use urxe_driver::stat;

/// The length of a small message, in bytes.
const SMALL: usize = 64;

/// The length of the blocks of bulk data, in bytes.
const BLOCK: usize = 64 << 10;

/// The length of the first message of a connection: the number of bytes that follow, or 0 for small
/// messages that are echoed.
const HEADER: usize = 8;

/// Before the flows start together.
const SETTLE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Tcp,
    Urxe,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Carrier {
    fn of(word: &str) -> Option<Self> {
        match word {
            "tcp" => Some(Self::Tcp),
            "urxe" => Some(Self::Urxe),
            _ => None,
        }
    }

    fn connect(self, address: &str) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Urxe => Box::new(RdmaStream::connect_blocking(address)?),
        })
    }

    fn serve(self, address: &str) -> io::Result<()> {
        match self {
            Self::Tcp => {
                let listener = TcpListener::bind(address)?;
                loop {
                    let (stream, _) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    answer_in_thread(Box::new(stream));
                }
            }
            Self::Urxe => {
                let listener = RdmaListener::bind(address)?;
                loop {
                    answer_in_thread(Box::new(listener.accept_blocking()?));
                }
            }
        }
    }

    /// Returns the number of packets of this process, or TCP segments of this network namespace,
    /// that were retransmitted so far.
    fn retransmitted(self) -> io::Result<u64> {
        match self {
            Self::Urxe => {
                let devices = stat::report().devices;
                let count = devices.values().map(|it| it.transport["retransmitted"]);
                Ok(count.sum())
            }
            Self::Tcp => {
                // Two lines: names, and values.
                let text = fs::read_to_string("/proc/net/snmp")?;
                let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
                let [names, values] = [(); 2].map(|()| lines.next().unwrap_or_default());
                let mut pairs = names.split_whitespace().zip(values.split_whitespace());
                let value = pairs.find(|(name, _)| *name == "RetransSegs");
                Ok(value.and_then(|(_, it)| it.parse().ok()).unwrap_or(0))
            }
        }
    }
}

fn answer_in_thread(stream: Box<dyn Stream>) {
    thread::spawn(move || {
        if let Err(error) = answer(stream) {
            eprintln!("urxe-incast: {error}");
        }
    });
}

/// Receives bulk and answers its last byte, or echoes small messages until the peer ends.
fn answer(mut stream: Box<dyn Stream>) -> io::Result<()> {
    let mut header = [0; HEADER];
    stream.read_exact(&mut header)?;
    let mut left = u64::from_be_bytes(header);
    if left == 0 {
        let mut message = [0; SMALL];
        while stream.read_exact(&mut message).is_ok() {
            stream.write_all(&message)?;
        }
        return Ok(());
    }
    let mut block = vec![0; BLOCK];
    while left > 0 {
        match stream.read(&mut block)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => left = left.saturating_sub(len as u64),
        }
    }
    stream.write_all(&[0])
}

/// Sends `bytes` on each of `flows` connections at once, and prints the times and shares.
fn send(carrier: Carrier, address: &str, flows: usize, bytes: u64) -> io::Result<()> {
    let streams: io::Result<Vec<_>> = (0..flows).map(|_| carrier.connect(address)).collect();
    let start = Barrier::new(flows);
    let before = carrier.retransmitted()?;
    let times: io::Result<Vec<Duration>> = thread::scope(|scope| {
        let threads: Vec<_> = streams?
            .into_iter()
            .map(|stream| scope.spawn(|| send_one(stream, &start, bytes)))
            .collect();
        let results = threads.into_iter().map(|it| it.join());
        results
            .map(|it| it.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
            .collect()
    });
    let mut times = times?;
    times.sort();
    let seconds = |at: usize| times[at].as_secs_f64();
    println!(
        "{:.2} {:.2} {:.2} {:.3} {}",
        seconds(0),
        seconds(flows / 2),
        seconds(flows - 1),
        jain(times.iter().map(|time| bytes as f64 / time.as_secs_f64())),
        carrier.retransmitted()? - before
    );
    Ok(())
}

/// Returns the time from the common start to the receiver's answer.
fn send_one(mut stream: Box<dyn Stream>, start: &Barrier, bytes: u64) -> io::Result<Duration> {
    stream.write_all(&bytes.to_be_bytes())?;
    thread::sleep(SETTLE);
    start.wait();
    let begun = Instant::now();
    let block = vec![0; BLOCK];
    let mut left = bytes;
    while left > 0 {
        let len = left.min(BLOCK as u64);
        stream.write_all(&block[..len as usize])?;
        left -= len;
    }
    stream.read_exact(&mut [0])?;
    Ok(begun.elapsed())
}

/// Returns Jain's fairness index: 1 if all shares are equal, 1/n if one of n flows has everything.
fn jain(rates: impl Iterator<Item = f64>) -> f64 {
    let (count, sum, squares) = rates.fold((0.0, 0.0, 0.0), |(count, sum, squares), rate| {
        (count + 1.0, sum + rate, squares + rate * rate)
    });
    sum * sum / (count * squares)
}

/// Exchanges small messages, one at a time, and prints the median and the 99th percentile of the
/// round trips in milliseconds.
fn ping(carrier: Carrier, address: &str, count: usize) -> io::Result<()> {
    let mut stream = carrier.connect(address)?;
    stream.write_all(&0_u64.to_be_bytes())?;
    let mut message = [0; SMALL];
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        times.push(begun.elapsed());
        // One message at a time of a program that has other work.
        thread::sleep(Duration::from_millis(1));
    }
    times.sort();
    let milliseconds = |at: usize| times[at].as_secs_f64() * 1e3;
    println!(
        "{:.2} {:.2}",
        milliseconds(count / 2),
        milliseconds(count * 99 / 100)
    );
    Ok(())
}

/// Exchanges `count` small messages in each of `threads` threads with a connection of its own, and
/// prints the round trips per second of all threads.
fn ping_in_threads(
    carrier: Carrier,
    address: &str,
    threads: usize,
    count: usize,
) -> io::Result<()> {
    let streams: io::Result<Vec<_>> = (0..threads).map(|_| carrier.connect(address)).collect();
    let exchange = |mut stream: Box<dyn Stream>| -> io::Result<()> {
        stream.write_all(&0_u64.to_be_bytes())?;
        let mut message = [0; SMALL];
        for _ in 0..count {
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
        }
        Ok(())
    };
    let streams = streams?;
    let begun = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (streams.into_iter())
            .map(|stream| scope.spawn(|| exchange(stream)))
            .collect();
        let mut results = threads.into_iter().map(|it| it.join());
        results.try_for_each(|it| it.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
    })?;
    println!(
        "{:.0}",
        (threads * count) as f64 / begun.elapsed().as_secs_f64()
    );
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some(carrier) = words.get(1).and_then(|word| Carrier::of(word)) else {
        return usage();
    };
    let number = |word: &str| word.parse().ok().filter(|number| *number > 0);
    let result = match words[..] {
        ["serve", _, address] => carrier.serve(address),
        ["send", _, address, flows, bytes] => match (number(flows), number(bytes)) {
            (Some(flows), Some(bytes)) => send(carrier, address, flows as usize, bytes),
            _ => return usage(),
        },
        ["ping", _, address, count] => match number(count) {
            Some(count) => ping(carrier, address, count as usize),
            None => return usage(),
        },
        ["threads", _, address, threads, count] => match (number(threads), number(count)) {
            (Some(threads), Some(count)) => {
                ping_in_threads(carrier, address, threads as usize, count as usize)
            }
            _ => return usage(),
        },
        _ => return usage(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urxe-incast: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: urxe-incast serve CARRIER ADDRESS:PORT | send CARRIER ADDRESS:PORT FLOWS BYTES | \
         ping CARRIER ADDRESS:PORT COUNT | threads CARRIER ADDRESS:PORT THREADS COUNT; CARRIER is \
         tcp or urxe"
    );
    ExitCode::FAILURE
}
