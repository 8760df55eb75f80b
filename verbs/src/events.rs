//! Asynchronous events.

use std::ffi::c_int;
use std::ptr;

use urxe_driver::events::{AsyncEvent, AsyncEvents, EventObject};
use urxe_driver::waiting::Waiting;
use urxe_net::thread;

use super::cancellation;
use super::cq::{cq_handle, queue_of};
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::qp::{pair_of, qp_handle};
use super::srq::{shared_of, srq_handle};
use super::wait_registry::WaitRegistry;
use super::wq::{work_queue_of, wq_handle};

/// The event queues at which threads of the program may wait, by opened device.
pub(super) static EVENTS: WaitRegistry<AsyncEvents> = WaitRegistry::new();

/// Converts an event for the program and counts it as delivered. `None` if its object is being
/// destroyed.
fn deliver(event: AsyncEvent) -> Option<ibv_async_event> {
    let element = match event.object {
        EventObject::Qp(origin) | EventObject::Share(origin) => {
            let qp = qp_handle(origin.tag())?;
            origin.acks.delivered();
            ibv_async_event_element { qp }
        }
        EventObject::Cq(origin) => {
            let cq = cq_handle(origin.tag())?;
            origin.acks.delivered();
            ibv_async_event_element { cq }
        }
        EventObject::Srq(origin) => {
            let srq = srq_handle(origin.tag())?;
            origin.acks.delivered();
            ibv_async_event_element { srq }
        }
        EventObject::Wq(origin) => {
            let wq = wq_handle(origin.tag())?;
            origin.acks.delivered();
            ibv_async_event_element { wq }
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

/// Returns the next event, after a wait unless the descriptor has `O_NONBLOCK`.
///
/// `EBADF` if the device was closed.
///
/// # Safety
/// `event` must be null or point to a writable event.
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
            let next = thread::without_cancellation(|| events.step(waiting, deliver))?;
            let Some(next) = next else {
                return Ok(false);
            };
            // SAFETY: `event` is non-null (checked above) and writable: the caller's contract,
            // section Safety.
            unsafe { entry::write(event, next) }?;
            Ok(true)
        })
    })
}

/// Acknowledges an asynchronous event.
///
/// # Safety
/// `event` must be null or point to an event from [`ibv_get_async_event`] that has not been
/// acknowledged.
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    entry::value("ibv_ack_async_event", (), || {
        // SAFETY: `event` is null or readable: the caller's contract, section Safety.
        let Ok(event) = (unsafe { entry::read(event) }) else {
            return;
        };
        match event.event_type {
            IBV_EVENT_CQ_ERR => {
                // SAFETY: `cq` is the element of this event type. The queue lives until the event
                // is acknowledged.
                if let Ok(queue) = unsafe { queue_of(event.element.cq) } {
                    queue.driver.origin.acks.acknowledge(1);
                }
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                // SAFETY: `srq` is the element of these event types. The queue lives until the
                // event is acknowledged.
                if let Ok(queue) = unsafe { shared_of(event.element.srq) } {
                    queue.driver.origin.acks.acknowledge(1);
                }
            }
            IBV_EVENT_WQ_FATAL => {
                // SAFETY: `wq` is the element of this event type. The queue lives until the event
                // is acknowledged.
                if let Ok(queue) = unsafe { work_queue_of(event.element.wq) } {
                    queue.driver.origin.acks.acknowledge(1);
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
                // SAFETY: `qp` is the element of these event types. The queue pair lives until the
                // event is acknowledged.
                if let Ok(pair) = unsafe { pair_of(event.element.qp) } {
                    pair.async_acks().acknowledge(1);
                }
            }
            _ => {}
        }
    });
}
