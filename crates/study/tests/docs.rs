//! What docs/studies.md shows is so.

use treecast_study::{Study, run_all};

const STUDIES: &str = include_str!("../../../docs/studies.md");

/// The blocks of TOML, in order.
fn examples() -> Vec<&'static str> {
    STUDIES.split("```toml\n").skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

#[test]
fn the_small_example_has_as_many_runs_as_it_says() {
    let [study, figure, _, _] = examples()[..] else { panic!("four examples") };
    let study = Study::parse(&[("study.toml", study), ("latency.toml", figure)]).unwrap();
    let runs = study.figure("latency").unwrap().runs(false);
    let all = runs.len();
    let words = STUDIES.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("= {all} runs.")), "{all}");
    assert!(runs.iter().all(|run| run.run().is_ok()));
}

#[test]
fn the_example_under_load_is_a_map_of_the_small_example() {
    let [study, _, _, figure] = examples()[..] else { panic!("four examples") };
    let study = Study::parse(&[("study.toml", study), ("winners.toml", figure)]).unwrap();
    let spec = study.figure("winners").unwrap();
    let rows = run_all(&spec.runs(true), &|_| ()).unwrap();
    let figure = spec.figure(&rows);
    assert_eq!(figure.row_label.as_deref(), Some("NIC overhead (cycles)"));
    assert_eq!(figure.panels[0].curves.len(), 4);
}

#[test]
fn the_example_of_a_testbed_is_one() {
    let [_, figure, testbed, _] = examples()[..] else { panic!("four examples") };
    let study = "name = 'small'\ntitle = 'T'\nsource = 'ours'\nsummary = 'S'\n[defaults]\ntestbed = 'lanai'\n\
                 fabric = 'star:8'\nmessage = 64";
    let figure = figure.replace("tree-worm", "binomial");
    let files = [("study.toml", study), ("testbed-lanai.toml", testbed), ("latency.toml", figure.as_str())];
    let study = Study::parse(&files).unwrap();
    let spec = study.figure("latency").unwrap();
    assert_eq!(spec.guessed(), ["nic_send_us"]);
    assert!(run_all(&spec.runs(true), &|_| ()).is_ok());
}

#[test]
fn the_example_of_a_misspelling_is_answered_so() {
    let study = include_str!("../../../papers/icpp98/study.toml");
    let figure = include_str!("../../../papers/icpp98/fig6.toml").replacen("nic_overhead", "nic_overhed", 1);
    let error = Study::parse(&[("study.toml", study), ("fig6.toml", &figure)]).unwrap_err().to_string();
    assert!(STUDIES.contains(&format!("    {error}\n")), "{error}");
}
