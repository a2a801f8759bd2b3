//! Hosts of a lab that threads of a test can go to.

use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use treecast_lab::{Lab, LabSettings};

/// A lab, and the network of each of its hosts.
pub struct Hosts {
    pub lab: Lab,
    /// Whether nodes have IPv6 addresses.
    is_v6: bool,
    networks: Vec<File>,
}

impl Hosts {
    /// Starts a lab with IPv4; `None`, with the reason on standard error, where the machine does
    /// not allow that.
    pub fn start(count: u32) -> Option<Self> {
        Self::with_ip(count, false)
    }

    /// The same with either version of IP.
    pub fn with_ip(count: u32, is_v6: bool) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("only root can record and send packets as it likes");
            return None;
        }
        let lab = match Lab::start(&LabSettings::new(count)) {
            Ok(lab) => lab,
            Err(error) if error.is_about_the_machine() => {
                skip(&error.to_string());
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let networks = (0..count).map(|host| network(&lab, host)).collect();
        Some(Self { lab, is_v6, networks })
    }

    /// Moves this thread into the network of a host, for good.
    pub fn enter(&self, host: usize) {
        let network = self.networks[host].as_fd();
        move_into_link_name_space(network, Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Runs something in the network of a host.
    pub fn run_on<T: Send>(&self, host: usize, run: impl FnOnce() -> T + Send) -> T {
        let run = || {
            self.enter(host);
            run()
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    /// The address of a host's node.
    pub fn node_address(&self, host: usize) -> SocketAddr {
        SocketAddr::new(self.address(host), NODE_PORT)
    }

    /// The address of a host.
    pub fn address(&self, host: usize) -> IpAddr {
        let host = &self.lab.hosts()[host];
        if self.is_v6 { host.ipv6.into() } else { host.ipv4.into() }
    }
}

/// The port of each host's node.
pub const NODE_PORT: u16 = 7_000;

/// The network of a host, by a process that runs there.
fn network(lab: &Lab, host: u32) -> File {
    let mut process = lab.command(host, "sleep").unwrap().arg("infinity").spawn().unwrap();
    let network = File::open(format!("/proc/{}/ns/net", process.id())).unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    network
}

/// Prints why a test is skipped, in one write to standard error: the test harness captures the
/// output of passing tests.
pub fn skip(why: &str) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}
