//! Timeouts of the CM: the time exponents of its messages, the values of the RDMA CM, and limits.

use std::time::Duration;

/// The CM response timeout in the RDMA CM's messages, as an exponent: 4.3 s.
pub const RESPONSE_TIMEOUT: u8 = 20;
/// The number of retransmissions of the RDMA CM.
pub const MAX_RETRIES: u8 = 15;
/// The packet lifetime of RDMA CM paths over RoCE, as an exponent: 268 ms.
pub const PACKET_LIFE_TIME: u8 = 16;
/// The service timeout in the RDMA CM's MRAs, as an exponent: 69 s.
pub const SERVICE_TIMEOUT: u8 = 24;

/// The unit of time exponents (12.7.4).
const UNIT: Duration = Duration::from_nanos(4096);
/// The largest exponent accepted from a peer: 69 s. Larger values would block for hours.
const MAX_PEER_EXPONENT: u8 = 24;
/// The shortest retransmission interval, whatever the peer requests.
const MIN_INTERVAL: Duration = Duration::from_millis(1);
/// The largest ACK timeout exponent of a queue pair (9.7.6.1.3).
const MAX_ACK_TIMEOUT: u8 = 31;

/// Returns the duration of `exponent`, clamped to 31.
pub fn duration(exponent: u8) -> Duration {
    UNIT * (1 << exponent.min(31))
}

/// Returns the duration of an exponent from a peer, clamped to the limits.
pub(super) fn from_peer(exponent: u8) -> Duration {
    duration(exponent.min(MAX_PEER_EXPONENT)).max(MIN_INTERVAL)
}

/// Returns the response timeout: a round trip and the peer's response time (12.7.4).
pub(super) fn response(packet_life_time: u8, response_timeout: u8) -> Duration {
    let wait = duration(packet_life_time) * 2 + duration(response_timeout);
    wait.max(MIN_INTERVAL)
}

/// Returns the time within which a peer retransmits its request: twice the interval of its
/// retransmissions, since one may be lost.
pub(super) fn retransmission_of_peer(response_timeout: u8, ack_timeout: u8) -> Duration {
    (from_peer(response_timeout) + from_peer(ack_timeout)) * 2
}

/// Returns the ACK timeout exponent: a round trip and the peer's ACK delay (12.7.34).
///
/// It is the larger of both exponents, plus one where the smaller is close enough to matter.
pub fn ack_timeout(ack_delay: u8, packet_life_time: u8) -> u8 {
    let way = packet_life_time.saturating_add(1);
    let (larger, smaller) = (way.max(ack_delay), way.min(ack_delay));
    let near = smaller.saturating_add(1) >= larger;
    larger.saturating_add(u8::from(near)).min(MAX_ACK_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_of_time_exponents_is_4096_ns() {
        assert_eq!(duration(0), Duration::from_nanos(4096));
        assert_eq!(duration(20), Duration::from_nanos(4096 << 20));
        assert_eq!(duration(255), Duration::from_nanos(4096 << 31));
    }

    #[test]
    fn durations_from_a_peer_are_clamped() {
        assert_eq!(from_peer(0), Duration::from_millis(1));
        assert_eq!(from_peer(31), duration(24));
    }

    #[test]
    fn ack_timeout_covers_the_round_trip_and_the_ack_delay() {
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
