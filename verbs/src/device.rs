//! The list of devices (`ibv_get_device_list(3)` and what takes an `ibv_device`).
//!
//! A device that is there has one `ibv_device` for good: programs compare the pointers, and some use
//! them after they have freed the list. One whose interface is gone goes with its last user.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urxe_driver::Device;
use urxe_driver::device::{devices, unusable_interfaces};
use urxe_driver::per_process::PerProcess;

use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::log;
use super::object::{self, Handle};

impl Handle for verbs_device {
    type Ours = Arc<Device>;
}

/// All `ibv_device` that were shown to the program. `refcount` in each counts the lists and contexts
/// that it is in, and changes only while this is locked.
static SHOWN: PerProcess<Mutex<Shown>> = PerProcess::new();

#[derive(Debug, Default)]
struct Shown(Vec<*mut verbs_device>);

// SAFETY: the pointers are to objects that any thread may use.
unsafe impl Send for Shown {}

fn shown() -> MutexGuard<'static, Shown> {
    let shown = SHOWN.get(Mutex::default);
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shown {
    fn device(pointer: *mut verbs_device) -> &'static Arc<Device> {
        // SAFETY: pointers in the list are live objects; they leave it when they are freed, and
        // nobody keeps what is returned beyond that.
        unsafe { object::ours(pointer) }.expect("no null pointer is in the list")
    }

    fn refcount(pointer: *mut verbs_device) -> *mut c_int {
        // SAFETY: as above; this makes no reference.
        unsafe { &raw mut (*pointer).refcount }
    }

    /// The object for a device, with one reference more.
    fn take(&mut self, device: &Arc<Device>) -> *mut verbs_device {
        let known = |&pointer: &*mut verbs_device| Arc::ptr_eq(Self::device(pointer), device);
        let pointer = self.0.iter().copied().find(known).unwrap_or_else(|| {
            let pointer = object::make(describe(device), Arc::clone(device));
            self.0.push(pointer);
            pointer
        });
        // SAFETY: live, and the list is locked.
        unsafe { *Self::refcount(pointer) += 1 };
        pointer
    }

    /// Frees what nobody uses of devices that are gone.
    fn forget_all_but(&mut self, present: &[Arc<Device>]) {
        self.0.retain(|&pointer| {
            let device = Self::device(pointer);
            // SAFETY: live, and the list is locked.
            let used = unsafe { *Self::refcount(pointer) } > 0;
            let keep = used || present.iter().any(|other| Arc::ptr_eq(other, device));
            if !keep {
                // SAFETY: it leaves the list, and no list of the program's and no context has it.
                drop(unsafe { object::free(pointer) });
            }
            keep
        });
    }
}

/// One reference more to a device that the program has.
pub(super) fn retain(device: *mut verbs_device) {
    let _shown = shown();
    // SAFETY: the program has it, so it is live; the list is locked.
    unsafe { *Shown::refcount(device) += 1 };
}

/// One reference less.
pub(super) fn release(device: *mut verbs_device) {
    let _shown = shown();
    // SAFETY: the caller has a reference, so it is live; the list is locked.
    unsafe { *Shown::refcount(device) -= 1 };
}

/// The object of which an `ibv_device` is the first member.
///
/// # Errors
/// `EINVAL` if it is null.
///
/// # Safety
/// A pointer that is not null is from [`ibv_get_device_list`], and in use while the result is.
pub(super) unsafe fn device_of<'a>(device: *mut ibv_device) -> Result<&'a Arc<Device>, Errno> {
    const { assert!(offset_of!(verbs_device, device) == 0) };
    // SAFETY: a verbs_device begins with its ibv_device; the rest is the caller's promise.
    unsafe { object::ours(device.cast::<verbs_device>()) }
}

/// What begins like the operations that rdma-core's drivers have there, whose first member is a
/// name. The address says that the device is none of theirs.
#[repr(C)]
struct DeviceOps {
    name: *const c_char,
    none: [*const c_void; 31],
}

// SAFETY: constants that nobody writes to.
unsafe impl Sync for DeviceOps {}

static OPS: DeviceOps = DeviceOps {
    name: c"urxe".as_ptr(),
    none: [ptr::null(); 31],
};

/// What a program sees of a device. The paths are what they would be of a device of the kernel's;
/// under `urxe run` the files are there.
fn describe(device: &Device) -> verbs_device {
    let mut shown = verbs_device::zeroed();
    shown.device.node_type = IBV_NODE_CA;
    shown.device.transport_type = IBV_TRANSPORT_IB;
    let name = device.name();
    shown.device.name = c_string(name);
    shown.device.dev_name = c_string(name);
    shown.device.dev_path = c_string(&format!("/sys/class/infiniband_verbs/{name}"));
    shown.device.ibdev_path = c_string(&format!("/sys/class/infiniband/{name}"));
    shown.ops = (&raw const OPS).cast();
    shown
}

/// As much of a text as fits, with a NUL.
pub(super) fn c_string<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from.cast_signed();
    }
    array
}

/// The devices, and a null pointer after the last. `num_devices`, unless null, is set to how many.
///
/// # Safety
/// `num_devices` is null or good for an `int`.
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    entry::pointer("ibv_get_device_list", || {
        log::start();
        let present = devices().inspect_err(|error| {
            tracing::error!("the network interfaces cannot be listed: {error}");
        })?;
        if present.is_empty() {
            say_why_none();
        }
        // From the C library, which zeros it: the end needs no length to be found, and a program
        // that frees the list by itself does no harm.
        // SAFETY: a size that cannot overflow: there are not that many interfaces.
        let list = unsafe { libc::calloc(present.len() + 1, size_of::<*mut ibv_device>()) };
        let list = list.cast::<*mut ibv_device>();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        let mut shown = shown();
        for (index, device) in present.iter().enumerate() {
            // SAFETY: within what was allocated.
            unsafe { *list.add(index) = shown.take(device).cast() };
        }
        shown.forget_all_but(&present);
        if !num_devices.is_null() {
            // SAFETY: good by the caller's promise.
            unsafe { entry::write(num_devices, present.len() as c_int)? };
        }
        Ok(list)
    })
}

fn say_why_none() {
    let unusable = unusable_interfaces().unwrap_or_default();
    if unusable.is_empty() {
        tracing::warn!("no devices: this network namespace has no interface");
    }
    for (interface, why) in unusable {
        tracing::warn!("no device for interface {interface}: {why}");
    }
}

/// # Safety
/// `list` is null or from [`ibv_get_device_list`], and not freed yet.
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    entry::value("ibv_free_device_list", (), || {
        let mut at = list;
        // SAFETY: the list ends in a null pointer; until then it holds devices.
        while let Some(device) = unsafe { at.as_ref() }.filter(|device| !device.is_null()) {
            release(device.cast());
            at = at.wrapping_add(1);
        }
        // SAFETY: allocated with calloc, or null.
        unsafe { libc::free(list.cast()) };
    });
}

/// The name, as long as the device lives.
///
/// # Safety
/// `device` is null or a device of ours.
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    entry::pointer("ibv_get_device_name", || {
        if device.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: a live device, by the caller's promise; this makes no reference.
        Ok(unsafe { &raw mut (*device).name }.cast::<c_char>())
    })
}

/// The node GUID in network order, or 0.
///
/// # Safety
/// `device` is null or a device of ours.
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    entry::value("ibv_get_device_guid", 0, || {
        // SAFETY: the caller's promise.
        unsafe { device_of(device) }.map_or(0, |device| u64::from_ne_bytes(device.guid()))
    })
}

/// The number of the interface, which is unique among devices.
///
/// # Safety
/// `device` is null or a device of ours.
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    entry::number("ibv_get_device_index", || {
        // SAFETY: the caller's promise.
        let index = unsafe { device_of(device) }?.interface_index();
        c_int::try_from(index).map_err(|_| Errno(libc::EOVERFLOW))
    })
}
