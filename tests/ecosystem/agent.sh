#!/bin/sh
# A remote agent for `mpirun`: runs a command on an emulated host, in place of ssh. The directory
# $HOSTS has a file for each host's address, with the ID of a process on that host.
case $1 in
-*) echo "agent.sh: $1: options are not supported" >&2; exit 1 ;;
esac
first=$(cat "$HOSTS/${1#*@}") || exit 1
shift
exec nsenter --target "$first" --all -- sh -c "$*"
