//! Taking leave of what a process shares with others: its mounts, and descriptors that it inherited.

use rustix::thread::UnshareFlags;
use std::io;

/// Gives this process mounts of its own; with `user`, a user namespace of its own before, in which
/// it may change them without privilege.
///
/// # Errors
/// When that is not allowed, or this process has threads.
pub fn private_mounts(user: bool) -> io::Result<()> {
    let user = match user {
        true => UnshareFlags::NEWUSER,
        false => UnshareFlags::empty(),
    };
    // SAFETY: descriptors stay shared, which is what the function warns about.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | user) }?;
    Ok(())
}

/// What this process starts from now on inherits no descriptors but the standard ones.
pub fn keep_descriptors() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call marks descriptors and closes none. An older kernel knows it not; then they
    // are inherited.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
}
