//! Protection domains: the objects that may be used together.

use crate::context::Context;
use std::sync::Arc;
use urxe_driver as driver;

impl Context {
    /// Allocates a protection domain. (`ibv_alloc_pd`.)
    pub fn pd(&self) -> ProtectionDomain {
        ProtectionDomain::new(self)
    }
}

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

    pub(crate) fn driver(&self) -> &Arc<driver::Pd> {
        &self.driver
    }
}
