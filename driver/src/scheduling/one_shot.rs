//! What the policies need of a timer of the kernel.

use urxe_proto::time::Time;

/// A one-shot timer, which the progress thread watches.
pub(crate) trait OneShotTimer {
    /// Arms it for `at`, or moves it there. It is then not expired.
    fn set(&self, at: Time);

    /// Clears its expiry, if it was not moved at the same time.
    fn clear(&self);
}
