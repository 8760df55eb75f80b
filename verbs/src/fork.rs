//! Fork support. Drivers of hardware must prevent a child from moving pages that the hardware
//! accesses. Here only this process accesses its memory regions, so no preparation is needed.

use libc::{c_int, c_void};

use super::entry;
use super::ffi::{IBV_FORK_UNNEEDED, ibv_fork_status};

/// Succeeds: a child may use memory that its parent registered (`ibv_fork_init(3)`).
pub extern "C" fn ibv_fork_init() -> c_int {
    entry::status("ibv_fork_init", || Ok(()))
}

/// Returns `IBV_FORK_UNNEEDED`: children may use registered memory without preparation
/// (`ibv_is_fork_initialized(3)`).
pub extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    entry::value("ibv_is_fork_initialized", IBV_FORK_UNNEEDED, || {
        IBV_FORK_UNNEEDED
    })
}

/// Succeeds without effect: registered memory is not withheld from children.
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    entry::status("ibv_dontfork_range", || Ok(()))
}

/// Succeeds without effect, as [`ibv_dontfork_range`].
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    entry::status("ibv_dofork_range", || Ok(()))
}
