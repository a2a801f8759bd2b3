//! Roles that this program plays on the hosts of labs: the test `role` runs the function that the
//! variable `ROLE` names.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use treecast_lab::{Lab, LabSettings};

use super::start;

/// Starts this program in a role with arguments.
pub fn play(command: &mut Command, role: &str) -> Player {
    command.args(["players::role", "--exact", "--ignored", "--nocapture", "--quiet"]).env("ROLE", role);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    Player { child, lines }
}

pub fn play_on(lab: &Lab, host: u32, role: &str) -> Player {
    play(&mut lab.command(host, std::env::current_exe().unwrap()).unwrap(), role)
}

/// A running role, which ends when this is dropped.
pub struct Player {
    pub child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Player {
    /// Its next line of output.
    pub fn next_line(&mut self) -> String {
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
        ["round_trip", address, short_us] => {
            round_trip(address.parse().unwrap(), short_us.parse().unwrap());
        }
        ["receive_multicast", seconds] => receive_multicast(seconds.parse().unwrap()),
        ["send_multicast", packets] => send_multicast(packets.parse().unwrap()),
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

/// Prints the microseconds of the shortest round trip to an echo server: of twenty, and of those
/// that follow for some time until one is short, as on a busy machine it may be late.
fn round_trip(address: SocketAddr, short_us: u128) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (mut count, mut least_us) = (0, u128::MAX);
    let began = Instant::now();
    while count < 20 || least_us >= short_us && began.elapsed() < Duration::from_secs(20) {
        let started = Instant::now();
        socket.send_to(b"hello", address).unwrap();
        socket.recv(&mut [0; 5]).unwrap();
        (count, least_us) = (count + 1, least_us.min(started.elapsed().as_micros()));
    }
    println!("> {least_us}");
}

/// The multicast address of a test.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);

/// Joins a multicast address, and prints the number of its packets up to an empty one,
/// or until none comes for some seconds.
fn receive_multicast(seconds: u64) {
    let socket = UdpSocket::bind("0.0.0.0:7001").unwrap();
    socket.join_multicast_v4(&GROUP, &Ipv4Addr::UNSPECIFIED).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(seconds))).unwrap();
    println!("> ready");
    let lengths = std::iter::repeat_with(|| socket.recv(&mut [0; 1000]).unwrap_or(0));
    println!("> {}", lengths.take_while(|length| *length > 0).count());
}

/// Sends packets of 1,000 bytes to a multicast address, and an empty one.
fn send_multicast(packets: u32) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    (0..packets).for_each(|_| assert_eq!(socket.send_to(&[7; 1000], (GROUP, 7001)).unwrap(), 1000));
    assert_eq!(socket.send_to(&[], (GROUP, 7001)).unwrap(), 0);
    println!("> done");
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
    let Some(lab) = start(&LabSettings::new(hosts)) else {
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
