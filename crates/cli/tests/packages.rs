//! The scripts that make packages, on the build of the tests: a .deb and a tarball have all parts,
//! and their command works in an empty root. `make packages-test` uses the real ones.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn are_there(programs: &[&str]) -> bool {
    let is_there = |program: &&&str| Command::new(program).arg("--version").output().is_ok();
    let missing = programs.iter().find(|program| !is_there(program));
    if let Some(program) = missing {
        // Written directly, because the test harness captures output.
        let message = format!("skipped: no {program}, so no packages are made of the build of the tests\n");
        let _ = std::io::stderr().write_all(message.as_bytes());
    }
    missing.is_none()
}

/// Build outputs as `make packages` has them: the command of this test, and in place of the
/// libraries small files.
fn built(directory: &Path) -> PathBuf {
    let built = directory.join("built");
    fs::create_dir(&built).unwrap();
    symlink(env!("CARGO_BIN_EXE_treecast"), built.join("treecast")).unwrap();
    symlink("/bin/true", built.join("libtreecast.so")).unwrap();
    symlink("/bin/true", built.join("libtreecast_mpi_openmpi.so")).unwrap();
    fs::write(built.join("libtreecast.a"), "!<arch>\n").unwrap();
    built
}

/// Copies the libraries that a program needs into a root.
fn copy_libraries(program: &Path, root: &Path) {
    let listed = run(Command::new("ldd").arg(program));
    for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
        let copy = root.join(&library[1..]);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(library, copy).unwrap();
    }
}

/// The output of an installed command: in its root where that is allowed, or beside it.
fn output_in(root: &Path, command: &str, arguments: &[&str]) -> String {
    let mut installed = if rustix::process::geteuid().is_root() {
        copy_libraries(&root.join(&command[1..]), root);
        let mut chroot = Command::new("/usr/sbin/chroot");
        chroot.arg(root).arg(command);
        chroot
    } else {
        Command::new(root.join(&command[1..]))
    };
    run(installed.args(arguments))
}

fn check(root: &Path, command: &str, parts: &[&str]) {
    for part in parts {
        assert!(root.join(part).exists(), "{part} is missing in {}", root.display());
    }
    let plan = output_in(root, command, &["plan", "--fabric", "star:16", "--scheme", "binomial"]);
    assert!(plan.contains("steps 4"), "{plan}");
    let sim = ["sim", "--fabric", "icpp98", "--scheme", "tree-worm", "--dests", "1-3"];
    let sim = output_in(root, command, &sim);
    assert!(sim.contains("complete after 4332 cycles"), "{sim}");
}

#[test]
fn packages_have_all_parts_and_their_command_works() {
    if !are_there(&["make", "strip", "objcopy", "dpkg-deb", "tar"]) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let packages = place.path().join("packages");
    let mut make = Command::new(repository().join("dist/make-packages"));
    // Settings of the make that runs this test must not apply.
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").arg(&packages);
    make.env("BUILT", built(place.path())).env("RECEIVER", "/bin/true").env("GLIBC", "2.28");
    // An unoptimized command is large, and takes long to compress.
    make.env("DPKG_DEB_COMPRESSOR_TYPE", "none").env("FORMATS", "deb tarball");
    let made = run(&mut make);
    let ending = |end: &str| PathBuf::from(made.lines().find(|line| line.ends_with(end)).expect(end));

    let root = place.path().join("deb");
    run(Command::new("dpkg-deb").arg("--extract").arg(ending(".deb")).arg(&root));
    let libraries = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let library = |name: &str| format!("{libraries}/{name}");
    let parts = [
        library("libtreecast.so"),
        library("libtreecast.a"),
        library("libtreecast_mpi_openmpi.so"),
        library("pkgconfig/treecast.pc"),
    ];
    let mut parts = parts.iter().map(String::as_str).collect::<Vec<_>>();
    parts.extend([
        "usr/include/treecast.h",
        "usr/lib/treecast/treecast-receiver",
        "usr/lib/systemd/system/treecast.service",
        "usr/share/doc/treecast/copyright",
        "usr/share/doc/treecast/policy.toml",
        "usr/share/man/man1/treecast-plan.1",
        "usr/share/bash-completion/completions/treecast",
        "usr/share/zsh/vendor-completions/_treecast",
        "usr/share/fish/vendor_completions.d/treecast.fish",
    ]);
    check(&root, "/usr/bin/treecast", &parts);

    let root = place.path().join("tarball");
    fs::create_dir(&root).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&root).args(["--strip-components=1", "-xzf"]).arg(ending(".tar.gz"));
    run(&mut tar);
    let parts = [
        "include/treecast.h",
        "lib/libtreecast.so",
        "lib/treecast/treecast-receiver",
        "lib/systemd/system/treecast.service",
        "share/doc/treecast/LICENSE-MIT",
        "share/man/man1/treecast-plan.1",
    ];
    check(&root, "/bin/treecast", &parts);
    let service = fs::read_to_string(root.join("lib/systemd/system/treecast.service")).unwrap();
    assert!(service.contains("ExecStart=/usr/local/bin/treecast node"), "{service}");
    let module = fs::read_to_string(root.join("lib/pkgconfig/treecast.pc")).unwrap();
    assert!(module.starts_with("prefix=${pcfiledir}/../.."), "{module}");
}
