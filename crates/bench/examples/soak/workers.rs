//! The processes of the lab's hosts: they are started, watched, disturbed, and started again.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use treecast_lab::Lab;

use crate::Fault;

/// How long a member may get nothing, although faults of others delay all.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// From the end of a process to its next start.
const RESTART_DELAY: Duration = Duration::from_millis(300);

/// How long processes may take to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(40);

/// A process has its least memory after this number of reports: it has filled its slots once.
const REPORTS_BEFORE_STEADY: u32 = 60;

/// How much memory may vary, in KiB.
const GROWTH_KIB_MAX: u64 = 8 << 10;

/// A line of the output of a host's process, with the number of the process's start; `None` at its
/// end.
type Line = (usize, u32, Option<String>);

/// The processes, by host.
pub struct Workers<'a> {
    lab: &'a Lab,
    arguments: Vec<String>,
    all: Vec<Worker>,
    lines: Receiver<Line>,
    sender: Sender<Line>,
    /// Commands that inflict faults.
    running: Vec<Child>,
    /// Reasons for which processes have ended by themselves, and how often each was seen.
    reasons: BTreeMap<String, u32>,
    is_closing: bool,
}

#[derive(Default)]
struct Worker {
    process: Option<(Child, Option<ChildStdin>)>,
    /// How often it was started.
    starts: u32,
    start_at: Option<Instant>,
    /// In its own namespace.
    pid: Option<u32>,
    messages: u64,
    changed_at: Option<Instant>,
    reports: u32,
    /// Of all its processes.
    bytes: u64,
    bytes_before: u64,
    resident_kib: u64,
    steady_kib: Option<u64>,
    is_closed: bool,
}

impl<'a> Workers<'a> {
    /// Starts one on each host.
    pub fn start(lab: &'a Lab, arguments: &[&str]) -> anyhow::Result<Self> {
        let (sender, lines) = channel();
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let all = lab.hosts().iter().map(|_| Worker::default()).collect();
        let (running, reasons) = (Vec::new(), BTreeMap::new());
        let mut workers = Self { lab, arguments, all, lines, sender, running, reasons, is_closing: false };
        for number in 0..workers.all.len() {
            workers.start_one(number)?;
        }
        Ok(workers)
    }

    fn start_one(&mut self, number: usize) -> anyhow::Result<()> {
        let program = std::env::current_exe()?;
        let mut command = self.lab.command(number as u32, program)?;
        command.args(&self.arguments).arg(number.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("it has an output")?);
        let input = child.stdin.take();
        let worker = &mut self.all[number];
        let (starts, bytes_before) = (worker.starts + 1, worker.bytes);
        *worker = Worker {
            process: Some((child, input)),
            starts,
            bytes: bytes_before,
            bytes_before,
            changed_at: Some(Instant::now()),
            ..Worker::default()
        };
        let sender = self.sender.clone();
        thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok).map(Some);
            for line in lines.chain([None]) {
                let _ = sender.send((number, starts, line));
            }
        });
        Ok(())
    }

    /// Takes reports for a while, and starts processes again.
    pub fn run_for(&mut self, span: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(Duration::from_millis(50))) {
                Ok((number, starts, line)) if starts == self.all[number].starts => {
                    self.take(number, line.as_deref())?;
                }
                // A line of an earlier process, or none.
                Ok(_) | Err(_) => {}
            }
            self.running.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
            let now = Instant::now();
            for number in 0..self.all.len() {
                if self.all[number].start_at.is_some_and(|at| at <= now) {
                    self.start_one(number)?;
                }
                let worker = &self.all[number];
                let silence =
                    worker.changed_at.filter(|_| !worker.is_closed).map_or(Duration::ZERO, |at| at.elapsed());
                ensure!(silence < SILENCE_MAX, "process {number} has got nothing for {silence:.1?}: {self}");
            }
            if now >= until {
                return Ok(());
            }
        }
    }

    fn take(&mut self, number: usize, line: Option<&str>) -> anyhow::Result<()> {
        let worker = &mut self.all[number];
        let Some(line) = line else {
            let Some((mut child, _)) = worker.process.take() else { return Ok(()) };
            child.wait()?;
            worker.pid = None;
            if !worker.is_closed {
                ensure!(number != 0, "the root has ended");
                ensure!(!self.is_closing, "process {number} has ended before it had everything");
                worker.start_at = Some(Instant::now() + RESTART_DELAY);
            }
            return Ok(());
        };
        match line.split_once(' ').unwrap_or((line, "")) {
            ("pid", pid) => worker.pid = Some(pid.parse()?),
            ("ok", numbers) => {
                let numbers: Vec<u64> = numbers.split(' ').map(str::parse).collect::<Result<_, _>>()?;
                let [messages, bytes, resident_kib] = numbers[..] else { bail!("a report '{line}'") };
                if messages != worker.messages {
                    worker.changed_at = Some(Instant::now());
                }
                (worker.messages, worker.bytes) = (messages, worker.bytes_before + bytes);
                (worker.resident_kib, worker.reports) = (resident_kib, worker.reports + 1);
                if worker.reports == REPORTS_BEFORE_STEADY {
                    worker.steady_kib = Some(resident_kib);
                }
            }
            ("closed", _) => worker.is_closed = true,
            ("ended", why) if number != 0 => {
                // What follows are numbers and details.
                let why = why.split([':', ',']).next().unwrap_or(why);
                *self.reasons.entry(why.into()).or_default() += 1;
            }
            _ => bail!("process {number}: {line}"),
        }
        Ok(())
    }

    /// Disturbs a host for a while, beside other faults.
    pub fn inflict(&mut self, host: u32, fault: Fault, span: Duration) -> anyhow::Result<()> {
        let Some(pid) = self.all[host as usize].pid else { return Ok(()) };
        let span = span.as_secs_f64();
        let script = match fault {
            Fault::Stop => format!("kill -STOP {pid}; sleep {span}; kill -CONT {pid}"),
            Fault::Kill => format!("kill -KILL {pid}"),
            Fault::Cut => format!("ip link set eth0 down; sleep {span}; ip link set eth0 up"),
        };
        let mut command: Command = self.lab.command(host, "sh")?;
        command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.running.push(command.spawn()?);
        Ok(())
    }

    /// Lets the root close the group, and waits until all processes have everything.
    pub fn close(&mut self) -> anyhow::Result<()> {
        self.is_closing = true;
        if let Some((_, input)) = &mut self.all[0].process {
            *input = None;
        }
        let until = Instant::now() + CLOSE_TIMEOUT;
        while self.all.iter().any(|worker| worker.process.is_some()) {
            ensure!(Instant::now() < until, "some processes do not end: {self}");
            self.run_for(Duration::from_millis(100))?;
        }
        ensure!(self.all.iter().all(|worker| worker.is_closed), "some members lack messages: {self}");
        Ok(())
    }

    /// The processes whose memory has grown since it was steady.
    pub fn grown(&self) -> Vec<String> {
        let growth = |(number, worker): (usize, &Worker)| {
            let steady = worker.steady_kib?;
            (worker.resident_kib > steady + steady / 5 + GROWTH_KIB_MAX)
                .then(|| format!("process {number} from {steady} to {} KiB", worker.resident_kib))
        };
        self.all.iter().enumerate().filter_map(growth).collect()
    }
}

impl Drop for Workers<'_> {
    fn drop(&mut self) {
        let processes =
            self.all.iter_mut().filter_map(|worker| worker.process.as_mut()).map(|(child, _)| child);
        for child in processes.chain(&mut self.running) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl fmt::Display for Workers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = &self.all[0];
        write!(
            f,
            "root {} messages, {} MB, {} KiB",
            root.messages,
            root.bytes / 1_000_000,
            root.resident_kib
        )?;
        for worker in &self.all[1..] {
            let (starts, bytes) = (worker.starts, worker.bytes / 1_000_000);
            write!(f, "; {bytes} MB in {starts} starts, {} KiB", worker.resident_kib)?;
        }
        for (why, count) in &self.reasons {
            write!(f, "; {count} times '{why}'")?;
        }
        Ok(())
    }
}
