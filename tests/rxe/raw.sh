#!/bin/bash
# raw.sh udp|tcp [SERVER]: what the link carries without RDMA, by iperf3.
if [ $# -eq 1 ]; then
    exec iperf3 --server --one-off
fi
options=()
[ "$1" = udp ] && options=(--udp --bitrate 0 --length 4096)
iperf3 --client "$2" --time 5 "${options[@]}" | grep receiver
exit "${PIPESTATUS[0]}"
