//! The part of an active connection in the pacing of REQs, and early retransmissions.

use super::super::pacing::{Outcome, RequestPacing, Target};
use super::super::{Awaited, Event};
use super::{Connection, Outbox, Paced, Phase, Retransmission, State};
use crate::time::Time;
use std::time::Duration;

impl Connection {
    /// Whether the REQ waits to be sent for the first time.
    pub fn is_unsent(&self) -> bool {
        matches!(&self.pacing, Some(paced) if matches!(paced.phase, Phase::Unsent { .. }))
    }

    /// The end of the wait of a REQ that waits to be sent or retransmitted.
    pub(super) fn wait_expires(&self) -> Option<Time> {
        match self.pacing.as_ref()?.phase {
            Phase::Unsent { expires, .. } | Phase::Lost { expires } => Some(expires),
            Phase::Counted | Phase::Done => None,
        }
    }

    /// The destination of the REQ, for an active connection.
    pub fn target(&self) -> Option<Target> {
        self.pacing.as_ref().map(|paced| paced.target)
    }

    /// The destination of a REQ that waits to be sent or retransmitted.
    pub fn waits_for(&self) -> Option<Target> {
        self.wait_expires().and_then(|_| self.target())
    }

    /// Sends or retransmits the REQ that waits.
    pub fn send_req(&mut self, now: Time, pacing: &RequestPacing, out: &mut Outbox) {
        let Some(paced) = &mut self.pacing else {
            return;
        };
        let timeout = pacing.timeout(paced.target);
        let answered = pacing.answered(paced.target);
        match (
            std::mem::replace(&mut paced.phase, Phase::Counted),
            &mut self.retransmission,
        ) {
            (Phase::Unsent { req, .. }, _) => {
                let retransmission = Retransmission::new(req, self.max_retries, self.response, now);
                out.send_mad(self.address, retransmission.mad());
                self.retransmission = Some(retransmission.early(timeout, now));
            }
            (_, Some(retransmission)) => {
                let timeout = retransmission.early_timeout(timeout, answered);
                if let Some(req) = retransmission.retransmit_early(now, timeout) {
                    out.counters.retransmitted += 1;
                    out.send_mad(self.address, req);
                }
            }
            _ => {}
        }
    }

    /// Returns the destination and the place of a REQ that was not answered in time, and that waits
    /// to be retransmitted from now on. `None` if it is retransmitted without regard to the limit.
    pub fn take_lost(&mut self) -> Option<(Target, u64)> {
        let retransmission = self.retransmission.as_ref()?;
        let paced = self.pacing.as_mut()?;
        if !matches!(paced.phase, Phase::Counted) || !retransmission.is_early() {
            return None;
        }
        let expires = retransmission.ends();
        paced.phase = Phase::Lost { expires };
        Some((paced.target, paced.place))
    }

    /// Makes the first retransmission follow after `timeout`, if the message was not retransmitted.
    pub fn shorten_timeout(&mut self, now: Time, timeout: Duration) {
        if let Some(retransmission) = self.retransmission.take() {
            self.retransmission = Some(match retransmission.is_repeated() {
                true => retransmission,
                false => retransmission.early(timeout, now),
            });
        }
    }

    /// Handles a REP that was rejected because its queue pair is in use. The peer needs the time of
    /// its TimeWait before it accepts the REQ as a new one. If the REQ waits to be retransmitted,
    /// it does not any more, and its place is returned.
    pub fn on_rep_refused(&mut self, now: Time) -> Option<(Target, u64)> {
        if let Some(retransmission) = &mut self.retransmission {
            retransmission.not_early(now);
        }
        let paced = self.pacing.as_mut()?;
        if !matches!(paced.phase, Phase::Lost { .. }) {
            return None;
        }
        paced.phase = Phase::Done;
        Some((paced.target, paced.place))
    }

    /// Handles the end of the wait of a REQ. It goes on if the destination has answered another
    /// REQ, at `answered`, within the same time.
    pub fn on_wait_expired(&mut self, now: Time, answered: Option<Time>, out: &mut Outbox) {
        let wait = self.response * (u32::from(self.max_retries) + 1);
        let until = answered.map_or(Time(0), |answered| answered + wait);
        if let Some(paced) = &mut self.pacing
            && let Phase::Unsent { expires, .. } | Phase::Lost { expires } = &mut paced.phase
            && until > now
        {
            *expires = until;
            return;
        }
        if !self.is_unsent() {
            self.send_timeout_rej(out);
        }
        self.enter(State::Idle);
        let (id, awaited) = (self.id, Awaited::Rep);
        self.report(Event::TimedOut { id, awaited }, out);
    }

    /// Returns the place of a REQ that waited, if the connection no longer needs it.
    pub fn take_place(&mut self) -> Option<(Target, u64)> {
        self.wait_expires()
            .filter(|_| self.state != State::ReqSent)?;
        let Paced { target, place, .. } = self.pacing.take()?;
        Some((target, place))
    }

    /// Returns the outcome of a REQ that counts, when its answer arrives at `now`; it no longer
    /// counts. If the answer `is_measurement`, the outcome has its time.
    pub fn take_answer(
        &mut self,
        now: Time,
        is_measurement: bool,
    ) -> Option<(Target, u64, Outcome)> {
        let after = self.unanswered_for(now).filter(|_| is_measurement);
        self.take_counted(Outcome::Answered(after))
    }

    /// The time since the transmission of the unanswered message; `None` if it was retransmitted,
    /// so that an answer would be no measurement.
    pub fn unanswered_for(&self, now: Time) -> Option<Duration> {
        let sent = self.retransmission.as_ref()?;
        (!sent.is_repeated()).then(|| now.since(sent.sent()))
    }

    /// Returns the outcome of a REQ that counted, and that the latest change has ended.
    pub fn take_outcome(&mut self) -> Option<(Target, u64, Outcome)> {
        let last = |sent: &Retransmission| sent.is_repeated() && !sent.is_early();
        let is_regular = self.retransmission.as_ref().is_some_and(last);
        if self.state == State::ReqSent && !is_regular {
            return None;
        }
        self.take_counted(Outcome::Withdrawn)
    }

    fn take_counted(&mut self, outcome: Outcome) -> Option<(Target, u64, Outcome)> {
        let paced = self.pacing.as_mut()?;
        if !matches!(paced.phase, Phase::Counted) {
            return None;
        }
        paced.phase = Phase::Done;
        Some((paced.target, paced.place, outcome))
    }
}
