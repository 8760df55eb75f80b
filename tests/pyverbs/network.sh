# Gives this network namespace interfaces of its own, then becomes the command that it is given.
# Both ends of the cable are here: the suite talks to itself through the addresses of one device.
set -e
ip link set lo up
ip link add va type veth peer name vb
ip addr add 192.0.2.1/24 dev va
ip link set va up
ip link set vb up
exec "$@"
