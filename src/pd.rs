//! Protection domains: the objects that may be used together.

use crate::context::Context;
use std::sync::Arc;
use urxe_driver as driver;

impl Context {
    /// Allocates a protection domain. (`ibv_alloc_pd`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let context = urxe::device("urxe_lo")?.open()?;
    /// let pd = context.pd();
    /// let memory = pd.register(4096, RemoteAccess::READ)?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn pd(&self) -> ProtectionDomain {
        ProtectionDomain::new(self)
    }
}

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
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let another = pd.context().pd();
    /// assert_eq!(another.context().device().guid(), context.device().guid());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn driver(&self) -> &Arc<driver::Pd> {
        &self.driver
    }
}
