# The first process of a lab, in namespaces of its own: it is the switch, starts the hosts, says "ready", and then waits for
# the end of its standard input. With it ends, by the kernel, every process of the lab, and with them all namespaces.
#
# HOSTS how many; PORT words for tc on each port, one command a line, @ for the port; LATE the device where packets are held
# that others overtake, or nothing; HOST and AGENT the other scripts. From variables, so that whoever lists processes does not read scripts.
set -eu
umask 022

hostname switch

# What the hosts tell one another lies in memory, and only the lab sees it.
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
	# Nobody asks who has which address: the answers could get lost, and a second would pass.
	echo "neighbour replace 10.42.0.$((number + 1)) lladdr 02:00:00:00:00:$hex nud permanent dev eth0" >> neighbours
	echo "neighbour replace fd42::$hex lladdr 02:00:00:00:00:$hex nud permanent dev eth0" >> neighbours6
	echo "link set n$number master switch up" >> ports
	echo "$PORT" | sed "s/@/n$number/" >> shaping
	number=$((number + 1))
done
[ ! -e /etc/hosts ] || mount --bind hosts /etc/hosts

# A switch has no addresses of its own.
ipv6=/proc/sys/net/ipv6/conf/default/disable_ipv6
[ ! -e $ipv6 ] || echo 1 > $ipv6
# A switch is no firewall: frames are not shown to the rules for packets.
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
if [ -n "$LATE" ]; then
	ip tuntap add dev "$LATE" mode tap 2> said ||
		{ echo "lacks: packets are overtaken by the kernel's TAP devices (/dev/net/tun): $(cat said)"; exit 1; }
	# What comes back from there is switched as before, and the switch still knows where its sender is.
	ip link set "$LATE" txqueuelen 10000 master switch up
	ip link set "$LATE" type bridge_slave learning off flood off mcast_flood off bcast_flood off
fi
if [ -n "$PORT" ] && ! tc -batch shaping 2> said; then
	[ -z "$LATE" ] || echo "lacks: packets are overtaken by the kernel's cls_bpf and act_mirred: $(head -n 1 said)"
	cat said
	exit 1
fi

echo ready
# Ignored, so that the kernel buries orphans.
trap '' CHLD
exec cat > /dev/null
