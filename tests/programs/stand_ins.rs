//! Programs linked with `libmlx5.so.1` and `libefa.so.1` on systems without these libraries.

use std::time::Duration;

use crate::common::require::{Need, is_root, require};
use crate::common::run::{Finished, run};
use crate::common::runner::Runner;
use crate::common::skip_test::skip_test;

const LIMIT: Duration = Duration::from_secs(60);

/// A shell script that hides the two libraries from a command by mounts.
const HIDE: &str = "
    for library in libmlx5.so.1 libefa.so.1; do
        path=$(ldconfig -p | sed -n \"s|.*$library .*=> ||p\" | head -n 1)
        if [ -n \"$path\" ]; then
            directory=$(dirname $(realpath $path))
            break
        fi
    done
    if [ -n \"$directory\" ]; then
        mount -t tmpfs tmpfs /mnt && mkdir /mnt/upper /mnt/work || exit 77
        mount -t overlay overlay $directory \
            -o lowerdir=$directory,upperdir=/mnt/upper,workdir=/mnt/work || exit 77
        rm -f $directory/libmlx5.so* $directory/libefa.so*
    fi
    exec \"$@\"
";

/// Runs a command without the libraries. Returns `None` where they cannot be hidden.
fn without_libraries(words: &[&str]) -> Option<Finished> {
    let flags = if is_root() { "-m" } else { "-rm" };
    let mut command = Runner::here().command("unshare");
    command.args([flags, "sh", "-c", HIDE, "hide"]).args(words);
    let finished = run(words[0], command, LIMIT);
    if finished.status.code() == Some(77) {
        skip_test("needs overlay file systems, to hide libraries");
        return None;
    }
    Some(finished)
}

#[test]
fn program_starts_without_the_provider_libraries_it_needs() {
    if !require(&[
        Need::Program("ib_write_bw", "perftest"),
        Need::UserNamespaces,
    ]) {
        return;
    }
    let Some(bare) = without_libraries(&["ib_write_bw", "--help"]) else {
        return;
    };
    // The condition of the test: the program does not start by itself.
    assert_eq!(bare.status.code(), Some(127), "{bare}");
    let urxe = Runner::here().urxe();
    let urxe = urxe.get_program().to_str().expect("no odd characters");
    let with = without_libraries(&[urxe, "run", "--", "ib_write_bw", "--help"]);
    let with = with.expect("it was possible before");
    assert!(with.stdout.contains("Usage:"), "{with}");
    assert!(with.stderr.is_empty(), "{with}");
}

#[test]
fn installed_provider_libraries_are_used() {
    if !require(&[Need::Program("ib_write_bw", "perftest")]) {
        return;
    }
    let mut command = Runner::here().verbs("sh");
    command.args(["-c", "ldd $(command -v ib_write_bw)"]);
    let finished = run("ldd", command, LIMIT).success();
    let line = finished
        .stdout
        .lines()
        .find(|line| line.contains("libmlx5.so.1"));
    assert!(
        !line.expect("it is linked with it").contains("instead-of"),
        "{finished}"
    );
}
