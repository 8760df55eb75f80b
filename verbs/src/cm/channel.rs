//! Event channels.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use urxe_driver::cm::EventChannel;
use urxe_driver::device::devices;

use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;
use crate::log;
use crate::object::{self, Handle};
use crate::waited::Waited;

/// What stands behind a channel is found in [`CHANNELS`].
impl Handle for rdma_event_channel {
    type Ours = ();
}

static CHANNELS: Waited<EventChannel> = Waited::new();

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
    let shown = object::make(rdma_event_channel { fd }, ());
    CHANNELS.add(shown, &channel);
    Ok(shown)
}

/// What stands behind a channel.
///
/// # Errors
/// `EINVAL` if it is null, `EBADF` if it was destroyed.
pub(super) fn channel_of(channel: *mut rdma_event_channel) -> Result<Arc<EventChannel>, Errno> {
    CHANNELS.find(channel)
}

/// Ends a channel, unless it has ended.
pub(super) fn destroy(channel: *mut rdma_event_channel) {
    if CHANNELS.remove(channel) {
        // SAFETY: it was made here, and is removed once. Nobody else looks at its memory.
        unsafe { object::free(channel) };
    }
}

/// A channel for the events of any number of identifiers.
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    entry::pointer("rdma_create_event_channel", create)
}

/// Threads may be waiting at it.
pub extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    entry::value("rdma_destroy_event_channel", (), || destroy(channel));
}
