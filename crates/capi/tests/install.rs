//! An installation by `make install` is found by pkg-config, and the programs of the docs link with
//! it and work.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// A directory with the build outputs to install: the libraries of this test, and a placeholder for
/// the command.
fn built(directory: &Path) -> PathBuf {
    let built = directory.join("built");
    fs::create_dir(&built).unwrap();
    let test = std::env::current_exe().unwrap();
    let libraries = test.parent().unwrap();
    for name in ["libtreecast.so", "libtreecast.a"] {
        let here = libraries.join(name);
        let library = if here.exists() { here } else { libraries.join("..").join(name) };
        symlink(library, built.join(name)).unwrap();
    }
    symlink("/bin/true", built.join("treecast")).unwrap();
    built
}

/// Installs the build as a packager does: for the prefix /opt/tree, into a staging directory.
fn install(directory: &Path) -> PathBuf {
    let package = directory.join("package");
    let mut make = make(&["install", "PREFIX=/opt/tree", &format!("LIBDIR={LIBRARIES}")]);
    make.arg(format!("DESTDIR={}", package.display()));
    make.arg(format!("BUILT={}", built(directory).display()));
    run(&mut make);
    package
}

const LIBRARIES: &str = "/opt/tree/lib/here";

fn make(arguments: &[&str]) -> Command {
    let mut make = Command::new("make");
    // Settings of the make that runs this test must not apply.
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").current_dir(repository()).args(arguments);
    make
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A command whose environment lets pkg-config and the loader find the package.
fn with(package: &Path, program: &str) -> Command {
    let libraries = package.join(&LIBRARIES[1..]);
    let mut command = Command::new(program);
    command.env("PKG_CONFIG_LIBDIR", libraries.join("pkgconfig")).env("LD_LIBRARY_PATH", libraries);
    command.env("PKG_CONFIG_SYSROOT_DIR", package);
    command
}

/// Whether programs are installed. If not, says what is skipped, directly, because the test harness
/// captures output.
fn are_there(programs: &[&str], skipped: &str) -> bool {
    let missing = programs.iter().find(|program| Command::new(program).arg("--version").output().is_err());
    if let Some(program) = missing {
        let _ = std::io::stderr().write_all(format!("skipped: no {program}, so {skipped}\n").as_bytes());
    }
    missing.is_none()
}

const NOT_LINKED: &str = "no C program is linked with an installation";

#[test]
fn a_c_program_links_with_the_installed_library() {
    if !are_there(&["make", "cc", "pkg-config"], NOT_LINKED) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let package = install(directory.path());
    let mode = |path: &str| fs::metadata(package.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("opt/tree/bin/treecast"), 0o755);
    assert_eq!(mode("opt/tree/include/treecast.h"), 0o644);
    let unit = "opt/tree/lib/systemd/system/treecast.service";
    assert_eq!(mode(unit), 0o644);
    let unit = fs::read_to_string(package.join(unit)).unwrap();
    assert!(unit.contains("ExecStart=/opt/tree/bin/treecast node --engine ebpf"), "{unit}");
    assert_eq!(mode("opt/tree/share/doc/treecast/policy.toml"), 0o644);
    assert_eq!(mode("opt/tree/lib/here/pkgconfig/treecast.pc"), 0o644);
    let version = env!("CARGO_PKG_VERSION");
    assert!(package.join(format!("opt/tree/lib/here/libtreecast.so.{version}")).is_file());

    let pkg_config = |asked: &[&str]| run(with(&package, "pkg-config").args(asked).arg("treecast"));
    assert_eq!(pkg_config(&["--modversion"]).trim(), version);
    // pkg-config prints the final paths, not those of the staging directory.
    let libraries = pkg_config(&["--variable=libdir"]);
    assert_eq!(libraries.trim(), format!("{}{LIBRARIES}", package.display()));
    let there =
        run(with(&package, "pkg-config").env_remove("PKG_CONFIG_SYSROOT_DIR").args(["--libs", "treecast"]));
    assert_eq!(there.trim(), format!("-L{LIBRARIES} -ltreecast"));

    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broadcast.c");
    let compile = |name: &str, flags: &str| {
        let program = directory.path().join(name);
        run(Command::new("cc").arg(&source).arg("-o").arg(&program).args(flags.split_whitespace()));
        program
    };
    let shared = compile("shared", &pkg_config(&["--cflags", "--libs"]));
    // The program writes other files beside its plan.
    let plan = directory.path().join("plan.json");
    fs::copy(source.with_file_name("plan.json"), &plan).unwrap();
    assert_eq!(run(with(&package, shared.to_str().unwrap()).arg(&plan)), "done\n");
    // The machine that valgrind simulates has no vDSO, by which programs read the clock without a
    // system call.
    if are_there(&["valgrind"], "no C program is run under it") {
        let mut valgrind = with(&package, "valgrind");
        assert_eq!(run(valgrind.args(["--quiet", "--error-exitcode=1"]).arg(&shared).arg(&plan)), "done\n");
    }
    // Without the shared library the linker uses the static one.
    fs::remove_file(package.join("opt/tree/lib/here/libtreecast.so")).unwrap();
    let alone = compile("alone", &pkg_config(&["--static", "--cflags", "--libs"]));
    assert_eq!(run(Command::new(alone).arg(&plan)), "done\n");
}

#[test]
fn the_c_programs_of_the_docs_print_the_output_shown() {
    if !are_there(&["make", "cc", "pkg-config"], NOT_LINKED) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let package = install(directory.path());
    let page = fs::read_to_string(repository().join("docs/library.md")).unwrap();
    let [files @ .., ("sh", commands), ("text", expected)] = &programs(&page)[..] else {
        panic!("the page has no C programs, commands and what they print");
    };
    let mut ports = BTreeMap::new();
    for (_, file) in files {
        let name = file.split_whitespace().nth(1).unwrap();
        fs::write(directory.path().join(name), on_free_ports(file, &mut ports)).unwrap();
    }
    let mut shell = with(&package, "sh");
    shell.current_dir(&directory).args(["-ec", &on_free_ports(commands, &mut ports)]);
    assert_eq!(run(&mut shell), *expected);
}

/// The code blocks of a page from its first C program to its output: their languages and texts.
fn programs(page: &str) -> Vec<(&str, &str)> {
    let blocks = page.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    let mut programs: Vec<_> = blocks.skip_while(|(language, _)| *language != "c").collect();
    let end = programs.iter().position(|(language, _)| *language == "text").map_or(0, |end| end + 1);
    programs.truncate(end);
    programs
}

/// The same text with free ports, because those of the text may be in use.
fn on_free_ports(text: &str, ports: &mut BTreeMap<String, String>) -> String {
    const HOST: &str = "127.0.0.1:";
    let mut parts = text.split(HOST);
    let mut answer = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let digits = part.len() - part.trim_start_matches(|character: char| character.is_ascii_digit()).len();
        let (port, rest) = part.split_at(digits);
        // Port 0 stays.
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let other = if port == "0" { "0" } else { ports.entry(port.into()).or_insert_with(free) };
        answer = answer + HOST + other + rest;
    }
    answer
}

#[test]
fn an_installation_without_a_build_fails_with_instructions() {
    if !are_there(&["make"], NOT_LINKED) {
        return;
    }
    let output = make(&["install", "BUILT=nowhere", "DESTDIR=nowhere"]).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("nowhere/libtreecast.so does not exist: run make release first"), "{said}");
}
