//! The value that every presentation takes: the curves of one figure, panel by panel.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// More panels side by side would be too narrow.
pub(crate) const COLUMNS_MAX: usize = 4;

/// The greatest magnitude that is drawn, so that no difference of two values overflows.
const MAGNITUDE_MAX: f64 = 1e300;

/// One figure of a study: one or more panels with the same axes.
///
/// # Example
///
/// ```
/// use treecast_study::figure::{Best, Curve, Figure, Panel, Point, Scale};
/// use treecast_study::table::{Rows, table};
///
/// let point = |x, mean| Point { x, mean, low: mean - 40.0, high: mean + 40.0, runs: 10 };
/// let curve = |name: &str, means: [f64; 2]| Curve {
///     name: name.to_owned(),
///     description: String::new(),
///     row: None,
///     missing: Vec::new(),
///     points: vec![point(1.0, means[0]), point(2.0, means[1])],
/// };
/// let figure = Figure {
///     study: "example".to_owned(),
///     name: "latency".to_owned(),
///     title: "Latency of one multicast".to_owned(),
///     x_label: "destinations".to_owned(),
///     y_label: "latency (cycles)".to_owned(),
///     row_label: None,
///     best: Best::Lowest,
///     x_scale: Scale::Linear,
///     y_scale: Scale::Linear,
///     shared_y: true,
///     columns: 2,
///     panels: vec![Panel {
///         title: String::new(),
///         curves: vec![curve("tree", [3000.0, 3100.0]), curve("path", [2900.0, 3300.0])],
///     }],
///     caption: String::new(),
///     command: String::new(),
/// };
/// assert!(table(&figure, 80, Rows::All).contains("2900 ±40 *"));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The study that the figure belongs to.
    pub study: String,
    /// The figure's name inside its study.
    pub name: String,
    /// One line above the figure.
    pub title: String,
    /// The quantity on the x axis, with its unit.
    pub x_label: String,
    /// The quantity on the y axis, with its unit.
    pub y_label: String,
    /// In a map of winners, the quantity of its rows, with its unit: the figure is shown as cells
    /// over x and rows, each in the colour of the curve with the best mean there. `None` in a chart
    /// of lines.
    #[serde(default)]
    pub row_label: Option<String>,
    /// Which of two means is better.
    #[serde(default)]
    pub best: Best,
    /// The scale of x.
    #[serde(default)]
    pub x_scale: Scale,
    /// The scale of y.
    #[serde(default)]
    pub y_scale: Scale,
    /// Whether all panels have the same y range, so that their heights can be compared.
    #[serde(default = "yes")]
    pub shared_y: bool,
    /// The number of panels side by side in images.
    #[serde(default = "two")]
    pub columns: usize,
    /// The panels in reading order.
    pub panels: Vec<Panel>,
    /// What a reader should see in the figure; a few sentences.
    pub caption: String,
    /// The command that makes the figure.
    pub command: String,
}

/// One set of axes with its curves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// The difference from the other panels, for instance `R = 0.5`.
    pub title: String,
    /// The curves; a name means the same thing in every panel.
    pub curves: Vec<Curve>,
}

/// One line of a panel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// A short name for legends and table heads.
    pub name: String,
    /// The meaning of the name; may be empty.
    pub description: String,
    /// The row of a map that it belongs to; `None` in a chart of lines.
    #[serde(default)]
    pub row: Option<f64>,
    /// The measured points; an x may be missing.
    pub points: Vec<Point>,
    /// Why there is no point at an x where runs were made.
    #[serde(default)]
    pub missing: Vec<Missing>,
}

/// Runs that make no point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Missing {
    /// The parameter that was swept.
    pub x: f64,
    /// In a word, such as `saturated`.
    pub why: String,
}

/// Which of two means is better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Best {
    /// The lower one, as for latencies.
    #[default]
    Lowest,
    /// The higher one, as for sustained loads.
    Highest,
}

impl Best {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lowest => "lowest",
            Self::Highest => "highest",
        }
    }

    /// How means are ordered, the best first.
    pub(crate) fn compare(self, a: f64, b: f64) -> Ordering {
        match self {
            Self::Lowest => a.total_cmp(&b),
            Self::Highest => b.total_cmp(&a),
        }
    }
}

/// The runs at one x, summed up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The parameter that was swept.
    pub x: f64,
    /// The mean over all runs.
    pub mean: f64,
    /// The low end of the spread over topologies.
    pub low: f64,
    /// The high end of the spread over topologies.
    pub high: f64,
    /// The number of runs; 0 if others measured it.
    pub runs: usize,
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Equal distances are equal differences.
    #[default]
    Linear,
    /// Equal distances are equal ratios, with ticks at powers of two, or of ten where values are
    /// small.
    Log2,
}

impl Figure {
    /// The names of all curves, each once, in order of first appearance: a curve's place in this
    /// list decides its look in every panel.
    pub fn curve_names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for curve in self.panels.iter().flat_map(|panel| &panel.curves) {
            if !names.contains(&curve.name.as_str()) {
                names.push(curve.name.as_str());
            }
        }
        names
    }

    /// The figure in a form that can be shown: points in order of x without those that have no
    /// place on the axes, texts without control characters, distinct panel titles, and distinct
    /// curve names in a panel.
    ///
    /// An end of a spread that has no place on the y axis moves to the mean.
    pub(crate) fn tidy(&self) -> Self {
        let mut panels: Vec<Panel> =
            self.panels.iter().map(|panel| panel.tidy(self.x_scale, self.y_scale)).collect();
        make_distinct(panels.iter_mut().map(|panel| &mut panel.title));
        Self {
            study: printable(&self.study),
            name: printable(&self.name),
            title: printable(&self.title),
            x_label: printable(&self.x_label),
            y_label: printable(&self.y_label),
            row_label: self.row_label.as_deref().map(printable),
            columns: self.columns.clamp(1, COLUMNS_MAX).min(panels.len().max(1)),
            panels,
            caption: printable(&self.caption),
            command: printable(&self.command),
            ..*self
        }
    }

    /// All points of all curves.
    pub(crate) fn points(&self) -> impl Iterator<Item = &Point> {
        self.panels.iter().flat_map(Panel::points)
    }
}

impl Panel {
    /// All points of all curves.
    pub(crate) fn points(&self) -> impl Iterator<Item = &Point> {
        self.curves.iter().flat_map(|curve| &curve.points)
    }

    /// The rows of its curves, each once, in order of first appearance; one without a value in a
    /// chart of lines.
    pub(crate) fn rows(&self) -> Vec<Option<f64>> {
        let mut rows = Vec::new();
        for curve in &self.curves {
            if !rows.contains(&curve.row) {
                rows.push(curve.row);
            }
        }
        rows
    }

    /// The values of x of all points and of all missing ones, each once, in order.
    pub(crate) fn xs(&self) -> Vec<f64> {
        let missing = self.curves.iter().flat_map(|curve| &curve.missing).map(|missing| missing.x);
        let mut xs: Vec<f64> = self.points().map(|point| point.x).chain(missing).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        xs
    }

    fn tidy(&self, x_scale: Scale, y_scale: Scale) -> Self {
        let mut curves: Vec<Curve> = self.curves.iter().map(|curve| curve.tidy(x_scale, y_scale)).collect();
        for row in self.rows() {
            let of_row = curves.iter_mut().filter(|curve| curve.row == row);
            make_distinct(of_row.map(|curve| &mut curve.name));
        }
        Self { title: printable(&self.title), curves }
    }
}

impl Curve {
    /// Whether others measured it, without runs of ours.
    pub(crate) fn is_measured_by_others(&self) -> bool {
        !self.points.is_empty() && self.points.iter().all(|point| point.runs == 0)
    }

    /// Its point at `x`.
    pub(crate) fn at(&self, x: f64) -> Option<&Point> {
        self.points.iter().find(|point| point.x.total_cmp(&x).is_eq())
    }

    fn tidy(&self, x_scale: Scale, y_scale: Scale) -> Self {
        let mut points: Vec<Point> = self
            .points
            .iter()
            .filter(|point| x_scale.holds(point.x) && y_scale.holds(point.mean))
            .map(|point| Point {
                low: if y_scale.holds(point.low) { point.low } else { point.mean },
                high: if y_scale.holds(point.high) { point.high } else { point.mean },
                ..*point
            })
            .collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let missing = self.missing.iter().filter(|missing| x_scale.holds(missing.x));
        let missing = missing.map(|missing| Missing { why: printable(&missing.why), ..*missing });
        Self {
            name: printable(&self.name),
            description: printable(&self.description),
            row: self.row.filter(|row| !row.is_nan()),
            points,
            missing: missing.collect(),
        }
    }
}

impl Scale {
    /// The position of `value` on the axis: equal differences are equal distances.
    pub(crate) fn position(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log2 => value.log2(),
        }
    }

    /// The value that lies at `position`.
    pub(crate) fn value(self, position: f64) -> f64 {
        match self {
            Self::Linear => position,
            Self::Log2 => position.exp2(),
        }
    }

    /// Whether `value` has a place on the axis.
    fn holds(self, value: f64) -> bool {
        value.abs() <= MAGNITUDE_MAX && self.position(value).is_finite()
    }
}

fn yes() -> bool {
    true
}

fn two() -> usize {
    2
}

/// `text` with a space in place of every character that a terminal would interpret or XML cannot
/// contain.
fn printable(text: &str) -> String {
    let forbidden = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|c| if forbidden(c) { ' ' } else { c }).collect()
}

/// Numbers the second and later uses of a name: `tree`, `tree (2)`.
fn make_distinct<'a>(names: impl Iterator<Item = &'a mut String>) {
    let mut seen: Vec<String> = Vec::new();
    for name in names {
        let base = name.clone();
        let mut number = 1;
        while seen.contains(name) {
            number += 1;
            *name = format!("{base} ({number})");
        }
        seen.push(name.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(x: f64, mean: f64) -> Point {
        Point { x, mean, low: mean, high: f64::NAN, runs: 1 }
    }

    fn curve(name: &str, points: Vec<Point>) -> Curve {
        Curve { name: name.to_owned(), description: String::new(), row: None, points, missing: Vec::new() }
    }

    #[test]
    fn points_without_a_place_on_the_axes_are_left_out_and_the_rest_are_in_order() {
        let points = vec![point(4.0, 1.0), point(f64::NAN, 1.0), point(2.0, f64::INFINITY), point(1.0, 3.0)];
        let tidy = curve("ni", points).tidy(Scale::Linear, Scale::Linear);
        assert_eq!(
            tidy.points.iter().map(|p| (p.x, p.mean, p.high)).collect::<Vec<_>>(),
            [(1.0, 3.0, 3.0), (4.0, 1.0, 1.0)]
        );
    }

    #[test]
    fn a_logarithmic_axis_has_no_place_for_zero() {
        let tidy = curve("ni", vec![point(0.0, 1.0), point(1.0, 0.0), point(1.0, 1.0)]);
        assert_eq!(tidy.tidy(Scale::Log2, Scale::Log2).points.len(), 1);
    }

    #[test]
    fn repeated_names_are_numbered() {
        let panel = Panel {
            title: "a\u{1b}b".to_owned(),
            curves: ["tree", "tree", "tree (2)", "path"].map(|name| curve(name, Vec::new())).into(),
        };
        let tidy = panel.tidy(Scale::Linear, Scale::Linear);
        let names: Vec<_> = tidy.curves.iter().map(|curve| curve.name.as_str()).collect();
        assert_eq!(names, ["tree", "tree (2)", "tree (2) (2)", "path"]);
        assert_eq!(tidy.title, "a b");
    }
}
