//! A figure as numbers for the terminal.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::chart::map;
use crate::figure::{Best, Curve, Figure, Panel, Point};
use crate::number::exact;
use crate::run::Row;

/// The text of a cell without a point.
const MISSING: &str = "-";

/// The rows that a table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// Every x.
    All,
    /// At most this number, spread evenly over all x, with the first and the last.
    AtMost(usize),
}

/// The table of every panel of `figure`, in at most `width` columns of text if the names allow it.
///
/// A row is an x, a column a curve. A cell is the mean over the runs and, after `±`, the distance
/// to the farther end of the spread. The best mean of each row is marked. Curves that do not fit
/// side by side follow in a further table. Numbers are plain digits, ready to be pasted elsewhere.
///
/// For a map of winners, a row of the table is a row of the map, a column is an x, and a cell has
/// the name of the winner and how far behind the next curve is.
pub fn table(figure: &Figure, width: u16, rows: Rows) -> String {
    let figure = figure.tidy();
    if figure.row_label.is_some() {
        return map::table(&figure);
    }
    let mut text = String::new();
    for panel in &figure.panels {
        if !panel.title.is_empty() {
            let _ = writeln!(text, "{}", panel.title);
        }
        let xs = thinned(panel.xs(), rows);
        if xs.is_empty() {
            text.push_str("no points\n\n");
            continue;
        }
        let cells = Cells { panel, xs: &xs, decimals: decimals(panel), best: figure.best };
        cells.write(&mut text, &figure.x_label, &panel.curves, width);
        text.push('\n');
    }
    text + &legend(&figure)
}

/// The number of deadlocked runs that are described.
const DEADLOCKS_SHOWN: usize = 3;

/// The wait-for cycles of the first runs of a model that ended deadlocked, one paragraph per run;
/// empty if there are none.
pub fn deadlocks(rows: &[Row]) -> String {
    let cycle = |row: &Row| row.measured.modelled().map(|modelled| modelled.deadlock.join(";\n  "));
    let deadlocked =
        rows.iter().filter_map(|row| Some((row.spec, cycle(row).filter(|cycle| !cycle.is_empty())?)));
    let deadlocked: Vec<_> = deadlocked.collect();
    let mut text = String::new();
    for (run, cycle) in deadlocked.iter().take(DEADLOCKS_SHOWN) {
        let panel = Some(&run.panel().label).filter(|label| !label.is_empty());
        let place = panel.into_iter().chain([&run.series().name]).cloned().collect::<Vec<_>>().join(", ");
        let _ = write!(text, "\nDeadlocked: {place}, {} {}:\n  {cycle}\n", run.figure().x_label(), run.x());
    }
    if deadlocked.len() > DEADLOCKS_SHOWN {
        let _ = writeln!(text, "\nand {} more: see the column deadlock", deadlocked.len() - DEADLOCKS_SHOWN);
    }
    text
}

/// The numbers of one panel.
struct Cells<'a> {
    panel: &'a Panel,
    xs: &'a [f64],
    decimals: usize,
    best: Best,
}

impl Cells<'_> {
    /// Writes the table of `curves`, or of one half of them after the other where they are too
    /// wide.
    fn write(&self, text: &mut String, x_label: &str, curves: &[Curve], width: u16) {
        let mut table = self.table(x_label, curves);
        let fits = table.lines().all(|line| line.chars().count() <= usize::from(width));
        if fits || curves.len() < 2 {
            // Words are broken only where a single curve is too wide.
            table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic);
            let _ = writeln!(text, "{}", table.trim_fmt());
            return;
        }
        let (left, right) = curves.split_at(curves.len().div_ceil(2));
        self.write(text, x_label, left, width);
        text.push('\n');
        self.write(text, x_label, right, width);
    }

    fn table(&self, x_label: &str, curves: &[Curve]) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Disabled);
        table.style_mut().row_separator = comfy_table::LineStyle::none();
        table.set_header(
            std::iter::once(x_label)
                .chain(curves.iter().map(|curve| curve.name.as_str()))
                .collect::<Vec<_>>(),
        );
        for x in self.xs {
            let cells = curves.iter().map(|curve| self.cell(curve, *x));
            table.add_row(std::iter::once(exact(*x)).chain(cells).collect::<Vec<_>>());
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    fn cell(&self, curve: &Curve, x: f64) -> String {
        let Some(point) = curve.at(x) else {
            let missing = curve.missing.iter().find(|missing| missing.x.total_cmp(&x).is_eq());
            return format!("{}  ", missing.map_or(MISSING, |missing| &missing.why));
        };
        let mark = if Some(point.mean) == self.best(x) { '*' } else { ' ' };
        let spread = spread(point);
        let mean = number(point.mean, self.decimals);
        if spread == 0.0 {
            return format!("{mean} {mark}");
        }
        format!("{mean} ±{} {mark}", number(spread, self.decimals))
    }

    /// The best mean at `x`, unless the row only compares runs with measurements of others.
    fn best(&self, x: f64) -> Option<f64> {
        if has_others_only(self.panel) {
            return None;
        }
        let means = self.panel.curves.iter().filter_map(|curve| curve.at(x)).map(|point| point.mean);
        means.min_by(|&a, &b| self.best.compare(a, b))
    }
}

/// The line that explains the cells.
fn legend(figure: &Figure) -> String {
    let spread = figure.points().any(|point| spread(point) > 0.0);
    let spread = if spread { " ±farther end of the spread over topologies" } else { "" };
    let y_label = if figure.y_label.is_empty() { "value" } else { &figure.y_label };
    let has_marks = !figure.panels.iter().all(has_others_only);
    let best = if has_marks { format!("; *: {} of the row", figure.best.name()) } else { String::new() };
    format!("{y_label}: mean{spread}{best}\n")
}

/// Whether a panel compares one curve of runs with curves that others measured: none of them is
/// better.
fn has_others_only(panel: &Panel) -> bool {
    let measured = panel.curves.iter().filter(|curve| curve.is_measured_by_others()).count();
    measured > 0 && panel.curves.len() == measured + 1
}

/// The distance from the mean to the farther end of the spread.
fn spread(point: &Point) -> f64 {
    (point.mean - point.low).abs().max((point.high - point.mean).abs())
}

fn thinned(xs: Vec<f64>, rows: Rows) -> Vec<f64> {
    match rows {
        Rows::AtMost(most) if most < xs.len() => {
            let most = most.max(2);
            (0..most).map(|row| xs[row * (xs.len() - 1) / (most - 1)]).collect()
        }
        _ => xs,
    }
}

/// The digits after the point that give the greatest mean of a panel four digits or more.
fn decimals(panel: &Panel) -> usize {
    let greatest = panel.points().map(|point| point.mean.abs()).fold(0.0, f64::max);
    let whole = panel
        .points()
        .all(|point| point.mean.fract() == 0.0 && point.low.fract() == 0.0 && point.high.fract() == 0.0);
    if greatest == 0.0 || whole {
        return 0;
    }
    (3.0 - greatest.log10().floor()).clamp(0.0, 9.0) as usize
}

fn number(value: f64, decimals: usize) -> String {
    if value != 0.0 && !(1e-9..1e12).contains(&value.abs()) {
        return format!("{value:.3e}");
    }
    format!("{value:.decimals$}")
}
