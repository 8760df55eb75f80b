#!/bin/sh
# Unpacks the source of a Debian package, as its authors publish it, to the directory "source".
# Usage: source.sh RELEASE PACKAGE
set -e
[ ! -d source ] || exit 0
mkdir -p apt/lists/partial apt/cache/archives/partial download
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb-src [signed-by=$keys] http://deb.debian.org/debian $1 main" >apt/sources.list
cat >apt/apt.conf <<EOF
Dir::Etc::SourceList "$PWD/apt/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$PWD/apt/lists";
Dir::Cache "$PWD/apt/cache";
APT::Sandbox::User "root";
EOF
export APT_CONFIG="$PWD/apt/apt.conf"
apt-get --quiet=2 update
# Only the authors' archive is needed: Debian's changes may be gone from a mirror.
(cd download && apt-get --quiet=2 source --download-only "$2") || true
mkdir source.new
tar -xf download/*.orig.tar.* -C source.new --strip-components=1
mv source.new source
