//! What the clock does to a connection.

use super::super::{Awaited, Event};
use super::{Connection, Outbox, State};
use crate::time::Time;

impl Connection {
    /// Its deadline has passed.
    pub fn on_timeout(&mut self, now: Time, out: &mut Outbox) {
        if self.state == State::TimeWait {
            self.state = State::Idle;
            self.tell(Event::TimeWaitExit { id: self.id }, out);
            return;
        }
        let Some(repeat) = &mut self.repeat else {
            return;
        };
        match repeat.again(now) {
            Some(mad) => {
                out.counters.repeated += 1;
                out.send_mad(self.address, mad);
                self.state = match self.state {
                    State::MraReqReceived => State::ReqSent,
                    State::MraRepReceived => State::RepSent,
                    other => other,
                };
            }
            None => self.give_up(now, out),
        }
    }

    /// Sends a DREQ that has no answer yet again, before its time and not counted as a retry. True when
    /// there is one.
    pub fn repeat_dreq(&self, out: &mut Outbox) -> bool {
        match &self.repeat {
            Some(repeat) if self.state == State::DreqSent => {
                out.counters.repeated += 1;
                out.send_mad(self.address, repeat.mad());
                true
            }
            _ => false,
        }
    }

    /// The peer does not answer. It is told, in case it hears.
    fn give_up(&mut self, now: Time, out: &mut Outbox) {
        let awaited = match self.state {
            State::ReqSent | State::MraReqReceived => {
                self.send_timeout_rej(out);
                self.settle_in(State::Idle);
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
        self.tell(Event::TimedOut { id, awaited }, out);
    }
}
