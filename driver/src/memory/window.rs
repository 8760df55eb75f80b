//! Memory windows as entries of the table of regions.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use urxe_proto::host::Access;
use urxe_proto::ids::{LKey, Qpn};

/// The types of memory windows; the values of `enum ibv_mw_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum WindowType {
    /// Any queue pair of the protection domain may use the window.
    One = 1,
    /// The window belongs to the queue pair through which it was bound.
    Two = 2,
}

/// A memory window, as an entry of the table of regions.
#[derive(Debug)]
pub(crate) struct Window {
    /// The number of the protection domain.
    pub(super) pd: u64,
    pub(super) kind: WindowType,
    state: RwLock<State>,
}

impl Window {
    /// Creates an unbound window with this key.
    pub(super) fn new(pd: u64, kind: WindowType, key: u32) -> Self {
        Window {
            pd,
            kind,
            state: RwLock::new(State { key, bound: None }),
        }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct State {
    /// The key with all 32 bits.
    pub(super) key: u32,
    pub(super) bound: Option<Binding>,
}

/// The part of a region to which a window is bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) region: LKey,
    /// The queue pair that alone may use the window; `None` for type 1.
    pub(super) qpn: Option<Qpn>,
    pub(super) access: Access,
    /// The region's address of the window's first byte.
    pub(super) addr: u64,
    pub(super) len: u64,
}

/// A guard that keeps the binding of a window unchanged.
#[derive(Debug)]
pub(crate) struct BindingGuard<'a> {
    _state: RwLockReadGuard<'a, State>,
}

impl<'a> From<RwLockReadGuard<'a, State>> for BindingGuard<'a> {
    fn from(state: RwLockReadGuard<'a, State>) -> Self {
        BindingGuard { _state: state }
    }
}
