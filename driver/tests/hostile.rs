//! Attacks by a peer, or by any host that can send datagrams.

mod common;

use common::{ALL, Buffer, End, pair};
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use urxe_driver::{Mr, stat};
use urxe_net::ROCE_PORT;
use urxe_proto::icrc::{self, Flow};
use urxe_proto::ids::{Qpn, RKey};
use urxe_proto::psn::Psn;
use urxe_proto::qp::Counters;
use urxe_proto::wire::{Aeth, Header, NakCode, Opcode, Packet, Reth, Syndrome};
use urxe_proto::work::{SendOp, WcStatus};

/// Bytes of a message that takes many packets.
const LONG: usize = 1 << 20;
/// Bytes of a message that takes several send quanta.
const LONGER: usize = 8 << 20;

/// Number of messages to interrupt.
const INTERRUPTED: u32 = 12;

/// Duration of a burst of garbage.
const FLOOD: Duration = Duration::from_millis(5);

/// Set in a test process that runs in its own network namespace.
const ALONE: &str = "URXE_TEST_ALONE";

/// Returns whether the test must run in this process. If not, a child process has run `test` in its
/// own network namespace, where a flood disturbs no other test. Without the right to create a
/// namespace, the test runs in the host's network.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    for options in ["-n", "-rn"] {
        let within = |words: &[&str]| {
            let mut command = Command::new("unshare");
            command.arg(options).args(["sh", "-c"]);
            command.args(["ip link set lo up && exec \"$@\"", "alone"]);
            command.args(words);
            command
        };
        let possible = within(&["true"]).output();
        if !possible.is_ok_and(|output| output.status.success()) {
            continue;
        }
        let this = std::env::current_exe().unwrap();
        let mut again = within(&[this.to_str().expect("cargo's own path")]);
        again.args(["--exact", test, "--nocapture"]).env(ALONE, "1");
        let output = again.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return false;
    }
    true
}

#[test]
fn no_write_lands_after_deregistration_has_returned() {
    if !is_alone("no_write_lands_after_deregistration_has_returned") {
        return;
    }
    let begun = Instant::now();
    let mut interrupted = 0;
    let mut round = 0;
    // Some messages complete before they can be interrupted.
    while interrupted < INTERRUPTED {
        assert!(
            begun.elapsed() < common::TEST_TIMEOUT,
            "{interrupted} of {round} messages were interrupted"
        );
        round += 1;
        let (a, b) = pair(|_| {});
        let mut from = Buffer::new(&a.pd, LONGER, ALL);
        from.fill(round);
        let mut target = vec![0_u64; LONGER / 8];
        let addr = target.as_mut_ptr() as u64;
        // SAFETY: the vector is dropped after the region, and is accessed only by volatile reads
        // while the region exists.
        let region = unsafe { Mr::register(&b.pd, addr, LONGER as u64, addr, ALL) }.unwrap();
        let rkey = region.rkey();
        a.post(
            1,
            SendOp::Write { addr, rkey },
            &[from.sge(0, LONGER as u32)],
        );
        let first = target.as_ptr();
        // SAFETY: `at` is an index of the vector, so `first.add(at)` is inside it.
        let word = |at: usize| unsafe { first.add(at).read_volatile() };
        // A position in the middle of the message that varies with the round.
        let wanted = (LONGER / 8) * (round as usize % 4 + 1) / 10;
        let started = Instant::now();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let mut none = [None; 0];
                    a.cq.poll(&mut none);
                    b.cq.poll(&mut none);
                }
            });
            while word(wanted) == 0 && started.elapsed() < common::TEST_TIMEOUT {
                std::hint::spin_loop();
            }
            drop(region);
            let then: Vec<u64> = (0..LONGER / 8).map(word).collect();
            interrupted += u32::from(then.last() == Some(&0));
            thread::sleep(Duration::from_millis(5));
            let later: Vec<u64> = (0..LONGER / 8).map(word).collect();
            over.store(true, Ordering::Relaxed);
            assert!(then == later, "bytes changed after deregistration");
        });
        let status = a.completion().status;
        let expected = [WcStatus::Success, WcStatus::RemAccessErr];
        assert!(expected.contains(&status), "{status:?}");
    }
}

#[test]
fn a_flood_of_garbage_neither_stops_transfers_nor_grows_memory() {
    if !is_alone("a_flood_of_garbage_neither_stops_transfers_nor_grows_memory") {
        return;
    }
    let (a, b) = pair(|_| {});
    let mut from = Buffer::new(&a.pd, LONG, ALL);
    let to = Buffer::new(&b.pd, LONG, ALL);
    let (addr, rkey) = (to.mr.addr(), to.mr.rkey());
    let transfer = |seed: u64, from: &mut Buffer| {
        from.fill(seed);
        a.post(
            seed,
            SendOp::Write { addr, rkey },
            &[from.sge(0, LONG as u32)],
        );
        assert_eq!(a.completion().status, WcStatus::Success);
        assert!(to.now() == from.now(), "a wrong byte");
    };
    for seed in 0..4 {
        transfer(seed, &mut from);
    }
    let target = SocketAddr::new(b.gid().to_ip(), ROCE_PORT);
    let qpns = [a.qp.qpn().get(), b.qp.qpn().get()];
    let over = AtomicBool::new(false);
    let before = resident();
    let sent = thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
            let mut sent = 0_u64;
            let mut packet = [0_u8; 1024];
            let mut begun = Instant::now();
            while !over.load(Ordering::Relaxed) {
                // The flood may exceed what a busy machine can drop, and losing every packet ends
                // the connection.
                if begun.elapsed() >= FLOOD {
                    thread::sleep(2 * FLOOD);
                    begun = Instant::now();
                }
                // Datagrams of random length with an invalid ICRC, to existing and missing queue
                // pairs and to queue pair 1.
                let mut x = sent.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                for byte in &mut packet[..64] {
                    x = x.rotate_left(9).wrapping_mul(0x2545_f491_4f6c_dd1d);
                    *byte = (x >> 32) as u8;
                }
                let qpn = [qpns[0], qpns[1], 1, x as u32][sent as usize % 4];
                packet[4..8].copy_from_slice(&(qpn & 0xff_ffff).to_be_bytes());
                let len = x as usize % packet.len();
                // The kernel may drop what it has no room for.
                let _ = socket.send_to(&packet[..len], target);
                sent += 1;
            }
            sent
        });
        let end = Instant::now() + Duration::from_secs(4);
        let mut seed = 10;
        // Stops the flood when this scope ends, also by a panic.
        let until_here = Ends(&over);
        while Instant::now() < end || seed < 14 {
            transfer(seed, &mut from);
            seed += 1;
        }
        drop(until_here);
        flood.join().unwrap()
    });
    assert!(sent > 1000, "{sent} datagrams are no flood");
    let grown = resident().saturating_sub(before);
    assert!(
        grown < 16 << 20,
        "{grown} bytes more after {sent} datagrams"
    );
}

/// An attacker that sends from a peer's address, with another UDP source port.
struct Forger {
    socket: UdpSocket,
    target: SocketAddr,
    flow: Flow,
}

impl Forger {
    fn new(to: &End) -> Forger {
        let target = SocketAddr::new(to.gid().to_ip(), ROCE_PORT);
        let socket = UdpSocket::bind((target.ip(), 0)).unwrap();
        let flow = Flow::new(socket.local_addr().unwrap(), target).unwrap();
        Forger {
            socket,
            target,
            flow,
        }
    }

    /// Sends a NAK for a gap before a PSN.
    fn nak_sequence(&self, to: Qpn, psn: Psn) {
        let syndrome = Syndrome::Nak(NakCode::PsnSequence);
        let header = Header::new(Opcode::RcAck, to, psn).with_aeth(Aeth { syndrome, msn: 0 });
        self.send(&Packet {
            header,
            payload: &[],
        });
    }

    /// Sends a WRITE of one packet.
    fn write(&self, to: Qpn, psn: Psn, addr: u64, rkey: RKey, payload: &[u8]) {
        let header = Header::new(Opcode::RcWriteOnly, to, psn)
            .with_reth(Reth {
                addr,
                rkey,
                length: payload.len() as u32,
            })
            .with_payload_len(payload.len());
        self.send(&Packet { header, payload });
    }

    fn send(&self, packet: &Packet<'_>) {
        let mut bytes = vec![0; packet.len()];
        packet.emit(&mut bytes);
        let icrc = icrc::compute(&self.flow, 0, true, &bytes);
        bytes.extend(icrc);
        self.socket.send_to(&bytes, self.target).unwrap();
    }
}

/// Receives at `end` until its counters satisfy `reached`.
fn receive_until(end: &End, reached: impl Fn(&Counters) -> bool) {
    let start = Instant::now();
    while !reached(&end.qp.counters()) {
        assert!(
            start.elapsed() < common::TEST_TIMEOUT,
            "{:?}",
            end.qp.counters()
        );
        end.cq.poll(&mut [None]);
    }
}

#[test]
fn a_forged_request_ahead_of_the_next_one_is_not_executed_in_its_place() {
    if !is_alone("a_forged_request_ahead_of_the_next_one_is_not_executed_in_its_place") {
        return;
    }
    let (a, b) = pair(|_| {});
    let mut from = Buffer::new(&a.pd, 24, ALL);
    let to = Buffer::new(&b.pd, 24, ALL);
    from.fill(7);
    let (addr, rkey) = (to.mr.addr(), to.mr.rkey());
    let write = |word: u64| {
        let place = SendOp::Write {
            addr: addr + 8 * word,
            rkey,
        };
        a.post(word, place, &[from.sge(8 * word, 8)]);
        assert_eq!(a.completion().status, WcStatus::Success);
    };
    let first = a.qp.attributes().sq_psn;
    write(0);
    let forger = Forger::new(&b);
    forger.write(b.qp.qpn(), first + 2, addr + 16, rkey, &[0xee; 8]);
    receive_until(&b, |counters| counters.out_of_sequence > 0);
    write(1);
    write(2);
    assert_eq!(to.now(), from.now());
    assert_eq!(b.qp.counters().out_of_order_executed, 0);
}

/// A link that drops long packets, and a peer that reports the gap for each short one, until the
/// retries are exhausted without a timeout.
#[test]
fn a_long_packet_that_the_peer_reports_as_missing_may_exceed_the_mtu_of_a_link() {
    if !is_alone("a_long_packet_that_the_peer_reports_as_missing_may_exceed_the_mtu_of_a_link") {
        return;
    }
    // The peer itself drops everything.
    let (a, peer) = (End::new(None, 16), End::new(None, 16));
    a.init();
    a.connect(&peer, |attr| attr.timeout = 0);
    let from = Buffer::new(&a.pd, 4096, ALL);
    let place = SendOp::Write {
        addr: 0,
        rkey: RKey(1),
    };
    let first = a.qp.attributes().sq_psn;
    a.post(1, place, &[from.sge(0, 4096)]);
    a.post(2, place, &[from.sge(0, 8)]);
    let forger = Forger::new(&a);
    let start = Instant::now();
    let mut completion = [None];
    while a.cq.poll(&mut completion) == 0 {
        assert!(start.elapsed() < common::TEST_TIMEOUT);
        forger.nak_sequence(a.qp.qpn(), first);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(completion[0].unwrap().status, WcStatus::RetryExcErr);
    assert_eq!(stat::report().process["path_mtu_exceeded"], 1);
}

#[test]
fn out_of_order_queues_have_one_memory_limit() {
    const CONNECTIONS: usize = 200;
    const REQUESTS: u32 = 100;
    const BOUND: u64 = 32 << 20;
    if !is_alone("out_of_order_queues_have_one_memory_limit") {
        return;
    }
    let peer = End::new(None, 16);
    let ends: Vec<End> = (0..CONNECTIONS)
        .map(|_| {
            let end = End::new(None, 16);
            end.init();
            // A long timeout keeps every request in the queue until the test ends.
            end.connect(&peer, |attr| attr.timeout = 20);
            end
        })
        .collect();
    let forger = Forger::new(&peer);
    let before = resident();
    for end in &ends {
        let expected = end.qp.attributes().rq_psn;
        for ahead in 1..=REQUESTS {
            forger.write(end.qp.qpn(), expected + ahead, 0, RKey(1), &[0xee; 4096]);
            // Drain the socket regularly, since it drops what it has no room for.
            if ahead % 10 == 0 {
                receive_until(end, |counters| counters.out_of_sequence >= u64::from(ahead));
            }
        }
    }
    let grown = resident().saturating_sub(before);
    let sent = CONNECTIONS as u64 * u64::from(REQUESTS) * 4096;
    assert!(sent > 2 * BOUND);
    // Half of the bound again is allowed for the allocator and the socket.
    assert!(grown < BOUND + BOUND / 2, "{grown} bytes more");
}

/// Sets the flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}
