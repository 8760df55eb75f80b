//! Event channels.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use urxe_driver::cm::EventChannel;

use crate::device;
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;
use crate::object::{self, Handle};
use crate::wait_registry::WaitRegistry;

/// The channels are looked up in [`CHANNELS`].
impl Handle for rdma_event_channel {
    type State = ();
}

static CHANNELS: WaitRegistry<EventChannel> = WaitRegistry::new();

/// Creates a channel.
///
/// # Errors
/// `ENODEV` if there is no device.
pub(super) fn create() -> Result<*mut rdma_event_channel, Errno> {
    if device::present()?.is_empty() {
        return Err(Errno(libc::ENODEV));
    }
    let channel = Arc::new(EventChannel::new()?);
    let fd = channel.fd().as_raw_fd();
    let handle = object::make(rdma_event_channel { fd }, ());
    CHANNELS.add(handle, &channel);
    Ok(handle)
}

/// Returns the library's part of a channel.
///
/// # Errors
/// `EINVAL` if it is null, `EBADF` if it was destroyed.
pub(super) fn channel_of(channel: *mut rdma_event_channel) -> Result<Arc<EventChannel>, Errno> {
    CHANNELS.find(channel)
}

/// Destroys a channel, unless it was destroyed before.
pub(super) fn destroy(channel: *mut rdma_event_channel) {
    if CHANNELS.remove(channel) {
        // SAFETY: the channel was created here and is removed once. Other threads use only the
        // `Arc` from [`CHANNELS`], not this memory.
        unsafe { object::free(channel) };
    }
}

/// Creates a channel for the events of any number of identifiers.
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    entry::pointer("rdma_create_event_channel", create)
}

/// Destroys a channel, even while threads wait on it.
pub extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    entry::value("rdma_destroy_event_channel", (), || destroy(channel));
}
