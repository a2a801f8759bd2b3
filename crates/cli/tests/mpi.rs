//! `treecast mpi`: which shim it preloads, and what it says if there is none. The programs and
//! libraries are empty ones with the right names; crates/capi/tests/mpi has real ones.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

fn compile(directory: &Path, arguments: &[&str], source: &str) {
    let file = directory.join("source.c");
    std::fs::write(&file, source).unwrap();
    let status = Command::new("cc").current_dir(directory).arg(&file).args(arguments).status().unwrap();
    assert!(status.success());
}

/// A directory with a program that needs the library of Open MPI, and prints what is preloaded and
/// its arguments.
fn program(with_shim: bool) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    compile(path, &["-shared", "-fPIC", "-Wl,-soname,libmpi.so.40", "-o", "libmpi.so.40"], "int x;");
    if with_shim {
        compile(path, &["-shared", "-fPIC", "-o", "libtreecast_mpi_openmpi.so"], "int y;");
    }
    let main = "#include <stdio.h>\n#include <stdlib.h>\nextern int x;\nint main(int c, char **a) \
                { printf(\"%s %s %s\\n\", getenv(\"LD_PRELOAD\"), getenv(\"TREECAST_MPI_REPORT\"), a[c - 1 + x]); return 7; }";
    compile(path, &["-o", "program", "libmpi.so.40", "-Wl,-rpath,$ORIGIN"], main);
    directory
}

fn mpi(directory: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_treecast"));
    command.env_remove("LD_PRELOAD").current_dir(directory).arg("mpi").args(arguments);
    command.output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_shim_of_the_programs_mpi_is_preloaded() {
    let directory = program(true);
    let shim =
        directory.path().canonicalize().unwrap().join("libtreecast_mpi_openmpi.so").display().to_string();
    let ran = mpi(&directory, &["--library", ".", "--report", "--", "./program", "last"]);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), format!("{shim} on last\n"), "{}", stderr(&ran));
    assert_eq!(ran.status.code(), Some(7));
    // By a launcher, here a script; and with another library that is preloaded.
    let shown = mpi(&directory, &["--library", ".", "--show", "--", "env", "./program", "-n"]);
    assert_eq!(String::from_utf8_lossy(&shown.stdout), format!("LD_PRELOAD={shim} env ./program -n\n"));
    assert!(
        stderr(&shown).contains("the MPI is openmpi: ./program needs libmpi.so.40"),
        "{}",
        stderr(&shown)
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_treecast"));
    command.env("LD_PRELOAD", "libm.so.6").env("TREECAST_MPI_SCHEME", "binomial").current_dir(&directory);
    let shown = command.args(["mpi", "--library", ".", "--show", "--", "./program"]).output().unwrap();
    let expected = format!("LD_PRELOAD={shim}:libm.so.6 TREECAST_MPI_SCHEME=binomial ./program\n");
    assert_eq!(String::from_utf8_lossy(&shown.stdout), expected);
}

#[test]
fn open_mpis_launcher_is_told_which_variables_to_pass_on() {
    let directory = program(true);
    std::os::unix::fs::symlink("/bin/true", directory.path().join("mpirun")).unwrap();
    let shown =
        mpi(&directory, &["--library", ".", "--report", "--show", "--", "./mpirun", "-n", "2", "./program"]);
    let line = String::from_utf8_lossy(&shown.stdout);
    assert!(
        line.ends_with(" ./mpirun -x LD_PRELOAD -x TREECAST_MPI_REPORT -n 2 ./program\n"),
        "{line}{}",
        stderr(&shown)
    );
}

#[test]
fn what_is_missing_is_said() {
    let directory = program(false);
    let cases: [(&[&str], &str); 5] = [
        (
            &["--library", ".", "--", "./program"],
            "there is no libtreecast_mpi_openmpi.so, which programs of this MPI need",
        ),
        (&["--library", ".", "--mpi", "mpich", "--", "./program"], "there is no libtreecast_mpi_mpich.so"),
        (&["--", "./none"], "no program in './none' needs an MPI library: give --mpi"),
        (&["--", "sh", "-c", "true"], "no program in 'sh -c true' needs an MPI library"),
        (
            &["--mpi", "lam", "--", "./program"],
            "invalid value lam for --mpi: expected openmpi, mpich or standard",
        ),
    ];
    for (arguments, expected) in cases {
        let output = mpi(&directory, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    let directory = program(true);
    let output = mpi(&directory, &["--library", ".", "--ranks", "2", "--", "./program"]);
    assert!(stderr(&output).contains("--ranks is for labs: treecast lab 4 --on 0"), "{}", stderr(&output));
}
