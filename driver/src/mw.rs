//! Memory windows: keys for parts of memory regions, given and taken by work requests (10.6.7).
//!
//! A window of type 1 gets a new key each time it is bound; one of type 2 lets the program choose
//! the low 8 bits of it, belongs to the queue pair that bound it (the specification's type 2B), and
//! has to be invalidated before it is bound again.
//!
//! Windows stand in the table of regions, where packets look for keys. Binding happens while packets
//! are handled and the table is held for reading, so what a window is bound to has a lock of its own.
//! It is the last in the order of locks: nothing is locked while it is held. An access through the
//! window holds it for reading until the data is copied, and a bind or an invalidation takes it for
//! writing: once that has completed, no access by the old key is in progress.

#[cfg(test)]
mod tests;

use crate::pd::Pd;
use crate::regions::{Place, RegionTable, regions, regions_mut};
use crate::tables::KEY_VARIANT;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use urxe_proto::host::{Access, MemoryError, WindowBind};
use urxe_proto::ids::{LKey, Qpn, RKey};

/// The two kinds of windows; the numbers of `enum ibv_mw_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum WindowType {
    /// Any queue pair of the protection domain may use it.
    One = 1,
    /// It belongs to the queue pair through which it was bound.
    Two = 2,
}

/// What may be asked of a window, whatever remote access the region itself grants. The local rights
/// that programs ask for with it mean nothing here. Nothing is promised to be persistent, by whatever key.
const SUPPORTED: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::ZERO_BASED);

/// Access that changes the region's memory.
const CHANGES: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// A window, as the table of regions has it.
#[derive(Debug)]
pub(crate) struct Window {
    /// The protection domain's number.
    pd: u64,
    kind: WindowType,
    state: RwLock<State>,
}

impl Window {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct State {
    /// The whole key.
    key: u32,
    bound: Option<Binding>,
}

/// What a window is bound to.
#[derive(Clone, Copy, Debug)]
struct Binding {
    region: LKey,
    /// The queue pair that may use it, if that is only one.
    qpn: Option<Qpn>,
    access: Access,
    /// The region's address for its first byte.
    addr: u64,
    len: u64,
}

/// Keeps a window bound as it is.
#[derive(Debug)]
pub(crate) struct KeptBound<'a> {
    _state: RwLockReadGuard<'a, State>,
}

impl RegionTable {
    /// See [`urxe_proto::host::Memory::bind_window`].
    pub(crate) fn bind_window(
        &self,
        pd: &Pd,
        qpn: Qpn,
        bind: &WindowBind,
    ) -> Result<(), MemoryError> {
        let window = self.window(bind.window.0)?;
        // All belong to the same domain (C10-72).
        if window.pd != pd.id() {
            return Err(MemoryError::Key);
        }
        let mut state = window.write();
        // The key of one of type 1 is not the program's business.
        if window.kind == WindowType::Two && state.key != bind.window.0 {
            return Err(MemoryError::Key);
        }
        // The program has to invalidate one of type 2 first, and cannot do that by binding nothing
        // (o10-37.2.30, o10-37.2.40).
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

    /// Checks what a window is to be bound to.
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
        // C10-73, and C10-74 on what changes memory. Addresses of a window are the region's, which
        // one whose addresses count from 0 does not have.
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

    /// A queue pair, or its peer, takes the key away (10.6.7.2.7): only windows of type 2 can lose
    /// it so, and only through the queue pair that they belong to.
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
            // One that is free already stays so.
            bound => {
                self.release(bound);
                state.bound = None;
                Ok(())
            }
        }
    }

    /// The queue pair goes: windows that belong to it are free again.
    pub(crate) fn free_windows_of(&self, qpn: Qpn) {
        for window in self.windows.values() {
            let mut state = window.write();
            if state.bound.is_some_and(|bound| bound.qpn == Some(qpn)) {
                self.release(state.bound.take());
            }
        }
    }

    /// The region has gone, with windows bound to it: their keys lead nowhere any more.
    pub(crate) fn free_windows_on(&self, region: LKey) {
        for window in self.windows.values() {
            let mut state = window.write();
            if state.bound.is_some_and(|bound| bound.region == region) {
                state.bound = None;
            }
        }
    }

    /// Where memory lies that a peer names by a window's key. The window stays bound to it until the
    /// second part of the result is dropped.
    pub(crate) fn through_window(
        &self,
        pd: &Pd,
        qpn: Qpn,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(Place, KeptBound<'_>), MemoryError> {
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
        Ok((place, KeptBound { _state: state }))
    }

    pub(crate) fn window(&self, key: u32) -> Result<&Window, MemoryError> {
        let window = self.windows.get(key);
        window.ok_or(MemoryError::Key)
    }

    /// A window is not bound to its region any more.
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
    /// Names it in the table.
    index: u32,
}

impl Mw {
    /// Allocates a window that is bound to nothing.
    ///
    /// Allocating, and dropping, wait for who uses the table of regions: a thread must not do
    /// either while it has a [`crate::qp::Posting`].
    pub fn allocate(pd: &Arc<Pd>, kind: WindowType) -> Mw {
        let mut table = regions_mut();
        let key = table.free_key();
        let window = Window {
            pd: pd.id(),
            kind,
            state: RwLock::new(State { key, bound: None }),
        };
        table.windows.insert(key, window);
        Mw {
            pd: Arc::clone(pd),
            kind,
            index: key & !KEY_VARIANT,
        }
    }

    /// Its key now. Not to be asked for by a thread that has a [`crate::qp::Posting`].
    pub fn rkey(&self) -> RKey {
        let held = regions();
        let window = held.table().windows.get(self.index);
        RKey(window.map_or(self.index, |window| window.read().key))
    }

    /// Its type.
    pub fn kind(&self) -> WindowType {
        self.kind
    }

    /// The protection domain that it belongs to.
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
