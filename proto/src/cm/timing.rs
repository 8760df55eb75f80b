//! How long to wait: times of 4.096 us x 2^n, the values that the RDMA CM uses, and their limits.

use std::time::Duration;

/// How soon a CM answers, in the RDMA CM's messages: 4.3 s.
pub const RESPONSE_TIMEOUT: u8 = 20;
/// How often the RDMA CM repeats a message.
pub const MAX_RETRIES: u8 = 15;
/// How long a packet may be under way, in the RDMA CM's paths over RoCE: 268 ms.
pub const PACKET_LIFE_TIME: u8 = 16;
/// How long the RDMA CM's MRAs say that a program may take: 69 s.
pub const SERVICE_TIMEOUT: u8 = 24;

/// The unit of time exponents (12.7.4).
const UNIT: Duration = Duration::from_nanos(4096);
/// The largest exponent that is taken from a peer, 69 s: what it says must not keep us waiting for
/// hours.
const MOST_FROM_PEER: u8 = 24;
/// The shortest time between repetitions, whatever the peer says.
const LEAST_INTERVAL: Duration = Duration::from_millis(1);
/// The largest ACK timeout that a queue pair takes (9.7.6.1.3).
const MOST_ACK_TIMEOUT: u8 = 31;

/// The time that `exponent` stands for, for exponents to 31.
pub fn duration(exponent: u8) -> Duration {
    UNIT * (1 << exponent.min(31))
}

/// The time that an exponent from a peer stands for, within limits.
pub(super) fn from_peer(exponent: u8) -> Duration {
    duration(exponent.min(MOST_FROM_PEER)).max(LEAST_INTERVAL)
}

/// How long to wait for an answer: twice the way, and what the peer takes (12.7.4).
pub(super) fn response(packet_life_time: u8, response_timeout: u8) -> Duration {
    let wait = duration(packet_life_time) * 2 + duration(response_timeout);
    wait.max(LEAST_INTERVAL)
}

/// The ACK timeout of a queue pair: twice the way, and the peer's delay (12.7.34). It is the larger of
/// both exponents, and one more where the other is so near that the sum matters.
pub fn ack_timeout(ack_delay: u8, packet_life_time: u8) -> u8 {
    let way = packet_life_time.saturating_add(1);
    let (larger, smaller) = (way.max(ack_delay), way.min(ack_delay));
    let near = smaller.saturating_add(1) >= larger;
    larger.saturating_add(u8::from(near)).min(MOST_ACK_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_4096_ns_times_a_power_of_two() {
        assert_eq!(duration(0), Duration::from_nanos(4096));
        assert_eq!(duration(20), Duration::from_nanos(4096 << 20));
        assert_eq!(duration(255), Duration::from_nanos(4096 << 31));
    }

    #[test]
    fn a_peer_can_neither_hurry_us_nor_keep_us_for_hours() {
        assert_eq!(from_peer(0), Duration::from_millis(1));
        assert_eq!(from_peer(31), duration(24));
    }

    #[test]
    fn the_ack_timeout_covers_the_way_there_and_back_and_the_delay() {
        for delay in 0..=31u8 {
            for life in 0..=29u8 {
                let timeout = ack_timeout(delay, life);
                let needed = duration(delay) + duration(life) * 2;
                if timeout < 31 {
                    assert!(
                        duration(timeout) * 3 / 2 >= needed,
                        "{delay} {life} {timeout}"
                    );
                    assert!(duration(timeout) <= needed * 2, "{delay} {life} {timeout}");
                }
            }
        }
        assert_eq!(ack_timeout(15, 16), 17);
        assert_eq!(ack_timeout(16, 16), 18);
    }
}
