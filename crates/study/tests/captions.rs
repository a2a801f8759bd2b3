//! What captions say of what was averaged, and labels of where series come from.

use treecast_study::{Study, run_all};

/// The caption and the descriptions of the curves of a figure with settings, `[repeat]` and what
/// more its series says.
fn shown(set: &str, repeat: &str, series: &str) -> (String, Vec<String>) {
    let study = "name = 'small'\ntitle = 'T'\nsource = 'ours'\nsummary = 'S'\n[defaults]\nfabric = 'irregular:switches=4,hosts=8'";
    let figure = format!(
        "title = 'T'\nquestion = 'Why?'\n[set]\n{set}\n[x]\nvary = 'message'\nlabel = 'message'\nvalues = [1, 2]\n\
         [repeat]\n{repeat}\n[[series]]\nname = 'uni'\ndescription = 'unicasts'\nscheme = 'binomial'\n{series}"
    );
    let study = Study::parse(&[("study.toml", study), ("latency.toml", &figure)]).unwrap();
    let spec = study.figure("latency").unwrap();
    let figure = spec.figure(&run_all(&spec.runs(false), &|_| ()).unwrap());
    let curves = figure.panels.into_iter().flat_map(|panel| panel.curves);
    (figure.caption, curves.map(|curve| curve.description).collect())
}

#[test]
fn a_caption_says_what_was_averaged_and_calls_nothing_random_that_is_not() {
    let all = "destinations = 'all'";
    let all_from_0 = "destinations = 'all'\nroot = 0";
    for (set, repeat, expected) in [
        ("destinations = 3", "", "A point is one run with a random group."),
        ("destinations = 3", "groups = 2", "A point is the mean over 2 random groups."),
        ("destinations = 3", "topologies = [1]", "A point is one run with a random group on one topology."),
        ("destinations = 3\nroot = 0", "", "A point is one run with a random group."),
        (all, "", "A point is one run from a random root."),
        (all, "groups = 2", "A point is the mean over 2 random roots."),
        (all_from_0, "", "A point is one run."),
        (all_from_0, "groups = 2", "A point is the mean over 2 runs of the same group."),
        (all_from_0, "topologies = [1]", "A point is one run on one topology."),
        (
            "destinations = 3",
            "topologies = [1, 2]",
            "A point is the mean over 2 topologies with one run with a random group on each; the band goes from the lowest \
             to the highest mean of a topology.",
        ),
    ] {
        assert_eq!(shown(set, repeat, "").0, format!("Why? {expected}"));
    }
    let load = "destinations = 3\nload = 0.001\ncycles = 20000\nwarmup = 1000";
    assert!(shown(load, "", "").0.starts_with("Why? A point is one run of random traffic."));
}

#[test]
fn a_series_may_be_farther_from_a_publication_than_its_scheme_and_never_nearer() {
    let label = |series: &str| {
        let description = shown("destinations = 3", "", series).1.remove(0);
        description.rsplit_once("; ").unwrap().1.trim_end_matches(')').to_owned()
    };
    assert_eq!(label(""), "published");
    assert_eq!(label("label = 'ours'"), "ours");
    assert_eq!(label("label = 'reconstructed'"), "reconstructed");
    assert_eq!(label("order = 'cco'\nlabel = 'published'"), "reconstructed");
}
