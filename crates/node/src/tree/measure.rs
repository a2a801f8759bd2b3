//! Lambda of the real network, for a postal tree that is to be made for it.
//!
//! The members broadcast a few messages in two other groups: the root with one member alone, and the root with all members as
//! its children. The first says how long a member waits for a message, the second what one more copy costs.

use std::time::{Duration, Instant};

use treecast_plan::shape::Lambda;
use treecast_plan::{Scheme, TreeScheme};
use treecast_proto::GroupId;

use crate::{Group, GroupSettings, Node, NodeError};

/// As many messages in each of the groups, in turn.
const ROUNDS: usize = 20;

/// So many messages before are not counted.
const WARM_UP: usize = 5;

/// Longer messages are measured as messages of so many packets.
const PACKETS_MAX: usize = 32;

/// Nobody reads, so that all packets stay in their slots at the members.
const SLOTS: u32 = 1 << 10;
const _: () = assert!((WARM_UP + ROUNDS) * PACKETS_MAX <= SLOTS as usize);

/// Members that have not come by then are not measured.
const PATIENCE: Duration = Duration::from_secs(3);

/// Whether lambda is to be measured: for two members there is one tree.
pub(crate) fn is_wanted(settings: &GroupSettings) -> bool {
    settings.scheme == Some(Scheme::tree(TreeScheme::Postal { lambda: None })) && settings.members.len() > 2
}

/// The groups: with one member, and with all.
fn groups(settings: &GroupSettings) -> [GroupSettings; 2] {
    let root = settings.members.get(settings.root).copied();
    let first = settings.members.iter().copied().find(|&member| Some(member) != root);
    let alike = |highest_bits: u32, members, root| GroupSettings {
        group: GroupId(settings.group.0 ^ highest_bits << 30),
        members,
        root,
        scheme: Some(Scheme::tree(TreeScheme::Separate)),
        slots: SLOTS,
        admits: false,
        bytes_per_s_max: None,
        offload: treecast_proto::Offload::Nic,
        ..settings.clone()
    };
    let pair = root.into_iter().chain(first).collect();
    [alike(0b10, pair, 0), alike(0b11, settings.members.clone(), settings.root)]
}

/// At a member: takes part in what the root measures. The groups are to be kept as long as the one that they are for.
pub(crate) fn follow(node: &Node, settings: &GroupSettings, own: usize) -> Result<Vec<Group>, NodeError> {
    if !is_wanted(settings) {
        return Ok(Vec::new());
    }
    let [pair, all] = groups(settings);
    let is_first = pair.members.get(1) == settings.members.get(own);
    let mut followed = vec![node.follow(&all, Some(own))?];
    if is_first {
        followed.push(node.follow(&pair, Some(1))?);
    }
    Ok(followed)
}

/// At the root: the settings with the scheme that has been measured; without a scheme, if the members did not come in time.
pub(crate) fn measured(node: &Node, settings: &GroupSettings) -> Result<GroupSettings, NodeError> {
    if !is_wanted(settings) {
        return Ok(settings.clone());
    }
    let [pair, all] = groups(settings);
    let (pair, all) = (node.lead(&pair)?, node.lead(&all)?);
    let scheme = match lambda(&pair, &all, settings) {
        Ok(lambda) => {
            tracing::info!(lambda, "the postal tree's lambda has been measured");
            // Whoever is lost here is lost to the group itself too, which says so.
            let _ = (pair.close(Some(PATIENCE)), all.close(Some(PATIENCE)));
            Some(Scheme::tree(TreeScheme::Postal { lambda: Lambda::of((lambda * 100.0).round() / 100.0) }))
        }
        Err(error) => {
            tracing::warn!(%error, "lambda could not be measured");
            None
        }
    };
    Ok(GroupSettings { scheme, ..settings.clone() })
}

fn lambda(pair: &Group, all: &Group, settings: &GroupSettings) -> Result<f64, NodeError> {
    let until = Instant::now() + PATIENCE;
    for group in [pair, all] {
        group.wait_until_ready(Some(until.saturating_duration_since(Instant::now())))?;
    }
    let bytes_max = PACKETS_MAX * usize::from(settings.payload_bytes_max());
    let message = vec![0; settings.message_bytes.min(bytes_max as u64) as usize];
    let mut spans = [Vec::new(), Vec::new()];
    for round in 0..WARM_UP + ROUNDS {
        for (group, spans) in [pair, all].into_iter().zip(&mut spans) {
            let start = Instant::now();
            group.send(&message)?;
            group.flush(Some(PATIENCE))?;
            if round >= WARM_UP {
                spans.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let [one, copies] = spans.map(median);
    Ok(lambda_of(one, copies, settings.members.len() - 1))
}

/// Lambda, from how long the root waits for the answer of one member, and of `members` when it sends each a copy.
fn lambda_of(one_s: f64, all_s: f64, members: usize) -> f64 {
    let copy_s = (all_s - one_s) / (members - 1) as f64;
    // A member has the message half of the time before the root has its answer.
    let lambda = one_s / 2.0 / copy_s.max(one_s / 1e3).max(f64::MIN_POSITIVE);
    lambda.clamp(1.0, 1e3)
}

fn median(mut spans: Vec<f64>) -> f64 {
    spans.sort_unstable_by(f64::total_cmp);
    spans[spans.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lambda_is_the_time_to_a_member_in_copies() {
        // 40 us there and back, 5 us a copy.
        assert!((lambda_of(40e-6, 110e-6, 15) - 4.0).abs() < 1e-9);
        assert!((lambda_of(40e-6, 440e-6, 3) - 1.0).abs() < 1e-9);
        // Copies that seem to cost nothing do not make a tree without bounds.
        assert!((lambda_of(40e-6, 30e-6, 15) - 500.0).abs() < 1e-9);
        // Nor does a clock that stands still.
        assert!((lambda_of(0.0, 0.0, 15) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_groups_to_measure_in_have_numbers_of_their_own() {
        let members = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|address| address.parse().unwrap());
        let settings = GroupSettings {
            root: 1,
            scheme: Some("postal".parse().unwrap()),
            ..GroupSettings::new(members.to_vec())
        };
        assert!(is_wanted(&settings));
        let [pair, all] = groups(&settings);
        assert_eq!((pair.members, pair.root), (vec![members[1], members[0]], 0));
        assert_eq!((all.members, all.root), (members.to_vec(), 1));
        assert!(pair.group != all.group && pair.group != settings.group && all.group != settings.group);
    }
}
