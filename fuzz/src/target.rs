//! Functions that targets share.

use arbitrary::{Arbitrary, Unstructured};

/// Returns whether this process runs in its own network namespace.
pub(crate) fn has_own_network() -> bool {
    std::env::var_os("TESTS_HAVE_THEIR_OWN_NETWORK").is_some()
}

/// Decodes `bytes` as an input and runs it. Skips inputs that are too short.
pub(crate) fn with_input<I: for<'a> Arbitrary<'a>>(bytes: &[u8], run: impl FnOnce(I)) {
    if let Ok(input) = I::arbitrary_take_rest(Unstructured::new(bytes)) {
        run(input);
    }
}
