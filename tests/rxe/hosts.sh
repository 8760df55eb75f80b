# Functions that create the hosts in the guest and run commands on them, for run.sh and for --shell.

# in_order DEVICE [NAMESPACE]: keeps the order of packets through DEVICE. By default each processor queues
# the packets that it sent, so the packets of a sender that moves to another processor are reordered.
in_order() {
    local rule="echo 1 >/sys/class/net/$1/queues/rx-0/rps_cpus"
    if [ $# -eq 1 ]; then
        sh -c "$rule"
    else
        ip netns exec "$2" sh -c "$rule"
    fi
}

# cable A NAMESPACE_A B NAMESPACE_B: connects two interfaces. The first namespace is called 1, after
# its init process.
cable() {
    ip link add "$1" mtu 4200 netns "$2" type veth peer name "$3" mtu 4200 netns "$4"
}

hosts() {
    ip netns add urxe
    cable va 1 vb urxe
    ip addr add 10.0.0.1/24 dev va
    ip -6 addr add fd00::1/64 dev va nodad
    ip link set va up
    ip -n urxe addr add 10.0.0.2/24 dev vb
    ip -n urxe -6 addr add fd00::2/64 dev vb nodad
    ip -n urxe link set vb up
    ip -n urxe link set lo up
    in_order va
    in_order vb urxe
    rdma link add rxe0 type rxe netdev va
    cp -a /job/urxe /tmp/
}

# A second host for urxe, with a link to the first.
second_urxe() {
    ip netns add urxe2
    cable ua urxe ub urxe2
    ip -n urxe addr add 10.2.0.1/24 dev ua
    ip -n urxe -6 addr add fd02::1/64 dev ua nodad
    ip -n urxe link set ua up
    ip -n urxe2 addr add 10.2.0.2/24 dev ub
    ip -n urxe2 -6 addr add fd02::2/64 dev ub nodad
    ip -n urxe2 link set ub up
    ip -n urxe2 link set lo up
    in_order ua urxe
    in_order ub urxe2
}

# Two rxe devices with a link between them, both in the first namespace, the only one that rxe supports.
# The rule for local addresses, which routes packets through lo, gets a lower priority than those of the link.
reference_hosts() {
    cable ra 1 rb 1
    for device in ra rb; do
        sysctl -qw net.ipv4.conf.$device.rp_filter=0 net.ipv4.conf.$device.accept_local=1
        ip link set $device up
        in_order $device
    done
    sysctl -qw net.ipv4.conf.all.rp_filter=0
    ip addr add 10.1.0.1/32 dev ra
    ip addr add 10.1.0.2/32 dev rb
    ip rule add pref 50 lookup local
    ip rule del pref 0
    ip rule add pref 10 oif ra lookup 100
    ip rule add pref 10 oif rb lookup 101
    ip route add 10.1.0.2/32 dev ra src 10.1.0.1 table 100
    ip route add 10.1.0.1/32 dev rb src 10.1.0.2 table 101
    ip neigh add 10.1.0.2 dev ra lladdr "$(cat /sys/class/net/rb/address)"
    ip neigh add 10.1.0.1 dev rb lladdr "$(cat /sys/class/net/ra/address)"
    ip -6 addr add fd01::1/128 dev ra nodad
    ip -6 addr add fd01::2/128 dev rb nodad
    ip -6 rule add pref 50 lookup local
    ip -6 rule del pref 0
    ip -6 rule add pref 10 oif ra lookup 100
    ip -6 rule add pref 10 oif rb lookup 101
    ip -6 route add fd01::2/128 dev ra src fd01::1 table 100
    ip -6 route add fd01::1/128 dev rb src fd01::2 table 101
    ip -6 neigh add fd01::2 dev ra lladdr "$(cat /sys/class/net/rb/address)"
    ip -6 neigh add fd01::1 dev rb lladdr "$(cat /sys/class/net/ra/address)"
    rdma link add rxe1 type rxe netdev ra
    rdma link add rxe2 type rxe netdev rb
}

# on PROVIDER COMMAND...
on() {
    local provider=$1
    shift
    case $provider in
    rxe*) "$@" ;;
    urxe | urxe1) ip netns exec urxe env LD_LIBRARY_PATH=/tmp/urxe "$@" ;;
    urxe2) ip netns exec urxe2 env LD_LIBRARY_PATH=/tmp/urxe "$@" ;;
    esac
}

device() {
    case $1 in
    rxe) echo rxe0 ;;
    rxe1 | rxe2) echo "$1" ;;
    urxe) echo urxe_vb ;;
    urxe1) echo urxe_ua ;;
    urxe2) echo urxe_ub ;;
    esac
}

# host PROVIDER: the address for connections without RDMA between the programs.
host() {
    case $1 in
    rxe1 | rxe2) echo 127.0.0.1 ;;
    *) rdma_address "$1" v4 ;;
    esac
}

# rdma_address PROVIDER v4|v6: the address of its device.
rdma_address() {
    case $1$2 in
    rxev4) echo 10.0.0.1 ;;
    urxev4) echo 10.0.0.2 ;;
    rxe1v4) echo 10.1.0.1 ;;
    rxe2v4) echo 10.1.0.2 ;;
    urxe1v4) echo 10.2.0.1 ;;
    urxe2v4) echo 10.2.0.2 ;;
    rxev6) echo fd00::1 ;;
    urxev6) echo fd00::2 ;;
    rxe1v6) echo fd01::1 ;;
    rxe2v6) echo fd01::2 ;;
    urxe1v6) echo fd02::1 ;;
    urxe2v6) echo fd02::2 ;;
    esac
}
