//! Runs the tarball for musl in a root directory that has musl and no other C library.
//!
//! The root has the dynamic linker of Debian's package `musl`, and busybox. The C examples are
//! compiled by `musl-gcc` against the headers of the tarball.

use std::path::Path;
use std::process::Command;

use super::await_server::AWAIT_SERVER;
use crate::packages;
use crate::release::succeed;

/// Debian's packages: the library with its compiler, a shell for the root, the kernel's headers.
const PACKAGES: [&str; 3] = ["musl-tools", "busybox-static", "linux-libc-dev"];

/// The script that runs in namespaces of its own: $1 is the tarball, $2 the C examples, $3 the
/// script for the root.
const OUTSIDE: &str = r#"
set -eu
ip link set lo up
mount -t tmpfs tmpfs /mnt
root=/mnt/root
mkdir -p $root/bin $root/lib $root/dev $root/proc $root/sys $root/tmp $root/opt /mnt/kernel
tar -xzf "$1" -C $root/opt --strip-components=1
for loader in /lib/ld-musl-*.so.1; do cp -L "$loader" $root/lib; done
cp /bin/busybox $root/bin
for name in sh cat grep ip sleep; do ln -s busybox "$root/bin/$name"; done
# Of musl-gcc's own directories none has the kernel's headers.
for name in linux rdma asm-generic; do ln -s "/usr/include/$name" /mnt/kernel; done
ln -s "/usr/include/$(uname -m)-linux-gnu/asm" /mnt/kernel
for name in list_devices connected datagram shared_receives; do
    musl-gcc -O2 -Wall -Wextra -Werror -pthread -I $root/opt/include/urxe -idirafter /mnt/kernel \
        "$2/$name.c" "$2/common.c" -L $root/opt/lib/urxe/replacements -l:libibverbs.so.1 \
        -o "$root/bin/$name"
done
mount -t proc proc $root/proc
mount --rbind /sys $root/sys
mount --rbind /dev $root/dev
exec chroot $root /bin/busybox env -i HOME=/tmp PATH=/opt/bin:/bin sh -euxc "$3"
"#;

/// The script that runs in the root, after [`AWAIT_SERVER`].
const INSIDE: &str = r#"
urxe doctor
urxe run -- list_devices
for name in connected datagram; do
    urxe run -- $name &
    await_server
    urxe run -- $name 127.0.0.1
    wait "$!"
done
# All ends are in one process.
urxe run -- shared_receives
urxe demo --transfer 8MiB --atomics 1000 --skip-pingpong
"#;

/// Runs programs with a tarball for musl.
pub(super) fn check(tarball: &Path, workspace: &Path) -> Result<(), String> {
    packages::provide_packages(&PACKAGES);
    succeed(
        Command::new("timeout")
            .args(["300", "unshare", "--mount", "--net", "--pid", "--fork"])
            .args(["--kill-child", "sh", "-c", OUTSIDE, "sh"])
            .args([tarball, &workspace.join("examples/c")])
            .arg([AWAIT_SERVER, INSIDE].concat()),
    )
    .map_err(|error| format!("in the root with musl: {error}; see its output above"))
}
