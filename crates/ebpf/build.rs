//! Compiles the BPF program twice: for networks with the standard MTU and for those with jumbo frames. Without a compiler for it the
//! crate is built without the program, and loading it returns an error that says why.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The variants of the program: the name, and the longest payload in bytes, a multiple of 8. A payload is an IP packet of 1,500 or 9,000
/// bytes without the headers of IPv4, UDP and ours.
const VARIANTS: [(&str, u32); 2] = [("standard", 1_408), ("jumbo", 8_912)];

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets the package's directory"));
    let sources = here.join("../../bpf");
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut problem = String::new();
    for (name, slot_bytes) in VARIANTS {
        let object = out.join(format!("{name}.o"));
        if let Err(why) = compile(&sources, slot_bytes, &object) {
            problem = why;
            fs::write(&object, []).expect("cargo's output directory is writable");
        }
    }
    if !problem.is_empty() {
        // Builds again once the missing tool or header is installed.
        let directories = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>();
        for directory in directories.iter().map(PathBuf::as_path).chain([Path::new("/usr/include")]) {
            if directory.is_dir() {
                println!("cargo::rerun-if-changed={}", directory.display());
            }
        }
    }
    println!("cargo::rustc-env=TREECAST_BPF_PROBLEM={}", problem.replace('\n', "; "));
}

fn compile(sources: &Path, slot_bytes: u32, object: &Path) -> Result<(), String> {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return Err("BPF programs need Linux".into());
    }
    if env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() != Ok("little") {
        return Err("the BPF program supports only little-endian processors".into());
    }
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target architecture");
    let output = Command::new(&clang)
        .args([
            "-O2",
            "-g",
            "-target",
            "bpf",
            "-mcpu=v3",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-parameter",
        ])
        .arg(format!("-DSLOT_BYTES={slot_bytes}"))
        // Debian installs headers that differ between architectures in a directory of their own.
        .arg(format!("-I/usr/include/{architecture}-linux-gnu"))
        .arg("-c")
        .arg(sources.join("treecast.bpf.c"))
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|error| format!("{clang} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let first = stderr.lines().find(|line| line.contains("error")).unwrap_or("no error message");
    // A warning, since cargo hides the output of a build script that succeeds.
    println!("cargo::warning=the BPF program does not compile: {first}");
    Err(format!("{clang}: {first}"))
}
