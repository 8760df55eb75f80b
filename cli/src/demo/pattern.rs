//! What messages consist of: bytes that depend on the transfer, the message and the place in it, so
//! that whatever is lost, doubled, swapped or left over shows.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes in a word.
const WORD: usize = size_of::<u64>();

/// How messages lie in memory: one after the other, each beginning at a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The length of each message, in bytes.
    pub size: usize,
    /// How many there are.
    pub count: usize,
}

impl Layout {
    /// From one message's beginning to the next one's, in words.
    pub fn stride(self) -> usize {
        self.size.div_ceil(WORD)
    }

    /// How many words they take together.
    pub fn words(self) -> usize {
        self.stride() * self.count
    }

    /// Where a message begins, in bytes.
    pub fn offset(self, message: usize) -> usize {
        message * self.stride() * WORD
    }
}

/// A byte that is not what it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "message {message} of the round differs {}: expected {expected:#04x} there, saw {seen:#04x} \
     ({wrong} of {words} words of the round are wrong)",
    place(.offset, .size)
)]
pub struct Mismatch {
    /// Which message.
    pub message: usize,
    /// Where in it, in bytes.
    pub offset: usize,
    /// The message's length.
    pub size: usize,
    /// What should be there.
    pub expected: u8,
    /// What is.
    pub seen: u8,
    /// How many words differ.
    pub wrong: usize,
    /// Of how many.
    pub words: usize,
}

fn place(offset: &usize, size: &usize) -> String {
    match offset < size {
        true => format!("at byte {offset} of {size}"),
        false => format!("behind its end, at byte {offset} of {size}"),
    }
}

/// The content of one round of messages.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    seed: u64,
    layout: Layout,
}

impl Pattern {
    /// Of the round of a transfer.
    pub fn new(transfer: u64, round: u64, layout: Layout) -> Self {
        let seed = mix(mix(transfer).wrapping_add(round));
        Self { seed, layout }
    }

    fn word(self, index: usize) -> u64 {
        mix(self.seed.wrapping_add(index as u64))
    }

    /// Which bytes of a message's last word belong to it.
    fn last_mask(self) -> u64 {
        let used = self.layout.size - (self.layout.stride() - 1) * WORD;
        let mut bytes = [0; WORD];
        bytes[..used].fill(0xff);
        u64::from_ne_bytes(bytes)
    }

    /// The words that the receiving side's memory must hold in the end and those that it holds:
    /// the messages, and behind each, up to the next word, what was there before.
    fn compare(self, memory: &[AtomicU64]) -> impl Iterator<Item = (u64, u64)> + Clone {
        let stride = self.layout.stride();
        let last_mask = self.last_mask();
        let messages = memory[..self.layout.words()].chunks(stride).enumerate();
        messages.flat_map(move |(message, words)| {
            words.iter().enumerate().map(move |(at, seen)| {
                let word = self.word(message * stride + at);
                let expected = match at == stride - 1 {
                    true => (word & last_mask) | (!word & !last_mask),
                    false => word,
                };
                (expected, seen.load(Ordering::Relaxed))
            })
        })
    }

    /// Writes the messages, for the side from which they come.
    pub fn fill(self, memory: &[AtomicU64]) {
        for (index, word) in memory[..self.layout.words()].iter().enumerate() {
            word.store(self.word(index), Ordering::Relaxed);
        }
    }

    /// Makes every byte wrong, for the side at which they arrive.
    pub fn spoil(self, memory: &[AtomicU64]) {
        for (index, word) in memory[..self.layout.words()].iter().enumerate() {
            word.store(!self.word(index), Ordering::Relaxed);
        }
    }

    /// Compares every byte.
    ///
    /// # Errors
    /// The first that differs.
    pub fn verify(self, memory: &[AtomicU64]) -> Result<(), Mismatch> {
        let words = self.compare(memory);
        let differs = |(expected, seen): &(u64, u64)| expected != seen;
        let first = words.clone().enumerate().find(|(_, pair)| differs(pair));
        let Some((index, (expected, seen))) = first else {
            return Ok(());
        };
        let (expected, seen) = (expected.to_ne_bytes(), seen.to_ne_bytes());
        let at = (0..WORD).find(|&at| seen[at] != expected[at]).unwrap_or(0);
        let stride = self.layout.stride();
        Err(Mismatch {
            message: index / stride,
            offset: index % stride * WORD + at,
            size: self.layout.size,
            expected: expected[at],
            seen: seen[at],
            wrong: words.filter(differs).count(),
            words: self.layout.words(),
        })
    }
}

/// A number that looks random and depends on every bit of `value`: the step and the finish of
/// SplitMix64.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { size: 13, count: 3 };

    fn memory() -> Vec<AtomicU64> {
        (0..LAYOUT.words()).map(|_| AtomicU64::new(0)).collect()
    }

    /// What a correct transfer does: copies the bytes of each message and no others.
    fn transfer(from: &[AtomicU64], to: &[AtomicU64]) {
        for message in 0..LAYOUT.count {
            for at in 0..LAYOUT.size {
                let offset = LAYOUT.offset(message) + at;
                let byte = from[offset / WORD].load(Ordering::Relaxed).to_ne_bytes()[offset % WORD];
                change(to, offset, |_| byte);
            }
        }
    }

    fn change(memory: &[AtomicU64], offset: usize, change: impl Fn(u8) -> u8) {
        let word = &memory[offset / WORD];
        let mut bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        bytes[offset % WORD] = change(bytes[offset % WORD]);
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }

    #[test]
    fn every_single_byte_counts() {
        let pattern = Pattern::new(1, 2, LAYOUT);
        let (from, to) = (memory(), memory());
        pattern.fill(&from);
        pattern.spoil(&to);
        assert!(pattern.verify(&to).is_err());
        transfer(&from, &to);
        assert_eq!(pattern.verify(&to), Ok(()));
        for offset in 0..LAYOUT.words() * WORD {
            change(&to, offset, |byte| byte ^ 1);
            let mismatch = pattern.verify(&to).expect_err("one byte is wrong");
            assert_eq!(LAYOUT.offset(mismatch.message) + mismatch.offset, offset);
            assert_eq!((mismatch.expected ^ mismatch.seen, mismatch.wrong), (1, 1));
            change(&to, offset, |byte| byte ^ 1);
        }
    }

    #[test]
    fn what_another_round_left_is_wrong() {
        let (old, new) = (Pattern::new(1, 2, LAYOUT), Pattern::new(1, 3, LAYOUT));
        let (from, to) = (memory(), memory());
        new.spoil(&to);
        old.fill(&from);
        transfer(&from, &to);
        assert!(new.verify(&to).is_err());
    }
}
