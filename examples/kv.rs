//! A key-value store: writes are messages to the server, reads are one-sided READs of its table.
//!
//! ```text
//! cargo run --release --example kv -- serve 192.0.2.1:7471
//! cargo run --release --example kv -- put 192.0.2.1:7471 KEY VALUE
//! cargo run --release --example kv -- get 192.0.2.1:7471 KEY
//! cargo run --release --example kv -- bench 192.0.2.1:7471 10000
//! ```
//!
//! The table is an array of slots. A key may be in one of the slots from the position of its hash
//! on. A client READs all of them at once; no thread of the server takes part. The server may change
//! a slot during the READ, so each slot has a checksum, and a client repeats a READ that returns
//! parts of two values.
//!
//! The clients trust the server and each other: the messages have no limits per client.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;
use urxe::cm::{Connection, Event, Listener, Options, Request, Route};
use urxe::{
    CompletionQueue, Context, Device, LocalBuffer, MemoryRegion, PreparedQueuePair,
    ProtectionDomain, ReceiveRequest, RemoteAccess, RemoteRegion, SendRequest, WorkQueue,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The positions of keys.
const POSITIONS: usize = 1 << 14;
/// The slots from a position on that may hold a key.
const PROBES: usize = 4;
/// The size of a slot: a checksum of the rest, the lengths of key and value, and their bytes.
const SLOT: usize = 128;
/// The offset of the lengths in a slot.
const LENGTHS: usize = 8;
/// The offset of the key in a slot.
const DATA: usize = LENGTHS + 2;
/// The length of a key with its value.
const MAX_DATA: usize = SLOT - DATA;
/// The requests of a client that the server can hold.
const RECEIVES: usize = 16;

/// The answers to a put.
const STORED: u8 = 0;
const FULL: u8 = 1;

/// FNV-1a with 64 bits: client and server may be different builds.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn position(key: &[u8]) -> usize {
    hash(key) as usize % POSITIONS
}

/// The lengths, key and value, as in a slot and in a request to put them.
fn entry(key: &[u8], value: &[u8]) -> Result<Vec<u8>> {
    if key.is_empty() || key.len() + value.len() > MAX_DATA {
        return Err(format!("a key and its value have 1 to {MAX_DATA} bytes").into());
    }
    Ok([&[key.len() as u8, value.len() as u8], key, value].concat())
}

/// The key and value of an entry; `None` if it is malformed or empty.
fn parse(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[key_len, value_len], data) = entry.split_first_chunk()?;
    let (key, rest) = data.split_at_checked(key_len.into())?;
    let value = rest.get(..value_len.into())?;
    (!key.is_empty()).then_some((key, value))
}

/// The server's table.
struct Store {
    pd: ProtectionDomain,
    context: Context,
    table: MemoryRegion,
    /// Held while a slot changes.
    writing: Mutex<()>,
}

impl Store {
    fn new(device: &Device) -> Result<Store> {
        let context = device.open()?;
        let pd = context.pd();
        // The probes of the last position end in further slots.
        let table = pd.register((POSITIONS + PROBES - 1) * SLOT, RemoteAccess::READ)?;
        Ok(Store {
            pd,
            context,
            table,
            writing: Mutex::default(),
        })
    }

    /// Stores an entry in the slot of its key, or in the first free one.
    fn put(&self, request: &[u8]) -> Result<u8> {
        let Some((key, value)) = parse(request) else {
            return Err("a malformed request".into());
        };
        let new = entry(key, value)?;
        let _writing = self.writing.lock().map_err(|_| "a writer panicked")?;
        for slot in position(key)..position(key) + PROBES {
            let old = self.table.to_vec(slot * SLOT..(slot + 1) * SLOT)?;
            let old = parse(&old[LENGTHS..]);
            if old.is_none_or(|(old, _)| old == key) {
                self.table.write(slot * SLOT + LENGTHS, &new)?;
                let sum = hash(&new).to_le_bytes();
                self.table.write(slot * SLOT, &sum)?;
                return Ok(STORED);
            }
        }
        Ok(FULL)
    }

    /// Serves one client until it disconnects.
    fn serve(&self, request: Request) -> Result<()> {
        let cq = self.context.completion_queue()?;
        let qp = self.pd.queue_pair(&cq, &cq).build()?;
        for _ in 0..RECEIVES {
            qp.post_receive(ReceiveRequest::into(self.pd.buffer(SLOT)?))?;
        }
        let options = Options::with_private_data(&self.table.remote().to_bytes());
        let connection = request.accept(qp, &options)?;
        thread::scope(|scope| {
            // The end of the connection flushes the receives, which ends the loop.
            scope.spawn(|| while !matches!(connection.next(), Ok(Event::Disconnected) | Err(_)) {});
            let served = self.answer(&connection, &cq);
            connection.disconnect()?;
            served
        })
    }

    fn answer(&self, connection: &Connection, cq: &CompletionQueue) -> Result<()> {
        let qp = connection.queue_pair();
        loop {
            let completion = cq.wait()?;
            if completion.result.is_err() {
                return Ok(());
            }
            if let (WorkQueue::Receive, Some(buffer)) = (completion.queue, completion.buffer) {
                let status = self.put(&buffer)?;
                qp.post_receive(ReceiveRequest::into(buffer))?;
                qp.post_send(SendRequest::send(&[status]))?;
            }
        }
    }
}

fn serve(listener: &Listener) -> Result<()> {
    let mut store = None;
    loop {
        let request = listener.next()?;
        if store.is_none() {
            store = Some(Arc::new(Store::new(&request.device())?));
        }
        let Some(store) = store.clone() else { continue };
        thread::spawn(move || {
            if let Err(error) = store.serve(request) {
                eprintln!("{error}");
            }
        });
    }
}

/// A client with its connection and the buffers of its requests.
struct Client {
    connection: Connection,
    cq: CompletionQueue,
    table: RemoteRegion,
    slots: LocalBuffer,
    request: LocalBuffer,
    status: LocalBuffer,
    repeated: u64,
}

impl Client {
    fn connect(server: &str) -> Result<Client> {
        let route = Route::resolve(server)?;
        let context = route.device().open()?;
        let (pd, cq) = (context.pd(), context.completion_queue()?);
        let qp: PreparedQueuePair = pd.queue_pair(&cq, &cq).build()?;
        let connection = route.connect(qp, &Options::default())?;
        let table = connection.private_data().first_chunk();
        let table = RemoteRegion::from_bytes(table.ok_or("not a server of this example")?);
        Ok(Client {
            slots: pd.buffer(PROBES * SLOT)?,
            request: pd.buffer(SLOT)?,
            status: pd.buffer(1)?,
            connection,
            cq,
            table,
            repeated: 0,
        })
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let entry = entry(key, value)?;
        let qp = self.connection.queue_pair();
        let (mut request, status) = (
            std::mem::take(&mut self.request),
            std::mem::take(&mut self.status),
        );
        request.fill(&entry)?;
        qp.post_receive(ReceiveRequest::into(status))?;
        qp.post_send(SendRequest::send(request))?;
        for _ in 0..2 {
            let completion = self.cq.wait()?;
            completion.result?;
            let buffer = completion.buffer.unwrap_or_default();
            match completion.queue {
                WorkQueue::Send => self.request = buffer,
                WorkQueue::Receive => self.status = buffer,
            }
        }
        match self.status[..] {
            [STORED] => Ok(()),
            [FULL] => Err("the slots of the key are in use".into()),
            _ => Err("a malformed answer".into()),
        }
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let at = (position(key) * SLOT) as u64;
        let from = self.table.slice(at..at + (PROBES * SLOT) as u64)?;
        loop {
            let into = std::mem::take(&mut self.slots);
            let qp = self.connection.queue_pair();
            qp.post_send(SendRequest::read(into, &from))?;
            let completion = self.cq.wait()?;
            completion.result?;
            self.slots = completion.buffer.unwrap_or_default();
            if let Some(found) = find(&self.slots, key) {
                return Ok(found.map(<[u8]>::to_vec));
            }
            self.repeated += 1;
        }
    }
}

/// Finds the value of a key; `None` if a slot is being changed.
fn find<'a>(slots: &'a [u8], key: &[u8]) -> Option<Option<&'a [u8]>> {
    for slot in slots.chunks_exact(SLOT) {
        let (sum, rest) = slot.split_first_chunk()?;
        let Some((found, value)) = parse(rest) else {
            // A slot that was never used ends the probes.
            return (rest[..2] == [0, 0]).then_some(None);
        };
        if hash(&rest[..2 + found.len() + value.len()]).to_le_bytes() != *sum {
            return None;
        }
        if found == key {
            return Some(Some(value));
        }
    }
    Some(None)
}

fn bench(server: &str, count: u32) -> Result<()> {
    let mut client = Client::connect(server)?;
    let key = |n: u32| format!("key {}", n % 1000).into_bytes();
    let started = Instant::now();
    for n in 0..count {
        client.put(&key(n), &n.to_le_bytes())?;
    }
    println!("put: {:.1} us each", micros(started) / f64::from(count));
    let started = Instant::now();
    for n in 0..count {
        client.get(&key(n))?.ok_or("a key is missing")?;
    }
    println!("get: {:.1} us each", micros(started) / f64::from(count));
    Ok(())
}

fn micros(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e6
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", address] => serve(&Listener::bind(address)?),
        ["put", server, key, value] => {
            Client::connect(server)?.put(key.as_bytes(), value.as_bytes())
        }
        ["get", server, key] => {
            match Client::connect(server)?.get(key.as_bytes())? {
                Some(value) => println!("{}", String::from_utf8_lossy(&value)),
                None => println!("no such key"),
            }
            Ok(())
        }
        ["bench", server, count] => bench(server, count.parse()?),
        _ => Err("usage: kv serve ADDRESS | put|get|bench ADDRESS ...".into()),
    }
}

#[test]
fn it_works() -> Result<()> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr().to_string();
    thread::spawn(move || serve(&listener));
    let mut client = Client::connect(&address)?;
    assert_eq!(client.get(b"colour")?, None);
    client.put(b"colour", b"red")?;
    client.put(b"colour", b"green")?;
    client.put(b"size", b"")?;
    assert_eq!(client.get(b"colour")?.as_deref(), Some(&b"green"[..]));
    assert_eq!(client.get(b"size")?.as_deref(), Some(&b""[..]));
    assert!(client.put(b"", b"x").is_err());

    // Reads that overlap writes return one value or the other.
    let values = [[b'a'; 100], [b'b'; 80].repeat(2)[..100].try_into()?];
    client.put(b"busy", &values[0])?;
    let other = thread::spawn({
        let address = address.clone();
        move || -> Result<()> {
            let mut other = Client::connect(&address)?;
            for n in 0..500 {
                other.put(b"busy", &values[n % 2])?;
            }
            Ok(())
        }
    });
    while !other.is_finished() {
        let value = client.get(b"busy")?.ok_or("the key is missing")?;
        assert!(values.iter().any(|written| written[..] == value));
    }
    other.join().map_err(|_| "the writer panicked")??;
    bench(&address, 100)
}
