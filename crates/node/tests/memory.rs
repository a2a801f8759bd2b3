//! The memory of a daemon's groups is charged to their users. This test is a program of its own,
//! since it counts what the whole process allocates.

#![expect(unsafe_code, reason = "an allocator that counts")]

#[path = "daemon/raw.rs"]
mod raw;

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use treecast_node::{Daemon, EngineChoice, NodeSettings, Policy};

use raw::{ask, hear, hello, raw};

/// Counts the bytes that all threads have allocated.
struct Counting;

static ALLOCATED: AtomicI64 = AtomicI64::new(0);

// SAFETY: it passes all calls on.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as i64, Ordering::SeqCst);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as i64, Ordering::SeqCst);
        // SAFETY: as the caller says.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes that the process has allocated, once the number is stable for a moment.
fn allocated() -> i64 {
    let mut before = i64::MIN;
    loop {
        let now = ALLOCATED.load(Ordering::SeqCst);
        if now == before {
            return now;
        }
        before = now;
        std::thread::sleep(Duration::from_millis(40));
    }
}

/// What memory takes that a client maps: a BPF map, or a file in memory, of which every page is
/// written first.
fn shared_bytes(descriptor: &OwnedFd) -> u64 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd())).unwrap();
    if let Some(bytes) = info.lines().find_map(|line| line.strip_prefix("memlock:")) {
        return bytes.trim().parse().unwrap();
    }
    let bytes = rustix::fs::fstat(descriptor).unwrap().st_size as u64;
    for page in 0..bytes.div_ceil(4_096) {
        rustix::io::pwrite(descriptor, &[0], page * 4_096).unwrap();
    }
    rustix::fs::fstat(descriptor).unwrap().st_blocks as u64 * 512
}

/// Creates a group of members that never answer, with this number of children each, at a daemon at
/// this address; returns the answer and the descriptors.
fn create(
    socket: &OwnedFd,
    node: SocketAddr,
    group: u32,
    (members, slots, fan_out): (u32, u32, u32),
) -> (String, Vec<OwnedFd>) {
    let mut children = vec![Vec::new(); members as usize];
    (1..members).for_each(|member| children[((member - 1) / fan_out) as usize].push(member));
    let others = (1..members).map(|other| SocketAddr::from(([127, 1, (other >> 8) as u8, other as u8], 9)));
    let members: Vec<String> =
        std::iter::once(node).chain(others).map(|member| format!("\"{member}\"")).collect();
    let settings = format!(
        r#"{{"members":[{}],"settings":[["group","{group}"],["slots","{slots}"]]}}"#,
        members.join(",")
    );
    let session: Vec<String> = (0..16).map(|byte| byte.to_string()).collect();
    let message = format!(
        r#"{{"create_group":{{"settings":{settings},"children":{children:?},"session":[{}]}}}}"#,
        session.join(",")
    );
    ask(socket, &message)
}

/// The bytes charged to the user of a client, read from the refusal of a group that exceeds any
/// budget.
fn charged(socket: &OwnedFd, node: SocketAddr) -> u64 {
    let (answer, _) = create(socket, node, u32::MAX, (4_001, 65_536, 4_000));
    let (_, rest) = answer.split_once("of memory: ").unwrap_or_else(|| panic!("{answer}"));
    let (used, needed) = rest.split_once(" are used, and this group needs ").unwrap();
    let size = |text: &str| treecast_terms::parse_size(text.split([' ', '"']).next().unwrap()).unwrap();
    assert!(size(needed) > 2 << 30, "{needed} for slots of 4,000 children");
    size(used)
}

#[test]
fn a_group_is_charged_what_it_takes() {
    let mut engines = vec![EngineChoice::User];
    if rustix::process::geteuid().is_root() {
        engines.push(EngineChoice::Ebpf);
    }
    for engine in engines {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.sock");
        let bind = "127.0.0.1:0".parse().unwrap();
        let mut settings = NodeSettings { bind, engine, ..NodeSettings::default() };
        // Members that are lost are not charged any more, and on a slow machine this test takes
        // longer than the usual timeout.
        settings.protocol.join_timeout = treecast_terms::Nanoseconds::from_ms(600_000);
        let policy = "[[rule]]\nname = \"all\"\nall_users = true\nmemory_max = \"1G\"";
        let daemon = Daemon::open(&settings, &path, Policy::parse(policy, "policy").unwrap()).unwrap();
        let (node, stopper) = (daemon.address(), daemon.stopper());
        let serving = std::thread::spawn(move || daemon.serve().unwrap());
        let socket = raw(&path);
        let _ends = ask(&socket, &hello());
        assert_eq!(charged(&socket, node), 0);
        // Tables of the daemon grow by doubling: they have room for a few more after some groups.
        let small = |group: u32| create(&socket, node, 100 + group, (2, 4, 1)).1;
        let mut kept: Vec<_> = (0..5).map(small).collect();
        for (group, size) in
            [(2, 512, 1), (2, 16, 1), (2, 65_536, 1), (500, 64, 499), (64, 4_096, 6), (1_000, 16, 2)]
                .into_iter()
                .enumerate()
        {
            let before = (allocated(), charged(&socket, node));
            let (answer, descriptors) = create(&socket, node, group as u32, size);
            assert!(answer.contains("entered"), "{answer}");
            let heap_bytes = allocated() - before.0;
            let shared_bytes: u64 = descriptors[..2].iter().map(shared_bytes).sum();
            // With the first packet to each child that answers, it takes the times of packets, and
            // a bit for each.
            let later = u64::from(size.2) * u64::from(8 * size.1 + size.1 / 8);
            let taken = heap_bytes.max(0) as u64 + shared_bytes + later;
            let charged = charged(&socket, node) - before.1;
            println!(
                "{engine}, {size:?}: {shared_bytes} bytes shared, {heap_bytes} allocated, {charged} charged"
            );
            assert!(
                taken <= charged && 2 * charged <= 3 * taken,
                "{engine}, {size:?}: {charged} bytes are charged, and {taken} taken"
            );
            kept.push(descriptors);
        }
        // What is charged is given back with the groups.
        drop((kept, socket));
        let socket = raw(&path);
        let _ends = ask(&socket, &hello());
        let is_free = |_| {
            std::thread::sleep(Duration::from_millis(20));
            charged(&socket, node) == 0
        };
        assert!((0..200).any(is_free), "{} bytes are still charged", charged(&socket, node));
        stopper.stop();
        serving.join().unwrap();
        assert_eq!(hear(&socket), "");
    }
}
