//! Memory windows: keys for parts of memory regions, bound and invalidated by work requests
//! (10.6.7).
//!
//! A type 1 window gets a new key at each bind. For a type 2 window the application chooses the low
//! 8 bits of the key; the window belongs to the queue pair that bound it (type 2B of the
//! specification) and must be invalidated before the next bind.
//!
//! Windows are part of the table of regions, where packets' keys are looked up. Binds are executed
//! while packets are processed and the table is locked for reading, so the state of each window has
//! a lock of its own. An access through the window holds it for reading until the data is copied; a
//! bind or an invalidation takes it for writing. Once that has completed, no access by the old key
//! is in progress.

#[cfg(test)]
mod tests;

use super::regions::{Place, RegionTable, regions, regions_mut};
pub use super::window::WindowType;
use super::window::{Binding, BindingGuard, Window};
use crate::pd::Pd;
use crate::tables::KEY_VARIANT;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use urxe_proto::host::{Access, MemoryError, WindowBind};
use urxe_proto::ids::{LKey, Qpn, RKey};

/// The access rights that a bind may request, regardless of the remote access of the region itself.
/// Local rights in a bind have no effect. No key gives persistence, so `FLUSH_PERSISTENT` is
/// missing.
const SUPPORTED: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::ZERO_BASED);

/// The access rights that permit changes of the region's memory.
const CHANGES: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

impl RegionTable {
    /// See [`urxe_proto::host::Memory::bind_window`].
    pub(crate) fn bind_window(
        &self,
        pd: &Pd,
        qpn: Qpn,
        bind: &WindowBind,
    ) -> Result<(), MemoryError> {
        let window = self.window(bind.window.0)?;
        // Window, region and queue pair belong to the same protection domain (C10-72).
        if window.pd != pd.id() {
            return Err(MemoryError::Key);
        }
        let mut state = window.write();
        // The application does not choose the key of a type 1 window, so its low 8 bits are not
        // compared.
        if window.kind == WindowType::Two && state.key != bind.window.0 {
            return Err(MemoryError::Key);
        }
        // A bound type 2 window must be invalidated before the next bind, and a bind of length 0
        // does not invalidate it (o10-37.2.30, o10-37.2.40).
        if window.kind == WindowType::Two && (state.bound.is_some() || bind.len == 0) {
            return Err(MemoryError::Window);
        }
        let bound = match bind.len {
            0 => None,
            _ => Some(self.binding(pd, qpn, window.kind, bind)?),
        };
        self.release(state.bound.take());
        if let Some(region) = bound.and_then(|bound| self.region(bound.region)) {
            region.windows.fetch_add(1, Ordering::AcqRel);
        }
        state.key = (bind.window.0 & !KEY_VARIANT) | (bind.new_key.0 & KEY_VARIANT);
        state.bound = bound;
        Ok(())
    }

    /// Checks the attributes of a bind.
    fn binding(
        &self,
        pd: &Pd,
        qpn: Qpn,
        kind: WindowType,
        bind: &WindowBind,
    ) -> Result<Binding, MemoryError> {
        if !SUPPORTED.contains(bind.access) {
            return Err(MemoryError::Permission);
        }
        // o10-36.2.2
        if kind == WindowType::One && bind.access.contains(Access::ZERO_BASED) {
            return Err(MemoryError::Window);
        }
        let region = self.find(bind.region.0, pd.id())?;
        // C10-73, and C10-74 for access that changes memory. A window uses the addresses of its
        // region; a zero-based region has none.
        if !region.access.contains(Access::MW_BIND)
            || region.access.contains(Access::ZERO_BASED)
            || (bind.access.intersects(CHANGES) && !region.access.contains(Access::LOCAL_WRITE))
        {
            return Err(MemoryError::Permission);
        }
        // C10-75
        region.locate(bind.addr, bind.len)?;
        Ok(Binding {
            region: bind.region,
            qpn: (kind == WindowType::Two).then_some(qpn),
            access: bind.access,
            addr: bind.addr,
            len: bind.len,
        })
    }

    /// Invalidates a key for a queue pair or its peer (10.6.7.2.7). Only type 2 windows can be
    /// invalidated, and only through the queue pair to which they belong.
    pub(crate) fn invalidate(&self, pd: &Pd, qpn: Qpn, rkey: RKey) -> Result<(), MemoryError> {
        let window = self.window(rkey.0)?;
        if window.pd != pd.id() {
            return Err(MemoryError::Key);
        }
        let mut state = window.write();
        if state.key != rkey.0 {
            return Err(MemoryError::Key);
        }
        if window.kind != WindowType::Two {
            return Err(MemoryError::Window);
        }
        match state.bound {
            Some(Binding { qpn: owner, .. }) if owner != Some(qpn) => Err(MemoryError::Window),
            // Invalidating a free window has no effect.
            bound => {
                self.release(bound);
                state.bound = None;
                Ok(())
            }
        }
    }

    /// Frees the type 2 windows of a queue pair that is destroyed.
    pub(crate) fn free_windows_of(&self, qpn: Qpn) {
        for window in self.windows.values() {
            let mut state = window.write();
            if state.bound.is_some_and(|bound| bound.qpn == Some(qpn)) {
                self.release(state.bound.take());
            }
        }
    }

    /// Frees the windows that are bound to a removed region; their keys become invalid.
    pub(crate) fn free_windows_on(&self, region: LKey) {
        for window in self.windows.values() {
            let mut state = window.write();
            if state.bound.is_some_and(|bound| bound.region == region) {
                state.bound = None;
            }
        }
    }

    /// Returns the place of the memory that a peer names by a window's key. The window stays bound
    /// until the guard in the result is dropped.
    pub(crate) fn through_window(
        &self,
        pd: &Pd,
        qpn: Qpn,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(Place, BindingGuard<'_>), MemoryError> {
        let window = self.window(rkey.0)?;
        let state = window.read();
        let bound = match state.bound {
            Some(bound) if state.key == rkey.0 && window.pd == pd.id() => bound,
            _ => return Err(MemoryError::Key),
        };
        if bound.qpn.is_some_and(|owner| owner != qpn) {
            return Err(MemoryError::Key);
        }
        if !bound.access.contains(access) {
            return Err(MemoryError::Permission);
        }
        let first = match bound.access.contains(Access::ZERO_BASED) {
            true => 0,
            false => bound.addr,
        };
        let offset = addr.checked_sub(first).ok_or(MemoryError::Range)?;
        if offset.checked_add(len).is_none_or(|end| end > bound.len) {
            return Err(MemoryError::Range);
        }
        let region = self.find(bound.region.0, pd.id())?;
        let place = region.locate(bound.addr + offset, len)?;
        Ok((place, BindingGuard::from(state)))
    }

    pub(crate) fn window(&self, key: u32) -> Result<&Window, MemoryError> {
        let window = self.windows.get(key);
        window.ok_or(MemoryError::Key)
    }

    /// Decrements the number of windows of the region to which the window was bound.
    fn release(&self, bound: Option<Binding>) {
        if let Some(region) = bound.and_then(|bound| self.region(bound.region)) {
            region.windows.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A memory window. Dropping it deallocates it, bound or not (10.6.7.2.1).
#[derive(Debug)]
pub struct Mw {
    pd: Arc<Pd>,
    kind: WindowType,
    /// The key without its low 8 bits, by which the table finds the window.
    index: u32,
}

impl Mw {
    /// Allocates an unbound window.
    ///
    /// Allocating and dropping a window wait until no thread uses the table of regions. A thread
    /// that has a [`crate::objects::qp::Posting`] must do neither.
    pub fn allocate(pd: &Arc<Pd>, kind: WindowType) -> Mw {
        let mut table = regions_mut();
        let key = table.free_key();
        table.windows.insert(key, Window::new(pd.id(), kind, key));
        Mw {
            pd: Arc::clone(pd),
            kind,
            index: key & !KEY_VARIANT,
        }
    }

    /// Returns the present key. A thread that has a [`crate::objects::qp::Posting`] must not call
    /// this.
    pub fn rkey(&self) -> RKey {
        let held = regions();
        let window = held.table().windows.get(self.index);
        RKey(window.map_or(self.index, |window| window.read().key))
    }

    /// Returns the type.
    pub fn kind(&self) -> WindowType {
        self.kind
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let mut table = regions_mut();
        if let Some(window) = table.windows.remove(self.index) {
            table.release(window.read().bound);
        }
    }
}
