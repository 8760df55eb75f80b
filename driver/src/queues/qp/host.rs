//! The host of a queue pair's state machine: memory, receives, completions and events.

use super::pair::Qp;
use crate::memory::regions::RegionTable;
use crate::pd::Pd;
use crate::queues::cq::Overrun;
use urxe_proto::host::{
    Access, AtomicOp, Completions, Memory, MemoryError, QpEvent, Receive, Receives, RemoteKey,
    WindowBind,
};
use urxe_proto::ids::{Qpn, RKey, Srqn};
use urxe_proto::qp::QpType;
use urxe_proto::work::{Completion, Sge, WcStatus};

/// Implements the state machine's host traits for one queue pair.
pub(crate) struct QpHost<'a> {
    qp: &'a Qp,
    regions: &'a RegionTable,
}

impl Qp {
    /// Returns the host of the queue pair's state machine.
    pub(crate) fn host<'a>(&'a self, regions: &'a RegionTable) -> QpHost<'a> {
        QpHost { qp: self, regions }
    }
}

impl QpHost<'_> {
    /// Counts a completion queue overrun. The engine moves the queue pair to the error state.
    fn count_overrun(&self, pushed: Result<(), Overrun>) {
        if pushed.is_err() {
            self.qp.counters.cq_overruns.add(1);
        }
    }

    /// Accesses memory for the peer, in the protection domain that `key` selects.
    fn remotely<T>(
        &self,
        key: RemoteKey,
        access: impl FnOnce(&Pd, Qpn) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let qp = self.qp;
        let access = |pd: &Pd| access(pd, qp.qpn);
        qp.receives.with_pd(key.srq, &qp.pd, access)
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
        key: RemoteKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), MemoryError> {
        self.remotely(key, |pd, qpn| {
            let found = self.regions.remote(pd, qpn, key.rkey, addr, len, access);
            found.map(|_| ())
        })
    }

    fn remote_read(&self, key: RemoteKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.remotely(key, |pd, qpn| {
            self.regions.remote_read(pd, qpn, key.rkey, addr, out)
        })
    }

    fn remote_write(&self, key: RemoteKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.remotely(key, |pd, qpn| {
            self.regions.remote_write(pd, qpn, key.rkey, addr, data)
        })
    }

    fn remote_atomic(&self, key: RemoteKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        self.remotely(key, |pd, qpn| {
            self.regions.remote_atomic(pd, qpn, key.rkey, addr, op)
        })
    }

    fn flush(
        &self,
        key: RemoteKey,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), MemoryError> {
        self.remotely(key, |pd, qpn| {
            self.regions.flush(pd, qpn, key.rkey, range, access)
        })
    }

    fn invalidate(&self, key: RemoteKey) -> Result<(), MemoryError> {
        self.remotely(key, |pd, qpn| self.regions.invalidate(pd, qpn, key.rkey))
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

    fn has_srq(&self, srq: Srqn) -> bool {
        let known = self.qp.receives.has(srq);
        if !known {
            tracing::warn!(qp = %self.qp.qpn, %srq, "a request names a shared receive queue that \
                its XRC domain has not in this process; processes cannot share domains");
        }
        known
    }

    fn receive_credits(&self) -> Option<u32> {
        self.qp.receives.credits()
    }

    fn fill_receive(&self, receive: &Receive, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let qp = self.qp;
        // Any peer may send a datagram or a frame at any time. A connection's peer sends what the
        // two programs have agreed on.
        let is_solicited = !matches!(qp.service, QpType::Ud | QpType::RawPacket);
        qp.receives
            .fill(self.regions, &qp.pd, receive, offset, data, is_solicited)
    }
}

impl Completions for QpHost<'_> {
    fn send_completed(&mut self, completion: Completion) {
        if completion.status != WcStatus::Success {
            self.qp.counters.send_failed(completion.status);
        }
        if let Some(cq) = &self.qp.send_cq {
            self.count_overrun(cq.push(completion, false));
        }
    }

    fn receive_completed(&mut self, receive: &Receive, completion: Completion, solicited: bool) {
        if completion.status != WcStatus::Success {
            self.qp.counters.receive_failed(completion.status);
        }
        let pushed = self.qp.receives.complete(receive, completion, solicited);
        self.count_overrun(pushed);
    }

    fn event(&mut self, event: QpEvent) {
        self.qp.owners.push_event(event.into());
    }
}
