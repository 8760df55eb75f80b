//! The forms that the runs of similar programs have in common.

use crate::ecosystem::program::Place::{self, Cluster, OneHost, TwoHosts};
use crate::ecosystem::program::{Ready, Run, Server};

/// Prints the version of Debian packages.
macro_rules! version_of {
    ($package:literal) => {
        concat!("dpkg-query --show --showformat '${Version} ' ", $package)
    };
}

pub(super) const BOTH: &[Place] = &[OneHost, TwoHosts];

/// A run with a server that listens at a TCP port and exits after its client.
pub(super) const fn pair(
    name: &'static str,
    server: &'static str,
    port: u16,
    client: &'static str,
    expected: &'static str,
) -> Run {
    Run {
        name,
        places: BOTH,
        server: Some(Server {
            command: server,
            ready: Ready::Tcp(port),
            stays: false,
        }),
        client,
        expected,
        limit: 120,
        known: None,
    }
}

macro_rules! ucx_perftest {
    ($name:literal, $test:literal) => {
        pair(
            $name,
            concat!("urxe run -- ucx_perftest -t ", $test),
            13337,
            concat!("urxe run -- ucx_perftest {server} -t ", $test),
            "Final:",
        )
    };
}

/// A run of perftest, whose client fails if the server does not listen yet.
macro_rules! perftest {
    ($command:literal, $expected:literal) => {
        pair(
            $command,
            concat!("urxe run -- ", $command),
            18515,
            concat!("urxe run -- ", $command, " {server}"),
            $expected,
        )
    };
}

/// A run of a program of rdmacm-utils. `$stays` is whether its server continues after its client.
macro_rules! rdmacm {
    (
        $name:literal,
        $server:literal,
        $ready:expr,
        $client:literal,
        $expected:literal,
        $stays:literal
    ) => {
        Run {
            name: $name,
            places: BOTH,
            server: Some(Server {
                command: concat!("urxe run -- ", $server),
                ready: $ready,
                stays: $stays,
            }),
            client: concat!("urxe run -- ", $client),
            expected: $expected,
            limit: 120,
            known: None,
        }
    };
}

macro_rules! fi_pingpong {
    ($name:literal, $options:literal) => {
        pair(
            $name,
            concat!("urxe run -- fi_pingpong ", $options),
            47592,
            concat!("urxe run -- fi_pingpong ", $options, " {server}"),
            "64k",
        )
    };
}

/// A run on hosts of the cluster, without a server.
pub(super) const fn cluster(
    name: &'static str,
    command: &'static str,
    expected: &'static str,
) -> Run {
    Run {
        name,
        places: &[Cluster],
        server: None,
        client: command,
        expected,
        limit: 240,
        known: None,
    }
}

/// All hosts of the cluster with this number of slots, as Open MPI writes them.
macro_rules! eight {
    ($slots:literal) => {
        concat!(
            "192.0.2.1:",
            $slots,
            ",192.0.2.2:",
            $slots,
            ",192.0.2.3:",
            $slots,
            ",192.0.2.4:",
            $slots,
            ",192.0.2.5:",
            $slots,
            ",192.0.2.6:",
            $slots,
            ",192.0.2.7:",
            $slots,
            ",192.0.2.8:",
            $slots
        )
    };
}

/// Open MPI, without its binding of ranks to cores: the emulated hosts have the same cores.
macro_rules! open_mpi {
    ($hosts:expr, $rest:literal) => {
        concat!(
            "mpirun.openmpi --allow-run-as-root --bind-to none",
            " --mca plm_rsh_agent $WORKSPACE/tests/ecosystem/agent.sh",
            " --mca plm_rsh_no_tree_spawn 1 --mca pml ucx --mca osc ucx -H ",
            $hosts,
            " ",
            $rest
        )
    };
}

/// The same by Open MPI's other way to RDMA: libfabric's provider `verbs` with `ofi_rxm`.
macro_rules! open_mpi_libfabric {
    ($hosts:expr, $rest:literal) => {
        concat!(
            "mpirun.openmpi --allow-run-as-root --bind-to none",
            " --mca plm_rsh_agent $WORKSPACE/tests/ecosystem/agent.sh",
            " --mca plm_rsh_no_tree_spawn 1 --mca pml cm --mca mtl ofi",
            " --mca mtl_ofi_provider_include 'verbs;ofi_rxm' -H ",
            $hosts,
            " ",
            $rest
        )
    };
}

macro_rules! mpich {
    ($hosts:literal, $rest:literal) => {
        concat!(
            "mpirun.mpich -localhost 192.0.2.100 -launcher rsh",
            " -launcher-exec $WORKSPACE/tests/ecosystem/agent.sh -hosts ",
            $hosts,
            " ",
            $rest
        )
    };
}

macro_rules! qperf {
    ($name:literal, $tests:literal, $expected:literal) => {
        Run {
            name: $name,
            places: BOTH,
            server: Some(Server {
                command: "urxe run -- qperf",
                ready: Ready::Tcp(19765),
                stays: true,
            }),
            client: concat!("urxe run -- qperf -t 1 -cm 1 {server} ", $tests),
            expected: $expected,
            limit: 120,
            known: None,
        }
    };
}

macro_rules! fio {
    ($name:literal, $verb:literal) => {
        Run {
            name: $name,
            places: BOTH,
            server: Some(Server {
                command: "urxe run -- fio --name=server --ioengine=rdma --port=9901 --bs=64k \
                          --size=16m --rw=read --iodepth=16 --filename=unused",
                ready: Ready::ConnectionManager(9901),
                stays: false,
            }),
            client: concat!(
                "urxe run -- fio --name=client --ioengine=rdma --hostname={server} --port=9901 ",
                "--rw=write --bs=64k --size=16m --iodepth=4 --iodepth_batch_complete=1 --verb=",
                $verb
            ),
            expected: "io=16.0MiB",
            limit: 120,
            known: None,
        }
    };
}

pub(super) const ISER: Server = Server {
    command: "urxe run -- $WORKSPACE/tests/ecosystem/iser_target.sh {server}",
    ready: Ready::Output("ready"),
    stays: true,
};

macro_rules! iser {
    ($name:literal, $command:literal, $expected:literal) => {
        Run {
            name: $name,
            places: BOTH,
            server: Some(ISER),
            client: concat!(
                "urxe run -- ",
                $command,
                " -i iqn.2026-01.example:host iser://{server}:3260/iqn.2026-01.example:disk/1"
            ),
            expected: $expected,
            limit: 120,
            known: None,
        }
    };
}

/// Builds the programs of tests/ecosystem with this compiler.
macro_rules! mpi_programs {
    ($compiler:literal) => {
        concat!(
            "for name in transfers stencil alltoall pingpong; do ",
            $compiler,
            " -O2 -o $name $WORKSPACE/tests/ecosystem/$name.c; done"
        )
    };
}

/// Unpacks a crate as Cargo downloads it, and builds its tests with its own lock file.
macro_rules! build_crate {
    ($name:literal, $version:literal) => {
        concat!(
            "cargo info --quiet ",
            $name,
            "@",
            $version,
            " >/dev/null\n",
            "[ -d source ] || cp -r ${CARGO_HOME:-$HOME/.cargo}/registry/src/*/",
            $name,
            "-",
            $version,
            " source\n",
            "cd source\n",
            "CARGO_TARGET_DIR=../target ",
            "cargo test --quiet --locked --no-run"
        )
    };
}

/// Runs the tests of a crate on one host.
macro_rules! crate_tests {
    ($arguments:literal, $expected:literal, $known:expr) => {
        Run {
            name: "the crate's tests",
            places: &[OneHost],
            server: None,
            // Some tests provoke errors, of which urxe writes messages.
            client: concat!(
                "cd source && CARGO_TARGET_DIR=../target ",
                "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='urxe run --' ",
                "cargo test --quiet --locked --offline --no-fail-fast ",
                $arguments,
                " 2>&1"
            ),
            expected: $expected,
            limit: 600,
            known: $known,
        }
    };
}

/// A run of an example of librpma. `$arguments` are those of the client after address and port.
macro_rules! rpma {
    ($example:literal, $arguments:literal, $expected:literal) => {
        Run {
            name: $example,
            places: BOTH,
            server: Some(Server {
                command: concat!(
                    "urxe run -- source/build/examples/",
                    $example,
                    "/server {server} 7204"
                ),
                ready: Ready::ConnectionManager(7204),
                stays: false,
            }),
            client: concat!(
                "urxe run -- source/build/examples/",
                $example,
                "/client {server} 7204 ",
                $arguments
            ),
            expected: $expected,
            limit: 60,
            known: None,
        }
    };
}

macro_rules! fabtest {
    ($test:literal, $expected:literal) => {
        Run {
            name: $test,
            places: &[TwoHosts],
            server: Some(Server {
                command: concat!("urxe run -- install/bin/", $test),
                ready: Ready::Seconds(2),
                stays: false,
            }),
            client: concat!("urxe run -- install/bin/", $test, " {server}"),
            expected: $expected,
            limit: 120,
            known: None,
        }
    };
}
