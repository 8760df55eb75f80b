//! The measuring end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use urxe::cm::{Connection, Options, Route};
use urxe::{
    Completion, CompletionQueue, LocalWord, MemoryRegion, ProtectionDomain, ReceiveRequest,
    RemoteAccess, RemoteRegion, SendRequest, WorkQueue,
};

use super::error::PerfError;
use super::latency::Latencies;
use super::session::{Operation, Session, WORD};

/// The time for outstanding operations to complete at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// The time for which a measurement waits for any completion.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Completions taken at once.
const BATCH: usize = 64;

/// A connection with its memory at both ends.
struct Lane {
    connection: Connection,
    memory: MemoryRegion,
    remote: RemoteRegion,
}

/// What was measured.
#[derive(Debug)]
pub struct Measured {
    pub elapsed: Duration,
    pub operations: u64,
    pub latencies: Latencies,
    /// The CPU time of this process.
    pub cpu: Duration,
    pub retransmitted: u64,
    pub timeouts: u64,
    pub rnr_naks: u64,
}

/// The queue for all connections of a measurement, which share a device.
struct Opened {
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

/// Connects once. `depth` is the number of outstanding work requests.
fn connect(
    peer: SocketAddr,
    session: Session,
    depth: u32,
    opened: &mut Option<Opened>,
) -> Result<Lane, PerfError> {
    let failed = |source| PerfError::Connect { peer, source };
    let route = Route::resolve(peer).map_err(failed)?;
    let Opened { pd, cq } = match opened {
        Some(opened) => opened,
        None => {
            let context = route.device().open().map_err(urxe::Error::from)?;
            let (pd, cq) = (context.pd(), context.completion_queue()?);
            opened.insert(Opened { pd, cq })
        }
    };
    let size = session.size.max(WORD) as usize;
    // A ping needs a second buffer for the echo; atomics need a result each.
    let len = match session.operation {
        Operation::Ping => 2 * size,
        Operation::Atomic => depth as usize * WORD as usize,
        _ => size,
    };
    let memory = pd.register(len, RemoteAccess::empty())?;
    let qp = pd.queue_pair(cq, cq).max_send_wr(depth).build()?;
    let options = Options::with_private_data(&session.to_bytes());
    let connection = route.connect(qp, &options).map_err(failed)?;
    let remote = connection
        .private_data()
        .first_chunk()
        .map(RemoteRegion::from_bytes)
        .ok_or(PerfError::OtherProgram)?;
    Ok(Lane {
        connection,
        memory,
        remote,
    })
}

/// Repeats an operation for `duration`, with `depth` of them outstanding on each of `qps`
/// connections.
pub fn measure(
    peer: SocketAddr,
    session: Session,
    qps: u32,
    depth: u32,
    duration: Duration,
) -> Result<Measured, PerfError> {
    let mut opened = None;
    let lanes = (0..qps)
        .map(|_| connect(peer, session, depth, &mut opened))
        .collect::<Result<Vec<_>, _>>()?;
    let Some(Opened { cq, .. }) = &opened else {
        return Err(PerfError::NoQueuePair);
    };
    let slots = (qps * depth) as usize;
    let results = results(&lanes, session, depth)?;
    let mut started = vec![Instant::now(); slots];
    let mut latencies = Latencies::new();
    let post = |slot: usize| -> urxe::Result<()> {
        let lane = &lanes[slot / depth as usize];
        let request = request(lane, session, results.get(slot))?;
        Ok(lane
            .connection
            .queue_pair()
            .post_send(request.id(slot as u64))?)
    };

    let cpu = cpu_time();
    let begin = Instant::now();
    for (slot, at) in started.iter_mut().enumerate() {
        *at = Instant::now();
        post(slot)?;
    }
    let mut outstanding = slots;
    let mut operations = 0;
    let mut end = begin;
    let mut completions = Vec::with_capacity(BATCH);
    while outstanding > 0 {
        let over = begin.elapsed() >= duration;
        let timeout = if over { DRAIN_TIMEOUT } else { STALL_TIMEOUT };
        take(cq, &mut completions, timeout)?;
        let now = Instant::now();
        for completion in completions.drain(..) {
            completion.result.map_err(PerfError::Operation)?;
            let slot = completion.wr_id as usize;
            latencies.record(now - started[slot]);
            operations += 1;
            end = now;
            if over {
                outstanding -= 1;
            } else {
                started[slot] = Instant::now();
                post(slot)?;
            }
        }
    }
    let cpu = cpu_time().saturating_sub(cpu);
    let mut measured = Measured {
        elapsed: end - begin,
        operations,
        latencies,
        cpu,
        retransmitted: 0,
        timeouts: 0,
        rnr_naks: 0,
    };
    for lane in lanes {
        let counters = lane.connection.queue_pair().counters();
        measured.retransmitted += counters.retransmitted;
        measured.timeouts += counters.timeouts;
        measured.rnr_naks += counters.rnr_naks_received;
        // The results are complete; a peer that does not confirm the end does not matter.
        let _ = lane.connection.disconnect();
    }
    Ok(measured)
}

/// The words for the results of atomics, one for each outstanding operation.
fn results(lanes: &[Lane], session: Session, depth: u32) -> Result<Vec<LocalWord>, PerfError> {
    if session.operation != Operation::Atomic {
        return Ok(Vec::new());
    }
    let words = lanes.iter().flat_map(|lane| {
        (0..depth as usize).map(|i| lane.memory.word(i * WORD as usize).map_err(PerfError::from))
    });
    words.collect()
}

fn request<'a>(
    lane: &Lane,
    session: Session,
    result: Option<&LocalWord>,
) -> urxe::Result<SendRequest<'a>> {
    let remote = || lane.remote.slice(..u64::from(session.size));
    let local = || lane.memory.slice(..session.size as usize);
    Ok(match (session.operation, result) {
        (Operation::Atomic, Some(result)) => {
            SendRequest::fetch_add(result, lane.remote.word(0)?, 1)
        }
        (Operation::Write, _) => SendRequest::write(local()?, &remote()?),
        (Operation::Read, _) => SendRequest::read(local()?, &remote()?),
        _ => SendRequest::send(local()?),
    })
}

/// Takes completions, and sleeps until there is one.
fn take(
    cq: &CompletionQueue,
    completions: &mut Vec<Completion>,
    timeout: Duration,
) -> Result<(), PerfError> {
    if cq.poll_into(completions, BATCH) == 0 {
        let first = cq.wait_timeout(timeout).map_err(urxe::Error::from)?;
        completions.push(first.ok_or(PerfError::Stalled(timeout))?);
    }
    Ok(())
}

/// Sends `count` messages, one each `interval`, and calls `each` with every round trip.
pub fn ping(
    peer: SocketAddr,
    session: Session,
    count: u64,
    interval: Duration,
    mut each: impl FnMut(u64, Duration),
) -> Result<Measured, PerfError> {
    let mut opened = None;
    let lane = connect(peer, session, 1, &mut opened)?;
    let Some(Opened { cq, .. }) = &opened else {
        return Err(PerfError::NoQueuePair);
    };
    let qp = lane.connection.queue_pair();
    let size = session.size as usize;
    let message = lane.memory.slice(..size)?;
    let echo = lane
        .memory
        .slice(lane.memory.len() / 2..lane.memory.len() / 2 + size)?;
    let mut latencies = Latencies::new();
    let cpu = cpu_time();
    let begin = Instant::now();
    for number in 1..=count {
        if number > 1 {
            std::thread::sleep(interval);
        }
        qp.post_receive(ReceiveRequest::into(echo.clone()))?;
        let start = Instant::now();
        qp.post_send(SendRequest::send(message.clone()))?;
        let round_trip = wait_for_echo(cq, start)?;
        latencies.record(round_trip);
        each(number, round_trip);
    }
    let counters = qp.counters();
    let measured = Measured {
        elapsed: begin.elapsed(),
        operations: count,
        latencies,
        cpu: cpu_time().saturating_sub(cpu),
        retransmitted: counters.retransmitted,
        timeouts: counters.timeouts,
        rnr_naks: counters.rnr_naks_received,
    };
    // The results are complete; a peer that does not confirm the end does not matter.
    let _ = lane.connection.disconnect();
    Ok(measured)
}

/// Waits until both the message is acknowledged and the echo has arrived.
fn wait_for_echo(cq: &CompletionQueue, start: Instant) -> Result<Duration, PerfError> {
    let (mut echoed, mut sent) = (None, false);
    loop {
        let completion = cq.wait_timeout(STALL_TIMEOUT).map_err(urxe::Error::from)?;
        let completion = completion.ok_or(PerfError::Stalled(STALL_TIMEOUT))?;
        completion.result.map_err(PerfError::Operation)?;
        match completion.queue {
            WorkQueue::Receive => echoed = Some(start.elapsed()),
            WorkQueue::Send => sent = true,
        }
        if let Some(round_trip) = echoed
            && sent
        {
            return Ok(round_trip);
        }
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec as u32)
}
