#!/bin/bash
# The job of a run, in the guest: two hosts, rxe in the first network namespace and urxe in another,
# then every group of cells in turn. A line of /job/groups is
#   NAME KIND LANES PROVIDER_A PROVIDER_B v4|v6 NETEM...
# Plans are in /job/plans, results go to /job/results.
set -u
. /job/hosts.sh
mkdir -p /job/results
exec 2>&1

# Prints a line `NAME:VALUE` for each of rxe's counters, summed over its devices, and for packets that the
# guest's kernel dropped.
counters() {
    {
        (cd /sys/class/infiniband && grep -H . rxe*/ports/1/hw_counters/*) |
            sed 's|.*/||' | gawk -F: '{ sum[$1] += $2 } END { for (name in sum) print name ":" sum[name] }'
        # In hexadecimal; the second word counts packets dropped by the full queue between a device and IP.
        local dropped=0 word
        for word in $(cut -d ' ' -f 2 /proc/net/softnet_stat); do
            dropped=$((dropped + 16#$word))
        done
        echo "kernel_queue_drops:$dropped"
        on urxe gawk '/^Udp: [0-9]/ { v4 = $6 } /^Udp6RcvbufErrors/ { v6 = $2 }
            END { print "urxe_socket_drops:" v4 + v6 }' /proc/net/snmp /proc/net/snmp6
    } | sort
}

# link NETEM...: sets the impairments of all links, in both directions.
link() {
    local end
    for end in va ra rb urxe:vb urxe:ua urxe2:ub; do
        local tc=(tc) device=${end#*:}
        [ "$device" = "$end" ] || tc=(tc -n "${end%:*}")
        "${tc[@]}" qdisc del dev "$device" root 2>/dev/null
        [ $# -eq 0 ] && continue
        # The default limit of netem, 1000 packets, would be a second source of loss.
        "${tc[@]}" qdisc add dev "$device" root netem limit 100000 "$@" || return 1
    done
    return 0
}

# agents: runs the cells of a group, distributed over LANES pairs of agents.
agents() {
    local name=$1 lanes=$2 a=$3 b=$4 ip=$5 lane waited=()
    for lane in $(seq 0 $((lanes - 1))); do
        gawk -v lane="$lane" -v lanes="$lanes" 'NR % lanes == lane' "/job/plans/$name" >"/tmp/plan.$lane"
        pair "$name" "$lane" "$a" "$b" "$ip" &
        waited+=($!)
    done
    wait "${waited[@]}"
    for lane in $(seq 0 $((lanes - 1))); do
        cat "/tmp/results.$lane"
    done >"/job/results/$name"
}

# pair: runs a plan with two agents. If one crashes, its cell has failed, and new agents run the other cells.
pair() {
    local name=$1 lane=$2 a=$3 b=$4 ip=$5
    local plan=/tmp/plan.$lane results=/tmp/results.$lane rest=/tmp/rest.$lane control=/tmp/control.$lane
    local total finished
    : >"$results"
    total=$(wc -l <"$plan")
    for _ in $(seq 20); do
        finished=$(wc -l <"$results")
        [ "$finished" -ge "$total" ] && break
        tail -n +$((finished + 1)) "$plan" >"$rest"
        rm -f "$control"
        on "$a" /tmp/agent a "$(device "$a")" "$ip" "$control" "$rest" "$results" &
        local first=$!
        on "$b" /tmp/agent b "$(device "$b")" "$ip" "$control" "$rest" "$results" &
        local second=$!
        tail -n +$((finished + 1)) -f --pid=$first "$results" | sed -u "s|^|$name/|" &
        local shown=$!
        wait $second
        local status_b=$?
        # Without its peer the first agent would block.
        [ $status_b -ne 0 ] && sleep 1 && kill $first 2>/dev/null
        wait $first
        local status_a=$?
        wait $shown
        if [ $status_a -ne 0 ] || [ $status_b -ne 0 ]; then
            finished=$(wc -l <"$results")
            local cell
            cell=$(sed -n "$((finished + 1))s/ .*//p" "$plan")
            printf '%s\tFAIL\t0\tan agent died: a with status %s, b with %s\n' \
                "$cell" $status_a $status_b | tee -a "$results" | sed "s|^|$name/|"
        fi
    done
}

# listening PROVIDER: whether a server on PROVIDER waits for its client: a socket or an identifier of the RDMA CM listens,
# udpong's socket has its port, or a multicast group has a member.
listening() {
    on "$1" cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q ' 0A ' && return
    on "$1" cat /proc/net/udp /proc/net/udp6 2>/dev/null | grep -q ':1C06 ' && return
    on "$1" ip maddr show | grep -Eq "$MULTICAST" && return
    case $1 in
    rxe*) rdma resource show cm_id | grep -q 'state LISTEN' ;;
    *) on "$1" grep -q 'cm/listen/' /proc/net/unix ;;
    esac
}
# The multicast groups that are in the plans.
MULTICAST='239\.9\.|ff0e::9:'

# programs: runs unmodified programs, a server and its clients. A line of the plan is
#   NAME <tab> SERVER <tab> CLIENT <tab> FORM <tab> SERVER'S COMMAND <tab> CLIENT'S COMMAND
# where SERVER and CLIENT are `a` or `b`, a side of the group, or the name of a provider. FORM is the number of
# concurrent clients, followed by `+` if the server does not end by itself. In commands {device}, {gid} and
# {address} stand for those of the program's side, {server} for the server's address, {host} for the address of
# its host without RDMA, and {lane} for the number of the client, from 1.
programs() {
    local name=$1 ip=$5 cell server client form serve ask
    local -A side=([a]=$3 [b]=$4)
    : >"/job/results/$name"
    while IFS=$'\t' read -r cell server client form serve ask; do
        local start=$SECONDS status_client status_server verdict=ok detail
        server=${side[$server]:-$server} client=${side[$client]:-$client}
        serve=$(expand "$server" "$ip" "$server" "$serve")
        ask=$(expand "$client" "$ip" "$server" "$ask")
        for _ in 1 2 3; do
            attempt
            grep -qs "$CAME_TOO_EARLY" /tmp/said/client*.errors || break
        done
        [ $status_client -eq 0 ] && [ $status_server -eq 0 ] || verdict=FAIL
        detail=$(cat /tmp/said/client* | grep -E '^ *[0-9]+ +[0-9]+ +[0-9.]+|usec/iter' | tail -1 | tr -s ' \t' ' ')
        [ $verdict = ok ] || detail="server: $status_server $(last_words server); client: $status_client $(last_words client)"
        printf '%s\t%s\t%s\t%s\n' "$cell" $verdict $(((SECONDS - start) * 1000)) "$detail" |
            tee -a "/job/results/$name" | sed "s|^|$name/|"
        { echo "== $cell"; cat /tmp/said/*; } >>"/job/results/$name.output"
    done <"/job/plans/$name"
}

# The message of perftest's client when it requests its second connection before the server listens for it. The
# server starts to listen only after the two have agreed on that connection by their first one, and the client
# crashes when it retries. No other program prints this message.
CAME_TOO_EARLY='^Event: RDMA_CM_EVENT_REJECTED; error: 8'

# attempt: runs a cell once, with the variables of `programs`.
attempt() {
    rm -rf /tmp/said
    mkdir /tmp/said
    timeout 90 bash -c ". /job/hosts.sh; on $server $serve" >/tmp/said/server 2>/tmp/said/server.errors </dev/null &
    local pid=$! asking=() lane
    status_client=0
    for _ in $(seq 100); do
        listening "$server" && break
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    for lane in $(seq "${form%+}"); do
        timeout 90 bash -c ". /job/hosts.sh; on $client ${ask//'{lane}'/$lane}" \
            >"/tmp/said/client.$lane" 2>"/tmp/said/client.$lane.errors" </dev/null &
        asking+=($!)
    done
    for lane in "${asking[@]}"; do
        wait "$lane" || status_client=$?
    done
    [ $status_client -ne 0 ] && sleep 1 && kill $pid 2>/dev/null
    [ "$form" = "${form%+}" ] || kill $pid 2>/dev/null
    wait $pid
    status_server=$?
    # The status of a program ended by SIGTERM.
    [ "$form" != "${form%+}" ] && [ $status_server -eq 143 ] && status_server=0
}

# last_words server|client: the last lines of output, errors first.
last_words() {
    { tail -qn 3 "/tmp/said/$1"*.errors; tail -qn 2 $(ls "/tmp/said/$1"* | grep -v errors); } | tr '\n\t' '  '
}

# expand PROVIDER v4|v6 SERVER COMMAND
expand() {
    local command=$4
    command=${command//'{device}'/$(device "$1")}
    if [[ $command == *'{gid}'* ]]; then
        command=${command//'{gid}'/$(on "$1" /tmp/agent gid "$(device "$1")" "$2")}
    fi
    command=${command//'{address}'/$(rdma_address "$1" "$2")}
    command=${command//'{server}'/$(rdma_address "$3" "$2")}
    printf '%s' "${command//'{host}'/$(host "$3")}"
}

cp -a /job/agent /job/connection /job/grant /job/udp /tmp/
# By default the queue between a device and IP holds 1000 packets, and a busy guest drops packets of a burst.
# Only netem must drop packets here.
sysctl -qw net.core.netdev_max_backlog=100000
hosts
reference_hosts
second_urxe
ibv_devinfo -d rxe0 >/dev/null || { echo "rxe0 does not work"; exit 2; }
on urxe /tmp/agent gid urxe_vb v4 >/dev/null || { echo "urxe_vb does not work"; exit 2; }

if [ -e /job/capture ]; then
    tcpdump -Z root -i rb -s 0 -U -w /tmp/capture.pcap udp dst port 4791 &
    capture=$!
    sleep 2
fi

while read -r -u 3 name kind lanes a b ip netem; do
    echo "# $name ($a, $b, $ip${netem:+, $netem})"
    # shellcheck disable=SC2086 # netem's arguments are words.
    link $netem || echo "$name: netem refused: $netem"
    dmesg -c >/dev/null
    counters >/tmp/before
    "$kind" "$name" "$lanes" "$a" "$b" "$ip"
    counters >/tmp/after
    dmesg -c >"/job/results/$name.dmesg"
    join -t : /tmp/before /tmp/after | gawk -F: '$3 != $2 { print $1, $3 - $2 }' >"/job/results/$name.counters"
done 3</job/groups

if [ -e /job/capture ]; then
    sleep 1
    kill -INT $capture
    wait $capture
    cp /tmp/capture.pcap /job/results/
fi
exit 0
