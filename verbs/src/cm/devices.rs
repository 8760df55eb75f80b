//! Devices as identifiers use them: opened once for all, with a protection domain that they share.

use std::ffi::c_int;
use std::mem::size_of;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urxe_driver::Device;
use urxe_driver::per_process::PerProcess;

use crate::context::ibv_open_device;
use crate::device::{device_of, ibv_free_device_list, ibv_get_device_list};
use crate::entry;
use crate::errno::{self, Errno};
use crate::ffi::*;
use crate::pd::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::xrcd::{close_xrcd, open_xrcd};

/// An opened device. It stays open, as with librdmacm: programs keep the contexts.
#[derive(Debug)]
struct Opened {
    device: Arc<Device>,
    context: *mut ibv_context,
    /// What queue pairs are in whose program says nothing; null while nobody uses the device.
    pd: *mut ibv_pd,
    /// Of extended connections; null until one is asked for.
    xrcd: *mut ibv_xrcd,
    users: usize,
}

// SAFETY: the pointers are to objects that any thread may use.
unsafe impl Send for Opened {}

static OPENED: PerProcess<Mutex<Vec<Opened>>> = PerProcess::new();

fn opened() -> MutexGuard<'static, Vec<Opened>> {
    let opened = OPENED.get(Mutex::default);
    opened.lock().unwrap_or_else(PoisonError::into_inner)
}

/// That an identifier uses a device.
#[derive(Debug)]
pub(super) struct DeviceUse {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
}

// SAFETY: as above.
unsafe impl Send for DeviceUse {}

impl DeviceUse {
    /// One use more of a device.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn of(device: &Arc<Device>) -> Result<DeviceUse, Errno> {
        let mut opened = opened();
        let index = open(&mut opened, device)?;
        let entry = &mut opened[index];
        if entry.pd.is_null() {
            // SAFETY: an opened device.
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
    /// The domain of extended connections that the device's identifiers share.
    ///
    /// # Errors
    /// When it cannot be opened.
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
            // SAFETY: an opened device, and attributes.
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
        // The program may have memory left in it: then it stays for whoever comes next.
        // SAFETY: a domain that no identifier uses any more.
        if entry.users == 0 && unsafe { ibv_dealloc_pd(entry.pd) } == 0 {
            entry.pd = ptr::null_mut();
        }
        // SAFETY: as above.
        if entry.users == 0 && !entry.xrcd.is_null() && unsafe { close_xrcd(entry.xrcd) } == 0 {
            entry.xrcd = ptr::null_mut();
        }
    }
}

/// Where a device stands in the list; opens it the first time.
fn open(opened: &mut Vec<Opened>, device: &Arc<Device>) -> Result<usize, Errno> {
    let known = |entry: &Opened| Arc::ptr_eq(&entry.device, device);
    if let Some(index) = opened.iter().position(known) {
        return Ok(index);
    }
    let list = List::get()?;
    let found = list.devices().find(|shown| {
        // SAFETY: the list holds devices.
        unsafe { device_of(*shown) }.is_ok_and(|other| Arc::ptr_eq(other, device))
    });
    let shown = found.ok_or(Errno(libc::ENODEV))?;
    // SAFETY: as above.
    let context = errno::unless_null(unsafe { ibv_open_device(shown) })?;
    opened.push(Opened {
        device: Arc::clone(device),
        context,
        pd: ptr::null_mut(),
        xrcd: ptr::null_mut(),
        users: 0,
    });
    Ok(opened.len() - 1)
}

/// The list of devices, until it is dropped.
struct List(*mut *mut ibv_device);

impl List {
    fn get() -> Result<List, Errno> {
        // SAFETY: the number is not asked for.
        let list = unsafe { ibv_get_device_list(ptr::null_mut()) };
        Ok(List(errno::unless_null(list)?))
    }

    fn devices(&self) -> impl Iterator<Item = *mut ibv_device> {
        (0..).map_while(|index| {
            // SAFETY: the list ends in a null pointer, which is not passed.
            let shown = unsafe { *self.0.add(index) };
            (!shown.is_null()).then_some(shown)
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: got once, freed once.
        unsafe { ibv_free_device_list(self.0) };
    }
}

/// All devices, opened, and a null pointer after the last. `num_devices`, unless null, is set to how
/// many.
///
/// # Safety
/// `num_devices` is null or good for an `int`.
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let result = entry::pointer("rdma_get_devices", || {
        let list = List::get()?;
        let mut contexts = Vec::new();
        let mut opened = opened();
        for shown in list.devices() {
            // SAFETY: the list holds devices.
            let device = unsafe { device_of(shown) }?;
            match open(&mut opened, device) {
                Ok(index) => contexts.push(opened[index].context),
                Err(error) => tracing::warn!("{} is left out: {error}", device.name()),
            }
        }
        if contexts.is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        // Before there is anything that a failure would leave behind.
        if !num_devices.is_null() {
            // SAFETY: good by the caller's promise.
            unsafe { entry::write(num_devices, contexts.len() as c_int)? };
        }
        // SAFETY: a size that cannot overflow: there are not that many devices.
        let array = unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>()) };
        let array = array.cast::<*mut ibv_context>();
        if array.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: within what was allocated.
        unsafe { ptr::copy_nonoverlapping(contexts.as_ptr(), array, contexts.len()) };
        Ok(array)
    });
    if result.is_null() && !num_devices.is_null() {
        // SAFETY: as above.
        unsafe { num_devices.write_unaligned(0) };
    }
    result
}

/// # Safety
/// `list` is null or from [`rdma_get_devices`], and not freed yet.
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    entry::value("rdma_free_devices", (), || {
        // SAFETY: allocated with calloc, or null.
        unsafe { libc::free(list.cast()) };
    });
}
