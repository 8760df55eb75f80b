//! The exported functions of `liburxe.so`, resolved by name.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use urxe_verbs::ffi::*;

use super::error::VerbsError;

/// The functions that the library exports by name.
pub struct Functions {
    pub get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    pub free_device_list: unsafe extern "C" fn(*mut *mut ibv_device),
    pub get_device_name: unsafe extern "C" fn(*mut ibv_device) -> *const c_char,
    pub open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
    pub close_device: unsafe extern "C" fn(*mut ibv_context) -> c_int,
    pub query_gid: unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int,
    pub alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd,
    pub dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int,
    pub reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
    pub dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int,
    pub create_cq: unsafe extern "C" fn(
        *mut ibv_context,
        c_int,
        *mut c_void,
        *mut ibv_comp_channel,
        c_int,
    ) -> *mut ibv_cq,
    pub destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int,
    pub create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
    pub modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
    pub destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    pub wc_status_str: unsafe extern "C" fn(ibv_wc_status) -> *const c_char,
}

impl Functions {
    /// Loads the library permanently.
    ///
    /// # Errors
    /// Fails if the library cannot be loaded or lacks a function.
    pub fn load(library: &Path) -> Result<Self, VerbsError> {
        let path = CString::new(library.as_os_str().as_bytes())
            .map_err(|_| VerbsError::Load(format!("{library:?} is not a valid path")))?;
        // SAFETY: `path` is NUL-terminated. The library's initializers are those of Rust.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(VerbsError::Load(last_load_error()));
        }
        // The library is never unloaded, because its threads execute its code.
        //
        // SAFETY: the handle stays open. Each field has the type that `verbs.h` declares for the
        // name.
        unsafe {
            Ok(Self {
                get_device_list: symbol(handle, c"ibv_get_device_list")?,
                free_device_list: symbol(handle, c"ibv_free_device_list")?,
                get_device_name: symbol(handle, c"ibv_get_device_name")?,
                open_device: symbol(handle, c"ibv_open_device")?,
                close_device: symbol(handle, c"ibv_close_device")?,
                query_gid: symbol(handle, c"ibv_query_gid")?,
                alloc_pd: symbol(handle, c"ibv_alloc_pd")?,
                dealloc_pd: symbol(handle, c"ibv_dealloc_pd")?,
                reg_mr: symbol(handle, c"ibv_reg_mr")?,
                dereg_mr: symbol(handle, c"ibv_dereg_mr")?,
                create_cq: symbol(handle, c"ibv_create_cq")?,
                destroy_cq: symbol(handle, c"ibv_destroy_cq")?,
                create_qp: symbol(handle, c"ibv_create_qp")?,
                modify_qp: symbol(handle, c"ibv_modify_qp")?,
                destroy_qp: symbol(handle, c"ibv_destroy_qp")?,
                wc_status_str: symbol(handle, c"ibv_wc_status_str")?,
            })
        }
    }
}

/// Resolves a function by name.
///
/// # Safety
/// `handle` must be open, and the function must have the function pointer type `F`.
unsafe fn symbol<F: Copy>(handle: *mut c_void, name: &CStr) -> Result<F, VerbsError> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: `handle` is open by the contract in section Safety, and `name` is NUL-terminated.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        return Err(VerbsError::Load(last_load_error()));
    }
    // SAFETY: `address` is non-null, `F` has the size of a pointer, and the contract says that the
    // function has type `F`.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

fn last_load_error() -> String {
    // SAFETY: the text is valid until this thread's next dl call, and is copied before.
    unsafe {
        match libc::dlerror() {
            text if text.is_null() => "the library could not be opened".to_owned(),
            text => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}
