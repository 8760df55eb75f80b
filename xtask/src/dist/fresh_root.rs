//! Installs packages in a root directory that has Debian's base system only, and runs programs.
//!
//! Each check mounts an overlay over the base system, in a mount and network namespace.

use std::path::Path;
use std::process::Command;

use super::AWAIT_SERVER;
use super::products::VERSION;
use crate::debian_root;
use crate::release::succeed;

/// The suite of Debian, whose programs the check runs.
const SUITE: &str = "bookworm";
/// Debian's packages in the root beside the base system: no toolchain and no rdma-core libraries
/// other than those of the programs, and rpm.
const PACKAGES: &str = "curl,ibverbs-utils,rpm";

/// The script that runs in the namespaces: $1 is the base system, $2 the directory of packages, $3
/// the name of the tarball without its suffix, $4 the script for the fresh root.
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
python3 -m http.server --bind 127.0.0.1 --directory "$2" 8000 >/dev/null 2>&1 &
exec chroot /mnt/root env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    name="$3" sh -euxc "$4"
"#;

/// The script that runs in the fresh root, after [`AWAIT_SERVER`].
const INSIDE: &str = r#"
pingpong() {
    "$@" ibv_rc_pingpong -g 0 &
    await_server
    "$@" ibv_rc_pingpong -g 0 127.0.0.1
    wait "$!"
}

# From the download to a program.
began=$(date +%s%N)
mkdir /tmp/first
curl --fail --silent --show-error --retry 20 --retry-connrefused --retry-delay 1 \
    --output /tmp/first/urxe.tgz "http://127.0.0.1:8000/$name.tgz"
grep "$name.tgz" /packages/SHA256SUMS | sed 's/ .*/  \/tmp\/first\/urxe.tgz/' | sha256sum --check
tar -xzf /tmp/first/urxe.tgz -C /tmp/first --strip-components=1
pingpong /tmp/first/bin/urxe run --
echo "from the download to the end of ibv_rc_pingpong: $(( ($(date +%s%N) - began) / 1000000 )) ms"
rm -r /tmp/first

cd /packages
sha256sum --check SHA256SUMS

# The tarball, unpacked anywhere.
mkdir /opt/urxe
tar -xzf "$name.tgz" -C /opt/urxe --strip-components=1
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
of() { echo "$1"_*_"$(dpkg --print-architecture)".deb; }
dpkg --install "$(of urxe)" "$(of urxe-dev)"
test -e /usr/include/urxe/infiniband/verbs.h
test -e /usr/share/man/man1/urxe-run.1
test -e /usr/share/doc/urxe-dev/LICENSE-MIT
hash -r
urxe demo --transfer 8MiB --atomics 1000
pingpong urxe run --

# Not until its package is installed does urxe replace libibverbs for the system.
ldconfig -p | grep 'libibverbs.so.1 .*/x86_64-linux-gnu\|libibverbs.so.1 .*/aarch64-linux-gnu'
if ldconfig -p | grep urxe; then exit 1; fi
dpkg --install "$(of urxe-replacements)"
pingpong env
dpkg --remove urxe-replacements
if ldconfig -p | grep urxe; then exit 1; fi
dpkg --remove urxe-dev urxe
test ! -e /usr/bin/urxe

# The RPM packages. The database of rpm has none of the system's packages.
of() { echo "$1"-[0-9]*."$(uname -m)".rpm; }
rpm --query --package --requires "$(of urxe)" | grep -x 'libc.so.6(GLIBC_2.[0-9]*)(64bit)'
rpm --install --nodeps "$(of urxe)"
rpm --install "$(of urxe-devel)"
rpm --query --package --requires "$(of urxe-replacements)" | grep -x /sbin/ldconfig
rpm --install --nodeps "$(of urxe-replacements)"
test -e /usr/share/doc/urxe-devel/LICENSE-MIT
rpm --verify --nodeps urxe urxe-devel urxe-replacements
test -e /usr/include/urxe/infiniband/verbs.h
pingpong urxe run --
ldconfig -p | grep urxe
pingpong env
rpm --erase urxe-replacements
if ldconfig -p | grep urxe; then exit 1; fi
rpm --erase urxe-devel urxe
test ! -e /usr/lib/urxe
test ! -e /usr/bin/urxe
"#;

/// Installs the packages in `packages` of the host's target and runs programs.
pub(super) fn check(packages: &Path, target: &Path, triple: &str) -> Result<(), String> {
    let base = debian_root::make(target, SUITE, PACKAGES)?;
    succeed(
        Command::new("timeout")
            .args(["300", "unshare", "--mount", "--net", "--pid", "--fork"])
            .args(["--kill-child", "sh", "-c", OUTSIDE, "sh"])
            .args([base.as_path(), packages])
            .arg(format!("urxe-{VERSION}-{triple}"))
            .arg([AWAIT_SERVER, INSIDE].concat()),
    )
    .map_err(|error| format!("in the fresh root: {error}; see its output above"))
}
