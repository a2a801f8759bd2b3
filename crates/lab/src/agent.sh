# A remote shell from host to host of a lab: agent [OPTIONS] HOST COMMAND... Options of one word, such as
# ssh's -x, mean nothing here.
while [ "${1#-}" != "$1" ]; do shift; done
host=${1#n}
shift
if ! process=$(cat "/proc/1/root/dev/shm/n$host" 2> /dev/null); then
	echo "treecast lab: there is no host '$host' in this lab" >&2
	exit 255
fi
export TREECAST_LAB_HOST="$host"
# A new host begins at the root of its files.
exec nsenter --target "$process" --mount --net --uts --ipc sh -c 'cd "$0" && eval "$1"' "$PWD" "$*"
