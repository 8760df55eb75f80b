//! Completion channels and their events.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;

use urxe_driver::waiting::Waiting;
use urxe_driver::{Channel, Cq};

use super::cancellation;
use super::context::context_of;
use super::cq::cq_handle;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use, Users};
use super::wait_registry::WaitRegistry;

impl Handle for ibv_comp_channel {
    type State = CompletionChannel;
}

/// The channels at which threads of the program may wait for notifications.
static CHANNELS: WaitRegistry<Channel> = WaitRegistry::new();

/// The library's state behind an `ibv_comp_channel`.
#[derive(Debug)]
pub(super) struct CompletionChannel {
    pub driver: Arc<Channel>,
    /// The completion queues that notify it.
    pub users: Users,
    _context: Use,
}

/// Creates a completion channel.
///
/// # Safety
/// `context` must be null or an opened device.
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    entry::pointer("ibv_create_comp_channel", || {
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        let device = unsafe { context_of(context) }?;
        let driver = Arc::new(Channel::new()?);
        let handle = ibv_comp_channel {
            context,
            fd: driver.fd().as_raw_fd(),
            refcnt: 0,
        };
        let state = CompletionChannel {
            driver: Arc::clone(&driver),
            users: Users::default(),
            _context: device.users.add(),
        };
        let made = object::make(handle, state);
        CHANNELS.add(made, &driver);
        Ok(made)
    })
}

/// Destroys a completion channel. `EBUSY` while a completion queue notifies it. Threads may still
/// be waiting at it.
///
/// # Safety
/// `channel` must be null or a live channel created by this library. No other call may use it now
/// or later, except [`ibv_get_cq_event`].
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    entry::status("ibv_destroy_comp_channel", || {
        // SAFETY: `channel` is null or live: the caller's contract, section Safety.
        unsafe { object::state_of(channel) }?.users.check_none()?;
        CHANNELS.remove(channel);
        // SAFETY: `channel` is live, and no other call uses it: the caller's contract, section
        // Safety. Waiting threads hold the driver's object instead.
        drop(unsafe { object::free(channel) });
        Ok(())
    })
}

/// Returns the next notification, after a wait unless the descriptor has `O_NONBLOCK`.
///
/// `EBADF` if the channel was destroyed.
///
/// # Safety
/// `cq` and `cq_context` must be null or valid for writing a pointer.
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    cancellation::wait("ibv_get_cq_event", || {
        if cq.is_null() || cq_context.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let channel = CHANNELS.find(channel)?;
        Ok(move |waiting: &mut Waiting| {
            // A queue that is being destroyed delivers no further events. A queue with a delivered
            // event is not destroyed before the program acknowledges that event.
            let deliver = |queue: Arc<Cq>| {
                let handle = cq_handle(queue.origin.tag())?;
                queue.channel_acks.delivered();
                Some(handle)
            };
            let Some(queue) = channel.step(waiting, deliver)? else {
                return Ok(false);
            };
            // SAFETY: `queue` lives until its event is acknowledged, and no reference to it is
            // made. `cq` and `cq_context` are non-null (checked above) and writable: this
            // function's contract, section Safety.
            unsafe {
                let context = (&raw const (*queue).cq_context).read();
                entry::write(cq, queue)?;
                entry::write(cq_context, context)?;
            }
            Ok(true)
        })
    })
}

/// Acknowledges `nevents` notifications of a completion queue.
///
/// # Safety
/// `cq` must be null or a live completion queue created by this library.
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    entry::short("ibv_ack_cq_events", (), || {
        // SAFETY: `cq` is null or live: the caller's contract, section Safety.
        if let Ok(queue) = unsafe { super::cq::queue_of(cq) } {
            queue.driver.channel_acks.acknowledge(nevents);
        }
    });
}

/// Returns the driver's channel and a use of it; `None` for a null pointer.
///
/// # Errors
/// `EINVAL` if the channel belongs to another context.
///
/// # Safety
/// `channel` must be null or a live channel created by this library.
pub(super) unsafe fn use_channel(
    channel: *mut ibv_comp_channel,
    context: *mut ibv_context,
) -> Result<Option<(Arc<Channel>, Use)>, Errno> {
    if channel.is_null() {
        return Ok(None);
    }
    // SAFETY: `channel` is non-null (checked above) and live: the caller's contract, section
    // Safety. `context` is read without a reference.
    let (state, its) = unsafe {
        (
            object::state_of(channel)?,
            (&raw const (*channel).context).read(),
        )
    };
    if !ptr::eq(its, context) {
        return Err(Errno(libc::EINVAL));
    }
    Ok(Some((Arc::clone(&state.driver), state.users.add())))
}
