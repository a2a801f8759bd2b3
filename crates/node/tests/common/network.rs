//! Network namespaces: one for each test of the kernel's packet path, and those of further hosts.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};

use super::common::skip;

/// A network namespace.
pub struct Network(File);

#[allow(dead_code, reason = "not all tests have several")]
impl Network {
    /// A new one, which has a loopback interface alone.
    pub fn new() -> Self {
        let unshared = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            Self::of_this_thread()
        };
        std::thread::spawn(unshared).join().unwrap()
    }

    fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/ns/net").unwrap())
    }

    /// A path that leads to it while this process has it open.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Does something in this network: a node that is opened there stays there.
    pub fn enter<T>(&self, act: impl FnOnce() -> T) -> T {
        let own = Self::of_this_thread();
        setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
        let outcome = act();
        setns(&own.0, CloneFlags::CLONE_NEWNET).unwrap();
        outcome
    }
}

/// Runs a test of the kernel's packet path in its own network namespace, which ends with its
/// thread; or prints why it is skipped.
#[allow(dead_code, reason = "not all tests use the kernel's packet path")]
pub fn in_own_network(test: impl FnOnce() + Send) {
    if !nix::unistd::geteuid().is_root() {
        return skip(&"the kernel's packet path is for root");
    }
    std::thread::scope(|scope| {
        let test = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            run("ip link set lo up");
            test();
        };
        if let Err(panic) = scope.spawn(test).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Runs a command; its arguments are separated by spaces.
pub fn run(command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success(), "{command}");
}
