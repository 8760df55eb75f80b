//! The clocks that the driver reads.

use urxe_proto::time::Time;

/// Returns the time in nanoseconds since boot (`CLOCK_MONOTONIC`).
#[inline]
pub fn now() -> Time {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Time(nanoseconds(t))
}

/// Returns the calendar time in nanoseconds since 1970.
pub fn wall() -> u64 {
    nanoseconds(rustix::time::clock_gettime(rustix::time::ClockId::Realtime))
}

fn nanoseconds(t: rustix::time::Timespec) -> u64 {
    // Neither is negative, and the sum exceeds 64 bits after 584 years.
    (t.tv_sec as u64).wrapping_mul(1_000_000_000) + t.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_back() {
        let first = now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(now().since(first).as_micros() >= 2000);
    }
}
