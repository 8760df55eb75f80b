//! Event channels.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use urxe_driver::cm::EventChannel;
use urxe_driver::device::devices;

use crate::abi::entry;
use crate::abi::errno::Errno;
use crate::abi::ffi::*;
use crate::abi::log;
use crate::abi::object::{self, Handle};

impl Handle for rdma_event_channel {
    type Ours = Arc<EventChannel>;
}

/// Makes a channel.
///
/// # Errors
/// `ENODEV` where there is no device.
pub(super) fn create() -> Result<*mut rdma_event_channel, Errno> {
    log::start();
    if devices()?.is_empty() {
        return Err(Errno(libc::ENODEV));
    }
    let channel = Arc::new(EventChannel::new()?);
    let fd = channel.fd().as_raw_fd();
    Ok(object::make(rdma_event_channel { fd }, channel))
}

/// What stands behind a channel.
///
/// # Errors
/// `EINVAL` if it is null.
///
/// # Safety
/// A pointer that is not null is a channel of ours, in use while the result is.
pub(super) unsafe fn channel_of<'a>(
    channel: *mut rdma_event_channel,
) -> Result<&'a Arc<EventChannel>, Errno> {
    // SAFETY: the caller's promise.
    unsafe { object::ours(channel) }
}

/// Ends a channel.
///
/// # Safety
/// `channel` is a channel of ours, and used for nothing else any more.
pub(super) unsafe fn destroy(channel: *mut rdma_event_channel) {
    // SAFETY: the caller's promise.
    drop(unsafe { object::free(channel) });
}

/// A channel for the events of any number of identifiers.
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    entry::pointer("rdma_create_event_channel", create)
}

/// # Safety
/// `channel` is null or a channel of ours, and used for nothing else any more.
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    entry::value("rdma_destroy_event_channel", (), || {
        if !channel.is_null() {
            // SAFETY: the caller's promise.
            unsafe { destroy(channel) };
        }
    });
}
