//! Many plans of one planner.

use crate::common::{Case, cases};
use proptest::prelude::*;
use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::{Group, MemberId, MemberList, Placement, PlanError, PlanOptions, Planner, plan};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn plans_do_not_depend_on_earlier_ones(case in cases(), seeds in proptest::collection::vec(0_u64..1000, 1..4)) {
        let fabric = case.fabric();
        let options = PlanOptions { order: case.order, packets: case.packets };
        let mut planner = Planner::new(&fabric, &case.scheme(), &options).unwrap();
        let shares = seeds.iter().map(|&seed| (seed, (seed % 11) as f64 / 10.0));
        for (seed, share) in shares {
            let other = Case { seed, share, ..case.clone() };
            prop_assert_eq!(planner.plan(&other.group(&fabric)).ok(), other.plan(&fabric));
        }
    }
}

#[test]
fn a_planner_refuses_a_scheme_that_does_not_fit_the_fabric() {
    let fabric = Fabric::from_spec(&"mesh:k=4".parse::<FabricSpec>().unwrap()).unwrap();
    let refused = |scheme: &str| {
        Planner::new(&fabric, &scheme.parse().unwrap(), &PlanOptions::default()).map(|_| ()).unwrap_err()
    };
    for scheme in ["path", "tree-worm", "leader:over=path"] {
        assert!(matches!(refused(scheme), PlanError::NeedsUpDown { .. }), "{scheme}");
    }
    assert!(matches!(refused("u-torus"), PlanError::NeedsTorus { .. }));
    for (scheme, key) in [
        ("postal", "lambda"),
        ("leader:over=postal", "lambda"),
        ("hierarchical:across=postal,inside=postal", "across-lambda"),
        ("hierarchical:inside=postal", "inside-lambda"),
    ] {
        assert_eq!(refused(scheme), PlanError::NeedsLambda { key }, "{scheme}");
        assert!(refused(scheme).to_string().contains(&format!("add {key}=3.5")));
    }
    let mut planner = Planner::new(&fabric, &"serial".parse().unwrap(), &PlanOptions::default()).unwrap();
    let group = Group::new(Placement::one_per_host(8), MemberId(0), vec![MemberId(1)]).unwrap();
    assert_eq!(planner.plan(&group), Err(PlanError::PlacementMismatch { placed: 8, hosts: 16 }));
}

#[test]
fn sparse_and_dense_groups_get_the_same_sends() {
    // The same hosts, once on a large star and once on a small one.
    let planned = |hosts: u32| {
        let fabric = Fabric::from_spec(&format!("star:{hosts}").parse::<FabricSpec>().unwrap()).unwrap();
        let placement = Placement::one_per_host(hosts);
        let list: MemberList = "3,5-9,20".parse().unwrap();
        let destinations = list.resolve(&placement, MemberId(4), 1).unwrap();
        let group = Group::new(placement, MemberId(4), destinations).unwrap();
        plan(&fabric, &group, &"binomial".parse().unwrap(), &PlanOptions::default()).unwrap()
    };
    let (few, many) = (planned(21), planned(2000));
    for member in (0..21).map(MemberId) {
        assert_eq!(few.sends().of(member), many.sends().of(member), "{member}");
    }
    assert!(many.sends().of(MemberId(1999)).is_empty());
}
