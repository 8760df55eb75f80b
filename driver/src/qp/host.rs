//! A queue pair's surroundings, as its state machine sees them: memory, receives, completions and
//! events.

use super::Qp;
use crate::cq::Overrun;
use crate::events::{AsyncEvent, EventObject};
use crate::regions::RegionTable;
use urxe_proto::host::{
    Access, AtomicOp, Completions, Memory, MemoryError, QpEvent, Receive, Receives, WindowBind,
};
use urxe_proto::ids::RKey;
use urxe_proto::work::{Completion, Sge, WcStatus};

/// A queue pair's surroundings, as its state machine sees them.
pub(super) struct QpHost<'a> {
    pub(super) qp: &'a Qp,
    pub(super) regions: &'a RegionTable,
}

impl QpHost<'_> {
    /// An overrun takes the queue pair to error by way of the engine.
    fn count_overrun(&self, pushed: Result<(), Overrun>) {
        if pushed.is_err() {
            self.qp.counters.cq_overruns.add(1);
        }
    }
}

impl Memory for QpHost<'_> {
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), MemoryError> {
        self.regions.check_local(&self.qp.pd, sges, access)
    }

    fn gather(&self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.regions.gather(&self.qp.pd, sges, offset, out)
    }

    fn scatter(&self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.regions.scatter(&self.qp.pd, sges, offset, data)
    }

    fn check_remote(
        &self,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), MemoryError> {
        self.regions
            .remote(&self.qp.pd, self.qp.qpn, rkey, addr, len, access)
            .map(|_| ())
    }

    fn remote_read(&self, rkey: RKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.regions
            .remote_read(&self.qp.pd, self.qp.qpn, rkey, addr, out)
    }

    fn remote_write(&self, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.regions
            .remote_write(&self.qp.pd, self.qp.qpn, rkey, addr, data)
    }

    fn remote_atomic(&self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        self.regions
            .remote_atomic(&self.qp.pd, self.qp.qpn, rkey, addr, op)
    }

    fn invalidate(&self, rkey: RKey) -> Result<(), MemoryError> {
        self.regions.invalidate(&self.qp.pd, self.qp.qpn, rkey)
    }

    fn bind_window(&self, bind: &WindowBind) -> Result<(), MemoryError> {
        self.regions.bind_window(&self.qp.pd, self.qp.qpn, bind)
    }

    fn invalidate_local(&self, rkey: RKey) -> Result<(), MemoryError> {
        self.regions.invalidate(&self.qp.pd, self.qp.qpn, rkey)
    }
}

impl Receives for QpHost<'_> {
    fn take_receive(&mut self, into: &mut Receive) -> bool {
        self.qp.receives.take(into)
    }

    fn receive_credits(&self) -> Option<u32> {
        self.qp.receives.credits()
    }

    fn fill_receive(&self, receive: &Receive, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let qp = self.qp;
        qp.receives
            .fill(self.regions, &qp.pd, receive, offset, data)
    }
}

impl Completions for QpHost<'_> {
    fn send_completed(&mut self, completion: Completion) {
        if completion.status != WcStatus::Success {
            self.qp.counters.send_failed(completion.status);
        }
        self.count_overrun(self.qp.send_cq.push(completion, false));
    }

    fn receive_completed(&mut self, completion: Completion, solicited: bool) {
        if completion.status != WcStatus::Success {
            self.qp.counters.receive_failed(completion.status);
        }
        self.count_overrun(self.qp.recv_cq.push(completion, solicited));
    }

    fn event(&mut self, event: QpEvent) {
        let Some(qp) = self.qp.me.upgrade() else {
            return;
        };
        let event = AsyncEvent {
            kind: event.into(),
            object: EventObject::Qp(qp),
        };
        self.qp.events.push(event);
    }
}
