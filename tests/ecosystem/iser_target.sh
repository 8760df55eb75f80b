#!/bin/sh
# Exports a file of 16 MiB as an iSER target of tgtd, for the initiator iqn.2026-01.example:host.
# Prints "ready". Usage: iser_target.sh ADDRESS
dd if=/dev/urandom of=disk.img bs=1M count=16 status=none
# Emulated hosts share /run, where the control socket is by default. Its name is new each time: a
# tgtd that was killed may still hold the lock of its own.
TGT_IPC_SOCKET=$(mktemp --dry-run "$PWD/tgtd.XXXXXX")
export TGT_IPC_SOCKET
tgtd --foreground --iscsi "portal=$1:3260" &
admin() {
	tgtadm --lld iser "$@"
}
until admin --mode target --op new --tid 1 --targetname iqn.2026-01.example:disk; do
	sleep 0.2
	kill -0 $! || exit 1
done
admin --mode logicalunit --op new --tid 1 --lun 1 --backing-store "$PWD/disk.img" &&
# Over iSER, tgtd wants both.
admin --mode target --op bind --tid 1 --initiator-address ALL &&
admin --mode target --op bind --tid 1 --initiator-name iqn.2026-01.example:host &&
echo ready
wait
