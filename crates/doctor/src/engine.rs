//! What the engine within the kernel will need: BPF programs on the way of packets, and memory shared with them.

#![expect(unsafe_code, reason = "bpf(2) has no other way in")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;

use crate::Area::KernelEngine;
use crate::Finding;
use crate::hosts::Classifier;
use crate::machine::{is_root, kernel, output, read, tool};

pub fn examine(classifier: Classifier) -> Vec<Finding> {
    vec![version(), program(), shared_memory(), classify(classifier), net_admin(), types(), compiler()]
}

fn version() -> Finding {
    let (numbers, release) = kernel();
    let found = format!("Linux {release}");
    if numbers >= (5, 10) {
        return Finding::ok(KernelEngine, "kernel", found);
    }
    Finding::missing(KernelEngine, "kernel", found, "the kernel engine needs Linux 5.10 or later")
}

/// Loads a program for the way of packets that lets all of them pass, and throws it away: it is attached to nothing.
fn program() -> Finding {
    match load_program() {
        Ok(_) => Finding::ok(KernelEngine, "BPF programs", "one was loaded, and is gone again"),
        Err(error) => refused("BPF programs", &error),
    }
}

/// Makes a map whose memory can be shared with a process, and throws it away.
fn shared_memory() -> Finding {
    match make_map() {
        Ok(_) => Finding::ok(KernelEngine, "BPF memory", "a map for sharing was made, and is gone again"),
        Err(error) => refused("BPF memory", &error),
    }
}

fn refused(name: &'static str, error: &io::Error) -> Finding {
    let missing = |means: &str| Finding::missing(KernelEngine, name, format!("bpf(2): {error}"), means);
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if is_root() => {
            missing("root lacks CAP_BPF or CAP_SYS_ADMIN here, or the kernel is locked down")
                .with_remedy("in a container: let it be privileged; else see /sys/kernel/security/lockdown")
        }
        Some(libc::EPERM | libc::EACCES) => {
            let mut means =
                "the kernel engine is for root, or for who has CAP_BPF and CAP_NET_ADMIN".to_owned();
            if let Some(setting) =
                read("/proc/sys/kernel/unprivileged_bpf_disabled").filter(|text| text != "0")
            {
                means += &format!(" (kernel.unprivileged_bpf_disabled={setting})");
            }
            missing(&means).with_remedy("run it as root")
        }
        Some(libc::ENOSYS) => missing("this kernel was built without BPF, or seccomp keeps it away"),
        _ => missing("the kernel does not take what the engine needs"),
    }
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
            "the engine's program can be loaded here, and not compiled",
        )
        .with_remedy("install clang"),
    }
}

/// From linux/bpf.h.
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;

/// What `BPF_MAP_CREATE` takes.
#[repr(C)]
struct MapAttributes {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

/// What `BPF_PROG_LOAD` takes. Addresses are numbers of 64 bits on every machine.
#[repr(C)]
struct ProgramAttributes {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

fn make_map() -> io::Result<OwnedFd> {
    let attributes = MapAttributes {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_bytes: 4,
        value_bytes: 4_096,
        entries: 1,
        flags: BPF_F_MMAPABLE,
    };
    // SAFETY: these are the attributes of that command, without pointers.
    unsafe { bpf(BPF_MAP_CREATE, &attributes) }
}

fn load_program() -> io::Result<OwnedFd> {
    // Register 0 := 0 (the packet passes); exit. An instruction is a code, registers, an offset and a number.
    let instructions: [u64; 2] = [0xb7_u64.to_le(), 0x95_u64.to_le()];
    let attributes = ProgramAttributes {
        program_type: BPF_PROG_TYPE_SCHED_CLS,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
    };
    // SAFETY: these are the attributes of that command; what they point to outlives the call.
    unsafe { bpf(BPF_PROG_LOAD, &attributes) }
}

/// # Safety
/// The attributes are those of a command that answers with a descriptor, and their addresses lead to what it reads.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises.
    let made = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>() as libc::c_ulong)
    };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}
