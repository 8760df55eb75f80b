//! Asynchronous events.

use std::ffi::c_int;
use std::ptr;

use urxe_driver::events::{AsyncEvent, AsyncEvents, EventObject};
use urxe_driver::waiting::Waiting;

use super::cancellation;
use super::cq::{queue_of, shown_queue};
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::qp::{pair_of, shown_pair};
use super::srq::{shared_of, shown_shared};
use super::waited::Waited;

/// Where threads wait for them, by the opened device.
pub(super) static EVENTS: Waited<AsyncEvents> = Waited::new();

/// What the program is told of an event, which then counts as delivered. `None` for one of an
/// object that is being destroyed.
fn deliver(event: AsyncEvent) -> Option<ibv_async_event> {
    let element = match event.object {
        EventObject::Qp(pair) => {
            let qp = shown_pair(pair.tag())?;
            pair.async_acks.delivered();
            ibv_async_event_element { qp }
        }
        EventObject::Share(share) => {
            let qp = shown_pair(share.tag())?;
            share.async_acks.delivered();
            ibv_async_event_element { qp }
        }
        EventObject::Cq(queue) => {
            let cq = shown_queue(&queue)?;
            queue.async_acks.delivered();
            ibv_async_event_element { cq }
        }
        EventObject::Srq(queue) => {
            let srq = shown_shared(&queue)?;
            queue.async_acks.delivered();
            ibv_async_event_element { srq }
        }
        EventObject::Port(number) => ibv_async_event_element {
            port_num: c_int::from(number),
        },
        EventObject::Device => ibv_async_event_element {
            qp: ptr::null_mut(),
        },
    };
    Some(ibv_async_event {
        element,
        event_type: event.kind as ibv_event_type,
    })
}

/// Takes the next event, waiting for it unless the descriptor has `O_NONBLOCK`. `EBADF` when the
/// device was closed.
///
/// # Safety
/// `event` is null or room for an event.
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    cancellation::wait("ibv_get_async_event", || {
        let events = EVENTS.find(context)?;
        if event.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        Ok(move |waiting: &mut Waiting| {
            let Some(next) = events.step(waiting, deliver)? else {
                return Ok(false);
            };
            // SAFETY: `event` is valid for writing an event: this function's contract, section Safety.
            unsafe { entry::write(event, next) }?;
            Ok(true)
        })
    })
}

/// # Safety
/// `event` is null or an event that was got and is not acknowledged yet.
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    entry::value("ibv_ack_async_event", (), || {
        // SAFETY: the caller's promise.
        let Ok(event) = (unsafe { entry::read(event) }) else {
            return;
        };
        match event.event_type {
            IBV_EVENT_CQ_ERR => {
                // SAFETY: this event's element is a queue, which lives until it is acknowledged.
                if let Ok(queue) = unsafe { queue_of(event.element.cq) } {
                    queue.driver.async_acks.acknowledge(1);
                }
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                // SAFETY: these events' element is a shared receive queue, which lives as above.
                if let Ok(queue) = unsafe { shared_of(event.element.srq) } {
                    queue.driver.async_acks.acknowledge(1);
                }
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                // SAFETY: these events' element is a queue pair, which lives as above.
                if let Ok(pair) = unsafe { pair_of(event.element.qp) } {
                    pair.async_acks().acknowledge(1);
                }
            }
            _ => {}
        }
    });
}
