//! A queue pair with its host, for tests that play the peer themselves.

use super::{Service, UnreliableQp};
use crate::qp::{AttrMask, QpAttr, QpState};
use crate::testing::{LOCAL, Sent, Sink, TestHost, sge};
use crate::time::Time;
use crate::work::WcStatus;

pub(crate) struct Endpoint<S> {
    pub(crate) qp: UnreliableQp<S>,
    pub(crate) host: TestHost,
    pub(crate) now: Time,
}

impl<S: Service> Endpoint<S> {
    pub(crate) fn of(qp: UnreliableQp<S>) -> Self {
        Endpoint {
            qp,
            host: TestHost::new(),
            now: Time(1),
        }
    }

    pub(crate) fn modify(&mut self, state: QpState, mask: AttrMask, attr: &QpAttr) {
        let attr = QpAttr { state, ..*attr };
        let mask = mask | AttrMask::STATE;
        self.qp
            .modify(&attr, mask, self.now, &mut self.host)
            .unwrap();
    }

    /// Posts a receive of `len` bytes of local memory.
    pub(crate) fn receive(&mut self, wr_id: u64, len: usize) {
        let sges = [sge(LOCAL, 0, len)];
        self.host.receives.post(wr_id, &sges).unwrap();
        self.qp.receive_posted(&mut self.host);
    }

    pub(crate) fn poll_room(&mut self, room: usize) -> (Vec<Sent>, bool) {
        let mut sink = Sink::new(self.now, room);
        let more = self.qp.poll_transmit(self.now, &mut self.host, &mut sink);
        (sink.packets, more)
    }

    pub(crate) fn poll(&mut self) -> Vec<Sent> {
        let (packets, more) = self.poll_room(usize::MAX);
        assert!(!more);
        packets
    }

    /// Takes the send completions since the last call.
    pub(crate) fn done(&mut self) -> Vec<(u64, WcStatus)> {
        let taken = std::mem::take(&mut self.host.sends);
        taken.iter().map(|c| (c.wr_id, c.status)).collect()
    }

    /// Takes the receive completions since the last call.
    pub(crate) fn received(&mut self) -> Vec<(u64, WcStatus)> {
        let taken = std::mem::take(&mut self.host.receptions);
        taken.iter().map(|(c, _)| (c.wr_id, c.status)).collect()
    }
}
