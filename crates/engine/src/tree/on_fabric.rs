//! The plan of a group on the fabric of its settings.

use std::collections::{BTreeMap, BTreeSet};

use treecast_fabric::{Fabric, HostId, HostNames, SwitchId};
use treecast_plan::shape::{self, Shape};
use treecast_plan::{
    FlatScheme, Group, Local, MemberId, Placement, Plan, Planner, Scheme, TreeScheme, Worm, WormKind,
};

use super::{lambda, options, packets, tree_for};
use crate::settings::GroupSettings;
use crate::settings::error::NodeError;
use crate::settings::hosts::Hosts;

/// Messages of at least this many packets per rack go from rack to rack in a chain: a copy of the
/// message then takes an uplink longer than the racks take to wake up one after another
/// (docs/bench.md).
const CHAIN_PACKETS_PER_RACK: u64 = 4;

/// Checks that the fabric, if there is one, has the hosts of all members.
///
/// # Errors
/// [`NodeError::NotOnFabric`].
pub fn check(settings: &GroupSettings) -> Result<(), NodeError> {
    settings.fabric.as_ref().map_or(Ok(()), |fabric| hosts_of(fabric, settings).map(drop))
}

/// Checks that the fabric supports the scheme of a group of `count` members whose hosts are not
/// known yet.
///
/// # Errors
/// [`NodeError::Plan`], [`NodeError::PlanNotExecutable`].
pub fn check_scheme(fabric: &Fabric, count: usize, settings: &GroupSettings) -> Result<(), NodeError> {
    if let Some(plan) = &settings.plan {
        return super::check_executable(plan, &Hosts::one_each(count), settings);
    }
    let Some(scheme) = settings.scheme else { return Ok(()) };
    super::check_scheme(scheme, false)?;
    Ok(Planner::new(fabric, &scheme.with_lambda(lambda(settings, false)), &options(settings)).map(drop)?)
}

/// The host of each member, by its number.
fn hosts_of(fabric: &Fabric, settings: &GroupSettings) -> Result<Vec<HostId>, NodeError> {
    let names = HostNames::new(fabric.topology());
    let find = |(number, name): (usize, &String)| {
        let error = |error| NodeError::NotOnFabric { member: format!("member {number}"), error };
        names.find(name).map_err(error)
    };
    if settings.hosts.is_empty() {
        let addresses: Vec<String> = settings.members.iter().map(|member| member.ip().to_string()).collect();
        return addresses.iter().enumerate().map(find).collect();
    }
    if settings.hosts.len() != settings.members.len() {
        let (hosts, members) = (settings.hosts.len(), settings.members.len());
        return Err(NodeError::Members(format!(
            "the names of {hosts} hosts are not those of {members} members"
        )));
    }
    settings.hosts.iter().enumerate().map(find).collect()
}

/// The plan that the scheme of a group makes on a fabric. One member of each host takes part in it,
/// the root on its own host, and sends to the others there.
///
/// # Errors
/// [`NodeError::NotOnFabric`]; [`NodeError::Plan`], if the fabric does not support the scheme.
pub(super) fn plan_on(
    fabric: &Fabric,
    settings: &GroupSettings,
    is_in_kernel: bool,
) -> Result<Plan, NodeError> {
    let root = MemberId(settings.root as u32);
    let hosts = hosts_of(fabric, settings)?;
    let home = hosts[settings.root];
    let mut members: BTreeMap<HostId, Vec<MemberId>> = BTreeMap::from([(home, vec![root])]);
    for (member, &host) in (0..).map(MemberId).zip(&hosts).filter(|&(member, _)| member != root) {
        members.entry(host).or_default().push(member);
    }
    let given = settings.scheme.map(|scheme| scheme.with_lambda(lambda(settings, is_in_kernel)));
    let scheme = given.unwrap_or_else(|| {
        let tree = tree_for(hosts.len(), settings, is_in_kernel);
        automatic(fabric, home, members.keys(), tree, packets(settings))
    });
    let mut planner = Planner::new(fabric, &Scheme::Flat(scheme.flat()), &options(settings))?;
    let others: Vec<MemberId> =
        members.keys().filter(|&&host| host != home).map(|host| MemberId(host.0)).collect();
    let mut worms = Vec::with_capacity(hosts.len());
    if !others.is_empty() {
        let placement = Placement::one_per_host(fabric.topology().host_count());
        let plan = planner.plan(&Group::new(placement, MemberId(home.0), others)?)?;
        for worm in plan.worms() {
            worms.extend(
                worm.to.iter().map(|to| unicast(members[&HostId(worm.from.0)][0], members[&HostId(to.0)][0])),
            );
        }
    }
    for members in members.values() {
        let Shape(edges) = match scheme {
            Scheme::Leader { local: Local::Binomial, .. } => shape::halving(members.len() as u32),
            _ => shape::separate(members.len() as u32),
        };
        worms.extend(edges.iter().map(|&(from, to)| unicast(members[from as usize], members[to as usize])));
    }
    let placement = Placement::one_per_host(hosts.len() as u32);
    Ok(Plan::new(scheme, scheme.label_on(fabric, None), root, placement, worms)?)
}

fn unicast(from: MemberId, to: MemberId) -> Worm {
    Worm { from, index: 0, kind: WormKind::Unicast, to: vec![to], route: Vec::new() }
}

/// The scheme for members on these hosts: the hierarchical one, where it pays, and else a tree that
/// does not know the racks.
///
/// A chain that goes rack by rack costs nothing. Another tree gets deeper: that pays where at most
/// half as many messages go from rack to rack as the root would send if it sent to each host in
/// another rack. The hosts of a rack share its uplink, so a message that is long for the number of
/// racks goes from rack to rack in a chain, and in a tree inside.
fn automatic<'a>(
    fabric: &Fabric,
    home: HostId,
    hosts: impl Iterator<Item = &'a HostId>,
    tree: TreeScheme,
    packets: u64,
) -> Scheme {
    let rack_of = |host| fabric.topology().switch_of(host);
    let away: Vec<SwitchId> =
        hosts.map(|&host| rack_of(host)).filter(|&rack| rack != rack_of(home)).collect();
    let others = away.iter().collect::<BTreeSet<_>>().len();
    if others == 0 || (tree != TreeScheme::Serial && 2 * others > away.len()) {
        return Scheme::tree(tree);
    }
    let is_long = packets >= CHAIN_PACKETS_PER_RACK * (others as u64 + 1);
    let across = if is_long { TreeScheme::Serial } else { tree };
    Scheme::Flat(FlatScheme::Hierarchical { across, inside: tree })
}

#[cfg(test)]
mod tests {
    use treecast_fabric::read;

    use super::*;
    use crate::settings::config::settings_of;
    use crate::tree::{children, plan_of};

    /// The settings of members on these hosts.
    fn settings(inventory: &str, hosts: &[&str]) -> GroupSettings {
        let topology = read::inventory("lab.inventory", inventory).unwrap().topology;
        let fabric = Fabric::new(topology, treecast_fabric::RoutingPolicy::Auto).unwrap();
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let members = settings_of(hosts.len() as u16);
        GroupSettings { hosts, message_bytes: 64, ..members }.with_fabric(fabric)
    }

    fn hosts(settings: &GroupSettings) -> Hosts {
        Hosts::of(&settings.members).unwrap()
    }

    fn plan(settings: &GroupSettings) -> Plan {
        Plan::clone(&plan_of(&hosts(settings), settings, false).unwrap().unwrap())
    }

    fn children_of(settings: &GroupSettings) -> Vec<Vec<u32>> {
        let children = children(Some(&plan(settings)), &hosts(settings));
        children.iter().map(|children| children.iter().map(|child| child.0).collect()).collect()
    }

    fn error(settings: &GroupSettings) -> String {
        plan_of(&hosts(settings), settings, false).unwrap_err().to_string()
    }

    const TWO_RACKS: &str = "n[0-2] r0\nn[3-5] r1";

    #[test]
    fn one_member_of_each_rack_is_reached_from_outside() {
        let mixed = settings(TWO_RACKS, &["n0", "n3", "n1", "n4", "n2", "n5"]);
        assert_eq!(children_of(&mixed), [vec![1, 4, 2], vec![5, 3], vec![], vec![], vec![], vec![]]);
        assert_eq!(plan(&mixed).scheme().name(), "hierarchical");
        let long = GroupSettings { message_bytes: 1 << 24, root: 1, ..mixed };
        // The root is on n3.
        assert_eq!(children_of(&long), [vec![2], vec![3], vec![4], vec![5], vec![], vec![0]]);
    }

    #[test]
    fn a_message_of_many_packets_goes_from_rack_to_rack_in_a_chain() {
        let hosts = settings(TWO_RACKS, &["n0", "n3", "n1", "n4", "n2", "n5"]);
        let scheme =
            |message_bytes| plan(&GroupSettings { message_bytes, ..hosts.clone() }).scheme().to_string();
        assert!(scheme(7 * 1_408).starts_with("hierarchical:across=postal,"), "{}", scheme(7 * 1_408));
        assert!(scheme(8 * 1_408).starts_with("hierarchical:across=serial,inside=postal,"));
        assert_eq!(scheme(96 * 1_408), "hierarchical:across=serial,inside=serial");
    }

    #[test]
    fn members_that_share_a_node_are_reached_together() {
        let mut shared = settings(TWO_RACKS, &["n0", "n0", "n3", "n3", "n4", "n5"]);
        shared.members[1] = shared.members[0];
        shared.members[3] = shared.members[2];
        assert_eq!(children_of(&shared), [vec![1], vec![3, 2], vec![], vec![]]);
        assert!(plan(&shared).scheme().to_string().starts_with("leader:over=hierarchical"));
    }

    #[test]
    fn the_tree_does_not_know_racks_where_that_does_not_pay() {
        for hosts in [&["n0", "n1", "n2"][..], &["n0", "n3"], &["n0", "n1", "n3"]] {
            assert_eq!(plan(&settings(TWO_RACKS, hosts)).scheme().name(), "postal", "{hosts:?}");
        }
        assert_eq!(plan(&settings(TWO_RACKS, &["n0", "n3", "n4"])).scheme().name(), "hierarchical");
    }

    #[test]
    fn one_node_of_each_host_is_reached_from_outside() {
        let several = settings(TWO_RACKS, &["n0", "n0", "n3", "n3", "n3", "n4"]);
        assert_eq!(children_of(&several), [vec![2, 1], vec![], vec![5, 3, 4], vec![], vec![], vec![]]);
        let alone = settings(TWO_RACKS, &["n1", "n1", "n1"]);
        assert_eq!(children_of(&GroupSettings { root: 1, ..alone }), [vec![], vec![0, 2], vec![]]);
    }

    #[test]
    fn a_scheme_can_be_given() {
        let given = |scheme: &str| {
            let hosts = settings(TWO_RACKS, &["n5", "n0", "n1", "n2"]);
            GroupSettings { scheme: Some(scheme.parse().unwrap()), ..hosts }
        };
        assert_eq!(children_of(&given("separate"))[0], [1, 2, 3]);
        assert_eq!(children_of(&given("hierarchical"))[0], [1]);
        assert!(plan(&given("postal")).scheme().to_string().starts_with("postal:lambda="));
        assert!(error(&given("tree-worm")).contains("a worm is a tree worm"));
        assert!(error(&given("u-torus")).contains("needs a torus"));
        let listening = check_scheme(given("tree-worm").fabric.as_ref().unwrap(), 4, &given("tree-worm"));
        assert!(listening.unwrap_err().to_string().contains("a worm is a tree worm"));
    }

    #[test]
    fn a_member_that_the_fabric_does_not_have_is_named() {
        let unknown = settings(TWO_RACKS, &["n0", "n9"]);
        assert!(error(&unknown).starts_with("member 1: the fabric has no host 'n9': known are n0, n1, n2, "));
        let without_names = GroupSettings { hosts: Vec::new(), ..unknown };
        assert!(
            error(&without_names).starts_with("member 0: the fabric has no host '10.0.0.1': known are n0, ")
        );
    }
}
