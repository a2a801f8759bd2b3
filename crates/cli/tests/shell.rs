//! The shell commands of README and docs, those without a `$`, are run; of those that need more
//! than this machine, the options are checked.
//!
//! A block of `sh` is run, and each line of the text block right below it has to be in its output,
//! whatever the numbers are. Excepted are the blocks of [`EXCEPTIONS`]. Of these, and of indented
//! commands, each `treecast` is run with `--help`, which fails if an option or its value is
//! invalid.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TREECAST: &str = env!("CARGO_BIN_EXE_treecast");

/// Why a block is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exception {
    /// It is run by another test.
    By(&'static str),
    /// It names hosts, or files of the reader.
    Hosts,
    /// It needs the network, rights, or other programs.
    Installs,
    /// It takes a minute or longer.
    Long,
}
use Exception::{By, Hosts, Installs, Long};

/// The blocks that are not run: the page, and how the block begins.
const EXCEPTIONS: [(&str, &str, Exception); 22] = [
    ("README.md", "export TREECAST_TOKEN=secret\npython", By("python/tests/test_docs.py")),
    ("docs/guide/program.md", "export TREECAST_TOKEN=secret\npython", By("python/tests/test_docs.py")),
    ("docs/guide/mpi.md", "mpicc hello.c", Installs),
    ("docs/library.md", "make release", By("crates/capi/tests/install.rs")),
    ("docs/library.md", "cc hello.c", By("crates/capi/tests/install.rs")),
    ("docs/python.md", "python3 -m venv", Installs),
    ("docs/python.md", "dask scheduler", By("python/tests/test_clusters.py")),
    ("docs/python.md", "pip install mpi4py", By("python/tests/test_clusters.py")),
    ("docs/python.md", "#!/bin/sh\n#SBATCH", Hosts),
    ("docs/cp.md", "treecast cp image.sqsh", Hosts),
    ("docs/cp.md", "treecast cp -a --delete -n conf", Hosts),
    ("docs/lab.md", "treecast lab 4 --on 0 -- sh -c 'mpirun", Installs),
    ("docs/node.md", "treecast node --listen 0.0.0.0:7000 --count 3", Hosts),
    ("docs/node.md", "export TREECAST_TOKEN=...", Hosts),
    ("docs/node.md", "treecast plan", Hosts),
    ("docs/node.md", "srun", Hosts),
    ("docs/node.md", "treecast node --engine ebpf", Hosts),
    ("docs/security.md", "treecast node --listen", Hosts),
    ("docs/predictions.md", "treecast tune --hosts", Hosts),
    ("docs/predictions.md", "treecast tune --lab 16 --engine user,ebpf --messages 200", Long),
    ("docs/predictions.md", "treecast tune --lab 16 --engine user,ebpf --sizes", Long),
    ("docs/validation.md", "treecast paper run booksim2", Long),
];

struct Block {
    page: String,
    commands: String,
    /// The text block below it.
    shown: String,
}

impl Block {
    fn exception(&self) -> Option<Exception> {
        let mut all = EXCEPTIONS.iter();
        all.find(|(page, begins, _)| *page == self.page && self.commands.starts_with(begins))
            .map(|found| found.2)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names and texts of README and docs.
fn pages() -> Vec<(String, String)> {
    let mut pages = Vec::new();
    for directory in ["", "docs/", "docs/guide/"] {
        for entry in fs::read_dir(root().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.file_name().unwrap().to_str().unwrap();
                pages.push((format!("{directory}{name}"), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    pages.sort();
    pages
}

/// The parts of a page: prose, and code with its language in the first line, in turn.
fn parts(text: &str) -> Vec<&str> {
    text.split("```").collect()
}

fn blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    for (page, text) in pages() {
        let parts = parts(&text);
        for (place, part) in parts.iter().enumerate().skip(1).step_by(2) {
            let Some(commands) = part.strip_prefix("sh\n") else { continue };
            let is_between = parts.get(place + 1).is_some_and(|prose| prose.trim().is_empty());
            let below = parts.get(place + 2).filter(|_| is_between);
            let shown = below.and_then(|code| code.strip_prefix("text\n")).unwrap_or_default();
            blocks.push(Block { page: page.clone(), commands: commands.to_owned(), shown: shown.to_owned() });
        }
    }
    blocks
}

/// How often each line is in a text, with one digit for each number and one space for each gap.
fn lines(text: &str) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let spaced = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut kept = String::new();
        let mut characters = spaced.chars().peekable();
        while let Some(character) = characters.next() {
            kept.push(if character.is_ascii_digit() { '0' } else { character });
            let is_of_number = |next: &char| next.is_ascii_digit() || ".,".contains(*next);
            while character.is_ascii_digit() && characters.next_if(is_of_number).is_some() {}
        }
        *lines.entry(kept).or_default() += 1;
    }
    lines
}

fn skip(why: &str) {
    // Written directly, because the test harness captures output.
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

#[test]
fn blocks_run_and_print_the_lines_shown() {
    let place = tempfile::tempdir().unwrap();
    fs::copy(root().join("README.md"), place.path().join("README.md")).unwrap();
    let programs = Path::new(TREECAST).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let asked = Command::new(TREECAST).args(["lab", "1", "--", "true"]).output().unwrap();
    let mut count = 0;
    for Block { page, commands, shown } in blocks().into_iter().filter(|block| block.exception().is_none()) {
        if commands.contains("lab") && !asked.status.success() {
            skip(&format!("labs in {page}: {}", String::from_utf8_lossy(&asked.stderr).trim_end()));
            continue;
        }
        let mut shell = Command::new("timeout");
        shell.args(["60", "sh", "-ec", &commands]).current_dir(&place).env("PATH", &path);
        let output = shell.stdin(Stdio::null()).output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        assert!(output.status.success(), "{page}: {commands}{}\n{printed}", output.status);
        let found = lines(&printed);
        for (line, times) in lines(&shown) {
            let is_there = found.get(&line).is_some_and(|found| *found >= times);
            assert!(is_there, "{page}: {commands}prints no '{line}', or not {times} times:\n{printed}");
        }
        count += 1;
    }
    assert!(count >= 2, "{count} blocks were run");
}

#[test]
fn exceptions_are_blocks_and_name_tests_that_exist() {
    let blocks = blocks();
    for (page, begins, exception) in EXCEPTIONS {
        let matching = blocks.iter().filter(|block| block.page == page && block.commands.starts_with(begins));
        assert_eq!(matching.count(), 1, "blocks of {page} that begin with {begins}");
        if let By(test) = exception {
            assert!(root().join(test).exists(), "{test} does not exist");
        }
    }
}

#[test]
fn commands_that_are_not_run_have_valid_options() {
    let programs = tempfile::tempdir().unwrap();
    let log = programs.path().join("log");
    let write = |name: &str, text: String| {
        let path = programs.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    // Before the command that lab and mpi start, or at the end.
    write(
        "treecast",
        format!(
            r#"#!/bin/sh
left=$# given="$*" has_help=
while [ "$left" -gt 0 ]; do
    if [ "$1" = -- ] && [ -z "$has_help" ]; then set -- "$@" --help; has_help=1; fi
    set -- "$@" "$1"; shift; left=$((left - 1))
done
[ -n "$has_help" ] || set -- "$@" --help
if {TREECAST} "$@" >/dev/null 2>&1; then echo "valid: $given"; else echo "invalid: $given"; fi >>{}
"#,
            log.display()
        ),
    );
    // Starts the command after its options.
    write(
        "srun",
        "#!/bin/sh\nwhile case $1 in -n) shift ;; -*) ;; *) false ;; esac; do shift; done\nexec \"$@\"\n"
            .into(),
    );
    let path = format!("{}:/usr/bin:/bin", programs.path().display());
    let place = tempfile::tempdir().unwrap();
    let try_all = |commands: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", commands]).current_dir(&place).env("PATH", &path).stdin(Stdio::null());
        // Other programs of a block fail here.
        shell.output().unwrap();
    };
    let is_checked = |block: &Block| matches!(block.exception(), Some(Hosts | Long | Installs));
    for block in blocks().iter().filter(|block| is_checked(block) && block.commands.contains("treecast ")) {
        // Nothing is installed.
        let treecasts = block.commands.lines().skip_while(|line| !line.contains("treecast "));
        try_all(&treecasts.collect::<Vec<_>>().join("\n"));
    }
    for (_, text) in pages() {
        for line in parts(&text).into_iter().step_by(2).flat_map(str::lines) {
            let command = line.strip_prefix("    ").unwrap_or_default();
            if ["treecast ", "srun "].iter().any(|begins| command.starts_with(begins)) {
                try_all(command);
            }
        }
    }
    let log = fs::read_to_string(log).unwrap();
    let invalid = log.lines().filter(|line| line.starts_with("invalid")).collect::<Vec<_>>();
    assert!(invalid.is_empty(), "{}", invalid.join("\n"));
    assert!(log.lines().count() > 50, "only these were checked:\n{log}");
}

#[test]
fn numbers_and_gaps_are_ignored() {
    assert_eq!(
        lines("n1:  1,234 kB in 0.5 s\n\nn2: 7 kB in 12 s\n"),
        [("n0: 0 kB in 0 s".to_owned(), 2)].into()
    );
}
