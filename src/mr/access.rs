//! The access rights of peers.
#![forbid(unsafe_code)]

use bitflags::bitflags;
use urxe_proto::host::Access;

bitflags! {
    /// Remote access rights of a memory region. (The remote bits of `ibv_access_flags`.)
    ///
    /// The empty set makes a region for local use. The local program may always read and write.
    ///
    /// ```
    /// use urxe::RemoteAccess;
    ///
    /// # let pd = urxe::device("urxe_lo")?.open()?.pd();
    /// let access = RemoteAccess::READ | RemoteAccess::WRITE;
    /// assert!(!access.contains(RemoteAccess::ATOMIC) && !access.contains(RemoteAccess::FLUSH));
    /// let region = pd.register(4096, access)?;
    /// region.set_access(access - RemoteAccess::WRITE)?;
    /// let local = pd.register(4096, RemoteAccess::empty())?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    pub struct RemoteAccess: u32 {
        /// RDMA WRITE.
        const WRITE = Access::REMOTE_WRITE.bits();
        /// RDMA READ.
        const READ = Access::REMOTE_READ.bits();
        /// Atomic compare-and-swap and fetch-and-add.
        const ATOMIC = Access::REMOTE_ATOMIC.bits();
        /// FLUSH: makes earlier WRITEs visible to all processors of the host.
        const FLUSH = Access::FLUSH_GLOBAL.bits();
    }
}

impl RemoteAccess {
    pub(crate) fn with_local(self) -> Access {
        Access::LOCAL_WRITE | Access::MW_BIND | Access::from_bits_truncate(self.bits())
    }
}
