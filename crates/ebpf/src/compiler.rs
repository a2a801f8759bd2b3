//! Compiles the program, for tests and for `make bpf`.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The directory of the program's sources.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf")
}

/// Prints why a test is skipped, in one write to standard error: the test harness captures the
/// output of passing tests.
pub(crate) fn skip(why: &dyn Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

/// A clang that compiles for BPF, with the headers of libbpf and of the kernel.
pub(crate) struct Compiler {
    clang: String,
}

impl Compiler {
    /// Finds the compiler: the one that the variable `CLANG` names, else `clang`. The error names
    /// what is missing.
    pub(crate) fn find() -> Result<Self, String> {
        let compiler = Self { clang: std::env::var("CLANG").unwrap_or_else(|_| "clang".into()) };
        if Command::new(&compiler.clang).arg("--version").output().is_err() {
            return Err(format!("no {}, so the BPF program is not compiled", compiler.clang));
        }
        let headers = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n";
        match compiler.check(headers) {
            Ok(()) => Ok(compiler),
            Err(_) => Err("clang does not find libbpf's headers, so the BPF program is not compiled".into()),
        }
    }

    /// The first line of the output of `clang --version`.
    pub(crate) fn version(&self) -> String {
        let output = Command::new(&self.clang).arg("--version").output().expect("clang was found");
        String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_string()
    }

    fn command(&self, slot_bytes: u32) -> Command {
        let mut command = Command::new(&self.clang);
        command
            .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror"])
            // Debug information contains file names: relative ones, so that the object does not
            // depend on the directory.
            .args(["-Wno-unused-parameter", "-fdebug-compilation-dir=."])
            .arg(format!("-DSLOT_BYTES={slot_bytes}"))
            // Debian installs headers that differ between architectures in a separate directory.
            .arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH))
            .current_dir(sources());
        command
    }

    /// Compiles the program to an object file.
    pub(crate) fn compile(&self, slot_bytes: u32, object: &Path) {
        let mut command = self.command(slot_bytes);
        run(command.args(["-c", "treecast.bpf.c", "-o"]).arg(object));
    }

    /// As `compile`, without debug information, which is most of an object. Types (BTF) remain.
    pub(crate) fn compile_and_strip(&self, slot_bytes: u32, object: &Path) {
        self.compile(slot_bytes, object);
        run(Command::new("llvm-strip").arg("--strip-debug").arg(object));
    }

    /// The program with all headers.
    pub(crate) fn preprocess(&self, slot_bytes: u32) -> Vec<u8> {
        run(self.command(slot_bytes).args(["-E", "-P", "treecast.bpf.c"])).stdout
    }

    /// Checks a source that includes headers of the program; an error has the compiler's messages.
    pub(crate) fn check(&self, source: &str) -> Result<(), String> {
        let mut compiler = self
            .command(1_408)
            // No warnings: a check of a header alone does not use all of it.
            .args(["-w", "-fsyntax-only", "-I.", "-x", "c", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("clang was found");
        let mut input = compiler.stdin.take().expect("it is a pipe");
        // An error is no failure here: clang may exit before it has read its input, and its status
        // decides.
        let _ = input.write_all(source.as_bytes());
        drop(input);
        let output = compiler.wait_with_output().expect("the compiler ends");
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
    }
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
