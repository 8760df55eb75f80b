# Functions for scripts that measure through a bottleneck: two hosts with a router between them, as
# network namespaces. The scripts need root and iproute2.

name=urxe-bench-$$
router=$name-r
near=$name-a
far=$name-b
directory=$(mktemp -d)

finish() {
    local namespace
    for namespace in "$router" "$near" "$far"; do
        ip netns pids "$namespace" 2>/dev/null | xargs -r kill 2>/dev/null || true
        ip netns delete "$namespace" 2>/dev/null || true
    done
    rm -r "$directory"
}
trap finish EXIT

# inside NAMESPACE SECONDS COMMAND...: runs a command with a time limit.
inside() {
    local namespace=$1 limit=$2
    shift 2
    timeout "$limit" ip netns exec "$namespace" "$@"
}

# start NAMESPACE SECONDS COMMAND...: like inside, for the background. `$!` is then the process that
# ends the command when it is killed.
start() {
    local namespace=$1 limit=$2
    shift 2
    exec timeout "$limit" ip netns exec "$namespace" "$@"
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

# bottleneck INTERFACE QUEUE: limits what the router sends through an interface to 100 Mbit/s.
bottleneck() {
    ip netns exec "$router" tc qdisc replace dev "$1" root tbf rate 100mbit burst 16kb limit "$2"
}

# The interfaces of the router are to-a, to the first host at 192.0.2.1, and to-b, to the second at
# 198.51.100.1.
ip netns add "$router"
ip netns exec "$router" sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
host "$near" to-a 192.0.2
host "$far" to-b 198.51.100
