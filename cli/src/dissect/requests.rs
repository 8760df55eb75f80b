//! Follows the requests of one end of a connection. `responses` takes the peer's responses to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use urxe_proto::psn::Psn;
use urxe_proto::wire::{Operation, RnrTimer, Transport};

use super::finding::{Finding, Kind};
use super::packet::Packet;
use super::sequence::Sequence;

/// An identical packet within this time is a copy, if nothing asked for a retransmission.
const COPY_TIME: Duration = Duration::from_millis(1);
/// The tolerance of a wait after an RNR NAK: that of the clock of the capture.
const CLOCK_TOLERANCE: Duration = Duration::from_micros(50);
/// The largest distance of PSNs within one connection. A larger one means that a queue pair number
/// is used again.
const MAX_DISTANCE: i32 = 1 << 20;

/// What passed in one direction.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Requests, retransmissions included.
    pub requests: u64,
    pub messages: u64,
    /// The payload of requests and of the READ responses to them.
    pub bytes: u64,
    pub retransmitted: u64,
    /// PSNs that are not in the capture.
    pub missing: u64,
    pub acks: u64,
    pub naks: u64,
    pub rnr_naks: u64,
    pub responses: u64,
}

/// The requests of one end.
#[derive(Debug)]
pub struct Requests {
    pub counts: Counts,
    pub(super) mtu: Option<usize>,
    /// The first PSN of the capture and the PSN after the last.
    pub(super) range: Option<(Psn, Psn)>,
    /// The PSN before which the peer has acknowledged all.
    pub(super) una: Psn,
    pub(super) sent: HashMap<u32, Sent>,
    pub(super) reads: BTreeMap<u32, Read>,
    /// READ responses after a missing one.
    pub(super) received: BTreeSet<u32>,
    /// The PSNs of gaps.
    pub(super) missing: BTreeSet<u32>,
    pub(super) sequence: Sequence,
    /// The messages that ended since the last gap.
    pub(super) ended: Ended,
    /// The last MSN with the number of messages that it stands for.
    pub(super) msn: Option<(u32, Ended)>,
    pub(super) nak: Option<Nak>,
    /// An acknowledgement of a PSN that was not sent yet.
    pub(super) ahead: Option<(u64, Duration, Psn)>,
    pub(super) findings: Vec<Finding>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) operation: Operation,
    pub(super) time: Duration,
    pub(super) checksum: u32,
    /// The number of messages that ended up to this packet; `None` for one that fills a gap.
    pub(super) ended: Option<Ended>,
}

/// A number of messages. Numbers can be compared within a span without gaps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) span: u32,
    pub(super) messages: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) start: Psn,
    /// The number of responses.
    pub(super) count: u32,
    pub(super) length: usize,
    /// The PSN of the next response.
    pub(super) next: Psn,
}

impl Read {
    /// The PSN after the last response.
    pub(super) fn end(&self) -> Psn {
        self.start + self.count
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Nak {
    pub(super) frame: u64,
    pub(super) time: Duration,
    pub(super) psn: Psn,
    pub(super) wait: Option<RnrTimer>,
}

impl Requests {
    pub fn new(mtu: Option<usize>) -> Self {
        Self {
            counts: Counts::default(),
            mtu,
            range: None,
            una: Psn::new(0),
            sent: HashMap::new(),
            reads: BTreeMap::new(),
            received: BTreeSet::new(),
            missing: BTreeSet::new(),
            sequence: Sequence::Unknown,
            ended: Ended {
                span: 0,
                messages: 0,
            },
            msn: None,
            nak: None,
            ahead: None,
            findings: Vec::new(),
        }
    }

    /// Takes a request in the order of the capture.
    pub fn request(&mut self, packet: &Packet) {
        self.counts.requests += 1;
        self.counts.bytes += packet.len as u64;
        let psn = packet.header.bth.psn;
        let Some((first, next)) = self.range else {
            self.range = Some((psn, psn));
            self.una = psn;
            self.append(packet);
            return;
        };
        let ahead = psn.diff(next);
        if ahead.abs() > MAX_DISTANCE {
            self.restart(packet, next);
        } else if ahead > 0 {
            self.gap(packet, next, ahead as u32);
        } else if ahead == 0 {
            self.append(packet);
        } else if self.fill(packet) {
            self.late(packet);
        } else if psn.before(first) {
            self.retransmission(
                packet,
                "of a PSN before the start of the capture".to_owned(),
            );
        } else {
            self.again(packet);
        }
    }

    /// Takes a datagram, which neither continues a sequence nor is acknowledged.
    pub fn datagram(&mut self, packet: &Packet) {
        self.counts.requests += 1;
        self.counts.messages += 1;
        self.counts.bytes += packet.len as u64;
    }

    /// A request that continues the sequence.
    fn append(&mut self, packet: &Packet) {
        let psn = packet.header.bth.psn;
        if let Some((frame, time, acknowledged)) = self.ahead.take()
            && !acknowledged.before(psn)
        {
            self.add(
                Finding::new(
                    Kind::Rule,
                    frame,
                    time,
                    "acknowledges a PSN that is sent only afterwards",
                )
                .at(acknowledged)
                .section("9.7.5.2.1"),
            );
        }
        for violation in self.sequence.next(&packet.header, packet.len, self.mtu) {
            self.add(
                Finding::new(Kind::Rule, packet.frame, packet.time, violation.text)
                    .at(psn)
                    .section(violation.section),
            );
        }
        let info = packet.header.bth.opcode.info();
        if info.position.ends() {
            self.ended.messages += 1;
            self.counts.messages += 1;
        }
        self.record(packet, Some(self.ended));
        let count = self.psns(packet);
        if let Some((_, next)) = &mut self.range {
            *next = psn + count;
        }
    }

    fn record(&mut self, packet: &Packet, ended: Option<Ended>) {
        let sent = Sent {
            operation: packet.operation(),
            time: packet.time,
            checksum: packet.checksum,
            ended,
        };
        self.sent.insert(packet.header.bth.psn.get(), sent);
        self.record_read(packet);
    }

    /// Expects the responses to a READ, or once more those to a part of one.
    fn record_read(&mut self, packet: &Packet) {
        if packet.operation() != Operation::ReadRequest {
            return;
        }
        let start = packet.header.bth.psn;
        if let (Some(mtu), Some(whole)) = (self.mtu, self.read_at(start)) {
            whole.count = start.diff(whole.start) as u32;
            whole.length = whole.count as usize * mtu;
        }
        let read = Read {
            start,
            count: self.psns(packet),
            length: packet.header.reth.map_or(0, |reth| reth.length as usize),
            next: start,
        };
        self.reads.insert(start.get(), read);
    }

    /// The number of PSNs that a request takes: for a READ that of its responses (9.7.2).
    fn psns(&self, packet: &Packet) -> u32 {
        let length = match (packet.operation(), packet.header.reth) {
            (Operation::ReadRequest, Some(reth)) => reth.length as usize,
            _ => 0,
        };
        // The path MTU is unknown only if every response is a single packet.
        let mtu = self.mtu.unwrap_or(usize::MAX);
        length.div_ceil(mtu).max(1) as u32
    }

    fn restart(&mut self, packet: &Packet, next: Psn) {
        let psn = packet.header.bth.psn;
        let text = format!("PSN {psn} follows {}: another connection", next.prev());
        let (counts, findings) = (self.counts, std::mem::take(&mut self.findings));
        *self = Self::new(self.mtu);
        self.counts = counts;
        self.findings = findings;
        self.add(Finding::new(Kind::Restart, packet.frame, packet.time, text).at(psn));
        self.range = Some((psn, psn));
        self.una = psn;
        self.append(packet);
    }

    fn gap(&mut self, packet: &Packet, next: Psn, count: u32) {
        self.counts.missing += u64::from(count);
        self.missing.extend((0..count).map(|i| (next + i).get()));
        self.sequence = Sequence::Unknown;
        self.ended = Ended {
            span: self.ended.span + 1,
            messages: 0,
        };
        self.ahead = None;
        self.add(
            Finding::new(
                Kind::Gap,
                packet.frame,
                packet.time,
                "before this packet: lost, reordered, or not captured",
            )
            .at(next)
            .count(count),
        );
        self.append(packet);
    }

    /// Removes the PSNs of a packet from the gaps. Returns whether it was in one.
    fn fill(&mut self, packet: &Packet) -> bool {
        let psn = packet.header.bth.psn;
        let psns = (0..self.psns(packet)).map(|i| psn + i);
        let filled = psns.filter(|psn| self.missing.remove(&psn.get())).count();
        self.counts.missing -= filled as u64;
        filled > 0
    }

    fn late(&mut self, packet: &Packet) {
        let psn = packet.header.bth.psn;
        let why = match self.nak {
            Some(nak) if !psn.before(nak.psn) => format!("after the NAK in frame {}", nak.frame),
            _ => "retransmitted, or reordered".to_owned(),
        };
        self.record(packet, None);
        self.add_run(Finding::new(Kind::Late, packet.frame, packet.time, why).at(psn));
    }

    /// A PSN that was sent before.
    fn again(&mut self, packet: &Packet) {
        let psn = packet.header.bth.psn;
        let Some(sent) = self.sent.get(&psn.get()).copied() else {
            // Within the responses of a READ, of which a part is requested again.
            self.retransmission(packet, "of a part of a READ".to_owned());
            return;
        };
        let asked = self
            .nak
            .filter(|nak| !psn.before(nak.psn) && nak.time >= sent.time);
        let elapsed = packet.time.saturating_sub(sent.time);
        if asked.is_none() && sent.checksum == packet.checksum && elapsed < COPY_TIME {
            let text = format!("identical to the packet {elapsed:?} before");
            self.add_run(Finding::new(Kind::Copy, packet.frame, packet.time, text).at(psn));
            return;
        }
        let why = match asked {
            Some(Nak {
                wait: Some(timer),
                psn: refused,
                time,
                ..
            }) if refused == psn => {
                let waited = packet.time.saturating_sub(time);
                self.check_wait(packet, timer, waited);
                format!("after a wait of {waited:?} for the RNR NAK")
            }
            Some(nak) => format!("after the NAK in frame {}", nak.frame),
            // The responder acknowledges it again without executing it (9.7.5.1.1).
            None if sent.operation != packet.operation() => "a probe: another operation".to_owned(),
            None if psn.before(self.una) => "although it was acknowledged".to_owned(),
            None => format!("{elapsed:?} after it was sent, unacknowledged"),
        };
        self.record_time(packet);
        self.retransmission(packet, why);
    }

    fn check_wait(&mut self, packet: &Packet, timer: RnrTimer, waited: Duration) {
        let required = timer.duration();
        if waited + CLOCK_TOLERANCE < required {
            let text =
                format!("retransmitted {waited:?} after an RNR NAK that requires {required:?}");
            self.add(
                Finding::new(Kind::Rule, packet.frame, packet.time, text)
                    .at(packet.header.bth.psn)
                    .section("9.7.5.2.8"),
            );
        }
    }

    /// Records when a request was sent again. A READ is answered again from its start.
    fn record_time(&mut self, packet: &Packet) {
        let psn = packet.header.bth.psn;
        if let Some(sent) = self.sent.get_mut(&psn.get()) {
            sent.time = packet.time;
            sent.checksum = packet.checksum;
        }
    }

    fn retransmission(&mut self, packet: &Packet, why: String) {
        self.counts.retransmitted += 1;
        let psn = packet.header.bth.psn;
        self.record_read(packet);
        self.add_run(Finding::new(Kind::Retransmission, packet.frame, packet.time, why).at(psn));
    }

    /// Returns the READ whose responses include this PSN.
    pub(super) fn read_at(&mut self, psn: Psn) -> Option<&mut Read> {
        // A READ that begins before the PSN wraps around is last in the map.
        let before = self.reads.range(..=psn.get()).next_back();
        let (&key, _) = before.or_else(|| self.reads.last_key_value())?;
        let read = self.reads.get_mut(&key)?;
        (0..read.count as i32)
            .contains(&psn.diff(read.start))
            .then_some(read)
    }

    pub(super) fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Adds a finding, or extends the last one: a retransmission is often one of many packets.
    pub(super) fn add_run(&mut self, finding: Finding) {
        if let (Some(last), Some(psn)) = (self.findings.last_mut(), finding.psn)
            && last.kind == finding.kind
            && last.psn.is_some_and(|first| first + last.count == psn)
        {
            last.count += 1;
            return;
        }
        self.findings.push(finding);
    }

    /// Ends the capture and returns the findings.
    pub fn finish(mut self, transport: Transport, end: (u64, Duration)) -> (Counts, Vec<Finding>) {
        if let Some((_, next)) = self.range
            && matches!(transport, Transport::Rc | Transport::Xrc)
            && self.una.before(next)
        {
            let left = next.diff(self.una) as u32;
            self.add(
                Finding::new(
                    Kind::Unacknowledged,
                    end.0,
                    end.1,
                    "no acknowledgement until the end of the capture",
                )
                .at(self.una)
                .count(left),
            );
        }
        (self.counts, self.findings)
    }
}
