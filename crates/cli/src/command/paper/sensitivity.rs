//! `treecast paper sensitivity`: how far results rest on guesses.

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

fn text(spec: &FigureSpec, sensitivity: &Sensitivity) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.style_mut().row_separator = comfy_table::LineStyle::none();
    table.set_width(width());
    let percent = SHARE * 100.0;
    let sides = ["-", "+"].map(|sign| format!("{sign}{percent} %"));
    table.set_header(["panel", "series", "at x", "factor", "guess", &sides[0], &sides[1]]);
    for (index, headline) in sensitivity.headlines.iter().enumerate() {
        for (row, (key, sides)) in sensitivity.moved.iter().enumerate() {
            let side = |side: usize| sides[side][index].map_or("-".into(), |factor| format!("{factor:.2}"));
            let [panel, series, at, factor] = match row {
                0 => [
                    headline.panel.clone(),
                    headline.series.clone(),
                    headline.x.to_string(),
                    format!("{:.2}", headline.factor),
                ],
                _ => Default::default(),
            };
            table.add_row([panel, series, at, factor, key.clone(), side(0), side(1)]);
        }
    }
    for column in [2, 3, 5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!(
        "{}: {}\nThe best improvement factor of each curve, at which {}, and what it becomes when a guess moves:\n{}\n",
        spec.name(),
        spec.title(),
        spec.x_label(),
        plain(table)
    )
}
