//! The plan of a group, which is given or made, and the children of each member in it.

mod check;
pub mod on_fabric;

use std::net::SocketAddr;
use std::sync::Arc;

use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::shape::Lambda;
use treecast_plan::{
    FlatScheme, Form, Group, Local, MemberId, Placement, Plan, PlanError, PlanOptions, Scheme, TorusScheme,
    TreeScheme, Worm, WormKind, plan,
};
use treecast_proto::{Offload, Transport};

use crate::settings::GroupSettings;
use crate::settings::costs::best_tree;
use crate::settings::error::NodeError;
use crate::settings::hosts::Hosts;

/// Messages of at least this many packets per member use a chain: each member then sends each
/// packet once, which keeps its link full, and the delay of the chain, a few packets per member, is
/// small.
const CHAIN_PACKETS_PER_MEMBER: u64 = 16;

/// The time until a member has a short message and can forward it, in units of the time to send one
/// more copy of it. In user space a copy is one more datagram of a batch, and the member has to
/// wake up. In the kernel no thread wakes up, but a copy costs so little that one member serves a
/// dozen others faster than a relay.
const WAKE_COPIES: f64 = 7.0;
const KERNEL_COPIES: f64 = 16.0;

/// The length at which a copy of a message takes twice as long as a copy of a short message, in
/// bytes.
const COPY_BYTES: f64 = 13.0 * 1024.0;

/// The plan of a group whose members are on these hosts: that of the settings, or the one that
/// their scheme makes on their fabric, or else on a network where all hosts are equally far from
/// each other. Where several members share a node, it reaches each host once. None for a single
/// member.
///
/// # Errors
/// [`NodeError::PlanNotExecutable`], [`NodeError::Plan`], [`NodeError::NotOnFabric`].
pub fn plan_of(
    hosts: &Hosts,
    settings: &GroupSettings,
    is_in_kernel: bool,
) -> Result<Option<Arc<Plan>>, NodeError> {
    if let Some(plan) = &settings.plan {
        check_executable(plan, hosts, settings)?;
        return Ok(Some(Arc::clone(plan)));
    }
    if let Some(scheme) = settings.scheme {
        check_scheme(scheme, hosts.are_shared())?;
    }
    if hosts.member_count() == 1 {
        return Ok(None);
    }
    if !hosts.are_shared() {
        return plan_of_nodes(hosts.count(), settings, is_in_kernel).map(|plan| Some(Arc::new(plan)));
    }
    let scheme = scheme(hosts, settings, is_in_kernel);
    if matches!(scheme, Scheme::Leader { local, .. } if local != Local::Direct) {
        return Err(NodeError::PlanNotExecutable(format!("its scheme is {scheme}, and {SHARED}")));
    }
    let of_nodes = GroupSettings {
        members: hosts.addresses().to_vec(),
        hosts: (0..hosts.count())
            .filter_map(|host| settings.hosts.get(hosts.members_of(host)[0].index()).cloned())
            .collect(),
        root: hosts.host_of(settings.root),
        scheme: settings.scheme.map(|scheme| Scheme::Flat(scheme.flat())),
        ..settings.clone()
    };
    let plan =
        (hosts.count() > 1).then(|| plan_of_nodes(hosts.count(), &of_nodes, is_in_kernel)).transpose()?;
    plan_of_members(plan.as_ref(), hosts, MemberId(settings.root as u32), scheme.flat())
        .map(|plan| Some(Arc::new(plan)))
}

/// The plan of a group whose members have a node each. Their addresses may not be known yet.
fn plan_of_nodes(count: usize, settings: &GroupSettings, is_in_kernel: bool) -> Result<Plan, NodeError> {
    if let Some(fabric) = &settings.fabric {
        return on_fabric::plan_on(fabric, settings, is_in_kernel);
    }
    let scheme = scheme_of_nodes(count, settings, is_in_kernel);
    let count = count as u32;
    let fabric = Fabric::from_spec(&FabricSpec::Star(count)).map_err(PlanError::from)?;
    let root = MemberId(settings.root as u32);
    let others = (0..count).map(MemberId).filter(|&member| member != root).collect();
    let group = Group::new(Placement::one_per_host(count), root, others)?;
    Ok(plan(&fabric, &group, &scheme, &options(settings))?)
}

/// The plan of members that share nodes, from that of the nodes, if these are several: a message to
/// a node is one to all its members. The root sends to the other members of its own.
fn plan_of_members(
    of_nodes: Option<&Plan>,
    hosts: &Hosts,
    root: MemberId,
    over: FlatScheme,
) -> Result<Plan, NodeError> {
    let home = hosts.host_of(root.index());
    let members_of = |host: MemberId| hosts.members_of(host.index());
    let leader_of = |host: MemberId| if host.index() == home { root } else { members_of(host)[0] };
    let of_member = |worm: &Worm| Worm {
        from: leader_of(worm.from),
        to: worm.to.iter().flat_map(|&to| members_of(to)).collect(),
        route: Vec::new(),
        ..worm.clone()
    };
    let mut worms: Vec<Worm> = of_nodes.into_iter().flat_map(Plan::worms).map(of_member).collect();
    let mates: Vec<MemberId> = hosts.members_of(home).into_iter().filter(|&member| member != root).collect();
    if !mates.is_empty() {
        let index = worms.iter().filter(|worm| worm.from == root).count() as u32;
        worms.push(Worm { from: root, index, kind: WormKind::Local, to: mates, route: Vec::new() });
    }
    let over = of_nodes.map_or(over, |plan| plan.scheme().flat());
    let scheme = Scheme::Leader { over, local: Local::Direct };
    Ok(Plan::new(scheme, scheme.label(), root, hosts.placement()?, worms)?)
}

/// The options of a plan for the messages of a group.
fn options(settings: &GroupSettings) -> PlanOptions {
    let packets = packets(settings).clamp(1, u64::from(treecast_plan::PACKETS_MAX)) as u32;
    PlanOptions { packets, ..PlanOptions::default() }
}

/// The children of each host in the protocol's tree: the hosts of the receivers of its members'
/// worms, in the order in which they are sent.
pub fn children(plan: Option<&Plan>, hosts: &Hosts) -> Vec<Vec<MemberId>> {
    let mut children: Vec<Vec<MemberId>> = vec![Vec::new(); hosts.count()];
    for worm in plan.into_iter().flat_map(Plan::worms) {
        let from = hosts.host_of(worm.from.index());
        let mut to: Vec<usize> = worm.to.iter().map(|to| hosts.host_of(to.index())).collect();
        // A message to several members of a host is one packet to its node, and none to the
        // sender's own.
        to.dedup();
        children[from].extend(to.into_iter().filter(|&to| to != from).map(|to| MemberId(to as u32)));
    }
    children
}

/// Checks that nodes can carry out the plans of a scheme: their worms are none that switches would
/// have to replicate, and only members that share a node are reached by one message.
///
/// # Errors
/// [`NodeError::PlanNotExecutable`].
fn check_scheme(scheme: Scheme, are_shared: bool) -> Result<(), NodeError> {
    let error =
        |reason: String| Err(NodeError::PlanNotExecutable(format!("its scheme is {scheme}, and {reason}")));
    if matches!(scheme, Scheme::Leader { local: Local::Direct, .. }) && !are_shared {
        return error(
            "no two members share a node: leave out local=direct, or give the processes of a host one address".into(),
        );
    }
    match scheme.flat() {
        FlatScheme::Path(_)
        | FlatScheme::Torus(
            TorusScheme::S { form: Form::Worm }
            | TorusScheme::Md { form: Form::Worm }
            | TorusScheme::Mu { form: Form::Worm, .. },
        ) => error(format!("a worm {}", replicated(WormKind::Path))),
        FlatScheme::TreeWorm => error(format!("a worm {}", replicated(WormKind::Tree))),
        FlatScheme::Tree(_) | FlatScheme::Hierarchical { .. } | FlatScheme::Torus(_) => Ok(()),
    }
}

fn replicated(kind: WormKind) -> String {
    format!(
        "is a {} worm, which the switches of the network would have to replicate: make the plan with a scheme of unicasts, such as binomial",
        kind.name()
    )
}

/// Checks that the members of a group can carry out a plan. Of their addresses those count that are
/// known.
fn check_executable(plan: &Plan, hosts: &Hosts, settings: &GroupSettings) -> Result<(), NodeError> {
    let count = hosts.member_count();
    let error = |reason: String| Err(NodeError::PlanNotExecutable(reason));
    if let Some(scheme) = &settings.scheme {
        return error(format!(
            "the settings have the scheme {scheme} too, and the plan has its own: leave the scheme out"
        ));
    }
    if settings.fabric.is_some() {
        return error(
            "the settings have a fabric too, and the plan is made already: leave one of them out".into(),
        );
    }
    let (planned, root) = (plan.placement().member_count(), plan.root());
    if planned as usize != count {
        return error(format!("it is for {planned} members, and the group has {count}"));
    }
    if root.index() != settings.root {
        return error(format!(
            "its root is member {root}, and that of the group member {}: set root={root}",
            settings.root
        ));
    }
    for (position, worm) in plan.worms().iter().enumerate() {
        if let Some(reason) = obstacle(worm, hosts, settings) {
            return error(format!("worm {position} of member {} {reason}", worm.from));
        }
    }
    let mut is_reached = vec![false; count];
    is_reached[root.index()] = true;
    for member in plan.worms().iter().flat_map(|worm| &worm.to) {
        is_reached[member.index()] = true;
    }
    match is_reached.iter().position(|&is_reached| !is_reached) {
        Some(member) => error(format!("it does not reach member {member}")),
        None => Ok(()),
    }
}

/// Why a worm to some members of a host cannot be sent where they share a node.
const SHARED: &str =
    "the members of a host read the same slots: make the plan with the scheme leader:local=direct";

/// What prevents nodes from sending a worm, if anything does.
fn obstacle(worm: &Worm, hosts: &Hosts, settings: &GroupSettings) -> Option<String> {
    let ip = |member: MemberId| settings.members.get(member.index()).map(SocketAddr::ip);
    let host_of = |member: MemberId| hosts.host_of(member.index());
    // A packet that arrives for one member of a host is read by all its members, except by the
    // root.
    let reaches_host = || {
        let host = host_of(worm.to[0]);
        let readers = hosts.members_of(host).len() - usize::from(host == hosts.host_of(settings.root));
        worm.to.iter().all(|&to| host_of(to) == host) && worm.to.len() == readers
    };
    match worm.kind {
        WormKind::Unicast | WormKind::Local if hosts.are_shared() => {
            (!reaches_host()).then(|| format!("is for some members of a host only, and {SHARED}"))
        }
        WormKind::Unicast if worm.to.len() > 1 => Some(
            "is one message to several processes of a host, and here each process has a node of its own: make the plan with another local scheme, such as leader:local=binomial"
                .into(),
        ),
        WormKind::Unicast => None,
        WormKind::Local => worm.to.iter().find(|&&to| ip(to) != ip(worm.from)).map(|to| {
            format!("stays inside a host, and member {to} has the address of another host")
        }),
        WormKind::Path | WormKind::Tree => Some(replicated(worm.kind)),
    }
}

/// The scheme of a group: that of the settings, or, where they leave it or its lambda open, one for
/// the length of messages. Where members share nodes, it reaches one of each host, and the others
/// read the same slots. `is_in_kernel` is about the root.
pub fn scheme(hosts: &Hosts, settings: &GroupSettings, is_in_kernel: bool) -> Scheme {
    let scheme = scheme_of_nodes(hosts.count(), settings, is_in_kernel);
    match scheme {
        Scheme::Flat(over) if hosts.are_shared() => Scheme::Leader { over, local: Local::Direct },
        scheme => scheme,
    }
}

fn scheme_of_nodes(count: usize, settings: &GroupSettings, is_in_kernel: bool) -> Scheme {
    match settings.scheme {
        Some(scheme) if scheme.as_tree() != Some(TreeScheme::Postal { lambda: None }) => {
            scheme.with_lambda(lambda(settings, is_in_kernel))
        }
        _ => Scheme::tree(tree_for(count, settings, is_in_kernel)),
    }
}

/// The number of packets of a message.
fn packets(settings: &GroupSettings) -> u64 {
    settings.message_bytes.div_ceil(u64::from(settings.payload_bytes_max().max(1)))
}

/// The tree for the length of messages: the best one by the costs of the network, if they are
/// known, or else a chain for long ones, and a postal tree.
fn tree_for(count: usize, settings: &GroupSettings, is_in_kernel: bool) -> TreeScheme {
    if let Some(tree) = best_tree(count, settings, is_in_kernel) {
        return tree;
    }
    if packets(settings) >= CHAIN_PACKETS_PER_MEMBER * count as u64 {
        return TreeScheme::Serial;
    }
    TreeScheme::Postal { lambda: Some(lambda(settings, is_in_kernel)) }
}

/// Whether the group has streams, which the kernel's packet path does not forward.
fn has_streams(settings: &GroupSettings) -> bool {
    settings.transport.is_some_and(Transport::has_streams)
}

/// The time until a member has a message, in copies of it: the longer a message, the less the
/// wake-up counts. The numbers come from a lab (docs/bench.md), for networks that are not measured.
fn lambda(settings: &GroupSettings, is_in_kernel: bool) -> Lambda {
    let wake_copies = if is_in_kernel && settings.offload == Some(Offload::Nic) && !has_streams(settings) {
        KERNEL_COPIES
    } else {
        WAKE_COPIES
    };
    let copy = 1.0 + settings.message_bytes as f64 / COPY_BYTES;
    let lambda = 1.0 + wake_copies / copy;
    Lambda::of((lambda * 10.0).round() / 10.0).unwrap_or(Lambda(1_000))
}

#[cfg(test)]
mod tests {
    use treecast_model::Network;
    use treecast_plan::{Arrangement, Label, Placement};

    use super::*;
    use crate::settings::config::settings_of as settings;

    fn children_of(settings: &GroupSettings, is_in_kernel: bool) -> Vec<Vec<MemberId>> {
        let hosts = Hosts::of(&settings.members).unwrap();
        children(plan_of(&hosts, settings, is_in_kernel).unwrap().as_deref(), &hosts)
    }

    #[test]
    fn long_messages_use_a_chain() {
        let settings = GroupSettings { message_bytes: 1 << 20, root: 2, ..settings(5) };
        let children = children_of(&settings, false);
        assert_eq!(children[2], [MemberId(0)]);
        assert!(children.iter().all(|children| children.len() <= 1));
    }

    #[test]
    fn the_root_has_fewer_children_for_longer_messages() {
        let children = [64, 16 << 10, 64 << 10, 1 << 20].map(|message_bytes| {
            let settings = GroupSettings { message_bytes, ..settings(16) };
            children_of(&settings, false)[0].len()
        });
        assert_eq!(children, [11, 8, 6, 1]);
    }

    #[test]
    fn the_root_has_more_children_where_the_kernel_forwards() {
        let settings = GroupSettings { message_bytes: 64, ..settings(16) };
        let children = [false, true].map(|is_in_kernel| children_of(&settings, is_in_kernel)[0].len());
        assert_eq!(children, [11, 15]);
    }

    #[test]
    fn the_costs_of_the_network_choose_the_tree() {
        let text = |engine: &str, transport: &str, costs: &str| {
            let way = format!("[[way]]\nengine = '{engine}'\noffload = 'nic'\ntransport = '{transport}'");
            format!("format = 'treecast-network-1'\n{way}\n[way.set]\n{costs}\n")
        };
        let children = |network: String, is_in_kernel| {
            let network = Network::parse("network.toml", &network).unwrap();
            let settings =
                GroupSettings { network: Some(Arc::new(network)), message_bytes: 64, ..settings(16) };
            children_of(&settings, is_in_kernel)[0].len()
        };
        let slow_relays = "send_us = 1\nwake_us = 500";
        assert_eq!(children(text("user", "stream", slow_relays), false), 15);
        let slow_copies = "send_us = 50\nwake_us = 0\nwake_cpu_us = 0\nreceive_us = 1";
        assert_eq!(children(text("user", "stream", slow_copies), false), 4);
        assert_eq!(children(text("ebpf", "packets", slow_copies), true), 4);
        // Nothing is known of the other ways.
        assert_eq!(children(text("user", "stream", slow_copies), true), 15);
    }

    #[test]
    fn a_scheme_can_be_given() {
        let settings = GroupSettings { scheme: Some("separate".parse().unwrap()), ..settings(5) };
        assert_eq!(children_of(&settings, false)[0], [1, 2, 3, 4].map(MemberId));
    }

    #[test]
    fn a_scheme_that_nodes_cannot_carry_out_is_refused() {
        for (scheme, reason) in [
            ("tree-worm", "a worm is a tree worm"),
            ("leader:over=tree-worm", "a worm is a tree worm"),
            ("path:policy=mdp-lg", "a worm is a path worm"),
            ("s-torus:form=worm", "a worm is a path worm"),
            ("leader:over=binomial,local=direct", "no two members share a node"),
        ] {
            for members in [1, 2, 5] {
                let settings = GroupSettings { scheme: Some(scheme.parse().unwrap()), ..settings(members) };
                let planned = plan_of(&Hosts::of(&settings.members).unwrap(), &settings, false);
                let error = planned.unwrap_err().to_string();
                assert!(error.contains(&format!("its scheme is {scheme}, and {reason}")), "{error}");
            }
        }
        let settings = GroupSettings { scheme: Some("leader:local=direct".parse().unwrap()), ..shared() };
        assert!(plan_of(&Hosts::of(&settings.members).unwrap(), &settings, false).is_ok());
    }

    #[test]
    fn two_members_need_no_lambda() {
        let settings = GroupSettings { scheme: Some("postal".parse().unwrap()), ..settings(2) };
        assert_eq!(children_of(&settings, false)[0], [MemberId(1)]);
    }

    #[test]
    fn a_single_member_has_no_children() {
        assert_eq!(children_of(&settings(1), false), [vec![]]);
    }

    /// The error for a plan of this scheme, on a fabric with this many processes on each host.
    fn refused(fabric: &str, processes: u32, scheme: &str, settings: &GroupSettings) -> String {
        let settings = GroupSettings { plan: Some(given(fabric, processes, scheme)), ..settings.clone() };
        plan_of(&Hosts::of(&settings.members).unwrap(), &settings, false).unwrap_err().to_string()
    }

    fn given(fabric: &str, processes: u32, scheme: &str) -> Arc<Plan> {
        let fabric = Fabric::from_spec(&fabric.parse().unwrap()).unwrap();
        let placement =
            Placement::new(fabric.topology().host_count(), processes, Arrangement::Block).unwrap();
        let others = (1..placement.member_count()).map(MemberId).collect();
        let group = Group::new(placement, MemberId(0), others).unwrap();
        Arc::new(plan(&fabric, &group, &scheme.parse().unwrap(), &PlanOptions::default()).unwrap())
    }

    #[test]
    fn a_plan_can_be_given() {
        let settings = GroupSettings { plan: Some(given("star:8", 1, "binomial")), ..settings(8) };
        assert_eq!(children_of(&settings, true)[0], [4, 2, 1].map(MemberId));
    }

    #[test]
    fn a_plan_that_nodes_cannot_carry_out_is_refused_with_the_reason() {
        let four = settings(4);
        let error = |fabric, processes, scheme| refused(fabric, processes, scheme, &four);
        assert!(error("star:8", 1, "binomial").ends_with("it is for 8 members, and the group has 4"));
        assert!(
            error("irregular:switches=2,ports=4,hosts=4,seed=1", 1, "tree-worm").contains("is a tree worm")
        );
        assert!(error("star:2", 2, "leader:local=direct").contains("several processes of a host"));
        let elsewhere = GroupSettings { root: 2, ..settings(4) };
        assert!(refused("star:4", 1, "binomial", &elsewhere).ends_with("set root=0"));
        let with_scheme = GroupSettings { scheme: Some("serial".parse().unwrap()), ..settings(4) };
        assert!(refused("star:4", 1, "binomial", &with_scheme).contains("scheme serial too"));
        let mut apart = settings(4);
        apart.members[1].set_ip([10, 0, 0, 9].into());
        assert!(refused("star:2", 2, "leader:local=binomial", &apart).contains("stays inside a host"));
    }

    /// Four members on two hosts.
    fn shared() -> GroupSettings {
        let mut shared = settings(4);
        shared.members[1] = shared.members[0];
        shared.members[3] = shared.members[2];
        shared
    }

    #[test]
    fn members_that_share_a_node_are_one_host_in_the_tree() {
        let one_worm = [vec![MemberId(1)], vec![]];
        assert_eq!(children_of(&shared(), false), one_worm);
        let from_the_last = GroupSettings { root: 3, ..shared() };
        assert_eq!(children_of(&from_the_last, false), [vec![], vec![MemberId(0)]]);
        let given_plan = Some(given("star:2", 2, "leader:local=direct"));
        assert_eq!(children_of(&GroupSettings { plan: given_plan, ..shared() }, false), one_worm);
    }

    #[test]
    fn a_plan_whose_copies_inside_a_host_are_messages_is_refused_for_members_that_share_a_node() {
        let error = refused("star:2", 2, "leader:local=binomial", &shared());
        assert!(error.contains("leader:local=direct"), "{error}");
    }

    #[test]
    fn a_plan_that_leaves_members_out_is_refused() {
        let placement = Placement::one_per_host(3);
        let worm = Worm {
            from: MemberId(0),
            index: 0,
            kind: WormKind::Unicast,
            to: vec![MemberId(2)],
            route: vec![],
        };
        let scheme = "separate".parse().unwrap();
        let plan = Plan::new(scheme, Label::Published, MemberId(0), placement, vec![worm]).unwrap();
        let settings = GroupSettings { plan: Some(Arc::new(plan)), ..settings(3) };
        let error =
            plan_of(&Hosts::of(&settings.members).unwrap(), &settings, false).unwrap_err().to_string();
        assert!(error.ends_with("it does not reach member 1"), "{error}");
    }
}
