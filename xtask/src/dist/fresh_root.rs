//! Installs packages in a root directory that has Debian's base system only, and runs programs.
//!
//! debootstrap makes the base system once. Each check mounts an overlay over it, in a mount and
//! network namespace, so that the base system is unchanged.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::release::succeed;

/// The suite of Debian, whose programs the check runs.
const SUITE: &str = "bookworm";
/// Debian's packages in the root beside the base system: no toolchain and no rdma-core libraries
/// other than those of the programs.
const PACKAGES: &str = "ibverbs-utils";
/// The mirror, unless `URXE_DEBIAN_MIRROR` names another one.
const MIRROR: &str = "http://deb.debian.org/debian";

/// The script that runs in the namespaces: $1 is the base system, $2 the directory of packages.
const OUTSIDE: &str = r#"
set -eu
ip link set lo up
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
mount -t proc proc /mnt/root/proc
mount --rbind /sys /mnt/root/sys
mount --rbind /dev /mnt/root/dev
mkdir /mnt/root/packages
mount --bind "$2" /mnt/root/packages
exec chroot /mnt/root env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -euxc "$3"
"#;

/// The script that runs in the fresh root.
const INSIDE: &str = r#"
cd /packages
sha256sum --check SHA256SUMS

# The tarball, unpacked anywhere.
mkdir /opt/urxe
tar -xzf urxe-*.tgz -C /opt/urxe --strip-components=1
PATH="/opt/urxe/bin:$PATH" urxe demo --transfer 8MiB --atomics 1000
test ! -e /root/.cache/urxe
# The command alone.
cp /opt/urxe/bin/urxe /usr/local/bin/urxe
rm -r /opt/urxe
hash -r
urxe run -- ibv_devices | grep urxe_
test -e /root/.cache/urxe
rm /usr/local/bin/urxe

# The packages.
dpkg --install urxe_*.deb urxe-dev_*.deb
test -e /usr/include/urxe/infiniband/verbs.h
test -e /usr/share/man/man1/urxe-run.1
hash -r
urxe demo --transfer 8MiB --atomics 1000
pingpong() {
    "$@" ibv_rc_pingpong -g 0 &
    sleep 1
    "$@" ibv_rc_pingpong -g 0 127.0.0.1
    wait "$!"
}
pingpong urxe run --

# Not until its package is installed does urxe replace libibverbs for the system.
ldconfig -p | grep 'libibverbs.so.1 .*/x86_64-linux-gnu\|libibverbs.so.1 .*/aarch64-linux-gnu'
if ldconfig -p | grep urxe; then exit 1; fi
dpkg --install urxe-replacements_*.deb
pingpong env
dpkg --remove urxe-replacements
if ldconfig -p | grep urxe; then exit 1; fi
"#;

/// Returns why the check cannot run here, if so.
pub(super) fn obstacle() -> Option<String> {
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    if !is_root {
        return Some("a fresh root needs root".to_owned());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .any(|directory| directory.join("debootstrap").is_file());
    (!found).then(|| "a fresh root needs debootstrap: apt-get install debootstrap".to_owned())
}

/// Installs the packages in `packages` and runs programs.
pub(super) fn check(packages: &Path, target: &Path) -> Result<(), String> {
    if let Some(obstacle) = obstacle() {
        return Err(obstacle);
    }
    let base = base_system(target)?;
    succeed(
        Command::new("timeout")
            .args(["300", "unshare", "--mount", "--net", "--pid", "--fork"])
            .args(["--kill-child", "sh", "-c", OUTSIDE, "sh"])
            .args([base.as_path(), packages])
            .arg(INSIDE),
    )
    .map_err(|error| format!("in the fresh root: {error}; see its output above"))
}

/// Returns the directory with the base system.
fn base_system(target: &Path) -> Result<PathBuf, String> {
    let base = target.join(format!("{SUITE}-{PACKAGES}"));
    if base.exists() {
        return Ok(base);
    }
    let mirror = env::var("URXE_DEBIAN_MIRROR").unwrap_or_else(|_| MIRROR.to_owned());
    println!("dist: debootstrap {SUITE} from {mirror}");
    // Renamed when complete.
    let draft = target.join(format!("{SUITE}-{PACKAGES}.{}", std::process::id()));
    let made = succeed(
        Command::new("debootstrap")
            .args(["--variant=minbase", &format!("--include={PACKAGES}"), SUITE])
            .arg(&draft)
            .arg(&mirror)
            .stdout(std::process::Stdio::null()),
    );
    made.and_then(|()| {
        std::fs::rename(&draft, &base).map_err(|error| format!("{}: {error}", base.display()))
    })
    .inspect_err(|_| {
        // The directory is in the target directory, and the failure is already reported.
        let _ = std::fs::remove_dir_all(&draft);
    })?;
    Ok(base)
}
