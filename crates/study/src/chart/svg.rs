//! Charts as SVG images.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::element::{DashedPathElement, DynElement};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use thiserror::Error;

use super::axis::{self, Axis};
use super::look::{Look, Shape, marked, place};
use super::map;
use crate::figure::{Curve, Figure, Panel};

type Pixel = (i32, i32);
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Coordinates = Cartesian2d<Ruler, Ruler>;
type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Coordinates>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Pixels.
const WIDTH: u32 = 960;
/// The height of a panel, if it is the only one and if there are more.
const ALONE: i32 = 460;
const TOGETHER: i32 = 320;
const ROWS_MAX: i32 = 100_000;
const MARGIN: i32 = 16;
const LINE_HEIGHT: i32 = 24;
/// Around a panel, and beside its y axis.
const PANEL_MARGIN: i32 = 8;
const PANEL_MARGIN_RIGHT: i32 = 28;
const Y_LABELS: i32 = 72;
const MARK_RADIUS: i32 = 4;
const TITLE_SIZE: f64 = 18.0;
const PANEL_TITLE_SIZE: f64 = 15.0;
const TEXT_SIZE: f64 = 13.0;
const SMALL_SIZE: f64 = 11.0;
/// The backend divides a font's size by this.
const SIZE_FACTOR: f64 = 1.24;
/// A letter's width by its size, on average and with some room: no font is at hand to measure it.
const LETTER_WIDTH: f64 = 0.6;
const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Why a figure could not be drawn.
#[derive(Debug, Error)]
#[error("figure {figure:?} cannot be drawn: {reason}")]
pub struct SvgError {
    figure: String,
    reason: String,
}

/// `figure` as an SVG image with all panels in a grid, the title above them and one legend below.
///
/// Lines join the means; a light band is the spread over topologies. A map shows the winner of each
/// cell, and by how much it wins. The image names a generic font only.
///
/// # Errors
///
/// If the drawing library refuses the figure; no figure is known to make it do so.
pub fn svg(figure: &Figure) -> Result<String, SvgError> {
    let figure = figure.tidy();
    let sheet = Sheet::of(&figure);
    let mut text = String::new();
    sheet
        .draw(&SVGBackend::with_string(&mut text, sheet.size()).into_drawing_area())
        .map_err(|error| SvgError { figure: figure.name.clone(), reason: error.to_string() })?;
    Ok(text)
}

/// The layout of a figure.
struct Sheet<'a> {
    figure: &'a Figure,
    names: Vec<&'a str>,
    title: Vec<String>,
    legend: Vec<Vec<usize>>,
    columns: usize,
    rows: usize,
}

impl<'a> Sheet<'a> {
    fn of(figure: &'a Figure) -> Self {
        let names = figure.curve_names();
        let words: Vec<&str> = figure.title.split_whitespace().collect();
        let title =
            flowed(words.iter().map(|word| text_width(word, TITLE_SIZE) + text_width(" ", TITLE_SIZE)));
        let title =
            title.iter().map(|line| line.iter().map(|i| words[*i]).collect::<Vec<_>>().join(" ")).collect();
        let legend = flowed(names.iter().map(|name| entry_width(name)));
        let columns = figure.columns;
        let rows = figure.panels.len().div_ceil(columns);
        Self { figure, names, title, legend, columns, rows }
    }

    fn size(&self) -> (u32, u32) {
        let height = self.title_height() + self.panels_height() + self.legend_height();
        (WIDTH, height.unsigned_abs())
    }

    fn title_height(&self) -> i32 {
        MARGIN + length(self.title.len(), LINE_HEIGHT)
    }

    fn panels_height(&self) -> i32 {
        length(self.rows, if self.figure.panels.len() > 1 { TOGETHER } else { ALONE })
    }

    /// Between the ends of an x axis.
    fn panel_width(&self) -> i32 {
        WIDTH.cast_signed() / length(self.columns, 1) - PANEL_MARGIN - PANEL_MARGIN_RIGHT - Y_LABELS
    }

    fn legend_height(&self) -> i32 {
        MARGIN + length(self.legend.len(), LINE_HEIGHT)
    }

    fn draw(&self, root: &Area) -> Drawn {
        root.fill(&WHITE)?;
        let (title, rest) = root.split_vertically(self.title_height());
        let (panels, legend) = rest.split_vertically(self.panels_height());
        for (line, text) in self.title.iter().enumerate() {
            let style = font(TITLE_SIZE).style(FontStyle::Bold).color(&INK);
            title.draw(&Text::new(text.as_str(), (MARGIN, MARGIN + length(line, LINE_HEIGHT)), style))?;
        }
        for (panel, area) in
            self.figure.panels.iter().zip(panels.split_evenly((self.rows.max(1), self.columns)))
        {
            if self.figure.row_label.is_some() {
                self.draw_map(panel, &area)?;
            } else {
                self.draw_panel(panel, root, &area)?;
            }
        }
        self.draw_legend(&legend)?;
        root.present()
    }

    /// Draws `panel` into `area`, which is a part of `root`.
    fn draw_panel(&self, panel: &Panel, root: &Area, area: &Area) -> Drawn {
        let (x_scale, y_scale) = (self.figure.x_scale, self.figure.y_scale);
        let x = Axis::side_by_side(
            &panel.xs(),
            x_scale,
            f64::from(self.panel_width()) / (TEXT_SIZE * LETTER_WIDTH),
        );
        let shown = if self.figure.shared_y { &self.figure.panels } else { std::slice::from_ref(panel) };
        let points = shown.iter().flat_map(Panel::points);
        let ys: Vec<f64> = points.flat_map(|point| [point.mean, point.low, point.high]).collect();
        let y = Axis::rounded(&ys, y_scale, 7);
        let mut chart = ChartBuilder::on(area)
            .margin(PANEL_MARGIN)
            .margin_right(PANEL_MARGIN_RIGHT)
            .caption(&panel.title, font(PANEL_TITLE_SIZE).color(&INK))
            .x_label_area_size(44)
            .y_label_area_size(Y_LABELS)
            .build_cartesian_2d(Ruler::of(&x, (x.high - x.low) / 50.0), Ruler::of(&y, 0.0))?;
        chart
            .configure_mesh()
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(font(TEXT_SIZE).color(&INK))
            .axis_desc_style(font(TEXT_SIZE).color(&INK))
            .x_desc(&self.figure.x_label)
            .y_desc(&self.figure.y_label)
            .draw()?;
        for curve in &panel.curves {
            let band = band(curve, &x, &y);
            chart.draw_series([Polygon::new(band, self.colour(curve).mix(0.13))])?;
        }
        for curve in &panel.curves {
            self.draw_curve(curve, &x, &y, root, &mut chart)?;
        }
        Ok(())
    }

    /// Draws the winners of `panel` into `area`: a cell each, the highest row on top.
    fn draw_map(&self, panel: &Panel, area: &Area) -> Drawn {
        let (xs, rows) = (panel.xs(), map::row_values(panel));
        let (width, all_height) = area.dim_in_pixel();
        let [left, top, right, bottom] = [Y_LABELS, 36, PANEL_MARGIN_RIGHT, 52];
        let cell_width = (width.cast_signed() - left - right) / length(xs.len().max(1), 1);
        let cell_height = (all_height.cast_signed() - top - bottom) / length(rows.len().max(1), 1);
        let text = |text: &str, at: Pixel, size: f64, anchor: Pos| {
            area.draw(&Text::new(text.to_owned(), at, font(size).color(&INK).pos(anchor)))
        };
        let centre = Pos::new(HPos::Center, VPos::Center);
        let middle = left + length(xs.len(), cell_width) / 2;
        text(&panel.title, (middle, 16), PANEL_TITLE_SIZE, centre)?;
        let axis_y = top + length(rows.len(), cell_height);
        text(&self.figure.x_label, (middle, axis_y + 36), TEXT_SIZE, centre)?;
        let row_label = self.figure.row_label.as_deref().unwrap_or_default();
        let upright = font(TEXT_SIZE).color(&INK).pos(centre).transform(FontTransform::Rotate270);
        area.draw(&Text::new(row_label.to_owned(), (16, i32::midpoint(top, axis_y)), upright))?;
        for (place, x) in xs.iter().enumerate() {
            let at = left + length(place, cell_width) + cell_width / 2;
            text(&axis::label(*x), (at, axis_y + 14), TEXT_SIZE, centre)?;
        }
        for (place, cells) in map::cells(panel, self.figure.best).chunks(xs.len().max(1)).enumerate() {
            let y = axis_y - length(place + 1, cell_height);
            let label = (left - 8, y + cell_height / 2);
            text(&axis::label(cells[0].row), label, TEXT_SIZE, Pos::new(HPos::Right, VPos::Center))?;
            for (place, cell) in cells.iter().enumerate() {
                let x = left + length(place, cell_width);
                let corners = [(x + 1, y + 1), (x + cell_width - 1, y + cell_height - 1)];
                let colour = cell.winner().map_or(GRID.mix(0.5), |name| self.named(name).mix(0.35));
                area.draw(&Rectangle::new(corners, colour.filled()))?;
                let at = (x + cell_width / 2, y + cell_height / 2);
                text(cell.name(), (at.0, at.1 - 7), TEXT_SIZE, centre)?;
                text(&cell.margin_text(), (at.0, at.1 + 9), SMALL_SIZE, centre)?;
            }
        }
        Ok(())
    }

    fn draw_curve(&self, curve: &Curve, x: &Axis, y: &Axis, root: &Area, chart: &mut Plane<'_, '_>) -> Drawn {
        let index = place(&self.names, &curve.name);
        let line: Vec<(f64, f64)> =
            curve.points.iter().map(|point| (x.position(point.x), y.position(point.mean))).collect();
        let room = WIDTH as usize / self.columns / 13;
        let look = Look::of(index);
        let style = self.colour(curve).stroke_width(2);
        match look.dash {
            None => chart.draw_series(LineSeries::new(line.iter().copied(), style))?,
            Some((drawn, left_out)) => {
                chart.draw_series(DashedLineSeries::new(line.iter().copied(), drawn, left_out, style))?
            }
        };
        for i in marked(line.len(), room, index) {
            root.draw(&mark(chart.backend_coord(&line[i]), look))?;
        }
        Ok(())
    }

    fn draw_legend(&self, area: &Area) -> Drawn {
        for (row, entries) in self.legend.iter().enumerate() {
            let y = MARGIN / 2 + LINE_HEIGHT / 2 + length(row, LINE_HEIGHT);
            let mut x = MARGIN;
            for index in entries {
                let (look, name) = (Look::of(*index), self.names[*index]);
                let (ends, style) = ([(x, y), (x + 28, y)], colour(look).stroke_width(2));
                match look.dash {
                    None => area.draw(&PathElement::new(ends, style))?,
                    Some((drawn, left_out)) => {
                        area.draw(&DashedPathElement::new(ends, drawn, left_out, style))?;
                    }
                }
                area.draw(&mark((x + 14, y), look))?;
                let style = font(TEXT_SIZE).color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
                area.draw(&Text::new(name, (x + 36, y), style))?;
                x += entry_width(name) as i32;
            }
        }
        Ok(())
    }

    fn colour(&self, curve: &Curve) -> RGBColor {
        self.named(&curve.name)
    }

    fn named(&self, name: &str) -> RGBColor {
        colour(Look::named(&self.names, name))
    }
}

/// An [`Axis`] as the drawing library takes it.
struct Ruler {
    axis: Axis,
    range: RangedCoordf64,
}

impl Ruler {
    /// With some `room` beyond each end.
    fn of(axis: &Axis, room: f64) -> Self {
        Self { axis: axis.clone(), range: (axis.low - room..axis.high + room).into() }
    }
}

impl Ranged for Ruler {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.range.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.axis.ticks.clone() }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.range()
    }
}

impl ValueFormatter<f64> for Ruler {
    fn format_ext(&self, position: &f64) -> String {
        self.axis.label(*position)
    }
}

/// The outline of a curve's spread: along the high ends, and back along the low ends.
fn band(curve: &Curve, x: &Axis, y: &Axis) -> Vec<(f64, f64)> {
    let high = curve.points.iter().map(|point| (x.position(point.x), y.position(point.high)));
    let low = curve.points.iter().rev().map(|point| (x.position(point.x), y.position(point.low)));
    high.chain(low).collect()
}

/// A curve's mark around the pixel `(x, y)`.
fn mark<'a>((x, y): Pixel, look: Look) -> DynElement<'static, SVGBackend<'a>, Pixel> {
    let r = MARK_RADIUS;
    let style = colour(look).filled();
    match look.shape {
        Shape::Circle => Circle::new((x, y), r, style).into_dyn(),
        Shape::Square => Rectangle::new([(x - r, y - r), (x + r, y + r)], style).into_dyn(),
        Shape::Triangle => TriangleMarker::new((x, y), r + 1, style).into_dyn(),
        Shape::Diamond => {
            let r = r + 1;
            Polygon::new([(x - r, y), (x, y - r), (x + r, y), (x, y + r)], style).into_dyn()
        }
        Shape::Cross => {
            let (l, s) = (r + 1, 2);
            let corners = [(-l, s), (-s, s), (-s, l), (s, l), (s, s), (l, s)];
            let back = corners.map(|(dx, dy)| (-dx, -dy));
            Polygon::new(
                [corners, back].concat().iter().map(|(dx, dy)| (x + dx, y + dy)).collect::<Vec<_>>(),
                style,
            )
            .into_dyn()
        }
    }
}

/// The length of `count` rows or columns of `each` pixels; beyond `ROWS_MAX` rows an image does not
/// grow.
fn length(count: usize, each: i32) -> i32 {
    i32::try_from(count).unwrap_or(ROWS_MAX).min(ROWS_MAX) * each
}

fn colour(look: Look) -> RGBColor {
    let (r, g, b) = look.rgb;
    RGBColor(r, g, b)
}

fn font(size: f64) -> FontDesc<'static> {
    FontDesc::new(FontFamily::SansSerif, size * SIZE_FACTOR, FontStyle::Normal)
}

/// The width of `text` in pixels, roughly.
fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * LETTER_WIDTH
}

/// The width of a legend entry: a piece of line, the name, and a gap.
fn entry_width(name: &str) -> f64 {
    36.0 + text_width(name, TEXT_SIZE) + 24.0
}

/// Items of the given widths, by index, line after line as they fit into the sheet.
fn flowed(widths: impl Iterator<Item = f64>) -> Vec<Vec<usize>> {
    let most = f64::from(WIDTH) - 2.0 * f64::from(MARGIN);
    let mut lines: Vec<Vec<usize>> = Vec::new();
    let mut used = f64::INFINITY;
    for (i, width) in widths.enumerate() {
        if used + width > most {
            lines.push(Vec::new());
            used = 0.0;
        }
        used += width;
        if let Some(line) = lines.last_mut() {
            line.push(i);
        }
    }
    lines
}
