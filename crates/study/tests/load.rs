//! Figures of runs under load, from file to figure.

use std::collections::{BTreeMap, BTreeSet};

use treecast_fabric::{Fabric, FabricSpec, RoutingPolicy};
use treecast_sim::{LoadRun, Parameters, Simulator, Status};
use treecast_study::figure::{Best, Figure};
use treecast_study::journal::Journal;
use treecast_study::table::{Rows, table};
use treecast_study::{FigureSpec, Kind, Quantities, Row, RunSpec, Study, StudyError, chart, rows, run_all};
use treecast_terms::{Cycles, Flits, Keyed as _};

const STUDY: &str = r#"
name = "small"
title = "A small study"
source = "ours"
summary = "Four switches."

[defaults]
fabric = "irregular:switches=4,ports=6,hosts=8"
message = 128
destinations = 3
cycles = 60_000
warmup = 20_000

[repeat]
topologies = [1, 2]
"#;

const FIGURE: &str = r#"
title = "Load"
question = "How much?"

[x]
vary = "ejection_load"
label = "ejection load"
values = [0.01, 0.03, 0.3, 0.5]

[[panels]]
label = "R = 1"

[[panels]]
label = "R = 5"
set = { nic_overhead = 200 }

[[series]]
name = "ni"
description = "by NICs"
scheme = "k-binomial"
order = "cco"
offload = "nic"

[[series]]
name = "tree"
description = "by switches"
scheme = "tree-worm"

[quick]
values = [0.02]
topologies = [2]
set = { cycles = 30_000, warmup = 5_000 }
"#;

fn parse(figure: &str) -> Result<Study, StudyError> {
    Study::parse(&[("load.toml", figure), ("study.toml", STUDY)])
}

fn spec(study: &Study) -> &FigureSpec {
    study.figure("load").unwrap()
}

fn changed(changes: &[(&str, &str)]) -> Study {
    let mut text = FIGURE.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    parse(&text).unwrap()
}

fn error(from: &str, to: &str) -> String {
    assert!(FIGURE.contains(from), "{from}");
    parse(&FIGURE.replacen(from, to, 1)).unwrap_err().to_string()
}

fn rows_of(study: &Study) -> Vec<Row<'_>> {
    run_all(&spec(study).runs(false), &|_| ()).unwrap()
}

fn figure(study: &Study) -> Figure {
    spec(study).figure(&rows_of(study))
}

#[test]
fn a_figure_with_a_load_is_made_of_runs_under_load() {
    let study = parse(FIGURE).unwrap();
    let runs = spec(&study).runs(false);
    assert_eq!(runs.len(), 2 * 2 * 4 * 2);
    for run in &runs {
        assert_eq!(run.kind(), Kind::Load { offered_load: run.x() / 3.0 });
        assert_eq!(
            (run.setup().traffic.cycles, run.setup().traffic.warmup),
            (Cycles(60_000), Cycles(20_000))
        );
    }
    let quick = spec(&study).runs(true);
    assert_eq!(quick.len(), 4);
    assert_eq!(quick[0].setup().traffic.cycles, Cycles(30_000));
    // The load itself, and settings over which a fixed load is laid.
    let study = changed(&[("\"ejection_load\"", "\"load\""), ("[0.01, 0.03, 0.3, 0.5]", "[0.01]")]);
    assert_eq!(spec(&study).runs(false)[0].kind(), Kind::Load { offered_load: 0.01 });
    let study = changed(&[
        ("\"ejection_load\"", "\"destinations\""),
        ("[0.01, 0.03, 0.3, 0.5]", "[2, 4]"),
        ("[0.02]", "[2]"),
        ("[x]", "[set]\nejection_load = 0.04\n[x]"),
    ]);
    let loads: Vec<Kind> = spec(&study).runs(false).iter().step_by(2).take(2).map(RunSpec::kind).collect();
    assert_eq!(loads, [Kind::Load { offered_load: 0.02 }, Kind::Load { offered_load: 0.01 }]);
}

/// Makes the run of each row again from nothing but its cells in CSV.
fn again(rows: &[Row], mut check: impl FnMut(&Row, &BTreeMap<String, String>, &LoadRun)) {
    let bytes = rows::csv(rows).unwrap();
    let mut reader = csv::Reader::from_reader(&bytes[..]);
    let records: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    assert_eq!(records.len(), rows.len());
    for (cells, row) in records.iter().zip(rows) {
        let cell = |name: &str| cells[name].as_str();
        let mut parameters = Parameters::default();
        for key in Parameters::keys() {
            parameters.set(key.name, cell(key.name)).unwrap();
        }
        let topology = cell("fabric").parse::<FabricSpec>().unwrap().topology().unwrap();
        let routing: RoutingPolicy = cell("routing").parse().unwrap();
        let order = Some(cell("order")).filter(|order| !order.is_empty()).map(|order| order.parse().unwrap());
        let run = LoadRun {
            fabric: &Fabric::new(topology, routing).unwrap(),
            scheme: &cell("scheme").parse().unwrap(),
            order,
            offload: cell("offload").parse().unwrap(),
            message: Flits(cell("message_flits").parse().unwrap()),
            degree: cell("destination_count").parse().unwrap(),
            // A search has none.
            load: cell("offered_load").parse().unwrap_or(1.0),
            arrivals: cell("arrivals").parse().unwrap(),
            sets: cell("destination_sets").parse().unwrap(),
            cycles: Cycles(cell("cycles").parse().unwrap()),
            warmup: Cycles(cell("warmup_cycles").parse().unwrap()),
            backlog_max: None,
            parameters: &parameters,
            seed: cell("seed").parse().unwrap(),
            simulator: Simulator::Event,
        };
        check(row, cells, &run);
    }
}

#[test]
fn a_row_under_load_holds_all_that_is_needed_to_run_it_again() {
    let study = parse(FIGURE).unwrap();
    let rows = rows_of(&study);
    again(&rows, |row, cells, run| {
        let cell = |name: &str| cells[name].as_str();
        let outcome = run.simulate().unwrap();
        assert_eq!(row.measured.load(), Some(&outcome.figures));
        assert_eq!(cell("status"), outcome.status.name());
        let mean = outcome.figures.latency_mean_cycles;
        assert_eq!(cell("latency_mean_cycles"), mean.map(|mean| mean.to_string()).unwrap_or_default());
        assert_eq!(row.measured.latency(), mean.filter(|_| outcome.status == Status::Complete));
        assert_eq!(cell("multicasts_measured"), outcome.figures.multicasts_measured.to_string());
        assert!(
            ["root", "destinations", "latency_cycles", "saturation_offered_load", "precision"]
                .map(cell)
                .concat()
                .is_empty()
        );
    });
    assert!(rows::parquet(&rows).is_ok());
}

#[test]
fn rows_under_load_are_the_same_bytes_at_any_number_of_threads() {
    let study = changed(&MAP);
    let runs = spec(&study).runs(false);
    let bytes = [1, 3].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        rows::csv(&pool.install(|| run_all(&runs, &|_| ())).unwrap()).unwrap()
    });
    assert!(bytes[0] == bytes[1]);
}

#[test]
fn series_and_panels_have_the_same_traffic_and_topologies_have_not() {
    let study = parse(FIGURE).unwrap();
    let rows = rows_of(&study);
    let mut seeds: BTreeMap<Option<u64>, BTreeSet<u64>> = BTreeMap::new();
    for row in &rows {
        seeds.entry(row.spec.topology_seed()).or_default().insert(row.measured.seed);
    }
    assert_eq!(seeds.len(), 2);
    assert!(seeds.values().all(|of_topology| of_topology.len() == 1));
    assert_ne!(seeds[&Some(1)], seeds[&Some(2)]);
}

#[test]
fn a_curve_ends_where_its_scheme_saturates() {
    let study = parse(FIGURE).unwrap();
    let mut rows = rows_of(&study);
    let all = spec(&study).figure(&rows);
    let ni = &all.panels[0].curves[0];
    assert_eq!(
        ni.points.iter().map(|point| point.x.to_bits()).collect::<Vec<_>>(),
        [0.01_f64, 0.03].map(f64::to_bits)
    );
    assert!(ni.missing.iter().all(|missing| missing.why == "saturated") && ni.missing.len() == 2);
    assert!(table(&all, 100, Rows::All).contains("saturated"));
    assert!(all.caption.contains("Where more than one run in ten saturates there is no latency."));
    assert_eq!((all.y_label.as_str(), all.best), ("mean latency (cycles of 5 ns)", Best::Lowest));

    // One run of two is enough, and behind it the curve does not go on.
    rows[0].measured.status = Status::Saturated;
    let figure = spec(&study).figure(&rows);
    assert!(figure.panels[0].curves[0].points.is_empty());
    assert_eq!(figure.panels[0].curves[0].missing.len(), 4);
    assert_eq!(figure.panels[1], all.panels[1]);
    // One that was too short to measure says nothing of higher loads.
    rows[0].measured.status = Status::Incomplete;
    let figure = spec(&study).figure(&rows);
    assert_eq!(figure.panels[0].curves[0].points, ni.points[1..]);
    rows[0].measured.status = Status::Deadlocked;
    let figure = spec(&study).figure(&rows);
    assert_eq!(figure.panels[0].curves[0].missing[0].why, "deadlocked");
    assert!(figure.caption.ends_with("Deadlocked: 1 of 32 runs."), "{}", figure.caption);
}

#[test]
fn one_run_in_ten_may_be_taken_for_saturated() {
    let study = changed(&[("[quick]", "[repeat]\ngroups = 5\n\n[quick]")]);
    let mut rows = rows_of(&study);
    rows[3].measured.status = Status::Saturated;
    let point = spec(&study).figure(&rows).panels[0].curves[0].points[0];
    assert_eq!((point.x.to_bits(), point.runs), (0.01_f64.to_bits(), 9));
    rows[8].measured.status = Status::Saturated;
    assert!(spec(&study).figure(&rows).panels[0].curves[0].points.is_empty());
    rows[8].measured.status = Status::Complete;
    rows[3].measured.status = Status::Deadlocked;
    assert!(spec(&study).figure(&rows).panels[0].curves[0].points.is_empty());
}

#[test]
fn an_accepted_load_is_shown_also_where_more_is_offered() {
    let study = changed(&[("question", "measure = \"accepted_load\"\nquestion")]);
    let figure = figure(&study);
    let points = &figure.panels[0].curves[1].points;
    assert_eq!(points.len(), 4);
    assert!((points[0].mean - 0.01).abs() < 0.005, "{points:?}");
    assert!(points[3].mean < 0.2, "{points:?}");
    assert_eq!(figure.best, Best::Highest);
    assert!(table(&figure, 100, Rows::All).contains("*: highest of the row"));
}

#[test]
fn saturation_is_searched_for() {
    let study = changed(&[
        ("question", "measure = \"saturation\"\nquestion"),
        ("\"ejection_load\"", "\"destinations\""),
        ("[0.01, 0.03, 0.3, 0.5]", "[2]"),
        ("[0.02]", "[2]"),
        ("[x]", "[set]\nprecision = 0.2\n[x]"),
    ]);
    let rows = rows_of(&study);
    again(&rows, |row, cells, run| {
        assert_eq!(cells["precision"], "0.2");
        let found = run.find_saturation(cells["precision"].parse().unwrap()).unwrap();
        assert!(found.offered_load.is_some());
        assert_eq!(row.measured.saturation_offered_load(), found.offered_load);
    });
    let loads: Vec<f64> =
        rows[..2].iter().map(|row| 2.0 * row.measured.saturation_offered_load().unwrap()).collect();
    let figure = spec(&study).figure(&rows);
    let point = figure.panels[0].curves[0].points[0];
    assert_eq!(point.mean.to_bits(), f64::midpoint(loads[0], loads[1]).to_bits());
    assert_eq!(figure.best, Best::Highest);
}

const MAP: [(&str, &str); 3] = [
    ("question", "measure = \"winner\"\nquestion"),
    (
        "[[panels]]",
        "[y]\nvary = \"nic_overhead\"\nlabel = \"NIC overhead\"\nvalues = [200, 4000]\n\n[[panels]]",
    ),
    ("[0.01, 0.03, 0.3, 0.5]", "[0.01, 0.04, 0.9]"),
];

#[test]
fn a_map_says_who_wins_each_cell() {
    let study = changed(&MAP);
    let runs = spec(&study).runs(false);
    assert_eq!(runs.len(), 2 * 2 * 2 * 3 * 2);
    assert!(runs.iter().all(|run| run.y().is_some()));
    let figure = figure(&study);
    assert_eq!(figure.row_label.as_deref(), Some("NIC overhead"));
    assert_eq!(figure.panels[0].curves.len(), 4);
    let text = table(&figure, 100, Rows::All);
    let first = text.lines().find(|line| line.trim_start().starts_with("4000")).unwrap();
    assert!(first.contains("tree"), "{text}");
    // Beyond the saturation of all curves there is no winner.
    assert!(first.trim_end().ends_with('-'), "{text}");
    let drawn = chart::terminal(&figure, 100, 18, chart::Ink::Plain);
    assert!(drawn.contains("■■■") && drawn.contains("NIC overhead \\ ejection load"), "{drawn}");
    let svg = chart::svg(&figure).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
    for text in ["tree", "-", "NIC overhead", "4,000", "0.04"] {
        assert!(texts.contains(&text), "{text}: {texts:?}");
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let measure = |name: &str| error("question", &format!("measure = \"{name}\"\nquestion"));
    assert_eq!(measure("latncy"), "load.toml:3: unknown measure 'latncy': did you mean latency?");
    assert_eq!(measure("winner"), "load.toml:1: measure = 'winner' and the table [y] belong together");
    assert_eq!(
        error("[[panels]]", "[y]\nvary = \"message\"\nlabel = \"y\"\nvalues = [1]\n\n[[panels]]"),
        "load.toml:10: measure = 'winner' and the table [y] belong together"
    );
    assert_eq!(
        measure("saturation"),
        "load.toml:9: where saturation is searched for, load and ejection_load are not set"
    );
    assert_eq!(
        error("0.01, 0.03", "0, 0.03"),
        "load.toml:8: invalid value ejection_load=0: expected flits/host/cycle, above 0"
    );
    assert_eq!(
        error("nic_overhead = 200", "sets = \"randm\""),
        "load.toml:15: unknown destination sets 'randm': did you mean random?"
    );
    let idle = FIGURE
        .replace("\"ejection_load\"", "\"message\"")
        .replace("question", "measure = \"accepted_load\"\nquestion");
    let idle = idle.replace("[0.01, 0.03, 0.3, 0.5]", "[128]");
    assert_eq!(
        parse(&idle).unwrap_err().to_string(),
        "load.toml:9: an accepted load needs load or ejection_load"
    );
}

#[test]
fn settings_go_with_x() {
    let study = changed(&[
        ("\"ejection_load\"", "\"hosts\"\nwith = { switches = 0.25 }"),
        ("[0.01, 0.03, 0.3, 0.5]", "[8, 64]"),
        ("[0.02]", "[16]"),
        ("label = \"R = 1\"", "label = \"half\"\nwith = { destinations = 0.5 }"),
    ]);
    let made = |run: &RunSpec| (run.fabric().to_string(), run.setup().destinations);
    let runs = spec(&study).runs(false);
    let fabric = |hosts: u32| {
        format!("irregular:switches={},ports=6,hosts={hosts},links_per_switch=1.25,seed=1", hosts / 4)
    };
    assert_eq!(made(&runs[0]), (fabric(8), 4));
    assert_eq!(made(&runs[2]), (fabric(64), 32));
    assert_eq!(made(&runs[8]), (fabric(8), 3));
    let text = spec(&study).describe();
    for part in ["(the setting hosts, and switches = 0.25 times x)", "half   destinations = 0.5 times x"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn fabrics_that_are_not_drawn_are_the_same_in_all_topologies_with_other_traffic() {
    let study = changed(&[("nic_overhead = 200", "fabric = \"torus:k=3,n=2\", routing = \"up-down\"")]);
    let runs = spec(&study).runs(false);
    let torus: Vec<_> = runs.iter().filter(|run| run.panel().label == "R = 5").take(2).collect();
    assert_eq!(torus[0].fabric(), torus[1].fabric());
    assert_eq!((torus[0].topology_seed(), torus[1].topology_seed()), (Some(1), Some(2)));
    let seeds = torus.iter().map(|run| run.run().unwrap().measured.seed).collect::<BTreeSet<_>>();
    assert_eq!(seeds.len(), 2);
}

#[test]
fn rows_under_load_come_back_from_a_journal_and_other_loads_and_traffics_do_not() {
    let study = parse(FIGURE).unwrap();
    let rows = rows_of(&study);
    let text = Journal::head("p") + &rows.iter().map(Journal::line).collect::<String>();
    let journal = Journal::read(text.as_bytes(), "p");
    let left = |study: &Study| journal.recall(&spec(study).runs(false)).left().len();
    assert_eq!(left(&study), 0);
    let recalled = journal.recall(&spec(&study).runs(false)).joined(Vec::new());
    assert_eq!(rows::csv(&recalled).unwrap(), rows::csv(&rows).unwrap());
    assert_eq!(left(&changed(&[("0.01, 0.03", "0.01, 0.02")])), 8);
    for setting in
        ["cycles = 60_001", "warmup = 19_999", "arrivals = \"fixed\"", "sets = \"fixed\"", "backlog_max = 9"]
    {
        assert_eq!(left(&changed(&[("[x]", &format!("[set]\n{setting}\n[x]"))])), 32, "{setting}");
    }
    // A row under load is none of a single multicast.
    assert!(rows.iter().all(|row| matches!(row.measured.quantities, Quantities::Load(_))));
}

#[test]
fn a_run_that_stands_in_two_figures_is_made_once() {
    let study = parse(FIGURE).unwrap();
    let mut known = Journal::default();
    known.learn(&rows_of(&study));
    let other = changed(&[("nic_overhead = 200", "nic_overhead = 300"), ("\"tree\"", "\"another name\"")]);
    assert_eq!(known.recall(&spec(&other).runs(false)).left().len(), 16);
}

#[test]
fn what_runs_cost_grows_with_their_packets() {
    let study = parse(FIGURE).unwrap();
    let runs = spec(&study).runs(false);
    let hosts_cycles = 8.0 * 60_000.0;
    assert_eq!(runs[0].cost(), (0.01 * hosts_cycles / 128.0) as u64);
    assert!(runs[6].cost() > 49 * runs[0].cost());
}
