//! The studies that come with the project.

use treecast_sim::Status;
use treecast_study::figure::{Figure, Point};
use treecast_study::{FigureSpec, Kind, RunSpec, Study, run_all};

macro_rules! files {
    ($study:literal: $($name:literal),+) => {
        [$(($name, include_str!(concat!("../../../papers/", $study, "/", $name)))),+]
    };
}

fn icpp98() -> Study {
    let files = files!(
        "icpp98": "fig10.toml", "fig11.toml", "fig6.toml", "fig7.toml", "fig8.toml", "fig9.toml", "host-overhead-load.toml", "host-overhead.toml", "ours-fabrics.toml", "ours-k-best.toml", "ours-k.toml", "ours-links.toml", "ours-nic-and-switch-load.toml", "ours-nic-and-switch.toml", "ours-nic-processors.toml", "ours-order.toml", "ours-path-share.toml", "ours-replication.toml", "ours-unicast-links.toml", "ours-winners-without-tree.toml", "ours-winners.toml", "packet-length-load.toml", "packet-length.toml", "study.toml", "system-size-load.toml", "system-size.toml", "unicast.toml"
    );
    Study::parse(&files).unwrap()
}

fn quick(name: &str) -> Figure {
    let study = icpp98();
    let spec = study.figure(name).unwrap();
    spec.figure(&run_all(&spec.runs(true), &|_| ()).unwrap())
}

fn points<'a>(figure: &'a Figure, panel: usize, curve: &str) -> &'a [Point] {
    &figure.panels[panel].curves.iter().find(|found| found.name == curve).unwrap().points
}

/// Those of one multicast are complete; those under load may saturate, and the shortest may be too
/// short to measure.
#[test]
fn every_figure_runs_to_its_end() {
    let study = icpp98();
    for spec in study.figures() {
        let (single, load): (Vec<RunSpec>, Vec<RunSpec>) =
            spec.runs(true).into_iter().partition(|run| run.kind() == Kind::Multicast);
        // Those under load take longer: every fifth will do.
        let runs: Vec<RunSpec> = single.into_iter().chain(load.into_iter().step_by(5)).collect();
        let rows = run_all(&runs, &|_| ()).unwrap();
        for row in &rows {
            let (status, is_load) = (row.measured.status, row.spec.kind() != Kind::Multicast);
            assert!(status == Status::Complete || is_load && status != Status::Deadlocked, "{}", spec.name());
        }
        let with_value = rows.iter().filter(|row| row.measured.status == Status::Complete).count();
        assert!(4 * with_value > rows.len(), "{}", spec.name());
        spec.figure(&rows);
    }
}

#[test]
fn descriptions_are_at_most_100_columns_wide_and_name_every_part() {
    let study = icpp98();
    let mut texts = vec![study.contents(), study.describe()];
    texts.extend(study.figures().iter().map(FigureSpec::describe));
    for text in &texts {
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
    let fig6 = study.figure("fig6").unwrap().describe();
    for part in ["  R = 0.5  nic_overhead=2000\n", "  tree  one tree worm", "    49,600 runs: x = 1, 2 .. 31"]
    {
        assert!(fig6.contains(part), "{part}: {fig6}");
    }
}

/// Host and NIC overhead at both ends, a bus transfer of 97 cycles at both ends, and the wire: 132
/// cycles over one switch and 3 more for each further one, of which 8 switches need at most a few.
#[test]
fn one_destination_takes_the_closed_form() {
    let figure = quick("fig6");
    for (panel, nic_overhead) in [2000.0, 1000.0, 500.0, 200.0].into_iter().enumerate() {
        for curve in ["ni", "path", "uni"] {
            let wire = points(&figure, panel, curve)[0].mean - 2.0 * (1000.0 + nic_overhead + 97.0);
            assert!((132.0..=132.0 + 4.0 * 3.0).contains(&wire), "{curve} {wire}");
        }
    }
}

#[test]
fn curves_grow_as_their_schemes_do() {
    let figure = quick("fig6");
    for (panel, nic_overhead) in [2000.0, 1000.0, 500.0, 200.0].into_iter().enumerate() {
        // A tree worm is one phase, whatever the number of destinations.
        let tree = points(&figure, panel, "tree");
        assert!(tree.iter().all(|point| (point.mean - tree[0].mean).abs() < 40.0));
        // A binomial tree of 1, 3, 7, 15, 31 destinations gains a step each time: through NICs, or
        // through hosts.
        let steps = |curve, step: f64| {
            for pair in points(&figure, panel, curve).windows(2) {
                let gained = pair[1].mean - pair[0].mean;
                assert!((gained - step).abs() < 40.0, "{curve} {gained} {step}");
            }
        };
        steps("ni", 2.0 * nic_overhead + 135.0);
        steps("uni", 2.0 * (1000.0 + nic_overhead + 97.0) + 135.0);
    }
}
