//! Ordinary socket programs over RDMA: stands between a program and the C library, and gives it librdmacm's
//! sockets where it asks for sockets of IP. `urxe run --rsockets` has the dynamic linker load this object first; it
//! serves any librdmacm.
//!
//! A program's socket has a number of its own, a descriptor that holds the place, behind which there is an
//! rsocket; where that cannot connect, a socket of the kernel takes its place.
//!
//! - [`next`]: the C library's own functions. [`rdma`]: librdmacm's.
//! - [`config`]: for which programs and sockets.
//! - [`table`]: what the program's numbers stand for. [`side`]: what one kind of socket takes over from another.
//! - [`fork`]: connections that a server's children make.
//! - [`socket`], [`transfer`], [`wait`], [`descriptor`]: functions of the C library's, by subject.

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
)))]
compile_error!("fcntl takes its argument as C passes it on x86-64, aarch64 and riscv64 only");

mod call;
pub mod config;
pub mod descriptor;
pub mod fork;
#[path = "../../../sysfs/preload/src/next.rs"]
pub mod next;
pub mod rdma;
pub mod side;
pub mod socket;
pub mod table;
pub mod transfer;
pub mod wait;

/// What the dynamic linker calls when it has loaded this object.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // Now, since the dynamic linker must not be asked in a signal handler.
    for functions in [
        socket::NEXT,
        transfer::NEXT,
        wait::NEXT,
        wait::select::NEXT,
        wait::epoll::NEXT,
        descriptor::NEXT,
    ] {
        for function in functions {
            function.find();
        }
    }
}
