//! The tree of a group, as a plan makes it.

pub(crate) mod measure;

use std::net::SocketAddr;

use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::shape::Lambda;
use treecast_plan::{Group, MemberId, Placement, PlanError, PlanOptions, Scheme, TreeScheme, plan};
use treecast_proto::Offload;

use crate::{GroupSettings, NodeError};

/// Messages of so many packets for each member or more go down a chain: every member sends each packet once, which is what a
/// link bears, and the way to the last member, of a few packets for each, hardly counts.
const CHAIN_PACKETS_PER_MEMBER: u64 = 16;

/// How long it takes until a member has a short message and can send it on, in copies of a short message. In user space one more
/// copy is one more part of a batch, and a member has to be woken. In the kernel nobody is, but a copy by the one that has the
/// message already is so much quicker that one member serves a dozen others better than a relay does.
const WAKE_COPIES: f64 = 7.0;
const KERNEL_COPIES: f64 = 16.0;

/// A copy of so many bytes more takes as long as a copy of a short message does.
const COPY_BYTES: f64 = 13.0 * 1024.0;

/// Whom each member sends to, by the member's number.
pub(crate) fn children(
    settings: &GroupSettings,
    is_in_kernel: bool,
) -> Result<Vec<Vec<MemberId>>, NodeError> {
    check(settings)?;
    shape(settings.members.len(), settings, is_in_kernel)
}

/// The tree of so many members, wherever they are.
pub(crate) fn shape(
    count: usize,
    settings: &GroupSettings,
    is_in_kernel: bool,
) -> Result<Vec<Vec<MemberId>>, NodeError> {
    let mut children = vec![Vec::new(); count];
    if count == 1 {
        return Ok(children);
    }
    let scheme = scheme(count, settings, is_in_kernel);
    let fabric = Fabric::from_spec(&FabricSpec::Star(count as u32)).map_err(PlanError::from)?;
    let root = MemberId(settings.root as u32);
    let others = (0..count as u32).map(MemberId).filter(|&member| member != root).collect();
    let group = Group::new(Placement::one_per_host(count as u32), root, others)?;
    let options = PlanOptions {
        packets: packets(settings).clamp(1, u64::from(treecast_plan::PACKETS_MAX)) as u32,
        ..PlanOptions::default()
    };
    let plan = plan(&fabric, &group, &scheme, &options)?;
    for worm in plan.worms() {
        children[worm.from.index()].extend_from_slice(&worm.to);
    }
    Ok(children)
}

/// How the tree of so many members is made, whose root's packets are sent on in the kernel or in user space. A lambda that nobody
/// has measured is chosen.
pub(crate) fn scheme(count: usize, settings: &GroupSettings, is_in_kernel: bool) -> Scheme {
    match settings.scheme {
        Some(scheme) if scheme.as_tree() != Some(TreeScheme::Postal { lambda: None }) => scheme,
        _ => {
            let wake_copies =
                if is_in_kernel && settings.offload == Offload::Nic { KERNEL_COPIES } else { WAKE_COPIES };
            scheme_for(settings.message_bytes, packets(settings), count, wake_copies)
        }
    }
}

/// Of how many packets a message is.
fn packets(settings: &GroupSettings) -> u64 {
    settings.message_bytes.div_ceil(u64::from(settings.payload_bytes_max().max(1)))
}

/// A postal tree, whose lambda is the time until a member has a message, in copies of it: the longer a message, the less its
/// wake-up counts. The numbers are those of docs/bench.md, of a lab, where nobody has measured the network.
fn scheme_for(bytes: u64, packets: u64, members: usize, wake_copies: f64) -> Scheme {
    if packets >= CHAIN_PACKETS_PER_MEMBER * members as u64 {
        return Scheme::tree(TreeScheme::Serial);
    }
    let copy = 1.0 + bytes as f64 / COPY_BYTES;
    let lambda = 1.0 + wake_copies / copy;
    Scheme::tree(TreeScheme::Postal { lambda: Lambda::of((lambda * 10.0).round() / 10.0) })
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
        let children = children(&settings, false).unwrap();
        assert_eq!(children[2], [MemberId(0)]);
        assert!(children.iter().all(|children| children.len() <= 1));
    }

    #[test]
    fn the_longer_a_message_the_fewer_children_has_the_root() {
        let children = [64, 16 << 10, 64 << 10, 1 << 20].map(|message_bytes| {
            let settings = GroupSettings { message_bytes, ..settings(16) };
            children(&settings, false).unwrap()[0].len()
        });
        assert_eq!(children, [11, 8, 6, 1]);
    }

    #[test]
    fn where_the_kernel_forwards_the_root_has_more_children() {
        let settings = GroupSettings { message_bytes: 64, ..settings(16) };
        let children = [false, true].map(|is_in_kernel| children(&settings, is_in_kernel).unwrap()[0].len());
        assert_eq!(children, [11, 15]);
    }

    #[test]
    fn a_scheme_may_be_given() {
        let settings = GroupSettings { scheme: Some("separate".parse().unwrap()), ..settings(5) };
        assert_eq!(children(&settings, false).unwrap()[0], [1, 2, 3, 4].map(MemberId));
    }

    #[test]
    fn two_members_need_no_lambda() {
        let settings = GroupSettings { scheme: Some("postal".parse().unwrap()), ..settings(2) };
        assert_eq!(children(&settings, false).unwrap()[0], [MemberId(1)]);
    }

    #[test]
    fn one_member_has_nobody_to_send_to() {
        assert_eq!(children(&settings(1), false).unwrap(), [vec![]]);
    }

    #[test]
    fn wrong_members_are_named() {
        let mut double = settings(3);
        double.members[2] = double.members[0];
        assert!(
            children(&double, false).unwrap_err().to_string().starts_with("10.0.0.1:7000 is given twice")
        );
        let no_root = GroupSettings { root: 3, ..settings(3) };
        assert!(children(&no_root, false).unwrap_err().to_string().starts_with("the root is member 3 of 3"));
        let mut nowhere = settings(2);
        nowhere.members[1].set_port(0);
        assert!(children(&nowhere, false).unwrap_err().to_string().starts_with("10.0.0.1:0 is no address"));
        let mut apart = settings(2);
        apart.members[1] = "127.0.0.1:7000".parse().unwrap();
        let error = children(&apart, false).unwrap_err().to_string();
        assert!(error.starts_with("127.0.0.1:7000 is reached on one host alone"), "{error}");
    }
}
