//! Shows urxe's devices in sysfs to a program by interposing functions of the C library.
//!
//! `urxe run` usually mounts the view. Containers often forbid mounts. There `urxe run` writes the
//! view to a directory and has the dynamic linker load this object before the C library. Each
//! function here has the name of a C library function with a path. It replaces paths of the view
//! and calls the C library. Nothing here allocates, locks or logs, so that async-signal-safe
//! functions remain so.
//!
//! - [`root`]: the root directory of the view.
//! - [`path`]: the replaced paths.
//! - [`next`]: the C library's functions.
//! - [`calls`]: functions that only take a path.
//! - [`returned_paths`]: functions that return a path.
//! - [`walk`]: functions that traverse directories inside the C library.

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
)))]
compile_error!("calls::open takes its mode as C passes it on x86-64, aarch64 and riscv64 only");

pub mod calls;
pub mod next;
pub mod path;
pub mod returned_paths;
pub mod root;
pub mod walk;

/// The function that the dynamic linker calls after loading this object.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    root::remember();
    // Resolved now, because `dlsym` is not async-signal-safe.
    for functions in [calls::NEXT, returned_paths::NEXT, walk::NEXT] {
        for function in functions {
            function.find();
        }
    }
}
