//! Compiles the BPF program, once for networks of the usual packets and once for those of long ones. Where there is no compiler
//! for it the crate is built without, and says so when it is asked for the program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What the program is compiled for: its name, and the longest payload in bytes, a multiple of 8. What is left of a packet of
/// 1,500 or 9,000 bytes behind the headers of IPv4, UDP and ours.
const VARIANTS: [(&str, u32); 2] = [("standard", 1_408), ("jumbo", 8_912)];

fn main() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where to write"));
    let mut problem = String::new();
    for (name, slot_bytes) in VARIANTS {
        let object = out.join(format!("{name}.o"));
        if let Err(why) = compile(&sources, slot_bytes, &object) {
            problem = why;
            fs::write(&object, []).expect("cargo's directory can be written");
        }
    }
    if !problem.is_empty() {
        // Until what is missing is installed.
        let folders = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>();
        for folder in folders.iter().map(PathBuf::as_path).chain([Path::new("/usr/include")]) {
            if folder.is_dir() {
                println!("cargo::rerun-if-changed={}", folder.display());
            }
        }
    }
    println!("cargo::rustc-env=TREECAST_BPF_PROBLEM={}", problem.replace('\n', "; "));
}

fn compile(sources: &Path, slot_bytes: u32, object: &Path) -> Result<(), String> {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return Err("BPF programs are for Linux".into());
    }
    if env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() != Ok("little") {
        return Err("the BPF program is written for processors whose first byte is the lowest".into());
    }
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo names the architecture");
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
        // Debian keeps what differs between architectures apart.
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
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find(|line| line.contains("error")).unwrap_or("it says nothing");
    // Whoever changes the program wants to read all of it.
    println!("cargo::warning=the BPF program does not compile: {first}");
    Err(format!("{clang}: {first}"))
}
