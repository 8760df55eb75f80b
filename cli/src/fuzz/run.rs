//! Goes through the cases: sends, listens, and holds what comes back against what is asked.

use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::{Rng as _, RngExt as _};
use urxe_proto::ids::Qpn;
use urxe_proto::psn::Psn;
use urxe_proto::wire::{Operation, Packet, Position, Reth, Syndrome};

use super::connection::{self, ConnectError, Connection, MTU};
use super::link::{Arrival, Link, LinkError};
use super::oracle::Responder;
use super::packets::{self, Trial};
use super::report::{Departure, Report};
use super::verdict::{Answer, Asked, is_end};
use super::{Draw, Way};

/// How long one may take that need not come, where the next packet depends on it.
const MOMENT: Duration = Duration::from_millis(20);
/// How often a probe is repeated: the network may lose some.
const PROBES: usize = 3;
/// Packets that are tried in a case, at most.
const STEPS: u32 = 12;
/// Refilling is by writes of one packet.
const PIECE: u32 = MTU.bytes() as u32;

/// The peer, and what is known of it.
pub struct Run<'a> {
    link: &'a Link,
    way: Way,
    seed: u64,
    /// How long an answer may take that must come.
    patience: Duration,
    /// What the granted memory holds.
    memory: Vec<u8>,
    open: Option<Open>,
    pub report: Report,
    /// Tells each packet.
    trace: bool,
    /// Where the case's numbers come from that it does not try: those of its connections.
    numbers: Draw,
}

/// A connection that is used.
struct Open {
    connection: Connection,
    responder: Responder,
}

/// What came of a case.
pub enum Ending {
    /// The next one can follow.
    Whole,
    /// There is no other connection to be had, and this one is over.
    Over,
}

impl<'a> Run<'a> {
    pub fn new(link: &'a Link, way: Way, seed: u64, patience: Duration, trace: bool) -> Self {
        Run {
            link,
            way,
            seed,
            patience,
            memory: Vec::new(),
            open: None,
            report: Report::default(),
            trace,
            numbers: Draw::seed_from_u64(rand::random()),
        }
    }

    /// One case: some packets, then a look at all of the memory. It depends on the seed and its number
    /// alone, and on how much the peer grants.
    pub fn case(&mut self, number: u64) -> Result<Ending, ConnectError> {
        let mut draw = Draw::seed_from_u64(self.seed.rotate_left(32) ^ number);
        let Some(mut open) = self.opened()? else {
            return Ok(Ending::Over);
        };
        self.report.cases += 1;
        let steps = draw.random_range(1..=STEPS);
        let mut lives = true;
        for _ in 0..steps {
            let trial = packets::draw(&mut draw, &open.responder);
            let look = draw.random_bool(0.8);
            lives = self.step(number, &mut open, &trial, look)?;
            if !lives {
                break;
            }
        }
        // Within a message no READ may begin: it goes to its end first.
        while lives && open.responder.under_way().is_some() {
            let end = packets::finish(&open.responder);
            lives = self.step(number, &mut open, &end, false)?;
        }
        if lives {
            self.open = Some(open);
        } else {
            self.close(&open.connection)?;
            self.open = None;
        }
        self.look_at_memory(number)?;
        Ok(Ending::Whole)
    }

    /// Ends what is open.
    pub fn end(&mut self) -> Result<(), ConnectError> {
        match self.open.take() {
            Some(open) => self.close(&open.connection),
            None => Ok(()),
        }
    }

    fn close(&mut self, connection: &Connection) -> Result<(), ConnectError> {
        connection::disconnect(self.link, connection)
    }

    /// The connection that is open, or a new one; `None` where none can be made.
    fn opened(&mut self) -> Result<Option<Open>, ConnectError> {
        if let Some(open) = self.open.take() {
            return Ok(Some(open));
        }
        let connection = match self.way {
            Way::Listener(port) => connection::connect(self.link, port, &mut self.numbers)?,
            Way::Given(connection) if self.report.connections == 0 => connection,
            Way::Given(_) => return Ok(None),
        };
        self.report.connections += 1;
        let responder = Responder::new(&connection);
        let mut open = Open {
            connection,
            responder,
        };
        let len = connection.grant.map_or(0, |grant| grant.len as usize);
        if self.memory.len() != len {
            self.memory = vec![0; len];
            self.fill(&mut open)?;
        }
        Ok(Some(open))
    }

    /// Writes to all of the memory, so that what it holds is known.
    fn fill(&mut self, open: &mut Open) -> Result<(), ConnectError> {
        let Some(grant) = open.connection.grant else {
            return Ok(());
        };
        for offset in (0..grant.len).step_by(PIECE as usize) {
            let length = PIECE.min(grant.len - offset);
            let mut data = vec![0; length as usize];
            self.numbers.fill_bytes(&mut data);
            let reth = Reth {
                addr: grant.addr + u64::from(offset),
                rkey: grant.rkey,
                length,
            };
            let bytes = packets::write(&open.responder, reth, &data);
            let trial = Trial {
                bytes,
                sealed: true,
            };
            if !self.step(0, open, &trial, false)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads all of the memory: nothing else may have been written.
    fn look_at_memory(&mut self, number: u64) -> Result<(), ConnectError> {
        let Some(mut open) = self.opened()? else {
            return Ok(());
        };
        let mut lives = true;
        if let Some(grant) = open.connection.grant {
            let reth = Reth {
                addr: grant.addr,
                rkey: grant.rkey,
                length: grant.len,
            };
            let bytes = packets::read(&open.responder, reth);
            lives = self.step(
                number,
                &mut open,
                &Trial {
                    bytes,
                    sealed: true,
                },
                false,
            )?;
        }
        match lives {
            true => self.open = Some(open),
            false => {
                // What it holds is not known any more.
                self.memory.clear();
                self.close(&open.connection)?;
            }
        }
        Ok(())
    }

    /// Sends a packet and judges the answer. With `look` a probe follows, which shows that nothing else
    /// is answered. Says whether the connection goes on.
    fn step(
        &mut self,
        number: u64,
        open: &mut Open,
        trial: &Trial,
        look: bool,
    ) -> Result<bool, ConnectError> {
        let asked = open.responder.ask(&trial.bytes, trial.sealed, &self.memory);
        let expected = open.responder.expected();
        self.link.send(&trial.bytes, trial.sealed)?;
        self.report.packets += 1;
        let mut heard = Heard::new(&open.connection, &trial.bytes, expected, &asked);
        if asked.wants_answer() {
            self.listen(&mut heard, self.patience)?;
        } else if asked.decides_next() {
            self.listen(&mut heard, MOMENT)?;
        }
        let mut answers = heard.answers();
        let early = answers.first().is_some_and(is_end) || !asked.allows(&answers);
        let mut lives = !early;
        // Where nothing is asked for, only a probe can tell that nothing comes.
        let look = look || answers.is_empty();
        if lives {
            let memory = &mut self.memory;
            lives = open.responder.note(&asked, &trial.bytes, &answers, memory);
        }
        if lives && look {
            let more;
            (more, lives) = self.look(open, &asked, &trial.bytes, expected)?;
            answers.extend(more);
        }
        let right = asked.allows(&answers);
        if self.trace {
            self.tell(trial, &asked, &answers, right);
        }
        self.report.count(&asked, right, || {
            let (asked, mut answered) = (asked.to_string(), words(&answers));
            if asked == answered {
                answered.push_str(" with other data");
            }
            Departure {
                seed: self.seed,
                case: number,
                asked,
                answered,
            }
        });
        Ok(lives && right)
    }

    /// Probes until the probe is answered; what came before that, and whether the peer still answers.
    fn look(
        &mut self,
        open: &mut Open,
        asked: &Asked,
        trial: &[u8],
        before: Psn,
    ) -> Result<(Vec<Answer>, bool), ConnectError> {
        let probe = packets::probe(&open.responder);
        let question = open.responder.ask(&probe, true, &self.memory);
        let expected = open.responder.expected();
        let mut answers = Vec::new();
        for _ in 0..PROBES {
            self.link.send(&probe, true)?;
            self.report.packets += 1;
            let mut heard = Heard::new(&open.connection, trial, before, asked);
            heard.probe = Some(probe_answer(&probe, expected));
            self.listen(&mut heard, self.patience)?;
            let probed = heard.probed;
            answers.extend(heard.answers());
            if probed {
                let memory = &mut self.memory;
                open.responder
                    .note(&question, &probe, &[Answer::Ack], memory);
                return Ok((answers, true));
            }
            if answers.iter().any(is_end) {
                return Ok((answers, false));
            }
        }
        if asked.allows(&answers) {
            answers.push(Answer::Strange("no more answers at all".to_owned()));
        }
        Ok((answers, false))
    }

    /// Listens until an answer is complete, or the probe answered, or the time over.
    fn listen(&mut self, heard: &mut Heard, patience: Duration) -> Result<(), LinkError> {
        let until = Instant::now() + patience;
        while !heard.is_complete() {
            match self.link.receive(until)? {
                None => break,
                Some(Arrival::Damaged) => heard.strange("a packet with a wrong ICRC"),
                Some(Arrival::Packet(bytes)) => heard.take(&bytes),
            }
        }
        Ok(())
    }

    fn tell(&self, trial: &Trial, asked: &Asked, answers: &[Answer], right: bool) {
        let what = match Packet::parse(&trial.bytes) {
            Ok(packet) => format!(
                "{}, PSN {}",
                packet.header.bth.opcode, packet.header.bth.psn
            ),
            Err(error) => error.to_string(),
        };
        let hex: String = trial
            .bytes
            .iter()
            .take(48)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        println!("{what}, {} bytes: {hex}", trial.bytes.len());
        for rule in &asked.rules {
            println!("    {}", rule.text());
        }
        let verdict = if right { "as asked" } else { "NOT AS ASKED" };
        println!(
            "    asked: {asked}; answered: {}: {verdict}",
            words(answers)
        );
    }
}

/// Answers in words.
fn words(answers: &[Answer]) -> String {
    let words: Vec<String> = answers.iter().map(Answer::to_string).collect();
    match words.is_empty() {
        true => "nothing".to_owned(),
        false => words.join(", "),
    }
}

/// The PSN of the acknowledgement of a probe: its own, or the latest one when it is a repetition.
fn probe_answer(probe: &[u8], expected: Psn) -> Psn {
    let psn = Packet::parse(probe).map_or(expected, |packet| packet.header.bth.psn);
    if psn == expected {
        psn
    } else {
        expected.prev()
    }
}

/// What comes back after a packet.
struct Heard {
    own_qpn: Qpn,
    /// The packet's PSN, and the one that was expected.
    psn: Psn,
    expected: Psn,
    /// Whether an acknowledgement of what was acknowledged before counts as an answer. Otherwise it is one to
    /// an earlier packet, which may come late.
    repeated: bool,
    /// The PSN of the acknowledgement that a probe will get.
    probe: Option<Psn>,
    probed: bool,
    answers: Vec<Answer>,
    /// The data of a READ of which not all has come.
    partial: Option<Vec<u8>>,
}

impl Heard {
    fn new(connection: &Connection, trial: &[u8], expected: Psn, asked: &Asked) -> Self {
        let psn = trial.get(9..12).map_or(expected, |psn| {
            Psn::new(u32::from_be_bytes([0, psn[0], psn[1], psn[2]]))
        });
        Heard {
            own_qpn: connection.own_qpn,
            psn,
            expected,
            repeated: asked.may_acknowledge_again(),
            probe: None,
            probed: false,
            answers: Vec::new(),
            partial: None,
        }
    }

    fn strange(&mut self, what: impl Into<String>) {
        self.answers.push(Answer::Strange(what.into()));
    }

    /// Nothing more needs to be waited for.
    fn is_complete(&self) -> bool {
        match self.probe {
            None => !self.answers.is_empty(),
            Some(_) => self.probed || self.answers.iter().any(is_end),
        }
    }

    fn answers(self) -> Vec<Answer> {
        let mut answers = self.answers;
        if self.partial.is_some() {
            answers.push(Answer::Strange("part of a READ response".to_owned()));
        }
        answers
    }

    fn take(&mut self, bytes: &[u8]) {
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.strange(format!("no packet: {error}")),
        };
        let header = &packet.header;
        // The connection manager's messages, and answers on former connections, are not for here.
        if header.bth.dest_qp != self.own_qpn {
            return;
        }
        let psn = header.bth.psn;
        let info = header.bth.opcode.info();
        let syndrome = header.aeth.map(|aeth| aeth.syndrome);
        match (info.operation, syndrome) {
            (Operation::Ack, Some(Syndrome::Ack(_))) => self.acknowledged(psn),
            (Operation::Ack, Some(Syndrome::RnrNak(_))) => self.answers.push(Answer::NotReady),
            (Operation::Ack, Some(Syndrome::Nak(code))) => {
                let answer = Answer::Nak(code);
                // The NAK for what is missing names that; one for a request, the request.
                let right = if is_end(&answer) {
                    self.psn
                } else {
                    self.expected
                };
                match psn == right {
                    true => self.answers.push(answer),
                    false => self.strange(format!("{answer} of PSN {psn}, not of {right}")),
                }
            }
            (Operation::AtomicAck, _) => match header.atomic_ack {
                Some(found) if psn == self.psn => self.answers.push(Answer::Found(found)),
                _ => self.strange(format!("ATOMIC response of PSN {psn}")),
            },
            (Operation::ReadResponse, _) => self.data(info.position, psn, packet.payload),
            _ => self.strange(format!("{}", header.bth.opcode)),
        }
    }

    fn acknowledged(&mut self, psn: Psn) {
        if self.probe == Some(psn) {
            self.probed = true;
        } else if psn == self.expected || (self.repeated && psn.before(self.expected)) {
            self.answers.push(Answer::Ack);
        } else if psn.after(self.expected) {
            self.strange(format!(
                "ACK of PSN {psn}, where {} was expected",
                self.expected
            ));
        }
    }

    fn data(&mut self, position: Position, psn: Psn, data: &[u8]) {
        let starts = position.starts();
        let before = self.partial.take();
        if starts && psn != self.psn {
            return self.strange(format!("READ response of PSN {psn}, not of {}", self.psn));
        }
        let mut all = match (starts, before) {
            (true, None) => Vec::new(),
            (false, Some(before)) => before,
            _ => return self.strange(format!("READ response {position:?} out of sequence")),
        };
        all.extend(data);
        match position.ends() {
            true => self.answers.push(Answer::Data(all)),
            false => self.partial = Some(all),
        }
    }
}
