#!/usr/bin/env bash
# The steps of action.yml: downloads a tarball, verifies it, and sets PATH and variables for the
# steps that follow. Needs VERSION, SHA256, URL, REPLACE and the runner's variables.
set -euo pipefail

fail() {
    echo "::error::$1"
    exit 1
}

if [ "$(uname -s)" != Linux ]; then
    fail "urxe runs on Linux only; this runner has $(uname -s)"
fi
# The release has other tarballs for musl, with other checksums.
case "$(getconf GNU_LIBC_VERSION 2>/dev/null)" in
glibc*) libc=gnu ;;
*) libc=musl ;;
esac
url=${URL:-https://github.com/urxe/urxe/releases/download/v$VERSION}
name="urxe-$VERSION-$(uname -m)-unknown-linux-$libc"
tarball="$RUNNER_TEMP/$name.tgz"
command -v curl >/dev/null || fail "the action needs curl; install it in a step before this one"
curl --fail --silent --show-error --location --retry 3 --output "$tarball" "$url/$name.tgz" ||
    fail "cannot download $url/$name.tgz; compare the inputs version and url with the releases"
echo "$SHA256  $tarball" | sha256sum -c >/dev/null ||
    fail "the checksum of $url/$name.tgz is not the input sha256 ($SHA256)"
tar -xzf "$tarball" -C "$RUNNER_TEMP"
directory="$RUNNER_TEMP/$name"
echo "$directory/bin" >> "$GITHUB_PATH"
echo "directory=$directory" >> "$GITHUB_OUTPUT"

# The runner's line in Cargo's configuration, so `cargo test` and `cargo run` see the devices in
# /sys as well.
runner="CARGO_TARGET_$(echo "$(uname -m)_unknown_linux_$libc" | tr '[:lower:]' '[:upper:]')_RUNNER"
echo "$runner=$directory/bin/urxe run --" >> "$GITHUB_ENV"
if [ "$REPLACE" = true ]; then
    "$directory/bin/urxe" env --format github >> "$GITHUB_ENV"
fi
"$directory/bin/urxe" devices
