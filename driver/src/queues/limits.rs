//! Limits of the queues.

/// The largest number of work requests in a queue.
pub const MAX_QP_WR: u32 = 32_768;
/// The largest number of scatter/gather elements in a work request.
pub const MAX_SGE: u32 = 32;
/// The largest inline data of a work request, in bytes.
pub const MAX_INLINE: u32 = 1024;
