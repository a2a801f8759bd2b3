//! The header is up to date, and a C program that uses all functions works.

use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Renewed by `UPDATE_HEADER=1 cargo test -p treecast-capi`.
#[test]
fn the_header_is_up_to_date() {
    let mut made = Vec::new();
    cbindgen::generate(env!("CARGO_MANIFEST_DIR")).unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = repository().join("include/treecast.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &made).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == made,
        "renew it: UPDATE_HEADER=1 cargo test -p treecast-capi"
    );
}

/// The directory of this crate's libraries; the test executables are in a subdirectory.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(1).unwrap().to_path_buf()
}

#[test]
fn a_c_program_broadcasts() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("broadcast");
    let library = libraries().join("libtreecast.so");
    let library = if library.exists() { library } else { libraries().join("../libtreecast.so") };
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-pthread"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broadcast.c"))
        .arg("-I")
        .arg(repository().join("include"))
        .arg(&library)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    // Programs load the library by its soname, which has the ABI version.
    let name =
        format!("libtreecast.so.{}.{}", env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    std::os::unix::fs::symlink(&library, directory.path().join(name)).unwrap();
    // The program writes other files beside its plan.
    let plan = directory.path().join("plan.json");
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan.json"), &plan).unwrap();
    let ran = Command::new(&program).arg(plan).env("LD_LIBRARY_PATH", directory.path()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(ran.stdout, b"done\n");
}
