//! The list of devices: `ibv_get_device_list(3)` and the functions that take an `ibv_device`.
//!
//! A present device keeps one `ibv_device`: programs compare the pointers, and some use them after
//! they have freed the list. The `ibv_device` of a removed interface is freed when no list
//! and no context refers to it.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urxe_driver::Device;
use urxe_driver::device::{devices, explain_empty_selection, interfaces_without_device};
use urxe_driver::per_process::PerProcess;

use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::log;
use super::object::{self, Handle};

impl Handle for verbs_device {
    type State = Arc<Device>;
}

/// All `ibv_device` that the program has been given. `refcount` in each counts the lists and
/// contexts that refer to it, and changes only under this lock.
static HANDLES: PerProcess<Mutex<Handles>> = PerProcess::new();

#[derive(Debug, Default)]
struct Handles(Vec<*mut verbs_device>);

// SAFETY: the pointers are to `Object`s, whose state is `Sync`, and whose `refcount` changes only
// under the lock around `Handles`.
unsafe impl Send for Handles {}

fn handles() -> MutexGuard<'static, Handles> {
    let handles = HANDLES.get(Mutex::default);
    handles.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handles {
    fn device(pointer: *mut verbs_device) -> &'static Arc<Device> {
        // SAFETY: every pointer in the list is to a live object, because it leaves the list before
        // the object is freed. No caller keeps the result beyond that.
        unsafe { object::state_of(pointer) }.expect("no null pointer is in the list")
    }

    fn refcount(pointer: *mut verbs_device) -> *mut c_int {
        // SAFETY: the caller's pointer is to a live `verbs_device`. This takes the address of a
        // member and makes no reference.
        unsafe { &raw mut (*pointer).refcount }
    }

    /// Returns the object of a device, with one more reference.
    fn get(&mut self, device: &Arc<Device>) -> *mut verbs_device {
        let known = |&pointer: &*mut verbs_device| Arc::ptr_eq(Self::device(pointer), device);
        let pointer = self.0.iter().copied().find(known).unwrap_or_else(|| {
            let pointer = object::make(describe(device), Arc::clone(device));
            self.0.push(pointer);
            pointer
        });
        // SAFETY: `pointer` is in the list, so live; the list is locked, which guards `refcount`.
        unsafe { *Self::refcount(pointer) += 1 };
        pointer
    }

    /// Frees the objects without references whose devices are not in `present`.
    fn free_unused(&mut self, present: &[Arc<Device>]) {
        self.0.retain(|&pointer| {
            let device = Self::device(pointer);
            // SAFETY: `pointer` is in the list, so live; the list is locked, which guards
            // `refcount`.
            let used = unsafe { *Self::refcount(pointer) } > 0;
            let keep = used || present.iter().any(|other| Arc::ptr_eq(other, device));
            if !keep {
                // SAFETY: `pointer` is from `object::make` and leaves the list now. No list of the
                // program and no context refers to it, since `refcount` is 0.
                drop(unsafe { object::free(pointer) });
            }
            keep
        });
    }
}

/// Adds a reference to a device that the program has.
pub(super) fn retain(device: *mut verbs_device) {
    let _handles = handles();
    // SAFETY: the program has `device`, so it is live; the list is locked, which guards `refcount`.
    unsafe { *Handles::refcount(device) += 1 };
}

/// Removes a reference to a device.
pub(super) fn release(device: *mut verbs_device) {
    let _handles = handles();
    // SAFETY: the caller has a reference to `device`, so it is live; the list is locked, which
    // guards `refcount`.
    unsafe { *Handles::refcount(device) -= 1 };
}

/// Returns the library's state behind an `ibv_device`, which is the first member of a
/// `verbs_device`.
///
/// # Errors
/// `EINVAL` if `device` is null.
///
/// # Safety
/// If `device` is not null, it must be from [`ibv_get_device_list`] and stay live for `'a`.
pub(super) unsafe fn device_of<'a>(device: *mut ibv_device) -> Result<&'a Arc<Device>, Errno> {
    const { assert!(offset_of!(verbs_device, device) == 0) };
    // SAFETY: a `verbs_device` begins with its `ibv_device` (asserted above). It is null or live
    // for `'a`: the caller's contract, section Safety.
    unsafe { object::state_of(device.cast::<verbs_device>()) }
}

/// The start of the operations of rdma-core's drivers, whose first member is a name. Its address
/// lets such a driver recognize that the device is not its own.
#[repr(C)]
struct DeviceOps {
    name: *const c_char,
    none: [*const c_void; 31],
}

// SAFETY: the pointers are to constants, which are never written.
unsafe impl Sync for DeviceOps {}

static OPS: DeviceOps = DeviceOps {
    name: c"urxe".as_ptr(),
    none: [ptr::null(); 31],
};

/// Makes the C structure of a device. The paths are those of a kernel device; under `urxe run` the
/// files exist.
fn describe(device: &Device) -> verbs_device {
    let mut handle = verbs_device::zeroed();
    handle.device.node_type = IBV_NODE_CA;
    handle.device.transport_type = IBV_TRANSPORT_IB;
    let name = device.name();
    handle.device.name = c_string(name);
    handle.device.dev_name = c_string(name);
    handle.device.dev_path = c_string(&format!("/sys/class/infiniband_verbs/{name}"));
    handle.device.ibdev_path = c_string(&format!("/sys/class/infiniband/{name}"));
    handle.ops = (&raw const OPS).cast();
    handle
}

/// Converts a text to a C string, cut to fit with a NUL.
pub(super) fn c_string<const N: usize>(text: &str) -> [c_char; N] {
    let mut array: [c_char; N] = [0; N];
    for (to, from) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    array
}

/// Returns the devices. Logs errors, and the reason if there is none.
///
/// # Errors
/// `EINVAL` if the environment selects devices in a way that is not understood.
pub(super) fn present() -> Result<Vec<Arc<Device>>, Errno> {
    log::start();
    let present = devices().inspect_err(|error| {
        tracing::error!("the devices cannot be listed: {error}");
    })?;
    if present.is_empty() {
        say_why_none();
    }
    Ok(present)
}

/// Returns a null-terminated list of the devices. `num_devices`, unless null, is set to their
/// number.
///
/// # Safety
/// `num_devices` must be null or point to a writable `int`.
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    entry::pointer("ibv_get_device_list", || {
        let present = present()?;
        // The list is from the C library, zeroed: its end is found without a length, and a program
        // may free it with `free`.
        // SAFETY: `calloc` has no preconditions; it checks its product for overflow.
        let list = unsafe { libc::calloc(present.len() + 1, size_of::<*mut ibv_device>()) };
        let list = list.cast::<*mut ibv_device>();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        let mut handles = handles();
        for (index, device) in present.iter().enumerate() {
            // SAFETY: `index` is less than the number of elements that were allocated.
            unsafe { *list.add(index) = handles.get(device).cast() };
        }
        handles.free_unused(&present);
        if !num_devices.is_null() {
            // SAFETY: `num_devices` is non-null (checked above) and writable: the caller's
            // contract, section Safety.
            unsafe { entry::write(num_devices, present.len() as c_int)? };
        }
        Ok(list)
    })
}

fn say_why_none() {
    if let Some(why) = explain_empty_selection() {
        tracing::warn!("{why}");
        return;
    }
    let unusable = interfaces_without_device().unwrap_or_default();
    if unusable.is_empty() {
        tracing::warn!("no devices: this network namespace has no interface");
    }
    for (interface, why) in unusable {
        tracing::warn!("no device for interface {interface}: {why}");
    }
}

/// Frees a list of devices.
///
/// # Safety
/// `list` must be null or from [`ibv_get_device_list`], and not freed yet.
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    entry::value("ibv_free_device_list", (), || {
        let mut at = list;
        // SAFETY: `at` is null or within the list, which ends with a null pointer: the caller's
        // contract, section Safety.
        while let Some(device) = unsafe { at.as_ref() }.filter(|device| !device.is_null()) {
            release(device.cast());
            at = at.wrapping_add(1);
        }
        // SAFETY: `list` is null or from `calloc`, and not freed yet: the caller's contract,
        // section Safety.
        unsafe { libc::free(list.cast()) };
    });
}

/// Returns the name of a device. The string is valid as long as the device.
///
/// # Safety
/// `device` must be null or a live device of this library's list.
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    entry::pointer("ibv_get_device_name", || {
        if device.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `device` is non-null (checked above) and live: the caller's contract, section
        // Safety. This takes an address and makes no reference.
        Ok(unsafe { &raw mut (*device).name }.cast::<c_char>())
    })
}

/// Returns the node GUID in network byte order, or 0 if `device` is null.
///
/// # Safety
/// `device` must be null or a live device of this library's list.
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    entry::value("ibv_get_device_guid", 0, || {
        // SAFETY: `device` is null or live: the caller's contract, section Safety.
        unsafe { device_of(device) }.map_or(0, |device| u64::from_ne_bytes(device.guid()))
    })
}

/// Returns -1: the kernel has no index for a device of this library.
///
/// A program uses the index to query the kernel about the device, over `NETLINK_RDMA`. Any other
/// number would be that of a different device, or of none.
///
/// # Safety
/// `device` must be null or a live device of this library's list.
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    entry::number("ibv_get_device_index", || {
        // SAFETY: `device` is null or live: the caller's contract, section Safety.
        unsafe { device_of(device) }.map(|_| -1)
    })
}
