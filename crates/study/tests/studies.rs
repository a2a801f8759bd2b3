//! Studies from file to figure.

use std::collections::BTreeMap;
use std::sync::Mutex;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::{Group, MemberId, MemberList, Placement, PlanOptions, plan};
use treecast_sim::{Operation, Parameters, Run, Simulator, Status, packet_count};
use treecast_study::journal::Journal;
use treecast_study::{FigureSpec, Multicast, Quantities, Row, RunSpec, Study, StudyError, rows, run_all};
use treecast_terms::{Cycles, Flits, Keyed as _};

const STUDY: &str = r#"
name = "small"
title = "A small study"
source = "ours"
summary = "Two switches."

[defaults]
fabric = "irregular:switches=4,ports=4,hosts=8"
message = 128
host_overhead = 1000

[repeat]
topologies = [1, 2, 3]
groups = 2
"#;

const FIGURE: &str = r#"
title = "Latency"
question = "How does latency grow?"

[x]
vary = "destinations"
label = "destinations"
values = { from = 1, to = 7, step = 3 }

[[panels]]
label = "short"
set = { message = 128 }

[[panels]]
label = "long"
set = { message = 512, nic_overhead = 500 }

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
values = [1]
topologies = [2]
groups = 1
"#;

fn parse(study: &str, figure: &str) -> Result<Study, StudyError> {
    Study::parse(&[("latency.toml", figure), ("study.toml", study)])
}

fn small() -> Study {
    parse(STUDY, FIGURE).unwrap()
}

fn figure(study: &Study) -> &FigureSpec {
    study.figure("latency").unwrap()
}

fn rows_of<'a>(runs: &[RunSpec<'a>], threads: usize) -> Vec<Row<'a>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| run_all(runs, &|_| ())).unwrap()
}

fn multicast<'a>(row: &'a Row) -> &'a Multicast {
    row.measured.multicast().unwrap()
}

fn set_latency(row: &mut Row, cycles: Option<u64>) {
    let multicast = Multicast { latency: cycles.map(Cycles), ..multicast(row).clone() };
    row.measured.quantities = Quantities::Multicast(multicast);
}

/// What parsing says when `from` is replaced by `to` in the figure.
fn figure_error(from: &str, to: &str) -> String {
    assert!(FIGURE.contains(from), "{from}");
    parse(STUDY, &FIGURE.replacen(from, to, 1)).unwrap_err().to_string()
}

#[test]
fn unknown_keys_are_named_with_file_and_line_and_what_is_near() {
    assert_eq!(
        figure_error("title =", "titel ="),
        "latency.toml:2: unknown key 'titel': did you mean title?"
    );
    assert_eq!(
        figure_error("offload =", "ofload ="),
        "latency.toml:23: unknown key 'ofload': did you mean offload?"
    );
    assert_eq!(
        figure_error("nic_overhead", "nic_overhed"),
        "latency.toml:16: unknown setting 'nic_overhed': did you mean nic_overhead, nic_send_overhead, \
         nic_receive_overhead?"
    );
    assert_eq!(
        figure_error("nic_overhead", "switchs"),
        "latency.toml:16: unknown setting 'switchs': did you mean switches, switching?"
    );
    let error = parse(&STUDY.replace("[defaults]", "[default]"), FIGURE).unwrap_err();
    assert_eq!(error.to_string(), "study.toml:7: unknown key 'default': did you mean defaults?");
    let error = small().figure("latncy").unwrap_err();
    assert_eq!(error.to_string(), "unknown figure 'latncy': did you mean latency?");
}

#[test]
fn the_name_of_a_study_names_a_directory() {
    for name in ["", "../x", "/tmp/x", "a b"] {
        let error = parse(&STUDY.replace("\"small\"", &format!("\"{name}\"")), FIGURE).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "study.toml:2: invalid value name={name}: expected letters, digits, - and _, because it also names a directory"
            )
        );
    }
}

#[test]
fn bad_values_are_named_with_file_and_line() {
    assert_eq!(
        figure_error("k-binomial", "k-binomal"),
        "latency.toml:21: unknown scheme 'k-binomal': did you mean k-binomial, binomial?"
    );
    assert_eq!(figure_error("\"cco\"", "\"coo\""), "latency.toml:22: unknown order 'coo': did you mean cco?");
    assert_eq!(
        figure_error("\"nic\"", "\"nik\""),
        "latency.toml:23: unknown offload 'nik': known are host, assisted, nic, switch"
    );
    assert_eq!(
        figure_error("\"tree-worm\"", "\"tree-worm\"\norder = \"cco\""),
        "latency.toml:29: scheme tree-worm takes no order: it orders the destinations itself"
    );
    assert_eq!(
        figure_error("\"k-binomial\"", "\"leader:over=postal\""),
        "latency.toml:21: scheme postal needs lambda here, the time until a receiver has the message divided by the time \
         that its sender takes per copy: add lambda=3.5, or another number from 1 to 1000000 (only the model myrinet and \
         running groups measure it)"
    );
    assert_eq!(
        figure_error("message = 512", "message = 0"),
        "latency.toml:16: invalid value message=0: expected a whole number from 1: flits, or bytes on a testbed"
    );
    assert_eq!(
        figure_error("{ from = 1, to = 7, step = 3 }", "[0.5]"),
        "latency.toml:8: invalid value destinations=0.5: expected a whole number from 1, or all"
    );
    for values in ["[]", "{ from = 7, to = 1 }", "{ from = 1, to = 7, step = 0 }", "[nan]"] {
        assert_eq!(
            figure_error("{ from = 1, to = 7, step = 3 }", values),
            "latency.toml:8: values are 1 to 10000 numbers, and steps lead from one end to the other"
        );
    }
    assert_eq!(
        figure_error("{ from = 1, to = 7, step = 3 }", "{ from = 1, until = 7 }"),
        "latency.toml:8: values are a list of numbers, or { from = 1, to = 31, step = 1 }"
    );
    assert_eq!(
        figure_error("label = \"long\"", "label = \"short\""),
        "latency.toml:14: there is a panel 'short' already"
    );
    assert_eq!(
        figure_error("nic_overhead = 500", "seed = 5"),
        "latency.toml:8: invalid value seed=5: expected no seed, because the topologies of [repeat] set it"
    );
    assert_eq!(
        figure_error("groups = 1", "groups = 0"),
        "latency.toml:33: invalid value groups=0: expected a whole number from 1"
    );
    assert_eq!(
        parse(&STUDY.replace("message = 128", ""), &FIGURE.replace("set = { message = 128 }", ""))
            .unwrap_err()
            .to_string(),
        "latency.toml:8: the figure needs message=...: a whole number from 1: flits, or bytes on a testbed"
    );
    assert_eq!(Study::parse(&[]), Err(StudyError::NoStudyFile));
}

#[test]
fn a_figure_is_the_cross_product_of_all_that_it_lists() {
    let study = small();
    let spec = figure(&study);
    let runs = spec.runs(false);
    assert_eq!(runs.len(), 2 * 2 * 3 * 3 * 2);
    assert_eq!(spec.runs(true).len(), 2 * 2);
    let last = runs.last().unwrap();
    assert_eq!((last.panel().label.as_str(), last.series().name.as_str(), last.x()), ("long", "tree", 7.0));
    assert_eq!((last.topology_seed(), last.group_index()), (Some(3), 1));
    let parameters = last.setup().parameters().unwrap();
    assert_eq!((last.setup().message.0, parameters.nic_send_overhead.0), (512, 500));
    assert_eq!(parameters.host_receive_overhead.0, 1000);
    assert!(last.fabric().to_string().ends_with("links_per_switch=1.25,seed=3"));
    let full = "  treecast paper run small latency\n    72 runs: x = 1, 4, 7; topologies with seeds 1 to 3; 2 random groups";
    assert!(spec.describe().contains(full), "{}", spec.describe());
    assert!(study.describe().contains("  latency  Latency (72 runs)"), "{}", study.describe());
}

#[test]
fn any_setting_can_be_varied_and_steps_have_no_rounding_noise() {
    let text = FIGURE
        .replace("\"destinations\"\nlabel", "\"connectivity\"\nlabel")
        .replace("{ from = 1, to = 7, step = 3 }", "{ from = 0.1, to = 0.7, step = 0.1 }")
        .replace("[x]", "[set]\ndestinations = 3\n\n[x]");
    let study = parse(STUDY, &text).unwrap();
    let fabrics: Vec<String> =
        figure(&study).runs(false).iter().step_by(6).take(7).map(|run| run.fabric().to_string()).collect();
    assert!(
        fabrics[2].contains("connectivity=0.3,") && fabrics[6].contains("connectivity=0.7,"),
        "{fabrics:?}"
    );
}

#[test]
fn figures_are_in_the_order_of_their_numbers() {
    let study = Study::parse(&[
        ("fig10.toml", FIGURE),
        ("study.toml", STUDY),
        ("ours.toml", FIGURE),
        ("fig9.toml", FIGURE),
    ]);
    let names: Vec<String> = study.unwrap().figures().iter().map(|figure| figure.name().to_owned()).collect();
    assert_eq!(names, ["fig9", "fig10", "ours"]);
}

#[test]
fn all_series_and_panels_have_the_same_groups() {
    let study = small();
    let rows = rows_of(&figure(&study).runs(false), 2);
    let key =
        |row: &Row| (row.spec.topology_seed(), row.spec.group_index(), multicast(row).destinations.len());
    for a in &rows {
        assert!(!multicast(a).destinations.contains(&multicast(a).root));
        for b in &rows {
            let same = (a.measured.seed, multicast(a).root, &multicast(a).destinations)
                == (b.measured.seed, multicast(b).root, &multicast(b).destinations);
            assert_eq!(key(a) == key(b), same);
        }
    }
}

#[test]
fn rows_are_the_same_bytes_at_any_number_of_threads() {
    let study = small();
    let runs = figure(&study).runs(false);
    let (one, two) = (rows_of(&runs, 1), rows_of(&runs, 2));
    assert_eq!(rows::csv(&one), rows::csv(&two));
    assert_eq!(rows::parquet(&one), rows::parquet(&two));
    let alone: Vec<Row> = runs.iter().map(|run| run.run().unwrap()).collect();
    assert_eq!(rows::csv(&one), rows::csv(&alone));
}

#[test]
fn each_row_is_reported_once_when_it_is_there() {
    let study = small();
    let reported = Mutex::new(Vec::new());
    let runs = figure(&study).runs(false);
    let rows = run_all(&runs, &|row| reported.lock().unwrap().push(Journal::line(row))).unwrap();
    let (mut reported, mut lines) =
        (reported.into_inner().unwrap(), rows.iter().map(Journal::line).collect::<Vec<_>>());
    reported.sort();
    lines.sort();
    assert_eq!(reported, lines);
    lines.dedup();
    assert_eq!(lines.len(), runs.len());
}

/// The journal of all runs of the figure, and its rows as CSV.
fn journal(study: &Study) -> (String, Vec<u8>) {
    let rows = rows_of(&figure(study).runs(false), 2);
    let lines: String = rows.iter().map(Journal::line).collect();
    (Journal::head("p") + &lines, rows::csv(&rows).unwrap())
}

#[test]
fn a_journal_cut_anywhere_gives_its_whole_lines_and_the_rest_is_run() {
    let study = small();
    let runs = figure(&study).runs(false);
    let (text, rows) = journal(&study);
    let head = Journal::head("p").len();
    for cut in [0, head - 1, head, head + 1, text.len() / 3, text.len() / 2, text.len() - 1, text.len()] {
        let journal = Journal::read(&text.as_bytes()[..cut], "p");
        let lines = text[..cut].matches('\n').count();
        assert_eq!(journal.whole(), text[..cut].rfind('\n').map_or(0, |end| end + 1));
        let recalled = journal.recall(&runs);
        assert_eq!(recalled.left().len(), runs.len() - lines.saturating_sub(1), "{cut}");
        let fresh = rows_of(recalled.left(), 1);
        assert_eq!(rows::csv(&recalled.joined(fresh)).unwrap(), rows, "{cut}");
    }
}

#[test]
fn corrupt_journal_lines_are_ignored() {
    let study = small();
    let runs = figure(&study).runs(false);
    let (text, _) = journal(&study);
    let corrupt = text.replacen("\"gave\":{", "\"gave\":", 1).replacen("latency\":", "laten\0y\":", 2);
    let left = |text: &str, program| Journal::read(text.as_bytes(), program).recall(&runs).left().len();
    // The first of the two is the line that is corrupt already.
    assert_eq!(left(&corrupt, "p"), 2);
    assert_eq!(left(&text, "another program"), runs.len());
    assert_eq!(left(&text.replacen("journal 1", "journal 0", 1), "p"), runs.len());
}

#[test]
fn a_row_is_taken_for_the_run_that_gave_it_and_for_no_other() {
    let (text, _) = journal(&small());
    let journal = Journal::read(text.as_bytes(), "p");
    let left = |study: &str, figure_text: &str| {
        let study = parse(study, figure_text).unwrap();
        let runs = figure(&study).runs(false);
        (journal.recall(&runs).left().len(), runs.len())
    };
    assert_eq!(left(STUDY, FIGURE), (0, 72));
    // Names, further topologies, groups, values: what is there is taken, in whatever place it
    // stands.
    assert_eq!(left(STUDY, &FIGURE.replace("\"ni\"", "\"nic\"")), (0, 72));
    assert_eq!(left(&STUDY.replace("[1, 2, 3]", "[4, 2, 1]"), FIGURE), (24, 72));
    assert_eq!(left(&STUDY.replace("groups = 2", "groups = 3"), FIGURE), (36, 108));
    assert_eq!(left(STUDY, &FIGURE.replace("step = 3", "step = 2")), (48, 96));
    // Whatever a run depends on makes it another.
    assert_eq!(left(&STUDY.replace("host_overhead = 1000", "host_overhead = 999"), FIGURE), (72, 72));
    assert_eq!(left(&STUDY.replace("hosts=8", "hosts=9"), FIGURE), (72, 72));
    assert_eq!(left(STUDY, &FIGURE.replace("message = 128", "message = 127")), (36, 72));
    assert_eq!(left(STUDY, &FIGURE.replace("tree-worm", "path")), (36, 72));
    assert_eq!(left(STUDY, &FIGURE.replace("cco", "id")), (36, 72));
    assert_eq!(left(STUDY, &FIGURE.replace("offload = \"nic\"", "offload = \"assisted\"")), (36, 72));
}

#[test]
fn rows_read_back_from_csv() {
    let study = small();
    let rows = rows_of(&figure(&study).runs(false), 1);
    let bytes = rows::csv(&rows).unwrap();
    let mut reader = csv::Reader::from_reader(&bytes[..]);
    let head = reader.headers().unwrap().clone();
    let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(records.len(), rows.len());
    for (record, row) in records.iter().zip(&rows) {
        let cell = |name: &str| record.get(head.iter().position(|column| column == name).unwrap()).unwrap();
        assert_eq!(cell("series"), row.spec.series().name);
        assert_eq!(cell("order"), if cell("series") == "ni" { "cco" } else { "" });
        assert_eq!(cell("fabric"), row.spec.fabric().to_string());
        assert_eq!(cell("latency_cycles"), multicast(row).latency.unwrap().0.to_string());
        assert_eq!(cell("nic_send_overhead"), if cell("panel") == "long" { "500" } else { "1000" });
        let members: Vec<u32> =
            cell("destinations").split(',').map(|member| member.parse().unwrap()).collect();
        assert_eq!(members, multicast(row).destinations.iter().map(|member| member.0).collect::<Vec<_>>());
    }
}

#[test]
fn a_row_holds_all_that_is_needed_to_run_it_again() {
    let study = small();
    let bytes = rows::csv(&rows_of(&figure(&study).runs(false), 1)).unwrap();
    let mut reader = csv::Reader::from_reader(&bytes[..]);
    for record in reader.deserialize::<BTreeMap<String, String>>() {
        let cell = |name: &str| record.as_ref().unwrap()[name].as_str();
        let fabric = Fabric::from_spec(&cell("fabric").parse::<FabricSpec>().unwrap()).unwrap();
        let mut parameters = Parameters::default();
        for key in Parameters::keys() {
            parameters.set(key.name, cell(key.name)).unwrap();
        }
        let placement = Placement::one_per_host(8);
        let (root, seed) = (MemberId(cell("root").parse().unwrap()), cell("seed").parse().unwrap());
        let destinations = cell("destinations").parse::<MemberList>().unwrap();
        let group =
            Group::new(placement.clone(), root, destinations.resolve(&placement, root, seed).unwrap())
                .unwrap();
        let message = Flits(cell("message_flits").parse().unwrap());
        let packets = packet_count(message, parameters.packet_flits).unwrap();
        let order = Some(cell("order")).filter(|order| !order.is_empty()).map(|order| order.parse().unwrap());
        let scheme = cell("scheme").parse().unwrap();
        let plan = plan(&fabric, &group, &scheme, &PlanOptions { order, packets }).unwrap();
        let offload = cell("offload").parse().unwrap();
        let run = Run {
            fabric: &fabric,
            plan: &plan,
            operation: Operation::Broadcast,
            offload,
            message,
            parameters: &parameters,
            seed,
            simulator: Simulator::Event,
        };
        assert_eq!(run.simulate().unwrap().latency.unwrap().0.to_string(), cell("latency_cycles"));
    }
}

#[test]
fn rows_read_back_from_parquet() {
    let study = small();
    let rows = rows_of(&figure(&study).runs(false), 1);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file.as_file(), &rows::parquet(&rows).unwrap()).unwrap();
    let reader = SerializedFileReader::new(file.reopen().unwrap()).unwrap();
    let read: Vec<BTreeMap<String, Field>> = reader
        .get_row_iter(None)
        .unwrap()
        .map(|row| row.unwrap().into_columns().into_iter().collect())
        .collect();
    assert_eq!(read.len(), rows.len());
    for (read, row) in read.iter().zip(&rows) {
        let latency = multicast(row).latency.unwrap().0;
        assert_eq!(read["latency_cycles"], Field::ULong(latency));
        assert_eq!(read["seed"], Field::ULong(row.measured.seed));
        assert_eq!(read["latency_ns"], Field::Double(latency as f64 * 5.0));
        assert_eq!(read["cycle_ns"], Field::Double(5.0));
        assert_eq!(read["adaptive"], Field::Str("first-free".into()));
        assert_eq!(read["packet_flits"], Field::ULong(128));
        assert_eq!(read["offered_load"], Field::Null);
    }
}

#[test]
fn a_point_is_the_mean_of_its_runs_and_its_spread_that_of_the_topologies() {
    let study = small();
    let spec = figure(&study);
    let mut rows = rows_of(&spec.runs(false), 1);
    // The first six rows are one point: two groups on each of three topologies.
    for (row, latency) in rows.iter_mut().zip([10, 20, 30, 50, 100, 60]) {
        set_latency(row, Some(latency));
    }
    let point = spec.figure(&rows).panels[0].curves[0].points[0];
    assert_eq!((point.x, point.mean, point.low, point.high, point.runs), (1.0, 45.0, 15.0, 80.0, 6));
    assert!(spec.figure(&rows).caption.ends_with("the lowest to the highest mean of a topology."));

    set_latency(&mut rows[4], None);
    rows[4].measured.status = Status::Incomplete;
    let figure = spec.figure(&rows);
    let point = figure.panels[0].curves[0].points[0];
    assert_eq!((point.mean, point.low, point.high, point.runs), (34.0, 15.0, 60.0, 5));
    assert!(
        figure.caption.ends_with("Not complete, and left out of the means: 1 of 72 runs."),
        "{}",
        figure.caption
    );
    assert_eq!((figure.panels.len(), figure.panels[0].curves.len()), (2, 2));
    assert_eq!(figure.y_label, "latency (cycles of 5 ns)");
    assert_eq!(figure.command, "treecast paper run small latency");
}

#[test]
fn a_run_that_does_not_end_complete_is_a_row_without_latency() {
    let study = parse(&STUDY.replace("host_overhead", "cycles_max"), FIGURE).unwrap();
    let rows = rows_of(&figure(&study).runs(true), 1);
    assert!(
        rows.iter().all(|row| row.measured.status == Status::Incomplete && multicast(row).latency.is_none())
    );
    let figure = figure(&study).figure(&rows);
    assert!(figure.panels.iter().flat_map(|panel| &panel.curves).all(|curve| curve.points.is_empty()));
    assert_eq!(figure.command, "treecast paper run small latency --quick");
}

#[test]
fn a_run_that_is_not_possible_says_which_and_why() {
    let study = parse(STUDY, &FIGURE.replace("scheme = \"tree-worm\"", "scheme = \"u-torus\"")).unwrap();
    let error = run_all(&figure(&study).runs(false), &|_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "small latency, panel 'short', series tree, destinations 1, \
         irregular:switches=4,ports=4,hosts=8,links_per_switch=1.25,seed=1, group 0: \
         scheme u-torus needs a torus; this fabric is a network of switches"
    );
}
