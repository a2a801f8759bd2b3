//! `treecast mpi`: starts an MPI program whose broadcasts go by Treecast.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;
use treecast_lab::LabSettings;

use crate::arguments::whole_number;
use crate::mpi::{Found, Interface, LabHosts, Launcher, directories, find, find_launcher, find_shim};
use crate::output::print_note;

#[derive(Debug, Args)]
#[command(
    override_usage = "treecast mpi [OPTIONS] -- COMMAND...",
    after_help = "Examples:
  treecast mpi -- mpirun -n 16 ./program
  treecast mpi --report -- mpirun --host n0,n1,n2,n3 python3 program.py
  srun -n 64 treecast mpi -- ./program
  treecast mpi --show -- mpirun ./program
  treecast lab 4 --on 0 --no-prefix -- treecast mpi --ranks 2 --report -- ./program

The program needs no change: a shim is preloaded into its ranks (LD_PRELOAD), which has
MPI_Bcast, MPI_Barrier, MPI_Allgather, MPI_Reduce and MPI_Allreduce. The ranks measure which
way is faster, in trials budgeted at 1 % of the time in broadcasts, and Treecast takes the
lengths at which it is faster; all of them with TREECAST_MPI_CHOICE=always. The program's
MPI does everything else, such as broadcasts between the ranks of one host (docs/mpi.md).

Settings are variables of the environment, which are passed to the ranks:
TREECAST_MPI_CHOICE, _TRIAL_PERCENT, _HISTORY, _MIN_BYTES, _MAX_BYTES, _ENGINE, _SCHEME,
_OFFLOAD, _SPIN_US, _INTERFACE, _ROOTS, _PEER_TIMEOUT_MS, _NODE, _GROUP, _REPORT;
TREECAST_MPI=off passes everything on to the MPI.

Exit status: that of the command; 2 if it could not be started."
)]
pub struct Arguments {
    /// Print at the end, from rank 0, which collectives were taken, and how long they took
    #[arg(long)]
    report: bool,

    /// The MPI of the program: openmpi, mpich (also for Intel MPI, MVAPICH and Cray MPI) or
    /// standard (the ABI of MPI 5) [default: that of the first program in the command that needs an
    /// MPI library]
    #[arg(long, value_name = "MPI")]
    mpi: Option<Interface>,

    /// The directory of the shims [default: found beside this command]
    #[arg(long, value_name = "DIR")]
    library: Option<PathBuf>,

    /// In a lab: start the command with this number of ranks on each host, by the launcher of its
    /// MPI
    #[arg(long, value_name = "COUNT", value_parser = whole_number::<u32>(1, LabSettings::PROCESSES_PER_HOST_MAX.into()))]
    #[arg(allow_negative_numbers = true)]
    ranks: Option<u32>,

    /// Print the command that would be started, and why, and do not start it
    #[arg(long)]
    show: bool,

    /// The command, as without treecast mpi
    #[arg(value_name = "COMMAND", last = true, required = true)]
    command: Vec<OsString>,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let Found { interface, why } = interface(arguments)?;
    let places = arguments.library.clone().map_or_else(directories, |directory| vec![directory]);
    let Some(shim) = find_shim(interface, &places) else {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        bail!(
            "there is no {}, which programs of this MPI need ({why}), in {}: build it by make mpi, or give --library",
            interface.shim(),
            places.join(", ")
        );
    };
    let shim = shim.canonicalize().with_context(|| format!("{} could not be found", shim.display()))?;
    let variables = variables(&shim, arguments.report);
    let line = match arguments.ranks {
        Some(ranks) => in_lab(&arguments.command, interface, ranks)?,
        None => arguments.command.clone(),
    };
    let (program, words) = line.split_first().expect("clap requires a command");
    let mut command = Command::new(program);
    if exports_variables_by_option(program, interface) {
        command.args(variables.iter().flat_map(|(name, _)| [OsString::from("-x"), name.clone()]));
    }
    command.args(words).envs(variables.clone());
    if arguments.show {
        print_note(&format!("the MPI is {interface}: {why}"));
        let variables =
            variables.iter().map(|(name, value)| format!("{}={}", name.display(), value.display()));
        let words = std::iter::once(program.as_os_str())
            .chain(command.get_args())
            .map(|word| word.display().to_string());
        let line: Vec<String> = variables.chain(words).collect();
        println!("{}", line.join(" "));
        return Ok(0);
    }
    let failed = command.exec();
    Err(failed).with_context(|| format!("{} could not be started", program.display()))
}

/// The command with the launcher of its MPI before it, for the hosts of the lab that this process
/// is in.
fn in_lab(command: &[OsString], interface: Interface, ranks: u32) -> anyhow::Result<Vec<OsString>> {
    let Some(hosts) = LabHosts::of_environment() else {
        bail!("--ranks is for labs: treecast lab 4 --on 0 -- treecast mpi --ranks {ranks} -- COMMAND")
    };
    let program = command.first().expect("clap requires a command");
    let Some(Launcher { path, options }) = find_launcher(interface, program, &hosts, ranks) else {
        bail!(
            "there is no mpirun of {interface}, the MPI of this program: install it, or put it into the PATH"
        )
    };
    Ok(std::iter::once(path.into()).chain(options).chain(command.iter().cloned()).collect())
}

fn interface(arguments: &Arguments) -> anyhow::Result<Found> {
    if let Some(interface) = arguments.mpi {
        return Ok(Found { interface, why: "named by --mpi".into() });
    }
    let command =
        arguments.command.iter().map(|word| word.display().to_string()).collect::<Vec<String>>().join(" ");
    find(&arguments.command).with_context(|| {
        format!("no program in '{command}' needs an MPI library: give --mpi, such as --mpi openmpi, or leave treecast mpi out")
    })
}

/// The variables that all ranks need: the shim, before anything else that is preloaded, and the
/// settings.
fn variables(shim: &Path, reports: bool) -> Vec<(OsString, OsString)> {
    let mut preload = OsString::from(shim);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let is_setting = |name: &OsStr| {
        name.to_str().is_some_and(|name| name.starts_with("TREECAST_MPI") || name == "TREECAST_SOCKET")
    };
    let mut variables = vec![("LD_PRELOAD".into(), preload)];
    variables.extend(
        std::env::vars_os()
            .filter(|(name, _)| is_setting(name) && !(reports && name == "TREECAST_MPI_REPORT")),
    );
    if reports {
        variables.push(("TREECAST_MPI_REPORT".into(), "on".into()));
    }
    variables
}

/// Whether a launcher gives ranks on other hosts only those variables that an option names: Open
/// MPI's does.
fn exports_variables_by_option(launcher: &OsStr, interface: Interface) -> bool {
    let name = Path::new(launcher).file_name().and_then(OsStr::to_str).unwrap_or_default();
    interface == Interface::OpenMpi
        && ["mpirun", "mpiexec", "orterun", "prterun"].iter().any(|stem| name.starts_with(stem))
}
