//! How a daemon shares its descriptors among users. The test counts the descriptors of its process,
//! so it is alone in it.

#[path = "daemon/raw.rs"]
#[expect(dead_code, reason = "the daemon's tests use the rest")]
mod raw;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};
use rustix::thread::{Uid, set_thread_res_uid};
use treecast_node::{Daemon, EngineChoice, NodeSettings, Policy};

use raw::{ask, hello, raw};

/// A limit that some users can exhaust.
const DESCRIPTORS_MAX: u64 = 4_096;

/// The first of the users, who need not exist.
const FIRST_USER: u32 = 3_000_000;

/// Acts as another user, which the kernel takes from the thread.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    let act = move || {
        set_thread_res_uid(Uid::ROOT, Uid::from_raw(user), Uid::ROOT).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

/// A connection, if the daemon admits it.
fn connect(path: &Path) -> Option<OwnedFd> {
    let socket = raw(path);
    ask(&socket, &hello()).0.contains("welcome").then_some(socket)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn wait_until(is_true: impl Fn() -> bool, what: &str) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn users_leave_no_descriptors_and_take_no_others_reserve() {
    if !getuid().is_root() {
        println!("skipped: clients of other users are for root");
        return;
    }
    let limit = Rlimit { current: Some(DESCRIPTORS_MAX), maximum: Some(DESCRIPTORS_MAX) };
    assert!(getrlimit(Resource::Nofile).maximum.is_none_or(|maximum| maximum >= DESCRIPTORS_MAX));
    setrlimit(Resource::Nofile, limit).unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = directory.path().join("run/node.sock");
    let bind = "127.0.0.1:0".parse().unwrap();
    let settings = NodeSettings { bind, engine: EngineChoice::User, ..NodeSettings::default() };
    let policy = Policy::parse("[[rule]]\nname = \"all\"\nall_users = true", "policy").unwrap();
    let daemon = Daemon::open(&settings, &path, policy).unwrap();
    let stopper = daemon.stopper();
    let thread = std::thread::spawn(move || daemon.serve().unwrap());

    // As many users as there are descriptors come and go, one after the other.
    drop(connect(&path).unwrap());
    let before = descriptors();
    for user in FIRST_USER..FIRST_USER + DESCRIPTORS_MAX as u32 / 2 {
        let socket = as_user(user, || connect(&path));
        assert!(socket.is_some(), "user {user} is refused, with {} descriptors open", descriptors());
    }
    wait_until(|| descriptors() <= before + 8, "the descriptors of users that have left are closed");

    // Some users take all that they are given. Others, and root, have theirs nevertheless.
    let mut taken: Vec<OwnedFd> = Vec::new();
    let greedy: Vec<usize> = (FIRST_USER..FIRST_USER + 4)
        .map(|user| {
            let sockets: Vec<_> = as_user(user, || std::iter::from_fn(|| connect(&path)).collect());
            let count = sockets.len();
            taken.extend(sockets);
            count
        })
        .collect();
    assert!(greedy[0] > 100 && greedy[3] >= 16, "{greedy:?}");
    for user in [FIRST_USER + 4, FIRST_USER + 5, 0] {
        let sockets: Vec<_> = as_user(user, || (0..16).map_while(|_| connect(&path)).collect());
        assert_eq!(sockets.len(), 16, "the reserve of user {user}, beside {greedy:?}");
        taken.extend(sockets);
    }
    drop(taken);
    stopper.stop();
    thread.join().unwrap();
}
