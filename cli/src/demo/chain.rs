//! Sequences of atomics on one word. Each atomic returns the value that its predecessor left, so a
//! lost or duplicated execution changes a later result or the final value.

use super::pattern::mix;
use super::plan::Operation;
use super::verbs::Work;

/// The addend of fetch-and-add: odd and with bits in the whole word, so that all sums differ.
const ADDEND: u64 = 0x0123_4567_89ab_cdef;

/// A sequence of atomics on one word.
#[derive(Clone, Copy)]
pub struct Chain {
    /// Compare-and-swap or fetch-and-add.
    pub operation: Operation,
    /// The seed of the values.
    pub seed: u64,
}

impl Chain {
    /// Returns the value of the word before a request of the sequence.
    pub fn before(self, request: usize) -> u64 {
        let request = request as u64;
        match self.operation {
            // Every second request has a wrong compare value and does not change the word.
            Operation::CompareAndSwap => mix(self.seed.wrapping_add(request.div_ceil(2))),
            _ => self.seed.wrapping_add(request.wrapping_mul(ADDEND)),
        }
    }

    /// Returns a request of the sequence.
    pub fn work(self, request: usize) -> Work {
        match self.operation {
            Operation::CompareAndSwap => match request.is_multiple_of(2) {
                true => Work::CompareAndSwap {
                    compare: self.before(request),
                    swap: self.before(request + 1),
                },
                false => Work::CompareAndSwap {
                    compare: !self.before(request),
                    swap: self.seed,
                },
            },
            _ => Work::FetchAndAdd(ADDEND),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes an atomic as the specification defines it.
    fn execute(word: &mut u64, work: Work) -> u64 {
        let found = *word;
        match work {
            Work::CompareAndSwap { compare, swap } if compare == found => *word = swap,
            Work::FetchAndAdd(add) => *word = found.wrapping_add(add),
            _ => {}
        }
        found
    }

    #[test]
    fn predicted_values_match_the_execution() {
        for operation in [Operation::CompareAndSwap, Operation::FetchAndAdd] {
            let chain = Chain { operation, seed: 7 };
            let mut word = chain.before(0);
            for request in 0..100 {
                assert_eq!(
                    execute(&mut word, chain.work(request)),
                    chain.before(request)
                );
            }
            assert_eq!(word, chain.before(100));
        }
    }

    #[test]
    fn lost_or_duplicated_atomic_is_detected() {
        for operation in [Operation::CompareAndSwap, Operation::FetchAndAdd] {
            let chain = Chain { operation, seed: 7 };
            // Request 10 changes the word.
            for times in [0, 2] {
                let mut word = chain.before(0);
                let mut detected = false;
                for request in 0..20 {
                    for _ in 0..if request == 10 { times } else { 1 } {
                        let found = execute(&mut word, chain.work(request));
                        detected |= found != chain.before(request);
                    }
                }
                assert!(
                    detected || word != chain.before(20),
                    "{operation} {times} times"
                );
            }
        }
    }
}
