//! Every command in the README and in the docs prints the output shown.

use std::io::Write;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn commands_in_the_docs_print_the_output_shown() {
    // The commands write their files to a temporary directory.
    let place = tempfile::tempdir().unwrap();
    std::env::set_current_dir(&place).unwrap();
    // A file that commands read.
    for file in ["network.toml", "network-lab.toml"] {
        std::fs::copy(Path::new(ROOT).join("docs").join(file), file).unwrap();
    }
    let pages = tempfile::tempdir().unwrap();
    let cases = trycmd::TestCases::new();
    for directory in ["", "docs", "docs/guide"] {
        for entry in std::fs::read_dir(Path::new(ROOT).join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with("docs/lab.md") && !labs_are_allowed() {
                continue;
            }
            if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.file_name().unwrap().to_str().unwrap();
                let copy = pages.path().join(format!("{}-{name}", directory.replace('/', "-")));
                std::fs::write(&copy, with_line_ends(&std::fs::read_to_string(&path).unwrap())).unwrap();
                cases.case(copy);
            }
        }
    }
    cases.run();
}

/// Whether this machine allows labs; prints a message if not.
fn labs_are_allowed() -> bool {
    let treecast = env!("CARGO_BIN_EXE_treecast");
    let output = std::process::Command::new(treecast).args(["lab", "1", "--", "true"]).output().unwrap();
    if !output.status.success() {
        // Written directly, because the test harness captures output.
        let stderr = String::from_utf8_lossy(&output.stderr);
        let _ = std::io::stderr().write_all(format!("skipped: docs/lab.md: {stderr}").as_bytes());
    }
    output.status.success()
}

/// Inserts a blank line after each output, which trycmd requires for output that ends with a
/// newline. All of ours does, and readers of the docs do not need it.
fn with_line_ends(page: &str) -> String {
    let mut text = String::new();
    let mut in_console = false;
    let mut before = "";
    for line in page.lines() {
        let output_ends = line == "```" || line.starts_with("$ ");
        if in_console && output_ends && !before.is_empty() && !before.starts_with(['$', '`']) {
            text.push('\n');
        }
        in_console = line.starts_with("```console") || (in_console && line != "```");
        text += line;
        text.push('\n');
        before = line;
    }
    text
}

#[test]
fn a_blank_line_follows_each_output() {
    let page = "```console\n$ a\nout\n$ b\n$ c\n? 2\nerr\n```\n```\n$ d\nx\n```\n";
    let expected = "```console\n$ a\nout\n\n$ b\n$ c\n? 2\nerr\n\n```\n```\n$ d\nx\n```\n";
    assert_eq!(with_line_ends(page), expected);
}
