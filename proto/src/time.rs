//! Time as the state machines see it: given from outside, never read.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment, in nanoseconds since an origin that the caller chose. It never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Time(pub u64);

impl Time {
    /// A moment that never comes.
    pub const NEVER: Time = Time(u64::MAX);

    /// How long ago `earlier` was; zero when it is not in the past.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Sub for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}
