#!/bin/sh
# Runs a new Ceph monitor at an address, with RDMA for all connections. Writes "ceph.conf" and the
# data to the directory "ceph", and prints "ready" when the monitor is in its quorum.
# Usage: ceph_monitor.sh ADDRESS
set -e
rm -rf ceph
mkdir ceph
fsid=00000000-0000-4000-8000-000000000001
address=v2:$1:3300/0
cat >ceph/ceph.conf <<EOF
[global]
fsid = $fsid
mon host = $address
ms type = async+rdma
auth cluster required = none
auth service required = none
auth client required = none
mon data = $PWD/ceph/mon
run dir = $PWD/ceph
log file = $PWD/ceph/log
log to stderr = false
EOF
monmaptool --create --fsid $fsid --addv a "$address" ceph/monmap >/dev/null
ceph-mon --mkfs -i a -c ceph/ceph.conf --monmap ceph/monmap --keyring /dev/null
ceph-mon -i a -c ceph/ceph.conf -f &
trap 'kill $!' TERM
until ceph -c ceph/ceph.conf --connect-timeout 5 mon stat | grep 'quorum 0 a' >&2; do
	sleep 0.2
done
echo ready
wait
