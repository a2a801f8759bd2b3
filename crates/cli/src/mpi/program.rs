//! Which MPI the program in a command line uses.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Interface;

/// An interface, and the reason for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    pub interface: Interface,
    /// The end of a sentence, such as `./a.out needs libmpi.so.40`.
    pub why: String,
}

/// The interface of the first program of a command line that uses MPI; else that of its launcher,
/// the first word; `None` if neither is known.
pub fn find(command: &[OsString]) -> Option<Found> {
    command.iter().find_map(|word| of_word(word)).or_else(|| of_launcher(command.first()?))
}

/// The interface of a word of a command line, if it is a program: of the program itself, or of the
/// interpreter that a script names.
fn of_word(word: &OsStr) -> Option<Found> {
    let path = executable(word)?;
    let mut magic = [0; 4];
    File::open(&path).ok()?.read_exact(&mut magic).ok()?;
    if is_python(&path) {
        return of_python(&path);
    }
    match &magic {
        b"\x7fELF" => of_binary(&path),
        [b'#', b'!', ..] => {
            let interpreter = interpreter(&path)?;
            if is_python(&interpreter) { of_python(&interpreter) } else { None }
        }
        _ => None,
    }
}

/// The executable file that a word names, as a shell finds it.
pub(super) fn executable(word: &OsStr) -> Option<PathBuf> {
    let is_executable = |path: &PathBuf| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let path = Path::new(word);
    if word.as_encoded_bytes().contains(&b'/') {
        return Some(path.to_path_buf()).filter(is_executable);
    }
    // Options are not programs, whatever files there are.
    if word.as_encoded_bytes().first().is_none_or(|first| *first == b'-') {
        return None;
    }
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories).map(|directory| directory.join(path)).find(is_executable)
}

/// The program in the first line of a script; after `env`, the program that it starts.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    BufReader::new(File::open(script).ok()?).take(256).read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8(line).ok()?;
    let mut words = line.strip_prefix("#!")?.split_whitespace();
    let first = words.next()?;
    let program = if first.ends_with("/env") { words.find(|word| !word.starts_with('-'))? } else { first };
    executable(OsStr::new(program))
}

fn is_python(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("python"))
}

/// The interface of the MPI library that a binary loads, directly or not. `ldd` finds it without
/// running the binary.
fn of_binary(path: &Path) -> Option<Found> {
    let libraries = output_of(Path::new("ldd"), &[path.to_str()?])?;
    let names = libraries.lines().filter_map(|line| line.split_whitespace().next());
    let mut found = names.filter_map(|name| {
        let name = name.rsplit('/').next().unwrap_or(name);
        let why = format!("{} needs {name}", path.display());
        Interface::of_library(name).map(|interface| Found { interface, why })
    });
    found.next()
}

/// The interface of mpi4py's MPI.
fn of_python(python: &Path) -> Option<Found> {
    // mpi4py may have been built for several MPIs: it finds out which one it uses as it is
    // imported.
    let program = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; \
                   print(max(getattr(MPI, 'Get_abi_version', lambda: (0, 0))()), MPI.Get_library_version())";
    let text = output_of(python, &["-c", program])?;
    let (abi, version) = text.split_once(' ')?;
    let is_standard = abi.parse::<i32>().is_ok_and(|abi| abi > 0);
    let interface = if is_standard { Interface::Standard } else { Interface::of_version(version)? };
    let version = version.lines().next()?.split(',').next()?.trim_end();
    Some(Found { interface, why: format!("the mpi4py of {} uses {version}", python.display()) })
}

/// The interface of the MPI that a launcher is part of.
fn of_launcher(launcher: &OsStr) -> Option<Found> {
    let path = executable(launcher)?;
    let name = path.file_name()?.to_str()?.to_owned();
    // Other programs may do anything with such an option.
    if !["mpirun", "mpiexec", "orterun", "prterun"].iter().any(|stem| name.starts_with(stem)) {
        return None;
    }
    let version = output_of(&path, &["--version"])?;
    let interface = Interface::of_version(&version)?;
    Some(Found { interface, why: format!("{} is that of {interface}", path.display()) })
}

/// The standard output of a program; none, if it fails.
pub(super) fn output_of(program: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_command_without_mpi_tells_none() {
        assert_eq!(find(&words(&["sh", "-c", "true"])), None);
        assert_eq!(find(&words(&["/no/program"])), None);
        assert_eq!(find(&words(&["-n", ""])), None);
        assert_eq!(find(&[]), None);
    }

    #[test]
    fn the_first_line_of_a_script_tells_its_interpreter() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        for (line, interpreter_of) in [
            ("#!/bin/sh -e\n", "sh"),
            ("#! /usr/bin/env -S sh -e\n", "sh"),
            ("#!/no/program\n", ""),
            ("\n", ""),
        ] {
            fs::write(&script, line).unwrap();
            let found = interpreter(&script).and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
            assert_eq!(found.unwrap_or_default(), interpreter_of, "{line}");
        }
    }
}
