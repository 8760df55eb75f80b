//! The responses to the requests of one end.

use urxe_proto::psn::Psn;
use urxe_proto::wire::{Aeth, NakCode, Operation, RnrTimer, Syndrome};

use super::finding::{Finding, Kind};
use super::packet::{Packet, nak_name};
use super::requests::{Nak, Read, Requests};

impl Requests {
    /// Takes a response in the order of the capture.
    pub fn response(&mut self, packet: &Packet) {
        let Some((first, next)) = self.range else {
            return;
        };
        let psn = packet.header.bth.psn;
        if psn.before(first) {
            return;
        }
        if !psn.before(next) {
            self.ahead = Some((packet.frame, packet.time, psn));
            return;
        }
        match (packet.operation(), packet.header.aeth) {
            (Operation::Ack, Some(aeth)) => self.acknowledgement(packet, aeth),
            (Operation::ReadResponse, _) => self.read_response(packet),
            (Operation::AtomicAck, _) => self.atomic_response(packet),
            _ => (),
        }
    }

    fn acknowledgement(&mut self, packet: &Packet, aeth: Aeth) {
        let psn = packet.header.bth.psn;
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                self.counts.acks += 1;
                self.check_skipped(packet);
                self.check_msn(packet, aeth.msn);
                self.acknowledge(psn.next());
            }
            Syndrome::RnrNak(timer) => {
                self.counts.rnr_naks += 1;
                self.take_nak(packet, Some(timer));
                let text = format!("no receive is posted: wait {:?}", timer.duration());
                self.add(Finding::new(Kind::RnrNak, packet.frame, packet.time, text).at(psn));
            }
            Syndrome::Nak(code) => {
                self.counts.naks += 1;
                self.take_nak(packet, None);
                let text = match code {
                    NakCode::PsnSequence => format!("{}: expects this PSN", nak_name(code)),
                    code => format!("{}: ends the connection", nak_name(code)),
                };
                self.add(Finding::new(Kind::Nak, packet.frame, packet.time, text).at(psn));
            }
            Syndrome::Reserved(byte) => self.add(
                Finding::new(
                    Kind::Rule,
                    packet.frame,
                    packet.time,
                    format!("reserved syndrome {byte:#04x}"),
                )
                .at(psn)
                .section("9.7.5.2"),
            ),
        }
    }

    /// A NAK acknowledges all before its PSN.
    fn take_nak(&mut self, packet: &Packet, wait: Option<RnrTimer>) {
        let psn = packet.header.bth.psn;
        self.acknowledge(psn);
        self.nak = Some(Nak {
            frame: packet.frame,
            time: packet.time,
            psn,
            wait,
        });
    }

    fn acknowledge(&mut self, next: Psn) {
        if next.after(self.una) {
            self.una = next;
        }
        while self.received.remove(&self.una.get()) {
            self.una = self.una.next();
        }
    }

    /// An acknowledgement of a later request does not replace the response to a READ.
    fn check_skipped(&mut self, packet: &Packet) {
        let psn = packet.header.bth.psn;
        let passed = |read: &&Read| !read.end().after(psn) && read.next.before(read.end());
        if let Some(&read) = self.reads.values().find(passed) {
            let left = read.end().diff(read.next) as u32;
            self.add(
                Finding::new(
                    Kind::MissingResponse,
                    packet.frame,
                    packet.time,
                    format!("the ACK of PSN {psn} passes READ responses"),
                )
                .at(read.next)
                .count(left),
            );
        }
        // Reported once; a repeated READ adds what is missing again.
        self.reads.retain(|_, read| read.end().after(psn));
    }

    /// The MSN is the number of completed messages (9.7.7.1).
    fn check_msn(&mut self, packet: &Packet, msn: u32) {
        let psn = packet.header.bth.psn;
        let Some(Some(ended)) = self.sent.get(&psn.get()).map(|sent| sent.ended) else {
            return;
        };
        if !psn.next().after(self.una) {
            return;
        }
        if let Some((last, before)) = self.msn
            && before.span == ended.span
        {
            let expected = Psn::new(last) + (ended.messages - before.messages);
            if expected.get() != msn {
                let text = format!("the MSN is {msn}, expected {expected}");
                self.add(
                    Finding::new(Kind::Rule, packet.frame, packet.time, text)
                        .at(psn)
                        .section("9.7.7.1"),
                );
            }
        }
        self.msn = Some((msn, ended));
    }

    fn read_response(&mut self, packet: &Packet) {
        self.counts.responses += 1;
        self.counts.bytes += packet.len as u64;
        let psn = packet.header.bth.psn;
        let mtu = self.mtu;
        let sent = self.sent.get(&psn.get()).copied();
        let Some(read) = self.read_at(psn) else {
            let other = sent.is_some_and(|sent| {
                !matches!(
                    sent.operation,
                    Operation::ReadRequest | Operation::Flush | Operation::AtomicWrite
                )
            });
            if other {
                self.unsolicited(packet, "READ response to a request of another kind");
            }
            self.acknowledge(psn.next());
            return;
        };
        let index = psn.diff(read.start) as u32;
        let expected = match (index + 1 == read.count, mtu) {
            (false, mtu) => mtu,
            (true, None) => Some(read.length),
            (true, Some(mtu)) => Some(read.length - (read.count as usize - 1) * mtu),
        };
        let distance = psn.diff(read.next);
        let from = read.next;
        if distance >= 0 {
            read.next = psn.next();
        }
        let finding = |kind, text: String| Finding::new(kind, packet.frame, packet.time, text);
        if let Some(expected) = expected.filter(|&expected| expected != packet.len) {
            let text = format!("READ response of {} bytes, expected {expected}", packet.len);
            self.add(finding(Kind::Rule, text).at(psn).section("9.7.5"));
        }
        if distance > 0 {
            let text = "READ responses before this one: lost, reordered, or not captured";
            let gap = finding(Kind::MissingResponse, text.to_owned());
            self.add(gap.at(from).count(distance as u32));
            self.received.insert(psn.get());
        } else if distance < 0 {
            let text = "READ response that is late, or repeated".to_owned();
            self.add_run(finding(Kind::RepeatedResponse, text).at(psn));
            self.received.insert(psn.get());
            self.acknowledge(self.una);
        } else if self.received.is_empty() || psn == self.una {
            self.acknowledge(psn.next());
        } else {
            self.received.insert(psn.get());
        }
    }

    fn atomic_response(&mut self, packet: &Packet) {
        self.counts.responses += 1;
        let psn = packet.header.bth.psn;
        if let Some(sent) = self.sent.get(&psn.get())
            && !matches!(sent.operation, Operation::CompareSwap | Operation::FetchAdd)
        {
            self.unsolicited(packet, "atomic response to a request of another kind");
        }
        self.acknowledge(psn.next());
    }

    fn unsolicited(&mut self, packet: &Packet, text: &str) {
        self.add(
            Finding::new(Kind::Rule, packet.frame, packet.time, text)
                .at(packet.header.bth.psn)
                .section("9.7.5.1"),
        );
    }
}
