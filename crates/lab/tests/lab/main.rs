//! Running labs: connectivity, links, and cleanup.

mod endings;
mod players;
mod racks;

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::RwLock;
use std::time::{Duration, Instant};

use players::play_on;
use treecast_lab::{Lab, LabError, LabSettings, Multicast, Probability, Racks, Rate};

/// The packets of all labs pass the backlog of a processor, which loses some when a test floods it:
/// tests that lose none share it, and those that flood it have it for themselves.
static BACKLOG: RwLock<()> = RwLock::new(());

/// A lab, or `None` and a message if this machine does not allow labs.
fn start(settings: &LabSettings) -> Option<Lab> {
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

/// The output of a command on a host.
fn printed(lab: &Lab, host: u32, line: &str) -> String {
    let output = lab.command(host, "sh").unwrap().args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn hosts_reach_one_another_immediately() {
    let Some(lab) = start(&LabSettings::new(4)) else { return };
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
    let Some(lab) = start(&LabSettings { mtu: 9000, ..LabSettings::new(11) }) else { return };
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
    let Some(lab) = start(&LabSettings::new(2)) else { return };
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
    let Some(lab) = start(&LabSettings::new(3)) else { return };
    let line = "$TREECAST_LAB_AGENT -x n2 'cat /proc/sys/kernel/hostname;' 'echo $TREECAST_LAB_HOST; pwd'";
    let output = lab.command(0, "sh").unwrap().args(["-c", line]).current_dir("/usr").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "n2\n2\n/usr\n");
    let output = lab.command(0, "sh").unwrap().args(["-c", "$TREECAST_LAB_AGENT n3 true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(255));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "treecast lab: there is no host 'n3' in this lab\n"
    );
}

#[test]
fn concurrent_labs_are_isolated() {
    let Some(first) = start(&LabSettings::new(2)) else { return };
    let Some(second) = start(&LabSettings::new(2)) else { return };
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
        let lab = start(&LabSettings { rate: Some(rate), ..LabSettings::new(2) })?;
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
    let Some(lab) = start(&LabSettings { rate: Some("8mbit".parse().unwrap()), ..LabSettings::new(3) })
    else {
        return;
    };
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
    let lab = start(settings)?;
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
        let lab = start(&settings)?;
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

#[test]
fn packets_take_the_delay_of_two_links() {
    let _quiet = BACKLOG.read();
    let slow = Some("10mbit".parse().unwrap());
    let reorder = Probability::new(0.2).unwrap();
    let delay = Duration::from_millis(2);
    for (settings, delay_us) in [
        (LabSettings::new(2), 0),
        (LabSettings { delay, ..LabSettings::new(2) }, 2_000),
        (LabSettings { delay, reorder, ..LabSettings::new(2) }, 2_000),
        (LabSettings { delay, rate: slow, ..LabSettings::in_racks("2x1".parse().unwrap()) }, 2_000),
    ] {
        let Some(lab) = start(&settings) else { return };
        let mut server = play_on(&lab, 1, "echo");
        server.next_line();
        // Never earlier; how much later depends on the load of the machine.
        let range = 4 * delay_us..4 * delay_us + 6_000;
        let round_trip = format!("round_trip 10.42.0.2:7000 {}", range.end);
        let least = play_on(&lab, 0, &round_trip).next_line().parse::<u32>().unwrap();
        assert!(range.contains(&least), "{least} us: {settings:?}");
    }
}

#[test]
fn delayed_packets_are_in_order_and_none_is_lost() {
    let _quiet = BACKLOG.read();
    let delay = Duration::from_micros(300);
    let Some(lab) = start(&LabSettings { delay, ..LabSettings::new(2) }) else { return };
    let mut receiver = play_on(&lab, 1, "receive_numbered");
    receiver.next_line();
    assert_eq!(play_on(&lab, 0, "send_numbered 10.42.0.2:7000 2000").next_line(), "done");
    assert_eq!(receiver.next_line(), "2000 0 0");
    // Longer than the buffers, and in batches.
    let mut sink = play_on(&lab, 1, "sink");
    sink.next_line();
    play_on(&lab, 0, "upload 10.42.0.2:7000 2000000").next_line();
}

#[test]
fn delayed_multicast_packets_reach_those_that_joined_and_do_not_return() {
    let _quiet = BACKLOG.read();
    let delay = Duration::from_micros(100);
    for multicast in [Multicast::Flood, Multicast::Snooping] {
        for shape in [LabSettings::new(4), LabSettings::in_racks("2x2".parse().unwrap())] {
            let Some(lab) = start(&LabSettings { delay, multicast, ..shape }) else { return };
            // What a snooping switch drops is not awaited for long.
            let seconds = if multicast == Multicast::Flood { 20 } else { 3 };
            let receive = format!("receive_multicast {seconds}");
            let mut receivers = [1, 2].map(|host| play_on(&lab, host, &receive));
            for receiver in &mut receivers {
                receiver.next_line();
            }
            if multicast == Multicast::Snooping {
                // The switch floods until its querier knows who has joined.
                std::thread::sleep(Duration::from_secs(1));
            }
            let arrived = |host| -> u32 {
                printed(&lab, host, "cat /sys/class/net/eth0/statistics/rx_bytes").parse().unwrap()
            };
            let before = [0, 3].map(arrived);
            assert_eq!(play_on(&lab, 0, "send_multicast 40").next_line(), "done");
            for receiver in &mut receivers {
                let received: u32 = receiver.next_line().parse().unwrap();
                // On a busy machine a snooping switch may not know yet who has joined.
                let least = if multicast == Multicast::Flood { 40 } else { 0 };
                assert!((least..=40).contains(&received), "{received} packets: {multicast:?}");
            }
            let (root, other) = (arrived(0) - before[0], arrived(3) - before[1]);
            assert!(root < 10_000, "{root} bytes returned: {multicast:?}");
            assert_eq!(other >= 40_000, multicast == Multicast::Flood, "{other} bytes: {multicast:?}");
        }
    }
}

#[test]
fn processes_are_numbered_host_by_host() {
    let Some(lab) = start(&LabSettings { processes: 3, ..LabSettings::new(3) }) else { return };
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
    let Some(lab) = start(&LabSettings { pin: true, ..LabSettings::new(3) }) else { return };
    let allowed = "sed -n 's/^Cpus_allowed_list:\\t//p' /proc/self/status";
    let processors: Vec<String> = (0..3).map(|host| printed(&lab, host, allowed)).collect();
    assert!(processors.iter().all(|of_host| of_host.parse::<u32>().is_ok()), "{processors:?}");
    if std::thread::available_parallelism().unwrap().get() > 1 {
        assert_ne!(processors[0], processors[1]);
    }
    let by_agent = format!("$TREECAST_LAB_AGENT n1 \"{allowed}\"");
    assert_eq!(printed(&lab, 0, &by_agent), processors[1]);
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

/// All other tests, as an unprivileged user.
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
