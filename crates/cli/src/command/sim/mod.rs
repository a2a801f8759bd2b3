//! `treecast sim`: simulate one multicast, or many under load.

mod load;
mod single;

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};
use treecast_sim::{Offload, Parameters, Trace};
use treecast_terms::{Keyed as _, Operation};

use crate::arguments::{FabricArguments, OperationArgument, PlanArguments, RunArguments};
use crate::interrupt::clean_up_on_signals;
use crate::output::{OutArguments, is_standard_output, print_note, write_file};

#[derive(Debug, Args)]
#[command(
    override_usage = "treecast sim --fabric SPEC --scheme NAME[:key=value,...] [OPTIONS]
       treecast sim --plan FILE [OPTIONS]
       treecast sim --fabric SPEC --scheme NAME --load FLITS --degree M [OPTIONS]
       treecast sim --fabric SPEC --scheme NAME --find-saturation --degree M [OPTIONS]",
    after_help = after_help()
)]
pub struct Arguments {
    #[command(flatten)]
    fabric: FabricArguments,

    #[command(flatten)]
    plan: PlanArguments,

    #[command(flatten)]
    operation: OperationArgument,

    /// What forwards at an intermediate host: host, assisted or nic
    #[arg(long, value_name = "NAME", default_value_t = Offload::Host)]
    offload: Offload,

    #[command(flatten)]
    run: RunArguments,

    /// A file for a trace of the run, which ui.perfetto.dev opens: the work of every CPU, bus, NIC
    /// and link; with --out FILE also -, standard output
    #[arg(long, value_name = "FILE", conflicts_with = "find_saturation")]
    trace: Option<PathBuf>,

    /// What to print
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Format::Table)]
    format: Format,

    #[command(flatten)]
    out: OutArguments,

    #[command(flatten)]
    load: load::LoadArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text
    Table,
    /// JSON, as the schemas describe it
    Json,
}

/// The width of help texts.
const HELP_WIDTH: usize = 90;

fn after_help() -> String {
    let mut text = String::from(
        "Examples:
  treecast sim --fabric icpp98 --scheme binomial --dests random:15
  treecast sim --fabric icpp98 --scheme k-binomial --offload nic --set nic_overhead=500
  treecast sim --fabric torus:k=8,n=2,uni --scheme s-torus:form=worm --format json
  treecast sim --fabric star:16 --scheme binomial --operation barrier --offload nic
  treecast sim --plan plan.json --message 1024
  treecast sim --fabric icpp98 --scheme tree-worm --load 0.01 --degree 3
  treecast sim --fabric icpp98 --scheme tree-worm --find-saturation --degree 15

Keys of --set, with their defaults (host_overhead and nic_overhead set both ends):
",
    );
    let defaults = Parameters::default();
    for key in Parameters::keys() {
        let setting = format!("{}={}", key.name, key.value(&defaults));
        let line = format!("  {setting:<26} {}: {}", key.about, key.expected);
        text += &if line.len() > HELP_WIDTH { line.replace(": ", &format!(":\n{:29}", "")) } else { line };
        text.push('\n');
    }
    text += "
docs/simulation.md states the model, docs/load.md traffic and measurement under load.
Schemas of the JSON are in docs/schema: run, load and saturation.
Exit status: 0 complete, 3 saturated, 4 deadlocked, 5 incomplete.";
    text
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    clean_up_on_signals()?;
    let is_trace_printed = arguments.trace.as_deref().is_some_and(is_standard_output);
    if is_trace_printed && arguments.out.file().is_none() {
        bail!("--trace -: standard output is for the figures: give a file, or --out FILE for the figures");
    }
    let parameters = arguments.run.parameters()?;
    if arguments.load.is_given()? {
        let operation = arguments.operation.operation;
        if operation != Operation::Broadcast {
            bail!("load consists of broadcasts: leave out --operation {operation}");
        }
        load::run(arguments, &parameters)
    } else {
        single::run(arguments, &parameters)
    }
}

/// Writes the trace, if one was requested.
fn write_trace(arguments: &Arguments, trace: Option<Trace>) -> anyhow::Result<()> {
    let (Some(path), Some(trace)) = (&arguments.trace, trace) else { return Ok(()) };
    let dropped = trace.dropped();
    if dropped > 0 {
        print_note(&format!("note: the trace is full; its last {dropped} slices are missing"));
    }
    write_file(path, &trace.finish())
}
