//! The tree of a group, as a plan makes it.

use std::net::SocketAddr;

use treecast_fabric::{Fabric, FabricError, FabricSpec};
use treecast_plan::{Group, MemberId as Member, Placement, PlanError, PlanOptions, Scheme, plan};
use treecast_proto::MemberId;

use crate::{GroupSettings, NodeError};

/// Messages of so many packets or more go down a chain: every member sends each packet once, which is what a link bears. Shorter
/// ones go down a tree.
const CHAIN_PACKETS: u64 = 64;

/// The ratio of the time until a member has a packet to the time for one more copy, where nobody has measured it. A copy is
/// part of a batch; a member has to be woken.
const LAMBDA: &str = "postal:lambda=8";

/// Whom each member sends to, by the member's number.
pub(crate) fn children(settings: &GroupSettings) -> Result<Vec<Vec<MemberId>>, NodeError> {
    check(settings)?;
    shape(settings.members.len(), settings)
}

/// The tree of so many members, wherever they are.
pub(crate) fn shape(count: usize, settings: &GroupSettings) -> Result<Vec<Vec<MemberId>>, NodeError> {
    let mut children = vec![Vec::new(); count];
    if count == 1 {
        return Ok(children);
    }
    let packets = settings.message_bytes.div_ceil(u64::from(settings.payload_bytes_max().max(1)));
    let scheme = settings.scheme.clone().unwrap_or_else(|| scheme_for(packets));
    let star: FabricSpec =
        format!("star:{count}").parse().map_err(FabricError::from).map_err(PlanError::from)?;
    let fabric = Fabric::from_spec(&star).map_err(PlanError::from)?;
    let root = Member(settings.root as u32);
    let others = (0..count as u32).map(Member).filter(|&member| member != root).collect();
    let group = Group::new(Placement::one_per_host(count as u32), root, others)?;
    let options = PlanOptions {
        packets: packets.clamp(1, u64::from(treecast_plan::PACKETS_MAX)) as u32,
        ..PlanOptions::default()
    };
    let plan = plan(&fabric, &group, &scheme, &options)?;
    for worm in plan.worms() {
        children[worm.from.index()].extend(worm.to.iter().map(|to| MemberId(to.0)));
    }
    Ok(children)
}

fn scheme_for(packets: u64) -> Scheme {
    if packets >= CHAIN_PACKETS {
        Scheme::Serial
    } else {
        LAMBDA.parse().expect("the scheme is well written")
    }
}

/// Whether the members make sense together.
pub(crate) fn check(settings: &GroupSettings) -> Result<(), NodeError> {
    let members = &settings.members;
    if settings.root >= members.len() {
        return Err(no_such_root(settings.root, members.len()));
    }
    let mut sorted: Vec<SocketAddr> = members.clone();
    sorted.sort_unstable();
    if let Some([double, _]) = sorted.array_windows().find(|[one, other]| one == other) {
        let problem = format!("{double} is given twice: every member has an address of its own");
        return Err(NodeError::Members(problem));
    }
    let unusable = members.iter().find(|address| address.port() == 0 || address.ip().is_unspecified());
    if let Some(address) = unusable {
        return Err(NodeError::Members(format!("{address} is no address that others can send to")));
    }
    let loopback = members.iter().find(|address| address.ip().is_loopback());
    if let (Some(inner), Some(outer)) = (loopback, members.iter().find(|address| !address.ip().is_loopback()))
    {
        return Err(NodeError::Members(format!(
            "{inner} is reached on one host alone, and {outer} on others: give addresses that all reach"
        )));
    }
    Ok(())
}

pub(crate) fn no_such_root(root: usize, members: usize) -> NodeError {
    NodeError::Members(format!("the root is member {root} of {members}: members are numbered from 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(count: u16) -> GroupSettings {
        GroupSettings::new(
            (0..count).map(|number| format!("10.0.0.1:{}", 7_000 + number).parse().unwrap()).collect(),
        )
    }

    #[test]
    fn long_messages_go_down_a_chain() {
        let settings = GroupSettings { message_bytes: 1 << 20, root: 2, ..settings(5) };
        let children = children(&settings).unwrap();
        assert_eq!(children[2], [MemberId(0)]);
        assert!(children.iter().all(|children| children.len() <= 1));
    }

    #[test]
    fn a_scheme_may_be_given() {
        let settings = GroupSettings { scheme: Some("separate".parse().unwrap()), ..settings(5) };
        assert_eq!(children(&settings).unwrap()[0], [1, 2, 3, 4].map(MemberId));
    }

    #[test]
    fn one_member_has_nobody_to_send_to() {
        assert_eq!(children(&settings(1)).unwrap(), [vec![]]);
    }

    #[test]
    fn wrong_members_are_named() {
        let mut double = settings(3);
        double.members[2] = double.members[0];
        assert!(children(&double).unwrap_err().to_string().starts_with("10.0.0.1:7000 is given twice"));
        let no_root = GroupSettings { root: 3, ..settings(3) };
        assert!(children(&no_root).unwrap_err().to_string().starts_with("the root is member 3 of 3"));
        let mut nowhere = settings(2);
        nowhere.members[1].set_port(0);
        assert!(children(&nowhere).unwrap_err().to_string().starts_with("10.0.0.1:0 is no address"));
        let mut apart = settings(2);
        apart.members[1] = "127.0.0.1:7000".parse().unwrap();
        let error = children(&apart).unwrap_err().to_string();
        assert!(error.starts_with("127.0.0.1:7000 is reached on one host alone"), "{error}");
    }
}
