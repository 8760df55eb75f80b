//! The clocks that the driver reads.

use urxe_proto::time::Time;

/// Returns the time in nanoseconds since boot (`CLOCK_MONOTONIC`).
pub fn now() -> Time {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Time(nanoseconds(t))
}

/// Returns the calendar time in nanoseconds since 1970.
pub fn wall() -> u64 {
    nanoseconds(rustix::time::clock_gettime(rustix::time::ClockId::Realtime))
}

fn nanoseconds(t: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    let rest = u64::try_from(t.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
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
