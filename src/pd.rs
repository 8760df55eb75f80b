//! Protection domains: the objects that may be used together.

use crate::buffer::{BufferPool, LocalBuffer};
use crate::context::Context;
use crate::cq::CompletionQueue;
use crate::mr::{MemoryRegion, RemoteAccess};
use crate::mw::MemoryWindow;
use crate::qp::QueuePairBuilder;
use crate::srq::SharedReceiveQueueBuilder;
use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;
use urxe_driver as driver;
use urxe_driver::mw::WindowType;
use urxe_driver::owned::{OwnedError, OwnedRegion};

/// A protection domain (10.2.3 of the specification). (`ibv_pd`.)
///
/// A queue pair gives its own work requests and its peer access to memory regions and windows of
/// its own protection domain only. Clones refer to the same domain.
///
/// ```
/// use urxe::{ReceiveRequest, RemoteAccess};
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// let pd = context.pd();
/// // Memory that peers may read, without a copy of the vector:
/// let shared = pd.register_vec(vec![1, 2, 3], RemoteAccess::READ)?;
/// // Memory for this program's sends and receives:
/// let mut buffer = pd.buffer(4096)?;
/// buffer[..5].copy_from_slice(b"hello");
/// let message = pd.buffer_from(b"hello".to_vec())?;
/// let pool = pd.buffer_pool(16, 4096)?;
/// // A queue pair that accesses them:
/// let cq = context.completion_queue()?;
/// let qp = pd.queue_pair(&cq, &cq).max_recv_wr(16).build()?;
/// while let Some(buffer) = pool.take() {
///     qp.post_receive(ReceiveRequest::into(buffer))?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    context: Context,
    driver: Arc<driver::Pd>,
}

impl ProtectionDomain {
    pub(crate) fn new(context: &Context) -> ProtectionDomain {
        ProtectionDomain {
            context: context.clone(),
            driver: context.driver().create_pd(),
        }
    }

    /// The opened device that the domain belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Allocates `len` zeroed, page-aligned bytes and registers them. (`ibv_reg_mr`.)
    ///
    /// `access` is the rights of peers; the program itself may always read and write.
    ///
    /// # Errors
    /// See [`OwnedError`]; `len` must be at least 1.
    pub fn register(&self, len: usize, access: RemoteAccess) -> Result<MemoryRegion, OwnedError> {
        OwnedRegion::zeroed(&self.driver, len, access.with_local()).map(MemoryRegion::new)
    }

    /// Registers the bytes of a vector in place, without a copy. (`ibv_reg_mr`.)
    ///
    /// # Errors
    /// See [`OwnedError`]; the vector must have at least one byte.
    pub fn register_vec(
        &self,
        data: Vec<u8>,
        access: RemoteAccess,
    ) -> Result<MemoryRegion, OwnedError> {
        OwnedRegion::from_vec(&self.driver, data, access.with_local()).map(MemoryRegion::new)
    }

    /// Registers memory of any origin, for instance a file mapping, huge pages, memory shared with
    /// another process, or a mapped DMA buffer. (`ibv_reg_mr`.)
    ///
    /// `owner` is dropped after the memory is deregistered, which is when the
    /// [region](MemoryRegion), its slices and the work requests on it are gone.
    ///
    /// ```
    /// use urxe::RemoteAccess;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = urxe::device("urxe_lo")?.open()?.pd();
    /// static mut PAGE: [u8; 4096] = [0; 4096];
    /// let start = std::ptr::NonNull::new(&raw mut PAGE).expect("a static has an address").cast();
    /// // SAFETY: the static lives forever, and nothing else in the program uses it.
    /// let region = unsafe { pd.register_raw(start, 4096, (), RemoteAccess::READ) }?;
    /// region.write(0, b"hello")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// The `len` bytes at `start` must be mapped for reading and writing until `owner` is dropped.
    /// Until then no Rust reference to them may exist, except to atomics. Other users of the bytes
    /// must expect them to change at any time.
    ///
    /// # Errors
    /// See [`OwnedError`]; `len` must be at least 1.
    pub unsafe fn register_raw(
        &self,
        start: NonNull<u8>,
        len: usize,
        owner: impl Debug + Send + Sync + 'static,
        access: RemoteAccess,
    ) -> Result<MemoryRegion, OwnedError> {
        let (owner, access) = (Box::new(owner), access.with_local());
        // SAFETY: the contract is the same. The bytes of a region are not borrowed.
        let region = unsafe { OwnedRegion::from_raw(&self.driver, start, len, owner, access) };
        region.map(MemoryRegion::new)
    }

    /// Allocates and registers a zeroed buffer for local use.
    ///
    /// # Errors
    /// See [`OwnedError`]; `len` must be at least 1.
    pub fn buffer(&self, len: usize) -> Result<LocalBuffer, OwnedError> {
        LocalBuffer::zeroed(&self.driver, len)
    }

    /// Registers the bytes of a vector in place, as a buffer for local use.
    ///
    /// [`LocalBuffer::into_vec`] returns the vector.
    ///
    /// # Errors
    /// See [`OwnedError`]; the vector must have at least one byte.
    pub fn buffer_from(&self, data: Vec<u8>) -> Result<LocalBuffer, OwnedError> {
        LocalBuffer::from_vec(&self.driver, data)
    }

    /// Allocates and registers a pool of `count` buffers for local use, each of `size` bytes.
    ///
    /// # Errors
    /// See [`OwnedError`]; both numbers must be at least 1.
    pub fn buffer_pool(&self, count: usize, size: usize) -> Result<BufferPool, OwnedError> {
        BufferPool::new(&self.driver, count, size)
    }

    /// Allocates an unbound memory window. (`ibv_alloc_mw`.)
    pub fn window(&self, kind: WindowType) -> MemoryWindow {
        MemoryWindow::new(driver::Mw::allocate(&self.driver, kind))
    }

    /// Returns a builder for a queue pair with these completion queues. (`ibv_create_qp`.)
    ///
    /// Both may be the same queue.
    pub fn queue_pair<'a>(
        &'a self,
        send_cq: &'a CompletionQueue,
        recv_cq: &'a CompletionQueue,
    ) -> QueuePairBuilder<'a> {
        QueuePairBuilder::new(self, send_cq, recv_cq)
    }

    /// Returns a builder for a shared receive queue in this domain. (`ibv_create_srq`.)
    pub fn shared_receive_queue(&self) -> SharedReceiveQueueBuilder<'_> {
        SharedReceiveQueueBuilder::new(self)
    }

    pub(crate) fn driver(&self) -> &Arc<driver::Pd> {
        &self.driver
    }
}
