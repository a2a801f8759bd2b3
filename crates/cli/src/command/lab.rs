//! `treecast lab`: runs a command on hosts made of network namespaces.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use treecast_fabric::expand_hostlist;
use treecast_lab::{
    Lab, LabError, LabSettings, Losses, Multicast, Probability, Racks, Rate, UplinkBytes, accept_interrupts,
};
use treecast_node::draw_token;
use treecast_plan::MemberList;
use treecast_terms::format_count;

use super::node::TOKEN_VARIABLE;
use crate::arguments::{delay, whole_number};
use crate::open_files::allow_open_files;
use crate::output::{NotWritten, print_message};

#[derive(Debug, Args)]
#[command(
    override_usage = "treecast lab HOSTS [OPTIONS] -- COMMAND...
       treecast lab --racks RxH [OPTIONS] -- COMMAND...",
    after_help = "Examples:
  treecast lab 4 -- hostname
  treecast lab 2 --rate 200mbit --loss 1% --on 0 -- ping -c 100 -i 0.01 n1
  treecast lab 2 --delay 100us --on 0 -- ping -c 5 n1
  treecast lab 2 --pin -- nproc
  treecast lab 4 --processes 2 -- sh -c 'echo process $TREECAST_LAB_MEMBER'
  treecast lab 16 --on 0 -- sh -c 'mpirun --mca plm_rsh_agent $TREECAST_LAB_AGENT ...'
  treecast lab --racks 4x4 --uplink 200mbit --report-uplinks --on 0 -- ping -c 5 n15

The environment of the command has TREECAST_LAB_HOST (the number of the host),
TREECAST_LAB_HOSTS (the number of hosts), TREECAST_LAB_PROCESS (the number of the process
on its host), TREECAST_LAB_PROCESSES (the number of processes of each host),
TREECAST_LAB_MEMBER (the number of the process among those of all hosts: process P of
host H of N processes each is H * N + P), TREECAST_LAB_RACK (the number of the host's
rack), TREECAST_LAB_ADDRESSES, TREECAST_LAB_INVENTORY (a file with each host and its
rack), TREECAST_LAB_AGENT (a remote shell between hosts), TMPDIR (/dev/shm, which each
host has of its own) and TREECAST_TOKEN (a token of this lab, if the variable is not set).

Exit status: that of the first command that failed, in the order of hosts and processes
(128 plus the number of the signal that ended it); 1 if their output could not be
written; 2 if there is no lab or no such command.

docs/lab.md describes hosts, and what a machine needs for them."
)]
pub struct Arguments {
    /// The number of hosts: n0, n1 and so on
    #[arg(value_name = "HOSTS", value_parser = whole_number::<u32>(1, LabSettings::HOSTS_MAX.into()))]
    #[arg(allow_negative_numbers = true)]
    hosts: Option<u32>,

    /// Racks and hosts in each, instead of HOSTS: 4x8 is 4 racks of 8 hosts
    #[arg(long, value_name = "RxH")]
    racks: Option<Racks>,

    /// The rate limit of each uplink of a rack in each direction, such as 200mbit [default: none]
    #[arg(long, value_name = "RATE", requires = "racks", allow_negative_numbers = true)]
    uplink: Option<Rate>,

    /// Print the bytes that went over each uplink to standard error, after the command
    #[arg(long, requires = "racks")]
    report_uplinks: bool,

    /// The rate limit of the link of each host in each direction, such as 200mbit [default: none]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    rate: Option<Rate>,

    /// The delay of the link of each host in each direction, such as 100us; a packet from host to
    /// host takes both links
    #[arg(long, value_name = "TIME", default_value = "0us", allow_negative_numbers = true)]
    #[arg(value_parser = delay)]
    delay: Duration,

    /// The MTU, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    #[arg(value_parser = whole_number::<u32>(LabSettings::MTU_MIN.into(), LabSettings::MTU_MAX.into()))]
    #[arg(allow_negative_numbers = true)]
    mtu: u32,

    /// The packet loss on the link to each host, such as 1%, or to single hosts: n3=5%, or 1%,n3=5%
    #[arg(long, value_name = "PERCENT", default_value = "0", allow_negative_numbers = true)]
    loss: Losses,

    /// The share of packets that are reordered, such as 1%
    #[arg(long, value_name = "PERCENT", default_value = "0", allow_negative_numbers = true)]
    reorder: Probability,

    /// What the switches do with multicast packets: flood (send them to all hosts), snooping (to
    /// those that have joined) or drop
    #[arg(long, value_name = "HOW", default_value = "flood")]
    multicast: Multicast,

    /// The hosts that the command runs on: 0,3-5, or n[3-5], or all
    #[arg(long, value_name = "LIST", default_value = "all", allow_negative_numbers = true)]
    on: String,

    /// Run the command this often on each host: 1 to 256 times, at most 1024 on all hosts together
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = whole_number::<u32>(1, LabSettings::PROCESSES_PER_HOST_MAX.into()))]
    #[arg(allow_negative_numbers = true)]
    processes: u32,

    /// Run the commands of each host on one processor: those of host H on processor H modulo their
    /// number
    #[arg(long)]
    pin: bool,

    /// Print lines without the name of their host and the number of their process
    #[arg(long)]
    no_prefix: bool,

    /// The command to run
    #[arg(value_name = "COMMAND", last = true, required = true)]
    command: Vec<OsString>,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let shape = shape(arguments.hosts, arguments.racks)?;
    let on = hosts(&arguments.on, shape.hosts)?;
    let settings = LabSettings {
        uplink: arguments.uplink,
        rate: arguments.rate,
        delay: arguments.delay,
        mtu: arguments.mtu,
        loss: arguments.loss.clone(),
        reorder: arguments.reorder,
        multicast: arguments.multicast,
        processes: arguments.processes,
        pin: arguments.pin,
        ..shape
    };
    accept_interrupts();
    let lab = Lab::start(&settings)?;
    let token = match std::env::var_os(TOKEN_VARIABLE) {
        Some(token) => token,
        None => draw_token()?.into(),
    };
    let alone = on.len() == 1 && arguments.processes == 1;
    let prefixed = !alone && !arguments.no_prefix;
    allow_open_files(FILES_OF_COMMAND * on.len() as u64 * u64::from(arguments.processes));
    let mut running = Vec::new();
    for (host, number) in
        on.iter().flat_map(|host| (0..arguments.processes).map(move |number| (*host, number)))
    {
        let (program, words) = arguments.command.split_first().expect("clap requires a command");
        let mut command = lab.process_command(host, number, program)?;
        command.args(words).env(TOKEN_VARIABLE, &token);
        if !alone {
            command.stdin(Stdio::null());
        }
        if prefixed {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let host = lab.hosts()[host as usize].name.clone();
        let number = (arguments.processes > 1).then_some(number);
        running.push(Running { host, number, child: start(&mut command)? });
    }
    let ended = relay_until_ended(lab, running)?;
    if arguments.report_uplinks {
        report(&ended.uplinks?);
    }
    Ok(ended.failed.unwrap_or(0))
}

/// The files that this process has open for a command whose output it relays.
const FILES_OF_COMMAND: u64 = 2;

/// The hosts and racks of a lab, which both arguments may give if they agree.
fn shape(hosts: Option<u32>, racks: Option<Racks>) -> anyhow::Result<LabSettings> {
    match (hosts, racks) {
        (Some(hosts), Some(racks)) if hosts != racks.hosts() => {
            bail!("{hosts} hosts are not the {} hosts of --racks {racks}: give one of them", racks.hosts())
        }
        (_, Some(racks)) => Ok(LabSettings::in_racks(racks)),
        (Some(hosts), None) => Ok(LabSettings::new(hosts)),
        (None, None) => {
            bail!("the number of hosts is missing: give HOSTS, such as 4, or --racks, such as 2x2")
        }
    }
}

/// Prints a line for each rack. Not an error if standard error is closed.
fn report(uplinks: &[UplinkBytes]) {
    for (rack, bytes) in uplinks.iter().enumerate() {
        let (up, down) = (format_count(bytes.up), format_count(bytes.down));
        let _ = writeln!(io::stderr(), "rack {rack}: {up} bytes up, {down} bytes down");
    }
}

/// The host numbers of a list.
fn hosts(list: &str, count: u32) -> anyhow::Result<BTreeSet<u32>> {
    match list.parse() {
        Ok(MemberList::All) => Ok((0..count).collect()),
        Ok(MemberList::Ranges(ranges)) => {
            if let Some((_, host)) = ranges.iter().find(|(_, last)| *last >= count) {
                bail!(
                    "invalid value {list} for --on: there is no host {host}, the lab has hosts 0 to {}",
                    count - 1
                );
            }
            Ok(ranges.into_iter().flat_map(|(first, last)| first..=last).collect())
        }
        _ => match named(list) {
            Some(hosts) if hosts.iter().all(|host| *host < count) => Ok(hosts),
            _ => bail!("invalid value {list} for --on: expected hosts such as 0,3-5, or n[3-5], or all"),
        },
    }
}

/// The numbers of the hosts in a hostlist.
fn named(list: &str) -> Option<BTreeSet<u32>> {
    let names = expand_hostlist(list).ok()?;
    names.iter().map(|name| name.strip_prefix('n')?.parse().ok()).collect()
}

fn start(command: &mut Command) -> anyhow::Result<Child> {
    let started = command.spawn();
    started.with_context(|| format!("{} could not be started", command.get_program().display()))
}

/// A command that runs on a host.
struct Running {
    host: String,
    /// Its number on the host, if it is one of several.
    number: Option<u32>,
    child: Child,
}

impl Running {
    /// The prefix of its lines of output.
    fn prefix(&self) -> String {
        let Self { host, number, .. } = self;
        number.map_or_else(|| format!("{host}: "), |number| format!("{host}.{number}: "))
    }

    /// Its name in messages.
    fn name(&self) -> String {
        let Self { host, number, .. } = self;
        number
            .map_or_else(|| format!("the command on {host}"), |number| format!("process {number} on {host}"))
    }
}

/// A lab whose commands have exited.
struct Ended {
    /// The status of the first command that failed.
    failed: Option<u8>,
    /// The bytes that went over the uplinks.
    uplinks: Result<Vec<UplinkBytes>, LabError>,
}

/// Relays the output of the commands until all have exited, and ends the lab.
fn relay_until_ended(lab: Lab, mut running: Vec<Running>) -> anyhow::Result<Ended> {
    std::thread::scope(|scope| {
        let mut relays = Vec::new();
        for command in &mut running {
            let prefix = command.prefix();
            if let Some(from) = command.child.stdout.take() {
                let prefix = prefix.clone();
                relays.push(scope.spawn(move || relay(from, &prefix, io::stdout)));
            }
            if let Some(from) = command.child.stderr.take() {
                // Nobody could read that standard error is not written.
                scope.spawn(move || relay(from, &prefix, io::stderr));
            }
        }
        let mut failed = None;
        for command in &mut running {
            let name = command.name();
            let status = command.child.wait().with_context(|| format!("cannot wait for {name}"))?;
            if !status.success() {
                print_message(&format!("{name} ended with {}", ending(status)));
                failed = failed.or(Some(exit_code(status)));
            }
        }
        let uplinks = lab.uplink_bytes();
        // Kills the remaining processes of the lab, which would keep the output open.
        drop(lab);
        for relayed in relays.into_iter().filter_map(|relay| relay.join().ok()) {
            match relayed {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    return Err(error).with_context(|| NotWritten("standard output".into()));
                }
                _ => {}
            }
        }
        Ok(Ended { failed, uplinks })
    })
}

fn exit_code(status: ExitStatus) -> u8 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1) as u8
}

fn ending(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("status {}", exit_code(status)),
    }
}

/// The longest line that is written in one piece, in bytes.
const LINE_MAX: u64 = 64 * 1024;

/// Relays line by line, until end of file or until the output is closed.
fn relay<W: Write>(from: impl Read, prefix: &str, to: impl Fn() -> W) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::from(prefix);
    while from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        // One write per line, so that lines of several hosts do not mix.
        to().write_all(&line)?;
        line.truncate(prefix.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn host_lists_are_parsed() {
        let read = |list| hosts(list, 6).map(Vec::from_iter).map_err(|error| error.to_string());
        assert_eq!(read("all"), Ok(vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(read("5,0,3-4,3"), Ok(vec![0, 3, 4, 5]));
        assert_eq!(read("n[3-4],n0"), Ok(vec![0, 3, 4]));
        let last = "invalid value 0,6 for --on: there is no host 6, the lab has hosts 0 to 5";
        assert_eq!(read("0,6"), Err(last.into()));
        for list in ["", "x", "2-1", "-1", "random:2", "n6", "n[0", "m1"] {
            let expected =
                format!("invalid value {list} for --on: expected hosts such as 0,3-5, or n[3-5], or all");
            assert_eq!(read(list), Err(expected));
        }
    }

    /// Records each write.
    struct Writes<'a>(&'a RefCell<Vec<Vec<u8>>>);

    impl Write for Writes<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_relayed_in_one_piece_with_a_prefix() {
        let relayed = |bytes: &[u8]| {
            let writes = RefCell::new(Vec::new());
            relay(bytes, "n3: ", || Writes(&writes)).unwrap();
            writes.into_inner()
        };
        assert_eq!(relayed(b"one\n\ntwo\xff"), [&b"n3: one\n"[..], b"n3: \n", b"n3: two\xff\n"]);
        let long = relayed(&vec![b'x'; LINE_MAX as usize + 1]);
        assert_eq!(long.iter().map(Vec::len).collect::<Vec<_>>(), [LINE_MAX as usize + 5, 6]);
    }
}
