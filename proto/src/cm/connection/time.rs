//! Timeouts of a connection.

use super::super::{Awaited, Event};
use super::{Connection, Outbox, State};
use crate::time::Time;

impl Connection {
    /// Handles the deadline: retransmits, gives up, or leaves TimeWait.
    pub fn on_timeout(&mut self, now: Time, out: &mut Outbox) {
        if self.state == State::TimeWait {
            self.state = State::Idle;
            self.report(Event::TimeWaitExit { id: self.id }, out);
            return;
        }
        let Some(retransmission) = &mut self.retransmission else {
            return;
        };
        match retransmission.retransmit(now) {
            Some(mad) => {
                out.counters.retransmitted += 1;
                out.send_mad(self.address, mad);
                self.state = match self.state {
                    State::MraReqReceived => State::ReqSent,
                    State::MraRepReceived => State::RepSent,
                    other => other,
                };
            }
            None => self.retries_exhausted(now, out),
        }
    }

    /// Retransmits an unanswered DREQ before its timeout, not counted as a retry.
    ///
    /// Returns whether there is one.
    pub fn retransmit_dreq(&self, out: &mut Outbox) -> bool {
        match &self.retransmission {
            Some(retransmission) if self.state == State::DreqSent => {
                out.counters.retransmitted += 1;
                out.send_mad(self.address, retransmission.mad());
                true
            }
            _ => false,
        }
    }

    /// Ends the connection after the last retransmission, with a REJ in case the peer still
    /// receives.
    fn retries_exhausted(&mut self, now: Time, out: &mut Outbox) {
        let awaited = match self.state {
            State::ReqSent | State::MraReqReceived => {
                self.send_timeout_rej(out);
                self.enter(State::Idle);
                Awaited::Rep
            }
            State::RepSent | State::MraRepReceived => {
                self.send_timeout_rej(out);
                self.enter_time_wait(now);
                Awaited::Rtu
            }
            _ => {
                self.enter_time_wait(now);
                Awaited::Drep
            }
        };
        let id = self.id;
        self.report(Event::TimedOut { id, awaited }, out);
    }
}
