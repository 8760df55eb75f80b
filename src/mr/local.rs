//! Parts of memory regions: slices for work requests, and words for atomics.
#![forbid(unsafe_code)]

use super::range::bounds;
use std::ops::{Deref, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use urxe_driver::owned::{OwnedRegion, RangeError, WORD, Word, check_range};
use urxe_proto::work::Sge;

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
    pub(super) fn new(
        region: &Arc<OwnedRegion>,
        offset: usize,
        len: usize,
    ) -> Result<Self, RangeError> {
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

    /// Copies bytes out of the slice, starting at `offset`, as
    /// [`MemoryRegion::read`](crate::MemoryRegion::read) does.
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

    /// Copies bytes into the slice, starting at `offset`, as
    /// [`MemoryRegion::write`](crate::MemoryRegion::write) does.
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
    word: Word,
    slice: LocalSlice,
}

impl LocalWord {
    pub(super) fn new(region: &Arc<OwnedRegion>, offset: usize) -> Result<Self, RangeError> {
        Ok(LocalWord {
            word: region.word(offset)?,
            slice: LocalSlice::new(region, offset, WORD)?,
        })
    }

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
