//! The requirements of the kernel engine: its BPF program, and interfaces to attach it to.

use std::path::Path;
use std::time::{Duration, Instant};

use treecast_ebpf::{EbpfError, KERNEL_MIN, Program, ProgramSettings, kernel_release, kernel_version};

use crate::doctor::hosts::Classifier;
use crate::doctor::machine::{is_root, read};
use crate::doctor::report::Area::KernelEngine;
use crate::doctor::report::Finding;

pub fn examine(classifier: Classifier) -> Vec<Finding> {
    let started = Instant::now();
    let program = Program::load(ProgramSettings::default()).map(|_| started.elapsed());
    vec![version(), loaded(program), classify(classifier), net_admin(), types()]
}

fn version() -> Finding {
    let found = format!("Linux {}", kernel_release());
    if kernel_version() >= KERNEL_MIN {
        return Finding::ok(KernelEngine, "kernel", found);
    }
    Finding::missing(KernelEngine, "kernel", found, "the kernel engine needs Linux 5.17 or later")
}

/// Whether the kernel loads the program, which is then not attached, and in what time.
fn loaded(loaded: Result<Duration, EbpfError>) -> Finding {
    let name = "BPF program";
    let error = match loaded {
        Ok(time) => {
            let found = format!("loaded in {} ms, and unloaded", time.as_millis());
            return Finding::ok(KernelEngine, name, found);
        }
        Err(error) => error,
    };
    let missing = |effect: &str| Finding::missing(KernelEngine, name, error.to_string(), effect);
    if error.is_permission_denied() && is_root() {
        missing("root lacks CAP_BPF or CAP_SYS_ADMIN here, or the kernel is locked down")
            .with_fix("in a container: make it privileged; otherwise see /sys/kernel/security/lockdown")
    } else if error.is_permission_denied() {
        let setting = read("/proc/sys/kernel/unprivileged_bpf_disabled").filter(|text| text != "0");
        let setting =
            setting.map_or(String::new(), |text| format!(" (kernel.unprivileged_bpf_disabled={text})"));
        missing(&format!("this user cannot run the kernel engine{setting}")).with_fix("run it as root")
    } else {
        missing("the kernel rejects the program, or seccomp blocks the bpf system call")
    }
}

fn classify(classifier: Classifier) -> Finding {
    let name = "clsact";
    match classifier {
        Some(true) => {
            Finding::ok(KernelEngine, name, "programs can be attached to interfaces (tried in a lab)")
        }
        Some(false) => Finding::missing(
            KernelEngine,
            name,
            "tc qdisc add dev lo clsact fails in a lab",
            "programs cannot be attached to interfaces",
        )
        .with_fix("modprobe sch_ingress cls_bpf, or a kernel with CONFIG_NET_CLS_ACT and CONFIG_NET_CLS_BPF"),
        None => Finding::limited(
            KernelEngine,
            name,
            "not tried: it takes a lab",
            "it is unknown whether programs can be attached to interfaces",
        ),
    }
}

/// The number of `CAP_NET_ADMIN` in linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;

fn net_admin() -> Finding {
    let name = "CAP_NET_ADMIN";
    let status = read("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    if effective >> CAP_NET_ADMIN & 1 == 1 {
        return Finding::ok(KernelEngine, name, "this user may configure interfaces");
    }
    let effect = "programs cannot be attached to the interfaces of this machine";
    Finding::missing(KernelEngine, name, "this user may not configure interfaces", effect)
        .with_fix("run it as root")
}

fn types() -> Finding {
    if Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Finding::ok(KernelEngine, "BTF", "the kernel provides type information");
    }
    let found = "/sys/kernel/btf/vmlinux does not exist";
    Finding::limited(KernelEngine, "BTF", found, "programs that read kernel data structures do not load")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::State;

    #[test]
    fn missing_rights_and_unsupported_features_have_different_effects() {
        let effect = |why: &str| {
            let finding = loaded(Err(EbpfError::Load { why: why.into() }));
            assert_eq!(finding.state, State::Missing);
            finding.effect.unwrap()
        };
        let rejected = "the kernel rejects the program, or seccomp blocks the bpf system call";
        assert_eq!(effect("unknown func bpf_loop#181"), rejected);
        assert_ne!(effect("Operation not permitted (os error 1)"), rejected);
    }
}
