//! Buffers for local use: registered memory without remote rights, which the program borrows as
//! bytes.
//!
//! A work request takes the buffer itself, and its completion returns it. So while a queue pair
//! accesses the bytes, the program has no buffer to borrow them from, and data is neither copied
//! into registered memory nor out of it.

use crate::pd::ProtectionDomain;
use crate::wait::lock;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use urxe_driver as driver;
use urxe_driver::owned::{OwnedError, OwnedRegion, RangeError};
use urxe_proto::host::Access;
use urxe_proto::work::Sge;

/// The alignment of the buffers of a pool, in bytes: two threads that use neighbouring buffers
/// share no cache line.
const ALIGNMENT: usize = 64;

/// The rights on the memory of buffers. Peers have none, and no window can be bound to it.
const LOCAL: Access = Access::LOCAL_WRITE;

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

    /// Allocates and registers a pool of `count` buffers for local use, each of `size` bytes.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let pool = pd.buffer_pool(16, 4096)?;
    /// let qp = pd.queue_pair(&cq, &cq).max_recv_wr(16).build()?;
    /// while let Some(buffer) = pool.take() {
    ///     qp.post_receive(ReceiveRequest::into(buffer))?;
    /// }
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`OwnedError`]; both numbers must be at least 1.
    pub fn buffer_pool(&self, count: usize, size: usize) -> Result<BufferPool, OwnedError> {
        BufferPool::new(self.driver(), count, size)
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
/// the queue pair no longer uses it. A dropped buffer returns to its [pool](BufferPool).
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
    place: Option<Place>,
    len: usize,
}

/// The memory of one buffer. It belongs to no other place until it is in the list of free ones.
struct Place {
    pool: Arc<Pool>,
    index: usize,
}

/// One registration, divided into buffers.
#[derive(Debug)]
struct Pool {
    region: OwnedRegion,
    /// The size of one buffer.
    size: usize,
    /// The distance between two buffers.
    stride: usize,
    /// The buffers in the pool. Its capacity is that of the pool, so it never grows.
    free: Mutex<Vec<usize>>,
}

impl Pool {
    fn new(region: OwnedRegion, size: usize, stride: usize, count: usize) -> Pool {
        Pool {
            region,
            size,
            stride,
            free: Mutex::new((0..count).rev().collect()),
        }
    }

    fn take(self: &Arc<Self>) -> Option<LocalBuffer> {
        let index = lock(&self.free).pop()?;
        Some(LocalBuffer {
            place: Some(Place {
                pool: Arc::clone(self),
                index,
            }),
            len: self.size,
        })
    }
}

impl Place {
    fn offset(&self) -> usize {
        self.index * self.pool.stride
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.pool.free).push(self.index);
    }
}

impl LocalBuffer {
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
        let pool = Arc::new(Pool::new(region, len, len, 1));
        Ok(pool.take().unwrap_or_default())
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
        self.place.as_ref().map_or(0, |place| place.pool.size)
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
        let len = self.len;
        let Some(place) = &self.place else {
            return Vec::new();
        };
        let whole = place.pool.region.mr().len() == place.pool.size as u64;
        if !whole || Arc::strong_count(&place.pool) > 1 {
            return self.to_vec();
        }
        let pool = Arc::clone(&place.pool);
        // Dropping the place releases its reference to the pool.
        self.place = None;
        let pool = Arc::into_inner(pool).expect("this is the only reference");
        let mut data = pool.region.into_vec();
        data.truncate(len);
        data
    }

    /// The number of bytes that a work request uses.
    pub(crate) fn extent(&self, extent: Extent) -> usize {
        match extent {
            Extent::Length => self.len,
            Extent::Capacity => self.capacity(),
        }
    }

    /// The element for a work request; `None` without memory.
    pub(crate) fn sge(&self, extent: Extent) -> Option<Sge> {
        let place = self.place.as_ref()?;
        let region = &place.pool.region;
        // An element has 32 bits of length; a longer message is refused before it gets here.
        let len = self.extent(extent).min(u32::MAX as usize);
        region.sge(place.offset(), len).ok()
    }

    /// The number of the protection domain; `None` without memory.
    pub(crate) fn pd(&self) -> Option<u64> {
        let place = self.place.as_ref()?;
        Some(place.pool.region.mr().pd().id())
    }

    /// Sets the length after a receive to the bytes that arrived.
    pub(crate) fn set_received(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }
}

impl Deref for LocalBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Some(place) = &self.place else {
            return &[];
        };
        // SAFETY: only this object refers to the place, so only it can give a work request these
        // bytes or change them. While a work request uses them it owns this object, inside the
        // crate, which does not dereference it then. The registration gives peers no rights, and
        // without the right to bind, no window can either.
        let bytes = unsafe { place.pool.region.bytes(place.offset(), self.len) };
        bytes.expect("the place is within the region")
    }
}

impl DerefMut for LocalBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(place) = &self.place else {
            return &mut [];
        };
        // SAFETY: as in `deref`, nothing else accesses the bytes; the exclusive borrow of this
        // object excludes other borrows of them.
        let bytes = unsafe { place.pool.region.bytes_mut(place.offset(), self.len) };
        bytes.expect("the place is within the region")
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

/// A pool of buffers of one size, with one registration.
///
/// Taking a buffer and dropping it allocate nothing. Clones refer to the same pool; the memory is
/// deregistered after the pool and all its buffers are dropped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let pd = context.pd();
/// let pool = pd.buffer_pool(2, 4096)?;
/// let mut buffer = pool.take().expect("two are free");
/// buffer.fill(b"hello")?;
/// let other = pool.take().expect("one is free");
/// assert!(pool.take().is_none());
/// drop(other);
/// assert_eq!(pool.available(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BufferPool(Arc<Pool>);

impl BufferPool {
    pub(crate) fn new(
        pd: &Arc<driver::Pd>,
        count: usize,
        size: usize,
    ) -> Result<BufferPool, OwnedError> {
        // An overflow asks for more memory than there is, which is the error that it gets.
        let stride = size.checked_next_multiple_of(ALIGNMENT);
        let all = stride.and_then(|stride| stride.checked_mul(count));
        let region = OwnedRegion::zeroed(pd, all.unwrap_or(usize::MAX), LOCAL)?;
        let stride = stride.unwrap_or(size);
        Ok(BufferPool(Arc::new(Pool::new(region, size, stride, count))))
    }

    /// Takes a buffer, whose length is its capacity; `None` if all are in use.
    ///
    /// Its bytes are those of an earlier use, or 0.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let pool = pd.buffer_pool(1, 4096)?;
    /// let buffer = pool.take().expect("one is free");
    /// assert_eq!(buffer.len(), 4096);
    /// assert!(pool.take().is_none());
    /// drop(buffer);
    /// assert!(pool.take().is_some());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn take(&self) -> Option<LocalBuffer> {
        self.0.take()
    }

    /// The number of buffers in the pool.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let pool = pd.buffer_pool(2, 4096)?;
    /// let buffer = pool.take();
    /// assert_eq!(pool.available(), 1);
    /// drop(buffer);
    /// assert_eq!(pool.available(), 2);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn available(&self) -> usize {
        lock(&self.0.free).len()
    }

    /// The capacity of each buffer in bytes.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let pool = pd.buffer_pool(2, 100)?;
    /// assert_eq!(pool.buffer_capacity(), 100);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn buffer_capacity(&self) -> usize {
        self.0.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ConnectOptions, RKey, RemoteAccess, RemoteRegion, SendRequest, WcStatus, WorkError,
    };

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
