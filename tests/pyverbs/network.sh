# Gives this network namespace interfaces of its own, then becomes the command that it is given.
# Both ends of the cable are here: the suite talks to itself through the addresses of one device.
set -e
ip link set lo up
ip link add va type veth peer name vb
ip addr add 192.0.2.1/24 dev va
# Without an address the other end has no device, which would appear during the suite.
ip link set vb addrgenmode none
ip link set va up
ip link set vb up
exec "$@"
