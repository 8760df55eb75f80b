//! Generates `docs/COMPATIBILITY.md` from the last complete run on each kernel.

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::ValueEnum;

use super::error::{AtPath, Result, run};
use super::guest::{Guest, Kernel};
use super::report::Report;

const HEAD: &str = "# Compatibility with the kernel's rxe

`cargo xtask rxe` writes this page after each full run. It boots Linux in QEMU, with the kernel's rxe
in one network namespace and urxe in another, joined by a veth pair, and runs each cell of the matrix:
`cargo xtask rxe --list` shows its cells. Each data cell compares every byte, and the memory beside it.
Each error cell compares what both sides see with what two rxe devices in the same guest report. rxe's own
counters and the kernel's log are cells too: on a clean link rxe must find nothing wrong with our packets.
In the cells of programs one side has urxe as its libibverbs and librdmacm, the other side rdma-core's with
rxe; in those of the groups `cm` and `rsockets` they connect by the connection manager, which on that side is
the kernel's.

*Known* cells show a difference that is written down, with its reason, in `tests/rxe/known.txt`;
one that shows anything else is red.

Numbers in error cells are completion statuses (`enum ibv_wc_status`) in the order of arrival: 0
success, 1 local length, 2 local QP operation, 4 local protection, 5 flushed, 8 local access, 9 remote
invalid request, 10 remote access, 11 remote operation, 12 retries exceeded, 13 RNR retries exceeded.
State 3 is RTS, 5 is SQE, 6 is error.

Differences from rxe that are no cells of the matrix:

- A receive completion of a reliable or unreliable connection has no `IBV_WC_GRH`: no header precedes
  the data. NICs do the same. rxe sets the flag on every receive completion.
- A request for a notification (`ibv_req_notify_cq`) is satisfied at once by a completion in the queue
  that no event announced, as with NICs, whose request has the consumer index. UCX relies on it. rxe
  notifies of completions that are added later only.
- A datagram whose address handle is of another protection domain than its queue pair is refused
  (`ibv_post_send` returns EINVAL). rdma-core's provider for rxe does not compare them.
- Under `urxe run` the command `rdma` shows urxe's devices before the kernel's. `ifindex` is the
  index of the network interface, so it may be that of a kernel device too. A netlink socket of the
  program's own (`NETLINK_RDMA`) shows the kernel's devices only.
- `ibv_get_device_index` returns -1, which means that the kernel has no index for the device. UCX
  1.20 and later would ask the kernel about the device with that index, and write errors where the
  kernel has no RDMA.
- A transition to RTR and an address handle need a route of the kernel to the peer, as in the kernel
  (ENETUNREACH, EHOSTUNREACH). The kernel also looks the neighbour up, and returns ETIMEDOUT after about
  a second if it does not answer. urxe does not: `timeout` and `retry_cnt` detect an absent neighbour.
";

/// Stores the section of this run.
pub(crate) fn keep(
    directory: &Path,
    kernel: Kernel,
    guest: &Guest,
    report: &Report,
    again: &[String],
) -> Result<()> {
    let date = run(Command::new("date").args(["-u", "+%Y-%m-%d"]), "coreutils")?;
    let mut versions = vec![format!("urxe {}", env!("CARGO_PKG_VERSION"))];
    for (package, name) in [("libibverbs1", "rdma-core"), ("perftest", "perftest")] {
        if let Some(version) = guest.version_of(package) {
            versions.push(format!("{name} {version}"));
        }
    }
    let mut text = format!(
        "\n## Linux {}\n\n{}, {}.\n\n{}",
        guest.release,
        date.trim(),
        versions.join(", "),
        report.page()
    );
    if !again.is_empty() {
        text.push_str("\nRun a second time after a red result:\n\n");
    }
    for cell in again {
        text.push_str(&format!("- `{cell}`\n"));
    }
    let file = directory.join(kernel.name()).join("page.md");
    fs::write(&file, text).at(&file)
}

/// Returns the complete page.
pub(crate) fn write(directory: &Path) -> Result<String> {
    let mut page = HEAD.to_owned();
    for kernel in Kernel::value_variants() {
        let file = directory.join(kernel.name()).join("page.md");
        if file.exists() {
            page.push_str(&fs::read_to_string(&file).at(&file)?);
        }
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::HEAD;

    #[test]
    fn page_begins_with_the_text_that_the_next_run_writes() {
        assert!(include_str!("../../../docs/COMPATIBILITY.md").starts_with(HEAD));
    }
}
