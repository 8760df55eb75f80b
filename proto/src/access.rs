//! Access rights to memory, and the bind of a memory window that grants them.

use crate::ids::{LKey, RKey};
use bitflags::bitflags;

bitflags! {
    /// The access rights of a memory region; the bits of `enum ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    pub struct Access: u32 {
        /// Local write: receives, READ responses, results of atomics.
        const LOCAL_WRITE = 1 << 0;
        /// Remote write.
        const REMOTE_WRITE = 1 << 1;
        /// Remote read.
        const REMOTE_READ = 1 << 2;
        /// Remote atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// A memory window may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses are offsets from the start of the region.
        const ZERO_BASED = 1 << 5;
        /// On-demand paging: pages need not be present at registration.
        const ON_DEMAND = 1 << 6;
        /// A hint: the region is backed by huge pages.
        const HUGETLB = 1 << 7;
        /// Remote FLUSH to global visibility (A19).
        const FLUSH_GLOBAL = 1 << 8;
        /// Remote FLUSH to persistence (A19).
        const FLUSH_PERSISTENT = 1 << 9;
        /// Relaxed ordering: writes may become visible in any order.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// The parameters of a memory window bind (10.6.7.2, 11.4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowBind {
    /// The current key of the window.
    pub window: RKey,
    /// The new key: its low 8 bits replace those of the current key.
    pub new_key: RKey,
    /// The region to bind the window to; ignored when `len` is 0.
    pub region: LKey,
    /// The first byte of the window, in the region's address space.
    pub addr: u64,
    /// The length in bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// The remote rights that the window grants, and whether it is zero-based.
    pub access: Access,
}
