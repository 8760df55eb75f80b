//! Posting of receives.

use crate::path;
use crate::queues::qp::Qp;
use std::sync::Arc;
use urxe_net::thread;
use urxe_proto::queue::PostError;
use urxe_proto::work::Sge;

impl Qp {
    /// Posts a receive (11.4.1.2). Messages that waited for it are received now. The thread may be
    /// cancelled meanwhile: no cancellation point is reached.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(self: &Arc<Self>, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if self.add_receive(wr_id, sges)? {
            thread::without_cancellation(|| self.receive_awaited());
        }
        Ok(())
    }

    #[cold]
    fn receive_awaited(self: &Arc<Self>) {
        let effects = self.receive_posted();
        path::get().apply(self, effects);
    }
}
