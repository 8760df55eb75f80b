//! Two connected queue pairs in one process, over the loopback interface.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod datagrams;

use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_driver::qp::{QpCap, QpInit, ReceivesFrom};
use urxe_driver::{Channel, Context, Cq, Mr, Pd, Qp, Srq, device};
use urxe_proto::host::Access;
use urxe_proto::ids::Gid;
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, QpAttr, QpState, QpType, transitions_to_rts};
use urxe_proto::work::{Completion, Payload, SendFlags, SendOp, SendWr, Sge};

pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Timeout of each wait: a test that exceeds it counts as hung.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// One end of a connection.
pub struct End {
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    pub cq: Arc<Cq>,
    pub qp: Arc<Qp>,
}

/// Registered memory that the test owns.
pub struct Buffer {
    // Fields drop in order: the region is deregistered before the memory is freed, since a peer's
    // packets may arrive until then.
    pub mr: Mr,
    pub data: Vec<u64>,
}

impl Buffer {
    pub fn new(pd: &Arc<Pd>, len: usize, access: Access) -> Buffer {
        let mut data = vec![0_u64; len.div_ceil(8).max(1)];
        let addr = data.as_mut_ptr() as u64;
        // SAFETY: the vector is dropped after the region, and is accessed by references only while
        // no transfer is in progress.
        let mr = unsafe { Mr::register(pd, addr, (data.len() * 8) as u64, addr, access) }.unwrap();
        Buffer { mr, data }
    }

    pub fn fill(&mut self, seed: u64) {
        let mut x = seed | 1;
        for word in &mut self.data {
            x = x
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            *word = x;
        }
    }

    /// Returns a copy of the memory's contents, which a peer may be writing to.
    pub fn now(&self) -> Vec<u64> {
        let first = self.data.as_ptr();
        // SAFETY: `i` is less than the vector's length, so `first.add(i)` is inside it.
        let read = |i| unsafe { first.add(i).read_volatile() };
        (0..self.data.len()).map(read).collect()
    }

    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge {
            addr: self.mr.addr() + offset,
            length,
            lkey: self.mr.lkey(),
        }
    }
}

impl End {
    pub fn new(channel: Option<Arc<Channel>>, cqe: u32) -> End {
        Self::of(QpType::Rc, channel, cqe)
    }

    pub fn of(service: QpType, channel: Option<Arc<Channel>>, cqe: u32) -> End {
        Self::sharing(service, channel, cqe, |_| None)
    }

    /// Creates an end that receives from the shared receive queue that `srq` returns.
    pub fn sharing(
        service: QpType,
        channel: Option<Arc<Channel>>,
        cqe: u32,
        srq: impl FnOnce(&Context) -> Option<Arc<Srq>>,
    ) -> End {
        let devices = device::devices_by_name().unwrap();
        let lo = devices
            .iter()
            .find(|d| d.is_loopback())
            .expect("a loopback interface");
        let context = Arc::new(Context::open(lo).unwrap());
        let pd = Pd::new();
        let cq = context.create_cq(cqe, channel).unwrap();
        let init = QpInit {
            service,
            send_cq: Some(Arc::clone(&cq)),
            receives: match srq(&context) {
                Some(srq) => ReceivesFrom::Shared(srq, Arc::clone(&cq)),
                None => ReceivesFrom::Own(Arc::clone(&cq)),
            },
            cap: QpCap {
                max_send_wr: 128,
                max_recv_wr: 128,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 512,
            },
            signal_all: false,
            block_own_multicast: false,
        };
        let qp = context.create_qp(&pd, init).unwrap();
        End {
            context,
            pd,
            cq,
            qp,
        }
    }

    pub fn gid(&self) -> Gid {
        self.context.device().gid(0).unwrap()
    }

    pub fn init(&self) {
        let attr = QpAttr {
            state: QpState::Init,
            access: ALL | Access::FLUSH_GLOBAL,
            ..QpAttr::default()
        };
        let [(_, mask), ..] = transitions_to_rts(QpType::Rc);
        self.qp.modify(&attr, mask).unwrap();
    }

    pub fn connect(&self, peer: &End, tune: impl Fn(&mut QpAttr)) {
        let attr = self.ready_to_receive(peer, tune);
        self.ready_to_send(attr);
    }

    /// Moves the queue pair to RTR. Returns the attributes for [`End::ready_to_send`].
    pub fn ready_to_receive(&self, peer: &End, tune: impl Fn(&mut QpAttr)) -> QpAttr {
        let mut attr = QpAttr {
            state: QpState::Rtr,
            av: AddressVector {
                dgid: peer.gid(),
                is_global: true,
                port: 1,
                ..Default::default()
            },
            path_mtu: Mtu::B4096,
            dest_qpn: peer.qp.qpn(),
            rq_psn: Psn::new(peer.qp.qpn().get() ^ 0xff_ff00),
            sq_psn: Psn::new(self.qp.qpn().get() ^ 0xff_ff00),
            max_dest_rd_atomic: 16,
            max_rd_atomic: 16,
            min_rnr_timer: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        tune(&mut attr);
        let [_, (_, rtr), _] = transitions_to_rts(QpType::Rc);
        self.qp.modify(&attr, rtr).unwrap();
        attr
    }

    pub fn ready_to_send(&self, mut attr: QpAttr) {
        attr.state = QpState::Rts;
        let [.., (_, rts)] = transitions_to_rts(QpType::Rc);
        self.qp.modify(&attr, rts).unwrap();
    }

    pub fn post(&self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let payload = Payload::Sges(sges);
        let flags = SendFlags::SIGNALED;
        self.qp
            .start_posting()
            .post(&SendWr {
                wr_id,
                op,
                flags,
                payload,
                dest: None,
            })
            .unwrap();
    }

    /// Returns the next completion.
    pub fn completion(&self) -> Completion {
        let start = Instant::now();
        let mut one = [None];
        while self.cq.poll(&mut one) == 0 {
            assert!(start.elapsed() < TEST_TIMEOUT, "no completion");
        }
        one[0].unwrap()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.qp.destroy();
        self.cq.retire();
    }
}

/// Returns two connected ends in RTS.
pub fn pair(tune: impl Fn(&mut QpAttr)) -> (End, End) {
    join(End::new(None, 256), End::new(None, 256), tune)
}

/// Connects two ends.
pub fn join(a: End, b: End, tune: impl Fn(&mut QpAttr)) -> (End, End) {
    a.init();
    b.init();
    a.connect(&b, &tune);
    b.connect(&a, &tune);
    (a, b)
}
