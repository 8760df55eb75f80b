//! What the two programs tell each other: each message carries a number of bytes of its own size,
//! of which the wire does not say how many were meant (12.7.35).

use std::fmt;
use std::ops::Deref;

/// The private data of a message: `N` bytes, zeroes after what the program gave.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const N: usize>(pub [u8; N]);

/// Private data, or additional information, is longer than its message carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{given} bytes are too long: this message carries at most {most}")]
pub struct TooLong {
    /// How many bytes were given.
    pub given: usize,
    /// How many there may be.
    pub most: usize,
}

/// `bytes`, followed by zeroes.
fn padded<const N: usize>(bytes: &[u8]) -> Result<[u8; N], TooLong> {
    let mut out = [0; N];
    out.get_mut(..bytes.len())
        .ok_or(TooLong {
            given: bytes.len(),
            most: N,
        })?
        .copy_from_slice(bytes);
    Ok(out)
}

impl<const N: usize> PrivateData<N> {
    /// How many bytes it holds.
    pub const LEN: usize = N;

    /// Private data that starts with `bytes`.
    ///
    /// # Errors
    /// When they are more than the message carries.
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        padded(bytes).map(PrivateData)
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        PrivateData([0; N])
    }
}

impl<const N: usize> Deref for PrivateData<N> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().rposition(|&b| b != 0).map_or(0, |at| at + 1);
        write!(f, "{N}:{:02x?}", &self.0[..end])
    }
}

/// Additional information, which comes with its length: why a message was rejected (12.6.7.2), why
/// an alternate path was not taken (12.8.2), where else a service is (12.11.2).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Info {
    len: u8,
    bytes: [u8; Info::MOST],
}

impl Info {
    /// The most bytes that there may be.
    pub const MOST: usize = 72;

    /// Information of these bytes.
    ///
    /// # Errors
    /// When there are more than [`Info::MOST`].
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        Ok(Info {
            bytes: padded(bytes)?,
            len: bytes.len() as u8,
        })
    }

    /// The first `len` of `bytes`, or all of them when that says more.
    pub(super) fn from_wire(len: u8, bytes: &[u8; Self::MOST]) -> Self {
        let len = len.min(Self::MOST as u8);
        let mut info = Info {
            len,
            bytes: [0; Self::MOST],
        };
        info.bytes[..usize::from(len)].copy_from_slice(&bytes[..usize::from(len)]);
        info
    }

    /// How many bytes there are, and the field that holds them.
    pub(super) fn to_wire(self) -> (u8, [u8; Self::MOST]) {
        (self.len, self.bytes)
    }
}

impl Default for Info {
    fn default() -> Self {
        Info {
            len: 0,
            bytes: [0; Self::MOST],
        }
    }
}

impl<const N: usize> From<[u8; N]> for Info {
    fn from(given: [u8; N]) -> Self {
        const { assert!(N <= Info::MOST) };
        let mut bytes = [0; Self::MOST];
        bytes[..N].copy_from_slice(&given);
        Info {
            len: N as u8,
            bytes,
        }
    }
}

impl Deref for Info {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", &**self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_refused_and_the_rest_padded() {
        let refused = PrivateData::<4>::new(&[1; 5]).unwrap_err();
        assert_eq!((refused.given, refused.most), (5, 4));
        assert_eq!(PrivateData::<4>::new(&[1, 2]).unwrap().0, [1, 2, 0, 0]);
        assert!(Info::new(&[0; 73]).is_err());
        assert_eq!(&*Info::new(&[0, 7]).unwrap(), [0, 7]);
    }

    #[test]
    fn a_length_beyond_the_field_means_the_whole_field() {
        let info = Info::from_wire(127, &[9; 72]);
        assert_eq!(&*info, [9; 72]);
        assert_eq!(&*Info::from_wire(2, &[9; 72]), [9; 2]);
    }
}
