//! A network of its own for a test program whose tests are endpoints themselves: a network namespace with a loopback
//! interface and nothing else, in which no other program, and no other run of the tests, has ports or slots.
//!
//! A program that has this module is put there before `main`, while it has one thread; processes that it starts are in it,
//! too. Where namespaces cannot be had, it is the host's network.

use std::ffi::{CStr, c_char, c_int};
use std::fs;

/// Says to the processes that a test starts that they are there already.
const MARK: &CStr = c"TESTS_HAVE_THEIR_OWN_NETWORK";

/// What the dynamic linker calls when it has loaded the program.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // SAFETY: C strings, and there are no other threads, which might look at the environment.
    unsafe {
        if !libc::getenv(MARK.as_ptr()).is_null() || !(leave(false) || leave(true)) {
            return;
        }
        libc::setenv(MARK.as_ptr(), c"1".as_ptr(), 1);
    }
    assert!(bring_loopback_up(), "the namespace is this program's own");
}

/// Into a new network namespace, by way of a user namespace in which this user is who it was, or without.
fn leave(with_user: bool) -> bool {
    // SAFETY: numbers.
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
        // What is not written leaves the program without a name, and with its rights all the same.
        let _ = fs::write("/proc/self/setgroups", "deny");
        let _ = fs::write("/proc/self/uid_map", format!("{user} {user} 1"));
        let _ = fs::write("/proc/self/gid_map", format!("{group} {group} 1"));
    }
    true
}

fn bring_loopback_up() -> bool {
    // SAFETY: a request that is all zeros but for the name, and flags of an interface.
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
