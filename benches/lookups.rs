//! Lookup times in large tables: a memory region by its key, a queue pair by its number.
//!
//! Each lookup goes to a random entry and depends on the result of the one before, as a packet's
//! lookup depends on the packet. So cache misses are not hidden by speculation.

use criterion::{Bencher, BenchmarkId, Criterion, criterion_group, criterion_main};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;
use urxe_driver::tables::{ByKey, ByNumber};
use urxe_proto::ids::Qpn;

/// The number of lookups in the random order, which is then repeated.
const LOOKUPS: usize = 1 << 17;

/// The queue pair numbers of a process.
const NUMBERS: std::ops::RangeInclusive<u32> = 0x01_0000..=0x01_ffff;

/// An entry of the size of a memory region's.
struct Region {
    key: u32,
    pd: u64,
    zero: u32,
    _rest: [u64; 4],
}

/// The first cache line of a queue pair, which has its lock: a lookup reads no further.
#[repr(align(64))]
struct QueuePair {
    zero: u32,
    _rest: [u64; 100],
}

/// Looks up `names` in random order.
///
/// Each lookup returns a 0 that the compiler cannot predict, and that the next one depends on.
fn measure(b: &mut Bencher<'_>, names: &[u32], lookup: impl Fn(u32) -> u32) {
    let mut random = StdRng::seed_from_u64(1);
    let order: Vec<u32> = (0..LOOKUPS)
        .filter_map(|_| names.choose(&mut random).copied())
        .collect();
    let mut order = order.iter().cycle();
    let mut zero = 0;
    b.iter(|| {
        if let Some(name) = order.next() {
            zero = lookup(name | zero);
        }
    });
    assert_eq!(zero, 0);
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
                let (zero, _rest) = (black_box(0), [0; 4]);
                table.insert(
                    key,
                    Region {
                        key,
                        pd: 1,
                        zero,
                        _rest,
                    },
                );
                keys.push(key);
            }
        }
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            measure(b, &keys, |key| match table.get(key) {
                Some(region) if region.key == key && region.pd == 1 => region.zero,
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
            let added = table.add(
                NUMBERS,
                |_| true,
                |number| {
                    numbers.push(number.get());
                    let (zero, _rest) = (black_box(0), [0; 100]);
                    Ok::<_, Infallible>(Arc::new(QueuePair { zero, _rest }))
                },
            );
            assert!(added.is_ok_and(|pair| pair.is_some()));
        }
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            measure(b, &numbers, |number| {
                let found = table.get(Qpn::new(number));
                found.map_or(1, |pair| pair.zero)
            });
        });
    }
}

criterion_group!(lookups, regions, queue_pairs);
criterion_main!(lookups);
