//! What the two ends of a measurement agree on: the private data of the connection.

use clap::ValueEnum;

/// The default port, at which the listening end takes connections.
pub const PORT: u16 = 7472;

/// The largest message. A connection cannot make the listening end allocate more.
pub const MAX_SIZE: u32 = 64 << 20;

/// The length of what an atomic changes, and of the smallest region.
pub const WORD: u32 = 8;

/// The start of the private data, with the version of the format.
const MAGIC: &[u8; 8] = b"urxeprf1";

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[repr(u8)]
pub enum Operation {
    /// RDMA WRITE
    Write,
    /// RDMA READ
    Read,
    /// SEND into posted receives
    Send,
    /// Atomic fetch-and-add of 8 bytes
    Atomic,
    /// SEND that the peer sends back
    #[value(skip)]
    Ping,
}

impl Operation {
    const ALL: [Self; 5] = [
        Self::Write,
        Self::Read,
        Self::Send,
        Self::Atomic,
        Self::Ping,
    ];

    /// The name in the output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::Atomic => "atomic",
            Self::Ping => "ping",
        }
    }
}

/// The request of the measuring end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    pub operation: Operation,
    /// The length of a message in bytes: 1 to [`MAX_SIZE`].
    pub size: u32,
}

impl Session {
    /// Encodes the request: magic, operation, size in network order.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(self.operation as u8);
        bytes.extend(self.size.to_be_bytes());
        bytes
    }

    /// Decodes the start of private data. `None` if they are not a request, or one that is not
    /// permitted.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (&operation, rest) = rest.split_first()?;
        let session = Self {
            operation: *Operation::ALL.get(usize::from(operation))?,
            size: u32::from_be_bytes(*rest.first_chunk()?),
        };
        (1..=MAX_SIZE).contains(&session.size).then_some(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_survives_the_padding_of_private_data() {
        for operation in Operation::ALL {
            let session = Session {
                operation,
                size: 4711,
            };
            let mut bytes = session.to_bytes();
            bytes.resize(56, 0);
            assert_eq!(Session::from_bytes(&bytes), Some(session));
        }
    }

    #[test]
    fn other_requests_are_refused() {
        let with_size = |size| Session {
            operation: Operation::Read,
            size,
        };
        for bytes in [
            Vec::new(),
            b"hello".to_vec(),
            with_size(0).to_bytes(),
            with_size(MAX_SIZE + 1).to_bytes(),
            with_size(1).to_bytes()[..10].to_vec(),
        ] {
            assert_eq!(Session::from_bytes(&bytes), None);
        }
        let mut unknown = with_size(1).to_bytes();
        unknown[MAGIC.len()] = 9;
        assert_eq!(Session::from_bytes(&unknown), None);
    }
}
