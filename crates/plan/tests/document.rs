//! Plans as JSON: they read back unchanged, conform to their schema, and errors in them are named.

use crate::common::{Case, cases, fabric};
use proptest::prelude::*;
use serde_json::{Value, json};
use treecast_fabric::{Fabric, PortNumber, RoutingPolicy, TopologyBuilder};
use treecast_plan::render::{PlanContext, PlanDocument, ReductionDocument};
use treecast_plan::{Arrangement, Order};
use treecast_terms::Operation;

const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema/plan.schema.json");

fn case(spec: &str, routing: &'static str, processes: u32, scheme: &str) -> Case {
    Case {
        spec: spec.into(),
        routing,
        processes,
        arrangement: Arrangement::Block,
        seed: 0,
        share: 1.0,
        scheme: scheme.into(),
        order: None,
        packets: 1,
    }
}

fn document(case: &Case) -> Option<PlanDocument> {
    let fabric = case.fabric();
    let routing: RoutingPolicy = case.routing.parse().unwrap();
    let context = PlanContext { fabric: &case.spec, routing, order: case.order, packets: case.packets };
    Some(PlanDocument::new(&case.plan(&fabric)?, &fabric, &context).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn a_document_reads_back_as_the_same_plan(case in cases()) {
        let fabric = case.fabric();
        let Some(mut document) = document(&case) else { return Ok(()) };
        let plan = case.plan(&fabric).unwrap();
        if case.packets == 1 {
            let reduction = plan.reduction(&fabric).unwrap();
            document.reduction = Some(ReductionDocument::new(Operation::AllReduce, &reduction, &fabric));
        }
        let read = PlanDocument::parse(&document.to_json()).unwrap();
        prop_assert_eq!(read.plan(&fabric).unwrap(), plan);
        let schema: Value = serde_json::from_str(&schema()).unwrap();
        let value = serde_json::to_value(&document).unwrap();
        prop_assert!(jsonschema::is_valid(&schema, &value));
    }

    #[test]
    fn a_document_with_something_changed_never_panics(
        case in cases(),
        field in 0_usize..8,
        worm in any::<prop::sample::Index>(),
        number in any::<u32>(),
        small in 0_u32..40,
    ) {
        let fabric = case.fabric();
        let Some(document) = document(&case) else { return Ok(()) };
        let mut value = serde_json::to_value(&document).unwrap();
        let worm = worm.index(document.worms.len());
        match field {
            0 => value["worms"][worm]["from"] = json!(small),
            1 => value["worms"][worm]["to"] = json!([number]),
            2 => value["worms"][worm]["to"] = json!([small, small + 1]),
            3 => value["worms"][worm]["route"] = json!(["h0>s0:0", "s0:1>h1"]),
            4 => value["worms"][worm]["kind"] = json!(["unicast", "path", "tree", "local"][small as usize % 4]),
            5 => value["placement"]["processes"] = json!(number),
            6 => value["root"] = json!(number),
            _ => value["placement"]["arrangement"] = json!("cyclic"),
        }
        if let Ok(document) = PlanDocument::parse(&value.to_string())
            && let Ok(plan) = document.plan(&fabric)
        {
            prop_assert!(plan.analyse(&fabric, 1).is_ok());
        }
    }
}

/// The schema as it follows from the types.
fn schema() -> String {
    let schema = schemars::schema_for!(PlanDocument);
    serde_json::to_string_pretty(&schema).unwrap() + "\n"
}

/// `UPDATE_SCHEMA=1 cargo test -p treecast-plan --test plan document` renews it.
#[test]
#[expect(clippy::disallowed_methods, reason = "the schema in the docs is a file")]
fn the_schema_in_the_docs_is_up_to_date() {
    if std::env::var("UPDATE_SCHEMA").is_ok() {
        std::fs::write(SCHEMA, schema()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(SCHEMA).unwrap(), schema(), "renew with UPDATE_SCHEMA=1");
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let good = serde_json::to_value(document(&case("icpp98", "auto", 1, "path")).unwrap()).unwrap();
    assert!(jsonschema::is_valid(&schema, &good));
    for (pointer, bad) in
        [("/worms/0/kind", json!("boat")), ("/packets", json!("1")), ("/label", json!("mine"))]
    {
        let mut value = good.clone();
        *value.pointer_mut(pointer).unwrap() = bad;
        assert!(!jsonschema::is_valid(&schema, &value), "{pointer}");
        assert!(PlanDocument::parse(&value.to_string()).is_err(), "{pointer}");
    }
}

#[test]
fn a_small_document_looks_like_this() {
    insta::assert_snapshot!(document(&case("star:3", "auto", 1, "binomial")).unwrap().to_json());
}

/// The error of reading a valid document in which one value is changed.
fn error(case: &Case, pointer: &str, bad: Value) -> String {
    let mut value = serde_json::to_value(document(case).unwrap()).unwrap();
    *value.pointer_mut(pointer).unwrap() = bad;
    let read = PlanDocument::parse(&value.to_string()).and_then(|read| read.plan(&case.fabric()));
    read.expect_err(pointer).to_string()
}

#[test]
fn errors_name_what_is_invalid_in_a_document() {
    let star = case("star:4", "auto", 1, "binomial");
    for (pointer, bad, said) in [
        ("/format", json!("x/1"), "this JSON is not a plan: its format is 'x/1', not 'treecast-plan/1'"),
        ("/placement/hosts", json!(5), "the group is placed on 5 hosts, the fabric has 4"),
        (
            "/placement/processes",
            json!(u32::MAX),
            "a host runs at least one process, and all hosts together at most 16777216",
        ),
        (
            "/placement",
            json!({ "hosts": 4, "host_of": [0, 1, 4, 2] }),
            "member 2 is on host 4: hosts are 0 to 3",
        ),
        (
            "/routing",
            json!("dimension-order"),
            "the plan is not sound: it was made for routing dimension-order, the fabric is routed by up-down",
        ),
        ("/label", json!("ours"), "the plan is not sound: it is labelled ours, but binomial is published"),
        ("/packets", json!(0), "a message has 1 to 1048576 packets, not 0"),
        ("/worms/0/from", json!(3), "the plan is not sound: 3 sends before it has received"),
        (
            "/worms/1/index",
            json!(5),
            "the plan is not sound: worm 1: its index is 5, but it is the sender's number 1",
        ),
        (
            "/worms/0/route/1",
            json!("s0:9>h2"),
            "the plan is not sound: worm 0: the fabric has no link 's0:9>h2'",
        ),
        (
            "/worms/0/route/1",
            json!("s0:2>h2/1"),
            "the plan is not sound: worm 0: 's0:2>h2/1' is not a channel: links have 1, numbered from 0",
        ),
        (
            "/worms/0/route/1",
            json!("s0:3>h3"),
            "the plan is not sound: worm 0: its route serves h3, its receivers are on h2",
        ),
        (
            "/worms/0/route/0",
            json!("h1>s0:1"),
            "the plan is not sound: worm 0: its route does not begin with its sender's link 'h0>s0:0'",
        ),
        (
            "/worms/0/route/1",
            json!("h1>s0:1"),
            "the plan is not sound: worm 0: its route is not connected at 'h1>s0:1'",
        ),
        ("/worms/0/kind", json!("local"), "the plan is not sound: a local worm cannot go from 0 to 2"),
    ] {
        assert_eq!(error(&star, pointer, bad), said, "{pointer}");
    }
    let torus = case("torus:k=4,n=2,uni", "auto", 1, "s-torus:form=worm");
    assert!(
        error(&torus, "/worms/0/kind", json!("tree"))
            .ends_with("a tree worm needs up*/down* routing, this is dimension-order")
    );
    assert!(error(&torus, "/worms/0/route", json!([])).ends_with("a path worm needs its route"));
    assert!(error(&torus, "/order", json!("id")).contains("takes no order"));
    assert!(error(&torus, "/scheme", json!("postal")).contains("add lambda=3.5"));
    assert!(error(&torus, "/worms/0/kind", json!("unicast")).contains("goes to two hosts, h1 and h2"));
    assert!(error(&star, "/worms", json!([{}])).contains("missing field `from`"));
}

/// Three switches in a triangle with a host each: from s1 to s2 it is one link down, or up to s0
/// and down.
#[test]
fn a_route_obeys_the_routing_of_its_fabric_and_ends_at_a_host() {
    let mut builder = TopologyBuilder::new();
    let switches = [0, 1, 2].map(|_| builder.switch(3).unwrap());
    for switch in switches {
        builder.host(switch, PortNumber(0)).unwrap();
    }
    for (from, to) in [((0, 1), (1, 1)), ((0, 2), (2, 1)), ((1, 2), (2, 2))] {
        let end = |(switch, port): (usize, u32)| (switches[switch], PortNumber(port));
        builder.link(end(from), end(to)).unwrap();
    }
    let fabric = Fabric::new(builder.build().unwrap(), RoutingPolicy::Auto).unwrap();
    let read = |kind: &str, to: u32, route: &[&str]| {
        let document = json!({
            "format": "treecast-plan/1", "fabric": "", "routing": "auto", "order": null, "packets": 1,
            "placement": { "hosts": 3, "processes": 1, "arrangement": "block" },
            "scheme": "separate", "label": "published", "root": 0,
            "worms": [{ "from": 0, "index": 0, "kind": kind, "to": [to], "route": route }],
        });
        PlanDocument::parse(&document.to_string()).and_then(|document| document.plan(&fabric))
    };
    let error = |kind, to, route: &[&str]| read(kind, to, route).unwrap_err().to_string();
    let (in_0, to_1, to_2) = ("h0>s0:0", "s0:1>s1:1", "s0:2>s2:1");
    assert!(read("unicast", 1, &[in_0, to_1, "s1:0>h1"]).is_ok());
    assert!(read("path", 2, &[in_0, to_1, "s1:2>s2:2", "s2:0>h2"]).is_ok());
    assert!(
        error("path", 1, &[in_0, to_2, "s2:2>s1:2", "s1:0>h1"])
            .ends_with("its route goes up by 's2:2>s1:2' after it has gone down")
    );
    assert!(
        error("unicast", 1, &[in_0, to_1, "s1:0>h1", "s1:2>s2:2"])
            .ends_with("its route ends at a switch, with 's1:2>s2:2'")
    );
    assert!(
        error("tree", 1, &[in_0, to_1, "s1:0>h1"])
            .ends_with("this fabric routes tree worms adaptively: its route must be empty")
    );
    let star = case("star:4", "auto", 1, "tree-worm");
    assert!(
        self::error(&star, "/worms/0/route/3", json!("s0:1>h1"))
            .ends_with("its route is not the one that a tree worm takes on this fabric")
    );
}

#[test]
fn an_omitted_route_is_the_one_that_the_fabric_determines() {
    let star = case("star:4", "auto", 1, "binomial");
    let mut document = document(&star).unwrap();
    document.analysis = None;
    document.worms[1].route.clear();
    let mut value = serde_json::to_value(document).unwrap();
    value["worms"][0].as_object_mut().unwrap().remove("route").unwrap();
    let fabric = fabric("star:4", "auto");
    let read = PlanDocument::parse(&value.to_string()).unwrap().plan(&fabric).unwrap();
    assert_eq!(read, star.plan(&fabric).unwrap());
}

#[test]
fn an_order_and_its_label_read_back() {
    let icpp98 = Case { order: Some(Order::Cco), ..case("icpp98", "up-down:root=3", 1, "binomial") };
    let document = document(&icpp98).unwrap();
    assert_eq!(document.order.as_deref(), Some("cco"));
    assert_eq!(document.routing.as_str(), "up-down:root=3");
    assert_eq!(document.label.to_string(), "reconstructed");
    assert!(document.plan(&icpp98.fabric()).is_ok());
}

#[test]
fn the_example_in_the_docs_is_up_to_date() {
    let docs = include_str!("../../../docs/plans.md");
    let (_, example) = docs.split_once("```json\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let read = PlanDocument::parse(example).unwrap();
    assert_eq!(Some(read), document(&case("star:3", "auto", 1, "binomial")));
}

#[test]
fn a_large_document_reads_back_in_no_time() {
    let star = Case { packets: 4, ..case("star:20001", "auto", 1, "binomial") };
    let mut document = document(&star).unwrap();
    for worm in document.worms.iter_mut().step_by(2) {
        worm.route.clear();
    }
    let read = PlanDocument::parse(&document.to_json()).unwrap();
    let fabric = star.fabric();
    assert_eq!(read.plan(&fabric).unwrap(), star.plan(&fabric).unwrap());
}
