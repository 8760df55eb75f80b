//! What messages hold: who sent them to whom, which of theirs it is, and bytes that follow from that.

/// Who sent a message, to whom, and which one it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// The end that sent it.
    pub from: u32,
    /// The end that it is for.
    pub to: u32,
    /// How many it has sent before.
    pub number: u32,
}

/// The length of what says so: no message is shorter.
pub const SHORTEST: usize = 16;

impl Name {
    /// The message of this name with `len` bytes, at least [`SHORTEST`].
    pub fn message(self, len: usize) -> Vec<u8> {
        let mut message = Vec::with_capacity(len);
        for word in [self.from, self.to, self.number, len as u32] {
            message.extend(word.to_be_bytes());
        }
        let mut state = self.from << 20 ^ self.to << 10 ^ self.number;
        while message.len() < len {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            message.push((state >> 24) as u8);
        }
        message
    }

    /// The name of a message that arrived.
    ///
    /// # Panics
    /// When a byte of it is wrong.
    pub fn of(message: &[u8]) -> Name {
        let word = |at: usize| {
            let bytes = message
                .get(at * 4..at * 4 + 4)
                .and_then(|word| word.first_chunk());
            u32::from_be_bytes(*bytes.expect("no message is so short"))
        };
        let name = Name {
            from: word(0),
            to: word(1),
            number: word(2),
        };
        assert_eq!(
            word(3) as usize,
            message.len(),
            "{name:?} has another length"
        );
        assert!(
            name.message(message.len()) == message,
            "{name:?} is damaged"
        );
        name
    }
}
