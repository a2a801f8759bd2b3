# Makes the namespaces it stands in the host $1, and leaves a process in them that keeps them.
#
# MTU of the link in bytes; LINK words for tc on the link, or nothing; SEGMENTS words for ip about the link, or nothing.
set -eu

hostname "n$1"
hex=$(printf '%x' $(($1 + 1)))
# What /sys shows of the network is that of who mounts it.
mount -t sysfs sysfs /sys
sleep infinity > /dev/null 2>&1 &
echo $! > "/dev/shm/n$1"

ip link set lo up
# Addresses can be used at once: nobody asks whether another has them.
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
# shellcheck disable=SC2086 # they are words
[ -z "$LINK" ] || tc qdisc add dev eth0 root $LINK

# Shared memory is a host's own.
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
