//! Runs socket programs over RDMA by interposing functions of the C library, so that IP sockets
//! become librdmacm's rsockets. `urxe run --rsockets` has the dynamic linker load this object
//! first. It works with any librdmacm.
//!
//! A socket of the program is a descriptor that only reserves the number. Behind it is an rsocket,
//! or a kernel socket if the rsocket cannot connect.
//!
//! - [`next`]: the C library's functions. [`rdma`]: librdmacm's.
//! - [`config`]: the selection of programs and sockets.
//! - [`table`]: the program's descriptors. [`side`]: transfer of options between implementations.
//! - [`fork`]: connections of servers that fork.
//! - [`socket`], [`transfer`], [`wait`], [`descriptor`]: the interposed functions by subject.

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
)))]
compile_error!("fcntl takes its argument as C passes it on x86-64, aarch64 and riscv64 only");

mod call;
pub mod config;
pub mod create;
pub mod descriptor;
pub mod fork;
pub mod kernel;
pub mod next;
pub mod rdma;
pub mod side;
pub mod socket;
pub mod table;
pub mod transfer;
pub mod wait;

/// The function that the dynamic linker calls after loading this object.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // Resolved now, because `dlsym` is not async-signal-safe.
    for functions in [
        socket::NEXT,
        transfer::NEXT,
        wait::NEXT,
        wait::select::NEXT,
        wait::epoll::NEXT,
        descriptor::NEXT,
        kernel::NEXT,
    ] {
        for function in functions {
            function.find();
        }
    }
}
