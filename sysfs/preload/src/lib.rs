//! Shows a program urxe's devices in sysfs by standing between it and the C library.
//!
//! `urxe run` gives programs mounts of their own in which the devices are to be seen. Containers
//! often forbid that; there `urxe run` writes the files to a directory, and has the dynamic linker
//! load this object before the C library. Each function here has the name of one of the C library's
//! that takes a path; it puts the directory before paths that belong there, and has the C library
//! do the rest. Nothing here allocates, locks or logs, so that functions which may be called in a
//! signal handler still may.
//!
//! - [`root`]: which directory it is.
//! - [`path`]: which paths belong there.
//! - [`next`]: the C library's own functions.
//! - [`calls`]: those that take a path, and need nothing more.
//! - [`answers`]: those that give back a path, which is to be the one without the directory.
//! - [`walk`]: those that walk through directories inside the C library.

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
)))]
compile_error!("calls::open takes its mode as C passes it on x86-64, aarch64 and riscv64 only");

pub mod answers;
pub mod calls;
pub mod next;
pub mod path;
pub mod root;
pub mod walk;

/// What the dynamic linker calls when it has loaded this object.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    root::remember();
    // Now, since the dynamic linker must not be asked in a signal handler.
    for functions in [calls::NEXT, answers::NEXT, walk::NEXT] {
        for function in functions {
            function.find();
        }
    }
}
