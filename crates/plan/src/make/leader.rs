//! Leaders: one member per host takes part in a flat scheme, and forwards inside its host.

use treecast_fabric::{HostId, RouteFinder};

use super::flat::FlatMaker;
use super::sender::Sender;
use crate::error::PlanError;
use crate::group::Group;
use crate::plan::{Worm, WormKind};
use crate::scheme::Local;
use crate::shape;
use treecast_terms::MemberId;

/// The root leads its host; elsewhere the member with the lowest id does. Leaders first send into
/// the fabric, then serve their own host.
pub(super) fn worms<'a>(
    over: &mut FlatMaker<'a>,
    local: Local,
    finder: &mut Option<RouteFinder<'a>>,
    group: &Group,
) -> Result<Vec<Worm>, PlanError> {
    let hosts = members_by_host(group);
    let leaders: Vec<MemberId> = hosts.iter().map(|(_, members)| members[0]).collect();
    let mut worms = Vec::new();
    if leaders.len() > 1 {
        let others = Group::new(group.placement().clone(), group.root(), leaders[1..].to_vec())?;
        worms = over.worms(finder, &others)?;
    }
    let mut sender = Sender::new(finder, group);
    sender.worms.append(&mut worms);
    match local {
        Local::Direct => {
            for worm in &mut sender.worms {
                worm.to = worm.to.iter().flat_map(|&leader| host_mates(&hosts, group, leader)).collect();
            }
            let (_, mates) = &hosts[0];
            if mates.len() > 1 {
                sender.push(group.root(), WormKind::Local, mates[1..].to_vec(), Vec::new());
            }
        }
        Local::Separate | Local::Binomial => {
            for (_, members) in &hosts {
                let size = members.len() as u32;
                let shape =
                    if local == Local::Separate { shape::separate(size) } else { shape::halving(size) };
                sender.send_along(&shape, members);
            }
        }
    }
    Ok(sender.worms)
}

/// The members of each host of the group, its leader first; the root's host first, then by host.
fn members_by_host(group: &Group) -> Vec<(HostId, Vec<MemberId>)> {
    let host_of = |member| group.placement().host_of(member);
    let home = host_of(group.root());
    let mut members = group.destinations().to_vec();
    members.push(group.root());
    members.sort_unstable_by_key(|&member| {
        (host_of(member) != home, host_of(member), member != group.root(), member)
    });
    let by_host = members.chunk_by(|&a, &b| host_of(a) == host_of(b));
    by_host.map(|members| (host_of(members[0]), members.to_vec())).collect()
}

/// A leader and all other members on its host.
fn host_mates(hosts: &[(HostId, Vec<MemberId>)], group: &Group, leader: MemberId) -> Vec<MemberId> {
    let host = group.placement().host_of(leader);
    let found = hosts[1..].binary_search_by_key(&host, |&(host, _)| host).expect("a leader's host is listed");
    hosts[1 + found].1.clone()
}
