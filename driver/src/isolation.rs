//! Separates a process from what it shares: its mounts, and the descriptors that it inherited.

use rustix::thread::UnshareFlags;
use std::io;

/// Gives this process a mount namespace of its own. With `user`, it gets a user namespace first, in
/// which it may change mounts without privilege.
///
/// # Errors
/// The system's error when that is not permitted, or this process has several threads.
pub fn private_mounts(user: bool) -> io::Result<()> {
    let user = match user {
        true => UnshareFlags::NEWUSER,
        false => UnshareFlags::empty(),
    };
    // SAFETY: `unshare_unsafe` is unsafe for `UnshareFlags::FILES` only, which makes the descriptor
    // table private; it is not passed.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | user) }?;
    Ok(())
}

/// Marks all descriptors of this process from 3 on close-on-exec, so that programs that it starts
/// inherit only the standard ones.
pub fn close_descriptors_on_exec() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call takes integers only; it marks descriptors and closes none. On a kernel
    // without the flag (before Linux 5.11) it fails, and the descriptors are inherited.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
}
