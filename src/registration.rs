//! Registration of memory.

use crate::mr::{MemoryRegion, RemoteAccess};
use crate::pd::ProtectionDomain;
use std::fmt::Debug;
use std::ptr::NonNull;
use urxe_driver::owned::{OwnedError, OwnedRegion};

impl ProtectionDomain {
    /// Allocates `len` zeroed, page-aligned bytes and registers them. (`ibv_reg_mr`.)
    ///
    /// `access` is the rights of peers; the program itself may always read and write.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register(1 << 20, RemoteAccess::READ | RemoteAccess::WRITE)?;
    /// assert_eq!(region.remote().len, 1 << 20);
    /// let nothing = pd.register(0, RemoteAccess::READ);
    /// assert!(matches!(nothing, Err(urxe::RegisterError::Empty)));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`OwnedError`]; `len` must be at least 1.
    pub fn register(&self, len: usize, access: RemoteAccess) -> Result<MemoryRegion, OwnedError> {
        OwnedRegion::zeroed(self.driver(), len, access.with_local()).map(MemoryRegion::new)
    }

    /// Registers the bytes of a vector in place, without a copy. (`ibv_reg_mr`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let region = pd.register_vec(b"hello".to_vec(), RemoteAccess::READ)?;
    /// assert_eq!(region.to_vec(..)?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`OwnedError`]; the vector must have at least one byte.
    pub fn register_vec(
        &self,
        data: Vec<u8>,
        access: RemoteAccess,
    ) -> Result<MemoryRegion, OwnedError> {
        OwnedRegion::from_vec(self.driver(), data, access.with_local()).map(MemoryRegion::new)
    }

    /// Registers memory of any origin, for instance a file mapping, huge pages, memory shared with
    /// another process, or a mapped DMA buffer. (`ibv_reg_mr`.)
    ///
    /// `owner` is dropped after the memory is deregistered, which is when the
    /// [region](MemoryRegion), its slices and the work requests on it are gone.
    ///
    /// ```
    /// use urxe::RemoteAccess;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = urxe::device("urxe_lo")?.open()?.pd();
    /// static mut PAGE: [u8; 4096] = [0; 4096];
    /// let start = std::ptr::NonNull::new(&raw mut PAGE).expect("a static has an address").cast();
    /// // SAFETY: the static lives forever, and nothing else in the program uses it.
    /// let region = unsafe { pd.register_raw(start, 4096, (), RemoteAccess::READ) }?;
    /// region.write(0, b"hello")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// The `len` bytes at `start` must be mapped for reading and writing until `owner` is dropped.
    /// Until then no Rust reference to them may exist, except to atomics. Other users of the bytes
    /// must expect them to change at any time.
    ///
    /// # Errors
    /// See [`OwnedError`]; `len` must be at least 1.
    pub unsafe fn register_raw(
        &self,
        start: NonNull<u8>,
        len: usize,
        owner: impl Debug + Send + Sync + 'static,
        access: RemoteAccess,
    ) -> Result<MemoryRegion, OwnedError> {
        let (owner, access) = (Box::new(owner), access.with_local());
        // SAFETY: the bytes are mapped until `owner` is dropped, and no Rust reference to them
        // exists until then: the caller's contract, section Safety. `MemoryRegion` makes no
        // reference either.
        let region = unsafe { OwnedRegion::from_raw(self.driver(), start, len, owner, access) };
        region.map(MemoryRegion::new)
    }
}
