//! `treecast cp`: files to many hosts at once.

mod display;
mod outcome;
mod receiver;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use treecast_copy::{
    CopyError, CopySettings, Destination, Existing, HELLO, HostReport, Outcome, Progress, Report,
    SourceSettings, Sources, Stopper, Writing, copy,
};
use treecast_node::{GroupSettings, Offload, PortRange};
use treecast_remote::RemoteShell;
use treecast_terms::{Keyed, parse_rate};

use crate::arguments::{Hostlist, SLURM, quoted, read_file, whole_number};
use crate::interrupt::handle_signals;
use crate::open_files::allow_open_files;
use crate::output::{emit, print_message, print_note};

use self::display::Display;
use self::outcome::{in_json, plan, print_failures, print_served, summary, summary_of_plan};
use self::receiver::INCOMPLETE;
pub use self::receiver::{ReceiverArguments, receive};

#[derive(Debug, Args)]
#[command(
    override_usage = "treecast cp [OPTIONS] SOURCE... HOSTS:PATH
       treecast cp [OPTIONS] --hosts-file FILE SOURCE... :PATH
       treecast cp [OPTIONS] --slurm SOURCE... :PATH",
    after_help = "Examples:
  treecast cp image.sqsh node[01-64]:/scratch/
  treecast cp -r dataset/ --hosts-file hosts --shell 'ssh -o BatchMode=yes' :/data/
  treecast cp --slurm big.bin :/scratch/
  treecast cp -a --delete --dry-run conf/ node[01-64]:/etc/app/
  tar c src | treecast cp - node[01-64]:/scratch/src.tar
  treecast lab 4 --on 0 -- sh -c 'treecast cp --shell $TREECAST_LAB_AGENT F n1,n2:/dev/shm/'

A remote shell starts a receiver on each host: treecast where it is installed in this
version, and otherwise a copy of this command, which is put there first, and kept in
~/.cache/treecast for the next time (--no-cache). The receivers and this host form a
group with a new token, and everything is sent once, down a tree of the hosts or by
multicast.

PATH is as for cp: in a directory files keep their names; another path is the new name of
a single source. With a slash at its end it is a directory, which is created if it is
missing. A relative path begins where the remote shell does, in the home directory; ~ and
~user are home directories on the host. As with cp, dir and dir/ copy the directory, and
dir/. copies its contents into PATH (with rsync, dir/ does that).
A file has another name until it is complete, verified by BLAKE3:
.NAME.ID.treecast-part in the same directory, with an ID that no other copy has.

With -v progress shows how far each host is, with -q only failures are printed.

Hosts that fail delay the others no longer than it takes to notice; they are named at the
end with the reason. Exit status: 0 if everything is on all hosts, 5 if it is not, 2 for
invalid arguments, 1 if the report could not be written.

docs/cp.md says more."
)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
pub struct Arguments {
    /// Sources, and at last the destination HOSTS:PATH, where HOSTS is a hostlist such as
    /// node[01-64],login
    // With a minimum of 2, clap would demand two paths at each place, so that options could not be
    // between paths.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Copy directories with all that is in them
    #[arg(short, long)]
    recursive: bool,

    /// Keep modes, times of modification and, as root on the hosts, owners
    #[arg(short, long)]
    preserve: bool,

    /// As -r and -p
    #[arg(short, long)]
    archive: bool,

    /// Keep extended attributes
    #[arg(long)]
    xattrs: bool,

    /// Leave out what a pattern matches, such as '*.o' or dataset/cache, also if it is a source;
    /// can be repeated
    ///
    /// A pattern without a slash is compared with names, another one with whole paths that begin
    /// with the name of the source; ** stands for any directories.
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,

    /// What happens to existing files: changed (replace those of another size or time of
    /// modification), replace (all), keep, or newer (replace if the source was modified later)
    ///
    /// Times of modification are the same after a copy with -p or -a.
    #[arg(long, value_name = "WAY", default_value = "changed", value_parser = existing)]
    existing: Existing,

    /// Replace existing files whose contents differ: by BLAKE3, not by size and time
    #[arg(short, long)]
    checksum: bool,

    /// Delete what is in the copied directories on the hosts and not among the sources; what
    /// --exclude matches stays
    #[arg(long)]
    delete: bool,

    /// Change nothing: print what would be copied and deleted, and on which hosts
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Send only what a host lacks: parts of files that are there are found by what is in them
    #[arg(long)]
    delta: bool,

    /// Go on with a copy that was interrupted: as --delta, and files that are not complete are kept
    #[arg(long)]
    resume: bool,

    /// Compress with zstd, at a level from 1 (fast) to 19 (short); for networks that are slower
    /// than this host compresses
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "3")]
    #[arg(value_parser = whole_number::<i32>(1, 19))]
    compress: Option<i32>,

    /// How often hosts that do not have everything in the end are tried again
    ///
    /// They get only what they lack: until the last attempt, parts of files are kept. What several
    /// hosts lack is sent to all of them at once, by a host that is complete.
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    #[arg(value_parser = whole_number::<u32>(0, 100), allow_negative_numbers = true)]
    retry: u32,

    /// A file with the hosts, a hostlist on each line; # begins a comment
    #[arg(long, value_name = "FILE", conflicts_with = "slurm")]
    hosts_file: Option<PathBuf>,

    /// The hosts of this Slurm job
    #[arg(long)]
    slurm: bool,

    /// The remote shell and its options; a host name and a command are appended
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    shell: String,

    /// How many seconds a host may do nothing while a receiver is started there; then the others
    /// start without it
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    #[arg(value_parser = whole_number::<u32>(1, 3_600), allow_negative_numbers = true)]
    connect_timeout: u32,

    /// Remove the command after the copy from hosts where it is not installed, instead of keeping
    /// it in the user's cache there
    #[arg(long)]
    no_cache: bool,

    /// The address of this host that the others can reach [default: the one by which packets go to
    /// the first of them]
    #[arg(long, value_name = "IP", value_parser = ip_address)]
    bind: Option<IpAddr>,

    /// The ports that a firewall between the hosts lets pass, such as 7000-7099: each host takes
    /// the first free one, for UDP and TCP
    #[arg(long, value_name = "RANGE")]
    ports: Option<PortRange>,

    /// Send no faster than this, such as 200mbit
    #[arg(long, value_name = "RATE", value_parser = parse_rate, allow_negative_numbers = true)]
    rate: Option<u64>,

    /// A setting of the group, such as scheme=binomial; can be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Print the BLAKE3 hash of each file, as b3sum does
    #[arg(long, conflicts_with = "json")]
    hash: bool,

    /// Print a report for programs, in JSON
    #[arg(long)]
    json: bool,
}

fn ip_address(text: &str) -> Result<IpAddr, &'static str> {
    text.parse().map_err(|_| "an IP address of this host, such as 192.0.2.1")
}

fn existing(text: &str) -> Result<Existing, &'static str> {
    match text {
        "changed" => Ok(Existing::Changed),
        "replace" => Ok(Existing::Replace),
        "keep" => Ok(Existing::Keep),
        "newer" => Ok(Existing::Newer),
        _ => Err("changed, replace, keep or newer"),
    }
}

/// How long a copy that was stopped may take to end: it also waits for the disk and the kernel,
/// which may not answer.
const STOP_TIMEOUT: Duration = Duration::from_millis(1_700);

/// Stops the copy on signals, and ends this process if that takes too long. The receivers then lose
/// their inputs, and end too.
fn end_on_signals(stopper: &Stopper, interrupted: &'static str) -> anyhow::Result<()> {
    let stopper = stopper.clone();
    let stop = move || {
        stopper.stop();
        thread::sleep(STOP_TIMEOUT);
        print_message(interrupted);
        std::process::exit(INCOMPLETE.into());
    };
    handle_signals(stop)
}

/// What a copy that was stopped leaves.
const fn interrupted(arguments: &Arguments) -> &'static str {
    if arguments.resume {
        "interrupted: parts of files were kept, and the same command goes on with them"
    } else if arguments.retry > 0 {
        "interrupted: parts of files were kept: the next copy removes them, or with --resume goes on with them"
    } else {
        "interrupted: what was not complete is removed"
    }
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let Some((to, sources)) = arguments.paths.split_last() else { bail!("no source") };
    if sources.is_empty() {
        bail!("{}: the only path; a copy needs a source, and then HOSTS:PATH", to.display());
    }
    check_sources_are_here(sources)?;
    let to: Destination = to.to_str().context("the destination is not valid UTF-8")?.parse()?;
    let settings = settings(arguments, to)?;
    let of_sources = SourceSettings {
        is_recursive: arguments.recursive || arguments.archive,
        exclude: arguments.exclude.clone(),
        attributes: arguments.xattrs,
    };
    let sources = Sources::find(sources, &of_sources)?;
    if sources.is_input() && arguments.retry > 0 {
        bail!("--retry: standard input can be read only once");
    }
    if arguments.delete && !sources.left_out.is_empty() {
        print_message("nothing is deleted: not all sources could be read");
    }
    // Three pipes and a shell for each host.
    allow_open_files(4 * settings.hosts.len() as u64);
    let stopper = Stopper::default();
    let interrupted = interrupted(arguments);
    end_on_signals(&stopper, interrupted)?;
    let mut display = Display::new(sources.bytes);
    let mut tell = |progress: &Progress<'_>| display.show(progress);
    let copied = copy_and_retry(&sources, settings, &stopper, arguments.retry, &mut tell);
    display.end();
    if stopper.is_stopped() {
        print_message(interrupted);
        return Ok(INCOMPLETE);
    }
    let report = copied?;
    print_failures(&report);
    if arguments.dry_run && !arguments.json {
        emit(None, &plan(&report))?;
    }
    let is_any = report.hosts.iter().any(|host| !matches!(host.outcome, Outcome::Failed(_)));
    if is_any {
        let summary = if arguments.dry_run { summary_of_plan(&report) } else { summary(&report) };
        print_note(&summary);
    }
    if arguments.json {
        emit(None, &(serde_json::to_string_pretty(&in_json(&report))? + "\n"))?;
    } else if arguments.hash {
        let line =
            |file: &treecast_copy::CopiedFile| format!("{}  {}\n", file.hash_text(), file.source.display());
        emit(None, &report.files.iter().map(line).collect::<String>())?;
    }
    Ok(if report.is_complete() { 0 } else { INCOMPLETE })
}

/// Refuses a source on another host, as scp and rsync take it. A file here may have such a name.
fn check_sources_are_here(sources: &[PathBuf]) -> anyhow::Result<()> {
    for path in sources.iter().filter(|path| path.symlink_metadata().is_err()) {
        let Some(text) = path.to_str() else { continue };
        let Ok(Destination { hosts, path: there, .. }) = text.parse() else { continue };
        let host = hosts.parse::<Hostlist>().ok().and_then(|Hostlist(names)| names.into_iter().next());
        // As with scp, a colon after a slash belongs to a path.
        if let Some(host) = host.filter(|_| !hosts.contains('/')) {
            let copy = quoted(format!("{host}:{}", there.display()));
            bail!(
                "{text}: no such file here; treecast cp copies from this host to others: to copy from {host} to this host, type: scp {copy} ."
            );
        }
    }
    Ok(())
}

/// How often a copy that waits looks whether it was stopped.
const STOP_INTERVAL: Duration = Duration::from_millis(20);

/// How long a host has to recover before it is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Copies, and then tries the hosts that do not have everything again. They keep parts of files
/// until the last attempt, and are asked what they have once one of them has written something. A
/// complete host serves them. If that leaves some incomplete, this host sends everything in the
/// next attempt, since the paths from that host may be the cause. An attempt that ends because the
/// serving host fails does not count.
fn copy_and_retry(
    sources: &Sources,
    mut settings: CopySettings,
    stopper: &Stopper,
    retries: u32,
    tell: &mut dyn FnMut(&Progress<'_>),
) -> Result<Report, CopyError> {
    let keeps_parts = settings.writing.keeps_parts;
    settings.writing.keeps_parts |= retries > 0;
    let mut report = copy(sources, &settings, stopper, tell)?;
    let (mut number, mut asked) = (1, Vec::new());
    while number <= retries {
        let hosts: Vec<String> = report.incomplete().map(|host| host.host.clone()).collect();
        if hosts.is_empty() {
            break;
        }
        print_failures(&report);
        let is_next = settings.served_by.is_none() && !settings.writing.is_dry;
        let served_by = report.server(&asked).filter(|_| is_next).map(ToOwned::to_owned);
        asked.extend(served_by.clone());
        let server = served_by.as_ref().map(|name| format!(": {name} serves what it has"));
        let server = server.unwrap_or_default();
        print_note(&format!("trying {} again ({number} of {retries}){server}", hosts.join(", ")));
        let until = Instant::now() + RETRY_DELAY;
        while Instant::now() < until && !stopper.is_stopped() {
            thread::sleep(STOP_INTERVAL);
        }
        settings.writing.keeps_parts = keeps_parts || number < retries;
        if report.incomplete().any(HostReport::has_written) {
            settings.compares = true;
            // Files have the times of their sources only where these are preserved.
            settings.compares_hashes |=
                settings.writing.existing == Existing::Changed && !settings.writing.preserves;
        }
        settings = CopySettings { hosts, into: Some(report.into), served_by, ..settings };
        let later = copy(sources, &settings, stopper, tell)?;
        let has_server_failed =
            !later.is_complete() && later.served_by.iter().any(|served| served.failure.is_some());
        number += u32::from(!has_server_failed);
        print_served(&later);
        report.update(later);
    }
    Ok(report)
}

fn settings(arguments: &Arguments, to: Destination) -> anyhow::Result<CopySettings> {
    let given = [!to.hosts.is_empty(), arguments.hosts_file.is_some(), arguments.slurm];
    let hosts = match given.iter().filter(|&&is_given| is_given).count() {
        0 => bail!("the hosts are missing: write HOSTS:PATH, or give --hosts-file or --slurm"),
        1 => hosts(arguments, &to)?,
        _ => bail!("the hosts are given twice: with --hosts-file or --slurm the destination is :PATH"),
    };
    if arguments.checksum && arguments.existing != Existing::Changed {
        bail!("--checksum says which files have changed: it goes with --existing changed only");
    }
    if arguments.delete && !(arguments.recursive || arguments.archive) {
        bail!("--delete is about directories, which -r or -a copy");
    }
    let mut group = GroupSettings::new(Vec::new());
    for setting in &arguments.set {
        for key in setting.split_whitespace().filter_map(|setting| setting.split('=').next()) {
            if ["token", "member", "root", "group", "insecure", "message_bytes"].contains(&key) {
                bail!("--set {key}: that is the copy's own");
            }
        }
        group.set_all(setting)?;
    }
    if group.offload.is_none_or(|offload| offload == Offload::Nic) {
        // Also with the number of slots that a copy has, with which groups choose datagrams.
        let transport = group.with_streams();
        group.transport.get_or_insert(transport);
    }
    if let Some(bits) = arguments.rate {
        group.bytes_per_s_max = Some((bits / 8).max(1));
    }
    let program = std::env::current_exe().context("this command has no path")?;
    Ok(CopySettings {
        hosts,
        served_by: None,
        to,
        into: None,
        writing: Writing {
            preserves: arguments.preserve || arguments.archive,
            existing: arguments.existing,
            deletes_all_but: arguments.delete.then(|| arguments.exclude.clone()),
            is_dry: arguments.dry_run,
            keeps_parts: arguments.resume,
        },
        compares: arguments.delta || arguments.resume,
        compares_hashes: arguments.checksum,
        compression: arguments.compress,
        shell: RemoteShell::new(&arguments.shell),
        start_timeout: Duration::from_secs(arguments.connect_timeout.into()),
        receiver: receiver_beside(&program),
        program,
        keeps_program: !arguments.no_cache,
        bind: arguments.bind,
        ports: arguments.ports,
        group,
    })
}

fn hosts(arguments: &Arguments, to: &Destination) -> anyhow::Result<Vec<String>> {
    if arguments.slurm {
        let Hostlist(hosts) = SLURM.parse()?;
        return Ok(hosts);
    }
    let Some(file) = &arguments.hosts_file else {
        let Hostlist(hosts) = to.hosts.parse()?;
        return Ok(hosts);
    };
    let mut all = Vec::new();
    for (number, line) in read_file(file)?.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            let Hostlist(hosts) =
                line.parse().with_context(|| format!("{}, line {}", file.display(), number + 1))?;
            all.extend(hosts);
        }
    }
    if all.is_empty() {
        bail!("{} names no hosts", file.display());
    }
    Ok(all)
}

/// Where packages have the static receiver, seen from the directory of the command.
const RECEIVER: &str = "../lib/treecast/treecast-receiver";

/// The static receiver that is installed beside a command, if there is one of this version.
fn receiver_beside(command: &Path) -> Option<PathBuf> {
    let path = command.parent()?.join(RECEIVER);
    let mut asked = Command::new(&path);
    asked.args(["copy-receiver", "--hello"]).stdin(Stdio::null()).stderr(Stdio::null());
    let said = asked.output().ok()?.stdout;
    (said.trim_ascii() == HELLO.as_bytes()).then_some(path)
}
