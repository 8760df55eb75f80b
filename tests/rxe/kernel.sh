# Runs urxe alone on the guest's kernel: the demo, and rdma-core's program of reliable connections,
# with the devices in sysfs. Prints results as lines that begin with "kernel: ".
set -e
# Waits until a server listens at TCP port 18515, for a minute.
await_server() {
    tries=0
    until cat /proc/net/tcp /proc/net/tcp6 | grep -q ':4853 [0-9A-F:]* 0A '; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ]
        sleep 0.1
    done
}
# It holds port 4791.
rmmod rdma_rxe
cp -a /job/urxe /tmp/
export PATH="/tmp/urxe:$PATH"
# The checks of what this kernel has; a missing feature is no failure.
urxe doctor || true
urxe demo --transfer 8MiB --atomics 1000 --round-trips 1000 --skip-pingpong >/tmp/demo
grep 'All bytes match' /tmp/demo
echo "kernel: demo"
urxe run -- ibv_rc_pingpong -g 0 -c >/tmp/server &
await_server
urxe run -- ibv_rc_pingpong -g 0 -c 127.0.0.1
wait $!
echo "kernel: ibv_rc_pingpong"
# Large messages in batches of packets.
urxe run -- ibv_rc_pingpong -g 0 -c -s 1048576 -n 50 -m 4096 >/tmp/server &
await_server
urxe run -- ibv_rc_pingpong -g 0 -c -s 1048576 -n 50 -m 4096 127.0.0.1
wait $!
echo "kernel: 1 MiB messages"
test "$(urxe run -- ls /sys/class/infiniband)" = urxe_lo
echo "kernel: devices in sysfs"
