//! Memory regions.
#![forbid(unsafe_code)]

use super::access::RemoteAccess;
use super::local::{LocalSlice, LocalWord};
use super::range::bounds;
use super::remote::RemoteRegion;
use crate::pd::ProtectionDomain;
use std::ops::RangeBounds;
use std::sync::Arc;
use urxe_driver::owned::{OwnedError, OwnedRegion, RangeError};

/// A region could not move to another protection domain.
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::MoveErrorKind;
///
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let region = pd.register(64, RemoteAccess::READ)?;
/// let slice = region.slice(..)?;
/// let error = region.move_to(&context.pd()).unwrap_err();
/// assert!(matches!(error.source, MoveErrorKind::InUse));
/// // The error returns the region, for another attempt.
/// drop(slice);
/// let region = error.region.move_to(&context.pd())?;
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
#[non_exhaustive]
pub struct MoveError {
    /// The region, unchanged.
    pub region: MemoryRegion,
    /// The reason.
    pub source: MoveErrorKind,
}

impl MoveError {
    /// The `errno` that a verbs program gets.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register(64, RemoteAccess::READ)?;
    /// let slice = region.slice(..)?;
    /// let error = region.move_to(&context.pd()).unwrap_err();
    /// assert_eq!(error.errno(), libc::EBUSY);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn errno(&self) -> i32 {
        match &self.source {
            MoveErrorKind::InUse => libc::EBUSY,
            MoveErrorKind::Register(error) => error.errno(),
        }
    }
}

/// The reason why a region could not move to another protection domain.
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::MoveErrorKind;
///
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let region = pd.register(64, RemoteAccess::READ)?;
/// let word = region.word(0)?;
/// match region.move_to(&context.pd()).unwrap_err().source {
///     MoveErrorKind::InUse => println!("a slice or a word of the region exists"),
///     other => panic!("{other}"),
/// }
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveErrorKind {
    /// Slices of the region exist, or work requests on it are outstanding.
    #[error(
        "the memory region is in use: drop its slices and take the completions of the work \
         requests on it first"
    )]
    InUse,
    /// The driver cannot register the region again.
    #[error(transparent)]
    Register(#[from] urxe_driver::mr::RegisterError),
}

/// A memory region, which owns its memory. (`ibv_mr`.)
///
/// The memory stays registered until the region, every [`LocalSlice`] and [`LocalWord`] of it, and
/// every work request on it is gone. Only then is it freed (`ibv_dereg_mr`).
///
/// ```
/// use urxe::RemoteAccess;
///
/// # fn main() -> urxe::Result<()> {
/// # let pd = urxe::device("urxe_lo")?.open()?.pd();
/// let region = pd.register(4096, RemoteAccess::READ | RemoteAccess::WRITE)?;
/// region.write(100, b"hello")?;
/// assert_eq!(region.to_vec(100..105)?, b"hello");
/// // For work requests of this program:
/// let slice = region.slice(100..)?;
/// assert_eq!((slice.offset(), slice.len()), (100, 3996));
/// let mut start = [0; 4];
/// slice.read(1, &mut start)?;
/// assert_eq!(&start, b"ello");
/// // For the peer:
/// let remote = region.remote();
/// assert_eq!(remote.len, 4096);
/// // Peers may no longer write.
/// drop(slice);
/// region.set_access(RemoteAccess::READ)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryRegion(Arc<OwnedRegion>);

impl MemoryRegion {
    pub(crate) fn new(region: OwnedRegion) -> MemoryRegion {
        MemoryRegion(Arc::new(region))
    }

    /// The length in bytes, at least 1.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// assert_eq!(pd.register(4096, RemoteAccess::READ)?.len(), 4096);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.0.mr().len() as usize
    }

    /// Returns a slice of the region, for work requests.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(4096, RemoteAccess::empty())?;
    /// b.post_receive(ReceiveRequest::into(memory.slice(..64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// b.cq().wait()?.result?;
    /// assert_eq!(memory.to_vec(..5)?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeError`] if the range is not within the region, or is 4 GiB or longer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<LocalSlice, RangeError> {
        let (offset, len) = bounds(&range, self.len())?;
        LocalSlice::new(&self.0, offset, len)
    }

    /// Returns the 8 bytes at `offset` as a word for atomics.
    ///
    /// The program can operate on it directly, or give it to an atomic work request as the place of
    /// the result.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::sync::atomic::Ordering;
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register(64, RemoteAccess::ATOMIC)?;
    /// region.word(8)?.store(7, Ordering::Release);
    /// assert_eq!(region.to_vec(8..16)?, 7_u64.to_ne_bytes());
    /// assert!(region.word(9).is_err());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeError`] if the bytes are not within the region or not aligned.
    pub fn word(&self, offset: usize) -> Result<LocalWord, RangeError> {
        LocalWord::new(&self.0, offset)
    }

    /// Copies bytes out of the region, starting at `offset`.
    ///
    /// Bytes that a peer writes at the same time may have the old or the new value.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register(64, RemoteAccess::WRITE)?;
    /// let mut bytes = [1; 4];
    /// region.read(60, &mut bytes)?;
    /// assert_eq!(bytes, [0; 4]);
    /// let outside = region.read(61, &mut bytes);
    /// assert!(matches!(outside, Err(urxe::RangeError::Outside { offset: 61, .. })));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeError::Outside`] if the range is not within the region.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RangeError> {
        self.0.read(offset, into)
    }

    /// Copies bytes into the region, starting at `offset`.
    ///
    /// A peer that reads at the same time may see a part of the new bytes.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register(64, RemoteAccess::READ)?;
    /// region.write(10, b"hello")?;
    /// assert_eq!(region.to_vec(10..15)?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeError::Outside`] if the range is not within the region.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), RangeError> {
        self.0.write(offset, data)
    }

    /// Returns a copy of a part of the region.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register_vec(b"hello".to_vec(), RemoteAccess::READ)?;
    /// assert_eq!(region.to_vec(1..3)?, b"el");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeError`] if the range is not within the region.
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Result<Vec<u8>, RangeError> {
        let (offset, len) = bounds(&range, self.len())?;
        let mut copy = vec![0; len];
        self.0.read(offset, &mut copy)?;
        Ok(copy)
    }

    /// Deregisters the region and returns its bytes: the vector that was
    /// [registered](ProtectionDomain::register_vec), without a copy, or a copy of other memory.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = urxe::device("urxe_lo")?.open()?.pd();
    /// let region = pd.register_vec(b"hello".to_vec(), urxe::RemoteAccess::READ)?;
    /// assert_eq!(region.into_vec().unwrap(), b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the region if slices of it exist, or work requests on it are outstanding.
    pub fn into_vec(self) -> Result<Vec<u8>, MemoryRegion> {
        match Arc::try_unwrap(self.0) {
            Ok(owned) => Ok(owned.into_vec()),
            Err(shared) => Err(MemoryRegion(shared)),
        }
    }

    /// Changes the remote access rights, effective at once; the key stays the same.
    /// (`ibv_rereg_mr` with `IBV_REREG_MR_CHANGE_ACCESS`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
    /// memory.set_access(RemoteAccess::READ)?;
    /// a.post_send(SendRequest::write(b"hello", &memory.remote()))?;
    /// let error = a.cq().wait()?.result.unwrap_err();
    /// assert_eq!(error.status, WcStatus::RemAccessErr);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`OwnedError`]. The call fails while memory windows are bound to the region.
    pub fn set_access(&self, access: RemoteAccess) -> Result<(), OwnedError> {
        Ok(self.0.set_access(access.with_local())?)
    }

    /// Moves the region to another protection domain; the key stays the same.
    /// (`ibv_rereg_mr` with `IBV_REREG_MR_CHANGE_PD`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register(64, RemoteAccess::READ)?;
    /// let remote = region.remote();
    /// let region = region.move_to(&context.pd())?;
    /// assert_eq!(region.remote(), remote);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`MoveErrorKind`]. The region must not be in use. The error returns the region.
    pub fn move_to(self, pd: &ProtectionDomain) -> Result<MemoryRegion, MoveError> {
        let error = |region, source| MoveError { region, source };
        let mut owned = match Arc::try_unwrap(self.0) {
            Ok(owned) => owned,
            Err(shared) => return Err(error(MemoryRegion(shared), MoveErrorKind::InUse)),
        };
        match owned.set_pd(pd.driver()) {
            Ok(()) => Ok(Self::new(owned)),
            Err(source) => Err(error(Self::new(owned), source.into())),
        }
    }

    /// The description of the region that a peer needs to access it.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register_vec(b"hello".to_vec(), RemoteAccess::READ)?;
    /// a.post_send(SendRequest::read(a.pd().buffer(5)?, &memory.remote()))?;
    /// assert_eq!(a.cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn remote(&self) -> RemoteRegion {
        let mr = self.0.mr();
        RemoteRegion {
            addr: mr.addr(),
            len: mr.len(),
            rkey: mr.rkey(),
        }
    }
}
