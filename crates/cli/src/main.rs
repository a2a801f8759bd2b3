//! The `treecast` command: parses, calls, prints.
//!
//! Exit status: 0 done; 1 a file could not be written; 2 something that was given is wrong; of a simulation that was not
//! complete 3 saturated, 4 deadlocked, 5 incomplete.

mod arguments;
mod command;
mod output;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// One message to many receivers: plan it, look at it, simulate it.
#[derive(Debug, Parser)]
#[command(
    name = "treecast",
    version,
    after_help = "Examples:
  treecast plan --fabric star:16 --scheme binomial
  treecast sim --fabric icpp98 --scheme tree-worm --dests random:15
  treecast paper run icpp98 fig6

'treecast COMMAND --help' shows more. Exit status: 0 done, 1 a file could not be written, 2 something that was given is
wrong; of a simulation 3 saturated, 4 deadlocked, 5 incomplete."
)]
struct Command {
    #[command(subcommand)]
    name: Name,
}

#[derive(Debug, Subcommand)]
enum Name {
    /// Show a fabric, or convert it.
    Fabric(command::fabric::Arguments),
    /// Make a plan: who sends which copy to whom, in what order.
    Plan(command::plan::Arguments),
    /// Simulate one multicast, cycle by cycle.
    Sim(command::sim::Arguments),
    /// List, show and run published studies.
    Paper(command::paper::Arguments),
}

/// Who reads from a pipe may stop reading: then we end as other commands do, and do not complain.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn main() -> ExitCode {
    let result = match Command::parse().name {
        Name::Fabric(arguments) => command::fabric::run(&arguments),
        Name::Plan(arguments) => command::plan::run(&arguments),
        Name::Sim(arguments) => command::sim::run(&arguments),
        Name::Paper(arguments) => command::paper::run(&arguments),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("treecast: {error:#}");
            ExitCode::from(if error.is::<output::NotWritten>() { 1 } else { 2 })
        }
    }
}
