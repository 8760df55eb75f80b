//! The costs that each packet incurs: parsing, ICRC and staging.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::net::SocketAddr;
use urxe_net::{LocalAddress, Options, PathOptions, SendBatch, Shared};
use urxe_proto::host::Transmit;
use urxe_proto::icrc::{Flow, FlowIcrc, IpId};
use urxe_proto::wire::{Bth, Packet};

const PAYLOADS: [usize; 3] = [64, 1024, 4096];

/// The opcode of an RC RDMA WRITE middle packet, which has only a BTH.
const WRITE_MIDDLE: u8 = 7;

fn flow() -> FlowIcrc {
    let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
    let flow = Flow::new(address("192.0.2.1:49152"), address("192.0.2.2:4791"));
    FlowIcrc::new(&flow.expect("one family"))
}

fn numbered(id: u16) -> IpId {
    IpId {
        id,
        dont_fragment: true,
    }
}

fn packet(payload: usize) -> Vec<u8> {
    let mut packet = vec![7; Bth::LEN + payload];
    packet[..Bth::LEN].copy_from_slice(&[WRITE_MIDDLE, 0, 0xff, 0xff, 0, 1, 2, 3, 0, 4, 5, 6]);
    packet
}

fn parse(c: &mut Criterion) {
    let packet = packet(4096);
    c.bench_function("parse", |b| {
        b.iter(|| Packet::parse(black_box(&packet)).is_ok());
    });
}

fn icrc(c: &mut Criterion) {
    let flow = flow();
    let mut group = c.benchmark_group("ICRC");
    for size in PAYLOADS {
        let packet = packet(size);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(size.to_string(), |b| {
            b.iter(|| flow.compute(numbered(0), black_box(&packet)));
        });
    }
}

fn id_recovery(c: &mut Criterion) {
    let flow = flow();
    let mut group = c.benchmark_group("verify");
    for size in PAYLOADS {
        let mut packet = packet(size);
        let sum = flow.compute(numbered(0x718c), &packet);
        packet.extend_from_slice(&sum);
        for (name, guess) in [("right guess", 0x718c), ("id recovered", 0)] {
            group.bench_function(format!("{size}, {name}"), |b| {
                b.iter(|| {
                    flow.verify_known_sender(black_box(&packet), numbered(guess))
                        .is_ok()
                });
            });
        }
    }
}

fn staging(c: &mut Criterion) {
    let shared = Shared::new(Options::default()).expect("a slot");
    let address = LocalAddress::new([127, 0, 0, 1].into(), 1);
    let endpoint = shared.open(address).expect("port 4791");
    let path = endpoint
        .path(address.ip(), PathOptions::default())
        .expect("a path");
    let mut group = c.benchmark_group("staging with ICRC");
    for size in PAYLOADS {
        let packet = packet(size);
        let mut batch = SendBatch::default();
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(size.to_string(), |b| {
            b.iter(|| {
                batch.begin(&path);
                if let Some(space) = batch.stage(packet.len()) {
                    space.copy_from_slice(&packet);
                    batch.commit();
                } else {
                    batch.discard();
                }
            });
        });
        batch.discard();
    }
}

criterion_group!(packets, parse, icrc, id_recovery, staging);
criterion_main!(packets);
