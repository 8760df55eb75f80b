//! Protection domains: the objects that may be used together.
#![forbid(unsafe_code)]

use crate::context::Context;
use crate::cq::CompletionQueue;
use crate::mr::{MemoryRegion, RemoteAccess};
use crate::mw::MemoryWindow;
use crate::qp::QueuePairBuilder;
use crate::srq::SharedReceiveQueueBuilder;
use std::sync::Arc;
use urxe_driver as driver;
use urxe_driver::mw::WindowType;
use urxe_driver::owned::{OwnedError, OwnedRegion};

/// A protection domain (10.2.3 of the specification). (`ibv_pd`.)
///
/// A queue pair gives its own work requests and its peer access to memory regions and windows of
/// its own protection domain only. Clones refer to the same domain.
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
