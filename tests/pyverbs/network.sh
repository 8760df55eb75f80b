# Creates the interfaces of this network namespace, then executes the given command. Both ends of the veth pair
# are in this namespace: the suite sends to itself through the addresses of one device.
set -e
ip link set lo up
ip link add va type veth peer name vb
ip addr add 192.0.2.1/24 dev va
ip link set va up
ip link set vb up
exec "$@"
