//! Tests across modules: packets over the loopback interface between several processes.

#[cfg(feature = "capture")]
mod capture;
mod processes;
mod sharing;

use super::*;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use urxe_proto::host::Transmit;
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;

/// Returns an address that no other test uses, in this process or another.
pub(super) fn own_address() -> LocalAddress {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
    let [_, a, b, c] = (n & 0x7f_ffff | 0x80_0000).to_be_bytes();
    LocalAddress::new(Ipv4Addr::new(127, a, b, c).into(), 1)
}

/// Writes a packet with a BTH for `qpn`, and its number behind the BTH.
fn write_packet(buffer: &mut [u8], qpn: Qpn, number: u32) {
    buffer.fill(0x5a);
    buffer[0] = 0x04;
    buffer[4..8].copy_from_slice(&qpn.get().to_be_bytes());
    buffer[12..16].copy_from_slice(&number.to_be_bytes());
}

fn number_of(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[12..16].try_into().unwrap())
}

/// Whether a datagram is for this test. A slot's previous owner may still get datagrams forwarded.
fn is_for(endpoint: &Endpoint, datagram: &Datagram<'_>) -> bool {
    datagram.dst == endpoint.address()
}

/// A stand-in for a process with one endpoint.
struct Node {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    receive: RecvBatch,
    send: SendBatch,
    /// The number, length, index and identification of each packet.
    got: Vec<(u32, usize, u16, Option<u16>)>,
    /// The number of the receive socket of each packet that was not forwarded.
    sockets: Vec<usize>,
}

impl Node {
    fn new(address: LocalAddress, options: Options) -> Node {
        let shared = Shared::new(options).unwrap();
        let endpoint = shared.open(address).unwrap();
        Node::of(shared, endpoint)
    }

    fn of(shared: Arc<Shared>, endpoint: Endpoint) -> Node {
        Node {
            shared,
            endpoint,
            receive: RecvBatch::new(),
            send: SendBatch::default(),
            got: Vec::new(),
            sockets: Vec::new(),
        }
    }

    fn qpn(&self) -> Qpn {
        Qpn::new(self.shared.qpns().start() + 7)
    }

    /// Does all work that is due. Returns whether there was any.
    fn pump(&mut self) -> bool {
        let Node {
            shared,
            endpoint,
            receive,
            got,
            sockets,
            ..
        } = self;
        let mut take = |d: &Datagram<'_>| {
            if is_for(endpoint, d) {
                let id = d.ip_id.map(|id| id.id);
                got.push((number_of(d.bytes), d.packet().len(), d.index, id));
            }
        };
        let mut busy = false;
        for number in 0..endpoint.receive_sockets() {
            if endpoint.fill(number, receive).unwrap() > 0 {
                busy = true;
                endpoint.deliver(number, receive, |d| {
                    take(d);
                    sockets.push(number);
                });
            }
        }
        busy |= shared.recv_forwarded(receive, &mut take).unwrap() > 0;
        endpoint.service(receive, &mut take).unwrap();
        busy
    }

    /// Sends packets of these lengths, numbered from `first`, in one batch.
    fn send(&mut self, to: (LocalAddress, Qpn), first: u32, lengths: &[usize]) {
        self.send_flow(to, PathOptions::default().flow_key, first, lengths);
    }

    /// Sends packets like [`Node::send`], as a flow of their own.
    fn send_flow(&mut self, to: (LocalAddress, Qpn), flow_key: u32, first: u32, lengths: &[usize]) {
        let options = PathOptions {
            flow_key,
            ..PathOptions::default()
        };
        let path = self.endpoint.path(to.0.ip(), options).unwrap();
        self.send.begin(&path);
        for (number, len) in (first..).zip(lengths) {
            write_packet(self.send.stage(*len).unwrap(), to.1, number);
            self.send.commit();
        }
        let report = self.send.flush();
        assert_eq!(report.packets, lengths.len() as u64, "{report:?}");
        assert!(report.error.is_none() && !report.blocked);
    }
}

/// Pumps all nodes until `done`, and fails after a timeout.
fn pump_until(nodes: &mut [&mut Node], mut done: impl FnMut(&[&mut Node]) -> bool) {
    let start = Instant::now();
    while !done(nodes) {
        if start.elapsed() >= Duration::from_secs(60) {
            for node in nodes.iter() {
                eprintln!("{:?}: {:?}", node.shared, node.got);
                eprintln!("{:?}", node.shared.counters());
            }
            panic!("timeout");
        }
        let mut busy = false;
        for node in nodes.iter_mut() {
            busy |= node.pump();
        }
        if !busy {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

fn loopback_v6() -> LocalAddress {
    LocalAddress::new(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), 1)
}

fn check_arrival(from: LocalAddress, to: LocalAddress, options: Options) {
    let mut b = Node::new(to, options.clone());
    let mut a = Node::new(from, options);
    // Full packets with a shorter last one; single ones; growing ones, which no batch can hold.
    let lengths: Vec<usize> = [
        vec![1040; 40],
        vec![20],
        vec![4112; 30],
        vec![16, 20, 24, 28],
    ]
    .concat();
    let dst = (to, b.qpn());
    a.send(dst, 0, &lengths);
    pump_until(&mut [&mut a, &mut b], |n| n[1].got.len() == lengths.len());
    b.got.sort_unstable();
    for ((number, got), expected) in b.got.iter().enumerate().zip(&lengths) {
        assert_eq!((got.0 as usize, got.1), (number, *expected));
        assert_eq!(got.3.is_some(), to.ip().is_ipv4());
    }
    assert_eq!(b.shared.counters().icrc_errors.get(), 0);
}

#[test]
fn packets_arrive_in_gso_batches() {
    let (from, to) = (own_address(), own_address());
    check_arrival(from, to, Options::default());
}

#[test]
fn packets_arrive_without_offloads() {
    for (gso, gro) in [(false, false), (true, false), (false, true)] {
        let options = Options {
            gso,
            gro,
            ..Options::default()
        };
        check_arrival(own_address(), own_address(), options);
    }
}

#[test]
fn packets_arrive_over_ipv6() {
    // All tests share ::1, so the endpoint sends to itself.
    let address = loopback_v6();
    let mut node = Node::new(address, Options::default());
    let dst = (address, node.qpn());
    node.send(dst, 0, &[1040; 20]);
    pump_until(&mut [&mut node], |n| n[0].got.len() == 20);
    assert!(node.got.iter().all(|got| got.3.is_none()));
}

#[test]
fn identifications_count_from_0_in_each_gso_batch() {
    let (from, to) = (own_address(), own_address());
    let mut b = Node::new(to, Options::default());
    let mut a = Node::new(from, Options::default());
    let dst = (to, b.qpn());
    // 65 packets are two batches: 64 and a lone one.
    a.send(dst, 0, &[256; 65]);
    pump_until(&mut [&mut b], |n| n[0].got.len() == 65);
    assert!(
        a.shared.counters().gso_sends.get() >= 1,
        "the kernel has no GSO"
    );
    b.got.sort_unstable();
    for got in &b.got {
        assert_eq!(got.3, Some((got.0 % 64) as u16));
    }
}

#[test]
fn invalid_packet_lengths_are_refused() {
    let address = own_address();
    let mut node = Node::new(address, Options::default());
    let dst = (address, node.qpn());
    let path = node
        .endpoint
        .path(address.ip(), PathOptions::default())
        .unwrap();
    node.send.begin(&path);
    assert!(node.send.stage(8).is_none(), "shorter than a BTH");
    assert!(node.send.stage(70_000).is_none(), "longer than UDP");
    assert!(node.send.is_empty());
    node.send(dst, 0, &[64]);
    pump_until(&mut [&mut node], |n| n[0].got.len() == 1);
}

#[test]
fn full_batch_refuses_packets_until_it_is_flushed() {
    let address = own_address();
    let node = Node::new(address, Options::default());
    let path = node
        .endpoint
        .path(address.ip(), PathOptions::default())
        .unwrap();
    let mut batch = SendBatch::new(0);
    assert!(batch.stage(64).is_none(), "there is no path yet");
    batch.begin(&path);
    let mut count = 0;
    while let Some(buffer) = batch.stage(4096) {
        write_packet(buffer, node.qpn(), count);
        batch.commit();
        count += 1;
    }
    assert_eq!(batch.packets(), 15);
    let report = batch.flush();
    assert_eq!((report.packets, report.lost), (15, 0));
    assert!(batch.is_empty() && batch.stage(4096).is_some());
    batch.cancel();
    assert_eq!(batch.flush().packets, 0);
}

#[test]
fn batches_are_as_long_as_the_kernel_segments_at_once() {
    let address = own_address();
    let options = |gso| Options {
        gso,
        ..Options::default()
    };
    let place = |gso, staged: &[usize], len| {
        let node = Node::new(address, options(gso));
        let path = (node.endpoint).path(address.ip(), PathOptions::default());
        let mut batch = SendBatch::default();
        batch.begin(&path.unwrap());
        for len in staged {
            write_packet(batch.stage(*len).unwrap(), node.qpn(), 0);
            batch.commit();
        }
        let place = batch.place_in_batch(len);
        batch.discard();
        (place.begins, place.ends, place.capacity)
    };
    // 64 KiB of packets with 4096 bytes of payload, and at most 64.
    assert_eq!(place(true, &[], 12 + 4096), (true, false, 15));
    assert_eq!(place(true, &[], 12 + 256), (true, false, 64));
    let (joins, ends) = ((false, false, 15), (false, true, 15));
    assert_eq!(place(true, &[12 + 4096], 12 + 4096), joins);
    assert_eq!(place(true, &[12 + 4096; 14], 12 + 4096), ends, "the last");
    assert_eq!(place(true, &[12 + 4100], 12 + 4096), ends, "it is shorter");
    let begins = (true, false, 15);
    assert_eq!(place(true, &[12 + 4096; 15], 12 + 4096), begins);
    assert_eq!(place(true, &[12 + 256], 12 + 4096), begins, "it is longer");
    let short = [12 + 4096, 16];
    assert_eq!(place(true, &short, 12 + 4096), begins, "behind a shorter");
    assert_eq!(place(false, &[12 + 4096], 12 + 4096), (true, true, 1));
}

#[test]
fn peer_of_the_other_family_is_refused() {
    let node = Node::new(own_address(), Options::default());
    let peer = "2001:db8::1".parse().unwrap();
    let Err(error) = node.endpoint.path(peer, PathOptions::default()) else {
        panic!("an IPv6 peer of an IPv4 address");
    };
    assert!(matches!(error, OpenError::OtherFamily { .. }));
}

#[test]
fn damaged_packet_is_dropped_and_counted() {
    let (from, to) = (own_address(), own_address());
    let faulty = Options {
        faults: Some("corrupt=100%,seed=11".parse().unwrap()),
        ..Options::default()
    };
    let mut b = Node::new(to, Options::default());
    let mut a = Node::new(from, faulty);
    let dst = (to, b.qpn());
    a.send(dst, 0, &[1040; 50]);
    let errors = |n: &Node| n.shared.counters().icrc_errors.get();
    // A flip in the byte of FECN and BECN is legal, and one in the QPN may change the destination.
    pump_until(&mut [&mut b], |n| errors(n[0]) >= 45);
    assert!(b.got.len() <= 1);
}

#[test]
fn faults_apply_in_the_configured_direction() {
    for dir in ["tx", "rx"] {
        let (from, to) = (own_address(), own_address());
        let text = format!("drop=20%,dup=20%,reorder=20%,delay=1ms,seed=5,dir={dir}");
        let faulty = Options {
            faults: Some(text.parse().unwrap()),
            ..Options::default()
        };
        let clean = Options::default();
        let (tx, rx) = if dir == "tx" {
            (faulty, clean)
        } else {
            (clean, faulty)
        };
        let mut b = Node::new(to, rx);
        let mut a = Node::new(from, tx);
        let dst = (to, b.qpn());
        a.send(dst, 0, &[64; 300]);
        let faulty_node = if dir == "tx" { &a } else { &b };
        let counters = faulty_node.shared.counters().clone();
        let expected = move || {
            300 + counters.faults_duplicated.get() as usize - counters.faults_dropped.get() as usize
        };
        let start = Instant::now();
        pump_until(&mut [&mut a, &mut b], |n| {
            let all = n[1].got.len() == expected() && expected() != 300;
            all && start.elapsed() > Duration::from_millis(20)
        });
        assert!(!b.got.is_sorted());
    }
}

#[test]
fn headers_have_the_values_of_the_path() {
    // With a hop limit of 0 the kernel uses that of the host, usually 64.
    let all = [(0x29, 7, 7), (0, 0, 64), (0x02, 0, 64), (0x02, 255, 255)];
    for address in [own_address(), loopback_v6()] {
        for headers in all {
            check_headers(address, headers);
        }
    }
}

fn check_headers(address: LocalAddress, (traffic_class, requested, hop_limit): (u8, u8, u8)) {
    let mut node = Node::new(address, Options::default());
    let options = PathOptions {
        flow_key: 3,
        traffic_class,
        hop_limit: requested,
        flow_label: 0x1_2345,
        ..PathOptions::default()
    };
    let path = node.endpoint.path(address.ip(), options).unwrap();
    assert_eq!(path.options(), options);
    let qpn = node.qpn();
    node.send.begin(&path);
    for number in 0..3 {
        write_packet(node.send.stage(64).unwrap(), qpn, number);
        node.send.commit();
    }
    assert_eq!(node.send.flush().packets, 3);
    let mut count = 0;
    let start = Instant::now();
    while count < 3 {
        assert!(start.elapsed() < Duration::from_secs(60));
        let take = |d: &Datagram<'_>| {
            assert_eq!((d.tos, d.ttl), (traffic_class, hop_limit));
            assert_eq!((d.src, d.dst), (path.local(), address));
            count += 1;
        };
        node.endpoint.recv(&mut node.receive, take).unwrap();
    }
}

#[cfg(not(feature = "capture"))]
#[test]
fn request_for_a_capture_is_an_error_in_a_build_without_it() {
    let options = Options {
        capture: Some("file".into()),
        ..Options::default()
    };
    let error = Shared::new(options).unwrap_err();
    assert!(matches!(error, OpenError::Capture(CaptureError::NotBuilt)));
}
