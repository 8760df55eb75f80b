//! The time, as passed to the state machines. They never read a clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time: nanoseconds since an origin of the caller's choice, monotonic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Time(pub u64);

impl Time {
    /// A point in time that is never reached: no deadline.
    pub const NEVER: Time = Time(u64::MAX);

    /// The time elapsed since `earlier`; zero if `earlier` is in the future.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// The nanoseconds elapsed since `earlier`; zero if `earlier` is in the future.
    ///
    /// A [`Duration`] has seconds and nanoseconds, so what is calculated for each packet uses this.
    #[inline]
    pub(crate) const fn nanos_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time this number of nanoseconds later.
    #[inline]
    pub(crate) const fn after_nanos(self, nanos: u64) -> Time {
        Time(self.0.saturating_add(nanos))
    }
}

/// The nanoseconds of `duration`, which is shorter than 500 years.
#[inline]
pub(crate) const fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

const NANOS_PER_SEC: u64 = 1_000_000_000;

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        let whole = d.as_secs().saturating_mul(NANOS_PER_SEC);
        Time((self.0.saturating_add(whole)).saturating_add(u64::from(d.subsec_nanos())))
    }
}

impl Sub for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}
