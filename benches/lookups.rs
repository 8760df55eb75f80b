//! How long a packet looks for what it names among much: a memory region by its key, a queue pair by its number.
//!
//! Each look goes somewhere else than the one before, and waits for it, as a packet's look waits for the packet: so
//! it pays in full for what the caches do not hold.

use criterion::{Bencher, BenchmarkId, Criterion, criterion_group, criterion_main};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;
use urxe_driver::tables::{ByKey, ByNumber};
use urxe_proto::ids::Qpn;

/// How many looks there are in an order that begins anew after them.
const LOOKS: usize = 1 << 17;

/// The numbers of a process's queue pairs.
const NUMBERS: std::ops::RangeInclusive<u32> = 0x01_0000..=0x01_ffff;

/// As large as what is known of a region.
struct Region {
    key: u32,
    pd: u64,
    nothing: u32,
    _rest: [u64; 4],
}

/// As far as a look goes: to the first line of the queue pair, which has its lock.
#[repr(align(64))]
struct QueuePair {
    nothing: u32,
    _rest: [u64; 100],
}

/// Looks for names in random order; each look also returns a 0, of which only the compiler does not know.
fn measure(b: &mut Bencher<'_>, names: &[u32], look: impl Fn(u32) -> u32) {
    let mut random = StdRng::seed_from_u64(1);
    let order: Vec<u32> = (0..LOOKS)
        .filter_map(|_| names.choose(&mut random).copied())
        .collect();
    let mut order = order.iter().cycle();
    let mut nothing = 0;
    b.iter(|| {
        if let Some(name) = order.next() {
            nothing = look(name | nothing);
        }
    });
    assert_eq!(nothing, 0);
}

fn regions(c: &mut Criterion) {
    let mut group = c.benchmark_group("memory region by key");
    for count in [1, 100_000] {
        let mut random = StdRng::seed_from_u64(2);
        let mut table = ByKey::default();
        let mut keys = Vec::new();
        while keys.len() < count {
            let key = random.random();
            if table.get(key).is_none() {
                let (nothing, _rest) = (black_box(0), [0; 4]);
                table.insert(
                    key,
                    Region {
                        key,
                        pd: 1,
                        nothing,
                        _rest,
                    },
                );
                keys.push(key);
            }
        }
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            measure(b, &keys, |key| match table.get(key) {
                Some(region) if region.key == key && region.pd == 1 => region.nothing,
                _ => 1,
            });
        });
    }
}

fn queue_pairs(c: &mut Criterion) {
    let mut group = c.benchmark_group("queue pair by number");
    for count in [1, 60_000] {
        let mut table = ByNumber::default();
        let mut numbers = Vec::new();
        for _ in 0..count {
            let added = table.add(NUMBERS, |number| {
                numbers.push(number.get());
                let (nothing, _rest) = (black_box(0), [0; 100]);
                Ok::<_, Infallible>(Arc::new(QueuePair { nothing, _rest }))
            });
            assert!(added.is_ok_and(|pair| pair.is_some()));
        }
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            measure(b, &numbers, |number| {
                let found = table.get(Qpn::new(number));
                found.map_or(1, |pair| pair.nothing)
            });
        });
    }
}

criterion_group!(lookups, regions, queue_pairs);
criterion_main!(lookups);
