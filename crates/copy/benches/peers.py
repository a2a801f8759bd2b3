"""The programs that are compared: their Debian packages, and their commands for a copy to all hosts of a lab."""

import dataclasses
import os
import pathlib
import shlex
import shutil
from collections.abc import Callable

# In each host's memory: hosts of a lab share all other directories.
TARGET = "/dev/shm/bench-cp"

PORT = 9000

# Programs without congestion control send at this share of the links' rate.
RATE_SHARE = 0.9

# The remote shell of all programs that need one: its data crosses the lab's links.
SHELL = pathlib.Path(__file__).resolve().parent / "shell"


@dataclasses.dataclass(frozen=True)
class Copy:
    """What a program copies, from where, and to which hosts."""

    treecast: pathlib.Path
    source: pathlib.Path
    hosts: list[str]
    rate_kbit: int | None

    @property
    def range(self) -> str:
        return f"n[1-{len(self.hosts)}]"

    @property
    def is_directory(self) -> bool:
        return self.source.is_dir()

    @property
    def archives(self) -> str:
        """A shell command that writes the source as a stream."""
        parent, name = shlex.quote(str(self.source.parent)), self.source.name
        return f"tar -C {parent} -cf - {name}" if self.is_directory else f"cat {parent}/{name}"

    @property
    def extracts(self) -> str:
        """A shell command that writes such a stream to the target."""
        return f"tar -C {TARGET} -xf -" if self.is_directory else f"cat > {TARGET}/{self.source.name}"

    def on(self, host: str, command: str) -> list[str]:
        """Runs a command by the lab's own remote shell, beside the network."""
        return [os.environ["TREECAST_LAB_AGENT"], host, command]


@dataclasses.dataclass(frozen=True)
class Commands:
    """Commands of a copy: it has ended when all of `measured` have."""

    measured: list[list[str]]
    # Daemons, which are started before the measurement and ended after it.
    daemons: list[list[str]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Peer:
    """A program with the Debian package that contains it. `sends_to_each` programs send once for each host."""

    package: str
    programs: tuple[str, ...]
    sends_to_each: bool
    commands: Callable[[Copy], Commands]

    @property
    def missing(self) -> str | None:
        return next((program for program in self.programs if not shutil.which(program)), None)


def treecast(copy: Copy) -> Commands:
    command = [str(copy.treecast), "cp", "-q", "-r", "--shell", str(SHELL), str(copy.source), f"{copy.range}:{TARGET}/"]
    return Commands([command])


def rsync(copy: Copy) -> Commands:
    """One process for each host, all at once."""
    return Commands([["rsync", "-r", "-e", str(SHELL), str(copy.source), f"{host}:{TARGET}/"] for host in copy.hosts])


def pdcp(copy: Copy) -> Commands:
    """It runs `ssh`, which `compare` makes a link to the remote shell."""
    return Commands([["pdcp", "-R", "ssh", "-f", "64", "-r", "-w", copy.range, str(copy.source), TARGET]])


def clush(copy: Copy) -> Commands:
    """By scp, over its older protocol, which needs no server on the host."""
    options = f"scp_options=-O -S {SHELL}"
    return Commands(
        [["clush", "-q", "-O", options, "-w", copy.range, "--copy", str(copy.source), "--dest", f"{TARGET}/"]]
    )


def chain(copy: Copy) -> Commands:
    """Each host writes what it receives, and sends it to the next one."""
    read = f"socat -u -b 131072 TCP-LISTEN:{PORT},reuseaddr -"
    commands = []
    for host, following in zip(copy.hosts, [*copy.hosts[1:], None], strict=True):
        if following is None:
            commands.append([str(SHELL), host, f"{read} | {copy.extracts}"])
            continue
        pipe = f"{TARGET}.pipe"
        send = f"socat -u -b 131072 - {connection(following)}"
        command = f"rm -f {pipe}; mkfifo {pipe}; {copy.extracts} < {pipe} & {read} | tee {pipe} | {send}; wait"
        commands.append([str(SHELL), host, command])
    first = f"{copy.archives} | socat -u -b 131072 - {connection(copy.hosts[0])}"
    return Commands([*reversed(commands), ["sh", "-c", first]])


def connection(host: str) -> str:
    """An address of socat, which is tried again until the host listens."""
    return f"TCP:{host}:{PORT},retry=200,interval=0.02"


def udpcast(copy: Copy) -> Commands:
    """Hosts of a lab have no broadcast address, by which receivers find the sender by default: so they need a multicast address."""
    options = ["--nokbd", "--no-progress", "--interface", "eth0", "--mcast-rdv-address", "239.5.5.5"]
    receive = f"{shlex.join(['udp-receiver', *options])} | {copy.extracts}"
    send = ["udp-sender", *options, "--min-receivers", str(len(copy.hosts)), "--full-duplex"]
    if copy.rate_kbit:
        send += ["--max-bitrate", f"{int(copy.rate_kbit * RATE_SHARE)}k"]
    source = f"{copy.archives} | {shlex.join(send)}"
    return Commands([["sh", "-c", source], *([str(SHELL), host, receive] for host in copy.hosts)])


def uftp(copy: Copy) -> Commands:
    """Daemons receive. Hosts are named by the address from which their number is made."""
    daemon = f"exec uftpd -d -x 0 -I eth0 -B 4194304 -D {TARGET} > /dev/null 2>&1"
    rate = int(copy.rate_kbit * RATE_SHARE) if copy.rate_kbit else -1
    numbers = ",".join(f"0x0A2A00{int(host[1:]) + 1:02X}" for host in copy.hosts)
    send = ["uftp", "-q", "-x", "0", "-I", "eth0", "-B", "4194304", "-R", str(rate), "-H", numbers, str(copy.source)]
    return Commands([send], [copy.on(host, daemon) for host in copy.hosts])


PEERS = {
    "treecast": Peer("treecast", (), False, treecast),
    "rsync": Peer("rsync", ("rsync",), True, rsync),
    "pdcp": Peer("pdsh", ("pdcp",), True, pdcp),
    "clush": Peer("clustershell", ("clush", "scp"), True, clush),
    "chain": Peer("socat", ("socat",), False, chain),
    "udpcast": Peer("udpcast", ("udp-sender", "udp-receiver"), False, udpcast),
    "uftp": Peer("uftp", ("uftp", "uftpd"), False, uftp),
}
