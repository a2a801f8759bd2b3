//! Running labs: connectivity, links, and cleanup.
//!
//! This test program also runs on the hosts: there the test `role` runs the function that the
//! variable `ROLE` names.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::RwLock;
use std::time::{Duration, Instant};

use treecast_lab::{Lab, LabError, LabSettings, Probability, Racks, Rate, UplinkBytes};

/// The packets of all labs pass the backlog of a processor, which loses some when a test floods it:
/// tests that lose none share it, and those that flood it have it for themselves.
static BACKLOG: RwLock<()> = RwLock::new(());

/// A lab, or `None` and a message if this machine does not allow labs.
fn lab(settings: &LabSettings) -> Option<Lab> {
    match Lab::start(settings) {
        Ok(lab) => Some(lab),
        Err(error) if error.is_about_the_machine() => {
            // Written directly, because the test harness shows captured output of failed tests
            // only.
            let _ = std::io::stderr().write_all(format!("skipped: {error}\n").as_bytes());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns a lab, or from the test.
macro_rules! lab {
    ($settings:expr) => {
        match lab($settings) {
            Some(lab) => lab,
            None => return,
        }
    };
}

/// The output of a command on a host.
fn printed(lab: &Lab, host: u32, line: &str) -> String {
    let output = lab.command(host, "sh").unwrap().args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Starts this program in a role with arguments.
fn play(command: &mut Command, role: &str) -> Player {
    command.args(["role", "--exact", "--ignored", "--nocapture", "--quiet"]).env("ROLE", role);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    Player { child, lines }
}

fn play_on(lab: &Lab, host: u32, role: &str) -> Player {
    play(&mut lab.command(host, std::env::current_exe().unwrap()).unwrap(), role)
}

/// A running role, which ends when this is dropped.
struct Player {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Player {
    /// Its next line of output.
    fn next_line(&mut self) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            // The test harness prints lines of its own.
            if let Some((_, text)) = line.split_once("> ") {
                return text.trim_end().to_owned();
            }
            line.clear();
        }
        panic!("it exited without output");
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Wait until all its processes have exited and closed the pipe.
        let _ = std::io::copy(&mut self.lines, &mut std::io::sink());
    }
}

#[test]
#[ignore = "other tests run it on hosts"]
fn role() {
    let Ok(role) = std::env::var("ROLE") else { return };
    let arguments: Vec<&str> = role.split(' ').collect();
    match arguments[..] {
        ["echo"] => echo(),
        ["ping", address] => ping(address.parse().unwrap()),
        ["sink"] => sink(),
        ["upload", address, bytes] => upload(address.parse().unwrap(), bytes.parse().unwrap()),
        ["receive_numbered"] => receive_numbered(),
        ["send_numbered", address, packets] => {
            send_numbered(address.parse().unwrap(), packets.parse().unwrap());
        }
        ["flood", address, packets] => flood(address.parse().unwrap(), packets.parse().unwrap()),
        ["own", hosts] => own(hosts.parse().unwrap()),
        _ => panic!("unknown role {role}"),
    }
}

/// A UDP echo server.
fn echo() {
    let socket = UdpSocket::bind("[::]:7000").unwrap();
    println!("> ready");
    let mut bytes = [0; 2000];
    loop {
        let (length, from) = socket.recv_from(&mut bytes).unwrap();
        socket.send_to(&bytes[..length], from).unwrap();
    }
}

/// Sends a packet to an echo server, again and again until it returns.
fn ping(address: SocketAddr) {
    let socket = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let address = match address {
        SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        v6 @ SocketAddr::V6(_) => v6,
    };
    // On a busy machine the first datagram may be lost before the address is resolved.
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut bytes = [0; 2000];
    let answer = (0..40).find_map(|_| {
        socket.send_to(b"hello", address).unwrap();
        socket.recv_from(&mut bytes).ok()
    });
    let (length, _) = answer.expect("an answer within 20 s");
    println!("> {}", String::from_utf8_lossy(&bytes[..length]));
}

/// A TCP server that discards data, and replies with the number of bytes.
fn sink() {
    let listener = TcpListener::bind("0.0.0.0:7000").unwrap();
    println!("> ready");
    loop {
        let (mut stream, _) = listener.accept().unwrap();
        std::thread::spawn(move || {
            let bytes = std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
            stream.write_all(bytes.to_string().as_bytes()).unwrap();
        });
    }
}

/// Sends bytes to a sink, and prints how many microseconds that took.
fn upload(address: SocketAddr, bytes: usize) {
    let mut stream = TcpStream::connect(address).unwrap();
    let started = Instant::now();
    stream.write_all(&vec![7; bytes]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut taken = String::new();
    stream.read_to_string(&mut taken).unwrap();
    assert_eq!(taken, bytes.to_string());
    println!("> {}", started.elapsed().as_micros());
}

/// Sends packets to a port without a receiver.
fn flood(address: SocketAddr, packets: u32) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    (0..packets).for_each(|_| assert_eq!(socket.send_to(b"hello", address).unwrap(), 5));
    println!("> done");
}

/// The maximum number of packets in flight, which fit into the socket's receive buffer.
const BATCH: u32 = 50;

/// Sends numbered packets in batches, waits for the acknowledgment of each batch, and at the end
/// sends an empty packet.
fn send_numbered(address: SocketAddr, packets: u32) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    for number in 0..packets {
        socket.send_to(&number.to_be_bytes(), address).unwrap();
        if (number + 1) % BATCH == 0 {
            socket.recv(&mut [0]).unwrap();
        }
    }
    socket.send_to(&[], address).unwrap();
    println!("> done");
}

/// Receives numbered packets until an empty one, acknowledges each batch, and prints how many were
/// received, out of order, and duplicate.
fn receive_numbered() {
    let socket = UdpSocket::bind("0.0.0.0:7000").unwrap();
    println!("> ready");
    let (mut numbers, mut reordered, mut highest) = (BTreeSet::new(), 0, 0);
    let mut duplicates = 0;
    let mut bytes = [0; 4];
    while let Ok((4, from)) = socket.recv_from(&mut bytes) {
        let number = u32::from_be_bytes(bytes);
        reordered += u32::from(number < highest);
        duplicates += u32::from(!numbers.insert(number));
        highest = highest.max(number);
        if numbers.len().is_multiple_of(BATCH as usize) {
            socket.send_to(b".", from).unwrap();
        }
    }
    println!("> {} {reordered} {duplicates}", numbers.len());
}

/// Owns a lab with a long-running process, and prints identifiers of its processes.
fn own(hosts: u32) {
    let Some(lab) = lab(&LabSettings::new(hosts)) else {
        println!("> skipped");
        return;
    };
    let line = "stat -L -c %i /proc/self/ns/pid /proc/self/ns/net | paste -s -d ' '; exec sleep 1000";
    let mut child = lab.command(0, "sh").unwrap().args(["-c", line]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    println!("> {said}");
    child.wait().unwrap();
}

#[test]
fn hosts_reach_one_another_immediately() {
    let lab = lab!(&LabSettings::new(4));
    let host = &lab.hosts()[3];
    assert_eq!(host.name, "n3");
    assert_eq!(host.ipv4.to_string(), "10.42.0.4");
    assert_eq!(host.ipv6.to_string(), "fd42::4");
    let mut server = play_on(&lab, 3, "echo");
    server.next_line();
    for address in [format!("{}:7000", host.ipv4), format!("[{}]:7000", host.ipv6)] {
        assert_eq!(play_on(&lab, 1, &format!("ping {address}")).next_line(), "hello");
    }
}

#[test]
fn hosts_are_isolated() {
    let lab = lab!(&LabSettings { mtu: 9000, ..LabSettings::new(11) });
    assert_eq!(printed(&lab, 10, "cat /proc/sys/kernel/hostname"), "n10");
    assert_eq!(printed(&lab, 10, "ls /sys/class/net | paste -s -d ' '"), "eth0 lo");
    assert_eq!(printed(&lab, 10, "cat /sys/class/net/eth0/mtu"), "9000");
    assert_eq!(printed(&lab, 10, "grep -c . /proc/net/dev"), "4");
    printed(&lab, 10, "echo > /dev/shm/mine");
    assert_eq!(printed(&lab, 9, "ls /dev/shm"), "");
    assert_eq!(printed(&lab, 10, "ls $TMPDIR"), "mine");
    assert_eq!(printed(&lab, 9, "grep -w n10 /etc/hosts"), "10.42.0.11 n10\nfd42::b n10");
    assert_eq!(printed(&lab, 9, "echo $TREECAST_LAB_HOST of $TREECAST_LAB_HOSTS"), "9 of 11");
    assert!(printed(&lab, 9, "echo $TREECAST_LAB_ADDRESSES").starts_with("10.42.0.1,10.42.0.2,"));
}

#[test]
fn a_command_on_a_host_behaves_as_any_command() {
    let lab = lab!(&LabSettings::new(2));
    let run = |line: &str| lab.command(1, "sh").unwrap().args(["-c", line]).status().unwrap();
    assert_eq!(run("exit 7").code(), Some(7));
    assert_eq!(run("kill -TERM $$").signal(), Some(15));
    let mut command = lab.command(1, "cat").unwrap();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through");
    let output = lab.command(1, "pwd").unwrap().current_dir("/usr").output().unwrap();
    assert_eq!(output.stdout, b"/usr\n");
    // The same command again.
    let mut command = lab.command(1, "true").unwrap();
    assert!(command.status().unwrap().success() && command.status().unwrap().success());
    let missing = lab.command(1, "no-such-program").unwrap().spawn().unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    let error = lab.command(2, "true").unwrap_err();
    assert_eq!(error.to_string(), "there is no host 2: the lab has hosts 0 to 1");
}

#[test]
fn a_remote_shell_leads_to_another_host() {
    let lab = lab!(&LabSettings::new(3));
    let line = "$TREECAST_LAB_AGENT -x n2 'cat /proc/sys/kernel/hostname;' 'echo $TREECAST_LAB_HOST; pwd'";
    let output = lab.command(0, "sh").unwrap().args(["-c", line]).current_dir("/usr").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "n2\n2\n/usr\n");
    let output = lab.command(0, "sh").unwrap().args(["-c", "$TREECAST_LAB_AGENT n3 true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(255));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "treecast lab: there is no host '3' in this lab\n");
}

#[test]
fn concurrent_labs_are_isolated() {
    let first = lab!(&LabSettings::new(2));
    let second = lab!(&LabSettings::new(2));
    let net = |lab: &Lab, host| printed(lab, host, "stat -L -c %i /proc/self/ns/net");
    let all = BTreeSet::from([net(&first, 0), net(&first, 1), net(&second, 0), net(&second, 1)]);
    assert_eq!(all.len(), 4);
    drop(first);
    let mut server = play_on(&second, 1, "echo");
    server.next_line();
    assert_eq!(play_on(&second, 0, "ping 10.42.0.2:7000").next_line(), "hello");
}

#[test]
fn a_link_has_its_rate() {
    let micros = |rate: &str| {
        let rate: Rate = rate.parse().unwrap();
        let lab = lab(&LabSettings { rate: Some(rate), ..LabSettings::new(2) })?;
        let mut sink = play_on(&lab, 1, "sink");
        sink.next_line();
        Some(play_on(&lab, 0, "upload 10.42.0.2:7000 1000000").next_line().parse::<f64>().unwrap())
    };
    let (Some(slow), Some(fast)) = (micros("8mbit"), micros("32mbit")) else { return };
    // A token bucket never exceeds its rate, however busy the machine is; 5 % are for its initial
    // tokens.
    assert!(slow > 950_000.0 && fast > 237_500.0, "{slow} and {fast} microseconds");
}

#[test]
fn a_link_is_limited_in_each_direction() {
    let lab = lab!(&LabSettings { rate: Some("8mbit".parse().unwrap()), ..LabSettings::new(3) });
    let mut sinks = [0, 1, 2].map(|host| play_on(&lab, host, "sink"));
    for taker in &mut sinks {
        taker.next_line();
    }
    // From one host to two, then from two to one: in both cases one link is the bottleneck.
    for ways in [[(0, 2), (0, 3)], [(1, 1), (2, 1)]] {
        let started = Instant::now();
        let mut givers =
            ways.map(|(from, to)| play_on(&lab, from, &format!("upload 10.42.0.{to}:7000 500000")));
        for giver in &mut givers {
            giver.next_line();
        }
        // Never faster than the rate; how much slower depends on the load of the machine.
        assert!(started.elapsed() > Duration::from_millis(950), "{ways:?} took {:?}", started.elapsed());
    }
}

/// How many of 4,000 packets of one host arrive at another.
fn arriving(settings: &LabSettings) -> Option<u32> {
    let lab = lab(settings)?;
    // The kernel counts the UDP packets that arrive, so no receiver is needed.
    let arrived = || -> u32 {
        let counters = printed(&lab, 1, "grep Udp: /proc/net/snmp | tail -n 1");
        counters.split(' ').nth(2).unwrap().parse().unwrap()
    };
    let _flooding = BACKLOG.write();
    assert_eq!(play_on(&lab, 0, "flood 10.42.0.2:9 4000").next_line(), "done");
    // The last packets may still be in flight.
    let mut before = 0;
    while before == 0 || before != arrived() {
        before = arrived();
        std::thread::sleep(Duration::from_millis(100));
    }
    Some(before)
}

#[test]
fn links_lose_the_configured_fraction() {
    let probability = |probability| Probability::new(probability).unwrap();
    for reorder in [0.0, 0.5] {
        let settings = LabSettings {
            loss: probability(0.2).into(),
            reorder: probability(reorder),
            ..LabSettings::new(2)
        };
        let Some(arrived) = arriving(&settings) else { return };
        // Eight standard deviations on each side.
        assert!((3_000..3_400).contains(&arrived), "of 4000 packets {arrived} arrived: {settings:?}");
    }
}

#[test]
fn a_single_link_loses_packets() {
    for (loss, expected) in [("n1=20%", 3_000..3_400), ("20%,n1=0", 4_000..4_001), ("n0=20%", 4_000..4_001)] {
        let settings = LabSettings { loss: loss.parse().unwrap(), ..LabSettings::new(2) };
        let Some(arrived) = arriving(&settings) else { return };
        assert!(expected.contains(&arrived), "of 4000 packets {arrived} arrived: {settings:?}");
    }
}

#[test]
fn packets_are_reordered_and_none_is_lost() {
    let _quiet = BACKLOG.read();
    let overtaken = |settings: LabSettings| {
        let lab = lab(&settings)?;
        let mut receiver = play_on(&lab, 1, "receive_numbered");
        receiver.next_line();
        assert_eq!(play_on(&lab, 0, "send_numbered 10.42.0.2:7000 2000").next_line(), "done");
        let counted = receiver.next_line();
        let [came, reordered, duplicates] = counted.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{counted}")
        };
        assert_eq!(came, "2000");
        assert_eq!(duplicates, "0");
        Some(reordered.parse::<u32>().unwrap())
    };
    let reorder = Probability::new(0.2).unwrap();
    let slow = Some("10mbit".parse().unwrap());
    let cases = [
        (LabSettings::new(2), 0..1),
        // No packet follows the last of a batch; the upper bound is eight standard deviations.
        (LabSettings { reorder, ..LabSettings::new(2) }, 100..550),
        (LabSettings { reorder, rate: slow, ..LabSettings::new(2) }, 100..550),
    ];
    for (settings, range) in cases {
        let Some(reordered) = overtaken(settings.clone()) else { return };
        assert!(range.contains(&reordered), "{reordered} of 2000 packets were overtaken: {settings:?}");
    }
}

/// A lab of racks, such as `2x3`.
fn in_racks(racks: &str) -> LabSettings {
    LabSettings::in_racks(racks.parse().unwrap())
}

/// The output of a command in the network namespace of the switches.
fn printed_by_switches(lab: &Lab, line: &str) -> String {
    printed(lab, 0, &format!("PATH=$PATH:/usr/sbin:/sbin exec nsenter --target 1 --net sh -c '{line}'"))
}

#[test]
fn hosts_of_different_racks_reach_one_another_immediately() {
    let lab = lab!(&in_racks("3x2"));
    assert_eq!(lab.hosts().iter().map(|host| host.rack).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
    let mut server = play_on(&lab, 4, "echo");
    server.next_line();
    // In the same rack, and from each of the others.
    for from in [5, 0, 3] {
        for address in ["10.42.0.5:7000", "[fd42::5]:7000"] {
            assert_eq!(play_on(&lab, from, &format!("ping {address}")).next_line(), "hello");
        }
    }
}

#[test]
fn hosts_know_their_rack_and_those_of_others() {
    let lab = lab!(&in_racks("2x2"));
    assert_eq!(printed(&lab, 1, "echo $TREECAST_LAB_RACK"), "0");
    assert_eq!(printed(&lab, 2, "echo $TREECAST_LAB_RACK"), "1");
    assert_eq!(printed(&lab, 2, "cat $TREECAST_LAB_INVENTORY"), "n0 r0\nn1 r0\nn2 r1\nn3 r1");
    assert_eq!(printed(&lab, 0, "$TREECAST_LAB_AGENT n3 'echo $TREECAST_LAB_RACK'"), "1");
    let lab = lab!(&LabSettings::new(2));
    assert_eq!(printed(&lab, 1, "echo $TREECAST_LAB_RACK; cat $TREECAST_LAB_INVENTORY"), "0\nn0 r0\nn1 r0");
    assert_eq!(lab.uplink_bytes().unwrap(), []);
}

#[test]
fn processes_are_numbered_host_by_host() {
    let lab = lab!(&LabSettings { processes: 3, ..LabSettings::new(3) });
    let line =
        "echo $TREECAST_LAB_PROCESS of $TREECAST_LAB_PROCESSES, $TREECAST_LAB_MEMBER on $TREECAST_LAB_HOST";
    let of = |host, process| {
        let output =
            lab.process_command(host, process, "sh").unwrap().args(["-c", line]).output().unwrap().stdout;
        String::from_utf8(output).unwrap()
    };
    assert_eq!(of(0, 0), "0 of 3, 0 on 0\n");
    assert_eq!(of(0, 2), "2 of 3, 2 on 0\n");
    assert_eq!(of(2, 1), "1 of 3, 7 on 2\n");
    // A command without a number, and one by the remote shell, is the first process of its host.
    assert_eq!(printed(&lab, 1, line), "0 of 3, 3 on 1");
    assert_eq!(printed(&lab, 1, &format!("$TREECAST_LAB_AGENT n2 '{line}'")), "0 of 3, 6 on 2");
    let error = lab.process_command(0, 3, "true").unwrap_err();
    assert_eq!(error.to_string(), "there is no process 3: each host has processes 0 to 2");
}

#[test]
fn pinned_hosts_have_one_processor_each() {
    let lab = lab!(&LabSettings { pin: true, ..LabSettings::new(3) });
    let allowed = "sed -n 's/^Cpus_allowed_list:\\t//p' /proc/self/status";
    let processors: Vec<String> = (0..3).map(|host| printed(&lab, host, allowed)).collect();
    assert!(processors.iter().all(|of_host| of_host.parse::<u32>().is_ok()), "{processors:?}");
    if std::thread::available_parallelism().unwrap().get() > 1 {
        assert_ne!(processors[0], processors[1]);
    }
    let by_agent = format!("$TREECAST_LAB_AGENT n1 \"{allowed}\"");
    assert_eq!(printed(&lab, 0, &by_agent), processors[1]);
}

/// How many bytes more went over each uplink while this many bytes were sent from one host to
/// another.
fn counted_during_upload(lab: &Lab, from: u32, to: u32, bytes: u32) -> Vec<UplinkBytes> {
    let before = lab.uplink_bytes().unwrap();
    let mut sink = play_on(lab, to, "sink");
    sink.next_line();
    play_on(lab, from, &format!("upload 10.42.0.{}:7000 {bytes}", to + 1)).next_line();
    let after = lab.uplink_bytes().unwrap();
    let differences = before.iter().zip(&after);
    differences
        .map(|(before, after)| UplinkBytes { up: after.up - before.up, down: after.down - before.down })
        .collect()
}

/// More than what is sent in the background, acknowledgments of TCP and headers, for a megabyte of
/// payload.
const OVERHEAD_MAX: u64 = 250_000;

#[test]
fn uplinks_count_what_crosses_them() {
    let lab = lab!(&in_racks("3x2"));
    let inside = counted_during_upload(&lab, 0, 1, 1_000_000);
    assert_eq!(inside.len(), 3);
    assert!(inside.iter().all(|rack| rack.up < OVERHEAD_MAX && rack.down < OVERHEAD_MAX), "{inside:?}");
    let across = counted_during_upload(&lab, 0, 4, 1_000_000);
    let payload = 1_000_000..1_000_000 + OVERHEAD_MAX;
    assert!(payload.contains(&across[0].up) && across[0].down < OVERHEAD_MAX, "{across:?}");
    assert!(payload.contains(&across[2].down) && across[2].up < OVERHEAD_MAX, "{across:?}");
    assert!(across[1].up < OVERHEAD_MAX && across[1].down < OVERHEAD_MAX, "{across:?}");
    // What was acknowledged.
    assert!(across[0].down > 0 && across[2].up > 0, "{across:?}");
}

#[test]
fn packets_to_a_silent_host_stay_off_the_uplinks_of_other_racks() {
    let lab = lab!(&in_racks("3x2"));
    // No switch learns where a host is, as if it had never sent anything.
    printed_by_switches(
        &lab,
        "for port in n0 n1 n4 up0 up2 down0 down2; do ip link set $port type bridge_slave learning off; done; \
         for switch in switch0 switch2 core; do ip link set $switch type bridge fdb_flush; done",
    );
    let inside = counted_during_upload(&lab, 0, 1, 1_000_000);
    assert!(inside.iter().all(|rack| rack.up < OVERHEAD_MAX && rack.down < OVERHEAD_MAX), "{inside:?}");
    let across = counted_during_upload(&lab, 0, 4, 1_000_000);
    assert!(across[1].up < OVERHEAD_MAX && across[1].down < OVERHEAD_MAX, "{across:?}");
    assert!(across[2].down >= 1_000_000, "{across:?}");
}

#[test]
fn an_uplink_has_its_rate_in_each_direction() {
    let settings = LabSettings {
        uplink: Some("200mbit".parse().unwrap()),
        rate: Some("1gbit".parse().unwrap()),
        mtu: 9000,
        ..in_racks("2x2")
    };
    let lab = lab!(&settings);
    for port in ["up0", "down0", "up1", "down1"] {
        let shown = printed_by_switches(&lab, &format!("tc qdisc show dev {port}; ip link show {port}"));
        assert!(shown.starts_with("qdisc tbf ") && shown.contains(" rate 200Mbit "), "{shown}");
        assert!(shown.contains(" mtu 9000 "), "{shown}");
    }
    // Those of the hosts keep theirs.
    assert!(printed_by_switches(&lab, "tc qdisc show dev n3").contains(" rate 1Gbit "));
    let lab = lab!(&in_racks("2x2"));
    assert!(!printed_by_switches(&lab, "tc qdisc show").contains("tbf"));
}

#[test]
fn packets_are_reordered_within_their_rack() {
    let _quiet = BACKLOG.read();
    let lab = lab!(&LabSettings { reorder: Probability::new(0.2).unwrap(), ..in_racks("2x2") });
    for (from, to) in [(2, 3), (0, 3)] {
        let before = lab.uplink_bytes().unwrap();
        let mut receiver = play_on(&lab, to, "receive_numbered");
        receiver.next_line();
        let role = format!("send_numbered 10.42.0.{}:7000 2000", to + 1);
        assert_eq!(play_on(&lab, from, &role).next_line(), "done");
        let counted = receiver.next_line();
        let numbers: Vec<u32> = counted.split(' ').map(|number| number.parse().unwrap()).collect();
        // None is lost or duplicate; the upper bound is eight standard deviations.
        assert!(numbers[0] == 2000 && (100..550).contains(&numbers[1]) && numbers[2] == 0, "{counted}");
        // 2,000 packets of 46 bytes.
        let down = lab.uplink_bytes().unwrap()[1].down - before[1].down;
        assert_eq!(down >= 92_000, from == 0, "{down} bytes from host {from}");
    }
}

#[test]
fn a_rack_may_have_one_host() {
    let lab = lab!(&in_racks("20x1"));
    let mut server = play_on(&lab, 19, "echo");
    server.next_line();
    assert_eq!(play_on(&lab, 0, "ping 10.42.0.20:7000").next_line(), "hello");
    assert_eq!(lab.uplink_bytes().unwrap().len(), 20);
    assert_eq!(printed(&lab, 19, "echo $TREECAST_LAB_RACK"), "19");
}

/// Whether a process remains in the PID namespace or network namespace with these inode numbers.
fn is_left(numbers: &str) -> bool {
    let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
    let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let mut namespaces = processes.flat_map(|process| ["ns/pid", "ns/net"].map(|name| process.join(name)));
    namespaces.any(|file| file.metadata().is_ok_and(|found| numbers.contains(&found.ino())))
}

fn gone(numbers: &str) -> bool {
    let started = Instant::now();
    while is_left(numbers) && started.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(5));
    }
    !is_left(numbers)
}

/// What a lab could leave behind: interfaces, mounts, names of network namespaces.
fn traces() -> [Option<String>; 3] {
    let names = |directory: &str| {
        let names = std::fs::read_dir(directory).ok()?.map(|entry| entry.unwrap().file_name());
        Some(format!("{:?}", names.collect::<BTreeSet<_>>()))
    };
    [names("/sys/class/net"), names("/run/netns"), std::fs::read_to_string("/proc/self/mounts").ok()]
}

#[test]
fn a_killed_owner_leaves_no_processes() {
    let before = traces();
    let mut owner = play(&mut Command::new(std::env::current_exe().unwrap()), "own 5");
    let numbers = owner.next_line();
    if numbers == "skipped" {
        return;
    }
    assert!(is_left(&numbers));
    assert_eq!(traces(), before, "a lab that runs touches nothing of the machine");
    owner.child.kill().unwrap();
    assert!(gone(&numbers), "processes are left");
    assert_eq!(traces(), before);
}

#[test]
fn dropping_a_lab_ends_its_processes() {
    let lab = lab!(&LabSettings::new(3));
    // One in the foreground, and one daemonized.
    let line = "(setsid sleep 1000 &); stat -L -c %i /proc/self/ns/pid; exec sleep 1000";
    let mut command = lab.command(2, "sh").unwrap();
    let mut child = command.args(["-c", line]).stdout(Stdio::piped()).spawn().unwrap();
    let mut number = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut number).unwrap();
    drop(lab);
    assert!(!is_left(number.trim()));
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn killing_a_child_kills_its_process() {
    let lab = lab!(&LabSettings::new(2));
    // By one process alone, which counts itself.
    let processes = || printed(&lab, 0, "set -- /proc/[0-9]*; echo $#");
    let before = processes();
    let line = "echo begun; exec sleep 1000";
    let mut command = lab.command(1, "sh").unwrap();
    let mut child = command.args(["-c", line]).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    assert_ne!(processes(), before);
    child.kill().unwrap();
    child.wait().unwrap();
    // Killed and reaped: the init process of the machine may never reap it.
    let started = Instant::now();
    while processes() != before && started.elapsed() < Duration::from_secs(30) {}
    assert_eq!(processes(), before);
}

#[test]
fn invalid_settings_are_rejected_before_anything_is_created() {
    let racks: Racks = "2x2".parse().unwrap();
    for settings in [
        LabSettings::new(0),
        LabSettings::new(251),
        LabSettings { mtu: 10, ..LabSettings::new(2) },
        LabSettings { hosts: 5, ..LabSettings::in_racks(racks) },
        LabSettings { uplink: Some("1mbit".parse().unwrap()), ..LabSettings::new(2) },
    ] {
        assert!(matches!(Lab::start(&settings), Err(LabError::Setting { .. })));
    }
}

/// The tests above, as an unprivileged user.
#[test]
fn unprivileged_users_can_do_the_same() {
    let as_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !as_root {
        return;
    }
    // Such users may not read the directory of this program.
    let place = std::env::temp_dir().join(format!("treecast-lab-test-{}", std::process::id()));
    // A copy by this process would be open for writing in children that other tests start
    // meanwhile, and could not be executed.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&place).status();
    assert!(copied.unwrap().success());
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&place)
        .args(["--test-threads=1", "--nocapture"])
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .output();
    std::fs::remove_file(&place).unwrap();
    match output {
        Err(error) => {
            let _ = std::io::stderr()
                .write_all(format!("skipped: labs of users without rights: setpriv: {error}\n").as_bytes());
        }
        Ok(output) => {
            let (stdout, stderr) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{stdout}{stderr}");
            stderr.lines().filter(|line| line.starts_with("skipped: ")).take(1).for_each(|line| {
                let _ =
                    std::io::stderr().write_all(format!("{line} (for users without rights)\n").as_bytes());
            });
        }
    }
}
