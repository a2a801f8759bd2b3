//! Maps of winners: cells over x and rows, each of the curve with the best mean there.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use super::ink::{Ink, inked};
use super::look::Look;
use crate::figure::{Best, Figure, Panel};
use crate::number::exact;

/// The text of a cell without a point.
const NO_WINNER: &str = "-";

/// The text of a cell in a picture where several curves tie, as there is no room for their names.
const TIE: &str = "tie";

/// A curve ties with the best one if it is behind by less than this share of its mean.
pub(super) const TIE_SHARE: f64 = 0.001;

/// One x of one row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell<'a> {
    pub row: f64,
    /// The curve with the best mean and those that tie with it; none where there is no point.
    pub winners: Vec<&'a str>,
    /// How far behind the next curve is, as a share of the best mean; `None` without a next one.
    pub margin: Option<f64>,
}

impl<'a> Cell<'a> {
    /// The only winner.
    pub fn winner(&self) -> Option<&'a str> {
        match self.winners[..] {
            [winner] => Some(winner),
            _ => None,
        }
    }

    /// The winner's name, or a mark for a tie or no point.
    pub fn name(&self) -> &'a str {
        if self.winners.is_empty() { NO_WINNER } else { self.winner().unwrap_or(TIE) }
    }

    /// How far behind the next curve is: `+12 %`, or from twice the mean on `x2.4`, so that large
    /// distances take no more room. Empty without a next curve.
    pub fn margin_text(&self) -> String {
        match self.margin.map(|margin| (margin, (margin * 100.0).round())) {
            None => String::new(),
            Some((_, percent)) if percent < 1.0 => "<1 %".to_owned(),
            Some((_, percent)) if percent < 100.0 => format!("+{percent} %"),
            Some((margin, percent)) if percent < 900.0 => format!("x{:.1}", 1.0 + margin),
            Some((margin, _)) => format!("x{:.0}", 1.0 + margin),
        }
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
    let first = means.first().map_or(0.0, |(_, mean)| *mean);
    // The margin is a factor, whichever end is the better one.
    let behind = |mean: f64| match best {
        Best::Lowest => mean / first - 1.0,
        Best::Highest => first / mean - 1.0,
    };
    let ties = |mean: f64| best.compare(mean, first).is_eq() || behind(mean) < TIE_SHARE;
    let count = means.iter().take_while(|(_, mean)| ties(*mean)).count();
    let winners = means[..count].iter().map(|(name, _)| *name).collect();
    let margin = means.get(count).map(|(_, mean)| behind(*mean)).filter(|margin| margin.is_finite());
    Cell { row, winners, margin }
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

/// The winners by name, with how far behind the next curve is.
pub(crate) fn table(figure: &Figure) -> String {
    let cell = |cell: &Cell| {
        let winners = if cell.winners.is_empty() { NO_WINNER.to_owned() } else { cell.winners.join(" = ") };
        format!("{winners} {}", cell.margin_text()).trim_end().to_owned()
    };
    let legend = format!(
        "{}: the curve with the {} mean, and how far behind the next is; {NO_WINNER}: none has a point\n",
        figure.y_label,
        figure.best.name()
    );
    grids(figure, cell) + &legend
}

/// The winners by their marks, three to a cell; a tie in words.
pub(super) fn terminal(figure: &Figure, names: &[&str], ink: Ink) -> String {
    grids(figure, |cell| {
        let look = cell.winner().map(|winner| Look::named(names, winner));
        look.map_or_else(
            || cell.name().to_owned(),
            |look| inked(&look.symbol.to_string().repeat(3), look.ansi, ink),
        )
    })
}
