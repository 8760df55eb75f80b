#!/bin/bash
# Measures transfers over urxe beside a flow of TCP CUBIC through one bottleneck, for each algorithm
# of congestion control, and prints a table in Markdown.
#
#   benches/beside_tcp.sh [SECONDS]
#
# Two hosts and a router are network namespaces. The router sends through a token bucket filter
# (tc-tbf) of 100 Mbit/s, whose queue is the only one: without a transfer the round trip is near
# zero. Needs root, iproute2, iperf3, perftest and a release build. A cell has the throughput of
# urxe and of TCP in Mbit/s of payload.
set -eu

seconds=${1:-10}
urxe=$(dirname "$0")/../target/release/urxe
directory=$(mktemp -d)
name=beside-tcp-$$
router=$name-r
near=$name-a
far=$name-b

finish() {
    for namespace in "$router" "$near" "$far"; do
        ip netns delete "$namespace" 2>/dev/null || true
    done
    rm -r "$directory"
}
trap finish EXIT

inside() {
    local namespace=$1
    shift
    timeout $((seconds + 40)) ip netns exec "$namespace" "$@"
}

host() {
    local namespace=$1 interface=$2 network=$3
    ip netns add "$namespace"
    ip -n "$namespace" link set lo up
    ip -n "$router" link add "$interface" type veth peer name eth0 netns "$namespace"
    ip -n "$router" address add "$network.254/24" dev "$interface"
    ip -n "$router" link set "$interface" up
    ip -n "$namespace" address add "$network.1/24" dev eth0
    ip -n "$namespace" link set eth0 up
    ip -n "$namespace" route add default via "$network.254"
}

ip netns add "$router"
inside "$router" sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
host "$near" to-a 192.0.2
host "$far" to-b 198.51.100

# Prints the throughput of both in Mbit/s. The first host writes to, or reads from, the second.
measure() {
    local algorithm=$1 operation=$2 queue=$3
    local bottleneck=to-b direction=
    if [ "$operation" = read ]; then
        bottleneck=to-a direction=-R
    fi
    ip netns exec "$router" tc qdisc replace dev "$bottleneck" root \
        tbf rate 100mbit burst 16kb limit "$queue"
    local words="ib_${operation}_bw -s 65536 -D $seconds -F -u 18 -m 1024"
    inside "$far" iperf3 -s -1 >/dev/null 2>&1 &
    # shellcheck disable=SC2086
    inside "$far" env URXE_CONGESTION="$algorithm" "$urxe" run $words -d urxe_eth0 -x 0 \
        >/dev/null 2>&1 &
    sleep 1
    # The TCP flow begins two seconds before the transfer, and ends two seconds after it.
    # shellcheck disable=SC2086
    inside "$near" iperf3 -c 198.51.100.1 -t $((seconds + 4)) -C cubic -f m $direction \
        >"$directory/tcp" 2>&1 &
    local tcp=$!
    sleep 2
    # shellcheck disable=SC2086
    inside "$near" env URXE_CONGESTION="$algorithm" "$urxe" run $words -d urxe_eth0 -x 0 \
        198.51.100.1 >"$directory/urxe" 2>&1 || true
    wait $tcp || true
    wait
    ip netns exec "$router" tc qdisc del dev "$bottleneck" root
    local carried beside
    carried=$(awk '$1 == 65536 { printf "%.0f", $4 * 8 * 1.048576 }' "$directory/urxe")
    beside=$(awk -v end="$seconds" '
        $4 == "sec" && !/sender|receiver/ {
            split($3, time, "-")
            if (time[1] >= 3 && time[2] <= end + 1) { sum += $7; count++ }
        }
        END { if (count) printf "%.0f", sum / count }' "$directory/tcp")
    echo "${carried:-failed} + ${beside:-failed}"
}

echo "| queue | operation | \`loss\` | \`cubic\` | \`delay\` |"
echo "|---|---|---|---|---|"
for queue in 32kb 125kb 1mb; do
    for operation in write read; do
        row="| $queue | $operation |"
        for algorithm in loss cubic delay; do
            row="$row $(measure $algorithm $operation $queue) |"
        done
        echo "$row"
    done
done
