#!/usr/bin/env bash
# The steps of action.yml: downloads a tarball, verifies it, and sets PATH and variables for the
# steps that follow. Needs VERSION, SHA256, URL, REPLACE and the runner's variables.
set -euo pipefail

name="urxe-$VERSION-$(uname -m)-unknown-linux-gnu"
tarball="$RUNNER_TEMP/$name.tgz"
curl --fail --silent --show-error --location --retry 3 --output "$tarball" "$URL/$name.tgz"
if ! echo "$SHA256  $tarball" | sha256sum --check --quiet; then
    echo "::error::the checksum of $URL/$name.tgz is not the input sha256 ($SHA256)"
    exit 1
fi
tar -xzf "$tarball" -C "$RUNNER_TEMP"
directory="$RUNNER_TEMP/$name"
echo "$directory/bin" >> "$GITHUB_PATH"
echo "directory=$directory" >> "$GITHUB_OUTPUT"

# The runner's line in Cargo's configuration, so `cargo test` and `cargo run` see the devices in
# /sys as well.
runner="CARGO_TARGET_$(uname -m | tr '[:lower:]' '[:upper:]')_UNKNOWN_LINUX_GNU_RUNNER"
echo "$runner=$directory/bin/urxe run --" >> "$GITHUB_ENV"
if [ "$REPLACE" = true ]; then
    "$directory/bin/urxe" env --format github >> "$GITHUB_ENV"
fi
"$directory/bin/urxe" devices
