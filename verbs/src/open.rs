//! Opening and closing of devices: makes the `ibv_context`, with the functions that the inline
//! functions of `verbs.h` call through it.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use urxe_driver::Context;

use super::context::{COMP_VECTORS, Closable, OpenDevice, closable_of};
use super::device;
use super::entry;
use super::errno::Errno;
use super::events::EVENTS;
use super::ffi::*;
use super::object::{self, Users};
use super::session::Session;
use super::{buf, cq, dm, flow, mr, mw, parent_domain, post, qp, query, srq, wq, xrcd};

/// Opens a device.
///
/// # Safety
/// `device` must be null or a live device of this library's list.
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    entry::pointer("ibv_open_device", || {
        // SAFETY: `device` is null or live: the caller's contract, section Safety.
        unsafe { device::device_of(device) }?;
        let (session, command) = Session::new(device)?;
        // SAFETY: the session is of `device`, which `device_of` accepted and which is live: the
        // caller's contract, section Safety.
        unsafe { open(session, || command) }
    })
}

/// Opens the device of a session. `command` is called last, once nothing can fail any more, and
/// gives the command file.
///
/// # Safety
/// The device of the session must be live and of this library's list.
pub(super) unsafe fn open(
    session: Arc<Session>,
    command: impl FnOnce() -> OwnedFd,
) -> Result<*mut ibv_context, Errno> {
    let device = session.device();
    // SAFETY: `device` is the session's device, which is live: the caller's contract, section
    // Safety.
    let parent = unsafe { device::device_of(device) }?;
    let driver = Context::open(parent).inspect_err(|error| {
        tracing::error!("{} cannot be opened: {error}", parent.name());
    })?;
    device::retain(device.cast());
    let _command = command();
    let mut handle = describe(device);
    handle.context.cmd_fd = _command.as_raw_fd();
    handle.context.async_fd = driver.events().fd().as_raw_fd();
    let state = OpenDevice {
        driver,
        users: Users::default(),
        session,
        _command,
    };
    let events = Arc::clone(state.driver.events());
    let made = object::make(handle, Closable::open(state));
    // SAFETY: `made` was created above and is live. This takes an address and makes no reference.
    let context = unsafe { &raw mut (*made).context };
    EVENTS.add(context, &events);
    Ok(context)
}

/// Makes the C structure of an opened device.
///
/// Functions that are not set stay null. The inline functions of `verbs.h` then report that the
/// device does not support them, or need an object that cannot exist.
fn describe(device: *mut ibv_device) -> verbs_context {
    let mut handle = verbs_context::zeroed();
    handle.sz = size_of::<verbs_context>();
    handle.query_port = Some(query::query_port);
    handle.query_device_ex = Some(query::query_device_ex);
    handle.alloc_buf = Some(buf::ibv_alloc_buf);
    handle.free_buf = Some(buf::ibv_free_buf);
    handle.reg_mr_ex = Some(mr::ibv_reg_mr_ex);
    handle.advise_mr = Some(mr::advise_mr);
    handle.alloc_null_mr = Some(mr::alloc_null_mr);
    handle.alloc_dm = Some(dm::alloc_dm);
    handle.free_dm = Some(dm::free_dm);
    handle.reg_dm_mr = Some(mr::reg_dm_mr);
    handle.ibv_create_flow = Some(flow::create_flow);
    handle.ibv_destroy_flow = Some(flow::destroy_flow);
    handle.create_counters = Some(flow::create_counters);
    handle.destroy_counters = Some(flow::destroy_counters);
    handle.attach_counters_point_flow = Some(flow::attach_counters_point_flow);
    handle.read_counters = Some(flow::read_counters);
    handle.create_wq = Some(wq::create_wq);
    handle.modify_wq = Some(wq::modify_wq);
    handle.destroy_wq = Some(wq::destroy_wq);
    handle.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    handle.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
    handle.alloc_td = Some(parent_domain::alloc_td);
    handle.dealloc_td = Some(parent_domain::dealloc_td);
    handle.alloc_parent_domain = Some(parent_domain::alloc_parent_domain);
    handle.query_rt_values = Some(query::query_rt_values);
    handle.create_cq_ex = Some(cq::create_cq_ex);
    handle.modify_cq = Some(cq::modify_cq);
    handle.modify_qp_rate_limit = Some(qp::modify_qp_rate_limit);
    handle.create_qp_ex = Some(qp::create_qp_ex);
    handle.create_srq_ex = Some(srq::create_srq_ex);
    handle.get_srq_num = Some(srq::get_srq_num);
    handle.open_xrcd = Some(xrcd::open_xrcd);
    handle.close_xrcd = Some(xrcd::close_xrcd);
    handle.open_qp = Some(xrcd::open_qp);

    let context = &mut handle.context;
    context.device = device;
    context.num_comp_vectors = COMP_VECTORS;
    context.abi_compat = VERBS_ABI_IS_EXTENDED;
    context.ops._compat_query_device = Some(query::ibv_query_device);
    context.ops._compat_query_port = Some(query::ibv_query_port);
    context.ops.alloc_mw = Some(mw::alloc_mw);
    context.ops.bind_mw = Some(mw::bind_mw);
    context.ops.dealloc_mw = Some(mw::dealloc_mw);
    context.ops.poll_cq = Some(cq::poll_cq);
    context.ops.req_notify_cq = Some(cq::req_notify_cq);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    context.ops.post_srq_recv = Some(post::post_srq_recv);
    handle
}

/// Closes a device.
///
/// As in rdma-core this succeeds while objects of the device are left, closes the descriptors of
/// the context, and ends these objects: queue pairs leave the network, and registrations end. If a
/// context that was imported from this one is open, or that this one was imported from, the objects
/// end when the last of them is closed. The memory of the context stays, and that of the objects:
/// unlike in rdma-core they may still be destroyed. Calls that need the device fail with `EBADF`.
///
/// # Safety
/// `context` must be null or from [`ibv_open_device`] or `ibv_import_device`, and not closed yet.
/// No other call may use it now or later, except through its remaining objects.
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    entry::status_or_minus_one("ibv_close_device", || {
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        let opened = unsafe { closable_of(context) }?.take()?;
        // SAFETY: `context` is non-null, since `closable_of` accepted it, and live: the caller's
        // contract, section Safety. The member is read without a reference.
        let device = unsafe { (&raw const (*context).device).read() };
        EVENTS.remove(context);
        match opened.users.count() {
            // SAFETY: `context` is live, and no other call uses it: the caller's contract, section
            // Safety. No object refers to it.
            0 => drop(unsafe { object::free(verbs_context_of(context)) }),
            left => tracing::debug!("a device was closed while {left} of its objects were left"),
        }
        drop(opened);
        device::release(device.cast());
        Ok(())
    })
}
