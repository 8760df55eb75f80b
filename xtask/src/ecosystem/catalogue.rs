//! The programs, as data.

#[macro_use]
mod forms;
mod omitted;

use super::program::Place::{OneHost, TwoHosts};

use super::program::{Program, Ready, Run, Server};
use forms::{BOTH, ISER, cluster, pair};
pub(super) use omitted::OMITTED;

/// Programs for the check, which are not among its tests, and take about a minute.
pub(super) const QUICK: &[&str] = &["openmpi", "qperf", "iser"];

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "ucx",
        title: "UCX: ucx_perftest",
        packages: &["ucx-utils"],
        prepare: "",
        version: version_of!("ucx-utils"),
        runs: &[
            ucx_perftest!("tag, latency", "tag_lat -n 1000 -s 8"),
            ucx_perftest!("tag, bandwidth", "tag_bw -n 200 -s 1000000"),
            ucx_perftest!("tag, wake-ups", "tag_lat -n 1000 -s 8 -E sleep"),
            ucx_perftest!("active messages", "ucp_am_bw -n 1000 -s 65536"),
            ucx_perftest!("stream", "stream_bw -n 1000 -s 65536"),
            ucx_perftest!("put", "ucp_put_bw -n 1000 -s 65536"),
            ucx_perftest!("get", "ucp_get -n 1000 -s 65536"),
            ucx_perftest!("fetch and add", "ucp_fadd -n 1000 -s 8"),
            ucx_perftest!("compare and swap", "ucp_cswap -n 1000 -s 8"),
        ],
        needs: "On one host UCX prefers shared memory; between hosts it uses `rc_verbs` and `ud_verbs`.",
    },
    Program {
        name: "ucx-gtest",
        title: "UCX: gtest, transports",
        packages: &[
            "autoconf",
            "automake",
            "libtool",
            "g++",
            "make",
            "pkg-config",
            "libibverbs-dev",
            "librdmacm-dev",
            "libnuma-dev",
        ],
        // Debian renames the directory `debian`, which configure.ac needs. Without optimization of the
        // tests, which are a million lines after expansion.
        prepare: "$WORKSPACE/tests/ecosystem/source.sh bookworm ucx\n\
                  [ ! -x source/test/gtest/gtest ] || exit 0\n\
                  cd source\n\
                  [ -e debian ] || ln -s debian.upstream debian\n\
                  [ -f Makefile ] || { ./autogen.sh; ./contrib/configure-release --enable-gtest \
                  --without-java --without-go --disable-doxygen-doc; } >build.log 2>&1\n\
                  flags='-g0 -Wno-error'\n\
                  make -k -j$(nproc) CFLAGS=\"-O1 $flags\" CXXFLAGS=\"-O0 $flags\" \
                  >>build.log 2>&1 || true\n\
                  make -j$(nproc) -C test/gtest/common/googletest CXXFLAGS=\"-O0 $flags\" \
                  >>build.log 2>&1\n\
                  make -j$(nproc) -C test/gtest CFLAGS=\"-O1 $flags\" CXXFLAGS=\"-O0 $flags\" gtest \
                  >>build.log 2>&1",
        version: "sed -n 's/^PACKAGE_VERSION = //p' source/Makefile",
        runs: &[
            Run {
                name: "rc_verbs and ud_verbs",
                places: &[OneHost],
                server: None,
                client: "urxe run -- source/test/gtest/gtest --gtest_filter=\
                         'rc_verbs/uct_*:ud_verbs/uct_*:rc_verbs/test_uct_ep.*:ud_verbs/test_uct_ep.*\
                         :-*p2p_rma*:*p2p_am_test*'",
                expected: "[  PASSED  ]",
                limit: 300,
                known: None,
            },
            Run {
                name: "ud_verbs: an interface closes while datagrams arrive",
                places: &[OneHost],
                server: None,
                client: "urxe run -- source/test/gtest/gtest --gtest_repeat=30 \
                         --gtest_filter='ud_verbs/test_uct_pending.pending_purge/0'",
                expected: "[  PASSED  ]",
                limit: 120,
                known: None,
            },
        ],
        needs: "The tests of performance and stress, and those with messages of a gigabyte, are left out.",
    },
    Program {
        name: "perftest",
        title: "perftest",
        packages: &["perftest"],
        prepare: "",
        version: version_of!("perftest"),
        runs: &[
            perftest!("ib_write_bw -a -n 50", "8388608"),
            perftest!("ib_read_bw -b -n 200 --report_gbits", "65536"),
            perftest!("ib_send_bw -b -e -n 200", "65536"),
            perftest!("ib_write_bw -q 64 -n 100 -s 1024", "1024"),
            perftest!("ib_write_bw -D 2 -F", "65536"),
            perftest!("ib_write_bw -x 1 -n 200", "65536"),
            perftest!("ib_write_bw -c UC -n 200", "65536"),
            perftest!("ib_write_bw -I 128 -s 64 -n 500", "64"),
            perftest!("ib_write_bw -l 8 -t 16 -Q 4 -n 200", "65536"),
            perftest!("ib_send_bw -c UD -n 200 -s 1024", "1024"),
            perftest!("ib_send_bw -c XRC -n 200", "65536"),
            perftest!("ib_send_bw -r 16 --use-srq -n 200", "65536"),
            perftest!("ib_send_lat -e -n 100", "2 "),
            perftest!("ib_atomic_bw -A CMP_AND_SWAP -n 200", "8 "),
            Run {
                name: "raw_ethernet_bw --client -D 2",
                places: &[OneHost],
                server: None,
                client: "urxe run -- raw_ethernet_bw --client -E 02:00:00:00:00:01 \
                         -B 02:00:00:00:00:02 -D 2",
                expected: "1518",
                limit: 60,
                known: None,
            },
        ],
        needs: "`-c DC` and `-c SRD` are refused: they are services of one vendor's NICs each. \
`raw_ethernet_*` need\nthe capability `CAP_NET_RAW`; without it, `ibv_create_qp` fails with EPERM.",
    },
    Program {
        name: "rdmacm",
        title: "rdmacm-utils",
        packages: &["rdmacm-utils"],
        prepare: "",
        version: version_of!("rdmacm-utils"),
        runs: &[
            rdmacm!(
                "rping",
                "rping -s -a {server} -C 5 -v",
                Ready::ConnectionManager(7174),
                "rping -c -a {server} -C 5 -v",
                "ping data: rdma-ping-4",
                false
            ),
            rdmacm!(
                "ucmatose",
                "ucmatose",
                Ready::ConnectionManager(7471),
                "ucmatose -s {server}",
                "return status 0",
                false
            ),
            rdmacm!(
                "udaddy",
                "udaddy",
                Ready::ConnectionManager(7174),
                "udaddy -s {server}",
                "return status 0",
                false
            ),
            rdmacm!(
                "rdma_client",
                "rdma_server",
                Ready::ConnectionManager(7471),
                "rdma_client -s {server}",
                "rdma_client: end 0",
                false
            ),
            rdmacm!(
                "rdma_xclient",
                "rdma_xserver",
                Ready::ConnectionManager(7471),
                "rdma_xclient -s {server}",
                "rdma_xclient: end 0",
                false
            ),
            rdmacm!(
                "cmtime",
                "cmtime -c 20",
                Ready::ConnectionManager(7471),
                "cmtime -s {server} -c 20",
                "connect",
                true
            ),
            rdmacm!(
                "rstream",
                "rstream -S 1024 -C 20",
                Ready::ConnectionManager(7471),
                "rstream -s {server} -S 1024 -C 20",
                "1k",
                false
            ),
            rdmacm!(
                "riostream",
                "riostream -S 1024 -C 20",
                Ready::ConnectionManager(7471),
                "riostream -s {server} -S 1024 -C 20",
                "1k",
                false
            ),
            rdmacm!(
                "udpong",
                "udpong -b {server}",
                Ready::Seconds(2),
                "udpong -s {server} -S 512 -C 50",
                "512",
                true
            ),
        ],
        needs: "The server of udpong binds `::1` unless it has `-b`. Servers of rstream and riostream \
need the options\nof the client.",
    },
    Program {
        name: "hwloc",
        title: "hwloc",
        packages: &["hwloc-nox"],
        prepare: "",
        version: version_of!("hwloc-nox"),
        runs: &[Run {
            name: "lstopo",
            places: &[OneHost],
            server: None,
            client: "urxe run -- lstopo-no-graphics --of console",
            expected: "OpenFabrics \"urxe_eth0\"",
            limit: 60,
            known: None,
        }],
        needs: "",
    },
    Program {
        name: "gloo",
        title: "gloo, transport ibverbs",
        packages: &["libgloo-dev", "g++"],
        prepare: "g++ -O1 -std=c++17 -o gloo $WORKSPACE/tests/ecosystem/gloo.cc -lgloo",
        version: version_of!("libgloo-dev"),
        runs: &[Run {
            name: "allreduce, 2 ranks",
            places: BOTH,
            server: Some(Server {
                command: "rm -rf store; mkdir store; urxe run -- ./gloo 0 2 store",
                ready: Ready::Seconds(2),
                stays: false,
            }),
            client: "urxe run -- ./gloo 1 2 store",
            expected: "gloo: correct, rank 1 of 2",
            limit: 60,
            known: None,
        }],
        needs: "",
    },
    Program {
        name: "libfabric",
        title: "libfabric: fi_pingpong",
        packages: &["libfabric-bin"],
        prepare: "",
        version: version_of!("libfabric-bin"),
        runs: &[
            fi_pingpong!("verbs, connections", "-p verbs -e msg -I 20 -S all -c"),
            fi_pingpong!("verbs;ofi_rxm", "-p 'verbs;ofi_rxm' -e rdm -I 20 -S all -c"),
            fi_pingpong!("verbs;ofi_rxd", "-p 'verbs;ofi_rxd' -e rdm -I 20 -S all -c"),
        ],
        needs: "",
    },
    Program {
        name: "fabtests",
        title: "libfabric: fabtests",
        packages: &[
            "autoconf",
            "automake",
            "libtool",
            "gcc",
            "make",
            "libibverbs-dev",
            "librdmacm-dev",
        ],
        // Debian has no package of fabtests. They need the libfabric of their own version.
        prepare: "$WORKSPACE/tests/ecosystem/source.sh trixie libfabric\n\
                  [ ! -x install/bin/fi_inject_test ] || exit 0\n\
                  install=$PWD/install\n\
                  cd source\n\
                  { ./autogen.sh; ./configure --prefix=$install --enable-only --enable-verbs=yes \
                  --enable-rxm; make -j$(nproc) install; cd fabtests; ./autogen.sh; ./configure \
                  --prefix=$install --with-libfabric=$install; make -j$(nproc) install; } \
                  >../build.log 2>&1",
        version: "sed -n 's/^PACKAGE_VERSION = //p' source/Makefile",
        runs: &[
            fabtest!("fi_msg_pingpong -p verbs -I 50 -v", "1m"),
            fabtest!("fi_msg_bw -p verbs -I 50", "1m"),
            fabtest!("fi_rma_pingpong -p verbs -e msg -I 50 -o writedata", "1m"),
            fabtest!("fi_rma_bw -p verbs -e msg -I 50 -o read", "1m"),
            fabtest!("fi_rma_bw -p verbs -e msg -I 50 -o write", "1m"),
            fabtest!("fi_cm_data -p verbs", "trying with data size"),
            fabtest!("fi_rdm_pingpong -p 'verbs;ofi_rxm' -I 50 -v", "1m"),
            fabtest!("fi_rdm_tagged_pingpong -p 'verbs;ofi_rxm' -I 50 -v", "1m"),
            fabtest!("fi_rdm_tagged_bw -p 'verbs;ofi_rxm' -I 50", "1m"),
            fabtest!("fi_rdm_atomic -p 'verbs;ofi_rxm' -I 20 -o all", "FI_UINT64"),
            fabtest!(
                "fi_unexpected_msg -p 'verbs;ofi_rxm' -I 20 -m",
                "GOOD all done"
            ),
            fabtest!("fi_rdm_tagged_peek -p 'verbs;ofi_rxm'", "Receive msg"),
            fabtest!("fi_inject_test -p 'verbs;ofi_rxm'", "GOOD: Completed"),
        ],
        needs: "",
    },
    Program {
        name: "openmpi",
        title: "Open MPI",
        packages: &["openmpi-bin", "libopenmpi-dev", "gcc", "libc6-dev"],
        prepare: mpi_programs!("mpicc.openmpi"),
        version: version_of!("openmpi-bin"),
        runs: &[
            Run {
                name: "mpirun -n 2, distribution's settings",
                places: &[OneHost],
                server: None,
                client: "urxe run -- mpirun.openmpi --allow-run-as-root -n 2 ./alltoall 3 1000",
                expected: "round 2: correct, 2 ranks",
                limit: 120,
                known: None,
            },
            Run {
                name: "mpirun -n 2, UCX, all transfers",
                places: &[OneHost],
                server: None,
                client: "urxe run -- mpirun.openmpi --allow-run-as-root --mca pml ucx \
                         --mca osc ucx -n 2 ./transfers",
                expected: "atomics: correct",
                limit: 120,
                known: None,
            },
            cluster(
                "all transfers, 2 ranks on 2 hosts",
                open_mpi!("192.0.2.1:1,192.0.2.2:1", "urxe run -- ./transfers"),
                "atomics: correct",
            ),
            cluster(
                "alltoall, 32 ranks on 8 hosts",
                open_mpi!(eight!(4), "urxe run -- ./alltoall 3 1000"),
                "round 2: correct, 32 ranks",
            ),
            cluster(
                "stencil, 8 ranks on 8 hosts",
                open_mpi!(eight!(1), "urxe run -- ./stencil"),
                "stencil: correct, 8 ranks",
            ),
            cluster(
                "latency and bandwidth, 2 hosts",
                open_mpi!("192.0.2.1:1,192.0.2.2:1", "urxe run -- ./pingpong"),
                "MB/s",
            ),
            cluster(
                "the same over UCX's TCP, without urxe",
                open_mpi!(
                    "192.0.2.1:1,192.0.2.2:1",
                    "--mca opal_common_ucx_tls any --mca opal_common_ucx_devices any \
                     -x UCX_TLS=tcp,self ./pingpong"
                ),
                "MB/s",
            ),
            cluster(
                "one of 8 hosts is killed",
                concat!(
                    "$WORKSPACE/tests/ecosystem/kill_host.sh 192.0.2.8 ",
                    open_mpi!(eight!(1), "urxe run -- ./alltoall 1000000 1000")
                ),
                "every rank has ended",
            ),
        ],
        needs: "Debian's `/etc/openmpi/openmpi-mca-params.conf` excludes UCX (`pml = ^ucx`), so that \
`mpirun` uses TCP between hosts\nunless it has the options `--mca pml ucx --mca osc ucx`. Without that \
file, Open MPI 4.1 prefers\nUCX for devices named `mlx*` only, and needs the same options. Without them \
nothing is wrong, but\nnothing goes over RDMA.",
    },
    Program {
        name: "imb",
        title: "Intel MPI Benchmarks over Open MPI",
        packages: &["openmpi-bin", "libopenmpi-dev", "git", "make", "g++"],
        // `CHECK` makes the benchmarks verify what they receive.
        prepare: "$WORKSPACE/tests/ecosystem/git.sh https://github.com/intel/mpi-benchmarks \
                  46e8757a920c334abfea6340499f1c5deaefb834\n\
                  [ ! -x source/IMB-RMA ] || exit 0\n\
                  make -C source CC='mpicc.openmpi -w' CXX='mpicxx.openmpi -w' CPPFLAGS=-DCHECK \
                  IMB-MPI1 IMB-RMA >build.log 2>&1",
        version: "git -C source log -1 --format=%cs",
        runs: &[
            cluster(
                "IMB-MPI1, 2 hosts, UCX",
                open_mpi!(
                    "192.0.2.1:1,192.0.2.2:1",
                    "urxe run -- source/IMB-MPI1 -iter 20 -time 0.2 -msglog 0:20"
                ),
                "All processes entering MPI_Finalize",
            ),
            cluster(
                "IMB-MPI1, collectives, 8 hosts, UCX",
                open_mpi!(
                    eight!(1),
                    "urxe run -- source/IMB-MPI1 Allreduce Alltoall Bcast Barrier -npmin 8 \
                     -iter 10 -time 0.2 -msglog 0:16"
                ),
                "All processes entering MPI_Finalize",
            ),
            cluster(
                "IMB-RMA, 2 hosts, UCX",
                open_mpi!(
                    "192.0.2.1:1,192.0.2.2:1",
                    "urxe run -- source/IMB-RMA Unidir_put Unidir_get Accumulate Fetch_and_op \
                     Compare_and_swap -iter 20 -time 0.2 -msglog 0:16"
                ),
                "All processes entering MPI_Finalize",
            ),
            cluster(
                "IMB-MPI1, 2 hosts, libfabric",
                open_mpi_libfabric!(
                    "192.0.2.1:1,192.0.2.2:1",
                    "urxe run -- source/IMB-MPI1 PingPong Sendrecv Allreduce Alltoall -iter 20 \
                     -time 0.2 -msglog 0:20"
                ),
                "All processes entering MPI_Finalize",
            ),
        ],
        needs: "Built with their option `CHECK`: a benchmark ends with an error if data is wrong.",
    },
    Program {
        name: "osu",
        title: "OSU Micro-Benchmarks over Open MPI",
        packages: &["openmpi-bin", "libopenmpi-dev", "git", "make", "g++"],
        // The times of the files decide whether make runs tools that are not needed.
        prepare: "$WORKSPACE/tests/ecosystem/git.sh \
                  https://github.com/sherrywong1220/osu-micro-benchmarks-7.4 \
                  bed60f564c2908a6123315f49f6dd0c0ff5440a3\n\
                  cd source\n\
                  [ ! -x c/mpi/pt2pt/standard/osu_latency ] || exit 0\n\
                  { touch aclocal.m4 configure; find . -name Makefile.in -exec touch {} +; \
                  ./configure CC=mpicc.openmpi CXX=mpicxx.openmpi; make -C c -j$(nproc); } \
                  >../build.log 2>&1",
        version: "sed -n 's/.* v\\([0-9.]*\\).*/\\1/p' source/CHANGES | head -n 1",
        runs: &[
            cluster(
                "osu_latency -c, 2 hosts",
                open_mpi!(
                    "192.0.2.1:1,192.0.2.2:1",
                    "urxe run -- source/c/mpi/pt2pt/standard/osu_latency -c -i 100 -x 10"
                ),
                "1048576",
            ),
            cluster(
                "osu_bw -c, 2 hosts",
                open_mpi!(
                    "192.0.2.1:1,192.0.2.2:1",
                    "urxe run -- source/c/mpi/pt2pt/standard/osu_bw -c -i 10 -x 2"
                ),
                "1048576",
            ),
            cluster(
                "osu_alltoall -c, 8 hosts",
                open_mpi!(
                    eight!(1),
                    "urxe run -- source/c/mpi/collective/blocking/osu_alltoall -c -i 10 -x 2 \
                     -m 1:16384"
                ),
                "16384",
            ),
            cluster(
                "osu_put_latency, 2 hosts",
                open_mpi!(
                    "192.0.2.1:1,192.0.2.2:1",
                    "urxe run -- source/c/mpi/one-sided/osu_put_latency -i 20 -x 5 -m 1:65536"
                ),
                "65536",
            ),
        ],
        needs: "From a copy of release 7.4. `-c` verifies the data; a failure is an exit status.",
    },
    Program {
        name: "mpich",
        title: "MPICH",
        packages: &["mpich", "libmpich-dev", "gcc", "libc6-dev"],
        prepare: mpi_programs!("mpicc.mpich -w"),
        version: version_of!("mpich"),
        runs: &[
            Run {
                name: "mpirun -n 2, two-sided transfers",
                places: &[OneHost],
                server: None,
                client: "urxe run -- mpirun.mpich -n 2 ./transfers 1048576 two-sided",
                expected: "collectives: correct",
                limit: 120,
                known: None,
            },
            Run {
                name: "mpirun -n 2, all transfers",
                places: &[OneHost],
                server: None,
                client: "urxe run -- mpirun.mpich -n 2 ./transfers 1000",
                expected: "atomics: correct",
                limit: 120,
                known: Some(
                    "one-sided operations of MPICH 4.0.2 over shared memory return wrong data, \
                     without urxe as well; `MPIR_CVAR_NOLOCAL=1` avoids shared memory",
                ),
            },
            cluster(
                "all transfers, 2 ranks on 2 hosts",
                mpich!("192.0.2.1,192.0.2.2", "-n 2 urxe run -- ./transfers"),
                "atomics: correct",
            ),
            cluster(
                "alltoall, 8 ranks on 8 hosts",
                mpich!(
                    "192.0.2.1,192.0.2.2,192.0.2.3,192.0.2.4,192.0.2.5,192.0.2.6,192.0.2.7,192.0.2.8",
                    "-n 8 urxe run -- ./alltoall 3 1000"
                ),
                "round 2: correct, 8 ranks",
            ),
        ],
        needs: "Debian's MPICH uses UCX without options.",
    },
    Program {
        name: "fio",
        title: "fio, engine rdma",
        packages: &["fio"],
        prepare: "",
        version: version_of!("fio"),
        runs: &[
            fio!("write", "write"),
            fio!("read", "read"),
            fio!("send", "send"),
        ],
        needs: "fio sets no RNR retries: with `verb=send` it waits forever if a message arrives before its \
receive. The\nserver therefore has an `iodepth` of 4 times the client's.",
    },
    Program {
        name: "qperf",
        title: "qperf",
        packages: &["qperf"],
        prepare: "",
        version: version_of!("qperf"),
        runs: &[
            qperf!(
                "latency",
                "rc_lat rc_rdma_write_lat rc_rdma_read_lat",
                "latency"
            ),
            qperf!(
                "bandwidth",
                "rc_bw rc_bi_bw rc_rdma_write_bw rc_rdma_read_bw",
                "bw"
            ),
            qperf!("atomics", "rc_compare_swap_mr rc_fetch_add_mr", "msg_rate"),
            qperf!(
                "verified atomics",
                "ver_rc_compare_swap ver_rc_fetch_add",
                "msg_rate"
            ),
        ],
        needs: "Over RoCE, reliable connections need `-cm 1`: otherwise qperf addresses its peer by a \
LID. `uc_*` and\n`ud_*` have no such option, and ask for packets of 2048 bytes, which Ethernet with an \
MTU of 1500\ndoes not carry.",
    },
    Program {
        name: "qemu",
        title: "QEMU: migration by RDMA",
        packages: &["qemu-system-x86"],
        prepare: "",
        version: version_of!("qemu-system-x86"),
        runs: &[Run {
            name: "migrate",
            places: BOTH,
            server: Some(Server {
                command: "urxe run -- qemu-system-x86_64 -accel tcg -nodefaults -display none \
                          -m 32 -incoming rdma:{server}:4444",
                ready: Ready::ConnectionManager(4444),
                stays: true,
            }),
            client: ": >migrate.out; $WORKSPACE/tests/ecosystem/migrate.sh {server}",
            expected: "completed",
            limit: 120,
            known: None,
        }],
        needs: "",
    },
    Program {
        name: "iser",
        title: "tgt and libiscsi: iSER",
        packages: &["tgt", "libiscsi-bin"],
        prepare: "",
        version: version_of!("tgt libiscsi-bin"),
        runs: &[
            iser!(
                "read capacity",
                "iscsi-readcapacity16",
                "Total size:16777216"
            ),
            iser!("inquiry", "iscsi-inq", "DIRECT_ACCESS"),
        ],
        needs: "The target of tgtd needs both an initiator address and an initiator name.",
    },
    Program {
        name: "dapl",
        title: "DAPL: dtest",
        packages: &["dapl2-utils", "libdapl2"],
        prepare: "echo 'urxe u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"eth0 0\" \"\"' \
                  >dat.conf",
        version: version_of!("dapl2-utils"),
        runs: &[Run {
            name: "send, write, read, ping-pong",
            places: &[TwoHosts],
            server: Some(Server {
                command: "DAT_OVERRIDE=dat.conf urxe run -- dtest -P urxe",
                ready: Ready::Seconds(2),
                stays: false,
            }),
            client: "DAT_OVERRIDE=dat.conf urxe run -- dtest -P urxe -h {server}",
            expected: "DAPL Test Complete. PASSED",
            limit: 120,
            known: None,
        }],
        needs: "`/etc/dat.conf` needs a line for the interface, which the provider `libdaplofa` takes \
by name.",
    },
    Program {
        name: "valkey",
        title: "Valkey with RDMA: its own RDMA test",
        packages: &[
            "gcc",
            "make",
            "libibverbs-dev",
            "librdmacm-dev",
            "pkg-config",
        ],
        prepare: "$WORKSPACE/tests/ecosystem/source.sh trixie valkey\n\
                  make --quiet -j$(nproc) -C source BUILD_RDMA=yes MALLOC=libc OPTIMIZATION=-O1 \
                  >build.log 2>&1\n\
                  make --quiet -C source/tests/rdma >>build.log 2>&1",
        version: "sed -n 's/#define VALKEY_VERSION \"\\(.*\\)\"/\\1/p' source/src/version.h",
        runs: &[Run {
            name: "rdma-test",
            places: BOTH,
            server: Some(Server {
                command: "urxe run -- source/src/valkey-server --rdma-bind {server} \
                          --rdma-port 6379 --port 0 --protected-mode no",
                ready: Ready::Output("Ready to accept connections rdma"),
                stays: true,
            }),
            client: "urxe run -- source/tests/rdma/rdma-test -h {server} -p 6379",
            expected: "Valkey Over RDMA test",
            limit: 120,
            known: None,
        }],
        needs: "Debian's packages have no RDMA: `make BUILD_RDMA=yes`.",
    },
    Program {
        name: "ceph",
        title: "Ceph: a monitor with ms_type = async+rdma",
        packages: &["ceph-mon", "ceph-common"],
        prepare: "",
        version: version_of!("ceph-mon"),
        runs: &[Run {
            name: "ceph -s",
            places: BOTH,
            server: Some(Server {
                command: "urxe run -- $WORKSPACE/tests/ecosystem/ceph_monitor.sh {server}",
                ready: Ready::Output("ready"),
                stays: true,
            }),
            client: "urxe run -- ceph -c ceph/ceph.conf -s",
            expected: "mon: 1 daemons, quorum a",
            limit: 60,
            known: None,
        }],
        needs: "Ceph itself warns of a low limit of locked memory, which urxe does not need.",
    },
    Program {
        name: "mooncake",
        title: "Mooncake: transfer engine",
        packages: &["python3-venv"],
        prepare: "[ ! -d venv ] || exit 0\n\
                  python3 -m venv venv.new\n\
                  venv.new/bin/pip install --quiet mooncake-transfer-engine-non-cuda==0.3.13.post1\n\
                  mv venv.new venv",
        version: "echo 0.3.13.post1",
        runs: &[Run {
            name: "write and read 1 MiB",
            places: BOTH,
            server: Some(Server {
                command: "urxe run -- venv/bin/python $WORKSPACE/tests/ecosystem/mooncake_transfer.py \
                          {server} memory",
                ready: Ready::Output("ready"),
                stays: true,
            }),
            client: "urxe run -- venv/bin/python $WORKSPACE/tests/ecosystem/mooncake_transfer.py \
                     $(hostname -I | cut -d ' ' -f 1) --peer memory",
            expected: "mooncake: correct",
            limit: 60,
            known: None,
        }],
        needs: "",
    },
    Program {
        name: "nixl",
        title: "NIXL, backend UCX",
        packages: &["python3-venv"],
        // Without dependencies, which are packages for GPUs.
        prepare: "[ ! -d venv ] || exit 0\n\
                  python3 -m venv venv.new\n\
                  venv.new/bin/pip install --quiet --no-deps nixl==1.5.1 nixl-cu12==1.5.1 numpy\n\
                  mv venv.new venv",
        version: "echo 1.5.1",
        runs: &[Run {
            name: "write and read 1 MiB, with a notification",
            places: BOTH,
            server: Some(Server {
                command: "urxe run -- venv/bin/python $WORKSPACE/tests/ecosystem/nixl_transfer.py \
                          memory",
                ready: Ready::Output("ready"),
                stays: true,
            }),
            client: "urxe run -- venv/bin/python $WORKSPACE/tests/ecosystem/nixl_transfer.py \
                     --peer memory",
            expected: "nixl: correct",
            limit: 60,
            known: None,
        }],
        needs: "The wheel contains UCX and libibverbs, the latter under another name, which `urxe run` \
replaces. It\nneeds no GPU for main memory.",
    },
    Program {
        name: "ibverbs-python",
        title: "ibverbs (Python package)",
        packages: &["python3-venv"],
        prepare: "[ ! -d venv ] || exit 0\n\
                  python3 -m venv venv.new\n\
                  venv.new/bin/pip install --quiet ibverbs==2026.10.22\n\
                  mv venv.new venv",
        version: "echo 2026.10.22",
        runs: &[Run {
            name: "write 64 KiB",
            places: BOTH,
            server: Some(Server {
                command: "urxe run -- venv/bin/python $WORKSPACE/tests/ecosystem/ibverbs_python.py \
                          {server} memory",
                ready: Ready::Output("ready"),
                stays: false,
            }),
            client: "urxe run -- venv/bin/python $WORKSPACE/tests/ecosystem/ibverbs_python.py \
                     $(hostname -I | cut -d ' ' -f 1) --peer memory",
            expected: "ibverbs: correct",
            limit: 60,
            known: None,
        }],
        needs: "",
    },
    Program {
        name: "rsockets",
        title: "Socket programs over librspreload.so",
        packages: &["redis-server", "iperf3", "nginx-light", "curl"],
        prepare: "mkdir -p www\n\
                  head -c 3000000 /dev/urandom >www/file\n\
                  cat >nginx.conf <<EOF\n\
                  daemon off; master_process off; error_log stderr; pid $PWD/nginx.pid;\n\
                  events { }\n\
                  http { access_log off; client_body_temp_path $PWD/1; proxy_temp_path $PWD/2;\n\
                  fastcgi_temp_path $PWD/3; uwsgi_temp_path $PWD/4; scgi_temp_path $PWD/5;\n\
                  server { listen 8080; root $PWD/www; } }\n\
                  EOF",
        version: "dpkg-query --show --showformat '${Package} ${Version} ' \
                  redis-server iperf3 nginx-light curl",
        runs: &[
            Run {
                name: "redis-server and redis-benchmark",
                places: BOTH,
                server: Some(Server {
                    command: "urxe run --rsockets -- redis-server --port 6379 --save '' \
                              --protected-mode no --bind {server}",
                    ready: Ready::Output("Ready to accept connections"),
                    stays: true,
                }),
                client: "urxe run --rsockets -- redis-benchmark -h {server} -n 2000 -c 4 -t get,set --csv",
                expected: "\"SET\"",
                limit: 60,
                known: None,
            },
            Run {
                name: "iperf3",
                places: BOTH,
                server: Some(Server {
                    command: "urxe run --rsockets -- iperf3 --server --one-off --bind {server}",
                    ready: Ready::ConnectionManager(5201),
                    stays: false,
                }),
                client: "urxe run --rsockets -- iperf3 --client {server} --time 1",
                expected: "receiver",
                limit: 60,
                known: None,
            },
            Run {
                name: "nginx and curl",
                places: BOTH,
                server: Some(Server {
                    command: "urxe run --rsockets -- nginx -c $PWD/nginx.conf",
                    ready: Ready::ConnectionManager(8080),
                    stays: true,
                }),
                client: "urxe run --rsockets -- curl --silent --show-error --output got \
                         http://{server}:8080/file && cmp got www/file && echo equal",
                expected: "equal",
                limit: 60,
                known: None,
            },
        ],
        needs: "`urxe run --rsockets` at both ends. nginx needs `master_process off`, since its workers \
are children\nthat inherit the listener.",
    },
    Program {
        name: "librpma",
        title: "PMDK: the examples of librpma",
        packages: &[
            "librpma-dev",
            "git",
            "cmake",
            "make",
            "gcc",
            "pkg-config",
            "libibverbs-dev",
            "librdmacm-dev",
        ],
        prepare: "$WORKSPACE/tests/ecosystem/git.sh https://github.com/pmem/rpma \
                  f52c00d18821ac573a71e9f23a6d2e8695086e95\n\
                  [ ! -x source/build/examples/13-messages-ping-pong-with-srq/client ] || exit 0\n\
                  cd source\n\
                  { cmake -B build -DBUILD_TESTS=OFF -DBUILD_DOC=OFF -DTEST_PYTHON_TOOLS=OFF .; \
                  make -C build -j$(nproc); } >../build.log 2>&1",
        version: "git -C source log -1 --format=%cs",
        runs: &[
            rpma!("01-connection", "", "Received a message: Hello client!"),
            rpma!("02-read-to-volatile", "", "Read a message: Hello client!"),
            rpma!("07-atomic-write", "1st_word 2nd_word", "used value: 16"),
            rpma!("08-messages-ping-pong", "7 5", "Value received: 11"),
            rpma!(
                "08srq-simple-messages-ping-pong-with-srq",
                "7 5",
                "Value sent: 11"
            ),
            rpma!("10-send-with-imm", "1234 a_word", "Sending value 'a_word'"),
            rpma!("11-write-with-imm", "1234", "Writing value '1234'"),
            rpma!(
                "12-receive-completion-queue",
                "7 5",
                "CLIENT: Value received: 11"
            ),
            rpma!(
                "13-messages-ping-pong-with-srq",
                "7 5",
                "value received: 12"
            ),
        ],
        needs: "Those for persistent memory work on ordinary memory too, and are not run.",
    },
    Program {
        name: "sideway",
        title: "sideway (crate)",
        packages: &["cmake", "libclang-dev", "libibverbs-dev", "librdmacm-dev"],
        prepare: build_crate!("sideway", "0.4.3"),
        version: "echo 0.4.3",
        runs: &[crate_tests!(
            "--lib --test test_qp --test test_cq --test test_mr_and_cq --test test_post_send",
            "test result: ok",
            None
        )],
        needs: "",
    },
];
