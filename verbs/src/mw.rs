//! Memory windows.

use std::ffi::c_int;

use urxe_driver::Mw;
use urxe_driver::mw::WindowType;
use urxe_driver::tables::KEY_VARIANT;
use urxe_proto::host::{Access, WindowBind};
use urxe_proto::ids::{LKey, RKey};
use urxe_proto::work::{Payload, SendOp, SendWr};

use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use};
use super::post::flags_from;
use super::qp::pair_of;

impl Handle for ibv_mw {
    type Ours = Window;
}

/// What stands behind an `ibv_mw`. The window goes first: nothing of the domain is needed after it.
#[derive(Debug)]
pub(super) struct Window {
    driver: Mw,
    _pd: Use,
}

/// `alloc_mw` of a context.
///
/// # Safety
/// `pd` is null or a protection domain of ours.
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    entry::pointer("ibv_alloc_mw", || {
        // SAFETY: the caller's promise.
        let domain = unsafe { object::ours(pd) }?;
        let driver_kind = match kind {
            IBV_MW_TYPE_1 => WindowType::One,
            IBV_MW_TYPE_2 => WindowType::Two,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let driver = Mw::allocate(&domain.driver, driver_kind);
        let shown = ibv_mw {
            // SAFETY: live, as above; this makes no reference.
            context: unsafe { (&raw const (*pd).context).read() },
            pd,
            rkey: driver.rkey().0,
            handle: object::number(),
            r#type: kind,
        };
        let ours = Window {
            driver,
            _pd: domain.users.add(),
        };
        Ok(object::make(shown, ours))
    })
}

/// `dealloc_mw` of a context. What the window was bound to cannot be reached through it any more.
///
/// # Safety
/// `mw` is null or a memory window of ours, and used for nothing else any more.
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    entry::status("ibv_dealloc_mw", || {
        if mw.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise.
        drop(unsafe { object::free(mw) });
        Ok(())
    })
}

/// The bind of a window to what `info` says, with a new low byte for its key.
///
/// # Errors
/// `EINVAL` when there is no region but a range, and `EPERM` for a region of another protection
/// domain, as rdma-core's software provider has it.
///
/// # Safety
/// The pointers are null, or a window and a region of ours.
unsafe fn bind(
    mw: *mut ibv_mw,
    kind: WindowType,
    new_key: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp, Errno> {
    // SAFETY: the caller's promise.
    let window = unsafe { object::ours(mw) }?;
    if window.driver.kind() != kind {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as above; this makes no reference to what the program writes.
    let key = unsafe { (&raw const (*mw).rkey).read() };
    let region = if info.mr.is_null() {
        if info.addr != 0 || info.length != 0 {
            return Err(Errno(libc::EINVAL));
        }
        LKey(0)
    } else {
        // SAFETY: as above.
        let (lkey, domain) = unsafe { object::ours(info.mr) }?.key_and_domain()?;
        if domain != window.driver.pd().id() {
            return Err(Errno(libc::EPERM));
        }
        lkey
    };
    Ok(SendOp::BindMw(WindowBind {
        window: RKey(key),
        new_key: RKey(new_key),
        region,
        addr: info.addr,
        len: info.length,
        access: Access::from_bits_retain(info.mw_access_flags),
    }))
}

/// The bind of a window of type 2: the program chooses the low byte of its key.
///
/// # Errors
/// `EINVAL` for a window of type 1, which `ibv_bind_mw` binds; see [`bind`].
///
/// # Safety
/// As for [`bind`].
pub(super) unsafe fn bind_type_2(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp, Errno> {
    // SAFETY: the caller's promise.
    unsafe { bind(mw, WindowType::Two, rkey, info) }
}

/// `bind_mw` of a context: posts the bind of a window of type 1, which gets a new key at once.
///
/// # Safety
/// The pointers are null, or a queue pair and a window of ours and what to bind it to.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    mw_bind: *mut ibv_mw_bind,
) -> c_int {
    entry::status("ibv_bind_mw", || {
        // SAFETY: the caller's promise; here and below.
        let (pair, asked) = unsafe { (pair_of(qp)?, entry::read(mw_bind)?) };
        if asked.bind_info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: as above; a null or misaligned pointer is caught first.
        let key = unsafe {
            object::ours(mw)?;
            (&raw const (*mw).rkey).read()
        };
        let new_key = (key & !KEY_VARIANT) | (key.wrapping_add(1) & KEY_VARIANT);
        // SAFETY: as above.
        let op = unsafe { bind(mw, WindowType::One, new_key, &asked.bind_info) }?;
        let flags = flags_from(asked.send_flags)?;
        pair.driver.start_posting().post(&SendWr {
            wr_id: asked.wr_id,
            op,
            flags,
            payload: Payload::Sges(&[]),
            dest: None,
        })?;
        // SAFETY: as above; this makes no reference.
        unsafe { (&raw mut (*mw).rkey).write(new_key) };
        Ok(())
    })
}
