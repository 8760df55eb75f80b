#!/bin/sh
# Exports a file of 16 MiB as an iSER target of tgtd, for the initiator iqn.2026-01.example:host.
# Usage: iser_target.sh ADDRESS
dd if=/dev/urandom of=disk.img bs=1M count=16 status=none
tgtd --foreground --control-port 7 --iscsi "portal=$1:3260" &
admin() {
	tgtadm --control-port 7 --lld iser "$@"
}
target=iqn.2026-01.example:disk
until admin --mode target --op new --tid 1 --targetname $target; do
	sleep 0.2
done
admin --mode logicalunit --op new --tid 1 --lun 1 --backing-store "$PWD/disk.img"
admin --mode target --op bind --tid 1 --initiator-address ALL
# Over iSER, tgtd wants both.
admin --mode target --op bind --tid 1 --initiator-name iqn.2026-01.example:host
wait
