//! The `treecast` command: parses, calls, prints.
//!
//! Exit status: 0 success; 1 an output could not be written; 2 invalid arguments or input; 3 the
//! simulation is saturated, 4 deadlocked, 5 incomplete; 5 a node's group or a copy is incomplete. A
//! lab exits with the status of the first command that failed on a host.

mod arguments;
mod command;
mod doctor;
mod interrupt;
mod journal_file;
mod log;
mod metrics;
mod mpi;
mod open_files;
mod output;
mod sweep;
mod usage_error;
mod version;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

/// Multicast for clusters: plan, analyse, simulate and run it.
#[derive(Debug, Parser)]
#[command(
    name = "treecast",
    version,
    max_term_width = 90,
    after_help = "Examples:
  treecast plan --fabric star:16 --scheme binomial
  treecast sim --fabric icpp98 --scheme tree-worm --dests random:15
  treecast paper run icpp98 fig6
  treecast lab 4 -- hostname
  treecast cp image.sqsh node[01-16]:/scratch/

'treecast COMMAND --help' shows more.

Exit status: 0 success, 1 an output could not be written, 2 invalid arguments or input;
of a simulation 3 saturated, 4 deadlocked, 5 incomplete; of a node and of a copy 5
incomplete; of a lab that of the first command that failed."
)]
struct Command {
    #[command(flatten)]
    log: log::LogArguments,

    #[command(subcommand)]
    name: Name,
}

#[derive(Debug, Subcommand)]
enum Name {
    /// Show or convert a fabric.
    Fabric(command::fabric::Arguments),
    /// Make a plan: who sends which copy to whom, in which order.
    Plan(command::plan::Arguments),
    /// Simulate one multicast, or many under load.
    Sim(command::sim::Arguments),
    /// Predict broadcasts on a network that was measured.
    Predict(command::predict::Arguments),
    /// Show a simulated multicast, or the results of other commands, in the browser.
    Report(command::report::Arguments),
    /// List, show and run published studies.
    Paper(command::paper::Arguments),
    /// Run a command on hosts made of network namespaces on this machine.
    Lab(command::lab::Arguments),
    /// Run a node without an application: forward, send a file or receive one.
    Node(command::node::Arguments),
    /// Copy files to many hosts at once.
    Cp(command::cp::Arguments),
    /// Measure broadcasts between real nodes.
    Bench(Box<command::bench::Arguments>),
    /// Measure what broadcasts cost between some hosts, for predictions.
    Tune(command::tune::Arguments),
    /// Show the nodes of this host, their groups, and how far the members are.
    Status(command::status::Arguments),
    /// Start an MPI program whose broadcasts go by Treecast.
    Mpi(command::mpi::Arguments),
    /// Check what works on this machine, and what is missing.
    Doctor(command::doctor::Arguments),
    /// Print the completions of this command for a shell.
    Completions(command::completions::Arguments),
    /// The manual pages, for packagers.
    #[command(hide = true)]
    Manual(command::manual::Arguments),
    /// The worker process of a benchmark.
    #[command(hide = true)]
    BenchWorker,
    /// The receiver of a copy.
    #[command(hide = true)]
    CopyReceiver(command::cp::ReceiverArguments),
}

impl Name {
    /// The level from which events are logged without options. A daemon's log is its only output.
    fn usual_level(&self) -> LevelFilter {
        match self {
            Self::Node(arguments) if !arguments.has_group() => LevelFilter::INFO,
            _ => LevelFilter::WARN,
        }
    }
}

fn main() -> ExitCode {
    let command = match parse() {
        Ok(command) => command,
        Err(error) => return not_run(&error),
    };
    command.log.start(command.name.usual_level(), matches!(command.name, Name::BenchWorker));
    let result = match command.name {
        Name::Fabric(arguments) => command::fabric::run(&arguments),
        Name::Plan(arguments) => command::plan::run(&arguments),
        Name::Sim(arguments) => command::sim::run(&arguments),
        Name::Predict(arguments) => command::predict::run(&arguments),
        Name::Report(arguments) => command::report::run(&arguments),
        Name::Paper(arguments) => command::paper::run(&arguments),
        Name::Lab(arguments) => command::lab::run(&arguments),
        Name::Node(arguments) => command::node::run(&arguments),
        Name::Bench(arguments) => command::bench::run(&arguments, &command.log),
        Name::Tune(arguments) => command::tune::run(&arguments, &command.log),
        Name::Status(arguments) => command::status::run(&arguments),
        Name::Mpi(arguments) => command::mpi::run(&arguments),
        Name::Doctor(arguments) => command::doctor::run(&arguments),
        Name::Cp(arguments) => command::cp::run(&arguments),
        Name::Completions(arguments) => command::completions::run(&arguments, Command::command()),
        Name::Manual(arguments) => command::manual::run(&arguments, Command::command()),
        Name::CopyReceiver(arguments) => command::cp::receive(&arguments),
        Name::BenchWorker => command::bench::work(),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_message(&sentence(&error));
            ExitCode::from(if error.is::<output::NotWritten>() { 1 } else { 2 })
        }
    }
}

fn parse() -> Result<Command, clap::Error> {
    let matches = Command::command().long_version(version::long()).try_get_matches()?;
    Command::from_arg_matches(&matches)
}

/// An error with its causes. Some errors name their cause themselves.
fn sentence(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// Prints help and version unchanged, and any usage error as one sentence.
fn not_run(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    let written = match error.kind() {
        DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand => error.print(),
        _ => {
            output::print_message(&usage_error::sentence(error));
            Ok(())
        }
    };
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::from(1),
        _ => ExitCode::from(error.exit_code() as u8),
    }
}
