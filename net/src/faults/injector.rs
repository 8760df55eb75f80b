//! Fault injection on any network.
//!
//! The injector is between the transport and the socket, and independent of both: it drops,
//! duplicates, delays, reorders and corrupts packets of any type. Its decisions come from a seeded
//! generator and depend on the sequence of packets alone, so a seed reproduces them. The injector
//! does not sleep: [`Injector::next_deadline`] is the time of the next call of
//! [`Injector::release`].

use super::FaultSpec;
use super::emulated_link::EmulatedLink;
use crate::counters::NetCounters;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use urxe_proto::time::Time;

/// The maximum number of later packets behind which a packet is moved.
const MAX_OVERTAKING: u64 = 4;

/// The time after which a held packet is sent even if no packet follows it.
const HOLD_TIME: Duration = Duration::from_millis(5);

/// A packet that the injector can copy and modify.
pub(crate) trait Packet: Clone {
    /// The bytes from the BTH to the ICRC.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Applies a specification to a sequence of packets.
pub(crate) struct Injector<P> {
    spec: FaultSpec,
    counters: Arc<NetCounters>,
    generator: Xoshiro256PlusPlus,
    /// Packets held until a number of packets has passed, or until a time.
    held: Vec<Held<P>>,
    /// Packets delayed until a time; the second number keeps the order of equal times.
    delayed: BTreeMap<(Time, u64), P>,
    sequence: u64,
    link: Option<EmulatedLink>,
}

struct Held<P> {
    packet: P,
    overtaking_left: u64,
    until: Time,
}

/// The random decisions for one packet. Each packet takes the same number of random numbers, so the
/// decisions for one do not change those for the next.
struct Decisions {
    drop: bool,
    duplicate: bool,
    reorder: bool,
    corrupt: Option<u64>,
    overtaking: u64,
    delay: Duration,
}

impl<P: Packet> Injector<P> {
    pub(crate) fn new(spec: FaultSpec, counters: Arc<NetCounters>) -> Self {
        Injector {
            spec,
            counters,
            generator: Xoshiro256PlusPlus::seed_from_u64(spec.seed),
            held: Vec::new(),
            delayed: BTreeMap::new(),
            sequence: 0,
            link: spec.rate.map(|rate| EmulatedLink::new(rate, spec.queue)),
        }
    }

    fn decide(&mut self) -> Decisions {
        let FaultSpec {
            drop,
            duplicate,
            reorder,
            corrupt,
            delay,
            jitter,
            ..
        } = self.spec;
        let mut chance = |p: f64| unit(self.generator.next_u64()) < p;
        let drop = chance(drop);
        let duplicate = chance(duplicate);
        let reorder = chance(reorder);
        let corrupt = chance(corrupt);
        let bit = self.generator.next_u64();
        let overtaking = 1 + self.generator.next_u64() % MAX_OVERTAKING;
        let spread = jitter.mul_f64(2.0 * unit(self.generator.next_u64()));
        Decisions {
            drop,
            duplicate,
            reorder,
            corrupt: corrupt.then_some(bit),
            overtaking,
            delay: delay.saturating_sub(jitter) + spread,
        }
    }

    /// Processes a packet, and calls `emit` for each packet that is not delayed.
    pub(crate) fn pass(&mut self, mut packet: P, now: Time, emit: &mut impl FnMut(P)) {
        let decisions = self.decide();
        if decisions.drop {
            self.counters.faults_dropped.add(1);
            return;
        }
        if let Some(bit) = decisions.corrupt {
            flip(packet.bytes_mut(), bit);
            self.counters.faults_corrupted.add(1);
        }
        if decisions.duplicate {
            self.counters.faults_duplicated.add(1);
            self.delay_or_emit(packet.clone(), decisions.delay, now, emit);
        }
        if decisions.reorder {
            self.counters.faults_reordered.add(1);
            self.held.push(Held {
                packet,
                overtaking_left: decisions.overtaking,
                until: now + HOLD_TIME + decisions.delay,
            });
            return;
        }
        self.delay_or_emit(packet, decisions.delay, now, emit);
        self.release_overtaken(decisions.delay, now, emit);
    }

    /// Records that a packet overtook the held ones; releases those whose count reaches 0.
    fn release_overtaken(&mut self, delay: Duration, now: Time, emit: &mut impl FnMut(P)) {
        let mut at = 0;
        while at < self.held.len() {
            self.held[at].overtaking_left -= 1;
            if self.held[at].overtaking_left == 0 {
                let held = self.held.remove(at);
                self.delay_or_emit(held.packet, delay, now, emit);
            } else {
                at += 1;
            }
        }
    }

    /// Sends a packet over the link, if there is one, and then delays it.
    fn delay_or_emit(
        &mut self,
        mut packet: P,
        delay: Duration,
        now: Time,
        emit: &mut impl FnMut(P),
    ) {
        let leaves = match &mut self.link {
            None => now,
            Some(link) => match link.send(packet.bytes_mut().len() as u64, now) {
                Some(leaves) => leaves,
                None => {
                    self.counters.faults_dropped.add(1);
                    return;
                }
            },
        };
        let arrives = leaves + delay;
        if arrives <= now {
            emit(packet);
            return;
        }
        self.counters.faults_delayed.add(1);
        self.sequence += 1;
        self.delayed.insert((arrives, self.sequence), packet);
    }

    /// The time of the next call of [`Injector::release`].
    pub(crate) fn next_deadline(&self) -> Time {
        let held = self.held.iter().map(|h| h.until).min();
        let delayed = self.delayed.keys().next().map(|(time, _)| *time);
        held.into_iter().chain(delayed).min().unwrap_or(Time::NEVER)
    }

    /// Calls `emit` for each packet whose delay has ended.
    pub(crate) fn release(&mut self, now: Time, emit: &mut impl FnMut(P)) {
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > now {
                break;
            }
            emit(first.remove());
        }
        let mut at = 0;
        while at < self.held.len() {
            if self.held[at].until <= now {
                emit(self.held.remove(at).packet);
            } else {
                at += 1;
            }
        }
    }
}

/// Returns a number from 0 to just below 1.
fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

fn flip(bytes: &mut [u8], random: u64) {
    let bits = bytes.len() as u64 * 8;
    if let Some(bit) = random.checked_rem(bits) {
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Packet for Vec<u8> {
        fn bytes_mut(&mut self) -> &mut [u8] {
            self
        }
    }

    fn run(text: &str, packets: u32) -> (Vec<Vec<u8>>, Arc<NetCounters>) {
        let counters = Arc::new(NetCounters::default());
        let mut injector = Injector::new(text.parse().unwrap(), counters.clone());
        let mut out = Vec::new();
        for i in 0..packets {
            let mut packet = i.to_be_bytes().to_vec();
            packet.resize(64, 0);
            injector.pass(packet, Time(u64::from(i)), &mut |p| out.push(p));
        }
        let end = Time(60_000_000_000);
        injector.release(end, &mut |p| out.push(p));
        assert_eq!(injector.next_deadline(), Time::NEVER);
        (out, counters)
    }

    #[test]
    fn seed_determines_all_decisions() {
        let text = "drop=5%,dup=5%,reorder=5%,corrupt=5%,delay=1ms±1ms,seed=";
        let (first, _) = run(&format!("{text}1"), 2000);
        let (again, _) = run(&format!("{text}1"), 2000);
        let (other, _) = run(&format!("{text}2"), 2000);
        assert_eq!(first, again);
        assert_ne!(first, other);
    }

    #[test]
    fn faults_occur_with_the_requested_probability() {
        let (out, counters) = run("drop=10%,dup=5%,reorder=2%,corrupt=1%,seed=3", 100_000);
        let near = |count: u64, expected: u64| count.abs_diff(expected) < expected / 10;
        assert!(near(counters.faults_dropped.get(), 10_000));
        // No other fault applies to a dropped packet.
        assert!(near(counters.faults_duplicated.get(), 4500));
        assert!(near(counters.faults_reordered.get(), 1800));
        assert!(near(counters.faults_corrupted.get(), 900));
        let expected = 100_000 - counters.faults_dropped.get() + counters.faults_duplicated.get();
        assert_eq!(out.len() as u64, expected);
    }

    #[test]
    fn reordered_packet_follows_later_ones_and_is_not_lost() {
        let (out, counters) = run("reorder=10%,seed=5", 10_000);
        assert_eq!(out.len(), 10_000);
        let numbers: Vec<u32> = out
            .iter()
            .map(|p| u32::from_be_bytes(p[..4].try_into().unwrap()))
            .collect();
        let late = numbers.windows(2).filter(|w| w[1] < w[0]).count() as u64;
        assert!(late > 0 && late <= counters.faults_reordered.get());
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10_000).collect::<Vec<_>>());
    }

    #[test]
    fn exactly_one_bit_is_flipped() {
        let (out, _) = run("corrupt=100%,seed=5", 100);
        for (i, packet) in out.iter().enumerate() {
            let mut expected = (i as u32).to_be_bytes().to_vec();
            expected.resize(64, 0);
            let flipped: u32 = packet
                .iter()
                .zip(&expected)
                .map(|(a, b)| (a ^ b).count_ones())
                .sum();
            assert_eq!(flipped, 1);
        }
    }

    #[test]
    fn delayed_packet_is_released_at_its_time() {
        let counters = Arc::new(NetCounters::default());
        let spec = "delay=2ms,seed=1".parse().unwrap();
        let mut injector: Injector<Vec<u8>> = Injector::new(spec, counters);
        let mut out = Vec::new();
        injector.pass(vec![1], Time(1_000_000), &mut |p| out.push(p));
        assert!(out.is_empty());
        assert_eq!(injector.next_deadline(), Time(3_000_000));
        injector.release(Time(2_999_999), &mut |p| out.push(p));
        assert!(out.is_empty());
        injector.release(Time(3_000_000), &mut |p| out.push(p));
        assert_eq!(out, [vec![1]]);
    }

    /// Sends packets of 1000 bytes, all at time 0. Returns when each leaves; the others are
    /// dropped.
    fn departures(text: &str, packets: usize) -> (Vec<u64>, u64) {
        let counters = Arc::new(NetCounters::default());
        let mut injector = Injector::new(text.parse().unwrap(), counters.clone());
        for _ in 0..packets {
            injector.pass(vec![0; 1000], Time(0), &mut |_| panic!("it takes time"));
        }
        let mut left = Vec::new();
        while injector.next_deadline() != Time::NEVER {
            let now = injector.next_deadline();
            injector.release(now, &mut |_| left.push(now.0 / 1000));
        }
        (left, counters.faults_dropped.get())
    }

    #[test]
    fn packets_leave_at_the_rate_and_then_are_delayed() {
        assert_eq!(departures("rate=8Mbit", 3), (vec![1000, 2000, 3000], 0));
        let with_delay = departures("rate=8Mbit,delay=5ms", 3);
        assert_eq!(with_delay, (vec![6000, 7000, 8000], 0));
    }

    #[test]
    fn full_queue_drops_packets() {
        for queue in ["4", "4000B", "4.5KiB"] {
            let (left, dropped) = departures(&format!("rate=8Mbit,queue={queue}"), 10);
            assert_eq!((left.len(), dropped), (4, 6), "{queue}");
        }
        // A single packet passes, whatever the size of the queue.
        assert_eq!(departures("rate=8Mbit,queue=1B", 2), (vec![1000], 1));
    }

    #[test]
    fn queue_has_room_again_when_packets_have_left() {
        let spec = "rate=8Mbit,queue=2,seed=1".parse().unwrap();
        let counters = Arc::new(NetCounters::default());
        let mut injector: Injector<Vec<u8>> = Injector::new(spec, counters.clone());
        let mut left = 0;
        for millisecond in 0..100 {
            let now = Time(millisecond * 1_000_000);
            injector.release(now, &mut |_| left += 1);
            // Twice what the link carries.
            for _ in 0..2 {
                injector.pass(vec![0; 1000], now, &mut |_| panic!("it takes time"));
            }
        }
        assert_eq!(left, 99);
        assert_eq!(counters.faults_dropped.get(), 99);
    }
}
