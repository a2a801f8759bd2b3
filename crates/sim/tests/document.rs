//! Runs as JSON: they match their schema and contain all inputs.

use proptest::prelude::*;
use serde_json::{Value, json};
use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::{Arrangement, Group, MemberId, MemberList, Placement, PlanOptions, plan};
use treecast_sim::{
    LoadDocument, Offload, Operation, Parameters, Run, RunContext, RunDocument, SaturationDocument, Simulator,
};
use treecast_terms::Flits;

/// The schemas in the docs, by the names of their files, as generated from the types.
fn schemas() -> [(&'static str, schemars::Schema); 3] {
    [
        ("run", schemars::schema_for!(RunDocument)),
        ("load", schemars::schema_for!(LoadDocument)),
        ("saturation", schemars::schema_for!(SaturationDocument)),
    ]
}

/// `UPDATE_SCHEMA=1 cargo test -p treecast-sim --test sim document` renews them.
#[test]
#[expect(clippy::disallowed_methods, reason = "the schemas in the docs are files")]
fn the_schemas_in_the_docs_are_up_to_date() {
    for (name, schema) in schemas() {
        let path = format!("{}/../../docs/schema/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var("UPDATE_SCHEMA").is_ok() {
            std::fs::write(&path, &text).unwrap();
        }
        assert!(std::fs::read_to_string(&path).unwrap() == text, "{name}: renew with UPDATE_SCHEMA=1");
    }
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
    let group = Group::new(placement.clone(), MemberId(0), list.resolve(&placement, MemberId(0), 7).unwrap())
        .unwrap();
    let plan = plan(&fabric, &group, &scheme.parse().unwrap(), &PlanOptions::default()).unwrap();
    let parameters: Parameters = settings.parse().unwrap();
    let simulator = Simulator::Event;
    let run = Run {
        fabric: &fabric,
        plan: &plan,
        operation: Operation::Broadcast,
        offload,
        message: Flits(300),
        parameters: &parameters,
        seed: 7,
        simulator,
    };
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
        offload in prop::sample::select(vec![Offload::Host, Offload::Assisted, Offload::Nic]),
        settings in prop::sample::select(vec!["", "cycles_max=5000", "cycles_max=1", "cycle_ns=0.7,adaptive=random"]),
    ) {
        let document = document(scheme, processes, destinations, offload, settings);
        let schema: Value = serde_json::to_value(schemars::schema_for!(RunDocument)).unwrap();
        let text = document.to_json();
        let value: Value = serde_json::from_str(&text).unwrap();
        prop_assert!(jsonschema::is_valid(&schema, &value), "{}", text);
        prop_assert_eq!(serde_json::from_str::<RunDocument>(&text).unwrap(), document);
    }
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
    let schema: Value = serde_json::to_value(schemars::schema_for!(RunDocument)).unwrap();
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

#[test]
fn a_deadlock_names_its_links() {
    let topology = "torus:k=4,n=1,uni".parse::<FabricSpec>().unwrap().topology().unwrap();
    let fabric = Fabric::new(topology, "dimension-order:channels=none".parse().unwrap()).unwrap();
    let placement = Placement::new(4, 3, Arrangement::Cyclic).unwrap();
    let destinations = MemberList::All.resolve(&placement, MemberId(0), 1).unwrap();
    let group = Group::new(placement, MemberId(0), destinations).unwrap();
    let options = PlanOptions { order: Some("random:seed=2".parse().unwrap()), packets: 64 };
    let plan = plan(&fabric, &group, &"binomial".parse().unwrap(), &options).unwrap();
    let parameters: Parameters = "nic_overhead=0".parse().unwrap();
    let (offload, message) = (Offload::Nic, Flits(8192));
    let [event, cycle] = [Simulator::Event, Simulator::Cycle].map(|simulator| {
        let run = Run {
            fabric: &fabric,
            plan: &plan,
            operation: Operation::Broadcast,
            offload,
            message,
            parameters: &parameters,
            seed: 1,
            simulator,
        };
        let context = RunContext {
            fabric: "torus:k=4,n=1,uni".into(),
            routing: "dimension-order:channels=none".into(),
            plan: None,
            order: None,
            destinations: Some("all".into()),
        };
        RunDocument::new(&run, &run.simulate().unwrap(), context)
    });
    let value = serde_json::to_value(&event).unwrap();
    assert!(jsonschema::is_valid(&serde_json::to_value(schemars::schema_for!(RunDocument)).unwrap(), &value));
    assert_eq!(value["status"], json!("deadlocked"));
    let deadlock = event.deadlock.clone().unwrap();
    assert_eq!((deadlock.cycle, deadlock.stuck, deadlock.waits.len()), (20_000, 6, 4));
    for (wait, next) in deadlock.waits.iter().zip(deadlock.waits.iter().cycle().skip(1)) {
        assert_eq!(wait.wants, next.at, "each waits for the next");
    }
    assert_eq!((event.simulator.as_str(), cycle.simulator.as_str()), ("event", "cycle"));
    let deadlock = cycle.deadlock.as_ref().unwrap();
    assert_eq!((deadlock.cycle, deadlock.stuck, deadlock.waits.len()), (20_000, 6, 4));
    assert_eq!(event.cpu_busy_cycles, cycle.cpu_busy_cycles);
}
