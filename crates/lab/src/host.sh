# Turns its namespaces into the host $1, and leaves a process that keeps them alive.
#
# Variables: MTU of the link in bytes; LINK, arguments of tc for the link, or empty; SEGMENTS, arguments of ip for the link, or empty.
set -eu

hostname "n$1"
hex=$(printf '%x' $(($1 + 1)))
# /sys shows the network namespace of the process that mounts it.
mount -t sysfs sysfs /sys
sleep infinity > /dev/null 2>&1 &
echo $! > "/dev/shm/n$1"

ip link set lo up
# No duplicate address detection, so that addresses can be used at once.
ipv6=/proc/sys/net/ipv6/conf/default
[ ! -e $ipv6 ] || { echo 0 > $ipv6/accept_dad; echo 0 > $ipv6/router_solicitations; }
ip -batch - <<END
link add eth0 address 02:00:00:00:00:$hex mtu $MTU $SEGMENTS type veth peer name n$1 mtu $MTU netns 1
link set eth0 up
address add 10.42.0.$(($1 + 1))/24 dev eth0
route add 224.0.0.0/4 dev eth0
END
ip -batch /dev/shm/neighbours
if [ -e $ipv6 ]; then
	ip address add "fd42::$hex/64" dev eth0 nodad
	ip -batch /dev/shm/neighbours6
fi
# shellcheck disable=SC2086 # LINK has several arguments
[ -z "$LINK" ] || tc qdisc add dev eth0 root $LINK

# Each host has its own shared memory.
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
