//! Measured points of others beside runs, and those of `BookSim2`: the cheaper cases of the study
//! `booksim2` (docs/validation.md).

use treecast_study::figure::{Curve, Panel};
use treecast_study::{Study, StudyError, builtin, run_all};

/// Two curves of a panel, ours and `BookSim2`'s with the same choices: x, ours, theirs.
fn pairs(panel: &Panel) -> Vec<(f64, f64, f64)> {
    let curve = |name: &str| panel.curves.iter().find(|curve| curve.name == name);
    let (ours, theirs): (&Curve, &Curve) = (curve("Treecast").unwrap(), curve("BookSim2").unwrap());
    assert_eq!(ours.points.len(), theirs.points.len(), "{}: {:?}", panel.title, ours.missing);
    ours.points.iter().zip(&theirs.points).map(|(ours, theirs)| (ours.x, ours.mean, theirs.mean)).collect()
}

/// The panels of a figure after its quick runs, those of packets of 16 flits only.
fn panels(figure: &str) -> Vec<Panel> {
    let study = builtin::study("booksim2").unwrap().unwrap();
    let spec = study.figure(figure).unwrap();
    let mut runs = spec.runs(true);
    runs.retain(|run| run.setup().message.0 == 16);
    let mut panels = spec.figure(&run_all(&runs, &|_| ()).unwrap()).panels;
    panels.retain(|panel| panel.curves.iter().any(|curve| curve.name == "Treecast"));
    panels
}

/// Short runs are not as exact as those of docs/validation.md.
#[test]
fn fabrics_accept_the_loads_that_booksim2_accepts() {
    let panels = panels("accepted");
    assert_eq!(panels.len(), 8);
    for panel in &panels {
        let curve = |name: &str| panel.curves.iter().find(|curve| curve.name == name).unwrap().points[0].mean;
        let ratio = curve("Treecast") / curve("BookSim2");
        assert!((ratio - 1.0).abs() < 0.035, "{}: {ratio}", panel.title);
    }
}

/// Up to three fifths of the load at which a fabric saturates, means of short runs are exact
/// enough.
#[test]
fn packets_take_as_long_as_in_booksim2() {
    for figure in ["latency-star", "latency-tree", "latency-torus"] {
        let panels = panels(figure);
        assert_eq!(panels.len(), 2, "{figure}");
        for panel in &panels {
            let pairs = pairs(panel);
            let highest = pairs.last().unwrap().0;
            let low = pairs.iter().filter(|(load, ..)| *load < 0.6 * highest);
            assert!(low.clone().count() >= 1);
            for (load, ours, theirs) in low {
                let ratio = ours / theirs;
                assert!((ratio - 1.0).abs() < 0.03, "{figure}, {}, at {load}: {ratio}", panel.title);
            }
        }
    }
}

const STUDY: &str = "name = 'small'\ntitle = 'S'\nsource = 'ours'\nsummary = 'One star.'\n\
                     [defaults]\nfabric = 'star:hosts=8'\nmessage = 128";

/// A figure of two panels, with these values of x and these measured points in the first panel.
fn small(values: &str, first: &str) -> Result<Study, StudyError> {
    let figure = format!(
        "title = 'T'\nquestion = 'Q?'\n[x]\nvary = 'destinations'\nlabel = 'destinations'\n{values}\n\
         [[panels]]\nlabel = 'one'\n{first}\n[[panels]]\nlabel = 'two'\nmeasured = {{ hardware = [[5, 700], [2, 300]] }}\n\
         [[series]]\nname = 'uni'\ndescription = 'unicasts'\nscheme = 'binomial'\n\
         [[measured]]\nname = 'hardware'\ndescription = 'hosts of ours'\n"
    );
    Study::parse(&[("study.toml", STUDY), ("latency.toml", &figure)])
}

#[test]
fn measured_points_stand_beside_runs_at_their_own_x() {
    let xs = |study: &Study, panel: usize, curve: usize| -> Vec<f64> {
        let spec = study.figure("latency").unwrap();
        let figure = spec.figure(&run_all(&spec.runs(false), &|_| ()).unwrap());
        assert_eq!(figure.panels[panel].curves[1].description, "hosts of ours");
        figure.panels[panel].curves[curve].points.iter().map(|point| point.x).collect()
    };
    let study = small("", "measured = { hardware = [[1, 90], [7, 900]] }").unwrap();
    assert_eq!((xs(&study, 0, 0), xs(&study, 1, 0)), (vec![1.0, 7.0], vec![2.0, 5.0]));
    assert_eq!(xs(&study, 1, 1), [5.0, 2.0]);
    let study = small("values = [3]", "measured = { hardware = [[1, 90]] }").unwrap();
    assert_eq!((xs(&study, 0, 0), xs(&study, 0, 1)), (vec![3.0], vec![1.0]));
}

#[test]
fn measured_points_without_a_place_are_errors() {
    let error = |values: &str, first: &str| small(values, first).unwrap_err().to_string();
    let missing = "latency.toml:3: values are missing: an axis has values, or each panel has measured points whose x \
                   are taken";
    assert_eq!(error("", ""), missing);
    let unknown = error("", "measured = { hardwear = [[1, 90]] }");
    assert_eq!(unknown, "latency.toml:9: unknown measured curve 'hardwear': did you mean hardware?");
    for points in ["[]", "[[1, nan]]"] {
        let error = error("", &format!("measured = {{ hardware = {points} }}"));
        assert_eq!(error, "latency.toml:9: measured points are 1 to 10000 pairs of numbers, [x, y]");
    }
}
