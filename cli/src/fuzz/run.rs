//! Runs test cases: sends packets, collects responses and compares them with the allowed ones.

use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::{Rng as _, RngExt as _};
use urxe_proto::ids::Qpn;
use urxe_proto::psn::Psn;
use urxe_proto::wire::{Operation, Packet, Position, Reth, Syndrome};

use super::connection::{self, ConnectError, Connection, MTU};
use super::link::{Arrival, Link, LinkError};
use super::oracle::Responder;
use super::packets::{self, TestPacket};
use super::report::{Report, Violation};
use super::rng::TestRng;
use super::verdict::{Allowed, Response, is_fatal};

/// The source of connections.
#[derive(Clone, Copy)]
pub enum ConnectionSource {
    /// Connect by the RDMA CM to this port.
    Cm(u16),
    /// Use this established connection.
    ExistingConnection(Connection),
}

/// The time to wait for an optional response that determines the next packet.
const OPTIONAL_RESPONSE_TIMEOUT: Duration = Duration::from_millis(20);
/// The number of probes without an ACK after which the peer counts as unresponsive; more than one,
/// because the network may lose packets.
const MAX_PROBES: usize = 3;
/// The largest number of random packets in a case.
const MAX_STEPS: u32 = 12;
/// The number of connections on which the memory is initialized before the run ends: a peer that
/// ends each of them is not tested any further.
const MAX_FILLS: usize = 3;
/// The size of a WRITE that initializes the memory: one packet.
const CHUNK: u32 = MTU.bytes() as u32;

/// The state of a fuzzing run against a peer.
pub struct Run<'a> {
    link: &'a Link,
    source: ConnectionSource,
    seed: u64,
    /// The time to wait for a required response.
    timeout: Duration,
    /// The expected content of the granted memory.
    memory: Vec<u8>,
    open: Option<OpenConnection>,
    pub report: Report,
    /// Whether to print each packet.
    trace: bool,
    /// Random numbers that are not part of test cases: those of connections, and the data that
    /// initializes the memory.
    rng: TestRng,
}

/// The connection in use, and the model of the peer's responder.
struct OpenConnection {
    connection: Connection,
    responder: Responder,
}

/// The end of a test case.
pub enum CaseEnd {
    /// The next case can follow.
    Continue,
    /// The connection has ended and no other one can be established.
    NoConnection,
}

impl<'a> Run<'a> {
    pub fn new(
        link: &'a Link,
        source: ConnectionSource,
        seed: u64,
        timeout: Duration,
        trace: bool,
    ) -> Self {
        Run {
            link,
            source,
            seed,
            timeout,
            memory: Vec::new(),
            open: None,
            report: Report::default(),
            trace,
            rng: TestRng::seed_from_u64(rand::random()),
        }
    }

    /// Runs one case: some packets, then a check of the whole memory. The case depends only on the
    /// seed, its number, and the memory that the peer grants.
    pub fn case(&mut self, number: u64) -> Result<CaseEnd, ConnectError> {
        let mut rng = TestRng::seed_from_u64(self.seed.rotate_left(32) ^ number);
        let Some(mut open) = self.connection()? else {
            return Ok(CaseEnd::NoConnection);
        };
        self.report.cases += 1;
        let steps = rng.random_range(1..=MAX_STEPS);
        let mut alive = true;
        for _ in 0..steps {
            let packet = packets::generate(&mut rng, &open.responder);
            let probe = rng.random_bool(0.8);
            alive = self.send_and_check(number, &mut open, &packet, probe)?;
            if !alive {
                break;
            }
        }
        // A READ cannot begin within a message, so the message is completed first.
        while alive && open.responder.message_in_progress().is_some() {
            let end = packets::finish(&open.responder);
            alive = self.send_and_check(number, &mut open, &end, false)?;
        }
        if alive {
            self.open = Some(open);
        } else {
            self.close(&open.connection)?;
            self.open = None;
        }
        self.check_memory(number)?;
        Ok(CaseEnd::Continue)
    }

    /// Closes the connection, if one is open.
    pub fn end(&mut self) -> Result<(), ConnectError> {
        match self.open.take() {
            Some(open) => self.close(&open.connection),
            None => Ok(()),
        }
    }

    fn close(&mut self, connection: &Connection) -> Result<(), ConnectError> {
        connection::disconnect(self.link, connection)
    }

    /// Returns the open connection or a new one; `None` if none can be established.
    fn connection(&mut self) -> Result<Option<OpenConnection>, ConnectError> {
        if let Some(open) = self.open.take() {
            return Ok(Some(open));
        }
        for _ in 0..MAX_FILLS {
            let connection = match self.source {
                ConnectionSource::Cm(port) => connection::connect(self.link, port, &mut self.rng)?,
                ConnectionSource::ExistingConnection(connection)
                    if self.report.connections == 0 =>
                {
                    connection
                }
                ConnectionSource::ExistingConnection(_) => return Ok(None),
            };
            self.report.connections += 1;
            let responder = Responder::new(&connection);
            let mut open = OpenConnection {
                connection,
                responder,
            };
            let len = connection.grant.map_or(0, |grant| grant.len as usize);
            if self.memory.len() == len {
                return Ok(Some(open));
            }
            self.memory = vec![0; len];
            if self.fill(&mut open)? {
                return Ok(Some(open));
            }
            // The content is unknown.
            self.memory.clear();
            self.close(&open.connection)?;
        }
        Ok(None)
    }

    /// Writes the whole granted memory, so that its content is known. Returns whether the
    /// connection continues.
    fn fill(&mut self, open: &mut OpenConnection) -> Result<bool, ConnectError> {
        let Some(grant) = open.connection.grant else {
            return Ok(true);
        };
        for offset in (0..grant.len).step_by(CHUNK as usize) {
            let length = CHUNK.min(grant.len - offset);
            let mut data = vec![0; length as usize];
            self.rng.fill_bytes(&mut data);
            let reth = Reth {
                addr: grant.addr + u64::from(offset),
                rkey: grant.rkey,
                length,
            };
            let bytes = packets::write(&open.responder, reth, &data);
            let packet = TestPacket {
                bytes,
                valid_icrc: true,
            };
            if !self.send_and_check(0, open, &packet, false)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the whole granted memory, to detect writes that were not allowed.
    fn check_memory(&mut self, number: u64) -> Result<(), ConnectError> {
        let Some(mut open) = self.connection()? else {
            return Ok(());
        };
        let mut alive = true;
        if let Some(grant) = open.connection.grant {
            let reth = Reth {
                addr: grant.addr,
                rkey: grant.rkey,
                length: grant.len,
            };
            let bytes = packets::read(&open.responder, reth);
            alive = self.send_and_check(
                number,
                &mut open,
                &TestPacket {
                    bytes,
                    valid_icrc: true,
                },
                false,
            )?;
        }
        match alive {
            true => self.open = Some(open),
            false => {
                // The content is now unknown.
                self.memory.clear();
                self.close(&open.connection)?;
            }
        }
        Ok(())
    }

    /// Sends a packet and checks the response. With `probe`, a probe follows to detect further
    /// responses. Returns whether the connection continues.
    fn send_and_check(
        &mut self,
        number: u64,
        open: &mut OpenConnection,
        packet: &TestPacket,
        probe: bool,
    ) -> Result<bool, ConnectError> {
        let allowed =
            open.responder
                .allowed_responses(&packet.bytes, packet.valid_icrc, &self.memory);
        let expected = open.responder.expected();
        self.link.send(&packet.bytes, packet.valid_icrc)?;
        self.report.packets += 1;
        let mut collected = Collected::new(&open.connection, &packet.bytes, expected, &allowed);
        if allowed.requires_response() {
            self.collect(&mut collected, self.timeout)?;
        } else if allowed.determines_next() {
            self.collect(&mut collected, OPTIONAL_RESPONSE_TIMEOUT)?;
        }
        let mut responses = collected.into_responses();
        let ended = responses.first().is_some_and(is_fatal) || !allowed.allows(&responses);
        let mut alive = !ended;
        // Only the ACK of a probe proves that the peer sends no response.
        let probe = probe || responses.is_empty();
        if alive {
            let memory = &mut self.memory;
            alive = open
                .responder
                .apply(&allowed, &packet.bytes, &responses, memory);
        }
        if alive && probe {
            let more;
            (more, alive) = self.probe(open, &allowed, &packet.bytes, expected)?;
            responses.extend(more);
        }
        let conforms = allowed.allows(&responses);
        if self.trace {
            self.trace_packet(packet, &allowed, &responses, conforms);
        }
        self.report.count(&allowed, conforms, || {
            let (expected, mut got) = (allowed.to_string(), describe(&responses));
            if expected == got {
                got.push_str(" with wrong data");
            }
            Violation {
                seed: self.seed,
                case: number,
                expected,
                got,
            }
        });
        Ok(alive && conforms)
    }

    /// Sends probes until one is acknowledged. Returns the other responses, and whether a probe was
    /// acknowledged.
    fn probe(
        &mut self,
        open: &mut OpenConnection,
        allowed: &Allowed,
        packet: &[u8],
        before: Psn,
    ) -> Result<(Vec<Response>, bool), ConnectError> {
        let probe = packets::probe(&open.responder);
        let allowed_for_probe = open.responder.allowed_responses(&probe, true, &self.memory);
        let expected = open.responder.expected();
        let mut responses = Vec::new();
        for _ in 0..MAX_PROBES {
            self.link.send(&probe, true)?;
            self.report.packets += 1;
            let mut collected = Collected::new(&open.connection, packet, before, allowed);
            collected.probe = Some(probe_ack_psn(&probe, expected));
            self.collect(&mut collected, self.timeout)?;
            let probe_acked = collected.probe_acked;
            responses.extend(collected.into_responses());
            if probe_acked {
                let memory = &mut self.memory;
                open.responder
                    .apply(&allowed_for_probe, &probe, &[Response::Ack], memory);
                return Ok((responses, true));
            }
            if responses.iter().any(is_fatal) {
                return Ok((responses, false));
            }
        }
        if allowed.allows(&responses) {
            responses.push(Response::Other("no response to any probe".to_owned()));
        }
        Ok((responses, false))
    }

    /// Collects responses until they are complete, the probe is acknowledged, or `timeout` expires.
    fn collect(&mut self, collected: &mut Collected, timeout: Duration) -> Result<(), LinkError> {
        let deadline = Instant::now() + timeout;
        while !collected.is_complete() {
            match self.link.receive(deadline)? {
                None => break,
                Some(Arrival::WrongIcrc) => collected.other("a packet with a wrong ICRC"),
                Some(Arrival::Packet(bytes)) => collected.take(&bytes),
            }
        }
        Ok(())
    }

    fn trace_packet(
        &self,
        packet: &TestPacket,
        allowed: &Allowed,
        responses: &[Response],
        conforms: bool,
    ) {
        let what = match Packet::parse(&packet.bytes) {
            Ok(packet) => format!(
                "{}, PSN {}",
                packet.header.bth.opcode, packet.header.bth.psn
            ),
            Err(error) => error.to_string(),
        };
        let hex: String = packet
            .bytes
            .iter()
            .take(48)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        println!("{what}, {} bytes: {hex}", packet.bytes.len());
        for rule in &allowed.rules {
            println!("    {}", rule.text());
        }
        let verdict = if conforms { "allowed" } else { "NOT ALLOWED" };
        println!(
            "    expected: {allowed}; got: {}: {verdict}",
            describe(responses)
        );
    }
}

/// Formats responses for the report.
fn describe(responses: &[Response]) -> String {
    let words: Vec<String> = responses.iter().map(Response::to_string).collect();
    match words.is_empty() {
        true => "nothing".to_owned(),
        false => words.join(", "),
    }
}

/// Returns the PSN of the ACK for a probe: that of the probe, or, if the probe is a duplicate
/// request, that of the last executed request.
fn probe_ack_psn(probe: &[u8], expected: Psn) -> Psn {
    let psn = Packet::parse(probe).map_or(expected, |packet| packet.header.bth.psn);
    if psn == expected {
        psn
    } else {
        expected.prev()
    }
}

/// The responses to a packet.
struct Collected {
    own_qpn: Qpn,
    /// The PSN of the packet.
    psn: Psn,
    /// The PSN that the peer expected before the packet.
    expected: Psn,
    /// Whether a repeated ACK counts as a response. Otherwise it is a late response to an earlier
    /// packet.
    repeated: bool,
    /// The PSN of the ACK for a probe.
    probe: Option<Psn>,
    probe_acked: bool,
    responses: Vec<Response>,
    /// The data of an incomplete READ response.
    partial: Option<Vec<u8>>,
}

impl Collected {
    fn new(connection: &Connection, packet: &[u8], expected: Psn, allowed: &Allowed) -> Self {
        let psn = packet.get(9..12).map_or(expected, |psn| {
            Psn::new(u32::from_be_bytes([0, psn[0], psn[1], psn[2]]))
        });
        Collected {
            own_qpn: connection.own_qpn,
            psn,
            expected,
            repeated: allowed.allows_repeated_ack(),
            probe: None,
            probe_acked: false,
            responses: Vec::new(),
            partial: None,
        }
    }

    fn other(&mut self, what: impl Into<String>) {
        self.responses.push(Response::Other(what.into()));
    }

    /// Returns whether no further response is expected.
    fn is_complete(&self) -> bool {
        match self.probe {
            None => !self.responses.is_empty(),
            Some(_) => self.probe_acked || self.responses.iter().any(is_fatal),
        }
    }

    fn into_responses(self) -> Vec<Response> {
        let mut responses = self.responses;
        if self.partial.is_some() {
            responses.push(Response::Other("part of a READ response".to_owned()));
        }
        responses
    }

    fn take(&mut self, bytes: &[u8]) {
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.other(format!("malformed packet: {error}")),
        };
        let header = &packet.header;
        // Ignores the connection manager's messages, and responses on earlier connections.
        if header.bth.dest_qp != self.own_qpn {
            return;
        }
        let psn = header.bth.psn;
        let info = header.bth.opcode.info();
        let syndrome = header.aeth.map(|aeth| aeth.syndrome);
        match (info.operation, syndrome) {
            (Operation::Ack, Some(Syndrome::Ack(_))) => self.acknowledged(psn),
            (Operation::Ack, Some(Syndrome::RnrNak(_))) => self.responses.push(Response::RnrNak),
            (Operation::Ack, Some(Syndrome::Nak(code))) => {
                let response = Response::Nak(code);
                // A PSN sequence NAK carries the expected PSN, other NAKs the PSN of the request.
                let expected = if is_fatal(&response) {
                    self.psn
                } else {
                    self.expected
                };
                match psn == expected {
                    true => self.responses.push(response),
                    false => self.other(format!("{response} of PSN {psn}, expected {expected}")),
                }
            }
            (Operation::AtomicAck, _) => match header.atomic_ack {
                Some(found) if psn == self.psn => self.responses.push(Response::AtomicAck(found)),
                _ => self.other(format!("ATOMIC response of PSN {psn}")),
            },
            (Operation::ReadResponse, _) => self.data(info.position, psn, packet.payload),
            _ => self.other(format!("{}", header.bth.opcode)),
        }
    }

    fn acknowledged(&mut self, psn: Psn) {
        if self.probe == Some(psn) {
            self.probe_acked = true;
        } else if psn == self.expected || (self.repeated && psn.before(self.expected)) {
            self.responses.push(Response::Ack);
        } else if psn.after(self.expected) {
            self.other(format!(
                "ACK of PSN {psn}, where {} is expected",
                self.expected
            ));
        }
    }

    fn data(&mut self, position: Position, psn: Psn, data: &[u8]) {
        let starts = position.starts();
        let before = self.partial.take();
        if starts && psn != self.psn {
            return self.other(format!("READ response of PSN {psn}, expected {}", self.psn));
        }
        let mut all = match (starts, before) {
            (true, None) => Vec::new(),
            (false, Some(before)) => before,
            _ => return self.other(format!("READ response {position:?} out of sequence")),
        };
        all.extend(data);
        match position.ends() {
            true => self.responses.push(Response::Read(all)),
            false => self.partial = Some(all),
        }
    }
}
