//! Output formats: their content, their truncation, and large plans.

use treecast_fabric::{Fabric, FabricSpec, PortNumber, RoutingPolicy, TopologyBuilder};
use treecast_plan::{
    Arrangement, Group, MemberId, MemberList, Placement, Plan, PlanError, PlanOptions, plan, render,
};

fn fabric(spec: &str) -> Fabric {
    Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap()
}

fn planned(fabric: &Fabric, processes: u32, members: &str, scheme: &str) -> Plan {
    let hosts = fabric.topology().host_count();
    let placement = Placement::new(hosts, processes, Arrangement::Block).unwrap();
    let destinations = members.parse::<MemberList>().unwrap().resolve(&placement, MemberId(0), 1).unwrap();
    let group = Group::new(placement, MemberId(0), destinations).unwrap();
    plan(fabric, &group, &scheme.parse().unwrap(), &PlanOptions::default()).unwrap()
}

fn picture(fabric: &Fabric, plan: &Plan) -> Result<String, PlanError> {
    render::svg(plan, fabric, &plan.analyse(fabric, 1)?)
}

#[test]
fn a_binomial_tree_prints() {
    let star = fabric("star:8");
    let plan = planned(&star, 1, "all", "binomial");
    insta::assert_snapshot!(render::tree(&plan, &star, render::WORMS_SHOWN).unwrap());
    insta::assert_snapshot!(render::table(&plan, &star, 3).unwrap());
}

#[test]
fn worms_with_several_receivers_print_on_one_line_with_their_senders_beneath() {
    let icpp98 = fabric("icpp98");
    for scheme in ["path", "tree-worm"] {
        let plan = planned(&icpp98, 1, "all", scheme);
        insta::assert_snapshot!(format!("tree_of_{scheme}"), render::tree(&plan, &icpp98, 200).unwrap());
        insta::assert_snapshot!(format!("table_of_{scheme}"), render::table(&plan, &icpp98, 200).unwrap());
    }
}

#[test]
fn leaders_print_members_and_hosts() {
    let star = fabric("star:4");
    let plan = planned(&star, 4, "all", "leader:over=binomial");
    insta::assert_snapshot!(render::tree(&plan, &star, 200).unwrap());
    insta::assert_snapshot!(render::dot(&plan, &star, None).unwrap());
}

#[test]
fn contributions_print_as_a_tree_a_table_and_arrows() {
    let star = fabric("star:3");
    let plan = planned(&star, 2, "all", "leader:over=binomial");
    let reduction = plan.reduction(&star).unwrap();
    insta::assert_snapshot!(render::reduction_tree(&plan, &reduction, &star, 9));
    insta::assert_snapshot!(render::reduction_table(&plan, &reduction, &star, 9));
    insta::assert_snapshot!(render::dot(&plan, &star, Some(&reduction)).unwrap());
    for text in [render::reduction_tree, render::reduction_table] {
        let cut = text(&plan, &reduction, &star, 4);
        assert!(cut.ends_with("\n... 1 more contribution not shown\n"), "{cut}");
    }
}

#[test]
fn a_path_is_a_hyper_edge_in_dot() {
    let icpp98 = fabric("icpp98");
    insta::assert_snapshot!(render::dot(&planned(&icpp98, 1, "1-8", "path"), &icpp98, None).unwrap());
}

#[test]
fn large_plans_are_truncated_and_indentation_is_bounded() {
    let star = fabric("star:100001");
    for scheme in ["serial", "separate", "binomial"] {
        let plan = planned(&star, 1, "all", scheme);
        for text in [render::tree(&plan, &star, 200).unwrap(), render::table(&plan, &star, 200).unwrap()] {
            assert!(text.lines().count() <= 204, "{scheme}");
            assert!(text.lines().all(|line| line.chars().count() < 120), "{scheme}");
            assert_eq!(text.lines().last(), Some("... 99800 more worms not shown"), "{scheme}");
        }
    }
    let whole = render::tree(&planned(&star, 1, "1-30", "serial"), &star, 30).unwrap();
    assert!(whole.lines().last().unwrap().ends_with("└─ [depth 30] step 30: h30"), "{whole}");
}

#[test]
fn a_picture_too_large_is_refused() {
    let star = fabric("star:2001");
    let error = picture(&star, &planned(&star, 1, "all", "binomial")).unwrap_err();
    assert!(error.to_string().starts_with("a picture shows at most 2000 members, this plan has 2001"));
    assert!(picture(&star, &planned(&star, 1, "1-1999", "separate")).is_ok());
}

#[test]
fn a_picture_shows_every_member_and_worm_once() {
    let icpp98 = fabric("icpp98");
    for (scheme, members) in [("binomial", "all"), ("path", "all"), ("tree-worm", "3-9"), ("serial", "1")] {
        let plan = planned(&icpp98, 1, members, scheme);
        let text = picture(&icpp98, &plan).unwrap();
        roxmltree::Document::parse(&text).unwrap();
        assert_eq!(text.matches("<rect class=\"box").count(), plan.destination_count() + 1, "{scheme}");
        assert_eq!(text.matches("class=\"step quiet\"").count(), plan.worms().len(), "{scheme}");
    }
}

#[test]
fn names_are_escaped() {
    let mut builder = TopologyBuilder::new();
    let switch = builder.switch(2).unwrap();
    for (port, name) in ["a<b>&\"c\"", "d\\e\u{1}"].into_iter().enumerate() {
        let host = builder.host(switch, PortNumber(port as u32)).unwrap();
        builder.name_host(host, name);
    }
    let fabric = Fabric::new(builder.build().unwrap(), RoutingPolicy::Auto).unwrap();
    let plan = planned(&fabric, 1, "all", "separate");
    let svg = picture(&fabric, &plan).unwrap();
    let read = roxmltree::Document::parse(&svg).unwrap();
    assert!(read.descendants().any(|node| node.text() == Some("a<b>&\"c\"")));
    assert!(svg.contains("a&lt;b&gt;&amp;&quot;c&quot;") && svg.contains("d\\e\u{fffd}"));
    let dot = render::dot(&plan, &fabric, None).unwrap();
    assert!(dot.contains(r#"label="a<b>&\"c\"""#) && dot.contains(r#"label="d\\e"#));
}

#[test]
fn a_plan_of_another_fabric_is_refused() {
    let plan = planned(&fabric("star:8"), 1, "all", "binomial");
    let other = fabric("star:9");
    let refused = [
        render::tree(&plan, &other, 9).unwrap_err(),
        render::table(&plan, &other, 9).unwrap_err(),
        render::dot(&plan, &other, None).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.to_string(), "the group is placed on 8 hosts, the fabric has 9");
    }
}

#[test]
fn the_tree_in_the_docs_is_up_to_date() {
    let star = fabric("star:8");
    let tree = render::tree(&planned(&star, 1, "all", "binomial"), &star, render::WORMS_SHOWN).unwrap();
    let indented = format!("    {}\n\n", tree.trim_end().replace('\n', "\n    "));
    assert!(include_str!("../../../docs/plans.md").contains(&indented), "{indented}");
}
