//! The tree of a group: the plan of its multicast on a star fabric.

pub(crate) mod measure;

use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::shape::Lambda;
use treecast_plan::{Group, MemberId, Placement, Plan, PlanError, PlanOptions, Scheme, TreeScheme, plan};
use treecast_proto::Offload;

use crate::{GroupSettings, NodeError};

/// Messages of at least this many packets per member use a chain: each member then sends each packet once, which keeps its link
/// full, and the delay of the chain, a few packets per member, is small.
const CHAIN_PACKETS_PER_MEMBER: u64 = 16;

/// The time until a member has a short message and can forward it, in units of the time to send one more copy of it. In user space a
/// copy is one more datagram of a batch, and the member has to wake up. In the kernel no thread wakes up, but a copy costs so little
/// that one member serves a dozen others faster than a relay.
const WAKE_COPIES: f64 = 7.0;
const KERNEL_COPIES: f64 = 16.0;

/// The length at which a copy of a message takes twice as long as a copy of a short message, in bytes.
const COPY_BYTES: f64 = 13.0 * 1024.0;

/// The children of each member, by its number, in a group of `count` members.
pub(crate) fn children(
    count: usize,
    settings: &GroupSettings,
    is_in_kernel: bool,
) -> Result<Vec<Vec<MemberId>>, NodeError> {
    if count == 1 {
        return Ok(vec![Vec::new()]);
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
    Ok(children_of(&plan(&fabric, &group, &scheme, &options)?, count))
}

/// The children of each member in a plan: the destinations of its worms, in the order in which it sends them.
fn children_of(plan: &Plan, count: usize) -> Vec<Vec<MemberId>> {
    let mut children = vec![Vec::new(); count];
    for worm in plan.worms() {
        children[worm.from.index()].extend_from_slice(&worm.to);
    }
    children
}

/// The scheme of a group of `count` members: that of the settings, or, where they leave it or its lambda open, one for the length of
/// messages. `is_in_kernel` is about the root.
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

/// The number of packets of a message.
fn packets(settings: &GroupSettings) -> u64 {
    settings.message_bytes.div_ceil(u64::from(settings.payload_bytes_max().max(1)))
}

/// A chain for long messages, and else a postal tree. Its lambda is the time until a member has a message, in copies of it: the longer
/// a message, the less the wake-up counts. The numbers come from a lab (docs/bench.md), for networks that are not measured.
fn scheme_for(bytes: u64, packets: u64, members: usize, wake_copies: f64) -> Scheme {
    if packets >= CHAIN_PACKETS_PER_MEMBER * members as u64 {
        return Scheme::tree(TreeScheme::Serial);
    }
    let copy = 1.0 + bytes as f64 / COPY_BYTES;
    let lambda = 1.0 + wake_copies / copy;
    Scheme::tree(TreeScheme::Postal { lambda: Lambda::of((lambda * 10.0).round() / 10.0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::config::settings_of as settings;

    #[test]
    fn long_messages_use_a_chain() {
        let settings = GroupSettings { message_bytes: 1 << 20, root: 2, ..settings(5) };
        let children = children(5, &settings, false).unwrap();
        assert_eq!(children[2], [MemberId(0)]);
        assert!(children.iter().all(|children| children.len() <= 1));
    }

    #[test]
    fn the_root_has_fewer_children_for_longer_messages() {
        let children = [64, 16 << 10, 64 << 10, 1 << 20].map(|message_bytes| {
            let settings = GroupSettings { message_bytes, ..settings(16) };
            children(settings.members.len(), &settings, false).unwrap()[0].len()
        });
        assert_eq!(children, [11, 8, 6, 1]);
    }

    #[test]
    fn the_root_has_more_children_where_the_kernel_forwards() {
        let settings = GroupSettings { message_bytes: 64, ..settings(16) };
        let children = [false, true]
            .map(|is_in_kernel| children(settings.members.len(), &settings, is_in_kernel).unwrap()[0].len());
        assert_eq!(children, [11, 15]);
    }

    #[test]
    fn a_scheme_can_be_given() {
        let settings = GroupSettings { scheme: Some("separate".parse().unwrap()), ..settings(5) };
        assert_eq!(
            children(settings.members.len(), &settings, false).unwrap()[0],
            [1, 2, 3, 4].map(MemberId)
        );
    }

    #[test]
    fn two_members_need_no_lambda() {
        let settings = GroupSettings { scheme: Some("postal".parse().unwrap()), ..settings(2) };
        assert_eq!(children(settings.members.len(), &settings, false).unwrap()[0], [MemberId(1)]);
    }

    #[test]
    fn a_single_member_has_no_children() {
        assert_eq!(children(1, &settings(1), false).unwrap(), [vec![]]);
    }
}
