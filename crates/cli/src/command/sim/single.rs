//! One multicast, all-reduce or barrier on an idle fabric.

use std::fmt::Write;
use std::ops::ControlFlow;

use treecast_plan::render::counted;
use treecast_sim::{
    BARRIER_MESSAGE, Delivery, Outcome, Parameters, Run, RunContext, RunDocument, Status, Trace,
};
use treecast_terms::{Cycles, Flits, Operation};

use super::{Arguments, Format, write_trace};
use crate::output::{emit, plain, progress_bar};

/// Runs one multicast, all-reduce or barrier; returns the exit status.
pub fn run(arguments: &Arguments, parameters: &Parameters) -> anyhow::Result<u8> {
    let operation = arguments.operation.operation;
    let packets = arguments.run.packets(parameters)?;
    let planned = arguments.plan.planned(&arguments.fabric, packets)?;
    let run = Run {
        fabric: &planned.fabric,
        plan: &planned.plan,
        operation,
        offload: arguments.offload,
        message: match operation {
            Operation::Barrier => arguments.run.message.map_or(BARRIER_MESSAGE, Flits),
            Operation::Broadcast | Operation::AllReduce => arguments.run.message(&planned, parameters),
        },
        parameters,
        seed: arguments.plan.seed,
        simulator: arguments.run.simulator(parameters),
    };
    let mut trace = arguments.trace.as_ref().map(|_| {
        Trace::new(planned.fabric.topology(), planned.plan.placement(), parameters.cycle, Trace::BYTES_MAX)
    });
    // How many cycles the run will take is not known before it ends.
    let bar = progress_bar(None, "{spinner} cycle {human_pos}; {elapsed}");
    let mut tell = |now: Cycles| {
        bar.set_position(now.0);
        ControlFlow::Continue(())
    };
    let outcome = run.simulate_watched(trace.as_mut().map(|trace| trace as _), &mut tell)?;
    bar.finish_and_clear();
    write_trace(arguments, trace)?;
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
    emit(arguments.out.file(), &text)?;
    Ok(outcome.status.exit_status())
}

/// The most deliveries that the table shows.
const DELIVERIES_SHOWN: usize = 40;

fn table(run: &Run, outcome: &Outcome) -> String {
    let parameters = run.parameters;
    let from = if run.plan.placement().processes() > 1 { "member" } else { "host" };
    let destinations = counted(run.plan.destination_count(), "destination");
    let length = counted(run.message.0 as usize, "flit");
    let (scheme, label, offload, root) = (run.plan.scheme(), run.plan.label(), run.offload, run.plan.root());
    let mut text = match run.operation {
        Operation::Broadcast => {
            format!("{scheme} ({label}), offload {offload}, {length} from {from} {root} to {destinations}\n")
        }
        operation => {
            format!(
                "{operation}, {scheme} ({label}), offload {offload}, {length} up to {from} {root}, and down to \
                 {destinations}\n"
            )
        }
    };
    let _ = match outcome.latency {
        Some(latency) => {
            writeln!(text, "complete after {latency} = {} us", parameters.nanoseconds(latency) / 1000.0)
        }
        None => writeln!(
            text,
            "{}: {} of {} have the message{}",
            outcome.status.name(),
            outcome.deliveries.len(),
            match run.operation {
                Operation::Broadcast => destinations,
                _ => counted(run.plan.destination_count() + 1, "member"),
            },
            match outcome.status {
                Status::Incomplete =>
                    format!(" at cycle {}, the last by cycles_max", parameters.cycles_max.0),
                _ => String::new(),
            }
        ),
    };
    let busy: u64 = outcome.cpu_busy.iter().map(|cycles| cycles.0).sum();
    let _ = writeln!(
        text,
        "{}; CPUs busy for {} in all",
        counted(outcome.worms as usize, "worm"),
        counted(busy as usize, "cycle")
    );
    text += &outcome.deadlock.as_ref().map(|deadlock| deadlock.describe(run.fabric)).unwrap_or_default();
    if outcome.deliveries.is_empty() {
        return text;
    }
    text.push('\n');
    let mut deliveries = outcome.deliveries.clone();
    deliveries.sort_by_key(|delivery| (delivery.cycle, delivery.member));
    let hidden = deliveries.len().saturating_sub(DELIVERIES_SHOWN);
    // The last deliveries matter most.
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
