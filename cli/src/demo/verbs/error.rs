//! The failures of the C API.

use std::io;

use urxe_verbs::ffi::ibv_wc_status;

/// A failure of the C API.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The library cannot be loaded or lacks a function.
    #[error("{0}")]
    Load(String),
    /// The library has no device of this name.
    #[error("ibv_get_device_list() does not list {0}")]
    NoDevice(String),
    /// The GID index is unused.
    #[error("GID index {0} is unused; `urxe devices` shows the GIDs")]
    NoGid(u8),
    /// A call failed.
    #[error("{call}: {source}")]
    Call {
        /// The function.
        call: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// A request completed with an error.
    #[error("request {id} completed with status {status} ({text}), vendor error {vendor}")]
    Completion {
        /// The request's `wr_id`.
        id: u64,
        /// `enum ibv_wc_status`.
        status: ibv_wc_status,
        /// The library's text for the status.
        text: String,
        /// The vendor error.
        vendor: u32,
    },
}
