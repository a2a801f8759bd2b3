//! What the descriptions of the four published studies say, part by part, and whether the models
//! meet it: one file for each study.
//!
//! Each test names the part of the study, and quotes in our words what that part says. The results
//! of the studies are not at hand, apart from the values marked as calibration; so what is tested
//! are mechanisms, calibrated values and what follows from them. The tables "What the study says"
//! on the studies' pages list the same statements, and those that the models do not meet.

mod icpp98;
mod sci;
mod smpib;
mod tr33;

use treecast_study::{Row, RunSpec, Study, builtin, run_all};

fn study(name: &str) -> Study {
    builtin::study(name).unwrap().unwrap()
}

/// Groups that are drawn for a point at most: enough for means that the tests compare.
const GROUPS: u32 = 5;

/// The runs of one figure that are at a panel, a series and a value of x; a figure without panels
/// has one without a label.
fn rows<'a>(study: &'a Study, [figure, panel, series]: [&str; 3], x: f64) -> Vec<Row<'a>> {
    let is_wanted = |run: &RunSpec| {
        let is_of_curve = run.panel().label == panel && run.series().name == series;
        is_of_curve && (run.x() - x).abs() < 1e-9 && run.group_index() < GROUPS
    };
    let runs: Vec<RunSpec> =
        study.figure(figure).unwrap().runs(false).into_iter().filter(is_wanted).collect();
    assert!(!runs.is_empty(), "{figure}, {panel}, {series}, {x}");
    run_all(&runs, &|_| ()).unwrap()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0_u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    sum / f64::from(count)
}

/// The mean latency of the runs of [`rows`], all of which are complete.
fn latency(study: &Study, curve: [&str; 3], x: f64) -> f64 {
    mean(rows(study, curve, x).iter().map(|row| row.measured.latency().expect("a run that is complete")))
}

/// The mean of a measure of the runs of [`rows`] on a testbed.
fn measured(study: &Study, curve: [&str; 3], x: f64, name: &str) -> f64 {
    mean(rows(study, curve, x).iter().map(|row| row.measured.modelled().unwrap().measured[name]))
}
