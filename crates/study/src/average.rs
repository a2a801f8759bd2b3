//! Rows averaged into curves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::figure::{Curve, Figure, Panel, Point, Scale};
use crate::{FigureSpec, Row};

/// The latencies of the complete runs at one x of a curve, by the seed of the topology.
type Latencies = BTreeMap<Option<u64>, Vec<u64>>;

impl FigureSpec {
    /// The figure that rows of it make.
    ///
    /// A point is the mean over all its runs that are complete; its spread goes from the lowest to the highest mean of
    /// a topology. Runs that are not complete are counted in the caption.
    pub fn figure(&self, rows: &[Row]) -> Figure {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.spec.figure.name == self.name).collect();
        let panel = |index: usize| Panel {
            title: self.panels[index].label.clone(),
            curves: (0..self.series.len()).map(|series| self.curve(&rows, index, series)).collect(),
        };
        Figure {
            study: self.study.clone(),
            name: self.name.clone(),
            title: self.title.clone(),
            x_label: self.x.label.clone(),
            y_label: y_label(&rows),
            x_scale: self.x.scale,
            y_scale: Scale::Linear,
            shared_y: self.shared_y,
            panels: (0..self.panels.len()).map(panel).collect(),
            caption: format!("{} {}", self.question.trim(), averaging(&rows)),
            command: self.command(rows.iter().any(|row| row.spec.quick)),
        }
    }

    fn curve(&self, rows: &[&Row], panel: usize, series: usize) -> Curve {
        let mut points: Vec<(f64, Latencies)> = Vec::new();
        for row in rows {
            let point = row.spec.point;
            if (point.panel_index, point.series_index) != (panel, series) {
                continue;
            }
            // The rows of one x follow one another.
            if points.last().is_none_or(|(x, _)| x.total_cmp(&point.x).is_ne()) {
                points.push((point.x, Latencies::new()));
            }
            if let (Some((_, latencies)), Some(latency)) = (points.last_mut(), row.latency) {
                latencies.entry(row.spec.topology_seed()).or_default().push(latency.0);
            }
        }
        Curve {
            name: self.series[series].name.clone(),
            description: self.series[series].describe(),
            points: points.iter().filter_map(|(x, latencies)| averaged(*x, latencies)).collect(),
        }
    }
}

/// The point of some runs; `None` where there are none.
fn averaged(x: f64, latencies: &Latencies) -> Option<Point> {
    let means: Vec<f64> = latencies.values().map(|latencies| mean(latencies.iter())).collect();
    let low = means.iter().copied().reduce(f64::min)?;
    let high = means.iter().copied().reduce(f64::max)?;
    let runs = latencies.values().map(Vec::len).sum();
    Some(Point { x, mean: mean(latencies.values().flatten()), low, high, runs })
}

fn mean<'a>(latencies: impl Iterator<Item = &'a u64> + Clone) -> f64 {
    let (sum, count) =
        latencies.fold((0_u128, 0_u64), |(sum, count), &latency| (sum + u128::from(latency), count + 1));
    sum as f64 / count as f64
}

/// Latency in cycles, and how long a cycle is where all runs agree.
fn y_label(rows: &[&Row]) -> String {
    let cycles: BTreeSet<u64> = rows.iter().map(|row| row.spec.setup().parameters.cycle.0).collect();
    match cycles.first() {
        Some(&picoseconds) if cycles.len() == 1 => {
            format!("latency (cycles of {} ns)", picoseconds as f64 / 1000.0)
        }
        _ => "latency (cycles)".into(),
    }
}

/// What was averaged, in a sentence or two.
fn averaging(rows: &[&Row]) -> String {
    let topologies: BTreeSet<Option<u64>> = rows.iter().map(|row| row.spec.topology_seed()).collect();
    let groups = rows.iter().map(|row| row.spec.group_index()).max().map_or(0, |last| last + 1);
    let incomplete = rows.iter().filter(|row| row.latency.is_none()).count();
    let mut text = if topologies.iter().any(Option::is_some) {
        format!(
            "A point is the mean over {} topologies with {groups} random groups on each; the band goes from the lowest \
             to the highest mean of a topology.",
            topologies.len()
        )
    } else {
        format!("A point is the mean over {groups} random groups.")
    };
    if incomplete > 0 {
        let _ =
            write!(text, " Not complete, and left out of the means: {incomplete} of {} runs.", rows.len());
    }
    text
}
