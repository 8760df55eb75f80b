#!/bin/sh
# Kills all processes of the last host while MPI ranks on all hosts communicate. `mpirun` must exit
# with an error, and no rank may remain on the other hosts.
#
# Usage: kill_host.sh LAST MPIRUN...: the address of the last host, and the command, which prints
# "round 3".
last=$1
shift
output=$(mktemp)
"$@" >"$output" 2>&1 &
mpirun=$!
until grep -q 'round 3' "$output"; do
	sleep 0.2
	kill -0 $mpirun || { cat "$output"; exit 1; }
done
nsenter --target "$(cat "$HOSTS/$last")" --all -- sh -c 'kill -9 -1'
wait $mpirun
status=$?
rm "$output"
[ $status -ne 0 ] || { echo "mpirun exits with status 0"; exit 1; }
for first in $(cat "$HOSTS"/*); do
	tries=0
	# Without zombies, which the first process of an emulated host does not reap.
	while nsenter --target "$first" --all -- pgrep --runstates D,R,S,T alltoall >/dev/null; do
		tries=$((tries + 1))
		[ $tries -lt 100 ] || { echo "ranks remain"; exit 1; }
		sleep 0.2
	done
done
echo "every rank has ended"
