#!/bin/bash
# Measures many flows at once through one bottleneck (incast), and small messages of a host behind
# its bulk, for TCP CUBIC and for byte streams of urxe with each algorithm. Prints two tables in
# Markdown.
#
#   benches/incast.sh [FLOWS [BYTES]]
#
# The path is that of benches/beside_tcp.sh: a router that sends 100 Mbit/s, with a queue. Needs
# root, iproute2 and a release build of the package urxe-bench.
set -eu

flows=${1:-64}
bytes=${2:-1000000}
incast=$(realpath "$(dirname "$0")/../target/release/urxe-incast")
# shellcheck source=benches/router.sh
. "$(dirname "$0")/router.sh"
limit=300
port=7471
# The hosts separate batches of segments, as a NIC does, so that the router drops single packets.
ip -n "$near" link set eth0 gso_max_segs 1
ip -n "$far" link set eth0 gso_max_segs 1

# serve CARRIER ALGORITHM: starts a server at an unused port, and waits until it listens.
serve() {
    port=$((port + 1))
    address=198.51.100.1:$port
    start "$far" $limit env URXE_CONGESTION="$2" "$incast" serve "$1" "$address" 2>"$directory/server" &
    server=$!
    sleep 2
}

stop() {
    kill "$@" 2>/dev/null || true
    wait "$@" 2>/dev/null || true
}

# drops: the packets that the bottleneck has dropped.
drops() {
    ip netns exec "$router" tc -s qdisc show dev to-b | awk '/dropped/ { sub(",", "", $7); print $7 }'
}

carriers() {
    echo "tcp cubic"
    for algorithm in veno loss cubic delay; do
        echo "urxe $algorithm"
    done
}

echo "| queue | | first, median, last, s | Jain's index | dropped | retransmitted |"
echo "|---|---|---|---|---|---|"
for queue in 32kb 125kb 1mb; do
    while read -r carrier algorithm; do
        bottleneck to-b $queue
        serve "$carrier" "$algorithm"
        before=$(drops)
        inside "$near" $limit env URXE_CONGESTION="$algorithm" \
            "$incast" send "$carrier" "$address" "$flows" "$bytes" >"$directory/send" || true
        read -r first median last jain again <"$directory/send" || first=failed
        echo "| $queue | $carrier \`$algorithm\` | $first, ${median-}, ${last-} | ${jain-} |" \
            "$(($(drops) - before)) | ${again-} |"
        stop "$server"
    done < <(carriers)
done

echo
echo "| queue | | alone: median, 99%, ms | behind bulk |"
echo "|---|---|---|---|"
for queue in 32kb 125kb 1mb; do
    while read -r carrier algorithm; do
        bottleneck to-b $queue
        serve "$carrier" "$algorithm"
        # The bulk is another process of the host, and longer than the small messages take.
        alone=$(inside "$near" $limit env URXE_CONGESTION="$algorithm" "$incast" ping "$carrier" "$address" 1000)
        start "$near" $limit env URXE_CONGESTION="$algorithm" \
            "$incast" send "$carrier" "$address" 1 100000000000 >/dev/null 2>&1 &
        bulk=$!
        sleep 3
        behind=$(inside "$near" $limit env URXE_CONGESTION="$algorithm" "$incast" ping "$carrier" "$address" 1000)
        stop "$bulk" "$server"
        echo "| $queue | $carrier \`$algorithm\` | ${alone/ /, } | ${behind/ /, } |"
    done < <(carriers)
done
