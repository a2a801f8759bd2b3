//! Measures a message from one process of a host to many others that share its node, beside what
//! the machine itself takes to wake as many.
//!
//! `cargo run --release --package treecast-node --example readers -- --readers 15`

#![expect(unsafe_code, reason = "the bare futex is measured in memory that processes share")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};
use treecast_ebpf::Mapping;
use treecast_node::{Group, GroupId, GroupSettings, Node, NodeSettings};

#[derive(Debug, Parser)]
struct Arguments {
    /// The number of processes that receive
    #[arg(long, default_value_t = 15)]
    readers: usize,
    /// The number of messages of each kind
    #[arg(long, default_value_t = 1_000)]
    rounds: u32,
    /// The length of messages, in bytes
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// For a process that receives: its number
    #[arg(long, hide = true)]
    number: Option<usize>,
    /// For a process that receives: the memory of the bare futex
    #[arg(long, hide = true)]
    memory: Option<std::path::PathBuf>,
}

/// All processes sleep before the next message.
const PAUSE: Duration = Duration::from_millis(2);

/// The messages that are read one after another, without sleeping.
const BURST: u32 = 256;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The word on which processes sleep.
struct Word(Mapping);

impl Word {
    fn open(path: &std::path::Path) -> anyhow::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(rustix::param::page_size() as u64)?;
        Ok(Self(Mapping::new(&file, size_of::<AtomicU32>(), true)?))
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping has a page of zeros at first, lives as long as this value, and all
        // processes use the word atomically.
        unsafe { &*self.0.address::<AtomicU32>() }
    }

    fn wait_for(&self, round: u32) {
        loop {
            let seen = self.word().load(Ordering::SeqCst);
            if seen >= round {
                return;
            }
            let _ = futex::wait(self.word(), futex::Flags::empty(), seen, None);
        }
    }

    fn wake(&self, round: u32) {
        self.word().store(round, Ordering::SeqCst);
        let _ = futex::wake(self.word(), futex::Flags::empty(), i32::MAX as u32);
    }
}

fn open(share: &std::path::Path) -> anyhow::Result<Node> {
    let share = Some(share.display().to_string());
    Ok(Node::open(&NodeSettings { bind: "127.0.0.1:0".parse()?, share, ..NodeSettings::default() })?)
}

fn group(node: &Node, members: usize, member: usize) -> anyhow::Result<Group> {
    let members = vec![node.address(); members];
    let settings = GroupSettings { group: GroupId(1), member: Some(member), ..GroupSettings::new(members) };
    Ok(node.group(&settings)?)
}

/// Receives, and prints when each message of both kinds was there; then how long a message took
/// that had not to be waited for.
fn receive(arguments: &Arguments, number: usize) -> anyhow::Result<()> {
    let memory = arguments.memory.as_ref().context("the memory is missing")?;
    let (word, node) = (Word::open(memory)?, open(memory)?);
    let group = group(&node, 1 + arguments.readers, number)?;
    group.wait_until_ready(TIMEOUT)?;
    println!("ready");
    let mut buffer = vec![0; arguments.bytes];
    let mut times = Vec::new();
    for round in 1..=arguments.rounds {
        group.receive_into(&mut buffer, TIMEOUT)?;
        let received = now_ns();
        word.wait_for(round);
        times.push((received, now_ns()));
    }
    // The word shows that the whole burst has arrived.
    word.wait_for(arguments.rounds + 1);
    let began = now_ns();
    for _ in 0..BURST {
        group.receive_into(&mut buffer, TIMEOUT)?;
    }
    let burst_ns = (now_ns() - began) / u64::from(BURST);
    for (shared, bare) in times {
        println!("{shared} {bare}");
    }
    println!("{burst_ns}");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(number) = arguments.number {
        return receive(&arguments, number);
    }
    let directory = tempfile::tempdir_in("/dev/shm")?;
    let memory = directory.path().join("word");
    let (word, node) = (Word::open(&memory)?, open(&memory)?);
    let group = group(&node, 1 + arguments.readers, 0)?;
    let program = std::env::current_exe()?;
    let mut children: Vec<(Child, BufReader<_>)> = Vec::new();
    for number in 1..=arguments.readers {
        let mut command = Command::new(&program);
        command.args([
            "--readers",
            &arguments.readers.to_string(),
            "--rounds",
            &arguments.rounds.to_string(),
        ]);
        command.args(["--bytes", &arguments.bytes.to_string(), "--number", &number.to_string()]);
        let mut child = command.arg("--memory").arg(&memory).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("it has an output")?);
        children.push((child, output));
    }
    for (_, output) in &mut children {
        let mut line = String::new();
        output.read_line(&mut line)?;
        ensure!(line == "ready\n", "a process has not become ready");
    }
    let message = vec![7; arguments.bytes];
    let mut sent = Vec::new();
    for round in 1..=arguments.rounds {
        std::thread::sleep(PAUSE);
        let shared = now_ns();
        group.send(&message)?;
        std::thread::sleep(PAUSE);
        let bare = now_ns();
        word.wake(round);
        sent.push((shared, bare));
    }
    std::thread::sleep(PAUSE);
    (0..BURST).try_for_each(|_| group.send(&message))?;
    word.wake(arguments.rounds + 1);
    let mut last = vec![(0, 0); sent.len()];
    let mut bursts_ns = Vec::new();
    for (mut child, output) in children {
        let lines: Vec<String> = output.lines().collect::<Result<_, _>>()?;
        let (burst, times) = lines.split_last().context("a process has ended")?;
        bursts_ns.push(burst.parse::<u64>()?);
        for (last, line) in last.iter_mut().zip(times) {
            let (shared, bare) = line.split_once(' ').context("two times")?;
            *last = (last.0.max(shared.parse::<u64>()?), last.1.max(bare.parse::<u64>()?));
        }
        ensure!(child.wait()?.success(), "a process has failed");
    }
    let us = |ns: u64| ns as f64 / 1e3;
    let spans = |of: fn(&(u64, u64)) -> u64| -> (f64, f64) {
        let mut spans: Vec<u64> = sent.iter().zip(&last).map(|(sent, last)| of(last) - of(sent)).collect();
        spans.sort_unstable();
        (us(spans[spans.len() / 2]), us(spans[spans.len() * 99 / 100]))
    };
    let (shared, bare) = (spans(|times| times.0), spans(|times| times.1));
    bursts_ns.sort_unstable();
    let mut output = std::io::stdout();
    writeln!(
        output,
        "{} bytes to {} sleeping processes, until the last has them",
        arguments.bytes, arguments.readers
    )?;
    writeln!(output, "  by the shared slots: {:.1} us (99 %: {:.1} us)", shared.0, shared.1)?;
    writeln!(output, "  a bare futex:        {:.1} us (99 %: {:.1} us)", bare.0, bare.1)?;
    writeln!(output, "  ratio of the medians: {:.2}", shared.0 / bare.0)?;
    writeln!(
        output,
        "a message that is there is read in {:.2} us (median of the processes)",
        us(bursts_ns[bursts_ns.len() / 2])
    )?;
    Ok(())
}
