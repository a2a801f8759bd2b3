//! `treecast paper sensitivity`: how far results rest on guesses.

use std::collections::BTreeSet;

use clap::Args;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use treecast_study::{FigureSpec, SHARE, Sensitivity};

use super::{chosen, load};
use crate::output::{emit, plain, progress_bar, width};

#[derive(Debug, Args)]
pub struct SensitivityArguments {
    /// A study's name, or a folder
    study: String,

    /// Its figures that show factors; all of those if none is named
    figures: Vec<String>,
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
            &format!("No figure of {name} shows factors and rests on guessed parameters of a testbed.\n"),
        )?;
        return Ok(0);
    }
    let sweeps: usize = specs.iter().map(|spec| 1 + 2 * spec.guessed().len()).sum();
    let bar = progress_bar(Some(sweeps as u64), "{msg} {wide_bar} {eta} to go");
    for spec in specs {
        bar.set_message(spec.name().to_owned());
        let sensitivity = spec.sensitivity(&|| bar.inc(1))?;
        bar.suspend(|| emit(None, &text(spec, &sensitivity)))?;
    }
    bar.finish_and_clear();
    Ok(0)
}

/// A factor that moves by no more of itself is not shown.
const LITTLE: f64 = 0.005;

fn text(spec: &FigureSpec, sensitivity: &Sensitivity) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.style_mut().row_separator = comfy_table::LineStyle::none();
    table.set_width(width());
    let percent = SHARE * 100.0;
    let sides = ["-", "+"].map(|sign| format!("{sign}{percent} %"));
    table.set_header(["panel", "series", "at x", "factor", "guess", &sides[0], &sides[1]]);
    let mut still: BTreeSet<&str> = sensitivity.moved.iter().map(|(key, _)| key.as_str()).collect();
    for (index, headline) in sensitivity.headlines.iter().enumerate() {
        // By how much of itself the factor moves at most; a factor that is no more has moved as far as can be.
        let share =
            |factor: Option<f64>| factor.map_or(f64::MAX, |factor| (factor / headline.factor - 1.0).abs());
        let effect = |sides: &[Vec<Option<f64>>; 2]| f64::max(share(sides[0][index]), share(sides[1][index]));
        let mut moved: Vec<_> =
            sensitivity.moved.iter().filter(|(_, sides)| effect(sides) > LITTLE).collect();
        moved.sort_by(|(_, a), (_, b)| effect(b).total_cmp(&effect(a)));
        let mut first = [
            headline.panel.clone(),
            headline.series.clone(),
            headline.x.to_string(),
            format!("{:.2}", headline.factor),
        ];
        for (key, sides) in &moved {
            still.remove(key.as_str());
            let side = |side: usize| sides[side][index].map_or("-".into(), |factor| format!("{factor:.2}"));
            let [panel, series, at, factor] = std::mem::take(&mut first);
            table.add_row([panel, series, at, factor, key.clone(), side(0), side(1)]);
        }
        if moved.is_empty() {
            let [panel, series, at, factor] = first;
            table.add_row([panel, series, at, factor, "none".into(), String::new(), String::new()]);
        }
    }
    for column in [2, 3, 5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let still = still.into_iter().collect::<Vec<_>>().join(", ");
    format!(
        "{}: {}\nThe best improvement factor of each curve, at which {}, and what it becomes when a guess moves:\n{}\n\
         No factor moves by more than {} % with: {}\n\n",
        spec.name(),
        spec.title(),
        spec.x_label(),
        plain(table),
        LITTLE * 100.0,
        if still.is_empty() { "none of them" } else { &still }
    )
}
