//! Work queues: receives for a share of the frames that a raw packet queue pair gets.

use crate::cq::Cq;
use crate::event_queue::lock;
use crate::pd::Pd;
use crate::qp::{MAX_QP_WR, MAX_SGE};
use crate::regions::RegionTable;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use urxe_proto::host::Receive;
use urxe_proto::ids::Qpn;
use urxe_proto::queue::{PostError, RecvQueue};
use urxe_proto::work::{Completion, Extra, Sge, WcOpcode, WcStatus};

/// The states of a work queue; the numbers of `enum ibv_wq_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum WqState {
    /// As created: nothing is posted, nothing is received.
    #[default]
    Reset = 0,
    /// It receives.
    Ready = 1,
    /// Receives are flushed.
    Error = 2,
}

impl WqState {
    /// The one with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Reset, Self::Ready, Self::Error]
            .get(number as usize)
            .copied()
    }
}

#[derive(Debug)]
struct Inner {
    state: WqState,
    receives: RecvQueue,
    receive: Receive,
}

/// A work queue.
#[derive(Debug)]
pub struct Wq {
    number: Qpn,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    inner: Mutex<Inner>,
}

/// Numbers of work queues, which their completions show: those of the slot that no process has.
const FIRST_NUMBER: u32 = 0xff_0000;
/// How many numbers there are before they begin anew.
const NUMBERS: u32 = 0xffff;

impl Wq {
    /// A work queue in [`WqState::Reset`] whose receives complete in `cq`; `None` beyond the limits
    /// of queue pairs.
    pub fn new(pd: &Arc<Pd>, cq: &Arc<Cq>, max_wr: u32, max_sge: u32) -> Option<Arc<Wq>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if max_wr > MAX_QP_WR || max_sge > MAX_SGE {
            return None;
        }
        let next = NEXT.fetch_add(1, Ordering::Relaxed) % NUMBERS;
        Some(Arc::new(Wq {
            number: Qpn::new(FIRST_NUMBER + next),
            pd: Arc::clone(pd),
            cq: Arc::clone(cq),
            inner: Mutex::new(Inner {
                state: WqState::Reset,
                receives: RecvQueue::new(max_wr, max_sge),
                receive: Receive::default(),
            }),
        }))
    }

    /// Its number.
    pub fn number(&self) -> Qpn {
        self.number
    }

    /// The queue that its receives complete in.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Its state.
    pub fn state(&self) -> WqState {
        lock(&self.inner).state
    }

    /// Goes to another state. False when there is no such transition: out of the error state it is
    /// reset first.
    pub fn modify(&self, to: WqState) -> bool {
        let mut inner = lock(&self.inner);
        match (inner.state, to) {
            (WqState::Error, WqState::Ready) => return false,
            (_, WqState::Reset) => inner.receives.clear(),
            _ => {}
        }
        inner.state = to;
        if to == WqState::Error {
            self.flush(&mut inner);
        }
        drop(inner);
        if to == WqState::Reset {
            self.cq.purge(self.number);
        }
        true
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut inner = lock(&self.inner);
        if inner.state == WqState::Reset {
            return Err(PostError::State);
        }
        inner.receives.post(wr_id, sges)?;
        if inner.state == WqState::Error {
            self.flush(&mut inner);
        }
        Ok(())
    }

    /// Receives a frame. Without a receive that it fits, it is dropped.
    pub(super) fn deliver(&self, frame: &[u8], regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        let Inner {
            state,
            receives,
            receive,
        } = &mut *inner;
        if *state != WqState::Ready || !receives.take(receive) {
            return;
        }
        let status = match regions.scatter(&self.pd, &receive.sges, 0, frame) {
            Ok(()) => WcStatus::Success,
            Err(_) => WcStatus::LocProtErr,
        };
        self.complete(receive.wr_id, status, frame.len() as u32);
        if status != WcStatus::Success {
            *state = WqState::Error;
            self.flush(&mut inner);
        }
    }

    fn flush(&self, inner: &mut Inner) {
        while inner.receives.take(&mut inner.receive) {
            self.complete(inner.receive.wr_id, WcStatus::WrFlushErr, 0);
        }
    }

    fn complete(&self, wr_id: u64, status: WcStatus, byte_len: u32) {
        let completion = Completion {
            wr_id,
            status,
            opcode: WcOpcode::Recv,
            byte_len,
            qpn: self.number,
            src_qp: Qpn::default(),
            extra: Extra::None,
            grh: false,
        };
        // An overrun is told by an event of the queue's.
        let _ = self.cq.push(completion, false);
    }

    /// Takes back its completions. To be called before the last reference goes.
    pub fn destroy(&self) {
        self.modify(WqState::Reset);
    }
}
