//! The listening end: serves each connection in a thread.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use urxe::cm::{Connection, Event, Listener, Options, Request};
use urxe::{CompletionQueue, MemoryRegion, ReceiveRequest, RemoteAccess, SendRequest, WorkQueue};

use super::error::PerfError;
use super::session::{Operation, Session, WORD};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 1024;
/// Receives posted for SENDs: so many that few RNR NAKs are sent while this process has no
/// processor. They share one buffer.
const RECEIVES: u32 = 8192;
/// Completions taken at once.
const BATCH: usize = 64;
/// Receives posted for pings. An echo is sent from the buffer of its receive.
const ECHOES: u32 = 4;
/// The time between two checks of whether a connection without messages has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Serves connections until an error.
pub fn listen(port: u16) -> Result<(), PerfError> {
    let address = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port));
    let listener = Listener::bind(address).map_err(|source| PerfError::Listen { port, source })?;
    let port = listener.local_addr().port();
    // A failed write means that the reader closed the pipe.
    let _ = writeln!(io::stdout(), "listening at port {port} of all addresses");
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let request = listener.next()?;
        if connections.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
            // Dropping the request rejects it.
            continue;
        }
        connections.fetch_add(1, Ordering::Relaxed);
        let connections = Arc::clone(&connections);
        thread::spawn(move || {
            let peer = request.peer_addr();
            if let Err(error) = serve(request) {
                let peer = peer.map_or_else(|| "a peer".to_owned(), |peer| peer.ip().to_string());
                eprintln!("urxe perf: connection of {peer}: {error}");
            }
            connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn serve(request: Request) -> Result<(), PerfError> {
    let Some(session) = Session::from_bytes(request.private_data()) else {
        let _ = request.reject(b"not a request of urxe ping or urxe perf");
        return Err(PerfError::OtherProgram);
    };
    let receives = match session.operation {
        Operation::Send => RECEIVES,
        Operation::Ping => ECHOES,
        _ => 0,
    };
    let context = request.device().open().map_err(urxe::Error::from)?;
    let (pd, cq) = (context.pd(), context.completion_queue()?);
    let size = session.size.max(WORD) as usize;
    // SENDs all arrive in one buffer, because their content is not used.
    let buffers = match session.operation {
        Operation::Ping => ECHOES as usize,
        _ => 1,
    };
    let rights = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
    let memory = pd.register(size * buffers, rights)?;
    let qp = pd
        .queue_pair(&cq, &cq)
        .max_recv_wr(receives.max(1))
        .remote_access(rights)
        .build()?;
    let buffer = |i: u64| {
        let start = i as usize % buffers * size;
        memory.slice(start..start + session.size as usize)
    };
    for i in 0..u64::from(receives) {
        qp.post_receive(ReceiveRequest::into(buffer(i)?).id(i))?;
    }
    let reply = memory.remote().to_bytes();
    let connection = request.accept(qp, &Options::with_private_data(&reply))?;
    let served = match session.operation {
        Operation::Send | Operation::Ping => {
            serve_receives(&connection, &cq, &memory, session, size)
        }
        // The peer needs no work requests here.
        _ => wait_for_the_end(&connection),
    };
    served.map_err(PerfError::from)
}

fn wait_for_the_end(connection: &Connection) -> urxe::Result<()> {
    loop {
        if let Event::Disconnected | Event::DeviceRemoved = connection.next()? {
            return Ok(());
        }
    }
}

/// Posts each receive again, and sends pings back.
fn serve_receives(
    connection: &Connection,
    cq: &CompletionQueue,
    memory: &MemoryRegion,
    session: Session,
    size: usize,
) -> urxe::Result<()> {
    let qp = connection.queue_pair();
    let is_ping = session.operation == Operation::Ping;
    let buffer = |i: u64| {
        let start = if is_ping { i as usize * size } else { 0 };
        memory.slice(start..start + session.size as usize)
    };
    let mut completions = Vec::with_capacity(BATCH);
    loop {
        if cq.poll_into(&mut completions, BATCH) == 0 {
            completions.extend(cq.wait_timeout(CHECK_INTERVAL)?);
        }
        if completions.is_empty()
            && let Some(Event::Disconnected | Event::DeviceRemoved) = connection.try_next()?
        {
            return Ok(());
        }
        for completion in completions.drain(..) {
            if completion.result.is_err() {
                // Receives are flushed when the peer disconnects.
                return Ok(());
            }
            let i = completion.wr_id;
            match completion.queue {
                WorkQueue::Receive if is_ping => {
                    qp.post_send(SendRequest::send(buffer(i)?).id(i))?;
                }
                _ => qp.post_receive(ReceiveRequest::into(buffer(i)?).id(i))?,
            }
        }
    }
}
