//! The generators: one that a seed begins, and one that first says what it is told, so that a fuzzer
//! can steer a network.

use rand::rand_core::{Infallible, TryRng};
use rand::{Rng as _, SeedableRng};

/// The generator: small, quick, and the same everywhere.
pub type Rng = rand::rngs::Xoshiro256PlusPlus;

/// A generator that begins with given bytes.
#[derive(Debug)]
pub struct Scripted {
    script: std::vec::IntoIter<u8>,
    is_told: bool,
    then: Rng,
}

impl Scripted {
    /// One that says `script`, and then goes on as `seed` says.
    pub fn new(script: Vec<u8>, seed: u64) -> Self {
        Scripted {
            is_told: !script.is_empty(),
            script: script.into_iter(),
            then: Rng::seed_from_u64(seed),
        }
    }

    /// Whether it began with a script: then it says what chance never would.
    pub fn is_told(&self) -> bool {
        self.is_told
    }
}

impl TryRng for Scripted {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.try_next_u64().map(|n| (n >> 32) as u32)
    }

    /// A byte of the script is enough to decide: it becomes the highest, by which ranges and
    /// probabilities go.
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(match self.script.next() {
            Some(byte) => u64::from_be_bytes([byte; 8]),
            None => self.then.next_u64(),
        })
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.then.fill_bytes(bytes);
        Ok(())
    }
}
