//! What the engine within the kernel needs: its BPF program, and interfaces to put it on.

use std::path::Path;

use treecast_ebpf::{EbpfError, Program, ProgramSettings};

use crate::doctor::report::Area::KernelEngine;
use crate::doctor::report::Finding;
use crate::doctor::hosts::Classifier;
use crate::doctor::machine::{is_root, kernel, output, read, tool};

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
        Ok(()) => Finding::ok(KernelEngine, "BPF program", "it is part of this build"),
        Err(error) => {
            let means = "the kernel engine is not part of this build";
            Finding::missing(KernelEngine, "BPF program", error.to_string(), means)
        }
    }
}

/// Whether the kernel takes the program, which is attached to nothing; nothing if there is none to try it with.
fn loaded(loaded: Result<(), EbpfError>) -> Option<Finding> {
    let name = "BPF loading";
    let error = match loaded {
        Ok(()) => return Some(Finding::ok(KernelEngine, name, "the program was loaded, and is gone again")),
        Err(EbpfError::NotBuilt(_)) => return None,
        Err(error) => error,
    };
    let missing = |means: &str| Finding::missing(KernelEngine, name, error.to_string(), means);
    Some(if error.lacks_rights() && is_root() {
        missing("root lacks CAP_BPF or CAP_SYS_ADMIN here, or the kernel is locked down")
            .with_remedy("in a container: let it be privileged; else see /sys/kernel/security/lockdown")
    } else if error.lacks_rights() {
        let setting = read("/proc/sys/kernel/unprivileged_bpf_disabled").filter(|text| text != "0");
        let setting =
            setting.map_or(String::new(), |text| format!(" (kernel.unprivileged_bpf_disabled={text})"));
        missing(&format!("the kernel engine is not for this user{setting}")).with_remedy("run it as root")
    } else {
        missing("the kernel does not take what the engine needs, or seccomp keeps it away")
    })
}

fn classify(classifier: Classifier) -> Finding {
    let name = "clsact";
    match classifier {
        Some(true) => {
            Finding::ok(KernelEngine, name, "programs can be put on the way of packets: tried in a lab")
        }
        Some(false) => Finding::missing(
            KernelEngine,
            name,
            "tc qdisc add dev lo clsact fails in a lab",
            "programs cannot be put on the way of packets",
        )
        .with_remedy(
            "modprobe sch_ingress cls_bpf, or a kernel with CONFIG_NET_CLS_ACT and CONFIG_NET_CLS_BPF",
        ),
        None => Finding::limited(
            KernelEngine,
            name,
            "not tried: there is no lab to try it in",
            "whether programs can be put on the way of packets is not known",
        ),
    }
}

/// The number of the capability to change networks.
const CAP_NET_ADMIN: u32 = 12;

fn net_admin() -> Finding {
    let name = "CAP_NET_ADMIN";
    let status = read("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    if effective >> CAP_NET_ADMIN & 1 == 1 {
        return Finding::ok(KernelEngine, name, "this user may change interfaces");
    }
    let means = "programs cannot be put on the interfaces of this machine";
    Finding::missing(KernelEngine, name, "this user may not change interfaces", means)
        .with_remedy("run it as root")
}

fn types() -> Finding {
    if Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Finding::ok(KernelEngine, "BTF", "the kernel describes its types");
    }
    let found = "/sys/kernel/btf/vmlinux is not there";
    Finding::limited(KernelEngine, "BTF", found, "programs that look into the kernel's own data do not load")
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
            "no clang that compiles for BPF is here",
            "a Treecast that is built here has no kernel engine; to run one that has it takes no clang",
        )
        .with_remedy("to build it: install clang and libbpf-dev"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::State;

    #[test]
    fn a_build_without_the_program_has_no_kernel_engine_and_nothing_to_load() {
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
    fn rights_are_told_from_what_the_kernel_cannot_do() {
        let means = |why: &str| {
            let finding = loaded(Err(EbpfError::Load { why: why.into() })).unwrap();
            assert_eq!(finding.state, State::Missing);
            finding.means.unwrap()
        };
        let cannot = "the kernel does not take what the engine needs, or seccomp keeps it away";
        assert_eq!(means("unknown func bpf_loop#181"), cannot);
        assert_ne!(means("Operation not permitted (os error 1)"), cannot);
    }
}
