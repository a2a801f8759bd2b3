# A remote shell between the hosts of a lab: agent [OPTIONS] HOST COMMAND... Options without a value, such as
# ssh's -x, are ignored. The command is the first process of the host.
while [ "${1#-}" != "$1" ]; do shift; done
named=$1
host=${1#n}
shift
if ! process=$(cat "/proc/1/root/dev/shm/n$host" 2> /dev/null); then
	echo "treecast lab: there is no host '$named' in this lab" >&2
	exit 255
fi
export TREECAST_LAB_HOST="$host"
TREECAST_LAB_RACK=$(sed -n "s/^n$host r//p" /proc/1/root/dev/shm/racks.inventory)
export TREECAST_LAB_RACK
export TREECAST_LAB_PROCESS=0
export TREECAST_LAB_MEMBER=$((host * ${TREECAST_LAB_PROCESSES:-1}))
processors=/proc/1/root/dev/shm/processors
processor=
[ ! -e "$processors" ] || processor=$(sed -n "s/^n$host //p" "$processors")
# nsenter changes the working directory to the root.
exec ${processor:+taskset --cpu-list "$processor"} nsenter --target "$process" --mount --net --uts --ipc sh -c 'cd "$0" && eval "$1"' "$PWD" "$*"
