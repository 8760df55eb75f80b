#!/bin/bash
# The job of `cargo xtask rxe --loss`, in the guest: TCP CUBIC, rxe and urxe carry the same amount
# of data over the same netem, in turn. Prints results as lines that begin with "loss: ":
#   ROUND_TRIP LOSS OPERATION CARRIER MBIT_PER_SECOND NEEDLESS
# NEEDLESS is the share of the delivered bytes that was not needed, in percent. The throughput is
# that of the time from a fifth of the transfer to its end, from the counters of the link: the
# programs' own figures include the start, and perftest takes the frequency of the processor for its
# clock, which it cannot measure in an emulated machine. The argument is the number of rounds.
set -u
. /job/hosts.sh
exec 2>&1

# The link is slow, so that the emulated processor, of 250 million instructions per second, is not
# the bottleneck.
RATE=40mbit
# Of messages and of the blocks that iperf3 writes.
SIZE=65536
# The bytes of a packet before and behind its payload: Ethernet, IPv4, UDP, BTH, ICRC; and with TCP:
# Ethernet, IPv4, TCP with time stamps.
AROUND=58 AROUND_TCP=66
PAYLOAD=4096 PAYLOAD_TCP=4148

# cable A NAMESPACE_A B NAMESPACE_B: connects two interfaces through the namespace `wire`, which has
# the other ends of both, with the same names. The path is emulated there: an interface of a host
# sends batches of segments, of which netem would delay or lose all, and separates them behind its
# queue.
cable() {
    local from to
    for from in "$1 $2" "$3 $4"; do
        ip link add "${from% *}" mtu 4200 netns "${from#* }" gso_max_segs 1 \
            type veth peer name "${from% *}" mtu 4200 netns wire
        ip -n wire link set "${from% *}" up
        in_order "${from% *}" wire
        tc -n wire qdisc add dev "${from% *}" clsact
    done
    for from in "$1" "$3"; do
        to=$1
        [ "$from" = "$1" ] && to=$3
        tc -n wire filter add dev "$from" ingress matchall action mirred egress redirect dev "$to"
    done
}

# impair DELAY LOSS: sets the conditions of all links, and clears the counters.
impair() {
    local device
    for device in ra rb ua ub; do
        tc -n wire qdisc del dev $device root 2>/dev/null
        tc -n wire qdisc add dev $device root netem limit 1000 rate $RATE delay "$1" loss "$2" || exit 2
    done
}

# delivered DEVICE: the bytes that arrived there.
delivered() {
    tc -n wire -s qdisc show dev "$1" root | gawk '$1 == "Sent" { print $2; exit }'
}

# listening SIDE PORT: whether a server waits at the TCP port.
listening() {
    on "$1" cat /proc/net/tcp /proc/net/tcp6 |
        grep -q "$(printf ':%04X [0-9A-F:]* 0A ' "$2")"
}

# carry NAME SERVER CLIENT PORT RECEIVER PAYLOAD AROUND MESSAGES SERVER_COMMAND CLIENT_COMMAND: runs
# a program between two sides, and reports the transfer by what arrives at RECEIVER.
carry() {
    local name=$1 server=$2 client=$3 port=$4 receiver=$5 payload=$6 around=$7 data=$(($8 * SIZE))
    local pid try
    on "$server" timeout 200 $9 >/tmp/served 2>&1 </dev/null &
    pid=$!
    for try in $(seq 100); do
        listening "$server" "$port" && break
        sleep 0.1
    done
    on "$client" timeout 190 ${10} >/tmp/said 2>&1 </dev/null &
    local asking=$! status=0
    while kill -0 $asking 2>/dev/null; do
        echo "$(cut -d ' ' -f 1 /proc/uptime) $(delivered "$receiver")"
        sleep 0.3
    done >/tmp/samples
    echo "$(cut -d ' ' -f 1 /proc/uptime) $(delivered "$receiver")" >>/tmp/samples
    # The child of the subshell is `timeout`, which ends the server.
    wait $asking || {
        status=$?
        kill $(cat /proc/$pid/task/$pid/children) 2>/dev/null
        tail -qn 3 /tmp/said /tmp/served
    }
    wait $pid
    if [ $status -ne 0 ]; then
        echo "loss: $name - -"
        return
    fi
    # iperf3 ends before the last data of its socket has arrived. It prints megabytes.
    case $name in
    *tcp) data=$(gawk '$NF == "receiver" { print int($5 * 1048576) }' /tmp/said) ;;
    esac
    gawk -v name="$name" -v payload="$payload" -v around="$around" -v data=$data '
        { time[NR] = $1; bytes[NR] = $2 }
        END {
            needed = data + data / payload * around
            # The last packets include those of the connection that the programs have without RDMA.
            for (last = NR; last > 1 && bytes[last - 1] > bytes[NR] - 20000; last--) ;
            for (first = 1; bytes[first] < bytes[last] / 5; first++) ;
            wire = (bytes[last] - bytes[first]) * 8 / (time[last] - time[first]) / 1000000
            printf "loss: %s %.2f %.2f\n", name, wire * data / bytes[NR], (bytes[NR] - needed) * 100 / bytes[NR]
        }' /tmp/samples
}

perftest() {
    local path=$1 operation=$2 carrier=$3 messages=$4
    local client=${carrier}1 server=${carrier}2 words receiver
    # With events a program that waits takes no time of the processor. ib_write_bw has none.
    words="ib_${operation}_bw -F -e -s $SIZE -n $messages -t 16 -Q 1 -u 18"
    case $carrier$operation in
    rxeread) receiver=ra ;;
    rxe*) receiver=rb ;;
    urxeread) receiver=ua ;;
    urxe*) receiver=ub ;;
    esac
    carry "$path $operation $carrier" "$server" "$client" 18515 $receiver $PAYLOAD $AROUND "$messages" \
        "$words -d $(device "$server") -x $(on "$server" /tmp/agent gid "$(device "$server")" v4)" \
        "$words -d $(device "$client") -x $(on "$client" /tmp/agent gid "$(device "$client")" v4) $(host "$server")"
}

tcp() {
    local path=$1 messages=$2
    carry "$path stream tcp" urxe2 urxe1 5201 ub $PAYLOAD_TCP $AROUND_TCP "$messages" "iperf3 -s -1" \
        "iperf3 -c $(rdma_address urxe2 v4) -n $((messages * SIZE)) -l $SIZE -C cubic"
}

cp -a /job/agent /tmp/
modprobe -a act_mirred cls_matchall sch_ingress
ip netns add wire
hosts
reference_hosts
second_urxe
for round in $(seq "$1"); do
    # The number of messages is what a link of this rate or a flow of TCP carries in about 7 s.
    while read -r -u 3 round_trip delay loss messages; do
        for operation in stream send read; do
            for carrier in tcp rxe urxe; do
                [ "$operation" = stream ] && [ $carrier != tcp ] && continue
                [ "$operation" != stream ] && [ $carrier = tcp ] && continue
                impair "$delay" "$loss"
                case $carrier in
                tcp) tcp "$round_trip $loss" "$messages" ;;
                *) perftest "$round_trip $loss" $operation $carrier "$messages" ;;
                esac
            done
        done
    done 3<<END
10ms 5ms 0.01% 500
10ms 5ms 0.1% 500
10ms 5ms 1% 300
50ms 25ms 0.01% 500
50ms 25ms 0.1% 300
50ms 25ms 1% 120
END
done
exit 0
