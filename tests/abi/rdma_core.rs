//! The pure functions return the same as rdma-core's, for every input that rdma-core supports.

use std::ffi::{CStr, c_char};
use std::path::PathBuf;

use libc::{c_int, c_void};

use super::library::{self, Library};
use super::require::have_file;

/// Returns the path of a library of Debian.
fn system_library(name: &str) -> PathBuf {
    PathBuf::from(format!(
        "/usr/lib/{}-linux-gnu/{name}",
        std::env::consts::ARCH
    ))
}

/// Returns urxe's library and rdma-core's; `None` if the latter is missing.
fn both(name: &str, package: &str) -> Option<(Library, Library)> {
    let rdma_core = system_library(name);
    have_file(&rdma_core, package)
        .then(|| (Library::load(&library::path()), Library::load(&rdma_core)))
}

fn text(name: *const c_char) -> String {
    // SAFETY: the functions return C strings that live as long as their library.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

#[test]
fn names_are_those_of_rdma_core() {
    let Some((urxe, rdma_core)) = both("libibverbs.so.1", "libibverbs1") else {
        return;
    };
    type Name = extern "C" fn(c_int) -> *const c_char;
    let functions = [
        ("ibv_node_type_str", 7),
        ("ibv_port_state_str", 6),
        ("ibv_event_type_str", 20),
        ("ibv_wc_status_str", 24),
    ];
    for (function, at_least) in functions {
        // SAFETY: each of these functions takes an enumeration and returns a string.
        let (our, their) = unsafe {
            (
                urxe.function::<Name>(function),
                rdma_core.function::<Name>(function),
            )
        };
        let mut known = 0;
        for code in -3..100 {
            let name = text(their(code));
            // A code that this version of rdma-core does not support may be of a later one.
            if name != "unknown" {
                assert_eq!(text(our(code)), name, "{function}({code})");
                known += 1;
            }
        }
        assert!(
            known >= at_least,
            "{function}: rdma-core knows only {known}"
        );
    }
}

#[test]
fn cm_event_names_are_those_of_rdma_core() {
    let Some((urxe, rdma_core)) = both("librdmacm.so.1", "librdmacm1") else {
        return;
    };
    type Name = extern "C" fn(c_int) -> *const c_char;
    // SAFETY: the function takes an enumeration and returns a string.
    let (our, their) = unsafe {
        (
            urxe.function::<Name>("rdma_event_str"),
            rdma_core.function::<Name>("rdma_event_str"),
        )
    };
    for code in 0..16 {
        assert_eq!(text(our(code)), text(their(code)), "{code}");
    }
    assert_eq!(text(our(1000)), text(their(1000)));
}

#[test]
fn rates_are_those_of_rdma_core() {
    let Some((urxe, rdma_core)) = both("libibverbs.so.1", "libibverbs1") else {
        return;
    };
    type Rate = extern "C" fn(c_int) -> c_int;
    let functions = [
        ("ibv_rate_to_mult", 15, -1),
        ("mult_to_ibv_rate", 15, 0),
        ("ibv_rate_to_mbps", 20, -1),
        ("mbps_to_ibv_rate", 20, 0),
    ];
    for (function, at_least, unknown) in functions {
        // SAFETY: each of these functions takes and returns an int or an enumeration.
        let (our, their) = unsafe {
            (
                urxe.function::<Rate>(function),
                rdma_core.function::<Rate>(function),
            )
        };
        let mut known = 0;
        for input in -2..1_300_000 {
            let result = their(input);
            if result != unknown {
                assert_eq!(our(input), result, "{function}({input})");
                known += 1;
            }
        }
        assert!(
            known >= at_least,
            "{function}: rdma-core knows only {known}"
        );
    }
}

/// The size of the buffers: more than any of the converted structures.
const ROOM: usize = 512;

/// Returns pseudorandom bytes.
fn pseudorandom(seed: u64) -> [u8; ROOM] {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    std::array::from_fn(|_| {
        // Knuth's MMIX generator, of which only the upper bits have a long period.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
}

#[test]
fn conversions_are_those_of_rdma_core() {
    let Some((urxe, rdma_core)) = both("libibverbs.so.1", "libibverbs1") else {
        return;
    };
    type Copy = extern "C" fn(*mut c_void, *const c_void);
    let functions = [
        ("ibv_copy_ah_attr_from_kern", 30),
        ("ibv_copy_qp_attr_from_kern", 120),
        ("ibv_copy_path_rec_from_kern", 60),
        ("ibv_copy_path_rec_to_kern", 60),
    ];
    #[repr(align(16))]
    struct Aligned([u8; ROOM]);
    let convert = |copy: Copy, seed, fill| {
        let (source, mut result) = (Aligned(pseudorandom(seed)), Aligned([fill; ROOM]));
        copy(result.0.as_mut_ptr().cast(), source.0.as_ptr().cast());
        result.0
    };
    for (function, at_least) in functions {
        // SAFETY: each function takes a pointer to write to and one to read from. Both buffers have
        // `ROOM` bytes, more than any of the structures.
        let (our, their) = unsafe {
            (
                urxe.function::<Copy>(function),
                rdma_core.function::<Copy>(function),
            )
        };
        for seed in 0..100 {
            // Bytes that do not depend on the previous contents were written; the rest is padding.
            let (on_zeros, on_ones) = (convert(their, seed, 0), convert(their, seed, 0xff));
            let written: Vec<_> = (0..ROOM)
                .filter(|at| on_zeros[*at] == on_ones[*at])
                .collect();
            assert!(
                written.len() >= at_least,
                "{function} wrote {} bytes",
                written.len()
            );
            let our_result = convert(our, seed, 0);
            for at in written {
                assert_eq!(
                    our_result[at], on_zeros[at],
                    "{function}: byte {at}, seed {seed}"
                );
            }
        }
    }
}
