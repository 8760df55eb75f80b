//! The random numbers of the test cases.

/// The random number generator: portable, so that a seed has the same meaning on all machines.
pub type TestRng = rand::rngs::Xoshiro256PlusPlus;
