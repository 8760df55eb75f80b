//! The programs that are not run, with the reasons.

use crate::ecosystem::program::Omitted;

/// Programs that are not run.
pub const OMITTED: &[Omitted] = &[
    Omitted {
        title: "infinity (commit c6cbbbf)",
        reason: "addresses its peer by a LID, without a GRH, which RoCE does not have; its path MTU of 4096 \
                 is refused before that",
    },
    Omitted {
        title: "UCX: gtest, protocols (`ucp`)",
        reason: "takes hours; by hand, 3,600 tests of `rc` and `ud` ended in time, and passed or were skipped. Only \
                 `am_nbx_rndv` (a crash) and `sockaddr_wireup_fail*` (time limits) fail, and also do \
                 over TCP without urxe",
    },
    Omitted {
        title: "async-rdma 0.5.0 (crate)",
        reason: "builds only with `--cap-lints=allow`; then its tests pass except two: those of \
                 immediate data expect `IBV_WC_GRH` on reliable connections, as rxe sets it",
    },
    Omitted {
        title: "ruapc-rdma 0.2.0-alpha.7 (crate)",
        reason: "129 of 131 tests pass; two send ioctl commands to the kernel's uverbs device, where \
                 the crate itself falls back to libibverbs",
    },
    Omitted {
        title: "rust-rdma-io (crates rdma-io, rdma-io-sys)",
        reason: "the crates contain no tests; those of its repository (commit f7331ca) need a default \
                 route: 196 of 197 pass. `read_ring_ooo_repost_no_overwrite` fails in most runs by a race of its \
                 own: `send_copy` also returns 0 while 41 sends are outstanding, and the test takes \
                 that for a full ring if no send has completed when it polls once. So the ring has \
                 space when the test expects none",
    },
    Omitted {
        title: "rdma 0.3.0 (crate)",
        reason: "its dependencies do not build (`simd-abstraction` 0.5 is yanked)",
    },
    Omitted {
        title: "ibverbs 0.9.2 (crate)",
        reason: "has two tests, and builds a copy of rdma-core",
    },
    Omitted {
        title: "Ceph: OSDs, clients of data",
        reason: "the monitor and its clients use the same messenger; OSDs were not tried",
    },
    Omitted {
        title: "MPICH over libfabric",
        reason: "Debian's MPICH 4.0.2 is built for UCX (`ch4:ucx`)",
    },
    Omitted {
        title: "DiSNI (Java)",
        reason: "its build needs Maven's repository",
    },
    Omitted {
        title: "NCCL, its plugin for verbs",
        reason: "needs an NVIDIA GPU from its start (`ncclCommInitRank`)",
    },
    Omitted {
        title: "rdmapp (commit 3eaa85d)",
        reason: "`helloworld` passes over `lo` (its path MTU of 4096 needs an MTU of 4200), and hangs in 1 \
                 of 5 to 10 runs: the constructor of its `cq_poller` starts the thread before the members \
                 that the thread uses, and in hung processes that thread has ended",
    },
    Omitted {
        title: "SPDK",
        reason: "Debian has no package, PyPI's `spdk` has bindings only, and its build needs DPDK",
    },
    Omitted {
        title: "PyTorch: gloo over ibverbs",
        reason: "PyTorch has it only if it is built with `USE_GLOO_IBVERBS=ON`, which is off by default \
                 (pytorch/pytorch#153425)",
    },
    Omitted {
        title: "MVAPICH",
        reason: "neither Debian nor PyPI has a package; its source was not built",
    },
    Omitted {
        title: "Intel MPI (`impi-rt` 2021.19.0 of PyPI)",
        reason: "depends on a package `libfabric` 2.6, which PyPI does not have",
    },
    Omitted {
        title: "srp_daemon, ibping, ibhosts",
        reason: "need management datagrams of InfiniBand (`/dev/infiniband/umad*`), and end with a \
                 message; `ibstat` and `ibstatus` show the devices",
    },
];
