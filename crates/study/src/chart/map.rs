//! Maps of winners: cells over x and rows, each of the curve with the best mean there.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use super::look::Look;
use super::terminal::{Ink, inked};
use crate::figure::{Best, Figure, Panel};
use crate::table::exact;

/// What stands where no curve has a point.
const NOBODY: &str = "-";

/// One x of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cell<'a> {
    pub x: f64,
    pub row: f64,
    /// The curve with the best mean; `None` where there is no point.
    pub winner: Option<&'a str>,
    /// How far behind the next curve is, as a share of the winner's mean; `None` without a next one.
    pub margin: Option<f64>,
}

impl Cell<'_> {
    /// How far behind the next curve is, such as `+12 %`; empty without a next one.
    pub fn margin_text(&self) -> String {
        self.margin.map(|margin| format!("+{:.0} %", margin * 100.0)).unwrap_or_default()
    }
}

/// The values of the rows of a panel, from the lowest.
pub(super) fn row_values(panel: &Panel) -> Vec<f64> {
    let mut rows: Vec<f64> = panel.rows().into_iter().flatten().collect();
    rows.sort_by(f64::total_cmp);
    rows
}

/// The cells of a panel: row by row from the lowest, x by x.
pub(super) fn cells(panel: &Panel, best: Best) -> Vec<Cell<'_>> {
    let xs = panel.xs();
    let rows = row_values(panel);
    rows.iter()
        .flat_map(|&row| xs.iter().map(move |&x| (row, x)))
        .map(|(row, x)| cell(panel, best, row, x))
        .collect()
}

fn cell(panel: &Panel, best: Best, row: f64, x: f64) -> Cell<'_> {
    let of_row = panel.curves.iter().filter(|curve| curve.row == Some(row));
    let mut means: Vec<(&str, f64)> =
        of_row.filter_map(|curve| Some((curve.name.as_str(), curve.at(x)?.mean))).collect();
    means.sort_by(|a, b| best.compare(a.1, b.1));
    let margin = match means[..] {
        [(_, first), (_, next), ..] if first != 0.0 => Some((next - first).abs() / first.abs()),
        _ => None,
    };
    Cell { x, row, winner: means.first().map(|(name, _)| *name), margin }
}

/// A grid of the cells of each panel, with the highest row on top.
fn grids(figure: &Figure, text: impl Fn(&Cell) -> String) -> String {
    let row_label = figure.row_label.as_deref().unwrap_or_default();
    let mut grids = String::new();
    for panel in &figure.panels {
        if !panel.title.is_empty() {
            let _ = writeln!(grids, "{}", panel.title);
        }
        let xs = panel.xs();
        if xs.is_empty() {
            grids.push_str("no points\n\n");
            continue;
        }
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.style_mut().row_separator = comfy_table::LineStyle::none();
        let corner = format!("{row_label} \\ {}", figure.x_label);
        table.set_header(std::iter::once(corner).chain(xs.iter().map(|x| exact(*x))));
        for row in cells(panel, figure.best).chunks(xs.len()).rev() {
            table.add_row(std::iter::once(exact(row[0].row)).chain(row.iter().map(&text)));
        }
        for column in table.column_iter_mut().take(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let _ = writeln!(grids, "{}\n", table.trim_fmt());
    }
    grids
}

/// The winners by name, with how far behind the next is.
pub(crate) fn table(figure: &Figure) -> String {
    let cell = |cell: &Cell| {
        let winner = cell.winner.unwrap_or(NOBODY);
        format!("{winner} {}", cell.margin_text()).trim_end().to_owned()
    };
    let legend = format!(
        "{}: the curve with the {} mean, and how far behind the next is; {NOBODY}: none has a point\n",
        figure.y_label,
        figure.best.name()
    );
    grids(figure, cell) + &legend
}

/// The winners by their marks, three to a cell.
pub(super) fn terminal(figure: &Figure, names: &[&str], ink: Ink) -> String {
    grids(figure, |cell| {
        let look = cell.winner.map(|winner| Look::named(names, winner));
        look.map_or_else(
            || NOBODY.to_owned(),
            |look| inked(&look.symbol.to_string().repeat(3), look.ansi, ink),
        )
    })
}
