//! Hosts on one machine: each a set of namespaces (network, files mounted, host name, shared memory), joined by a switch,
//! a bridge in a namespace of its own.
//!
//! A lab is made by a root user, or by anybody where users may make user namespaces. It has no name anywhere: its
//! namespaces live as long as its processes, its processes as long as their first, and that one until the [`Lab`] is
//! dropped or its process ends, in whatever way. Nothing is written to a disk, and no interface of the machine is touched.
//!
//! ```no_run
//! use treecast_lab::{Lab, LabSettings};
//!
//! let lab = Lab::start(&LabSettings { rate: Some("200mbit".parse()?), ..LabSettings::new(4) })?;
//! let status = lab.command(2, "ping")?.args(["-c", "1", "n3"]).status()?;
//! assert!(status.success());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod late;
mod namespaces;
mod settings;

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, PipeReader};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub use error::LabError;
pub use settings::{LabSettings, Rate, Share};

use late::Late;
use namespaces::Namespaces;

/// What makes a lab, and the Debian package of each.
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

/// A host of a lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name, `n0`, `n1` and so on: its host name, and in `/etc/hosts` of every host.
    pub name: String,
    /// Its address.
    pub ipv4: Ipv4Addr,
    /// Its other address, where the kernel has IPv6.
    pub ipv6: Ipv6Addr,
}

/// Hosts that run until this is dropped, or its process ends. A process that was forked from it and has not become another
/// program counts as well.
#[derive(Debug)]
pub struct Lab {
    hosts: Vec<Host>,
    /// The process of each host that keeps its namespaces, as the lab numbers them.
    keepers: Vec<u32>,
    /// The parent of the lab's first process, whose standard input is what the lab lives by.
    switch: Child,
    /// Whether the lab has a user namespace of its own.
    own_user: bool,
    /// What holds packets, where some are overtaken.
    late: Option<Late>,
}

impl Lab {
    /// Starts the hosts. When it returns, they can reach one another.
    ///
    /// # Errors
    ///
    /// A setting outside its bounds, a tool that is missing, or a machine that does not allow it.
    pub fn start(settings: &LabSettings) -> Result<Self, LabError> {
        settings.check()?;
        let path = search_path();
        for (tool, package) in TOOLS {
            if !is_in(&path, tool) {
                return Err(LabError::ToolMissing { tool, package });
            }
        }
        let own_user = !nix::unistd::geteuid().is_root();
        let (said, end) = std::io::pipe()?;
        let mut command = Command::new("unshare");
        if own_user {
            command.args(["--user", "--map-root-user"]);
        }
        command
            .args(["--mount", "--net", "--uts", "--pid", "--fork", "--mount-proc"])
            .args(["sh", "-c", "eval \"$SWITCH\"", "treecast-lab"])
            .env("PATH", path)
            // Complaints are looked at.
            .env("LC_ALL", "C")
            .env("HOSTS", settings.hosts.to_string())
            .env("MTU", settings.mtu.to_string())
            .env("LINK", settings.bucket())
            .env("SEGMENTS", settings.segments())
            .env("PORT", settings.port())
            .env("LATE", settings.late())
            .env("SWITCH", include_str!("switch.sh"))
            .env("HOST", include_str!("host.sh"))
            .env("AGENT", include_str!("agent.sh"))
            .stdin(Stdio::piped())
            .stdout(end.try_clone()?)
            .stderr(end)
            // What the terminal sends to our group is for us to act on.
            .process_group(0);
        let switch = command.spawn()?;
        // It holds the ends of pipes that tell whether the tools still run.
        drop(command);
        let mut lab = Self {
            hosts: (0..settings.hosts).map(Host::new).collect(),
            keepers: Vec::new(),
            switch,
            own_user,
            late: None,
        };
        lab.wait_until_ready(said)?;
        if !settings.late().is_empty() {
            lab.late = Some(Late::start(lab.switch.id(), own_user)?);
        }
        Ok(lab)
    }

    fn wait_until_ready(&mut self, said: PipeReader) -> Result<(), LabError> {
        let mut complaints = String::new();
        for line in BufReader::new(said).lines() {
            match line?.as_str() {
                "ready" => {
                    self.keepers =
                        self.hosts.iter().map(|host| self.keeper(host)).collect::<Result<_, _>>()?;
                    return Ok(());
                }
                line => complaints += &format!("{line}\n"),
            }
        }
        Err(LabError::from_complaints(&complaints, !self.own_user))
    }

    fn keeper(&self, host: &Host) -> Result<u32, LabError> {
        let file = format!("/proc/{}/root/dev/shm/{}", self.switch.id(), host.name);
        let number = std::fs::read_to_string(file)?;
        number.trim().parse().map_err(|_| LabError::NotMade(format!("{} has no process", host.name)))
    }

    /// The hosts, in the order of their numbers.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// A command that will run on a host, however often it is started: in the same folder, with the same environment, and
    /// with these variables, which whoever gets the command may still change:
    ///
    /// - `TREECAST_LAB_HOST`: its number, from 0;
    /// - `TREECAST_LAB_HOSTS`: how many hosts there are;
    /// - `TREECAST_LAB_ADDRESSES`: the IPv4 address of each, with commas between;
    /// - `TREECAST_LAB_AGENT`: a remote shell between the hosts, as Open MPI wants one: the path of a script that takes
    ///   the name of a host, and a command for a shell there.
    ///
    /// The child that starts stands for the process on the host: it ends as that ends, and takes it along if it is killed.
    /// Interrupts from the terminal it leaves to that process, which gets them too.
    ///
    /// # Errors
    ///
    /// A host that the lab does not have; too many open files.
    pub fn command(&self, host: u32, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        let last = self.hosts.len() as u32 - 1;
        let keeper = self.keepers.get(host as usize).ok_or(LabError::NoSuchHost { host, last })?;
        let addresses: Vec<String> = self.hosts.iter().map(|host| host.ipv4.to_string()).collect();
        let mut command = Command::new(program);
        command
            .env("TREECAST_LAB_HOST", host.to_string())
            .env("TREECAST_LAB_HOSTS", self.hosts.len().to_string())
            .env("TREECAST_LAB_ADDRESSES", addresses.join(","))
            .env("TREECAST_LAB_AGENT", "/proc/1/root/dev/shm/agent");
        Namespaces::open(self.switch.id(), *keeper, self.own_user)?.enter_by(&mut command);
        Ok(command)
    }
}

/// Ends every process of the lab, and waits for their end. A [`Child`] is still to be waited for by who has it.
impl Drop for Lab {
    fn drop(&mut self) {
        // It keeps the switch's network.
        drop(self.late.take());
        drop(self.switch.stdin.take());
        let _ = self.switch.wait();
    }
}

impl Host {
    fn new(number: u32) -> Self {
        let last = number as u8 + 1;
        Self {
            name: format!("n{number}"),
            ipv4: Ipv4Addr::new(10, 42, 0, last),
            ipv6: Ipv6Addr::new(0xfd42, 0, 0, 0, 0, 0, 0, last.into()),
        }
    }
}

/// Where tools are looked for: also where those of the administrator are, which users do not have in their path.
fn search_path() -> OsString {
    let given = std::env::var_os("PATH").unwrap_or_default();
    let given = std::env::split_paths(&given).filter(|folder| !folder.as_os_str().is_empty());
    let folders = given.chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    std::env::join_paths(folders).expect("they were joined in the same way")
}

fn is_in(path: &OsStr, tool: &str) -> bool {
    std::env::split_paths(path).any(|folder| folder.join(tool).is_file())
}
