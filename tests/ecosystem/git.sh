#!/bin/sh
# Checks a commit of a Git repository out to the directory "source".
# Usage: git.sh URL COMMIT
set -e
if [ -d source ] && [ "$(git -C source rev-parse HEAD)" = "$(git -C source rev-parse "$2^{commit}")" ]
then
	exit 0
fi
rm -rf source source.new
git clone --quiet --no-checkout "$1" source.new
git -C source.new checkout --quiet "$2"
mv source.new source
