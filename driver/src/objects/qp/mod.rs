//! The calls of programs on queue pairs.

mod create;
mod destroy;
mod modify;
mod multicast;
mod posting;
mod share;

pub use crate::queues::limits::{MAX_INLINE, MAX_QP_WR, MAX_SGE};
pub use crate::queues::qp::Qp;
pub use crate::queues::qp::error::{CreateError, ModifyError};
pub use crate::queues::qp::init::{QpCap, QpInit, ReceivesFrom};
pub use multicast::MulticastError;
pub use posting::{Posting, SendTarget};
pub use share::Share;
