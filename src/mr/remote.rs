//! The descriptions of memory of peers.
#![forbid(unsafe_code)]

use super::range::bounds64;
use std::ops::RangeBounds;
use urxe_driver::owned::{RangeError, WORD, check_range};
use urxe_proto::ids::RKey;

/// The description of a peer's memory region or window, or of a part of one.
///
/// The program transfers it by a means of its own: a TCP connection, a file, or a message on
/// another queue pair. The peer checks each access, so a wrong description leads to a failed work
/// request.
///
/// With the feature `serde` it implements `Serialize` and `Deserialize`.
///
/// ```
/// use urxe::{RemoteAccess, RemoteRegion};
///
/// # fn main() -> urxe::Result<()> {
/// # let pd = urxe::device("urxe_lo")?.open()?.pd();
/// let region = pd.register(4096, RemoteAccess::READ | RemoteAccess::ATOMIC)?;
/// // The program transfers these bytes to the peer by any means.
/// let bytes = region.remote().to_bytes();
/// let remote = RemoteRegion::from_bytes(&bytes);
/// let page = remote.slice(1024..2048)?;
/// let word = remote.word(8)?;
/// assert_eq!((page.len, word), (1024, region.remote().word(8)?));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "Fields", from = "Fields")
)]
pub struct RemoteRegion {
    /// The virtual address of the first byte, in the peer's address space.
    pub addr: u64,
    /// The length in bytes.
    pub len: u64,
    /// The remote key.
    pub rkey: RKey,
}

impl RemoteRegion {
    /// The length of the result of [`RemoteRegion::to_bytes`].
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register(64, RemoteAccess::READ)?;
    /// let mut message = [0; RemoteRegion::BYTES];
    /// message.copy_from_slice(&region.remote().to_bytes());
    /// assert_eq!(RemoteRegion::from_bytes(&message), region.remote());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub const BYTES: usize = 20;

    /// Returns the description of a part.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(64, RemoteAccess::WRITE)?;
    /// a.post_send(SendRequest::write(b"hello", &memory.remote().slice(32..)?))?;
    /// a.cq().wait()?.result?;
    /// assert_eq!(memory.to_vec(32..37)?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeError`] if the range is not within the region.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RemoteRegion, RangeError> {
        let (offset, len) = bounds64(&range, self.len)?;
        Ok(RemoteRegion {
            addr: self.address(offset, len)?,
            len,
            rkey: self.rkey,
        })
    }

    /// Returns the 8 bytes at `offset`, for atomics.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let counter = b.pd().register(16, RemoteAccess::ATOMIC)?;
    /// let result = a.pd().register(8, RemoteAccess::empty())?.word(0)?;
    /// a.post_send(SendRequest::fetch_add(&result, counter.remote().word(8)?, 5))?;
    /// a.cq().wait()?.result?;
    /// assert_eq!(counter.to_vec(8..)?, 5_u64.to_ne_bytes());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeError`] if the bytes are not within the region or not aligned.
    pub fn word(&self, offset: u64) -> Result<RemoteWord, RangeError> {
        let addr = self.address(offset, WORD as u64)?;
        if !addr.is_multiple_of(WORD as u64) {
            return Err(RangeError::Misaligned { addr });
        }
        Ok(RemoteWord {
            addr,
            rkey: self.rkey,
        })
    }

    /// The address of `len` bytes at `offset`. The addition is checked because a peer may send an
    /// address near the end of the address space.
    fn address(&self, offset: u64, len: u64) -> Result<u64, RangeError> {
        check_range(offset, len, self.len)?;
        let outside = RangeError::Outside {
            offset,
            len,
            of: self.len,
        };
        self.addr.checked_add(offset).ok_or(outside)
    }

    /// Encodes the description: address, length, key, each in network order.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// // The server sends the description of its memory as a message.
    /// let memory = b.pd().register_vec(b"hello".to_vec(), RemoteAccess::READ)?;
    /// a.post_receive(ReceiveRequest::into(a.pd().buffer(RemoteRegion::BYTES)?))?;
    /// b.post_send(SendRequest::send(&memory.remote().to_bytes()))?;
    /// let bytes = a.cq().wait()?.data()?;
    /// let remote = RemoteRegion::from_bytes(bytes.as_slice().try_into().expect("20 bytes"));
    /// assert_eq!(remote, memory.remote());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes
    }

    /// Decodes the result of [`RemoteRegion::to_bytes`].
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::RKey;
    ///
    /// let region = RemoteRegion { addr: 0x1000, len: 64, rkey: RKey(0x1234) };
    /// assert_eq!(RemoteRegion::from_bytes(&region.to_bytes()), region);
    /// ```
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> RemoteRegion {
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            l0,
            l1,
            l2,
            l3,
            l4,
            l5,
            l6,
            l7,
            k0,
            k1,
            k2,
            k3,
        ] = *bytes;
        RemoteRegion {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u64::from_be_bytes([l0, l1, l2, l3, l4, l5, l6, l7]),
            rkey: RKey(u32::from_be_bytes([k0, k1, k2, k3])),
        }
    }
}

/// The serialized form of a [`RemoteRegion`].
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename = "RemoteRegion", deny_unknown_fields)]
struct Fields {
    addr: u64,
    len: u64,
    rkey: u32,
}

#[cfg(feature = "serde")]
impl From<RemoteRegion> for Fields {
    fn from(RemoteRegion { addr, len, rkey }: RemoteRegion) -> Self {
        let rkey = rkey.0;
        Fields { addr, len, rkey }
    }
}

#[cfg(feature = "serde")]
impl From<Fields> for RemoteRegion {
    fn from(Fields { addr, len, rkey }: Fields) -> Self {
        let rkey = RKey(rkey);
        RemoteRegion { addr, len, rkey }
    }
}

/// Eight aligned bytes of a peer's memory region.
///
/// ```
/// # use urxe::prelude::*;
/// let (a, b) = urxe::testing::pair()?;
/// let lock = b.pd().register(8, RemoteAccess::ATOMIC)?;
/// let word: RemoteWord = lock.remote().word(0)?;
/// let result = a.pd().register(8, RemoteAccess::empty())?.word(0)?;
/// a.post_send(SendRequest::compare_swap(&result, word, 0, 1))?;
/// a.cq().wait()?.result?;
/// assert_eq!(lock.to_vec(..)?, 1_u64.to_ne_bytes());
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteWord {
    addr: u64,
    rkey: RKey,
}

impl RemoteWord {
    pub(crate) fn addr(self) -> u64 {
        self.addr
    }

    pub(crate) fn rkey(self) -> RKey {
        self.rkey
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Bound;

    const REMOTE: RemoteRegion = RemoteRegion {
        addr: 0x1122_3344_5566_7788,
        len: 100,
        rkey: RKey(0x99aa_bbcc),
    };

    #[test]
    fn a_remote_region_is_decoded_from_its_encoding() {
        let bytes = REMOTE.to_bytes();
        assert_eq!(bytes[..4], [0x11, 0x22, 0x33, 0x44]);
        assert_eq!(RemoteRegion::from_bytes(&bytes), REMOTE);
    }

    #[test]
    fn a_slice_of_a_remote_region_is_within_the_region() {
        assert_eq!(REMOTE.slice(..).unwrap(), REMOTE);
        let part = REMOTE.slice(10..=19).unwrap();
        assert_eq!((part.addr, part.len), (REMOTE.addr + 10, 10));
        assert!(part.slice(..11).is_err());
        assert!(REMOTE.slice(101..).is_err());
        assert_eq!(REMOTE.slice(100..).unwrap().len, 0);
        let backwards = REMOTE.slice((Bound::Included(5), Bound::Excluded(4)));
        assert_eq!(backwards, Err(RangeError::Backwards { start: 5, end: 4 }));
    }

    #[test]
    fn a_remote_word_is_aligned_and_within_the_region() {
        assert!(REMOTE.word(88).is_ok());
        assert!(matches!(REMOTE.word(96), Err(RangeError::Outside { .. })));
        assert!(matches!(REMOTE.word(4), Err(RangeError::Misaligned { .. })));
    }

    #[test]
    fn an_address_that_overflows_the_address_space_is_an_error() {
        let overflowing = RemoteRegion {
            addr: u64::MAX - 7,
            ..REMOTE
        };
        assert!(overflowing.word(64).is_err());
        assert!(overflowing.slice(50..).is_err());
    }
}
