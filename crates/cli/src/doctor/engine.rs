//! The requirements of the kernel engine: its BPF program, and interfaces to attach it to.

use std::path::Path;

use treecast_ebpf::{EbpfError, Program, ProgramSettings};

use crate::doctor::hosts::Classifier;
use crate::doctor::machine::{is_root, kernel, output, read, tool};
use crate::doctor::report::Area::KernelEngine;
use crate::doctor::report::Finding;

pub fn examine(classifier: Classifier) -> Vec<Finding> {
    let mut findings = vec![version(), built(Program::is_built())];
    findings.extend(loaded(Program::load(ProgramSettings::default()).map(drop)));
    findings.extend([classify(classifier), net_admin(), types(), compiler()]);
    findings
}

fn version() -> Finding {
    let (numbers, release) = kernel();
    let found = format!("Linux {release}");
    if numbers >= (5, 17) {
        return Finding::ok(KernelEngine, "kernel", found);
    }
    Finding::missing(KernelEngine, "kernel", found, "the kernel engine needs Linux 5.17 or later")
}

fn built(is_built: Result<(), EbpfError>) -> Finding {
    match is_built {
        Ok(()) => Finding::ok(KernelEngine, "BPF program", "included in this build"),
        Err(error) => {
            let effect = "the kernel engine is not part of this build";
            Finding::missing(KernelEngine, "BPF program", error.to_string(), effect)
        }
    }
}

/// Whether the kernel loads the program, which is then not attached. `None` for a build without the program.
fn loaded(loaded: Result<(), EbpfError>) -> Option<Finding> {
    let name = "BPF loading";
    let error = match loaded {
        Ok(()) => return Some(Finding::ok(KernelEngine, name, "the program was loaded and unloaded")),
        Err(EbpfError::NotBuilt(_)) => return None,
        Err(error) => error,
    };
    let missing = |effect: &str| Finding::missing(KernelEngine, name, error.to_string(), effect);
    Some(if error.is_permission_denied() && is_root() {
        missing("root lacks CAP_BPF or CAP_SYS_ADMIN here, or the kernel is locked down")
            .with_fix("in a container: make it privileged; otherwise see /sys/kernel/security/lockdown")
    } else if error.is_permission_denied() {
        let setting = read("/proc/sys/kernel/unprivileged_bpf_disabled").filter(|text| text != "0");
        let setting =
            setting.map_or(String::new(), |text| format!(" (kernel.unprivileged_bpf_disabled={text})"));
        missing(&format!("this user cannot run the kernel engine{setting}")).with_fix("run it as root")
    } else {
        missing("the kernel rejects the program, or seccomp blocks the bpf system call")
    })
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

fn compiler() -> Finding {
    let found = tool("clang").and_then(|path| Some((output(&path, &["--print-targets"])?, path)));
    match found {
        Some((targets, path)) if targets.contains("bpf") => {
            Finding::ok(KernelEngine, "clang", format!("{} compiles for BPF", path.display()))
        }
        _ => Finding::limited(
            KernelEngine,
            "clang",
            "no clang with a BPF target",
            "Treecast built on this machine has no kernel engine (clang is needed to build it, not to run it)",
        )
        .with_fix("to build the kernel engine: install clang and libbpf-dev"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::State;

    #[test]
    fn a_build_without_the_program_has_no_kernel_engine_and_skips_loading() {
        let error = || EbpfError::NotBuilt("clang cannot be run");
        let finding = built(Err(error()));
        assert_eq!(finding.state, State::Missing);
        assert_eq!(
            finding.found,
            "this was built without the BPF program (clang cannot be run): install clang and libbpf's headers, \
             and build it again"
        );
        assert_eq!(loaded(Err(error())), None);
        assert_eq!(built(Ok(())).state, State::Ok);
    }

    #[test]
    fn missing_rights_and_unsupported_features_have_different_effects() {
        let effect = |why: &str| {
            let finding = loaded(Err(EbpfError::Load { why: why.into() })).unwrap();
            assert_eq!(finding.state, State::Missing);
            finding.effect.unwrap()
        };
        let rejected = "the kernel rejects the program, or seccomp blocks the bpf system call";
        assert_eq!(effect("unknown func bpf_loop#181"), rejected);
        assert_ne!(effect("Operation not permitted (os error 1)"), rejected);
    }
}
