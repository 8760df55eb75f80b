//! Protection domains: what may be used together.
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

/// A protection domain: queue pairs use, and show to their peers, the memory regions of their own
/// domain only (10.2.3 of the specification). Clones are the same one. (`ibv_pd`.)
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    context: Context,
    driver: Arc<driver::Pd>,
}

impl ProtectionDomain {
    pub(crate) fn new(context: &Context) -> ProtectionDomain {
        ProtectionDomain {
            context: context.clone(),
            driver: driver::Pd::new(),
        }
    }

    /// The opened device that it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Allocates `len` bytes of zeros, aligned to a page, and registers them, with the given rights
    /// for peers. (`ibv_reg_mr`.)
    ///
    /// # Errors
    /// See [`OwnedError`]; `len` must be at least 1.
    pub fn register(&self, len: usize, access: RemoteAccess) -> Result<MemoryRegion, OwnedError> {
        OwnedRegion::zeroed(&self.driver, len, access.with_local()).map(MemoryRegion::new)
    }

    /// Registers the bytes of a vector where they lie, without copying them. (`ibv_reg_mr`.)
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

    /// Allocates a memory window that is bound to nothing. (`ibv_alloc_mw`.)
    pub fn window(&self, kind: WindowType) -> MemoryWindow {
        MemoryWindow::new(driver::Mw::allocate(&self.driver, kind))
    }

    /// Begins a queue pair whose sends and receives complete in these queues,
    /// which may be one and the same. (`ibv_create_qp`.)
    pub fn queue_pair<'a>(
        &'a self,
        send_cq: &'a CompletionQueue,
        recv_cq: &'a CompletionQueue,
    ) -> QueuePairBuilder<'a> {
        QueuePairBuilder::new(self, send_cq, recv_cq)
    }

    /// Begins a shared receive queue, for receives into this domain's memory. (`ibv_create_srq`.)
    pub fn shared_receive_queue(&self) -> SharedReceiveQueueBuilder<'_> {
        SharedReceiveQueueBuilder::new(self)
    }

    pub(crate) fn driver(&self) -> &Arc<driver::Pd> {
        &self.driver
    }
}
