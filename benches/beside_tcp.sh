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
# shellcheck source=benches/router.sh
. "$(dirname "$0")/router.sh"
limit=$((seconds + 40))

# Prints the throughput of both in Mbit/s. The first host writes to, or reads from, the second.
measure() {
    local algorithm=$1 operation=$2 queue=$3
    local bottleneck=to-b direction=
    if [ "$operation" = read ]; then
        bottleneck=to-a direction=-R
    fi
    bottleneck "$bottleneck" "$queue"
    local words="ib_${operation}_bw -s 65536 -D $seconds -F -u 18 -m 1024"
    inside "$far" $limit iperf3 -s -1 >/dev/null 2>&1 &
    # shellcheck disable=SC2086
    inside "$far" $limit env URXE_CONGESTION="$algorithm" "$urxe" run $words -d urxe_eth0 -x 0 \
        >/dev/null 2>&1 &
    sleep 1
    # The TCP flow begins two seconds before the transfer, and ends two seconds after it.
    # shellcheck disable=SC2086
    inside "$near" $limit iperf3 -c 198.51.100.1 -t $((seconds + 4)) -C cubic -f m $direction \
        >"$directory/tcp" 2>&1 &
    local tcp=$!
    sleep 2
    # shellcheck disable=SC2086
    inside "$near" $limit env URXE_CONGESTION="$algorithm" "$urxe" run $words -d urxe_eth0 -x 0 \
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

echo "| queue | operation | \`veno\` | \`loss\` | \`cubic\` | \`delay\` |"
echo "|---|---|---|---|---|---|"
for queue in 32kb 125kb 1mb; do
    for operation in write read; do
        row="| $queue | $operation |"
        for algorithm in veno loss cubic delay; do
            row="$row $(measure $algorithm $operation $queue) |"
        done
        echo "$row"
    done
done
