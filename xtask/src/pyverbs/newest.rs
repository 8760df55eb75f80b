//! rdma-core's suite and perftest of Debian's newest release, over the urxe of this workspace.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::error::Error;
use super::options::{NAME, PyverbsOptions};
use super::results::Results;
use crate::debian_root;

/// The release.
pub(super) const RELEASE: &str = "trixie";

/// Its packages. The suite looks interfaces up by `ip`.
const PACKAGES: &str = "ibverbs-utils,iproute2,perftest,python3-pyverbs";

/// The number of tests of rdma-core 56 that must pass. Three more do where huge pages can be
/// reserved.
pub(super) const FLOOR: usize = 164;

/// The time limit for everything. Most tests take less than a second.
const LIMIT_SECONDS: &str = "300";

/// The script that runs in namespaces, with interfaces of their own: $1 is the base system, $2 the
/// directory with urxe, $3 that of the runner, $4 that of the results, $5 the inner script; the other
/// arguments are those of the suite.
const OUTSIDE: &str = r#"
set -eu
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
cd /mnt/root
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mkdir urxe runner results
mount --bind "$2" urxe
mount --bind "$3" runner
mount --bind "$4" results
inside=$5
shift 5
exec chroot . env -i HOME=/root PATH=/urxe:/usr/sbin:/usr/bin:/sbin:/bin sh -euc "$inside" sh "$@"
"#;

/// The script that runs in the root.
const INSIDE: &str = r#"
mkdir -p /suite/tests
cp /usr/share/doc/rdma-core/tests/* /suite/tests
gunzip /suite/tests/*.gz
rm /suite/tests/test_mlx5* /suite/tests/test_efa*
cd /suite
urxe run -- python3 /runner/run.py /suite /results/results.txt "$@" > /results/output.txt 2>&1 ||
    echo "the suite ended with $?"
test $# = 0 || exit 0
for program in send_bw send_lat write_bw write_lat read_bw read_lat atomic_bw atomic_lat; do
    for options in "" -R; do
        urxe run -- ib_$program -d urxe_va -F -n 500 $options > /results/server.txt 2>&1 &
        tries=0
        # The server listens after an unknown time.
        until urxe run -- ib_$program -d urxe_va -F -n 500 $options 192.0.2.1 > /results/client.txt 2>&1
        do
            tries=$((tries + 1))
            if test $tries = 20; then
                echo "ib_$program $options fails:"
                cat /results/client.txt /results/server.txt
                exit 1
            fi
            sleep 0.2
        done
        wait $!
    done
done
"#;

/// Runs the suite, and perftest unless tests are selected. Returns the results and the problem.
pub(super) fn run(
    options: &PyverbsOptions,
    workspace: &Path,
    target: &Path,
    urxe: &Path,
) -> Result<(Results, Option<String>), Error> {
    let base = debian_root::make(target, RELEASE, PACKAGES).map_err(Error::NoRoot)?;
    let directory = target.join(format!("{NAME}-{RELEASE}"));
    fs::create_dir_all(&directory).map_err(Error::at(&directory))?;
    let written = directory.join("results.txt");
    fs::write(&written, "").map_err(Error::at(&written))?;
    let runner = workspace.join("tests/pyverbs");
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=10", LIMIT_SECONDS])
        .args(["unshare", "--mount", "--net", "--pid", "--fork"])
        .args(["--kill-child", "sh"])
        .arg(runner.join("network.sh"))
        .args(["sh", "-c", OUTSIDE, "sh"])
        .arg(&base)
        .arg(urxe.parent().unwrap_or(Path::new("/")))
        .args([&runner, &directory])
        .arg(INSIDE)
        .stdin(Stdio::null());
    for pattern in &options.pattern {
        command.args(["-k", pattern]);
    }
    let status = command.status().map_err(Error::at(Path::new("timeout")))?;
    let text = fs::read_to_string(&written).map_err(Error::at(&written))?;
    let results = Results::parse(&text);
    println!("\npyverbs: rdma-core and perftest of Debian {RELEASE}");
    results.print();
    let output = directory.join("output.txt");
    println!(
        "pyverbs: the output of the tests is in {}",
        output.display()
    );
    let floor = if options.pattern.is_empty() { FLOOR } else { 0 };
    let problem = results
        .failures()
        .or_else(|| (!status.success()).then(|| format!("perftest ended with {status}")))
        .or_else(|| results.too_few(floor))
        .map(|problem| format!("{RELEASE}: {problem}"));
    Ok((results, problem))
}
