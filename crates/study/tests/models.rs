//! Studies on testbeds: models run beside the simulator, factors, measures, and what guesses are
//! worth.

use std::collections::BTreeMap;

use parquet::basic::Type as Physical;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use treecast_plan::MemberId;
use treecast_study::figure::Figure;
use treecast_study::table::deadlocks;
use treecast_study::{Row, Study, builtin, rows, run_all};

const STUDY: &str = r#"
name = "rings"
title = "Rings"
source = "ours"
summary = "A torus of ringlets."

[defaults]
testbed = "sci"
fabric = "torus:k=4,n=2,uni"
routing = "dimension-order:channels=none"
message = 64
destinations = 15
"#;

const TESTBED: &str = r#"
model = "sci"
guessed = ["hop_us", "outstanding_transactions"]

[set]
hop_us = 0.07
outstanding_transactions = 16
"#;

const FIGURE: &str = r#"
title = "Latency"
question = "Who is fast?"

[x]
vary = "destinations"
label = "destinations"
values = [3, 15]

[[series]]
name = "separate"
description = "the root writes to all destinations"
scheme = "separate"

[[series]]
name = "U-torus"
description = "recursive halving"
scheme = "u-torus"
"#;

fn study(figure: &str) -> Study {
    let files = [("study.toml", STUDY), ("testbed-sci.toml", TESTBED), ("latency.toml", figure)];
    Study::parse(&files).unwrap()
}

fn figure(study: &Study) -> Figure {
    let spec = study.figure("latency").unwrap();
    spec.figure(&run_all(&spec.runs(false), &|_| ()).unwrap())
}

fn error(testbed: &str, figure: &str) -> String {
    let files = [("study.toml", STUDY), ("testbed-sci.toml", testbed), ("latency.toml", figure)];
    Study::parse(&files).unwrap_err().to_string()
}

#[test]
fn latencies_of_models_are_in_microseconds() {
    let study = study(FIGURE);
    let figure = figure(&study);
    assert_eq!(figure.y_label, "latency (us)");
    for curve in &figure.panels[0].curves {
        assert_eq!(curve.points.len(), 2);
        assert!(curve.points.iter().all(|point| (1.0..200.0).contains(&point.mean)), "{curve:?}");
    }
}

#[test]
fn factors_are_how_many_times_as_much_the_other_series_takes() {
    let latencies = figure(&study(FIGURE));
    let factors = figure(&study(&format!("relative_to = 'separate'\n{FIGURE}")));
    let [separate, u_torus] = &latencies.panels[0].curves[..] else { panic!("two curves") };
    let [factor] = &factors.panels[0].curves[..] else { panic!("one curve") };
    assert_eq!(factor.name, "U-torus");
    for ((factor, base), of) in factor.points.iter().zip(&separate.points).zip(&u_torus.points) {
        assert!((factor.mean - base.mean / of.mean).abs() < 1e-12);
    }
}

#[test]
fn whatever_a_model_measures_is_shown() {
    let study = study(&format!("measure = 'link_concentration_plan'\n{FIGURE}"));
    let figure = figure(&study);
    assert_eq!(figure.y_label, "link concentration (visits a link)");
    assert!(figure.panels[0].curves[0].points[1].mean > 2.0, "15 messages share the root's links");
}

#[test]
fn rows_hold_what_is_needed_to_run_them_again() {
    let mixed = format!(
        "{FIGURE}\n[[series]]\nname = 'other'\ndescription = 'guessed otherwise'\nscheme = 'u-torus'\n\
         set = {{ hop_us = 0.5 }}"
    );
    let study = study(&mixed);
    let spec = study.figure("latency").unwrap();
    let runs = spec.runs(false);
    let ran: Vec<Row> = run_all(&runs, &|_| ()).unwrap();
    let text = String::from_utf8(rows::csv(&ran).unwrap()).unwrap();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let head: Vec<String> = reader.headers().unwrap().iter().map(String::from).collect();
    let column = |name: &str| head.iter().position(|column| column == name).unwrap();
    assert!(
        !head.iter().any(|name| name == "host_send_overhead"),
        "the simulator's parameters are not in use"
    );
    let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let hops: Vec<&str> = records.iter().map(|record| &record[column("hop_us")]).collect();
    assert_eq!(hops, ["0.07", "0.07", "0.07", "0.07", "0.5", "0.5"]);
    for (record, row) in records.iter().zip(&ran) {
        let latency: f64 = record[column("latency_us")].parse().unwrap();
        assert_eq!(Some(latency), row.measured.latency());
        assert_eq!((&record[column("message_flits")], &record[column("message_bytes")]), ("", "64"));
        let drawn: Vec<MemberId> =
            record[column("destinations")].split(',').map(|id| MemberId(id.parse().unwrap())).collect();
        assert_eq!(drawn, row.measured.modelled().unwrap().destinations);
        assert_eq!(drawn.len().to_string(), record[column("destination_count")]);
    }
    assert_eq!(read(&ran).metadata().file_metadata().schema_descr().num_columns(), head.len());
    assert!(column("hop_us") < column("status") && column("status") < column("latency_us"));
    assert!(column("testbed") < column("link_concentration_run"));
}

#[test]
fn a_column_holds_the_same_kind_of_values_whatever_a_testbed_sets() {
    let study = STUDY.replace("torus:k=4,n=2,uni", "star:4").replace("\"sci\"", "\"nodes\"");
    let study = study.replace("routing = \"dimension-order:channels=none\"", "processes = 4");
    let set = |threshold: &str| format!("set = {{ threshold_us = {threshold} }}");
    let figure = FIGURE
        .replace("scheme = \"separate\"", &format!("scheme = \"separate\"\n{}", set("500")))
        .replace("\"u-torus\"", &format!("\"binomial\"\n{}", set("'auto'")));
    let files = [("study.toml", &*study), ("testbed-nodes.toml", "model = 'smp'"), ("latency.toml", &figure)];
    let study = Study::parse(&files).unwrap();
    let runs = study.figure("latency").unwrap().runs(false);
    let rows = read(&run_all(&runs, &|_| ()).unwrap());
    let thresholds = rows.get_row_iter(None).unwrap().map(|row| {
        let cells: BTreeMap<String, Field> = row.unwrap().into_columns().into_iter().collect();
        cells["threshold_us"].clone()
    });
    let expected = ["500", "500", "auto", "auto"].map(|text| Field::Str(text.into()));
    assert_eq!(thresholds.collect::<Vec<_>>(), expected);
}

#[test]
fn counts_and_bytes_are_whole_numbers_in_rows_and_times_and_shares_are_not() {
    let study = STUDY.replace("torus:k=4,n=2,uni", "star:4").replace("\"sci\"", "\"nodes\"");
    let study = study.replace("routing = \"dimension-order:channels=none\"", "processes = 4");
    let figure = FIGURE.replace("\"u-torus\"", "\"binomial\"");
    let files = [("study.toml", &*study), ("testbed-nodes.toml", "model = 'smp'"), ("latency.toml", &figure)];
    let study = Study::parse(&files).unwrap();
    let runs = study.figure("latency").unwrap().runs(false);
    let rows = read(&run_all(&runs, &|_| ()).unwrap());
    let schema = rows.metadata().file_metadata().schema_descr();
    let kinds: BTreeMap<&str, Physical> =
        schema.columns().iter().map(|column| (column.name(), column.physical_type())).collect();
    for whole in ["mtu_bytes", "header_bytes", "queue_slots", "iterations", "link_mb_per_s"] {
        assert_eq!(kinds[whole], Physical::INT64, "{whole}");
    }
    for fraction in ["hop_us", "timeout_us", "loss", "numa_factor"] {
        assert_eq!(kinds[fraction], Physical::DOUBLE, "{fraction}");
    }
    for row in rows.get_row_iter(None).unwrap() {
        let cells: BTreeMap<String, Field> = row.unwrap().into_columns().into_iter().collect();
        assert!(matches!(cells["mtu_bytes"], Field::ULong(_)), "{:?}", cells["mtu_bytes"]);
    }
}

/// The rows as they are read back from Parquet.
fn read(rows: &[Row]) -> SerializedFileReader<std::fs::File> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file.as_file(), &rows::parquet(rows).unwrap()).unwrap();
    SerializedFileReader::new(file.reopen().unwrap()).unwrap()
}

#[test]
fn a_guess_that_moves_moves_what_rests_on_it() {
    let study = study(&format!("relative_to = 'separate'\n{FIGURE}"));
    let spec = study.figure("latency").unwrap();
    assert_eq!(spec.guessed(), ["hop_us", "outstanding_transactions"]);
    let sweeps = std::cell::Cell::new(0);
    let sensitivity = spec.sensitivity(true, &|| sweeps.set(sweeps.get() + 1)).unwrap();
    assert_eq!(sweeps.get(), 5);
    let [headline] = &sensitivity.headlines[..] else { panic!("one curve") };
    assert_eq!((headline.series.as_str(), headline.panel.as_str()), ("U-torus", ""));
    // The same figure with the parameter set by hand.
    let by_hand = study_with("hop_us = 0.084");
    let by_hand =
        figure(&by_hand).panels[0].curves[0].points.iter().map(|point| point.mean).fold(0.0, f64::max);
    let (key, [less, more]) = &sensitivity.moved[0];
    assert_eq!(key, "hop_us");
    assert_eq!(more[0], Some(by_hand));
    assert_ne!(less[0], more[0]);
}

#[test]
fn sensitivity_is_of_the_whole_figure_or_of_its_smaller_sweep() {
    let study = study(&format!("relative_to = 'separate'\n{FIGURE}\n[quick]\nvalues = [3]"));
    let spec = study.figure("latency").unwrap();
    let headline = |quick| {
        let rows = run_all(&spec.runs(quick), &|_| ()).unwrap();
        let points = spec.figure(&rows).panels[0].curves[0].points.clone();
        points.into_iter().map(|point| point.mean).reduce(f64::max)
    };
    for quick in [true, false] {
        assert_eq!(Some(spec.sensitivity(quick, &|| ()).unwrap().headlines[0].factor), headline(quick));
    }
    assert_ne!(headline(true), headline(false));
}

#[test]
fn a_deadlock_is_reported_with_its_run_and_its_cycle() {
    let study = builtin::study("gm").unwrap().unwrap();
    let rows = |figure: &str| {
        run_all(&study.figure(figure).unwrap().runs(true), &|_| ()).map(|rows| deadlocks(&rows))
    };
    let text = rows("flow-deadlock").unwrap();
    let lines: Vec<&str> = text.trim_start().lines().collect();
    // One of the five series deadlocks, on four nodes.
    assert_eq!(lines[0], "Deadlocked: LFC, round, nodes, and roots at once 4:");
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[1..].iter().all(|line| line.contains("waits for a buffer of the NIC of")), "{text}");
    assert_eq!(rows("one-way").unwrap(), "");
}

fn study_with(setting: &str) -> Study {
    let testbed = TESTBED.replace("hop_us = 0.07", setting);
    let figure = format!("relative_to = 'separate'\n{FIGURE}");
    Study::parse(&[("study.toml", STUDY), ("testbed-sci.toml", &testbed), ("latency.toml", &figure)]).unwrap()
}

#[test]
fn what_does_not_fit_is_named_with_its_file_and_line() {
    let cases = [
        (
            TESTBED.replace("model = \"sci\"", "model = \"scy\""),
            FIGURE.to_string(),
            "testbed-sci.toml:2: unknown model",
        ),
        (
            TESTBED.replace("hop_us = 0.07", "hop_us = -1"),
            FIGURE.to_string(),
            "testbed-sci.toml:6: invalid value hop_us=-1",
        ),
        (
            TESTBED.replace("\"hop_us\",", "\"corner_us\","),
            FIGURE.to_string(),
            "testbed-sci.toml:3: 'corner_us' is guessed, but [set] does not set it: give it a value there",
        ),
        (
            TESTBED.replace("\"hop_us\",", "\"hopp_us\","),
            FIGURE.to_string(),
            "testbed-sci.toml:3: model sci has no key 'hopp_us': did you mean hop_us",
        ),
        (
            TESTBED.replace("hop_us = 0.07", "hop_us = 1000000"),
            FIGURE.to_string(),
            "testbed-sci.toml:3: 'hop_us' is guessed, and 1.2 times as much is not possible: invalid value hop_us=1200000",
        ),
        (
            "model = 'myrinet'\nguessed = ['flow']\n[set]\nflow = 'none'".to_string(),
            FIGURE.to_string(),
            "testbed-sci.toml:2: 'flow' is guessed, but none is no number to move",
        ),
        (
            TESTBED.replace("hop_us = 0.07", "hop = 1"),
            FIGURE.to_string(),
            "testbed-sci.toml:6: model sci has no key 'hop': did you mean hop_us",
        ),
        (TESTBED.replace("hop_us = 0.07", "hop_us = '1us'"), FIGURE.to_string(), "invalid value hop_us=1us"),
        (
            TESTBED.replace("hop_us = 0.07", "hop_us = 1e18"),
            FIGURE.to_string(),
            "invalid value hop_us=1000000000000000000",
        ),
        (
            TESTBED.replace("hop_us = 0.07", "hop_us = [1]"),
            FIGURE.to_string(),
            "testbed-sci.toml:6: a setting is a number or a text",
        ),
        (String::new(), FIGURE.to_string(), "testbed-sci.toml:1: missing field `model`"),
        (
            TESTBED.to_string(),
            format!("measure = 'latncy'\n{FIGURE}"),
            "latency.toml:1: unknown measure 'latncy'",
        ),
        (
            TESTBED.to_string(),
            format!("relative_to = 'flat'\n{FIGURE}"),
            "latency.toml:1: unknown series 'flat'",
        ),
        (
            TESTBED.to_string(),
            FIGURE.replace("[x]", "[set]\ntestbed = 'x'\n[x]"),
            "unknown testbed 'x': known are sci",
        ),
        (TESTBED.to_string(), FIGURE.replace("[x]", "[set]\nload = 0.1\n[x]"), "no testbed"),
        (
            TESTBED.to_string(),
            FIGURE.replace("[3, 15]", "[16]"),
            "latency.toml:8: invalid value destinations=16: expected at most 15, since the root is no destination",
        ),
        (
            TESTBED.to_string(),
            FIGURE.replace("[x]", "[set]\nroot = 16\n[x]"),
            "invalid value root=16: expected a process from 0 to 15",
        ),
        (
            TESTBED.to_string(),
            FIGURE.replace("[x]", "[set]\nprocesses = 0\n[x]"),
            "latency.toml:6: invalid value processes=0",
        ),
        (
            TESTBED.to_string(),
            FIGURE.replace("[x]", "[set]\nprocesses = 4000000000\n[x]"),
            "invalid value processes=4000000000: expected at most 16777216 processes in all on 16 hosts",
        ),
        (
            TESTBED.to_string(),
            FIGURE.replace("[x]", "[set]\nplacement = 'blocks'\n[x]"),
            "latency.toml:6: unknown placement 'blocks': did you mean block?",
        ),
        (
            TESTBED.to_string(),
            FIGURE.replace("[x]", "[set]\nnic_overhead = 1\n[x]"),
            "unknown setting 'nic_overhead'",
        ),
    ];
    for (testbed, figure, expected) in cases {
        let error = error(&testbed, &figure);
        assert!(error.contains(expected), "{error}\nnot {expected}");
    }
}

#[test]
fn a_guess_that_is_named_twice_and_a_tree_without_its_lambda_are_named_with_their_lines() {
    let twice = error(&TESTBED.replace("\"hop_us\",", "\"hop_us\",\n \"hop_us\","), FIGURE);
    assert_eq!(twice, "testbed-sci.toml:4: 'hop_us' is guessed already: name it once");
    let without = error(TESTBED, &FIGURE.replace("scheme = \"separate\"", "scheme = \"postal\""));
    assert!(without.starts_with("latency.toml:13: scheme postal needs lambda here"), "{without}");
}

#[test]
fn a_testbed_that_nobody_describes_is_named_with_its_file() {
    let error = Study::parse(&[("study.toml", STUDY), ("latency.toml", FIGURE)]).unwrap_err().to_string();
    assert_eq!(
        error,
        "study.toml:8: invalid value testbed=sci: expected the name of a testbed file, and testbed-sci.toml does not exist"
    );
}

#[test]
fn what_a_series_sets_is_no_guess_of_its_testbed() {
    let set = "set = { hop_us = 0.3 }";
    let base = format!("[[series]]\nname = 'base'\ndescription = 'D'\nscheme = 'separate'\n{set}");
    let figure = FIGURE.replace("scheme = \"separate\"", &format!("scheme = \"separate\"\n{set}"));
    let study = study(&format!("relative_to = 'base'\n{figure}\n{base}"));
    let sensitivity = study.figure("latency").unwrap().sensitivity(true, &|| ()).unwrap();
    let (key, sides) = &sensitivity.moved[0];
    assert_eq!(key, "hop_us");
    // The first curve compares a series with itself, and neither rests on the guess; the second one
    // does.
    assert!(sides.iter().all(|factors| factors[0] == Some(1.0)), "{sides:?}");
    assert_ne!(sides[0][1], sides[1][1]);
}

#[test]
fn all_destinations_are_all_processes_of_all_hosts() {
    let files = [
        (
            "study.toml",
            "name = 'all'\ntitle = 'All'\nsource = 'ours'\nsummary = 'All.'\nunit = 'us'\n[defaults]\n\
          fabric = 'leaf-spine:leaves=2,spines=2,hosts=8'\nmessage = 128\ndestinations = 'all'\nprocesses = 4\n\
          placement = 'cyclic'",
        ),
        (
            "latency.toml",
            "title = 'L'\nquestion = 'Q'\n[x]\nvary = 'message'\nlabel = 'bytes'\nvalues = [64]\n[[series]]\n\
          name = 'leader'\ndescription = 'D'\nscheme = 'leader:over=binomial,local=binomial'",
        ),
    ];
    let study = Study::parse(&files).unwrap();
    let spec = study.figure("latency").unwrap();
    let runs = spec.runs(false);
    let ran = run_all(&runs, &|_| ()).unwrap();
    assert_eq!(ran[0].measured.multicast().unwrap().destinations.len(), 31);
    let figure = spec.figure(&ran);
    assert_eq!(figure.y_label, "latency (us)");
    let (shown, cycles) = (figure.panels[0].curves[0].points[0].mean, ran[0].measured.latency().unwrap());
    assert!((shown - cycles * 0.005).abs() < 1e-9, "a cycle is 5 ns");
}
