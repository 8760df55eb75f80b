//! Memory regions: registered memory, slices of it, and its description for peers.
//!
//! A region owns its memory. A peer may read and write that memory at any time, so no `&[u8]` into
//! it exists: bytes are copied in and out, and 8 aligned bytes are available as an [`AtomicU64`].
#![forbid(unsafe_code)]

use crate::pd::ProtectionDomain;
use bitflags::bitflags;
use std::ops::{Bound, Deref, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use urxe_driver::owned::{self, OwnedError, OwnedRegion, WORD, check_range};
use urxe_proto::host::Access;
use urxe_proto::ids::RKey;
use urxe_proto::work::Sge;

pub use urxe_driver::owned::RangeError;

bitflags! {
    /// Remote access rights of a memory region. (The remote bits of `ibv_access_flags`.)
    ///
    /// The empty set makes a region for local use. The local program may always read and write.
    ///
    /// ```
    /// use urxe::RemoteAccess;
    ///
    /// # let pd = urxe::device("urxe_lo")?.open()?.pd();
    /// let access = RemoteAccess::READ | RemoteAccess::WRITE;
    /// assert!(!access.contains(RemoteAccess::ATOMIC) && !access.contains(RemoteAccess::FLUSH));
    /// let region = pd.register(4096, access)?;
    /// region.set_access(access - RemoteAccess::WRITE)?;
    /// let local = pd.register(4096, RemoteAccess::empty())?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    pub struct RemoteAccess: u32 {
        /// RDMA WRITE.
        const WRITE = Access::REMOTE_WRITE.bits();
        /// RDMA READ.
        const READ = Access::REMOTE_READ.bits();
        /// Atomic compare-and-swap and fetch-and-add.
        const ATOMIC = Access::REMOTE_ATOMIC.bits();
        /// FLUSH: makes earlier WRITEs visible to all processors of the host.
        const FLUSH = Access::FLUSH_GLOBAL.bits();
    }
}

impl RemoteAccess {
    pub(crate) fn with_local(self) -> Access {
        Access::LOCAL_WRITE | Access::MW_BIND | Access::from_bits_truncate(self.bits())
    }
}

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
        Ok(LocalWord {
            word: self.0.word(offset)?,
            slice: LocalSlice::new(&self.0, offset, WORD)?,
        })
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

/// A slice of a memory region, for work requests. It keeps the region registered. (`ibv_sge`.)
///
/// ```
/// # use urxe::prelude::*;
/// let (a, b) = urxe::testing::pair()?;
/// let memory = a.pd().register_vec(b"hello, world".to_vec(), RemoteAccess::empty())?;
/// let slices = [memory.slice(7..)?, memory.slice(..5)?];
/// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
/// a.post_send(SendRequest::send(slices))?;
/// assert_eq!(b.cq().wait()?.data()?, b"worldhello");
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LocalSlice {
    region: Arc<OwnedRegion>,
    sge: Sge,
}

impl LocalSlice {
    fn new(region: &Arc<OwnedRegion>, offset: usize, len: usize) -> Result<Self, RangeError> {
        Ok(LocalSlice {
            region: Arc::clone(region),
            sge: region.sge(offset, len)?,
        })
    }

    /// The length in bytes.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register(64, RemoteAccess::empty())?;
    /// assert_eq!(region.slice(60..)?.len(), 4);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.sge.length as usize
    }

    /// Returns whether the slice has no bytes.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register(64, RemoteAccess::empty())?;
    /// assert!(region.slice(10..10)?.is_empty());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.sge.length == 0
    }

    /// The offset of the slice in the region, in bytes.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register(64, RemoteAccess::empty())?;
    /// assert_eq!(region.slice(10..)?.slice(5..)?.offset(), 15);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn offset(&self) -> usize {
        (self.sge.addr - self.region.mr().addr()) as usize
    }

    /// Returns a part of this slice.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let message = pd.register(64, RemoteAccess::empty())?.slice(..)?;
    /// let (header, body) = (message.slice(..16)?, message.slice(16..)?);
    /// assert_eq!((header.len(), body.len()), (16, 48));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeError`] if the range is not within this slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<LocalSlice, RangeError> {
        let (offset, len) = bounds(&range, self.len())?;
        LocalSlice::new(&self.region, self.offset() + offset, len)
    }

    /// Copies bytes out of the slice, starting at `offset`, as [`MemoryRegion::read`] does.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let slice = pd.register_vec(b"hello".to_vec(), RemoteAccess::empty())?.slice(1..)?;
    /// let mut bytes = [0; 3];
    /// slice.read(1, &mut bytes)?;
    /// assert_eq!(&bytes, b"llo");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeError::Outside`] if the range is not within this slice.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RangeError> {
        check_range(offset as u64, into.len() as u64, self.len() as u64)?;
        self.region.read(self.offset() + offset, into)
    }

    /// Copies bytes into the slice, starting at `offset`, as [`MemoryRegion::write`] does.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register(64, RemoteAccess::empty())?;
    /// region.slice(10..)?.write(2, b"hello")?;
    /// assert_eq!(region.to_vec(12..17)?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeError::Outside`] if the range is not within this slice.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), RangeError> {
        check_range(offset as u64, data.len() as u64, self.len() as u64)?;
        self.region.write(self.offset() + offset, data)
    }

    pub(crate) fn sge(&self) -> Sge {
        self.sge
    }

    /// The number of the region's protection domain.
    pub(crate) fn pd(&self) -> u64 {
        self.region.mr().pd().id()
    }
}

/// Eight aligned bytes of a memory region, as an [`AtomicU64`]. It keeps the region registered.
///
/// Operations through it are atomic with respect to the atomics of peers.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use urxe::RemoteAccess;
///
/// # fn main() -> urxe::Result<()> {
/// # let pd = urxe::device("urxe_lo")?.open()?.pd();
/// let region = pd.register(64, RemoteAccess::ATOMIC)?;
/// let word = region.word(8)?;
/// // It dereferences to an `AtomicU64`, and peers count in the same word.
/// word.fetch_add(5, Ordering::AcqRel);
/// assert_eq!(word.load(Ordering::Acquire), 5);
/// assert_eq!(word.as_slice().offset(), 8);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LocalWord {
    word: owned::Word,
    slice: LocalSlice,
}

impl LocalWord {
    /// The same bytes as a slice, for work requests that move them.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let counter = a.pd().register(8, RemoteAccess::empty())?.word(0)?;
    /// counter.store(7, std::sync::atomic::Ordering::Release);
    /// let copy = b.pd().register(8, RemoteAccess::WRITE)?;
    /// a.post_send(SendRequest::write(counter.as_slice().clone(), &copy.remote()))?;
    /// a.cq().wait()?.result?;
    /// assert_eq!(copy.to_vec(..)?, 7_u64.to_ne_bytes());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn as_slice(&self) -> &LocalSlice {
        &self.slice
    }
}

impl Deref for LocalWord {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        &self.word
    }
}

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

/// The offset and length of a range within `len` bytes.
fn bounds(range: &impl RangeBounds<usize>, len: usize) -> Result<(usize, usize), RangeError> {
    let wide = |bound: Bound<&usize>| bound.map(|at| *at as u64);
    let range = (wide(range.start_bound()), wide(range.end_bound()));
    let (offset, part) = bounds64(&range, len as u64)?;
    Ok((offset as usize, part as usize))
}

fn bounds64(range: &impl RangeBounds<u64>, len: u64) -> Result<(u64, u64), RangeError> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len.max(start),
    };
    let part = end
        .checked_sub(start)
        .ok_or(RangeError::Backwards { start, end })?;
    check_range(start, part, len)?;
    Ok((start, part))
}

#[cfg(test)]
mod tests {
    use super::*;

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
