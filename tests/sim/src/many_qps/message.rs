//! The content of messages: sender, receiver and number, and bytes derived from these.

/// The identity of a message: its sender, its receiver and its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageId {
    /// The index of the endpoint that sent it.
    pub from: u32,
    /// The index of the endpoint that it is for.
    pub to: u32,
    /// The number of messages that the sender posted before it.
    pub number: u32,
}

/// The length of the identity in bytes, which is the minimum length of a message.
pub const MIN_LEN: usize = 16;

impl MessageId {
    /// Returns the message with this identity and `len` bytes, at least [`MIN_LEN`].
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

    /// Returns the identity of a received message.
    ///
    /// # Panics
    /// When the length or any byte of the message is wrong.
    pub fn of(message: &[u8]) -> MessageId {
        let word = |at: usize| {
            let bytes = message
                .get(at * 4..at * 4 + 4)
                .and_then(|word| word.first_chunk());
            u32::from_be_bytes(*bytes.expect("no message is so short"))
        };
        let name = MessageId {
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
