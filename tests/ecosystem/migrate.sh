#!/bin/sh
# Migrates a virtual machine to a QEMU that waits at ADDRESS, by RDMA. The machine runs its firmware.
# Usage: migrate.sh ADDRESS
say() {
	echo "{\"execute\":$1}"
}
{
	say '"qmp_capabilities"'
	say '"migrate","arguments":{"uri":"rdma:'"$1"':4444"}'
	until grep -qE '"status": "(completed|failed)"' migrate.out; do
		sleep 0.5
		say '"query-migrate"'
	done
	say '"quit"'
} | urxe run -- qemu-system-x86_64 -accel tcg -nodefaults -display none -m 32 -qmp stdio >migrate.out
grep -o '"status": "[a-z]*"' migrate.out | tail -n 1
