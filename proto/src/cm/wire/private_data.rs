//! Private data that the two programs exchange in CM messages.
//!
//! Each message type carries a fixed number of bytes. The wire format does not contain how many of
//! them the program gave (12.7.35).

use std::fmt;
use std::ops::Deref;

/// The private data of a message: `N` bytes, padded with zeroes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const N: usize>(pub [u8; N]);

/// The error of private data or additional information that exceeds the limit of its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{given} bytes are too many: this message carries at most {most}")]
pub struct TooLong {
    /// The number of bytes given.
    pub given: usize,
    /// The most bytes that the message carries.
    pub most: usize,
}

/// Returns `bytes` padded with zeroes.
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
    /// The size, in bytes.
    pub const LEN: usize = N;

    /// Returns private data that starts with `bytes`.
    ///
    /// # Errors
    /// [`TooLong`] when there are more bytes than the message carries.
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

/// Additional information of a REJ (12.6.7.2), an APR (12.8.2) or a SIDR_REP (12.11.2).
///
/// Unlike private data it has an explicit length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Info {
    len: u8,
    bytes: [u8; Info::MAX_LEN],
}

impl Info {
    /// The maximum length, in bytes.
    pub const MAX_LEN: usize = 72;

    /// Returns information of these bytes.
    ///
    /// # Errors
    /// [`TooLong`] when there are more than [`Info::MAX_LEN`].
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        Ok(Info {
            bytes: padded(bytes)?,
            len: bytes.len() as u8,
        })
    }

    /// Decodes the first `len` of `bytes`; all of them if `len` is larger.
    pub(super) fn from_wire(len: u8, bytes: &[u8; Self::MAX_LEN]) -> Self {
        let len = len.min(Self::MAX_LEN as u8);
        let mut info = Info {
            len,
            bytes: [0; Self::MAX_LEN],
        };
        info.bytes[..usize::from(len)].copy_from_slice(&bytes[..usize::from(len)]);
        info
    }

    /// Encodes the length and the field.
    pub(super) fn to_wire(self) -> (u8, [u8; Self::MAX_LEN]) {
        (self.len, self.bytes)
    }
}

impl Default for Info {
    fn default() -> Self {
        Info {
            len: 0,
            bytes: [0; Self::MAX_LEN],
        }
    }
}

impl<const N: usize> From<[u8; N]> for Info {
    fn from(given: [u8; N]) -> Self {
        const { assert!(N <= Info::MAX_LEN) };
        let mut bytes = [0; Self::MAX_LEN];
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
    fn data_is_padded_and_refused_beyond_the_limit() {
        let refused = PrivateData::<4>::new(&[1; 5]).unwrap_err();
        assert_eq!((refused.given, refused.most), (5, 4));
        assert_eq!(PrivateData::<4>::new(&[1, 2]).unwrap().0, [1, 2, 0, 0]);
        assert!(Info::new(&[0; 73]).is_err());
        assert_eq!(&*Info::new(&[0, 7]).unwrap(), [0, 7]);
    }

    #[test]
    fn length_beyond_the_field_is_clamped() {
        let info = Info::from_wire(127, &[9; 72]);
        assert_eq!(&*info, [9; 72]);
        assert_eq!(&*Info::from_wire(2, &[9; 72]), [9; 2]);
    }
}
