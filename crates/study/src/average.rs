//! Rows averaged into curves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use treecast_sim::Status;

use crate::figure::{Best, Curve, Figure, Missing, Panel, Point};
use crate::measure::{Measure, Unit};
use crate::run::{Kind, Row};
use crate::spec::{FigureSpec, MeasuredSpec};

/// Under load, one run in this number may be left out of a point: the test for saturation has false
/// positives.
const LEFT_OUT_PARTS: usize = 10;

impl FigureSpec {
    /// The figure of a set of rows.
    ///
    /// A point is the mean over all its runs that are complete; its spread goes from the lowest to
    /// the highest mean of a topology. Runs that are not complete are counted in the caption. Under
    /// load a latency is shown only where at least nine runs in ten are complete and none
    /// deadlocked; a curve over the load ends at the first load where this fails.
    pub fn figure(&self, rows: &[Row]) -> Figure {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.spec.figure.name == self.name).collect();
        let mut curves = self.curves(&rows);
        for (panel, curves) in curves.iter_mut().enumerate() {
            curves.extend(self.measured_curves(panel));
        }
        if let Some(base) = self.relative_to {
            for panel in &mut curves {
                relate(panel, &self.series[base].name);
            }
        }
        let panel =
            |(index, curves): (usize, Vec<Curve>)| Panel { title: self.panels[index].label.clone(), curves };
        Figure {
            study: self.study.clone(),
            name: self.name.clone(),
            title: self.title.clone(),
            x_label: self.x.label.clone(),
            y_label: self.y_label(&rows),
            row_label: self.y.as_ref().map(|y| y.label.clone()),
            best: self.best.unwrap_or(match self.measure {
                _ if self.relative_to.is_some() => Best::Highest,
                Measure::Latency | Measure::Winner | Measure::Of(_) => Best::Lowest,
                Measure::AcceptedLoad | Measure::Saturation => Best::Highest,
            }),
            x_scale: self.x.scale,
            y_scale: self.y_scale,
            shared_y: self.shared_y,
            columns: self.columns,
            panels: curves.into_iter().enumerate().map(panel).collect(),
            caption: format!("{} {}", self.question.trim(), averaging(&rows, self.measure)),
            command: self.command(rows.iter().any(|row| row.spec.quick)),
        }
    }

    /// The curves of each panel.
    fn curves(&self, rows: &[&Row]) -> Vec<Vec<Curve>> {
        let mut panels: Vec<Vec<Curve>> = vec![Vec::new(); self.panels.len()];
        // The rows of one curve are adjacent, and so are the rows of one x.
        let place = |row: &Row| (row.spec.point.panel_index, row.spec.point.series_index, row.spec.y());
        for of_curve in rows.chunk_by(|a, b| place(a) == place(b)) {
            let (panel, series, y) = place(of_curve[0]);
            let series = &self.series[series];
            let mut curve = Curve {
                name: series.name.clone(),
                description: series.describe(),
                row: y,
                points: Vec::new(),
                missing: Vec::new(),
            };
            for of_x in of_curve.chunk_by(|a, b| a.spec.x().total_cmp(&b.spec.x()).is_eq()) {
                self.add(&mut curve, of_x);
            }
            panels[panel].push(curve);
        }
        panels
    }

    /// The curves that others measured for a panel.
    fn measured_curves(&self, panel_index: usize) -> impl Iterator<Item = Curve> {
        let of_panel = &self.panels[panel_index].measured;
        let point = |&[x, y]: &[f64; 2]| Point { x, mean: y, low: y, high: y, runs: 0 };
        self.measured.iter().filter_map(move |MeasuredSpec { name, description }| {
            Some(Curve {
                name: name.clone(),
                description: description.clone(),
                row: None,
                points: of_panel.get(name)?.iter().map(point).collect(),
                missing: Vec::new(),
            })
        })
    }

    /// Adds the point of the runs at one x, or the reason why there is none.
    fn add(&self, curve: &mut Curve, rows: &[&Row]) {
        let x = rows[0].spec.x();
        let over_load = matches!(self.x.varies.as_str(), "load" | "ejection_load");
        let over_load = over_load && self.measure == Measure::Latency;
        // A run that was too short to measure a multicast does not end the curve.
        let end = curve.missing.iter().find(|missing| over_load && missing.why != Status::Incomplete.name());
        let missing = self.missing(rows).map(String::from).or(end.map(|missing| missing.why.clone()));
        match missing {
            Some(why) => curve.missing.push(Missing { x, why }),
            None => curve.points.extend(self.point(x, rows)),
        }
    }

    /// The reason why runs give no point, if they give none.
    fn missing(&self, rows: &[&Row]) -> Option<&'static str> {
        let count = |status| rows.iter().filter(|row| row.measured.status == status).count();
        let is_load = rows.iter().any(|row| is_under_load(row.spec.kind()));
        let is_latency = matches!(self.measure, Measure::Latency | Measure::Winner);
        let enough = if is_load && is_latency {
            let left_out = count(Status::Saturated) + count(Status::Incomplete);
            count(Status::Deadlocked) == 0 && left_out * LEFT_OUT_PARTS <= rows.len()
        } else {
            rows.iter().any(|row| self.value(row).is_some())
        };
        // The most severe reason comes first.
        let reasons = [Status::Deadlocked, Status::Saturated, Status::Incomplete];
        reasons.into_iter().find(|&status| !enough && count(status) > 0).map(Status::name)
    }

    /// The value of a row.
    fn value(&self, row: &Row) -> Option<f64> {
        match self.measure {
            Measure::Latency | Measure::Winner => {
                let latency = row.measured.latency()?;
                let cycle = row.spec.setup().parameters().map(|parameters| parameters.cycle);
                Some(match (self.unit, cycle) {
                    (Unit::Us, Some(cycle)) => latency * cycle.us(),
                    _ => latency,
                })
            }
            Measure::Of(measure) => row.measured.modelled()?.measured.get(measure.name).copied(),
            Measure::AcceptedLoad => row.measured.load().and_then(|load| load.accepted_load),
            Measure::Saturation => row
                .measured
                .saturation_offered_load()
                .map(|load| load * f64::from(row.spec.setup().destinations)),
        }
    }

    /// The point of some runs; `None` where none has a value.
    fn point(&self, x: f64, rows: &[&Row]) -> Option<Point> {
        let mut by_topology: BTreeMap<Option<u64>, Vec<f64>> = BTreeMap::new();
        for row in rows {
            if let Some(value) = self.value(row) {
                by_topology.entry(row.spec.topology_seed()).or_default().push(value);
            }
        }
        let means: Vec<f64> = by_topology.values().map(|values| mean(values.iter())).collect();
        let low = means.iter().copied().reduce(f64::min)?;
        let high = means.iter().copied().reduce(f64::max)?;
        let runs = by_topology.values().map(Vec::len).sum();
        Some(Point { x, mean: mean(by_topology.values().flatten()), low, high, runs })
    }

    /// The label of the y axis, for latencies with the length of a cycle if all runs agree on it.
    fn y_label(&self, rows: &[&Row]) -> String {
        if let Some(base) = self.relative_to {
            return format!("improvement factor over {}", self.series[base].name);
        }
        match self.measure {
            Measure::Of(measure) => return measure.label.into(),
            Measure::AcceptedLoad => return "accepted load (flits/host/cycle)".into(),
            Measure::Saturation => return "ejection load at saturation (flits/host/cycle)".into(),
            Measure::Latency | Measure::Winner => {}
        }
        let is_load = rows.iter().any(|row| is_under_load(row.spec.kind()));
        let latency = if is_load { "mean latency" } else { "latency" };
        if self.unit == Unit::Us || rows.iter().any(|row| row.spec.kind() == Kind::Model) {
            return format!("{latency} (us)");
        }
        let parameters = rows.iter().filter_map(|row| row.spec.setup().parameters());
        let cycles: BTreeSet<u64> = parameters.map(|parameters| parameters.cycle.0).collect();
        match cycles.first() {
            Some(&picoseconds) if cycles.len() == 1 => {
                format!("{latency} (cycles of {} ns)", picoseconds as f64 / 1000.0)
            }
            _ => format!("{latency} (cycles)"),
        }
    }
}

fn is_under_load(kind: Kind) -> bool {
    matches!(kind, Kind::Load { .. } | Kind::Saturation)
}

/// Converts a panel's curves to improvement factors over one of them, which is left out.
fn relate(curves: &mut Vec<Curve>, base: &str) {
    let Some(place) = curves.iter().position(|curve| curve.name == base) else { return };
    let base = curves.remove(place);
    for curve in curves {
        let factor = |point: &Point| {
            let base = base.at(point.x)?;
            let (low, high) = (base.low / point.high, base.high / point.low);
            Some(Point { x: point.x, mean: base.mean / point.mean, low, high, runs: point.runs })
        };
        curve.points = curve.points.iter().filter_map(factor).collect();
        curve.missing.extend(base.missing.iter().cloned());
    }
}

fn mean<'a>(values: impl Iterator<Item = &'a f64> + Clone) -> f64 {
    let count = values.clone().count();
    values.sum::<f64>() / count as f64
}

/// A description of the averaging, in a few sentences.
fn averaging(rows: &[&Row], measure: Measure) -> String {
    let of_kind = |is_kind: fn(Kind) -> bool| rows.iter().any(|row| is_kind(row.spec.kind()));
    let topologies: BTreeSet<Option<u64>> = rows.iter().map(|row| row.spec.topology_seed()).collect();
    let groups = rows.iter().map(|row| row.spec.group_index()).max().map_or(0, |last| last + 1);
    let drawn = rows.iter().map(|row| row.spec.setup().drawn()).max().unwrap_or_default();
    let of_multicasts = of_kind(|kind| !is_under_load(kind));
    let each = match (of_multicasts, of_kind(is_under_load), groups) {
        (true, true, 1) => "one random group or run under load".into(),
        (true, true, _) => format!("{groups} random groups or runs under load"),
        (false, true, 1) => "one run of random traffic".into(),
        (false, true, _) => format!("{groups} runs of random traffic"),
        (_, false, 1) => format!("one {}", drawn.run()),
        (_, false, _) => format!("{groups} {}", drawn.runs()),
    };
    let count = topologies.iter().flatten().count();
    let each = match count {
        0 => each,
        1 => format!("{each} on one topology"),
        _ => format!("{count} topologies with {each} on each"),
    };
    let what = match measure {
        Measure::Winner => "A cell compares means over",
        _ if groups == 1 && count < 2 => "A point is",
        _ => "A point is the mean over",
    };
    let mut text = format!("{what} {each}");
    text += match measure {
        Measure::Winner => ".",
        _ if count < 2 => ".",
        _ => "; the band goes from the lowest to the highest mean of a topology.",
    };
    if measure != Measure::AcceptedLoad && of_kind(|kind| matches!(kind, Kind::Load { .. })) {
        text += match measure {
            Measure::Winner => {
                " Curves that saturate in more than one run in ten are left out; in a cell without a name all do."
            }
            _ => " Where more than one run in ten saturates there is no latency.",
        };
    }
    let count = |status| rows.iter().filter(|row| row.measured.status == status).count();
    let deadlocked = count(Status::Deadlocked);
    if deadlocked > 0 {
        let _ = write!(text, " Deadlocked: {deadlocked} of {} runs.", rows.len());
    }
    let incomplete = count(Status::Incomplete);
    if incomplete > 0 {
        let _ =
            write!(text, " Not complete, and left out of the means: {incomplete} of {} runs.", rows.len());
    }
    text
}
