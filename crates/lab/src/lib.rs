//! Hosts on one machine: each is a set of namespaces (network, mount, UTS, IPC); a bridge in
//! another network namespace joins them. In a lab with [`Racks`], each rack has a bridge, and a
//! core bridge joins these by one uplink each.
//!
//! A lab needs root, or a system where users may create user namespaces. It has no name anywhere:
//! its namespaces live as long as its processes, its processes as long as the first of them, and
//! that one until the [`Lab`] is dropped or its process ends, even by a signal. Nothing is written
//! to disk, and no interface of the machine changes.
//!
//! ```no_run
//! use treecast_lab::{Lab, LabSettings};
//!
//! let lab = Lab::start(&LabSettings { rate: Some("200mbit".parse()?), ..LabSettings::new(4) })?;
//! let status = lab.command(2, "ping")?.args(["-c", "1", "n3"]).status()?;
//! assert!(status.success());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod delay;
mod error;
mod interrupts;
mod losses;
mod namespaces;
mod probability;
mod processors;
mod racks;
mod settings;
mod uplinks;

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, PipeReader};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub use error::LabError;
pub use interrupts::accept_interrupts;
pub use losses::Losses;
pub use probability::Probability;
pub use racks::Racks;
pub use settings::{LabSettings, Multicast, Rate};
pub use uplinks::UplinkBytes;

use delay::Delayer;
use namespaces::Namespaces;

/// The tools that create a lab, and the Debian package of each.
const TOOLS: [(&str, &str); 10] = [
    ("sh", "a POSIX shell"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "util-linux or mount"),
    ("hostname", "hostname"),
    ("cat", "coreutils"),
    ("sleep", "coreutils"),
    ("sed", "sed"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
];

/// The tool that a lab with racks or delays needs as well.
const TOOL_OF_ENTRIES: (&str, &str) = ("bridge", "iproute2");

/// The tool that the remote shell of a lab with pinned hosts needs as well.
const TOOL_OF_PINS: (&str, &str) = ("taskset", "util-linux");

/// A host of a lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The host name, `n0`, `n1` and so on, which is also in `/etc/hosts` of every host.
    pub name: String,
    /// The IPv4 address.
    pub ipv4: Ipv4Addr,
    /// The IPv6 address, if the kernel supports IPv6.
    pub ipv6: Ipv6Addr,
    /// The number of the host's rack, from 0; 0 in a lab without racks.
    pub rack: u32,
}

/// Hosts that run until this is dropped, or its process has ended, including forked children that
/// have not called `exec`.
#[derive(Debug)]
pub struct Lab {
    hosts: Vec<Host>,
    /// For each host the PID, within the lab, of the process that keeps its namespaces.
    keepers: Vec<u32>,
    /// The parent of the lab's first process. The lab ends when its standard input is closed.
    switch: Child,
    /// Whether the lab has its own user namespace.
    own_user: bool,
    /// The number of uplinks: one for each rack, 0 without racks.
    uplinks: u32,
    /// The number of processes of each host.
    processes: u32,
    /// The processor of each host; empty if hosts have none of their own.
    processors: Vec<usize>,
    /// Present if packets are delayed or reordered.
    delayer: Option<Delayer>,
}

impl Lab {
    /// Starts the hosts. When it returns, they can reach one another.
    ///
    /// # Errors
    ///
    /// [`LabError`] for a setting out of bounds, a missing tool, and a machine that does not allow
    /// labs.
    pub fn start(settings: &LabSettings) -> Result<Self, LabError> {
        settings.check()?;
        let path = search_path();
        let has_entries = settings.racks.is_some() || settings.has_delay();
        for (tool, package) in TOOLS
            .into_iter()
            .chain(has_entries.then_some(TOOL_OF_ENTRIES))
            .chain(settings.pin.then_some(TOOL_OF_PINS))
        {
            if !is_in(&path, tool) {
                return Err(LabError::ToolMissing { tool, package });
            }
        }
        let processors = if settings.pin { processors::of_hosts(settings.hosts)? } else { Vec::new() };
        let own_user = !nix::unistd::geteuid().is_root();
        let (output, output_writer) = std::io::pipe()?;
        let mut command = Command::new("unshare");
        if own_user {
            command.args(["--user", "--map-root-user"]);
        }
        command
            .args(["--mount", "--net", "--uts", "--pid", "--fork", "--mount-proc"])
            .args(["sh", "-c", "eval \"$SWITCH\"", "treecast-lab"])
            .env("PATH", path)
            // Error messages are parsed.
            .env("LC_ALL", "C")
            .env("HOSTS", settings.hosts.to_string())
            .env("RACK_HOSTS", settings.hosts_per_switch().to_string())
            .env("CORE", settings.core())
            .env("MTU", settings.mtu.to_string())
            .env("LINK", settings.bucket(settings.rate))
            .env("UPLINK", settings.bucket(settings.uplink))
            .env("SEGMENTS", settings.segments())
            .env("PROCESSORS", processors::inventory(&processors))
            .env("PORT", settings.port())
            .env("LOSSES", settings.loss.thresholds())
            .env("ENTRIES", if has_entries { "static" } else { "" })
            .env("DEVICES", settings.holds().iter().map(|(device, _)| *device).collect::<Vec<_>>().join(" "))
            .env("NO_MEMBERSHIP", settings::membership_program(2))
            .env("MULTICAST", settings.multicast.name())
            .env("SWITCH", include_str!("switch.sh"))
            .env("HOST", include_str!("host.sh"))
            .env("AGENT", include_str!("agent.sh"))
            .stdin(Stdio::piped())
            .stdout(output_writer.try_clone()?)
            .stderr(output_writer)
            // Signals from the terminal are for the caller, not for the lab.
            .process_group(0);
        let switch = command.spawn()?;
        // The command holds the write end of the pipe, whose end of file says that the tools have
        // exited.
        drop(command);
        let mut lab = Self {
            hosts: (0..settings.hosts).map(|number| Host::new(number, settings.hosts_per_switch())).collect(),
            keepers: Vec::new(),
            switch,
            own_user,
            uplinks: settings.racks.map_or(0, Racks::racks),
            processes: settings.processes,
            processors,
            delayer: None,
        };
        lab.wait_until_ready(output)?;
        let holds = settings.holds();
        if !holds.is_empty() {
            lab.delayer = Some(Delayer::start(lab.switch.id(), own_user, settings.switches(), &holds)?);
        }
        Ok(lab)
    }

    fn wait_until_ready(&mut self, output: PipeReader) -> Result<(), LabError> {
        let mut messages = String::new();
        for line in BufReader::new(output).lines() {
            match line?.as_str() {
                "ready" => {
                    self.keepers =
                        self.hosts.iter().map(|host| self.keeper(host)).collect::<Result<_, _>>()?;
                    return Ok(());
                }
                line => messages += &format!("{line}\n"),
            }
        }
        Err(LabError::from_messages(&messages, !self.own_user))
    }

    fn keeper(&self, host: &Host) -> Result<u32, LabError> {
        let file = format!("/proc/{}/root/dev/shm/{}", self.switch.id(), host.name);
        let number = std::fs::read_to_string(file)?;
        number.trim().parse().map_err(|_| LabError::NotCreated(format!("{} has no process", host.name)))
    }

    /// The hosts, in the order of their numbers.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// An inventory of the racks: a line for each host, its name and that of its rack, such as `n0
    /// r0`.
    pub fn inventory(&self) -> String {
        let lines: Vec<String> =
            self.hosts.iter().map(|host| format!("{} r{}\n", host.name, host.rack)).collect();
        lines.concat()
    }

    /// A command that runs on a host each time it is spawned, as the first process of the host: see
    /// [`Lab::process_command`].
    ///
    /// # Errors
    ///
    /// [`LabError`] for an unknown host, and for too many open files.
    pub fn command(&self, host: u32, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        self.process_command(host, 0, program)
    }

    /// A command that runs on a host each time it is spawned, as one of the
    /// [processes](LabSettings::processes) of the host, numbered from 0: in the same working
    /// directory, with the same environment, and with these variables, which the caller may change:
    ///
    /// - `TREECAST_LAB_HOST`: the number of the host, from 0;
    /// - `TREECAST_LAB_HOSTS`: the number of hosts;
    /// - `TREECAST_LAB_PROCESS`: the number of the process on the host, from 0;
    /// - `TREECAST_LAB_PROCESSES`: the number of processes of each host;
    /// - `TREECAST_LAB_MEMBER`: the number of the process among those of all hosts, which are
    ///   numbered host by host;
    /// - `TREECAST_LAB_RACK`: the number of the host's rack, from 0; 0 without racks;
    /// - `TREECAST_LAB_ADDRESSES`: the IPv4 addresses of all hosts, separated by commas;
    /// - `TREECAST_LAB_INVENTORY`: the path of a file with a line for each host: its name and that
    ///   of its rack, such as `n0 r0`;
    /// - `TREECAST_LAB_AGENT`: a remote shell between the hosts, for example for Open MPI: the path
    ///   of a script with the arguments host name and shell command;
    /// - `TMPDIR`: `/dev/shm`, a directory of the host's own. Programs that name their temporary
    ///   files after the host and the process, as Open MPI does, would otherwise share them with
    ///   labs that run at the same time.
    ///
    /// The spawned child is a proxy for the process on the host: it exits with the same status, and
    /// the process is killed if the child is killed. The child ignores interrupts from the
    /// terminal, which the process also gets.
    ///
    /// # Errors
    ///
    /// [`LabError`] for an unknown host or process, and for too many open files.
    pub fn process_command(
        &self,
        host: u32,
        process: u32,
        program: impl AsRef<OsStr>,
    ) -> Result<Command, LabError> {
        let last = self.hosts.len() as u32 - 1;
        let keeper = self.keepers.get(host as usize).ok_or(LabError::NoSuchHost { host, last })?;
        if process >= self.processes {
            return Err(LabError::NoSuchProcess { process, last: self.processes - 1 });
        }
        let rack = self.hosts[host as usize].rack;
        let addresses: Vec<String> = self.hosts.iter().map(|host| host.ipv4.to_string()).collect();
        let mut command = Command::new(program);
        command
            .env("TREECAST_LAB_HOST", host.to_string())
            .env("TREECAST_LAB_HOSTS", self.hosts.len().to_string())
            .env("TREECAST_LAB_PROCESS", process.to_string())
            .env("TREECAST_LAB_PROCESSES", self.processes.to_string())
            .env("TREECAST_LAB_MEMBER", (host * self.processes + process).to_string())
            .env("TREECAST_LAB_RACK", rack.to_string())
            .env("TREECAST_LAB_ADDRESSES", addresses.join(","))
            .env("TREECAST_LAB_INVENTORY", "/proc/1/root/dev/shm/racks.inventory")
            .env("TREECAST_LAB_AGENT", "/proc/1/root/dev/shm/agent")
            .env("TMPDIR", "/dev/shm");
        let processor =
            self.processors.get(host as usize).map(|&processor| processors::only(processor)).transpose()?;
        Namespaces::open(self.switch.id(), *keeper, self.own_user)?.enter_by(&mut command, processor);
        Ok(command)
    }

    /// Traffic over the uplink of each rack since the lab was created, in the order of the racks;
    /// empty without racks.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel's statistics cannot be read, for example because a
    /// process outside the lab has killed those that run it.
    pub fn uplink_bytes(&self) -> Result<Vec<UplinkBytes>, LabError> {
        Ok(uplinks::read(self.switch.id(), self.uplinks)?)
    }
}

/// Kills every process of the lab, and waits for their end. The owner of a [`Child`] still has to
/// wait for it.
impl Drop for Lab {
    fn drop(&mut self) {
        // Its TAP devices keep the network namespace of the switch alive.
        drop(self.delayer.take());
        drop(self.switch.stdin.take());
        let _ = self.switch.wait();
    }
}

impl Host {
    fn new(number: u32, hosts_per_rack: u32) -> Self {
        let last = number as u8 + 1;
        Self {
            name: format!("n{number}"),
            ipv4: Ipv4Addr::new(10, 42, 0, last),
            ipv6: Ipv6Addr::new(0xfd42, 0, 0, 0, 0, 0, 0, last.into()),
            rack: number / hosts_per_rack,
        }
    }
}

/// The search path for tools. It includes /usr/sbin, which is often not in the `PATH` of ordinary
/// users.
fn search_path() -> OsString {
    let given = std::env::var_os("PATH").unwrap_or_default();
    let given = std::env::split_paths(&given).filter(|directory| !directory.as_os_str().is_empty());
    let directories = given.chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    std::env::join_paths(directories).expect("the parts come from valid paths")
}

fn is_in(path: &OsStr, tool: &str) -> bool {
    std::env::split_paths(path).any(|directory| directory.join(tool).is_file())
}
