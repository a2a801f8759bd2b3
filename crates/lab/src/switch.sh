# The first process of a lab, in its own namespaces: it creates the switch, starts the hosts, prints "ready", and then waits for
# the end of its standard input. When it exits, the kernel kills every process of the lab, and the namespaces end with them.
#
# Variables: HOSTS is the number of hosts; PORT has the tc commands of a port, one per line, with @ for the port; REORDER is the name
# of the device that delays packets, or empty; HOST and AGENT are the other scripts, in variables so that ps does not show their text.
set -eu
umask 022

hostname switch

# Files that the hosts share are in memory, and visible in the lab only.
mount -t tmpfs -o mode=755,size=16m treecast-lab /dev/shm
cd /dev/shm
printf '#!/bin/sh\n%s' "$AGENT" > agent
chmod 755 agent
{
	echo "127.0.0.1 localhost"
	echo "::1 localhost"
} > hosts
number=0
while [ "$number" -lt "$HOSTS" ]; do
	hex=$(printf '%x' $((number + 1)))
	echo "10.42.0.$((number + 1)) n$number" >> hosts
	echo "fd42::$hex n$number" >> hosts
	# Static neighbour entries: a lost ARP reply would cost a second.
	echo "neighbour replace 10.42.0.$((number + 1)) lladdr 02:00:00:00:00:$hex nud permanent dev eth0" >> neighbours
	echo "neighbour replace fd42::$hex lladdr 02:00:00:00:00:$hex nud permanent dev eth0" >> neighbours6
	echo "link set n$number master switch up" >> ports
	echo "$PORT" | sed "s/@/n$number/" >> shaping
	number=$((number + 1))
done
[ ! -e /etc/hosts ] || mount --bind hosts /etc/hosts

# The switch has no IPv6 addresses.
ipv6=/proc/sys/net/ipv6/conf/default/disable_ipv6
[ ! -e $ipv6 ] || echo 1 > $ipv6
# Bridged frames do not pass the firewall.
for rules in /proc/sys/net/bridge/bridge-nf-call-*; do
	[ ! -e "$rules" ] || echo 0 > "$rules"
done
ip link add switch type bridge
ip link set switch up

number=0
hosts=
while [ "$number" -lt "$HOSTS" ]; do
	unshare --mount --net --uts --ipc sh -c 'eval "$HOST"' treecast-lab "$number" &
	hosts="$hosts $!"
	number=$((number + 1))
done
for host in $hosts; do wait "$host"; done
ip -batch ports
if [ -n "$REORDER" ]; then
	ip tuntap add dev "$REORDER" mode tap 2> errors ||
		{ echo "lacks: reordering needs the kernel's TAP devices (/dev/net/tun): $(cat errors)"; exit 1; }
	# Delayed frames are forwarded as usual; without learning, the bridge still knows the port of their sender.
	ip link set "$REORDER" txqueuelen 10000 master switch up
	ip link set "$REORDER" type bridge_slave learning off flood off mcast_flood off bcast_flood off
fi
if [ -n "$PORT" ] && ! tc -batch shaping 2> errors; then
	[ -z "$REORDER" ] || echo "lacks: reordering needs the kernel's cls_bpf and act_mirred: $(head -n 1 errors)"
	cat errors
	exit 1
fi

echo ready
# With SIGCHLD ignored, the kernel reaps orphans.
trap '' CHLD
exec cat > /dev/null
