//! `treecast report`: runs and plans as a page for the browser.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Parser};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use treecast_bench::{Broadcast as MeasuredBroadcast, FORMAT as BENCH_FORMAT, Report as BenchReport};
use treecast_fabric::{Fabric, RoutingPolicy};
use treecast_plan::render::FORMAT as PLAN_FORMAT;
use treecast_report::{Broadcast, LoadPart, Report, broadcasts_page, load_page, plan_page};
use treecast_sim::{
    FORMAT as RUN_FORMAT, LOAD_FORMAT, LoadDocument, LoadSetup, Offload, Operation, Outcome, Run,
    RunDocument, SATURATION_FORMAT, SaturationDocument,
};
use treecast_study::{page, saturation_figure};
use treecast_terms::Bytes;

use crate::arguments::{
    FabricArguments, OperationArgument, PlanArguments, RunArguments, command_line, fabric, in_shell, network,
    read_file, read_plan,
};
use crate::command::bench::page_of;
use crate::interrupt::clean_up_on_signals;
use crate::output::{is_standard_output, print_note, write_file};
use crate::usage_error::sentence;

#[derive(Debug, Args)]
#[command(
    override_usage = "treecast report --fabric SPEC --scheme NAME[:key=value,...] [OPTIONS] FILE
       treecast report --plan FILE [OPTIONS] FILE
       treecast report FILE.json PAGE
       treecast report LOAD.json LOAD.json... PAGE
       treecast report --play [--network FILE] BENCH.json PAGE",
    after_help = "Examples:
  treecast report --fabric icpp98 --scheme binomial --offload host,nic page.html
  treecast report --fabric torus:k=8,n=2,uni --scheme u-torus --message 1024 page.html
  treecast report --fabric fat-tree:k=16 --scheme k-binomial --offload nic page.html
  treecast report plan.json page.html
  treecast report run.json page.html
  treecast report load.json page.html
  treecast report low.json high.json page.html
  treecast report --play --network network.toml bench.json page.html

The page plays one multicast on the fabric: who has the message, which links are busy,
where packets wait; several offloads side by side. It is one file that fetches nothing,
and works in any browser. 'treecast sim --help' lists the keys of --set, docs/report.md
describes the page.
With a JSON file the page shows what the file contains:
  plan           its steps, sends and analysis (treecast plan --format json)
  run            the run, simulated again (treecast sim --format json)
  run under load its figures, and the utilization of each link on the fabric
                 (treecast sim --load --format json); several runs, each in a file,
                 are side by side
  saturation     latency over load (treecast sim --find-saturation --format json)
  bench          charts and the table of what it measured (treecast bench --format json);
                 with --play one of the broadcasts of each row, and beside it what
                 the model of a network predicts (--network)
The pages of studies are written by 'treecast paper run'.
Exit status: that of the worst run: 0 complete, 4 deadlocked, 5 incomplete."
)]
pub struct Arguments {
    /// The page, or - for standard output; or, before PAGE, a JSON file that the page shows: a
    /// plan, a run, a run or a search under load, or a bench
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The page to write, after a JSON file
    #[arg(value_name = "PAGE", conflicts_with_all = OF_A_RUN)]
    page: Option<PathBuf>,

    /// With several runs under load: the other files, and last the page
    #[arg(value_name = "MORE", requires = "page", conflicts_with = "play")]
    more: Vec<PathBuf>,

    /// Play the broadcasts of a bench, one of each row, instead of its charts
    #[arg(long, requires = "page")]
    play: bool,

    /// With --play: a network.toml of treecast tune; what its model predicts is played beside each
    /// broadcast
    #[arg(long, value_name = "FILE", requires = "play")]
    network: Option<PathBuf>,

    #[command(flatten)]
    fabric: FabricArguments,

    #[command(flatten)]
    plan: PlanArguments,

    /// What forwards at an intermediate host: host, assisted or nic; several, separated by commas,
    /// are shown side by side
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "host")]
    offload: Vec<Offload>,

    #[command(flatten)]
    run: RunArguments,
}

/// Options that describe a simulation.
const OF_A_RUN: [&str; 12] = [
    "scheme",
    "plan",
    "root",
    "dests",
    "order",
    "seed",
    "processes",
    "placement",
    "offload",
    "message",
    "simulator",
    "set",
];

impl Arguments {
    /// The JSON files of which the page is made.
    fn files(&self) -> Vec<&PathBuf> {
        let mut given: Vec<&PathBuf> = [&self.file].into_iter().chain(&self.page).chain(&self.more).collect();
        // The last one is the page.
        given.pop();
        given
    }
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let page = arguments.more.last().or(arguments.page.as_ref()).unwrap_or(&arguments.file);
    let files = arguments.files();
    check_inputs_are_kept(arguments, &files, page)?;
    clean_up_on_signals()?;
    let (html, status) = match &arguments.page {
        Some(_) if arguments.play => (of_broadcasts(arguments)?, 0),
        Some(_) if files.len() > 1 => (of_loads(&files, &arguments.fabric)?, 0),
        Some(_) => of_file(&arguments.file, &arguments.fabric)?,
        None => {
            let Arguments { fabric, plan, offload, run, .. } = arguments;
            let (html, outcomes) = of_run(fabric, plan, offload, run)?;
            (html, worst_status(&outcomes))
        }
    };
    write_file(page, html.as_bytes())?;
    if !is_standard_output(page) {
        print_note(&format!("{} is written: open it in a browser", page.display()));
    }
    Ok(status)
}

/// The page would replace a file that it is made of, and a measurement may have taken hours.
fn check_inputs_are_kept(arguments: &Arguments, files: &[&PathBuf], page: &Path) -> anyhow::Result<()> {
    if is_standard_output(page) {
        return Ok(());
    }
    let Ok(written) = page.canonicalize() else { return Ok(()) };
    let fabric = arguments.fabric.fabric.as_ref().map(PathBuf::from);
    let named: Vec<PathBuf> = files.iter().flat_map(|file| files_named_in(file)).collect();
    let given = [arguments.network.as_ref(), arguments.plan.plan.as_ref(), fabric.as_ref()];
    for input in files.iter().copied().chain(given.into_iter().flatten()).chain(&named) {
        if input.canonicalize().is_ok_and(|read| read == written) {
            bail!("the page would replace {}: give it another name, such as page.html", input.display());
        }
    }
    if page.extension() == Some(OsStr::new("json")) {
        bail!(
            "{}: the page, which is HTML, would replace it: give it a name such as page.html",
            page.display()
        );
    }
    Ok(())
}

/// The files that a run, a plan or a load was made of, and is simulated with again.
fn files_named_in(path: &Path) -> Vec<PathBuf> {
    #[derive(Deserialize)]
    struct Named {
        fabric: Option<PathBuf>,
        plan: Option<PathBuf>,
    }
    // What is wrong with the file is reported when it is read.
    let named = read_file(path).ok().and_then(|text| serde_json::from_str(&text).ok());
    named.into_iter().flat_map(|Named { fabric, plan }| [fabric, plan]).flatten().collect()
}

/// The exit status of several runs.
fn worst_status(outcomes: &[Outcome]) -> u8 {
    outcomes.iter().map(|outcome| outcome.status.exit_status()).max().unwrap_or_default()
}

/// The page of a JSON file of another command, by its `format`, and the exit status.
fn of_file(path: &Path, given: &FabricArguments) -> anyhow::Result<(String, u8)> {
    const ACCEPTED: &str = "a plan, a run, a run or a search under load, or a bench, as treecast plan, sim, \
                            sim --load, sim --find-saturation and bench write them with --format json";
    let text = read_file(path)?;
    let format = format_of(&text).with_context(|| {
        format!("{} is not JSON with a format that is known here: give {ACCEPTED}", path.display())
    })?;
    let has_no_fabric = matches!(&*format, SATURATION_FORMAT | BENCH_FORMAT);
    if has_no_fabric && given.is_given() {
        bail!("{}: its page shows no fabric: leave out --fabric and --routing", path.display());
    }
    let html = match &*format {
        PLAN_FORMAT => {
            let planned = read_plan(path, given, None)?;
            plan_page(&planned.plan, &planned.fabric, &planned.context(), &command_line())?
        }
        LOAD_FORMAT => {
            let load = Load::of(path, &text, given)?;
            load_page(&[load.part()], &command_line())?
        }
        SATURATION_FORMAT => {
            let document: SaturationDocument = parsed(path, &text)?;
            let mut search = document.setup.arguments();
            search.extend(["--find-saturation".into(), "--precision".into(), document.precision.to_string()]);
            page::html(&[saturation_figure(&document, in_shell(search))])
        }
        BENCH_FORMAT => page_of(&parsed(path, &text)?),
        RUN_FORMAT => return of_document(path, &parsed(path, &text)?, given),
        format => bail!("{} has the format '{format}': give {ACCEPTED}", path.display()),
    };
    Ok((html, 0))
}

/// A run under load in a file.
struct Load {
    label: String,
    document: LoadDocument,
    fabric: Fabric,
    simulated_with: String,
}

impl Load {
    fn of(path: &Path, text: &str, given: &FabricArguments) -> anyhow::Result<Self> {
        let document: LoadDocument = parsed(path, text)?;
        let mut simulation = document.setup.arguments();
        simulation.extend(["--load".into(), document.offered_load.to_string()]);
        let fabric = of_setup(&document.setup, given)?;
        let label = path.display().to_string();
        Ok(Self { label, document, fabric, simulated_with: in_shell(simulation) })
    }

    fn part(&self) -> LoadPart<'_> {
        let Self { label, document, fabric, simulated_with } = self;
        LoadPart { label, document, fabric, simulated_with }
    }
}

/// The page of several runs under load.
fn of_loads(files: &[&PathBuf], given: &FabricArguments) -> anyhow::Result<String> {
    let mut loads = Vec::new();
    for path in files {
        let text = read_file(path)?;
        if format_of(&text).as_deref() != Some(LOAD_FORMAT) {
            bail!(
                "{}: a page of several files is of runs under load, as treecast sim --load writes them with --format json",
                path.display()
            );
        }
        loads.push(Load::of(path, &text, given)?);
    }
    let parts: Vec<LoadPart<'_>> = loads.iter().map(Load::part).collect();
    Ok(load_page(&parts, &command_line())?)
}

/// The most broadcasts that a page plays.
const BROADCASTS_MAX: usize = 12;

/// The page that plays the broadcasts of a bench.
fn of_broadcasts(arguments: &Arguments) -> anyhow::Result<String> {
    let (path, text) = (&arguments.file, read_file(&arguments.file)?);
    if format_of(&text).as_deref() != Some(BENCH_FORMAT) {
        bail!("{}: --play takes a bench, as treecast bench writes it with --format json", path.display());
    }
    if arguments.fabric.is_given() {
        bail!("{}: --play shows no fabric: leave out --fabric and --routing", path.display());
    }
    let bench: BenchReport = parsed(path, &text)?;
    let network = arguments.network.as_deref().map(network).transpose()?;
    let is_of_one_size = bench.rows.iter().all(|row| row.bytes == bench.rows[0].bytes);
    let mut broadcasts = Vec::new();
    for row in &bench.rows {
        let Some(measured) = &row.broadcast else { continue };
        let size = if is_of_one_size { String::new() } else { format!("{}, ", bytes(row.bytes)) };
        let name = format!("{size}{} {} {}, {}", row.engine, row.offload, row.transport, row.scheme);
        let predicted =
            network.as_ref().map(|network| row.predicted_broadcast(network)).transpose()?.flatten();
        broadcasts.push(played(name.clone(), measured));
        broadcasts.extend(predicted.map(|predicted| played(format!("{name}, predicted"), &predicted)));
    }
    if broadcasts.is_empty() {
        bail!(
            "{}: no row has a broadcast to play: none is kept of a peer, of another operation, of a stream, and with several processes on a host",
            path.display()
        );
    }
    if broadcasts.len() > BROADCASTS_MAX {
        let count = broadcasts.len();
        bail!(
            "{}: it has {count} broadcasts to play, and a page {BROADCASTS_MAX} at most: measure fewer sizes, engines or offloads",
            path.display()
        );
    }
    let (hosts, first) = (bench.rows[0].hosts, bench.rows[0].bytes);
    let what = if is_of_one_size { format!("A broadcast of {}", bytes(first)) } else { "Broadcasts".into() };
    broadcasts_page(&broadcasts, &format!("{what} among {hosts} hosts"), &command_line())
        .with_context(|| path.display().to_string())
}

fn bytes(count: u64) -> String {
    Bytes(count).to_string()
}

fn played(name: String, broadcast: &MeasuredBroadcast) -> Broadcast {
    let MeasuredBroadcast { parents, root_us, delivered_us, stored_us } = broadcast.clone();
    Broadcast { name, parents, delivered_us, stored_us, root_us }
}

/// The options of `treecast sim` that [`RunDocument::arguments`] has.
#[derive(Debug, Parser)]
struct Again {
    #[command(flatten)]
    fabric: FabricArguments,

    #[command(flatten)]
    plan: PlanArguments,

    #[command(flatten)]
    _operation: OperationArgument,

    #[arg(long)]
    offload: Offload,

    #[command(flatten)]
    run: RunArguments,
}

/// The page of a run that is simulated again.
fn of_document(path: &Path, document: &RunDocument, given: &FabricArguments) -> anyhow::Result<(String, u8)> {
    if document.operation != Operation::Broadcast.to_string() {
        bail!("{}: pages of runs are of broadcasts, and this is of: {}", path.display(), document.operation);
    }
    let mut document = document.clone();
    if let Some(fabric) = &given.fabric {
        document.fabric.clone_from(fabric);
    }
    if given.routing != RoutingPolicy::Auto {
        document.routing = given.routing.to_string();
    }
    let again = Again::try_parse_from(document.arguments());
    let again = again.map_err(|error| anyhow!("{}: {}", path.display(), sentence(&error)))?;
    let Again { fabric, plan, offload, run, .. } = again;
    let (html, outcomes) = of_run(&fabric, &plan, &[offload], &run)?;
    let latency = outcomes[0].latency.map(|latency| latency.0);
    if latency != document.latency_cycles {
        let cycles =
            |latency: Option<u64>| latency.map_or("never".into(), |cycles| format!("after {cycles} cycles"));
        print_note(&format!(
            "note: the last delivery of the run that is shown is {}, and in {} {}: it was simulated with other files or another version",
            cycles(latency),
            path.display(),
            cycles(document.latency_cycles)
        ));
    }
    Ok((html, worst_status(&outcomes)))
}

/// A document in a file.
fn parsed<T: DeserializeOwned>(path: &Path, text: &str) -> anyhow::Result<T> {
    serde_json::from_str(text).with_context(|| path.display().to_string())
}

/// The fabric of a run, unless the user gives another place of it.
fn of_setup(setup: &LoadSetup, given: &FabricArguments) -> anyhow::Result<Fabric> {
    let routing = match given.routing {
        RoutingPolicy::Auto => setup.routing.parse()?,
        given => given,
    };
    fabric(given.fabric.as_deref().unwrap_or(&setup.fabric), routing)
}

/// The field `format` of a JSON text.
fn format_of(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Head {
        format: String,
    }
    serde_json::from_str(text).ok().map(|Head { format }| format)
}

/// The page of simulations, one for each offload, and how they ended.
fn of_run(
    fabric: &FabricArguments,
    plan: &PlanArguments,
    offloads: &[Offload],
    run: &RunArguments,
) -> anyhow::Result<(String, Vec<Outcome>)> {
    let parameters = run.parameters()?;
    let packets = run.packets(&parameters)?;
    let planned = plan.planned(fabric, packets)?;
    let command = command_line();
    let mut report = Report::new(&planned.fabric, &planned.fabric_text, parameters.cycle, &command);
    let mut outcomes = Vec::new();
    for &offload in offloads {
        outcomes.push(report.add(&Run {
            fabric: &planned.fabric,
            plan: &planned.plan,
            operation: Operation::Broadcast,
            offload,
            message: run.message(&planned, &parameters),
            parameters: &parameters,
            seed: plan.seed,
            simulator: run.simulator(&parameters),
        })?);
    }
    Ok((report.html(), outcomes))
}
