//! `treecast paper`: list, show and run published studies.

mod sensitivity;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use treecast_sim::Status;
use treecast_study::chart;
use treecast_study::figure::Figure;
use treecast_study::page;
use treecast_study::table::{Rows, deadlocks, table};
use treecast_study::{FigureSpec, Row, Study, StudyError, builtin, rows};
use treecast_terms::nearest_hint;

use crate::arguments::{read_file, whole_number};
use crate::interrupt::clean_up_on_signals;
use crate::output::{emit, ink, is_standard_output, make_directory, print_message, width, write_file};
use crate::sweep::Sweep;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  treecast paper list
  treecast paper show icpp98 fig6
  treecast paper run icpp98 fig6
  treecast paper run icpp98 --quick --jobs 1 --out /tmp/icpp98
  treecast paper run all --quick
  treecast paper sensitivity gm --quick

STUDY is the name of a study that 'list' shows, or a directory with a study of your own:
docs/studies.md says how to write one.")]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the studies
    List,
    /// Describe a study or one of its figures
    Show {
        /// A study's name, or a directory
        study: String,
        /// A figure of it
        figure: Option<String>,
    },
    /// Run figures: prints tables and charts, and writes every run and the pictures
    Run(RunArguments),
    /// Sensitivity of factors to the guessed parameters of a testbed
    Sensitivity(sensitivity::SensitivityArguments),
}

/// The name for all studies.
const ALL: &str = "all";

/// More threads take longer to start than they save.
const JOBS_MAX: u64 = 1024;

#[derive(Debug, Args)]
struct RunArguments {
    /// A study's name, a directory, or all
    study: String,

    /// Its figures; all if not given
    figures: Vec<String>,

    /// The directory for rows and pictures; out/STUDY if not given. With 'all' each study has a
    /// directory in it
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// The number of threads; one per core if not given
    #[arg(long, value_name = "N", value_parser = whole_number::<usize>(1, JOBS_MAX), allow_negative_numbers = true)]
    jobs: Option<usize>,

    /// Fewer points, topologies and groups
    #[arg(long)]
    quick: bool,

    /// Run everything again, also the runs that an interrupted command has finished
    #[arg(long)]
    fresh: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    clean_up_on_signals()?;
    match &arguments.action {
        Action::List => list(),
        Action::Show { study, figure } => {
            let study = load(study)?;
            let text = match figure {
                None => study.describe(),
                Some(figure) => study.figure(figure)?.describe(),
            };
            emit(None, &text)?;
            Ok(0)
        }
        Action::Run(RunArguments { out: Some(out), .. }) if is_standard_output(out) => {
            bail!("--out -: a study writes several files: give a directory")
        }
        Action::Run(arguments) if arguments.study == ALL => run_all_studies(arguments),
        Action::Run(arguments) => {
            let study = load(&arguments.study)?;
            let directory = arguments.out.clone().unwrap_or_else(|| Path::new("out").join(study.name()));
            run_figures(&study, &directory, arguments)
        }
        Action::Sensitivity(arguments) => sensitivity::run(arguments),
    }
}

fn list() -> anyhow::Result<u8> {
    let studies = builtin::names().into_iter().filter_map(builtin::study);
    let contents = studies.map(|study| Ok(study?.contents()));
    let mut text = contents.collect::<anyhow::Result<Vec<_>>>()?.join("\n");
    text += "\n'treecast paper show STUDY' says more, 'treecast paper run STUDY FIGURE' runs a figure.\n";
    emit(None, &text)?;
    Ok(0)
}

fn load(name: &str) -> anyhow::Result<Study> {
    if let Some(study) = builtin::study(name) {
        return Ok(study?);
    }
    let path = Path::new(name);
    if path.is_dir() {
        return load_directory(path);
    }
    bail!("unknown study '{name}', and no directory{}", nearest_hint(name, &builtin::names()))
}

fn load_directory(directory: &Path) -> anyhow::Result<Study> {
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("{} could not be read", directory.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.retain(|path| toml_name(path).is_some());
    paths.sort();
    let texts = paths.iter().map(|path| read_file(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let files = paths.iter().zip(&texts).filter_map(|(path, text)| Some((toml_name(path)?, text.as_str())));
    Study::parse(&files.collect::<Vec<_>>()).map_err(|error| match error {
        StudyError::Malformed { file, line, reason } => {
            StudyError::Malformed { file: directory.join(file).display().to_string(), line, reason }.into()
        }
        other => anyhow::Error::from(other).context(directory.display().to_string()),
    })
}

/// The name of a file of a study, without its directory.
fn toml_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str().filter(|_| path.extension().is_some_and(|extension| extension == "toml"))
}

/// Every study that comes with the program, one after the other.
fn run_all_studies(arguments: &RunArguments) -> anyhow::Result<u8> {
    if let Some(figure) = arguments.figures.first() {
        bail!("'{ALL}' runs every figure of every study: name the study of '{figure}' instead");
    }
    let out = arguments.out.clone().unwrap_or_else(|| PathBuf::from("out"));
    for name in builtin::names() {
        let study = load(name)?;
        run_figures(&study, &out.join(name), arguments)?;
    }
    Ok(0)
}

fn run_figures(study: &Study, directory: &Path, arguments: &RunArguments) -> anyhow::Result<u8> {
    let specs: Vec<&FigureSpec> = if arguments.figures.is_empty() {
        study.figures().iter().collect()
    } else {
        chosen(study, &arguments.figures)?
    };
    if specs.is_empty() {
        bail!("the study {} has no figures: each is a file beside its study.toml", study.name());
    }
    make_directory(directory)?;
    let runs: Vec<_> = specs.iter().map(|spec| spec.runs(arguments.quick)).collect();
    let mut sweep = Sweep::new(directory, runs.iter().flatten(), arguments.jobs, arguments.fresh)?;
    let mut figures = Vec::new();
    for (spec, runs) in specs.iter().zip(&runs) {
        let rows = sweep.run(spec.name(), runs)?;
        let figure = spec.figure(&rows);
        sweep.aside(|| show(&figure, &rows, directory))?;
        figures.push(figure);
    }
    if figures.len() > 1 {
        let page = directory.join(format!("{}.html", study.name()));
        write_file(&page, page::html(&figures).as_bytes())?;
        emit(None, &format!("All figures on one page: {}\n", page.display()))?;
    }
    sweep.finish()?;
    Ok(0)
}

fn chosen<'a>(study: &'a Study, names: &[String]) -> anyhow::Result<Vec<&'a FigureSpec>> {
    let mut specs: Vec<&FigureSpec> = Vec::new();
    for name in names {
        if specs.iter().any(|spec| spec.name() == name) {
            bail!("figure '{name}' is given twice");
        }
        specs.push(study.figure(name)?);
    }
    Ok(specs)
}

/// Prints a figure, and writes its rows and pictures.
fn show(figure: &Figure, rows_of_figure: &[Row], directory: &Path) -> anyhow::Result<()> {
    let width = width();
    let mut text = table(figure, width, Rows::AtMost(8));
    text += "\n";
    text += &chart::terminal(figure, width, 18, ink());
    let files = [
        ("csv", rows::csv(rows_of_figure)?),
        ("parquet", rows::parquet(rows_of_figure)?),
        ("svg", chart::svg(figure)?.into_bytes()),
        ("html", page::html(std::slice::from_ref(figure)).into_bytes()),
    ];
    for (extension, contents) in &files {
        write_file(&directory.join(format!("{}.{extension}", figure.name)), contents)?;
    }
    // Saturated runs are expected in figures under load.
    let unfinished = |row: &&Row| matches!(row.measured.status, Status::Deadlocked | Status::Incomplete);
    let unfinished = rows_of_figure.iter().filter(unfinished).count();
    if unfinished > 0 {
        let all = rows_of_figure.len();
        print_message(&format!("{unfinished} of {all} runs of {} did not complete", figure.name));
    }
    text += &deadlocks(rows_of_figure);
    let at = directory.join(&figure.name);
    text += &format!(
        "\nEvery run: {0}.csv and {0}.parquet. Pictures: {0}.svg, and {0}.html for a browser.\n\n",
        at.display()
    );
    emit(None, &text)
}
