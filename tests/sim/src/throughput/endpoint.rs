//! A queue pair at one end of the link.

use super::case::{Case, Work};
use crate::host::{Region, SimHost};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;
use urxe_proto::host::Access;
use urxe_proto::ids::{Gid, Qpn, RKey, Source};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, QpAttr, QpType, transitions_to_rts};
use urxe_proto::queue::{RecvQueue, SendQueueSize};
use urxe_proto::rc::congestion::{Algorithm, WindowLimits};
use urxe_proto::rc::{RcConfig, RcQp};
use urxe_proto::time::Time;
use urxe_proto::wire::Packet;
use urxe_proto::work::{Payload, SendFlags, SendOp, SendWr, Sge};

/// The window limits and the size of the out-of-order queue, as in the driver.
const WINDOW: WindowLimits = WindowLimits {
    base_bytes: 256 << 10,
    max_bytes: 256 << 20,
};

pub(super) const OUT_OF_ORDER_BYTES: u32 = 16 << 20;

const KEY: u32 = 1;

const BASE: u64 = 1 << 32;

const FIRST: u32 = 0x11;

const PSN_BITS: u32 = 24;

pub(super) struct Endpoint {
    pub(super) qp: RcQp,
    pub(super) host: SimHost,
    pub(super) work: Work,
    /// The PSN after the highest that it sent over the measured link.
    pub(super) sent_end: Psn,
    /// The PSNs of the packets that arrived over the measured link, a bit each.
    pub(super) arrived: Vec<u64>,
    /// The times at which the outstanding work requests were posted.
    pub(super) posted: VecDeque<Time>,
    pub(super) latency: Duration,
    pub(super) completed: u64,
    pub(super) last_received: Time,
    pub(super) longest_gap: Duration,
}

fn gid(index: usize) -> Gid {
    Gid::from_ip(std::net::Ipv4Addr::new(192, 0, 2, index as u8 + 1).into())
}

fn qpn(index: usize) -> Qpn {
    Qpn::new(FIRST + index as u32)
}

impl Endpoint {
    pub(super) fn new(
        index: usize,
        peer: usize,
        algorithm: Algorithm,
        out_of_order_bytes: u32,
        work: Work,
        case: &Case,
    ) -> Self {
        let depth = case.depth;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = Region {
            key: KEY,
            base: BASE,
            access,
            bytes: RefCell::new(vec![0; work.bytes() as usize]),
        };
        let host = SimHost {
            regions: vec![region],
            invalidatable: RefCell::default(),
            local: RefCell::default(),
            receives: RecvQueue::new(depth, 1).expect("memory"),
            shared: false,
            srq: None,
            sends: VecDeque::new(),
            receptions: VecDeque::new(),
            watched: None,
            versions: None,
            events: VecDeque::new(),
        };
        let config = RcConfig {
            service: QpType::Rc,
            qpn: qpn(index),
            send: SendQueueSize {
                max_wr: depth,
                max_sge: 1,
                max_inline: 0,
            },
            signal_all: true,
            window: WINDOW,
            out_of_order_bytes,
            congestion: algorithm,
        };
        let mut end = Endpoint {
            qp: RcQp::new(config).expect("memory"),
            host,
            work,
            sent_end: Psn::new(0),
            arrived: vec![0; 1 << (PSN_BITS - 6)],
            posted: VecDeque::new(),
            latency: Duration::ZERO,
            completed: 0,
            last_received: Time(0),
            longest_gap: Duration::ZERO,
        };
        let attr = QpAttr {
            access,
            av: AddressVector {
                dgid: gid(peer),
                is_global: true,
                ..AddressVector::default()
            },
            path_mtu: Mtu::B4096,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: case.reads,
            max_dest_rd_atomic: case.reads,
            min_rnr_timer: 12,
            dest_qpn: qpn(peer),
            ..QpAttr::default()
        };
        for (state, mask) in transitions_to_rts(QpType::Rc) {
            let attr = QpAttr { state, ..attr };
            end.qp
                .modify(&attr, mask, Time(0), &mut end.host)
                .expect("the transition is legal");
        }
        for _ in 0..depth {
            end.post_receive();
        }
        end
    }

    /// The memory of each message.
    pub(super) fn buffer(&self) -> [Sge; 1] {
        [Sge {
            addr: BASE,
            length: self.work.bytes(),
            lkey: urxe_proto::ids::LKey(KEY),
        }]
    }

    pub(super) fn post_receive(&mut self) {
        if let Work::Send(_) = self.work {
            let buffer = self.buffer();
            self.host.receives.post(0, &buffer).expect("there is room");
            self.qp.receive_posted(&mut self.host);
        }
    }

    pub(super) fn post(&mut self, now: Time) {
        let sges = self.buffer();
        let (addr, rkey) = (BASE, RKey(KEY));
        let wr = SendWr {
            wr_id: 0,
            op: match self.work {
                Work::Write(_) => SendOp::Write { addr, rkey },
                Work::Send(_) => SendOp::Send,
                Work::Read(_) => SendOp::Read { addr, rkey },
            },
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest: None,
        };
        self.qp
            .post_send(&wr, now, &mut self.host)
            .expect("there is room");
        self.posted.push_back(now);
    }

    /// Records that a packet with this PSN arrives. Returns whether it is the first.
    pub(super) fn arrives(&mut self, psn: Psn) -> bool {
        let at = psn.get() as usize;
        let is_first = self.arrived[at / 64] & (1 << (at % 64)) == 0;
        self.arrived[at / 64] |= 1 << (at % 64);
        // PSNs wrap around, and are then used again.
        let opposite = (at + (1 << (PSN_BITS - 1))) % (1 << PSN_BITS);
        self.arrived[opposite / 64] = 0;
        is_first
    }

    pub(super) fn receive(&mut self, now: Time, bytes: &[u8], marked: bool, senders: usize) {
        let packet = Packet::parse(bytes).expect("what an end sends is well-formed");
        let index = (self.qp.qpn().get() - FIRST) as usize;
        let peer = (index + senders) % (2 * senders);
        let source = Source {
            gid: gid(peer),
            port: 0xc000,
        };
        self.qp.handle_packet(now, source, &packet, &mut self.host);
        if marked {
            self.qp.handle_ecn_mark(now, &packet);
        }
        self.longest_gap = self.longest_gap.max(now.since(self.last_received));
        self.last_received = now;
        while self.host.sends.pop_front().is_some() {
            self.completed += 1;
            let posted = self.posted.pop_front().expect("it was posted");
            self.latency = self.latency.max(now.since(posted));
            self.post(now);
        }
        while self.host.receptions.pop_front().is_some() {
            self.post_receive();
        }
    }
}
