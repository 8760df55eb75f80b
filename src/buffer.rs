//! Buffers for local use: registered memory without remote rights, which the program borrows as
//! bytes.
//!
//! A work request takes the buffer itself, and its completion returns it. So while a queue pair
//! accesses the bytes, the program has no buffer to borrow them from, and data is neither copied
//! into registered memory nor out of it.

use crate::blocks::{Block, Blocks};
use crate::pd::ProtectionDomain;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use urxe_driver as driver;
use urxe_driver::owned::{OwnedError, OwnedRegion, RangeError};
use urxe_proto::host::Access;
use urxe_proto::work::Sge;

/// The rights on the memory of buffers. Peers have none, and no window can be bound to it.
pub(crate) const LOCAL: Access = Access::LOCAL_WRITE;

impl ProtectionDomain {
    /// Allocates and registers a zeroed buffer for local use.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let mut buffer = pd.buffer(4096)?;
    /// buffer[..5].copy_from_slice(b"hello");
    /// assert_eq!((buffer.len(), buffer[5]), (4096, 0));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`OwnedError`]; `len` must be at least 1.
    pub fn buffer(&self, len: usize) -> Result<LocalBuffer, OwnedError> {
        LocalBuffer::zeroed(self.driver(), len)
    }

    /// Registers the bytes of a vector in place, as a buffer for local use.
    ///
    /// [`LocalBuffer::into_vec`] returns the vector.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let buffer = pd.buffer_from(b"hello".to_vec())?;
    /// assert_eq!(*buffer, *b"hello");
    /// assert_eq!(buffer.into_vec(), b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`OwnedError`]; the vector must have at least one byte.
    pub fn buffer_from(&self, data: Vec<u8>) -> Result<LocalBuffer, OwnedError> {
        LocalBuffer::from_vec(self.driver(), data)
    }
}

/// The part of a buffer that a work request uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// The buffer's length, for sends and READs.
    Length,
    /// All of its capacity, for receives.
    Capacity,
}

/// A buffer for local use: registered bytes that no peer can access.
///
/// It dereferences to its bytes. A work request takes it, and the
/// [completion](crate::Completion::buffer) or the future returns it:
///
/// - [`SendRequest::send`](crate::SendRequest::send), `write` and `read` move as many bytes as its
///   length.
/// - [`ReceiveRequest::into`](crate::ReceiveRequest::into) offers its whole capacity. The completion
///   sets the length to the bytes that arrived: those of a datagram include
///   [`GRH_BYTES`](crate::GRH_BYTES) of header.
///
/// A buffer whose work request cannot be posted, or whose future is dropped, is dropped too, once
/// the queue pair no longer uses it. A dropped buffer returns to its [pool](crate::BufferPool).
///
/// The default is a buffer without memory.
///
/// ```
/// use urxe::{ConnectOptions, ReceiveRequest, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
/// # let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
/// # let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
/// # let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
/// b.post_receive(ReceiveRequest::into(pd.buffer(64)?))?;
/// let message = pd.buffer_from(b"hello".to_vec())?;
/// a.post_send(SendRequest::send(message).unsignaled())?;
///
/// let received = cq.wait()?.buffer.expect("the receive had a buffer");
/// assert_eq!(*received, *b"hello");
/// # Ok(())
/// # }
/// ```
///
/// The program cannot touch it while a queue pair does:
/// ```compile_fail,E0382
/// fn change(qp: &urxe::QueuePair, mut buffer: urxe::LocalBuffer) {
///     let _ = qp.post_send(urxe::SendRequest::send(buffer));
///     buffer[0] = 1;
/// }
/// ```
/// Nor can it be described to a peer:
/// ```compile_fail,E0599
/// fn describe(buffer: &urxe::LocalBuffer) -> urxe::RemoteRegion {
///     buffer.remote()
/// }
/// ```
#[derive(Default)]
pub struct LocalBuffer {
    block: Option<Block>,
    len: usize,
}

impl LocalBuffer {
    /// A buffer whose length is the size of its block.
    pub(crate) fn new(block: Block) -> LocalBuffer {
        LocalBuffer {
            len: block.size(),
            block: Some(block),
        }
    }

    pub(crate) fn zeroed(pd: &Arc<driver::Pd>, len: usize) -> Result<LocalBuffer, OwnedError> {
        let mut data = Vec::new();
        data.try_reserve_exact(len).map_err(|_| OwnedError::Map {
            len,
            source: io::Error::from_raw_os_error(libc::ENOMEM),
        })?;
        data.resize(len, 0);
        Self::from_vec(pd, data)
    }

    /// Registers the bytes of a vector in place.
    pub(crate) fn from_vec(pd: &Arc<driver::Pd>, data: Vec<u8>) -> Result<LocalBuffer, OwnedError> {
        let len = data.len();
        let region = OwnedRegion::from_vec(pd, data, LOCAL)?;
        let blocks = Arc::new(Blocks::new(region, len, len, 1));
        Ok(blocks.take().map(LocalBuffer::new).unwrap_or_default())
    }

    /// The number of bytes that it can hold.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let mut buffer = pd.buffer(64)?;
    /// buffer.set_len(5)?;
    /// assert_eq!((buffer.len(), buffer.capacity()), (5, 64));
    /// assert_eq!(LocalBuffer::default().capacity(), 0);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn capacity(&self) -> usize {
        self.block.as_ref().map_or(0, Block::size)
    }

    /// Sets the length. The bytes beyond the old length are those of an earlier use.
    ///
    /// ```
    /// # fn main() -> urxe::Result<()> {
    /// # let pd = urxe::device("urxe_lo")?.open()?.pd();
    /// let mut buffer = pd.buffer(64)?;
    /// buffer.fill(b"hello")?;
    /// assert_eq!((buffer.len(), buffer.capacity()), (5, 64));
    /// buffer.set_len(4)?;
    /// assert_eq!(buffer.into_vec(), b"hell");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RangeError::Outside`] if the capacity is smaller.
    pub fn set_len(&mut self, len: usize) -> Result<(), RangeError> {
        driver::owned::check_range(0, len as u64, self.capacity() as u64)?;
        self.len = len;
        Ok(())
    }

    /// Copies `data` to the start of the buffer and sets its length to that of `data`.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let mut buffer = pd.buffer(64)?;
    /// buffer.fill(b"hello")?;
    /// assert_eq!(*buffer, *b"hello");
    /// assert!(buffer.fill(&[0; 65]).is_err());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeError::Outside`] if the capacity is smaller.
    pub fn fill(&mut self, data: &[u8]) -> Result<(), RangeError> {
        self.set_len(data.len())?;
        self.copy_from_slice(data);
        Ok(())
    }

    /// Deregisters the buffer and returns its bytes. A buffer of a pool is copied.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let data = vec![7; 4096];
    /// let address = data.as_ptr();
    /// let buffer = pd.buffer_from(data)?;
    /// // The same allocation again:
    /// assert_eq!(buffer.into_vec().as_ptr(), address);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn into_vec(mut self) -> Vec<u8> {
        let Some(block) = self.block.take() else {
            return Vec::new();
        };
        match block.into_vec() {
            Ok(mut data) => {
                data.truncate(self.len);
                data
            }
            Err(block) => {
                self.block = Some(block);
                self.to_vec()
            }
        }
    }

    /// The number of bytes that a work request uses.
    pub(crate) fn extent(&self, extent: Extent) -> usize {
        match extent {
            Extent::Length => self.len,
            Extent::Capacity => self.capacity(),
        }
    }

    /// The element for a work request; `None` without memory.
    #[inline]
    pub(crate) fn sge(&self, extent: Extent) -> Option<Sge> {
        let block = self.block.as_ref()?;
        // A message that is longer than an element can describe is refused before it gets here.
        Some(block.sge(self.extent(extent)))
    }

    /// The number of the protection domain; `None` without memory.
    #[inline]
    pub(crate) fn pd(&self) -> Option<u64> {
        let block = self.block.as_ref()?;
        Some(block.region().mr().pd().id())
    }

    /// Sets the length after a receive to the bytes that arrived.
    pub(crate) fn set_received(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }
}

impl Deref for LocalBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Some(block) = &self.block else {
            return &[];
        };
        // SAFETY: only this object owns the block, so only it can give a work request these
        // bytes or change them. While a work request uses them it owns this object, inside the
        // crate, which does not dereference it then. The registration gives peers no rights, and
        // without the right to bind, no window can either.
        let bytes = unsafe { block.region().bytes(block.offset(), self.len) };
        bytes.expect("the block is within the region")
    }
}

impl DerefMut for LocalBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(block) = &self.block else {
            return &mut [];
        };
        // SAFETY: as in `deref`, nothing else accesses the bytes; the exclusive borrow of this
        // object excludes other borrows of them.
        let bytes = unsafe { block.region().bytes_mut(block.offset(), self.len) };
        bytes.expect("the block is within the region")
    }
}

impl fmt::Debug for LocalBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalBuffer")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ConnectOptions, RKey, RemoteAccess, RemoteRegion, SendRequest, WcStatus, WorkError,
    };

    /// A protection domain without a device.
    fn pd() -> Arc<driver::Pd> {
        driver::Pd::new()
    }

    #[test]
    fn a_buffer_returns_the_vector_that_it_was_made_of() {
        let mut buffer = LocalBuffer::from_vec(&pd(), b"hello".to_vec()).unwrap();
        buffer[0] = b'j';
        buffer.set_len(4).unwrap();
        assert_eq!(buffer.into_vec(), b"jell");
    }

    #[test]
    fn a_peer_that_knows_the_key_has_no_rights() {
        let context = crate::device("urxe_lo").unwrap().open().unwrap();
        let (pd, cq) = (context.pd(), context.completion_queue().unwrap());
        let qp = || pd.queue_pair(&cq, &cq).build().unwrap();
        let (a, b) = (qp(), qp());
        let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
        let options = ConnectOptions::default();
        let a = a.connect(&endpoint_b, &options).unwrap();
        let _b = b.connect(&endpoint_a, &options).unwrap();
        let write_to = |sge: Sge| {
            let region = RemoteRegion {
                addr: sge.addr,
                len: u64::from(sge.length),
                rkey: RKey(sge.lkey.0),
            };
            a.post_send(SendRequest::write(b"!", &region)).unwrap();
            cq.wait().unwrap().result
        };
        let shared = pd.register(8, RemoteAccess::WRITE).unwrap();
        assert!(write_to(shared.slice(..).unwrap().sge()).is_ok());
        let buffer = pd.buffer(8).unwrap();
        let denied = write_to(buffer.sge(Extent::Length).unwrap());
        let status = WcStatus::RemAccessErr;
        assert_eq!(denied, Err(WorkError { status }));
        assert_eq!(*buffer, [0; 8]);
    }
}
