#!/bin/sh
# Checks a commit of a Git repository out to the directory "source".
# Usage: git.sh URL COMMIT
set -e
[ ! -d source ] || exit 0
rm -rf source.new
git clone --quiet --no-checkout "$1" source.new
git -C source.new checkout --quiet "$2"
mv source.new source
