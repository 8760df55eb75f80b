//! Runs the tarball for ARM64 on a host of another architecture, by QEMU's emulation of programs.
//!
//! Debian's packages for ARM64 are unpacked, not installed.

use std::path::Path;
use std::process::Command;

use super::AWAIT_SERVER;
use crate::packages;
use crate::release::succeed;

/// The emulator, and Debian's package with it.
const PACKAGES: [&str; 1] = ["qemu-user"];

/// The script that unpacks Debian's packages in the directory $1.
const UNPACK: &str = r#"
set -eu
mkdir -p "$1/lists/partial" "$1/cache/archives/partial" "$1/root"
cd "$1"
: >status
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] http://deb.debian.org/debian bookworm main" >sources.list
apt() {
    apt-get --quiet=2 -o APT::Architecture=arm64 -o APT::Architectures=arm64 \
        -o Dir::Etc::SourceList="$PWD/sources.list" -o Dir::Etc::SourceParts=- \
        -o Dir::State::Lists="$PWD/lists" -o Dir::State::Status="$PWD/status" \
        -o Dir::Cache="$PWD/cache" -o APT::Sandbox::User=root "$@"
}
apt update
apt download libc6 libgcc-s1 ibverbs-utils libibverbs1 libnl-3-200 libnl-route-3-200
for package in *.deb; do
    dpkg-deb --extract "$package" root
done
touch complete
"#;

/// The script that runs programs in namespaces of its own, after [`AWAIT_SERVER`]: $1 is the
/// directory with the unpacked packages, $2 the tarball. The demo executes itself, which needs the
/// emulator in the kernel's list of formats.
const RUN: &str = r#"
set -eu
ip link set lo up
mount -t tmpfs tmpfs /mnt
tar -xzf "$2" -C /mnt --strip-components=1
export QEMU_LD_PREFIX="$1/root"
libraries=$1/root/usr/lib/aarch64-linux-gnu:$1/root/lib/aarch64-linux-gnu
set -x
qemu-aarch64 /mnt/bin/urxe doctor
for service in rc uc ud; do
    program() {
        qemu-aarch64 -E LD_LIBRARY_PATH="/mnt/lib/urxe/replacements:$libraries" \
            "$QEMU_LD_PREFIX/usr/bin/ibv_${service}_pingpong" -g 0 "$@"
    }
    program &
    await_server
    program 127.0.0.1
    wait "$!"
done
"#;

/// Runs programs with a tarball for ARM64; `target` is Cargo's target directory.
pub(super) fn check(tarball: &Path, target: &Path) -> Result<(), String> {
    packages::provide_packages(&PACKAGES);
    let directory = target.join("arm64");
    if !directory.join("complete").exists() {
        succeed(
            Command::new("sh")
                .args(["-c", UNPACK, "sh"])
                .arg(&directory),
        )?;
    }
    succeed(
        Command::new("timeout")
            .args(["300", "unshare", "--mount", "--net", "--pid", "--fork"])
            .args(["--kill-child", "sh", "-c"])
            .arg([AWAIT_SERVER, RUN].concat())
            .arg("sh")
            .args([directory.as_path(), tarball]),
    )
    .map_err(|error| format!("on emulated ARM64: {error}; see its output above"))
}
