# Creates the interfaces of this network namespace, then executes the given command. Both ends of the veth pair
# are in this namespace: the suite sends to itself through the addresses of one device.
set -e
ip link set lo up
ip link add va type veth peer name vb
ip addr add 192.0.2.1/24 dev va
# Without an address the other end has no device, which would appear during the suite.
ip link set vb addrgenmode none
ip link set va up
ip link set vb up
exec "$@"
