//! Random number generators: a seeded one, and one that first returns the bytes of a script, so
//! that a fuzzer can control a network.

use rand::rand_core::{Infallible, TryRng};
use rand::{Rng as _, SeedableRng};

/// The seeded generator: small, fast, and equal on all platforms.
pub type Rng = rand::rngs::Xoshiro256PlusPlus;

/// A generator whose first values come from a script.
#[derive(Debug)]
pub struct ScriptedRng {
    script: std::vec::IntoIter<u8>,
    has_script: bool,
    then: Rng,
}

impl ScriptedRng {
    /// Returns a generator that consumes `script`, and then continues from `seed`.
    pub fn new(script: Vec<u8>, seed: u64) -> Self {
        ScriptedRng {
            has_script: !script.is_empty(),
            script: script.into_iter(),
            then: Rng::seed_from_u64(seed),
        }
    }

    /// Whether it was created with a script, which may request what is improbable by chance.
    pub fn has_script(&self) -> bool {
        self.has_script
    }
}

impl TryRng for ScriptedRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.try_next_u64().map(|n| (n >> 32) as u32)
    }

    /// Repeats one byte of the script in all eight bytes of the number. Ranges and probabilities
    /// depend on the highest byte, so one byte is enough for a decision.
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
