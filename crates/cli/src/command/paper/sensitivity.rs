//! `treecast paper sensitivity`: sensitivity of results to guessed parameters.

use std::collections::BTreeSet;

use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use treecast_study::{FigureSpec, GUESS_SHIFT, Headline, Sensitivity};

use super::{chosen, load};
use crate::output::{emit, plain, progress_bar, width};

#[derive(Debug, Args)]
pub struct SensitivityArguments {
    /// A study's name, or a directory
    study: String,

    /// Its figures that show factors; all of those if not given
    figures: Vec<String>,

    /// Fewer points, topologies and groups
    #[arg(long)]
    quick: bool,

    /// What to print
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One table per figure, one line per guess
    Table,
    /// One table in Markdown, one line per curve
    Markdown,
}

pub fn run(arguments: &SensitivityArguments) -> anyhow::Result<u8> {
    let study = load(&arguments.study)?;
    let specs: Vec<&FigureSpec> = if arguments.figures.is_empty() {
        study.figures().iter().filter(|spec| spec.shows_factors() && !spec.guessed().is_empty()).collect()
    } else {
        chosen(&study, &arguments.figures)?
    };
    if specs.is_empty() {
        let name = study.name();
        emit(
            None,
            &format!("No figure of {name} shows factors that depend on guessed parameters of a testbed.\n"),
        )?;
        return Ok(0);
    }
    let sweeps: usize = specs.iter().map(|spec| 1 + 2 * spec.guessed().len()).sum();
    let bar = progress_bar(Some(sweeps as u64), "{msg} {wide_bar} {eta} to go");
    for (place, spec) in specs.into_iter().enumerate() {
        bar.set_message(spec.name().to_owned());
        let sensitivity = spec.sensitivity(arguments.quick, &|| bar.inc(1))?;
        let text = match (arguments.format, place) {
            (Format::Table, 0) => table(spec, &sensitivity),
            (Format::Table, _) => "\n".to_owned() + &table(spec, &sensitivity),
            (Format::Markdown, 0) => HEAD.to_owned() + &markdown(spec, &sensitivity),
            (Format::Markdown, _) => markdown(spec, &sensitivity),
        };
        bar.suspend(|| emit(None, &text))?;
    }
    bar.finish_and_clear();
    Ok(0)
}

/// Factors with a smaller relative change are not shown.
const LITTLE: f64 = 0.02;

/// A guess that moves a headline, and the headline's values with less and with more of it.
struct Move<'a> {
    key: &'a str,
    sides: [String; 2],
}

/// The guesses that move a headline, those that move it most first.
fn moves<'a>(sensitivity: &'a Sensitivity, place: usize, headline: &Headline) -> Vec<Move<'a>> {
    // The maximum relative change of the factor; a factor that disappears counts as the largest
    // change.
    let share =
        |factor: Option<f64>| factor.map_or(f64::MAX, |factor| (factor / headline.factor - 1.0).abs());
    let effect = |sides: &[Vec<Option<f64>>; 2]| f64::max(share(sides[0][place]), share(sides[1][place]));
    let mut moved: Vec<_> = sensitivity.moved.iter().filter(|(_, sides)| effect(sides) > LITTLE).collect();
    moved.sort_by(|(_, a), (_, b)| effect(b).total_cmp(&effect(a)));
    let side = |factor: Option<f64>| factor.map_or("-".into(), |factor| format!("{factor:.2}"));
    moved
        .into_iter()
        .map(|(key, sides)| Move { key, sides: sides.each_ref().map(|factors| side(factors[place])) })
        .collect()
}

fn table(spec: &FigureSpec, sensitivity: &Sensitivity) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.style_mut().row_separator = comfy_table::LineStyle::none();
    table.set_width(width());
    let percent = GUESS_SHIFT * 100.0;
    let sides = ["-", "+"].map(|sign| format!("{sign}{percent} %"));
    table.set_header(["panel", "series", "at x", "factor", "guess", &sides[0], &sides[1]]);
    let mut still: BTreeSet<&str> = sensitivity.moved.iter().map(|(key, _)| key.as_str()).collect();
    for (place, headline) in sensitivity.headlines.iter().enumerate() {
        let mut first = [
            headline.panel.clone(),
            headline.series.clone(),
            headline.x.to_string(),
            format!("{:.2}", headline.factor),
        ];
        let mut moves = moves(sensitivity, place, headline);
        for Move { key, .. } in &moves {
            still.remove(key);
        }
        if moves.is_empty() {
            moves.push(Move { key: "none", sides: Default::default() });
        }
        for Move { key, sides: [less, more] } in moves {
            let [panel, series, at, factor] = std::mem::take(&mut first);
            table.add_row([panel, series, at, factor, key.to_owned(), less, more]);
        }
    }
    for column in [2, 3, 5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let still = still.into_iter().collect::<Vec<_>>().join(", ");
    let still = format!(
        "No factor moves by more than {} % with: {}",
        LITTLE * 100.0,
        if still.is_empty() { "none of them" } else { &still }
    );
    format!(
        "{}: {}\nThe best improvement factor of each curve, at which {}, and its values when a guess moves:\n{}\n\
         {}\n",
        spec.name(),
        spec.title(),
        spec.x_label(),
        plain(table),
        textwrap::fill(&still, usize::from(width()))
    )
}

const HEAD: &str = "| figure | curve | factor | at | a fifth less / a fifth more of a guess gives |\n|---|---|---|---|---|\n";

/// The rows of a figure, one per curve.
fn markdown(spec: &FigureSpec, sensitivity: &Sensitivity) -> String {
    let row = |(place, headline): (usize, &Headline)| {
        let Headline { panel, series, factor, x } = headline;
        let curve = if panel.is_empty() { series.clone() } else { format!("{panel}, {series}") };
        let moves = moves(sensitivity, place, headline);
        let moves = moves.iter().map(|Move { key, sides: [less, more] }| format!("`{key}` {less} / {more}"));
        let mut moves = moves.collect::<Vec<_>>().join("; ");
        if moves.is_empty() {
            moves = format!("nothing by {} %", LITTLE * 100.0);
        }
        format!("| `{}` | {curve} | {factor:.2} | {x} | {moves} |\n", spec.name())
    };
    sensitivity.headlines.iter().enumerate().map(row).collect()
}
