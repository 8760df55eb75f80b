#!/bin/sh
# The first program of the guest: mounts what programs expect, loads rxe, runs /job/run, and switches
# the machine off.
export PATH=/usr/sbin:/usr/bin HOME=/root TERM=vt100
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
echo root:x:0:0:root:/root:/bin/bash >/etc/passwd
mkdir -p /run/netns
ulimit -l unlimited
modprobe -a virtio_pci 9pnet_virtio
mount -t 9p -o trans=virtio,version=9p2000.L,msize=131072 job /job || echo "no job directory"
modprobe -a rdma_rxe ib_uverbs rdma_ucm veth sch_netem
ip link set lo up

if grep -q urxe.shell /proc/cmdline; then
    setsid -c bash --rcfile /job/shell -i </dev/ttyS0 >/dev/ttyS0 2>&1
else
    sh /job/run
    echo $? >/job/status
fi
sync
echo o >/proc/sysrq-trigger
sleep 60
