//! The transmissions of a requester's oldest request, by which an error for exhausted retries is
//! judged.

use urxe_proto::psn::Psn;
use urxe_proto::wire::{Operation, Packet, Syndrome};

/// The number of retransmissions before a requester may give up: its `retry_cnt`.
pub const RETRY_CNT: u8 = 7;

/// What happened to the oldest request since the requester last made progress.
#[derive(Debug, Default)]
pub struct Attempts {
    /// The PSN of the oldest request.
    una: Psn,
    /// Its transmissions.
    sent: u32,
    /// Whether it requires a response, so that an ACK does not complete it.
    has_response: bool,
    /// Whether the peer has received it and has sent nothing since.
    is_unanswered: bool,
    /// Whether a packet that acknowledges it was delivered to the requester.
    is_acknowledged: bool,
}

impl Attempts {
    /// Starts over if the requester has made progress: its oldest request is now at `una`.
    pub fn progressed(&mut self, una: Psn) {
        if una != self.una {
            *self = Attempts {
                una,
                ..Attempts::default()
            };
        }
    }

    /// Records a packet that the requester's endpoint sends.
    pub fn sent(&mut self, packet: &Packet<'_>) {
        if self.is_attempt(packet) {
            self.sent += 1;
            let operation = packet.header.bth.opcode.info().operation;
            self.has_response = !matches!(operation, Operation::Send | Operation::Write);
        }
    }

    /// Records a packet that is delivered to the peer.
    pub fn delivered(&mut self, packet: &Packet<'_>) {
        self.is_unanswered |= self.is_attempt(packet);
    }

    /// Records a packet that the peer sends.
    pub fn answered(&mut self, packet: &Packet<'_>) {
        if packet.header.bth.opcode.info().operation.is_response() {
            self.is_unanswered = false;
        }
    }

    /// Records a packet that is delivered to the requester.
    pub fn received(&mut self, packet: &Packet<'_>) {
        self.is_acknowledged |= self.acknowledges(packet);
    }

    /// Whether the packet is a transmission of the oldest request.
    pub fn is_attempt(&self, packet: &Packet<'_>) -> bool {
        let bth = &packet.header.bth;
        bth.opcode.info().operation.is_request() && bth.psn == self.una
    }

    /// Whether the packet acknowledges the oldest request.
    pub fn acknowledges(&self, packet: &Packet<'_>) -> bool {
        let header = &packet.header;
        let psn = header.bth.psn;
        match header.bth.opcode.info().operation {
            Operation::Ack => {
                let is_ack = header
                    .aeth
                    .is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack(_)));
                is_ack && !self.has_response && !psn.before(self.una)
            }
            operation => operation.is_response() && psn == self.una,
        }
    }

    /// Checks that the requester had to give up.
    ///
    /// It retransmitted as often as it must, the peer answered what it received, and no
    /// acknowledgement was delivered. So each attempt or its answer was lost.
    ///
    /// # Panics
    /// When one of these does not hold.
    pub fn check_exhausted(&self) {
        assert!(self.sent >= u32::from(RETRY_CNT), "too few: {self:?}");
        assert!(!self.is_unanswered, "the peer did not answer: {self:?}");
        assert!(!self.is_acknowledged, "it was acknowledged: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_proto::ids::Qpn;
    use urxe_proto::wire::{Aeth, Credits, Header, Opcode};

    const UNA: u32 = 5;

    fn packet(opcode: Opcode, psn: u32) -> Packet<'static> {
        let mut header = Header::new(opcode, Qpn::new(1), Psn::new(psn));
        if opcode == Opcode::RcAck {
            let syndrome = Syndrome::Ack(Credits::INVALID);
            header = header.with_aeth(Aeth { syndrome, msn: 0 });
        }
        Packet {
            header,
            payload: &[],
        }
    }

    /// A SEND that was transmitted `times` times.
    fn sent(times: u8) -> Attempts {
        let mut attempts = Attempts::default();
        attempts.progressed(Psn::new(UNA));
        (0..times).for_each(|_| attempts.sent(&packet(Opcode::RcSendOnly, UNA)));
        attempts
    }

    #[test]
    fn lost_attempts_and_answers_exhaust_retries() {
        let mut attempts = sent(RETRY_CNT);
        attempts.delivered(&packet(Opcode::RcSendOnly, UNA));
        attempts.answered(&packet(Opcode::RcAck, UNA));
        // Acknowledgements of earlier requests were delivered.
        attempts.received(&packet(Opcode::RcAck, UNA - 1));
        attempts.check_exhausted();
    }

    #[test]
    #[should_panic(expected = "too few")]
    fn requester_may_not_give_up_early() {
        sent(RETRY_CNT - 1).check_exhausted();
    }

    #[test]
    #[should_panic(expected = "the peer did not answer")]
    fn peer_must_answer_each_attempt() {
        let mut attempts = sent(RETRY_CNT);
        attempts.delivered(&packet(Opcode::RcSendOnly, UNA));
        attempts.check_exhausted();
    }

    #[test]
    #[should_panic(expected = "it was acknowledged")]
    fn requester_may_not_give_up_after_an_acknowledgement() {
        let mut attempts = sent(RETRY_CNT);
        attempts.received(&packet(Opcode::RcAck, UNA + 1));
        attempts.check_exhausted();
    }
}
