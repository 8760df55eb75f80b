//! Packet rates of the requester and the responder of a connection, without a network.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::time::{Duration, Instant};
use urxe_proto::host::{
    Access, AtomicOp, Completions, Memory, MemoryError, QpEvent, Receive, Receives, RemoteKey,
    Transmit, WindowBind,
};
use urxe_proto::ids::{Gid, LKey, Qpn, RKey, Source, Srqn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, QpAttr, QpType, transitions_to_rts};
use urxe_proto::queue::SendQueueSize;
use urxe_proto::rc::congestion::{Algorithm, WindowLimits};
use urxe_proto::rc::{RcConfig, RcQp};
use urxe_proto::time::Time;
use urxe_proto::wire::Packet;
use urxe_proto::work::{Completion, Payload, SendFlags, SendOp, SendWr, Sge};

/// The packets between two acknowledgements. They fit the initial congestion window.
const BURST: usize = 16;

const PAYLOADS: [usize; 3] = [64, 1024, 4096];

/// A host whose memory permits every access and whose completion queue only counts.
struct CountingHost {
    memory: Box<[u8]>,
    completed: usize,
}

impl Memory for CountingHost {
    fn check_local(&self, _: &[Sge], _: Access) -> Result<(), MemoryError> {
        Ok(())
    }

    fn gather(&self, _: &[Sge], _: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        out.copy_from_slice(&self.memory[..out.len()]);
        Ok(())
    }

    fn scatter(&self, _: &[Sge], _: u64, _: &[u8]) -> Result<(), MemoryError> {
        Ok(())
    }

    fn check_remote(&self, _: RemoteKey, _: u64, _: u64, _: Access) -> Result<(), MemoryError> {
        Ok(())
    }

    fn remote_read(&self, _: RemoteKey, _: u64, _: &mut [u8]) -> Result<(), MemoryError> {
        Ok(())
    }

    fn remote_write(&self, _: RemoteKey, _: u64, data: &[u8]) -> Result<(), MemoryError> {
        std::hint::black_box(data);
        Ok(())
    }

    fn remote_atomic(&self, _: RemoteKey, _: u64, _: AtomicOp) -> Result<u64, MemoryError> {
        Ok(0)
    }

    fn flush(&self, _: RemoteKey, _: Option<(u64, u64)>, _: Access) -> Result<(), MemoryError> {
        Ok(())
    }

    fn invalidate(&self, _: RemoteKey) -> Result<(), MemoryError> {
        Ok(())
    }

    fn bind_window(&self, _: &WindowBind) -> Result<(), MemoryError> {
        Ok(())
    }

    fn invalidate_local(&self, _: RKey) -> Result<(), MemoryError> {
        Ok(())
    }
}

impl Receives for CountingHost {
    fn take_receive(&mut self, _: &mut Receive) -> bool {
        false
    }

    fn has_srq(&self, _: Srqn) -> bool {
        false
    }

    fn receive_credits(&self) -> Option<u32> {
        None
    }

    fn fill_receive(&self, _: &Receive, _: u64, _: &[u8]) -> Result<(), MemoryError> {
        Ok(())
    }
}

impl Completions for CountingHost {
    fn send_completed(&mut self, _: Completion) {
        self.completed += 1;
    }

    fn receive_completed(&mut self, _: &Receive, _: Completion, _: bool) {}

    fn event(&mut self, _: QpEvent) {}
}

/// The packets that an end has sent, in one buffer.
struct Link {
    buffer: Vec<u8>,
    ends: Vec<usize>,
    staged: usize,
    now: Time,
}

impl Link {
    fn used(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn clear(&mut self) {
        self.ends.clear();
    }
}

impl Transmit for Link {
    fn stage(&mut self, len: usize) -> Option<&mut [u8]> {
        self.staged = self.used() + len;
        let start = self.used();
        self.buffer.get_mut(start..self.staged)
    }

    fn commit(&mut self) {
        self.ends.push(self.staged);
    }

    fn cancel(&mut self) {}

    fn now(&self) -> Time {
        self.now
    }
}

/// One end of the connection with the packets it has sent.
struct End {
    qp: RcQp,
    source: Source,
    host: CountingHost,
    link: Link,
}

impl End {
    fn new(number: u32, peer: u32) -> End {
        let gid = |last: u32| Gid::from_ip([192, 0, 2, last as u8].into());
        let mut qp = RcQp::new(RcConfig {
            service: QpType::Rc,
            qpn: Qpn::new(number),
            send: SendQueueSize {
                max_wr: BURST as u32,
                max_sge: 1,
                max_inline: 0,
            },
            signal_all: false,
            window: WindowLimits::fixed(1 << 20),
            out_of_order_bytes: 512 * 1024,
            congestion: Algorithm::default(),
        })
        .expect("memory");
        let mut host = CountingHost {
            memory: vec![7; 4096].into(),
            completed: 0,
        };
        let mut attr = QpAttr {
            access: Access::REMOTE_WRITE,
            av: AddressVector {
                dgid: gid(peer),
                is_global: true,
                port: 1,
                ..AddressVector::default()
            },
            path_mtu: Mtu::B4096,
            dest_qpn: Qpn::new(peer),
            rq_psn: Psn::new(5),
            sq_psn: Psn::new(5),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        for (state, mask) in transitions_to_rts(QpType::Rc) {
            attr.state = state;
            qp.modify(&attr, mask, Time(0), &mut host)
                .expect("a transition");
        }
        End {
            qp,
            source: Source {
                gid: gid(number),
                port: 0xc000,
            },
            host,
            link: Link {
                buffer: vec![0; BURST * 5000],
                ends: Vec::with_capacity(BURST),
                staged: 0,
                now: Time(0),
            },
        }
    }

    /// Posts a burst of WRITEs and transmits their packets.
    fn write(&mut self, now: Time, len: usize) {
        let sge = Sge {
            addr: 0,
            length: len as u32,
            lkey: LKey(1),
        };
        for number in 1..=BURST {
            let signaled = number == BURST;
            let wr = SendWr {
                wr_id: number as u64,
                op: SendOp::Write {
                    addr: 0,
                    rkey: RKey(1),
                },
                flags: match signaled {
                    true => SendFlags::SIGNALED,
                    false => SendFlags::empty(),
                },
                payload: Payload::Sges(&[sge]),
                dest: None,
            };
            self.qp
                .post_send(&wr, now, &mut self.host)
                .expect("the send queue has room");
        }
        self.send(now);
    }

    fn send(&mut self, now: Time) {
        self.link.clear();
        self.link.now = now;
        self.qp.poll_transmit(now, &mut self.host, &mut self.link);
    }

    /// Handles the packets that the other end has sent.
    fn receive(&mut self, now: Time, other: &End) {
        let mut start = 0;
        for &end in &other.link.ends {
            let packet = Packet::parse(&other.link.buffer[start..end]).expect("a packet");
            self.qp
                .handle_packet(now, other.source, &packet, &mut self.host);
            start = end;
        }
    }
}

/// Sends bursts of WRITEs, and returns the time that the requester and the responder took.
fn exchange(bursts: u64, len: usize) -> [Duration; 2] {
    let (mut requester, mut responder) = (End::new(1, 2), End::new(2, 1));
    let [mut requesting, mut responding] = [Duration::ZERO; 2];
    for burst in 0..bursts {
        let now = Time(burst * 50_000);
        let start = Instant::now();
        requester.write(now, len);
        requesting += start.elapsed();
        let start = Instant::now();
        responder.receive(now, &requester);
        responder.send(now);
        responding += start.elapsed();
        let start = Instant::now();
        requester.receive(now + Duration::from_micros(20), &responder);
        requesting += start.elapsed();
    }
    assert_eq!(requester.host.completed as u64, bursts);
    assert_eq!(requester.qp.counters().retransmitted, 0);
    [requesting, responding]
}

fn roles(c: &mut Criterion) {
    for (role, name) in ["requester", "responder"].into_iter().enumerate() {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(BURST as u64));
        for len in PAYLOADS {
            group.bench_function(BenchmarkId::from_parameter(len), |b| {
                b.iter_custom(|bursts| exchange(bursts, len)[role]);
            });
        }
    }
}

criterion_group!(connection, roles);
criterion_main!(connection);
