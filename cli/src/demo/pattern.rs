//! The message contents. Each byte depends on the transfer, the message and its offset, so lost,
//! duplicated, reordered and stale data are detected.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes in a word.
const WORD: usize = size_of::<u64>();

/// The layout of messages in memory: consecutive, each aligned to a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The length of each message, in bytes.
    pub size: usize,
    /// The number of messages.
    pub count: usize,
}

impl Layout {
    /// Returns the distance between the starts of two messages, in words.
    pub fn stride(self) -> usize {
        self.size.div_ceil(WORD)
    }

    /// Returns the size of all messages, in words.
    pub fn words(self) -> usize {
        self.stride() * self.count
    }

    /// Returns the offset of a message, in bytes.
    pub fn offset(self, message: usize) -> usize {
        message * self.stride() * WORD
    }
}

/// The first wrong byte of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "message {message} of the round differs {}: expected {expected:#04x}, got {found:#04x} \
     ({wrong} of {words} words of the round are wrong)",
    place(.offset, .size)
)]
pub struct Mismatch {
    /// The index of the message.
    pub message: usize,
    /// The offset in the message, in bytes.
    pub offset: usize,
    /// The message size in bytes.
    pub size: usize,
    /// The expected byte.
    pub expected: u8,
    /// The actual byte.
    pub found: u8,
    /// The number of words that differ.
    pub wrong: usize,
    /// The number of words in the round.
    pub words: usize,
}

fn place(offset: &usize, size: &usize) -> String {
    match offset < size {
        true => format!("at byte {offset} of {size}"),
        false => format!("past its end, at byte {offset} of {size}"),
    }
}

/// The content of one round of messages.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    seed: u64,
    layout: Layout,
}

impl Pattern {
    /// Returns the content of a round of a transfer.
    pub fn new(transfer: u64, round: u64, layout: Layout) -> Self {
        let seed = mix(mix(transfer).wrapping_add(round));
        Self { seed, layout }
    }

    fn word(self, index: usize) -> u64 {
        mix(self.seed.wrapping_add(index as u64))
    }

    /// Returns the mask of the bytes of a message's last word that belong to it.
    fn last_mask(self) -> u64 {
        let used = self.layout.size - (self.layout.stride() - 1) * WORD;
        let mut bytes = [0; WORD];
        bytes[..used].fill(0xff);
        u64::from_ne_bytes(bytes)
    }

    /// Returns pairs of the expected and the actual word of the receiving side. After a message,
    /// the rest of its last word must have the value from before the transfer.
    fn compare(self, memory: &[AtomicU64]) -> impl Iterator<Item = (u64, u64)> + Clone {
        let stride = self.layout.stride();
        let last_mask = self.last_mask();
        let messages = memory[..self.layout.words()].chunks(stride).enumerate();
        messages.flat_map(move |(message, words)| {
            words.iter().enumerate().map(move |(at, found)| {
                let word = self.word(message * stride + at);
                let expected = match at == stride - 1 {
                    true => (word & last_mask) | (!word & !last_mask),
                    false => word,
                };
                (expected, found.load(Ordering::Relaxed))
            })
        })
    }

    /// Writes the messages at the sending side.
    pub fn fill(self, memory: &[AtomicU64]) {
        for (index, word) in memory[..self.layout.words()].iter().enumerate() {
            word.store(self.word(index), Ordering::Relaxed);
        }
    }

    /// Inverts every byte at the receiving side, so that each must be written.
    pub fn invert(self, memory: &[AtomicU64]) {
        for (index, word) in memory[..self.layout.words()].iter().enumerate() {
            word.store(!self.word(index), Ordering::Relaxed);
        }
    }

    /// Verifies every byte at the receiving side.
    ///
    /// # Errors
    /// The first mismatch.
    pub fn verify(self, memory: &[AtomicU64]) -> Result<(), Mismatch> {
        let words = self.compare(memory);
        let differs = |(expected, found): &(u64, u64)| expected != found;
        let first = words.clone().enumerate().find(|(_, pair)| differs(pair));
        let Some((index, (expected, found))) = first else {
            return Ok(());
        };
        let (expected, found) = (expected.to_ne_bytes(), found.to_ne_bytes());
        let at = (0..WORD).find(|&at| found[at] != expected[at]).unwrap_or(0);
        let stride = self.layout.stride();
        Err(Mismatch {
            message: index / stride,
            offset: index % stride * WORD + at,
            size: self.layout.size,
            expected: expected[at],
            found: found[at],
            wrong: words.filter(differs).count(),
            words: self.layout.words(),
        })
    }
}

/// Mixes `value` as one SplitMix64 step does; every bit of the result depends on every input bit.
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

    /// Performs a correct transfer: copies the bytes of each message and no others.
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
    fn single_wrong_byte_is_detected() {
        let pattern = Pattern::new(1, 2, LAYOUT);
        let (from, to) = (memory(), memory());
        pattern.fill(&from);
        pattern.invert(&to);
        assert!(pattern.verify(&to).is_err());
        transfer(&from, &to);
        assert_eq!(pattern.verify(&to), Ok(()));
        for offset in 0..LAYOUT.words() * WORD {
            change(&to, offset, |byte| byte ^ 1);
            let mismatch = pattern.verify(&to).expect_err("one byte is wrong");
            assert_eq!(LAYOUT.offset(mismatch.message) + mismatch.offset, offset);
            assert_eq!((mismatch.expected ^ mismatch.found, mismatch.wrong), (1, 1));
            change(&to, offset, |byte| byte ^ 1);
        }
    }

    #[test]
    fn data_of_another_round_is_detected() {
        let (old, new) = (Pattern::new(1, 2, LAYOUT), Pattern::new(1, 3, LAYOUT));
        let (from, to) = (memory(), memory());
        new.invert(&to);
        old.fill(&from);
        transfer(&from, &to);
        assert!(new.verify(&to).is_err());
    }
}
