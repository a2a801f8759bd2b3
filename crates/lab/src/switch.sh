# The first process of a lab, in its own namespaces: it creates the switches, starts the hosts, prints "ready", and then waits for
# the end of its standard input. When it exits, the kernel kills every process of the lab, and the namespaces end with them.
#
# Rack 0 has the bridge switch0, rack 1 the bridge switch1 and so on. The uplink of rack 0 leads from up0, a port of switch0, to down0, a
# port of the core. A lab without racks has switch0 only.
#
# Variables: HOSTS is the number of hosts; RACK_HOSTS is the number of hosts in each rack; CORE is the name of the bridge that joins the
# racks, or empty without racks; MTU of the uplinks in bytes; UPLINK, arguments of tc for each end of an uplink, or empty; PORT has the
# tc commands of a host's port, one per line, with @ for the port, % for the number of the rack, ! for the threshold of the loss and
# ^ for the last byte of the host's address; LOSSES are the thresholds, that of all hosts first, then HOST=THRESHOLD for single
# ones; DEVICES are the names, without the number of the rack, of the devices that delay packets; NO_MEMBERSHIP is a program that
# drops IGMP and MLD; ENTRIES is empty if the switches learn the ports of hosts; MULTICAST is flood, snooping or drop; PROCESSORS
# has a line for each host with its processor, or is empty; HOST and AGENT are the other scripts, in variables so that ps does not
# show their text.
set -eu
umask 022

hostname switch

# Files that the hosts share are in memory, and visible in the lab only.
mount -t tmpfs -o mode=755,size=16m treecast-lab /dev/shm
cd /dev/shm
printf '#!/bin/sh\n%s' "$AGENT" > agent
chmod 755 agent
[ -z "$PROCESSORS" ] || printf '%s' "$PROCESSORS" > processors
{
	echo "127.0.0.1 localhost"
	echo "::1 localhost"
} > hosts
number=0
while [ "$number" -lt "$HOSTS" ]; do
	hex=$(printf '%x' $((number + 1)))
	rack=$((number / RACK_HOSTS))
	echo "n$number r$rack" >> racks.inventory
	echo "10.42.0.$((number + 1)) n$number" >> hosts
	echo "fd42::$hex n$number" >> hosts
	# Static neighbour entries: a lost ARP reply would cost a second.
	echo "neighbour replace 10.42.0.$((number + 1)) lladdr 02:00:00:00:00:$hex nud permanent dev eth0" >> neighbours
	echo "neighbour replace fd42::$hex lladdr 02:00:00:00:00:$hex nud permanent dev eth0" >> neighbours6
	echo "link set n$number master switch$rack up" >> ports
	[ "$MULTICAST" != drop ] || echo "link set n$number type bridge_slave mcast_flood off" >> ports
	# A switch floods packets to a host that it has not heard: entries from the start keep them off other racks' uplinks. It hears
	# no host whose packets are delayed: they enter by another device.
	[ -z "$ENTRIES" ] || echo "fdb replace 02:00:00:00:00:$hex dev n$number master static" >> forwarding
	[ -z "$CORE" ] || echo "fdb replace 02:00:00:00:00:$hex dev down$rack master static" >> forwarding
	loss=${LOSSES%% *}
	for single in $LOSSES; do
		[ "${single%%=*}" != "$number" ] || [ "$single" = "${single#*=}" ] || loss=${single#*=}
	done
	echo "$PORT" | sed "s/@/n$number/; s/%/$rack/; s/!/$loss/; s/\^/$((number + 1))/" >> shaping
	number=$((number + 1))
done
[ ! -e /etc/hosts ] || mount --bind hosts /etc/hosts

# The switches have no IPv6 addresses, unless they are queriers.
ipv6=/proc/sys/net/ipv6/conf/default/disable_ipv6
[ ! -e $ipv6 ] || echo 1 > $ipv6
# Bridged frames do not pass the firewall.
for rules in /proc/sys/net/bridge/bridge-nf-call-*; do
	[ ! -e "$rules" ] || echo 0 > "$rules"
done
# Intervals are in hundredths of a second: a querier knows after the response interval who has joined, and floods until then.
bridge="type bridge mcast_snooping 0"
[ "$MULTICAST" != snooping ] ||
	bridge="type bridge mcast_snooping 1 mcast_query_response_interval 10 mcast_startup_query_interval 20"
# The response interval counts from when the querier starts, and has to be set before.
querier() {
	[ "$MULTICAST" != snooping ] || echo "link set $1 type bridge mcast_querier 1" >> switches
}
[ -z "$CORE" ] || echo "link add $CORE $bridge" >> switches
[ -z "$CORE" ] || querier "$CORE"
[ -z "$CORE" ] || echo "link set $CORE up" >> switches
rack=0
while [ $((rack * RACK_HOSTS)) -lt "$HOSTS" ]; do
	echo "link add switch$rack $bridge" >> switches
	querier switch$rack
	echo "link set switch$rack up" >> switches
	if [ -n "$CORE" ]; then
		echo "link add up$rack mtu $MTU type veth peer name down$rack mtu $MTU" >> switches
		echo "link set up$rack master switch$rack up" >> switches
		echo "link set down$rack master $CORE up" >> switches
		# The core learns from the racks who has joined.
		[ "$MULTICAST" != snooping ] || echo "link set up$rack type bridge_slave mcast_router 2" >> switches
	fi
	if [ -n "$UPLINK" ]; then
		echo "qdisc add dev up$rack root $UPLINK" >> shaping
		echo "qdisc add dev down$rack root $UPLINK" >> shaping
	fi
	rack=$((rack + 1))
done
racks=$rack
ip -batch switches
# Queries of MLD come from a link-local address.
for settings in /proc/sys/net/ipv6/conf/switch* /proc/sys/net/ipv6/conf/"${CORE:-switch0}"; do
	[ "$MULTICAST" = snooping ] && [ -e "$settings" ] || continue
	echo 0 > "$settings/accept_dad"
	echo 0 > "$settings/disable_ipv6"
done

number=0
hosts=
while [ "$number" -lt "$HOSTS" ]; do
	unshare --mount --net --uts --ipc sh -c 'eval "$HOST"' treecast-lab "$number" &
	hosts="$hosts $!"
	number=$((number + 1))
done
for host in $hosts; do wait "$host"; done
ip -batch ports
[ -z "$ENTRIES" ] || bridge -batch forwarding
rack=0
while [ $rack -lt $racks ]; do
	for device in $DEVICES; do
		ip tuntap add dev "$device$rack" mode tap 2> errors ||
			{ echo "lacks: delays and reordering need the kernel's TAP devices (/dev/net/tun): $(cat errors)"; exit 1; }
		# Delayed frames are forwarded as usual; without learning, the bridge still knows the port of their sender.
		ip link set "$device$rack" txqueuelen 10000 master switch$rack up
		ip link set "$device$rack" type bridge_slave learning off flood off mcast_flood off bcast_flood off mcast_router 0
		# The bridge's own queries would return as those of another querier.
		echo "qdisc add dev $device$rack clsact" >> shaping
		echo "filter add dev $device$rack egress bpf direct-action bytecode '$NO_MEMBERSHIP'" >> shaping
	done
	rack=$((rack + 1))
done
if [ -n "$PORT$UPLINK" ] && ! tc -batch shaping 2> errors; then
	[ -z "$DEVICES" ] || echo "lacks: delays and reordering need the kernel's cls_bpf and act_mirred: $(head -n 1 errors)"
	cat errors
	exit 1
fi

echo ready
# With SIGCHLD ignored, the kernel reaps orphans.
trap '' CHLD
exec cat > /dev/null
