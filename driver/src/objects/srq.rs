//! Creating shared receive queues of XRC domains.

use super::cq::Cq;
use super::xrcd::Xrcd;
use crate::events::AsyncEvents;
use crate::path;
use crate::pd::Pd;
pub use crate::queues::srq::{MAX_SRQ_SGE, MAX_SRQ_WR, Srq, SrqAttr, SrqChange, SrqError};
use std::sync::Arc;

impl Srq {
    /// Creates an empty queue for XRC messages that name it. Its receives complete to `cq` (A14).
    ///
    /// # Errors
    /// See [`SrqError`].
    pub fn create_in(
        domain: &Arc<Xrcd>,
        cq: &Arc<Cq>,
        events: &Arc<AsyncEvents>,
        pd: &Arc<Pd>,
        attr: SrqAttr,
    ) -> Result<Arc<Srq>, SrqError> {
        let engine = path::get();
        let numbers = engine.numbers()?;
        // The packets of the domain's queue pairs complete receives to this queue.
        engine.affinity_of(&[&domain.affinity, &cq.affinity]);
        Srq::create_with_number(numbers, domain, cq, events, pd, attr)
    }
}
