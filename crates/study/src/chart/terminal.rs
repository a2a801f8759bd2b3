//! Line charts as text.

use std::fmt::Write as _;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Alignment, Rect};
use ratatui_core::style::{Color, Style};
use ratatui_core::symbols::Marker;
use ratatui_core::text::{Line, Span, Text};
use ratatui_core::widgets::Widget;
use ratatui_widgets::chart::{Axis as ChartAxis, Chart, Dataset, GraphType};
use ratatui_widgets::paragraph::{Paragraph, Wrap};

use super::axis::Axis;
use super::ink::{Ink, escape};
use super::look::{Look, marked, place};
use super::map;
use crate::figure::{Curve, Figure, Panel};

/// Two panels stand side by side if each gets this many columns.
const PANEL_WIDTH_MIN: u16 = 44;
/// Columns between two panels.
const GAP: u16 = 3;
/// The minimum and the maximum size of a chart, in columns and rows: beyond the maximum, nothing is
/// gained.
const WIDTHS: (u16, u16) = (30, 300);
const HEIGHTS: (u16, u16) = (8, 100);
/// Rows for the title and the legend above the panels; what exceeds them is cut off.
const HEAD_HEIGHT_MAX: u16 = 24;

/// A chart of every panel of `figure`, `width` columns wide, each panel `height` rows high with its
/// title.
///
/// Two panels stand side by side where the width allows it. The width is limited to 30 to 300, and
/// the height to 8 to 100.
pub fn terminal(figure: &Figure, width: u16, height: u16, ink: Ink) -> String {
    let figure = figure.tidy();
    let (width, height) = (width.clamp(WIDTHS.0, WIDTHS.1), height.clamp(HEIGHTS.0, HEIGHTS.1));
    let names = figure.curve_names();
    let mut text = written(&head(&figure, &names, width), ink);
    if figure.row_label.is_some() {
        return text + "\n" + &map::terminal(&figure, &names, ink);
    }
    let columns = if figure.panels.len() > 1 && width >= 2 * PANEL_WIDTH_MIN + GAP { 2 } else { 1 };
    let panel_width = (width - GAP * (columns - 1)) / columns;
    for row in figure.panels.chunks(usize::from(columns)) {
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        for (panel, column) in row.iter().zip(0..) {
            let area = Rect::new(column * (panel_width + GAP), 0, panel_width, height);
            draw(&figure, &names, panel, area, &mut buffer);
        }
        text.push('\n');
        text += &written(&buffer, ink);
    }
    text
}

/// The title, the labels of the axes, and the legend.
fn head(figure: &Figure, names: &[&str], width: u16) -> Buffer {
    let mut legend = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let look = Look::of(i);
        // A space that does not break keeps an entry on one line.
        let entry = format!("{} {name}", look.symbol).replace(' ', "\u{a0}");
        legend.extend([Span::styled(entry, look.ansi), Span::raw("   ")]);
    }
    let axes = match &figure.row_label {
        None => format!("up: {}; across: {}", figure.y_label, figure.x_label),
        Some(rows) => format!(
            "who has the {} {}; up: {rows}; across: {}",
            figure.best.name(),
            figure.y_label,
            figure.x_label
        ),
    };
    let text = Text::from(vec![Line::raw(&figure.title), Line::raw(axes), Line::from(legend)]);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, HEAD_HEIGHT_MAX));
    Paragraph::new(text).wrap(Wrap { trim: true }).render(buffer.area, &mut buffer);
    buffer
}

/// Draws one panel with its title into `area`.
fn draw(figure: &Figure, names: &[&str], panel: &Panel, area: Rect, buffer: &mut Buffer) {
    buffer.set_stringn(area.x, area.y, &panel.title, usize::from(area.width), Style::new());
    let title_height = u16::from(!panel.title.is_empty());
    let area = Rect { y: area.y + title_height, height: area.height - title_height, ..area };
    if panel.points().next().is_none() {
        buffer.set_string(area.x, area.y, "no points", Style::new());
        return;
    }
    let x = Axis::tight(&panel.xs(), figure.x_scale, 2);
    let means: Vec<f64> = if figure.shared_y {
        figure.points().map(|point| point.mean).collect()
    } else {
        panel.points().map(|point| point.mean).collect()
    };
    let y = Axis::rounded(&means, figure.y_scale, usize::from(area.height / 4));
    let strokes: Vec<Stroke> =
        panel.curves.iter().map(|curve| Stroke::of(curve, names, &x, &y, area)).collect();
    Chart::new(datasets(&strokes))
        .legend_position(None)
        .x_axis(ChartAxis::default().bounds([x.low, x.high]).labels(x_labels(&x)))
        .y_axis(
            ChartAxis::default()
                .bounds([y.low, y.high])
                .labels(y.ticks.iter().map(|tick| y.label(*tick)))
                .labels_alignment(Alignment::Right),
        )
        .render(area, buffer);
}

/// The ends, and the middle where it is a round number; the chart can place no others.
fn x_labels(x: &Axis) -> Vec<String> {
    let middle = f64::midpoint(x.low, x.high);
    let round = middle.fract() == 0.0;
    [Some(x.low), round.then_some(middle), Some(x.high)].into_iter().flatten().map(|at| x.label(at)).collect()
}

/// A curve in positions.
struct Stroke {
    look: Look,
    line: Vec<(f64, f64)>,
    marks: Vec<(f64, f64)>,
}

impl Stroke {
    /// `curve` in a chart that takes up `area`.
    fn of(curve: &Curve, names: &[&str], x: &Axis, y: &Axis, area: Rect) -> Self {
        let index = place(names, &curve.name);
        let line: Vec<(f64, f64)> =
            curve.points.iter().map(|point| (x.position(point.x), y.position(point.mean))).collect();
        // The axis and its labels take two rows.
        let rows = f64::from(area.height - 2);
        let marks = marked(line.len(), usize::from(area.width / 5), index)
            .map(|i| (line[i].0, row_centre(line[i].1, y, rows)))
            .collect();
        Self { look: Look::of(index), line, marks }
    }

    fn dataset(&self, graph_type: GraphType, marker: Marker) -> Dataset<'_> {
        Dataset::default().graph_type(graph_type).marker(marker).style(self.look.ansi)
    }
}

/// All lines, then all marks, which must stay on top.
fn datasets(strokes: &[Stroke]) -> Vec<Dataset<'_>> {
    let lines =
        strokes.iter().map(|stroke| stroke.dataset(GraphType::Line, Marker::Braille).data(&stroke.line));
    let marks = strokes.iter().map(|stroke| {
        stroke.dataset(GraphType::Scatter, Marker::Custom(stroke.look.symbol)).data(&stroke.marks)
    });
    lines.chain(marks).collect()
}

/// The position that puts a mark into the row in which the line passes `position`: a line is drawn
/// in four dots a row, and the two roundings differ.
fn row_centre(position: f64, y: &Axis, rows: f64) -> f64 {
    let share = (y.high - position) / (y.high - y.low);
    let row = ((share * (4.0 * rows - 1.0)).round() / 4.0).floor();
    y.high - row / (rows - 1.0) * (y.high - y.low)
}

/// The text in `buffer`, without spaces at the ends of lines and without empty lines at its end.
fn written(buffer: &Buffer, ink: Ink) -> String {
    let lines: Vec<String> = buffer
        .content
        .chunks(usize::from(buffer.area.width.max(1)))
        .map(|row| written_line(row, ink))
        .collect();
    let last = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    lines[..last].iter().fold(String::new(), |mut text, line| {
        text.push_str(line);
        text.push('\n');
        text
    })
}

fn written_line(row: &[ratatui_core::buffer::Cell], ink: Ink) -> String {
    let end = row.iter().rposition(|cell| !cell.symbol().trim().is_empty()).map_or(0, |last| last + 1);
    let mut text = String::new();
    let mut colour = Color::Reset;
    for cell in &row[..end] {
        if ink == Ink::Colour && cell.fg != colour {
            colour = cell.fg;
            let _ = write!(text, "{}{}", anstyle::Reset, escape(colour));
        }
        text.push_str(&cell.symbol().replace('\u{a0}', " "));
    }
    if colour != Color::Reset {
        let _ = write!(text, "{}", anstyle::Reset);
    }
    text
}
