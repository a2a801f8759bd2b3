//! Many multicasts at once.

use std::fmt::Write;
use std::ops::ControlFlow;

use anyhow::{Context, bail};
use clap::Args;
use treecast_plan::Placement;
use treecast_plan::render::counted;
use treecast_sim::{
    Arrivals, DestinationSets, LoadContext, LoadDocument, LoadOutcome, LoadRun, Parameters, Saturation,
    SaturationDocument, SaturationPoint, ShortWindow, Status, Trace, unwatched,
};
use treecast_terms::{Cycles, Flits};

use super::{Arguments, Format, write_trace};
use crate::arguments::{fabric, number, whole_number};
use crate::output::{emit, plain, progress_bar};

#[derive(Debug, Args)]
#[command(next_help_heading = "Under load, with --load or --find-saturation")]
pub struct LoadArguments {
    /// Every host multicasts to --degree others, again and again, at this load in flits/host/cycle
    #[arg(long, value_name = "FLITS", value_parser = number, allow_negative_numbers = true)]
    #[arg(conflicts_with_all = NOT_UNDER_LOAD)]
    load: Option<f64>,

    /// Search for the highest sustained load
    #[arg(long, conflicts_with = "load", conflicts_with_all = NOT_UNDER_LOAD)]
    find_saturation: bool,

    /// The number of destinations of each multicast; 1 is unicast
    #[arg(long, value_name = "M", value_parser = whole_number::<u32>(1, u32::MAX.into()), allow_negative_numbers = true)]
    degree: Option<u32>,

    #[arg(help = format!("The number of simulated cycles; {} if not given", LoadRun::CYCLES_DEFAULT.0))]
    #[arg(long, value_name = "N", value_parser = whole_number::<u64>(1, LoadRun::CYCLES_MAX.0), allow_negative_numbers = true)]
    cycles: Option<u64>,

    /// Warm-up: cycles before the measurement; half of all if not given
    #[arg(long, value_name = "W", value_parser = whole_number::<u64>(0, LoadRun::CYCLES_MAX.0), allow_negative_numbers = true)]
    warmup: Option<u64>,

    /// Arrival process of each host: exponential if not given, fixed, bernoulli, burst:size=8
    #[arg(long, value_name = "NAME")]
    arrivals: Option<Arrivals>,

    /// Choice of destinations: random if not given, fixed (one set per host), neighbours,
    /// hot-spot:percent=10; with degree 1: transpose, bit-complement, bit-reverse, shuffle,
    /// tornado, next-group
    #[arg(long, value_name = "NAME")]
    destination_sets: Option<DestinationSets>,

    #[arg(help = format!(
        "The bound of multicasts in flight, beyond which a run is saturated; {} per host if not given",
        LoadRun::BACKLOG_PER_HOST
    ))]
    #[arg(long, value_name = "B", value_parser = whole_number::<u64>(1, 1 << 32), allow_negative_numbers = true)]
    backlog_max: Option<u64>,

    #[arg(help = format!("The precision of --find-saturation, as a share of the load; {} if not given", LoadRun::PRECISION_DEFAULT))]
    #[arg(long, value_name = "SHARE", value_parser = number, allow_negative_numbers = true)]
    precision: Option<f64>,
}

/// Options that describe one multicast.
const NOT_UNDER_LOAD: [&str; 5] = ["plan", "root", "dests", "processes", "placement"];

impl LoadArguments {
    /// Whether a run under load is requested. An option without a meaning for the requested run is
    /// an error.
    pub fn is_given(&self) -> anyhow::Result<bool> {
        let is_given = self.load.is_some() || self.find_saturation;
        let options = [
            ("--degree", self.degree.is_some()),
            ("--cycles", self.cycles.is_some()),
            ("--warmup", self.warmup.is_some()),
            ("--arrivals", self.arrivals.is_some()),
            ("--destination-sets", self.destination_sets.is_some()),
            ("--backlog-max", self.backlog_max.is_some()),
        ];
        if self.precision.is_some() && !self.find_saturation {
            bail!("--precision needs --find-saturation, which excludes --load");
        }
        match options.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) if !is_given => {
                bail!(
                    "{option} is for runs under load: give --load, such as --load 0.01, or --find-saturation"
                )
            }
            _ => Ok(is_given),
        }
    }
}

/// Runs under load; returns the exit status.
pub fn run(arguments: &Arguments, parameters: &Parameters) -> anyhow::Result<u8> {
    let given = &arguments.load;
    if parameters.cycles_max != Parameters::default().cycles_max {
        bail!("--set cycles_max is for one multicast: under load give --cycles");
    }
    let degree =
        given.degree.context("--degree is missing: give the number of destinations of each multicast")?;
    let scheme = arguments.plan.scheme()?;
    let fabric_text = arguments.fabric.given()?.to_string();
    let fabric = fabric(&fabric_text, arguments.fabric.routing)?;
    let cycles = given.cycles.map_or(LoadRun::CYCLES_DEFAULT, Cycles);
    let run = LoadRun {
        fabric: &fabric,
        scheme,
        order: arguments.plan.order,
        offload: arguments.offload,
        message: Flits(arguments.run.message.unwrap_or(parameters.packet_flits.0)),
        degree,
        load: given.load.unwrap_or(1.0),
        arrivals: given.arrivals.unwrap_or_default(),
        sets: given.destination_sets.unwrap_or_default(),
        cycles,
        warmup: given.warmup.map_or(LoadRun::default_warmup(cycles), Cycles),
        backlog_max: given.backlog_max.map(|most| most as usize),
        parameters,
        seed: arguments.plan.seed,
        simulator: arguments.run.simulator(parameters),
    };
    let context = LoadContext { fabric: fabric_text, routing: arguments.fabric.routing.to_string() };
    if given.find_saturation { search(arguments, &run, context) } else { simulate(arguments, &run, context) }
}

fn simulate(arguments: &Arguments, run: &LoadRun, context: LoadContext) -> anyhow::Result<u8> {
    let topology = run.fabric.topology();
    let placement = Placement::one_per_host(topology.host_count());
    let cycle = run.parameters.cycle;
    let mut trace =
        arguments.trace.as_ref().map(|_| Trace::new(topology, &placement, cycle, Trace::BYTES_MAX));
    let bar = progress_bar(Some(run.cycles.0), "cycle {pos} of {len} {wide_bar} {eta} to go");
    let step = run.cycles.0 / 1000;
    let mut tell = |now: Cycles| {
        // An update takes longer than the simulation of many cycles.
        if now.0 - bar.position() > step {
            bar.set_position(now.0);
        }
        ControlFlow::Continue(())
    };
    let outcome = run.simulate_watched(trace.as_mut().map(|trace| trace as _), &mut tell)?;
    bar.finish_and_clear();
    write_trace(arguments, trace)?;
    let text = match arguments.format {
        Format::Json => LoadDocument::new(run, &outcome, context).to_json(),
        Format::Table => heading(run) + &table(run, &outcome),
    };
    emit(arguments.out.file(), &text)?;
    Ok(outcome.status.exit_status())
}

fn search(arguments: &Arguments, run: &LoadRun, context: LoadContext) -> anyhow::Result<u8> {
    let precision = arguments.load.precision.unwrap_or(LoadRun::PRECISION_DEFAULT);
    let bar = progress_bar(None, "{spinner} {pos} loads tried, the last {msg}; {elapsed}");
    let tried = |point: &SaturationPoint| {
        bar.inc(1);
        bar.set_message(format!("{:.5} {}", point.offered_load, point.status.name()));
    };
    let saturation = run.find_saturation_watched(precision, tried, &mut unwatched)?;
    bar.finish_and_clear();
    let text = match arguments.format {
        Format::Json => SaturationDocument::new(run, precision, &saturation, context).to_json(),
        Format::Table => heading(run) + &points(run, &saturation),
    };
    emit(arguments.out.file(), &text)?;
    // Saturated probes are part of every search. The search fails only where no load is sustained.
    let last = saturation.points.last().map_or(Status::Incomplete, |point| point.status);
    Ok(if saturation.offered_load.is_some() { 0 } else { last.exit_status() })
}

fn heading(run: &LoadRun) -> String {
    let label = run.scheme.label();
    let sets = run.sets;
    format!(
        "{} ({label}), offload {}, {} from every host to {} ({sets}), arrivals {}\n",
        run.scheme,
        run.offload,
        run.message,
        counted(run.degree as usize, "other"),
        run.arrivals
    )
}

fn table(run: &LoadRun, outcome: &LoadOutcome) -> String {
    let figures = &outcome.figures;
    let (status, end) = (outcome.status.name(), outcome.end);
    let mut text = if end > run.warmup {
        let measured = counted(figures.multicasts_measured as usize, "multicast");
        format!("{status}: {measured} measured in cycles {} to {}\n", run.warmup.0, end.0)
    } else {
        format!("{status}: ended at cycle {}, before its warm-up of {} was over\n", end.0, run.warmup)
    };
    if outcome.status == Status::Saturated && end < run.cycles {
        let _ = writeln!(text, "more than {} multicasts were in flight", run.in_flight_max());
    }
    text += &note(run.warning(outcome));
    text += &outcome.deadlock.as_ref().map(|deadlock| deadlock.describe(run.fabric)).unwrap_or_default();
    let load = |load: f64| format!("{load:.4}");
    let mut rows = vec![
        ("offered load, flits/host/cycle", load(run.load)),
        ("ejection load, flits/host/cycle", load(run.ejection_load())),
    ];
    if figures.multicasts_measured > 0 {
        rows.extend(figures.rows());
    }
    let mut table = comfy_table::Table::new();
    for (name, value) in rows {
        table.add_row([name, value.as_str()]);
    }
    text + "\n" + &plain(table)
}

fn note(warning: Option<ShortWindow>) -> String {
    warning.map(|warning| format!("note: {warning}\n")).unwrap_or_default()
}

fn points(run: &LoadRun, saturation: &Saturation) -> String {
    let degree = f64::from(run.degree);
    let mut text = match saturation.offered_load {
        Some(load) => format!(
            "sustained up to an offered load of {load:.5}, an ejection load of {:.5} flits/host/cycle\n",
            degree * load
        ),
        None => "no load tried is sustained\n".to_string(),
    };
    text += &note(run.saturation_warning(saturation));
    let mut table = comfy_table::Table::new();
    table.set_header(["offered load", "ejection load", "mean latency, cycles", "status"]);
    for point in &saturation.points {
        table.add_row([
            format!("{:.5}", point.offered_load),
            format!("{:.5}", degree * point.offered_load),
            point.latency_mean_cycles.map_or("-".into(), |cycles| format!("{cycles:.1}")),
            point.status.name().into(),
        ]);
    }
    for column in table.column_iter_mut().take(3) {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    text.push('\n');
    text + &plain(table)
}
