//! A private network for a test program whose tests are endpoints: a network namespace with a
//! loopback interface only, in which no other program uses ports or slots.
//!
//! The program enters it before `main`, while it has one thread, and its child processes inherit
//! it. Where namespaces are not allowed, the program uses the host's network.

use std::ffi::{CStr, c_char, c_int};
use std::fs;

/// The environment variable of processes inside the namespace.
const MARK: &CStr = c"TESTS_HAVE_THEIR_OWN_NETWORK";

/// The function that the dynamic linker calls after loading the program.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // SAFETY: the strings are NUL-terminated, and no other thread accesses the environment.
    unsafe {
        if !libc::getenv(MARK.as_ptr()).is_null() || !(enter(false) || enter(true)) {
            return;
        }
        libc::setenv(MARK.as_ptr(), c"1".as_ptr(), 1);
    }
    assert!(bring_loopback_up(), "the namespace belongs to this program");
}

/// Enters a new network namespace, with or without a user namespace that keeps the user ID.
fn enter(with_user: bool) -> bool {
    // SAFETY: the functions have no preconditions.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let flags = match with_user {
        true => libc::CLONE_NEWUSER | libc::CLONE_NEWNET,
        false => libc::CLONE_NEWNET,
    };
    // SAFETY: there are no other threads.
    if unsafe { libc::unshare(flags) } != 0 {
        return false;
    }
    if with_user {
        // Failures are harmless: the program keeps its capabilities in the namespace.
        let _ = fs::write("/proc/self/setgroups", "deny");
        let _ = fs::write("/proc/self/uid_map", format!("{user} {user} 1"));
        let _ = fs::write("/proc/self/gid_map", format!("{group} {group} 1"));
    }
    true
}

fn bring_loopback_up() -> bool {
    // SAFETY: the socket calls get valid pointers, and the request is zeroed except for name and
    // flags.
    unsafe {
        let socket: c_int = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, byte) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = *byte as c_char;
        }
        request.ifr_ifru.ifru_flags = libc::IFF_UP as i16;
        let done = libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request);
        libc::close(socket);
        done == 0
    }
}
