//! `treecast sim`: simulate one multicast.

use std::fmt::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use treecast_fabric::Flits;
use treecast_sim::{Delivery, Offload, Outcome, Parameters, Run, RunContext, RunDocument, packet_count};

use crate::arguments::{FabricArguments, PlanArguments};
use crate::output::emit;

#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub struct Arguments {
    #[command(flatten)]
    fabric: FabricArguments,

    #[command(flatten)]
    plan: PlanArguments,

    /// Who forwards at a host in the middle: host, assisted or nic
    #[arg(long, default_value_t = Offload::Host)]
    offload: Offload,

    /// The length of the message in flits, which are bytes; one packet if not given
    #[arg(long, value_name = "FLITS")]
    message: Option<u64>,

    /// A parameter or a policy; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// The file to write; standard output if not given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Latency, deliveries and CPU time for the eye
    Table,
    /// JSON, as docs/schema/run.schema.json describes it
    Json,
}

fn after_help() -> String {
    let mut text = String::from(
        "Examples:
  treecast sim --fabric icpp98 --scheme binomial --dests random:15
  treecast sim --fabric icpp98 --scheme k-binomial --order cco --offload nic --message 1024 --set nic_overhead=500
  treecast sim --fabric torus:k=8,n=2,uni --scheme s-torus:form=worm --format json
  treecast plan --fabric star:16 --scheme binomial --format json --out plan.json; treecast sim --plan plan.json

Keys of --set, with their defaults (host_overhead and nic_overhead set both ends):
",
    );
    let defaults = Parameters::default();
    for key in Parameters::keys() {
        let setting = format!("{}={}", key.name, key.value(&defaults));
        let _ = writeln!(text, "  {setting:<30} {}: {}", key.about, key.expected);
    }
    text += "\ndocs/simulation.md states the model. Exit status: 0 complete, 3 saturated, 4 deadlocked, 5 incomplete.";
    text
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let mut parameters = Parameters::default();
    for setting in &arguments.set {
        parameters.set_from(setting)?;
    }
    let message = arguments.message.map_or(parameters.packet_flits, Flits);
    let packets = packet_count(message, parameters.packet_flits)?;
    let planned = arguments.plan.planned(&arguments.fabric, packets)?;
    let run = Run {
        fabric: &planned.fabric,
        plan: &planned.plan,
        offload: arguments.offload,
        message,
        parameters: &parameters,
        seed: arguments.plan.seed,
    };
    let outcome = run.simulate()?;
    let text = match arguments.format {
        Format::Json => {
            let context = RunContext {
                fabric: planned.fabric_text.clone(),
                routing: planned.routing.to_string(),
                order: planned.order.map(|order| order.to_string()),
            };
            RunDocument::new(&run, &outcome, context).to_json()
        }
        Format::Table => table(&run, &outcome),
    };
    emit(arguments.out.as_deref(), &text)?;
    Ok(outcome.status.exit_status())
}

/// The most deliveries that the table shows.
const DELIVERIES_SHOWN: usize = 40;

fn table(run: &Run, outcome: &Outcome) -> String {
    let parameters = run.parameters;
    let mut text = format!(
        "{} ({}), offload {}, {} flits from member {} to {} destinations\n",
        run.plan.scheme(),
        run.plan.label(),
        run.offload,
        run.message.0,
        run.plan.root(),
        run.plan.destination_count()
    );
    let _ = match outcome.latency {
        Some(latency) => {
            writeln!(text, "complete after {latency} = {} us", parameters.nanoseconds(latency) / 1000.0)
        }
        None => writeln!(
            text,
            "{}: {} of {} destinations have the message",
            outcome.status.name(),
            outcome.deliveries.len(),
            run.plan.destination_count()
        ),
    };
    let busy: u64 = outcome.cpu_busy.iter().map(|cycles| cycles.0).sum();
    let _ = writeln!(text, "{} worms; CPUs busy for {busy} cycles in all\n", outcome.worms);
    let mut deliveries = outcome.deliveries.clone();
    deliveries.sort_by_key(|delivery| (delivery.cycle, delivery.member));
    let hidden = deliveries.len().saturating_sub(DELIVERIES_SHOWN);
    // Where there are many, the last ones matter most.
    text += &delivery_table(run, outcome, &deliveries[hidden..]);
    if hidden > 0 {
        let _ = writeln!(text, "({hidden} earlier deliveries not shown)");
    }
    text
}

fn delivery_table(run: &Run, outcome: &Outcome, deliveries: &[Delivery]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    let several = run.plan.placement().processes() > 1;
    let mut header = vec!["delivered at cycle", "host", "CPU busy, cycles"];
    if several {
        header.insert(1, "member");
    }
    table.set_header(header);
    for delivery in deliveries {
        let mut row = vec![
            delivery.cycle.0.to_string(),
            run.fabric.topology().host_name(delivery.host),
            outcome.cpu_busy[delivery.host.index()].0.to_string(),
        ];
        if several {
            row.insert(1, delivery.member.to_string());
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    format!("{table}\n")
}
