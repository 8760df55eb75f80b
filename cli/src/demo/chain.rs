//! Atomics that tell how often each of them was done: each finds what the one before it left, so
//! that one that is lost or done twice shows in what the next one finds, or in the last word.

use super::pattern::mix;
use super::plan::Operation;
use super::verbs::Work;

/// What fetch-and-add adds: odd, and with bits all over the word, so that no two sums are equal.
const ADDEND: u64 = 0x0123_4567_89ab_cdef;

/// A series of atomics on one word.
#[derive(Clone, Copy)]
pub struct Chain {
    /// Compare-and-swap or fetch-and-add.
    pub operation: Operation,
    /// Where it starts.
    pub seed: u64,
}

impl Chain {
    /// What the word holds before a request of the series.
    pub fn before(self, request: usize) -> u64 {
        let request = request as u64;
        match self.operation {
            // Every other one compares with something else and leaves the word alone.
            Operation::CompareAndSwap => mix(self.seed.wrapping_add(request.div_ceil(2))),
            _ => self.seed.wrapping_add(request.wrapping_mul(ADDEND)),
        }
    }

    /// A request of the series.
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

    /// What the specification says that the target's word becomes.
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
    fn chain_knows_what_each_atomic_finds() {
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
    fn atomic_that_is_lost_or_done_twice_shows() {
        for operation in [Operation::CompareAndSwap, Operation::FetchAndAdd] {
            let chain = Chain { operation, seed: 7 };
            // The tenth changes the word.
            for times in [0, 2] {
                let mut word = chain.before(0);
                let mut noticed = false;
                for request in 0..20 {
                    for _ in 0..if request == 10 { times } else { 1 } {
                        let found = execute(&mut word, chain.work(request));
                        noticed |= found != chain.before(request);
                    }
                }
                assert!(
                    noticed || word != chain.before(20),
                    "{operation} {times} times"
                );
            }
        }
    }
}
