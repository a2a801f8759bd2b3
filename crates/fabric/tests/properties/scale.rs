//! A large fabric.

use treecast_fabric::{Fabric, FabricSpec, HostId, RouteFinder, SwitchId};

#[test]
fn ten_thousand_hosts_on_a_thousand_switches_are_routed() {
    let spec: FabricSpec =
        "irregular:switches=1000,ports=24,hosts=10000,connectivity=0.75,seed=1".parse().unwrap();
    let fabric = Fabric::from_spec(&spec).unwrap();
    let topology = fabric.topology();
    assert_eq!(topology.host_count(), 10_000);
    assert_eq!(topology.switch_count(), 1_000);
    let routing = fabric.routing().up_down().unwrap();
    for target in [0, 499, 999].map(SwitchId) {
        let distances = routing.distances(topology, target);
        for from in topology.switches() {
            let links = distances.from(from, false).unwrap();
            assert!(u32::from(links) <= routing.level(from) + routing.level(target), "at most over the root");
        }
    }
    let route = RouteFinder::new(topology, fabric.routing()).route(HostId(0), HostId(9_999));
    assert!(route.len() >= 3);
}
