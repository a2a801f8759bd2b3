//! A network namespace for each test of the kernel's packet path.

use std::process::Command;

use nix::sched::{CloneFlags, unshare};

use super::common::skip;

/// Runs a test in its own network namespace, which ends with its thread; or prints why it is skipped.
pub fn in_own_network(test: impl FnOnce() + Send) {
    if let Err(error) = treecast_ebpf::Program::is_built() {
        return skip(&error);
    }
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
