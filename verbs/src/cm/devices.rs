//! Devices of identifiers: opened once, with a shared protection domain.

use std::ffi::c_int;
use std::mem::size_of;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urxe_driver::Device;
use urxe_driver::per_process::PerProcess;

use crate::device::{device_of, ibv_free_device_list, ibv_get_device_list};
use crate::entry;
use crate::errno::{self, Errno};
use crate::ffi::*;
use crate::open::ibv_open_device;
use crate::pd::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::xrcd::{close_xrcd, open_xrcd};

/// An opened device. It stays open, as with librdmacm: applications keep the contexts.
#[derive(Debug)]
struct Opened {
    device: Arc<Device>,
    context: *mut ibv_context,
    /// The default protection domain of queue pairs; null while no identifier uses the device.
    pd: *mut ibv_pd,
    /// The XRC domain; null until one is requested.
    xrcd: *mut ibv_xrcd,
    users: usize,
}

// SAFETY: the pointers refer to verbs objects, which any thread may use.
unsafe impl Send for Opened {}

static OPENED: PerProcess<Mutex<Vec<Opened>>> = PerProcess::new();

fn opened() -> MutexGuard<'static, Vec<Opened>> {
    let opened = OPENED.get(Mutex::default);
    opened.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A use of a device by an identifier.
#[derive(Debug)]
pub(super) struct DeviceUse {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
}

// SAFETY: the pointers refer to verbs objects, which any thread may use.
unsafe impl Send for DeviceUse {}

impl DeviceUse {
    /// Counts another use of a device, and opens it if necessary.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn of(device: &Arc<Device>) -> Result<DeviceUse, Errno> {
        let mut opened = opened();
        let index = open(&mut opened, device)?;
        let entry = &mut opened[index];
        if entry.pd.is_null() {
            // SAFETY: `open` returned the context of a device that stays open.
            entry.pd = errno::unless_null(unsafe { ibv_alloc_pd(entry.context) })?;
        }
        entry.users += 1;
        Ok(DeviceUse {
            context: entry.context,
            pd: entry.pd,
        })
    }
}

impl DeviceUse {
    /// Returns the XRC domain that the device's identifiers share, and opens it if necessary.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn xrcd(&self) -> Result<*mut ibv_xrcd, Errno> {
        let mut opened = opened();
        let entry = opened
            .iter_mut()
            .find(|entry| ptr::eq(entry.context, self.context))
            .ok_or(Errno(libc::ENODEV))?;
        if entry.xrcd.is_null() {
            let mut attr = ibv_xrcd_init_attr {
                comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                fd: -1,
                oflags: libc::O_CREAT,
            };
            // SAFETY: `context` is an open device's, and `attr` a local variable.
            let xrcd = unsafe { open_xrcd(entry.context, &raw mut attr) };
            entry.xrcd = errno::unless_null(xrcd)?;
        }
        Ok(entry.xrcd)
    }
}

impl Drop for DeviceUse {
    fn drop(&mut self) {
        let mut opened = opened();
        let Some(entry) = opened
            .iter_mut()
            .find(|entry| ptr::eq(entry.context, self.context))
        else {
            return;
        };
        entry.users -= 1;
        // If the application still has objects in it, deallocation fails, and later users share it.
        // SAFETY: `pd` was allocated here, and no identifier uses it.
        if entry.users == 0 && unsafe { ibv_dealloc_pd(entry.pd) } == 0 {
            entry.pd = ptr::null_mut();
        }
        // SAFETY: `xrcd` was opened here, and no identifier uses it.
        if entry.users == 0 && !entry.xrcd.is_null() && unsafe { close_xrcd(entry.xrcd) } == 0 {
            entry.xrcd = ptr::null_mut();
        }
    }
}

/// Returns the index of a device in the list, and opens it the first time.
fn open(opened: &mut Vec<Opened>, device: &Arc<Device>) -> Result<usize, Errno> {
    let known = |entry: &Opened| Arc::ptr_eq(&entry.device, device);
    if let Some(index) = opened.iter().position(known) {
        return Ok(index);
    }
    let list = List::get()?;
    let found = list.devices().find(|handle| {
        // SAFETY: the list contains live devices.
        unsafe { device_of(*handle) }.is_ok_and(|other| Arc::ptr_eq(other, device))
    });
    let handle = found.ok_or(Errno(libc::ENODEV))?;
    // SAFETY: `handle` is a live device of `list`.
    let context = errno::unless_null(unsafe { ibv_open_device(handle) })?;
    opened.push(Opened {
        device: Arc::clone(device),
        context,
        pd: ptr::null_mut(),
        xrcd: ptr::null_mut(),
        users: 0,
    });
    Ok(opened.len() - 1)
}

/// The list of devices, freed when dropped.
struct List(*mut *mut ibv_device);

impl List {
    fn get() -> Result<List, Errno> {
        // SAFETY: a null pointer is allowed: the number is not requested.
        let list = unsafe { ibv_get_device_list(ptr::null_mut()) };
        Ok(List(errno::unless_null(list)?))
    }

    fn devices(&self) -> impl Iterator<Item = *mut ibv_device> {
        (0..).map_while(|index| {
            // SAFETY: the list ends with a null pointer, and iteration stops there.
            let handle = unsafe { *self.0.add(index) };
            (!handle.is_null()).then_some(handle)
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from `ibv_get_device_list` and is freed once.
        unsafe { ibv_free_device_list(self.0) };
    }
}

/// Returns all devices, opened, followed by a null pointer.
///
/// `num_devices`, unless null, is set to their number.
///
/// # Safety
/// `num_devices` must be null or valid for writing an `int`.
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let result = entry::pointer("rdma_get_devices", || {
        let list = List::get()?;
        let mut contexts = Vec::new();
        let mut opened = opened();
        for handle in list.devices() {
            // SAFETY: the list contains live devices.
            let device = unsafe { device_of(handle) }?;
            match open(&mut opened, device) {
                Ok(index) => contexts.push(opened[index].context),
                Err(error) => tracing::warn!("{} is left out: {error}", device.name()),
            }
        }
        if contexts.is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        // First, so that a failure leaks nothing.
        if !num_devices.is_null() {
            // SAFETY: `num_devices` is not null and writable: the caller's contract, section
            // Safety.
            unsafe { entry::write(num_devices, contexts.len() as c_int)? };
        }
        // SAFETY: `calloc` accepts any size, and the number of devices cannot overflow it.
        let array = unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>()) };
        let array = array.cast::<*mut ibv_context>();
        if array.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: `array` was allocated for one element more than `contexts` has, and is new.
        unsafe { ptr::copy_nonoverlapping(contexts.as_ptr(), array, contexts.len()) };
        Ok(array)
    });
    if result.is_null() && !num_devices.is_null() {
        // SAFETY: `num_devices` is not null and writable: the caller's contract, section Safety.
        unsafe { num_devices.write_unaligned(0) };
    }
    result
}

/// # Safety
/// `list` must be null, or returned by [`rdma_get_devices`] and not be freed yet.
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    entry::value("rdma_free_devices", (), || {
        // SAFETY: `list` is null or was allocated by `calloc` and not freed: the caller's contract,
        // section Safety.
        unsafe { libc::free(list.cast()) };
    });
}
