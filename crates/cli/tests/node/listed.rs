//! Members in a file, some of which share a node, and on the hosts of a Slurm job.

use std::process::Child;

use super::*;

#[test]
fn processes_of_a_host_share_its_node() {
    let directory = tempfile::tempdir().unwrap();
    let input = file(&directory, "input", b"to all processes");
    let (shared, alone) = (address(), address());
    let members = file(&directory, "members", format!("{shared} slots=3\n{alone}\n").as_bytes());
    let spawn = |bind: &str, arguments: &[&str]| {
        node(&[&["--members", text(&members), "--bind", bind], arguments].concat()).spawn().unwrap()
    };
    let others: Vec<Child> = [
        (&shared, &["--member", "1", "--receive", "-"][..]),
        (&shared, &["--member", "2", "--receive", "-"]),
        (&alone, &["--receive", "-"]),
    ]
    .map(|(bind, arguments)| spawn(bind, arguments))
    .into();
    check(
        spawn(&shared, &["--member", "0", "--send", text(&input)]),
        0,
        "ready: member 0 of 4; the root; scheme leader",
    );
    for (number, other) in (1..).zip(others) {
        assert_eq!(check(other, 0, &format!("ready: member {number} of 4; ")).stdout, b"to all processes");
    }
}

#[test]
fn a_process_that_shares_a_node_says_which_member_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let (shared, alone) = (address(), address());
    let members = file(&directory, "members", format!("{shared} slots=2\n{alone}\n").as_bytes());
    let any = format!("0.0.0.0:{}", shared.rsplit(':').next().unwrap());
    for (arguments, part) in [
        (
            &["--bind", &shared][..],
            "is the address of members 0, 1: say which of them this process is, by --member N",
        ),
        (
            &["--bind", &any],
            "is the address of members 0, 1: say which of them this process is, by --member N",
        ),
        (&["--bind", &shared, "--member", "2"], "is the address of members 0, 1, and not of member 2"),
        (&["--bind", &shared, "--set", "member=1"], "member is not a setting of the group: use --member"),
    ] {
        check(node(&[&["--members", text(&members)], arguments].concat()).spawn().unwrap(), 2, part);
    }
}

#[test]
fn the_role_of_a_listed_member_is_checked_before_its_node_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let input = file(&directory, "input", b"");
    // A node could not be opened here.
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let members = file(&directory, "members", format!("{address} slots=2\n").as_bytes());
    for (arguments, part) in [
        (&["--member", "1", "--send", text(&input)][..], "--send is for the root, which is member 0"),
        (&["--member", "0"], "--send is missing: this is the root"),
    ] {
        check(node(&[&["--members", text(&members)], arguments].concat()).spawn().unwrap(), 2, part);
    }
}

#[test]
fn the_hosts_of_a_slurm_job_are_members() {
    let directory = tempfile::tempdir().unwrap();
    let input = file(&directory, "input", b"to the job");
    // Port 7700 of addresses that other tests do not use.
    let network = format!("127.77.{}", std::process::id() % 250 + 1);
    let spawn = |host: u32, arguments: &[&str]| {
        let bind = format!("{network}.{host}:7700");
        let mut command = node(&[&["--members", "slurm", "--bind", &bind], arguments].concat());
        command.env("SLURM_JOB_NODELIST", format!("{network}.[1-2]")).spawn().unwrap()
    };
    let other = spawn(2, &["--receive", "-"]);
    check(spawn(1, &["--send", text(&input)]), 0, "sent 1 messages");
    assert_eq!(check(other, 0, "ready: member 1 of 2; ").stdout, b"to the job");
}

#[test]
fn errors_in_the_hosts_of_a_slurm_job_name_the_variable() {
    let command = || node(&["--members", "slurm"]);
    let outside = command().env_remove("SLURM_JOB_NODELIST").spawn().unwrap();
    check(outside, 2, "SLURM_JOB_NODELIST is not set: run this in a job, or give a file of members");
    let malformed = command().env("SLURM_JOB_NODELIST", "n[1-").spawn().unwrap();
    check(malformed, 2, "SLURM_JOB_NODELIST, line 1: 'n[1-' is not a hostlist");
}

#[test]
fn a_process_with_another_token_learns_what_has_to_agree() {
    let directory = tempfile::tempdir().unwrap();
    let address = address();
    let members = file(&directory, "members", format!("{address} slots=2\n").as_bytes());
    let command = |token: &str, arguments: &[&str]| {
        let mut command = node(&[&["--members", text(&members)], arguments].concat());
        command.env("TREECAST_TOKEN", token);
        command
    };
    let mut root = command("one", &["--member", "0", "--send", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while UdpSocket::bind(&address).is_ok() {
        assert!(Instant::now() < end, "the root does not listen");
        thread::sleep(Duration::from_millis(10));
    }
    let other = check(
        command("another", &["--member", "1"]).spawn().unwrap(),
        2,
        "both need the same user, the same token",
    );
    assert_eq!(utf8(&other.stderr).matches("Address already in use").count(), 1);
    signal(&root, "TERM");
    root.wait().unwrap();
}
