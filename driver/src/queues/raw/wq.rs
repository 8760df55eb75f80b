//! Work queues: receives for a part of the frames of a raw packet queue pair.

use crate::events::{EventObject, EventType, Origin};
use crate::memory::regions::RegionTable;
use crate::pd::Pd;
use crate::queues::cq::{Cq, CqUser};
use crate::queues::limits::{MAX_QP_WR, MAX_SGE};
use crate::queues::qp::error::CreateError;
use crate::sync::{Mutex, lock};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use urxe_net::thread;
use urxe_proto::host::Receive;
use urxe_proto::ids::Qpn;
use urxe_proto::queue::{PostError, RecvQueue};
use urxe_proto::work::{Completion, Extra, Sge, WcOpcode, WcStatus};

/// The states of a work queue; the values of `enum ibv_wq_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum WqState {
    /// The initial state: receives cannot be posted, and frames are dropped.
    #[default]
    Reset = 0,
    /// Frames are received.
    Ready = 1,
    /// Receives are flushed.
    Error = 2,
}

impl WqState {
    /// Returns the state with this number.
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
    /// The next receive, valid if `has_next`. A receive too small for a frame is kept for a later
    /// one.
    next: Receive,
    has_next: bool,
}

impl Inner {
    /// Takes the next receive from the queue, unless one is taken; returns whether there is one.
    fn fetch_next(&mut self) -> bool {
        self.has_next = self.has_next || self.receives.take(&mut self.next);
        self.has_next
    }

    /// Returns the size of the next receive in bytes.
    fn next_len(&self) -> u64 {
        let lengths = self.next.sges.iter().map(|sge| u64::from(sge.length));
        lengths.sum()
    }
}

/// A work queue.
#[derive(Debug)]
pub struct Wq {
    number: Qpn,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    inner: Mutex<Inner>,
    /// Its identity in asynchronous events.
    pub origin: Arc<Origin>,
}

/// The first number of work queues, used in their completions. The numbers are those of a slot that
/// no process gets.
const FIRST_NUMBER: u32 = 0xff_0000;
/// The number of work queue numbers; they are reused cyclically.
const NUMBERS: u32 = 0xffff;

impl Wq {
    /// Creates a work queue in [`WqState::Reset`], whose receives complete to `cq`.
    ///
    /// # Errors
    /// [`CreateError::Capacity`] beyond the limits of queue pairs, and [`CreateError::NoMemory`].
    pub fn new(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Arc<Wq>, CreateError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if max_wr > MAX_QP_WR || max_sge > MAX_SGE {
            return Err(CreateError::Capacity);
        }
        let next = NEXT.fetch_add(1, Ordering::Relaxed) % NUMBERS;
        let wq = Arc::new(Wq {
            number: Qpn::new(FIRST_NUMBER + next),
            pd: Arc::clone(pd),
            cq: Arc::clone(cq),
            inner: Mutex::new(Inner {
                state: WqState::Reset,
                receives: RecvQueue::new(max_wr, max_sge)?,
                next: Receive::default(),
                has_next: false,
            }),
            origin: Origin::new(),
        });
        cq.add_work_queue(wq.as_user());
        Ok(wq)
    }

    fn as_user(self: &Arc<Self>) -> Weak<dyn CqUser> {
        let queue: Weak<Wq> = Arc::downgrade(self);
        queue
    }

    /// Returns its number.
    pub fn number(&self) -> Qpn {
        self.number
    }

    /// Returns the completion queue of its receives.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Returns its state.
    pub fn state(&self) -> WqState {
        lock(&self.inner).state
    }

    /// Changes the state. Returns false for the transition from [`WqState::Error`] to
    /// [`WqState::Ready`], which does not exist: [`WqState::Reset`] comes between.
    pub fn modify(&self, to: WqState) -> bool {
        let mut inner = lock(&self.inner);
        match (inner.state, to) {
            (WqState::Error, WqState::Ready) => return false,
            (_, WqState::Reset) => {
                inner.receives.clear();
                inner.has_next = false;
            }
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
    /// [`PostError::State`] in [`WqState::Reset`]; otherwise see [`PostError`].
    pub fn post_receive(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut inner = lock(&self.inner);
        if inner.state == WqState::Reset {
            return Err(PostError::State);
        }
        inner.receives.post(wr_id, sges)?;
        if inner.state == WqState::Error {
            thread::without_cancellation(|| self.flush(&mut inner));
        }
        Ok(())
    }

    /// Receives a frame. It is dropped if there is no receive, or the next one is too small.
    pub(super) fn deliver(&self, frame: &[u8], regions: &RegionTable) {
        let mut inner = lock(&self.inner);
        if inner.state != WqState::Ready
            || !inner.fetch_next()
            || inner.next_len() < frame.len() as u64
        {
            return;
        }
        inner.has_next = false;
        let receive = &inner.next;
        let status = match regions.scatter_unsolicited(&self.pd, &receive.sges, 0, frame) {
            Ok(()) => WcStatus::Success,
            Err(_) => WcStatus::LocProtErr,
        };
        self.complete(receive.wr_id, status, frame.len() as u32);
        if status != WcStatus::Success {
            inner.state = WqState::Error;
            self.flush(&mut inner);
        }
    }

    fn flush(&self, inner: &mut Inner) {
        while inner.fetch_next() {
            inner.has_next = false;
            self.complete(inner.next.wr_id, WcStatus::WrFlushErr, 0);
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
            grh: None,
        };
        // The completion queue reports an overrun, and fails its work queues.
        let _ = self.cq.push(completion, false);
    }

    /// Removes its completions and pending events, and waits until the application has acknowledged
    /// the events that it has taken. To be called before the last reference is dropped.
    pub fn destroy(self: &Arc<Self>) {
        self.cq.remove_work_queue(&self.as_user());
        self.modify(WqState::Reset);
        self.cq.events().end(&self.origin);
    }
}

impl CqUser for Wq {
    fn fail(&self) {
        let mut inner = lock(&self.inner);
        if inner.state != WqState::Ready {
            return;
        }
        inner.state = WqState::Error;
        let object = EventObject::Wq(Arc::clone(&self.origin));
        self.cq.events().send(EventType::WqFatal, object);
        self.flush(&mut inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_queue::EventQueue;
    use crate::memory::mr::Mr;
    use crate::memory::regions::regions;
    use crate::queues::cq::CqInit;
    use urxe_proto::host::Access;
    use urxe_proto::ids::LKey;

    const FRAME: [u8; 60] = [7; 60];

    fn queue() -> Arc<Wq> {
        let events = Arc::new(EventQueue::of_rare_events().unwrap());
        let init = CqInit {
            capacity: 8,
            ..CqInit::default()
        };
        let cq = Cq::new(init, &events).unwrap();
        let wq = Wq::new(&Pd::new(), &cq, 4, 1).unwrap();
        assert!(wq.modify(WqState::Ready));
        wq
    }

    fn done(wq: &Wq) -> Vec<(u64, WcStatus)> {
        let purged = wq.cq().purge(wq.number());
        purged.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    #[test]
    fn a_receive_smaller_than_the_frame_stays_posted() {
        let wq = queue();
        let mut data = [0_u64; 8];
        let addr = data.as_mut_ptr() as u64;
        // SAFETY: `data` is declared before the region, so it is dropped after it, and is not
        // accessed by reference meanwhile.
        let mr = unsafe { Mr::register(&wq.pd, addr, 64, addr, Access::LOCAL_WRITE) }.unwrap();
        let part = |length| Sge {
            addr,
            length,
            lkey: mr.lkey(),
        };
        wq.post_receive(1, &[part(59)]).unwrap();
        wq.post_receive(2, &[part(64)]).unwrap();
        wq.deliver(&FRAME, regions().table());
        assert_eq!((done(&wq), wq.state()), (vec![], WqState::Ready));
        wq.deliver(&FRAME[..59], regions().table());
        wq.deliver(&FRAME, regions().table());
        let success = WcStatus::Success;
        assert_eq!(done(&wq), [(1, success), (2, success)]);
    }

    #[test]
    fn error_flushes_and_reset_discards_a_fetched_receive() {
        for (to, expected) in [(WqState::Error, &[1, 2][..]), (WqState::Reset, &[])] {
            let wq = queue();
            wq.post_receive(1, &[]).unwrap();
            wq.post_receive(2, &[]).unwrap();
            wq.deliver(&FRAME, regions().table());
            assert!(wq.modify(to));
            let flushed: Vec<_> = done(&wq).iter().map(|(wr_id, _)| *wr_id).collect();
            assert_eq!(flushed, expected);
        }
    }

    #[test]
    fn overrun_of_its_completion_queue_is_fatal_in_ready_only() {
        let wq = queue();
        wq.post_receive(1, &[]).unwrap();
        let fail = || wq.cq().fail_users(|| ());
        fail();
        fail();
        assert_eq!(done(&wq), [(1, WcStatus::WrFlushErr)]);
        assert_eq!(
            (wq.state(), wq.modify(WqState::Ready)),
            (WqState::Error, false)
        );
        assert!(wq.modify(WqState::Reset));
        fail();
        assert_eq!(wq.state(), WqState::Reset);
        wq.destroy();
        assert_eq!(wq.cq().work_queues(), 0);
    }

    #[test]
    fn an_invalid_lkey_moves_the_queue_to_error() {
        let wq = queue();
        let gone = Sge {
            addr: 0,
            length: 64,
            lkey: LKey(0),
        };
        wq.post_receive(1, &[gone]).unwrap();
        wq.post_receive(2, &[]).unwrap();
        wq.deliver(&FRAME, regions().table());
        let expected = [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
        assert_eq!((done(&wq), wq.state()), (expected.to_vec(), WqState::Error));
    }
}
