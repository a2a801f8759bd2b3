//! `treecast sim`: simulate one multicast.

use std::fmt::Write;

use clap::{Args, ValueEnum};
use treecast_fabric::Flits;
use treecast_plan::render::counted;
use treecast_sim::{Delivery, Offload, Outcome, Parameters, Run, RunContext, RunDocument, packet_count};

use crate::arguments::{FabricArguments, PlanArguments, whole_number};
use crate::output::{OutArguments, emit, plain};

#[derive(Debug, Args)]
#[command(
    override_usage = "treecast sim --fabric SPEC --scheme NAME[:key=value,...] [OPTIONS]
       treecast sim --plan FILE [OPTIONS]",
    after_help = after_help()
)]
pub struct Arguments {
    #[command(flatten)]
    fabric: FabricArguments,

    #[command(flatten)]
    plan: PlanArguments,

    /// Who forwards at a host in the middle: host, assisted or nic
    #[arg(long, value_name = "NAME", default_value_t = Offload::Host)]
    offload: Offload,

    /// The length of the message in flits, which are bytes; one packet if not given, or as many as
    /// the plan of --plan was made for
    #[arg(long, value_name = "FLITS", value_parser = whole_number::<u64>(1, u64::MAX), allow_negative_numbers = true)]
    message: Option<u64>,

    /// A parameter or a policy; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// What to print
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Format::Table)]
    format: Format,

    #[command(flatten)]
    out: OutArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Latency, deliveries and CPU time for the eye
    Table,
    /// JSON, as docs/schema/run.schema.json describes it
    Json,
}

/// Where lines of help end.
const HELP_WIDTH: usize = 90;

fn after_help() -> String {
    let mut text = String::from(
        "Examples:
  treecast sim --fabric icpp98 --scheme binomial --dests random:15
  treecast sim --fabric icpp98 --scheme k-binomial --offload nic --set nic_overhead=500
  treecast sim --fabric torus:k=8,n=2,uni --scheme s-torus:form=worm --format json
  treecast sim --plan plan.json --message 1024

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
docs/simulation.md states the model.
docs/schema/run.schema.json is the schema of the JSON.
Exit status: 0 complete, 3 saturated, 4 deadlocked, 5 incomplete.";
    text
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let mut parameters = Parameters::default();
    for setting in &arguments.set {
        parameters.set_from(setting)?;
    }
    let packet = parameters.packet_flits;
    let packets = arguments.message.map(|message| packet_count(Flits(message), packet)).transpose()?;
    let planned = arguments.plan.planned(&arguments.fabric, packets)?;
    let message = arguments.message.unwrap_or(u64::from(planned.packets) * packet.0);
    let run = Run {
        fabric: &planned.fabric,
        plan: &planned.plan,
        offload: arguments.offload,
        message: Flits(message),
        parameters: &parameters,
        seed: arguments.plan.seed,
    };
    let outcome = run.simulate()?;
    let text = match arguments.format {
        Format::Json => {
            let context = RunContext {
                fabric: planned.fabric_text.clone(),
                routing: planned.routing.to_string(),
                plan: planned.file.clone(),
                order: planned.order.map(|order| order.to_string()),
                destinations: planned.destinations.clone(),
            };
            RunDocument::new(&run, &outcome, context).to_json()
        }
        Format::Table => table(&run, &outcome),
    };
    emit(arguments.out.file.as_deref(), &text)?;
    Ok(outcome.status.exit_status())
}

/// The most deliveries that the table shows.
const DELIVERIES_SHOWN: usize = 40;

fn table(run: &Run, outcome: &Outcome) -> String {
    let parameters = run.parameters;
    let mut text = format!(
        "{} ({}), offload {}, {} from {} {} to {}\n",
        run.plan.scheme(),
        run.plan.label(),
        run.offload,
        counted(run.message.0 as usize, "flit"),
        if run.plan.placement().processes() > 1 { "member" } else { "host" },
        run.plan.root(),
        counted(run.plan.destination_count(), "destination")
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
    let _ = writeln!(
        text,
        "{}; CPUs busy for {} in all",
        counted(outcome.worms as usize, "worm"),
        counted(busy as usize, "cycle")
    );
    if outcome.deliveries.is_empty() {
        return text;
    }
    text.push('\n');
    let mut deliveries = outcome.deliveries.clone();
    deliveries.sort_by_key(|delivery| (delivery.cycle, delivery.member));
    let hidden = deliveries.len().saturating_sub(DELIVERIES_SHOWN);
    // Where there are many, the last ones matter most.
    text += &delivery_table(run, outcome, &deliveries[hidden..]);
    if hidden > 0 {
        let _ = writeln!(text, "(of {} deliveries the last {DELIVERIES_SHOWN} are shown)", deliveries.len());
    }
    text
}

fn delivery_table(run: &Run, outcome: &Outcome, deliveries: &[Delivery]) -> String {
    let mut table = comfy_table::Table::new();
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
    plain(table)
}
