//! Hosts without the command, which are sent it.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::hosts::{Hosts, TREECAST, assert_same_tree, make_tree};

/// A host without gzip. The command of these tests is long, and compressing it takes time.
const NO_GZIP: &str =
    "mkdir -p bin; printf '#!/bin/sh\\nexit 1\\n' >bin/gzip; chmod 755 bin/gzip; PATH=$PWD/bin:$PATH";

/// Hosts that have the command neither where this one has it nor in the search path.
fn without_command(prologue: &str) -> Hosts {
    let prologue = format!(
        "command=$(printf %s \"$command\" | sed 's#{TREECAST} treecast \"#/nowhere/treecast \"#')\nexport TMPDIR=$PWD/tmp; mkdir -p tmp; umask 027\n{prologue}"
    );
    let hosts = Hosts::with_prologue(&["a", "b"], &prologue);
    make_tree(&hosts.path("data"));
    hosts
}

#[test]
fn a_host_without_the_command_gets_it_and_keeps_it_for_the_next_copy() {
    let hosts = without_command(NO_GZIP);
    hosts.cp_right(&["-r", "data/sub", "a,b:"]);
    assert_eq!(hosts.list("b/tmp"), [""; 0]);
    let mode = |path: &str| hosts.path(path).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("b/sub"), mode("b/sub/run me")), (0o750, 0o750), "the umask is the host's");
    let kept = hosts.list("b/.cache/treecast");
    assert!(kept.len() == 1 && kept[0].starts_with("receiver-"), "{kept:?}");
    let file = format!("b/.cache/treecast/{}", kept[0]);
    assert_eq!(mode(&file), 0o700);

    let of = |path: &str| hosts.path(path).metadata().map(|file| (file.ino(), file.len())).unwrap();
    let before = of(&file);
    hosts.cp_right(&["-r", "data/sub", "a,b:again"]);
    assert_eq!((of(&file), hosts.list("b/.cache/treecast")), (before, kept));

    // One that was damaged is replaced.
    fs::write(hosts.path(&file), "no program").unwrap();
    hosts.cp_right(&["-r", "data/sub", "a,b:third"]);
    assert_eq!(of(&file).1, before.1);
}

#[test]
fn a_host_keeps_no_command_if_that_is_not_wanted_or_not_possible() {
    let hosts = without_command(NO_GZIP);
    hosts.cp_right(&["--no-cache", "-r", "data/sub", "a,b:"]);
    assert!(hosts.list("b/tmp").is_empty() && !hosts.path("b/.cache").exists());
    // No directory can be made there.
    fs::write(hosts.path("b/.cache"), "a file").unwrap();
    hosts.cp_right(&["-r", "data/sub", "a,b:again"]);
    assert!(hosts.list("b/tmp").is_empty());
    assert_same_tree(&hosts.path("data/sub"), &hosts.path("b/again"));
}

/// One host has a slow gzip, and the other one has none.
#[test]
fn the_command_is_compressed_where_that_is_possible_and_progress_says_so() {
    let prologue = "mkdir bin; [ $host = b ] || real=$(command -v gzip); \
        { echo '#!/bin/sh'; echo \"case \\$1 in -dc) sleep 1; touch used; esac; exec ${real:-false} \\\"\\$@\\\"\"; } >bin/gzip; \
        chmod 755 bin/gzip; PATH=$PWD/bin:$PATH";
    let hosts = without_command(prologue);
    let said = hosts.cp_right(&["--no-cache", "-r", "data/sub", "a,b:"]);
    assert!(said.contains("sending the receiver to ") && said.contains("without treecast: "), "{said}");
    for host in ["a", "b"] {
        assert_same_tree(&hosts.path("data/sub"), &hosts.path(&format!("{host}/sub")));
        assert_eq!(hosts.list(&format!("{host}/tmp")), [""; 0]);
    }
}

#[test]
fn a_host_without_room_for_the_command_says_what_helps() {
    let hosts = without_command(&format!("{NO_GZIP}; ulimit -f 100; trap '' XFSZ"));
    let (status, said) = hosts.cp(&["--no-cache", "-r", "data/sub", "a,b:"]);
    assert!(
        status == 5 && said.contains("no room for the receiver") && said.contains("set TMPDIR"),
        "{said}"
    );
    assert_eq!(hosts.list("a/tmp"), [""; 0]);
}
