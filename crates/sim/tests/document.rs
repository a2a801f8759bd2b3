//! Runs as JSON: they hold to their schema and say all that they were made with.

use proptest::prelude::*;
use serde_json::{Value, json};
use treecast_fabric::{Fabric, FabricSpec, Flits};
use treecast_plan::{Arrangement, Group, MemberId, MemberList, Placement, PlanOptions, plan};
use treecast_sim::{Offload, Parameters, Run, RunContext, RunDocument};

const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema/run.schema.json");

/// The schema as it follows from the types.
fn schema() -> String {
    let schema = schemars::schema_for!(RunDocument);
    serde_json::to_string_pretty(&schema).unwrap() + "\n"
}

/// `UPDATE_SCHEMA=1 cargo test -p treecast-sim --test document` writes it anew.
#[test]
#[expect(clippy::disallowed_methods, reason = "the schema in the docs is a file")]
fn the_schema_in_the_docs_is_up_to_date() {
    if std::env::var("UPDATE_SCHEMA").is_ok() {
        std::fs::write(SCHEMA, schema()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(SCHEMA).unwrap(), schema(), "renew with UPDATE_SCHEMA=1");
}

/// The document of a run on six hosts.
fn document(
    scheme: &str,
    processes: u32,
    destinations: &str,
    offload: Offload,
    settings: &str,
) -> RunDocument {
    let fabric = Fabric::from_spec(&"star:6".parse::<FabricSpec>().unwrap()).unwrap();
    let placement = Placement::new(6, processes, Arrangement::Cyclic).unwrap();
    let list: MemberList = destinations.parse().unwrap();
    let group =
        Group::new(placement, MemberId(0), list.resolve(&placement, MemberId(0), 7).unwrap()).unwrap();
    let plan = plan(&fabric, &group, &scheme.parse().unwrap(), &PlanOptions::default()).unwrap();
    let parameters: Parameters = settings.parse().unwrap();
    let run =
        Run { fabric: &fabric, plan: &plan, offload, message: Flits(300), parameters: &parameters, seed: 7 };
    let context = RunContext {
        fabric: "star:6".into(),
        routing: "auto".into(),
        plan: None,
        order: None,
        destinations: Some(destinations.into()),
    };
    RunDocument::new(&run, &run.simulate().unwrap(), context)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn a_document_holds_to_its_schema_and_reads_back(
        scheme in prop::sample::select(vec!["binomial", "path", "tree-worm", "leader:over=serial,local=direct"]),
        processes in 1_u32..4,
        destinations in prop::sample::select(vec!["all", "1,4,2-3", "random:5"]),
        offload in prop::sample::select(Offload::NAMES.map(|(_, offload)| offload).to_vec()),
        settings in prop::sample::select(vec!["", "cycles_max=5000", "cycles_max=1", "cycle_ns=0.7,adaptive=random"]),
    ) {
        let document = document(scheme, processes, destinations, offload, settings);
        let schema: Value = serde_json::from_str(&schema()).unwrap();
        let text = document.to_json();
        let value: Value = serde_json::from_str(&text).unwrap();
        prop_assert!(jsonschema::is_valid(&schema, &value), "{}", text);
        prop_assert_eq!(serde_json::from_str::<RunDocument>(&text).unwrap(), document);
    }
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let good = serde_json::to_value(document("binomial", 1, "all", Offload::Host, "")).unwrap();
    assert!(jsonschema::is_valid(&schema, &good));
    for (pointer, bad) in [
        ("/status", json!("fine")),
        ("/latency_cycles", json!("1")),
        ("/deliveries/0/cycle", json!(-1)),
        ("/deliveries/0", json!({ "host": 1, "cycle": 2 })),
        ("/cpu_busy_cycles", json!({ "h1": 3 })),
        ("/placement/arrangement", json!("heap")),
        ("/seed", json!(null)),
    ] {
        let mut value = good.clone();
        *value.pointer_mut(pointer).unwrap() = bad;
        assert!(!jsonschema::is_valid(&schema, &value), "{pointer}");
        assert!(serde_json::from_value::<RunDocument>(value).is_err(), "{pointer}");
    }
}

#[test]
fn parameters_read_back_as_they_were_set() {
    let settings = "nic_overhead=7,cycle_ns=2.5,arbitration=lowest-link,bus_mb_per_s=0";
    let document = document("binomial", 1, "all", Offload::Nic, settings);
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), String::from);
    let printed: Vec<String> =
        document.parameters.iter().map(|(key, value)| format!("{key}={}", text(value))).collect();
    assert_eq!(printed.join(",").parse::<Parameters>(), settings.parse());
    assert_eq!(document.parameters["nic_send_overhead"], json!(7));
    assert_eq!(document.parameters["arbitration"], json!("lowest-link"));
}
