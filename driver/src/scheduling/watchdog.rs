//! The watchdog of the program's polls.
//!
//! While the progress thread leaves packets to the program's polls, it must notice when they end.
//! Polls that find no completion *renew* the watchdog: they move a timer of the kernel, which
//! expires only if they stop. The thread therefore takes no processor time from a program that
//! polls.

use super::limits::{CHECK_INTERVAL, MAX_CHECK_BACK_OFF};
use super::one_shot::OneShotTimer;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use urxe_proto::time::Time;

/// The watchdog with its timer.
#[derive(Debug)]
pub(crate) struct Watchdog<T> {
    state: CachePadded<State>,
    timer: T,
}

/// Neither member orders other accesses: a renewal that is late or lost only makes the timer expire
/// while the program polls.
#[derive(Debug)]
struct State {
    /// The time from which on a poll renews the watchdog, in nanoseconds; [`Time::NEVER`] while
    /// it is stopped.
    renew_at: AtomicU64,
    /// The time from the last renewal to the expiry, in nanoseconds.
    timeout: AtomicU64,
}

impl<T: OneShotTimer> Watchdog<T> {
    pub(crate) fn new(timer: T) -> Self {
        Watchdog {
            state: CachePadded::new(State {
                renew_at: AtomicU64::new(Time::NEVER.0),
                timeout: AtomicU64::new(0),
            }),
            timer,
        }
    }

    /// Returns the timer, which the progress thread watches after [`Watchdog::start`].
    pub(crate) fn timer(&self) -> &T {
        &self.timer
    }

    /// Starts it at `now`. Unless a poll renews it, it expires after `timeout`.
    pub(crate) fn start(&self, now: Time, timeout: Duration) {
        self.timer.set(now + timeout);
        let State {
            renew_at,
            timeout: stored,
        } = &*self.state;
        stored.store(timeout.as_nanos() as u64, Ordering::Relaxed);
        renew_at.store((now + timeout / 2).0, Ordering::Relaxed);
    }

    /// Stops renewals. The timer may expire yet.
    pub(crate) fn stop(&self) {
        (self.state.renew_at).store(Time::NEVER.0, Ordering::Relaxed);
    }

    /// Records a poll at `now` that found no completion. Moves the timer if half of the timeout has
    /// passed.
    #[inline]
    pub(crate) fn polled(&self, now: Time) {
        let renew_at = self.state.renew_at.load(Ordering::Relaxed);
        if now.0 >= renew_at {
            self.renew(renew_at, now);
        }
    }

    /// The timeout doubles with each renewal, since a program that has begun to poll memory between
    /// its polls shows that early.
    #[cold]
    fn renew(&self, renew_at: u64, now: Time) {
        const LONGEST: Duration = CHECK_INTERVAL.saturating_mul(MAX_CHECK_BACK_OFF);
        let before = Duration::from_nanos(self.state.timeout.load(Ordering::Relaxed));
        let timeout = (2 * before).min(LONGEST).max(before);
        let next = (now + timeout / 2).0;
        let (renewed, relaxed) = (&self.state.renew_at, Ordering::Relaxed);
        // Of several threads that poll, one renews it.
        if (renewed.compare_exchange(renew_at, next, relaxed, relaxed)).is_ok() {
            (self.state.timeout).store(timeout.as_nanos() as u64, relaxed);
            self.timer.set(now + timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const BEGIN: Time = Time(1_000_000_000);

    #[derive(Default)]
    struct Timer {
        at: Cell<Time>,
        times: Cell<u32>,
    }

    impl OneShotTimer for Timer {
        fn set(&self, at: Time) {
            self.at.set(at);
            self.times.set(self.times.get() + 1);
        }

        fn clear(&self) {}
    }

    fn started() -> Watchdog<Timer> {
        let watchdog = Watchdog::new(Timer::default());
        watchdog.start(BEGIN, CHECK_INTERVAL);
        watchdog
    }

    #[test]
    fn watchdog_does_not_expire_while_polls_renew_it() {
        let watchdog = started();
        for microseconds in 0..100_000 {
            let now = BEGIN + Duration::from_micros(microseconds);
            assert!(now < watchdog.timer.at.get());
            watchdog.polled(now);
        }
        // Once in 2 ms, after shorter timeouts at first.
        assert!((50..55).contains(&watchdog.timer.times.get()));
    }

    #[test]
    fn watchdog_expires_after_its_timeout_when_polls_stop() {
        let watchdog = started();
        watchdog.polled(BEGIN + CHECK_INTERVAL / 4);
        assert_eq!(watchdog.timer.at.get(), BEGIN + CHECK_INTERVAL);
        let renewed = BEGIN + CHECK_INTERVAL / 2;
        watchdog.polled(renewed);
        assert_eq!(watchdog.timer.at.get(), renewed + 2 * CHECK_INTERVAL);
    }

    #[test]
    fn polls_do_not_renew_a_stopped_watchdog() {
        let watchdog = started();
        watchdog.stop();
        watchdog.polled(BEGIN + 10 * CHECK_INTERVAL);
        assert_eq!(watchdog.timer.times.get(), 1);
    }
}
