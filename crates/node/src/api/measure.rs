//! A process takes part in a group: for a postal tree the lambda of the real network is measured
//! first.
//!
//! The root broadcasts a few messages in two probe groups: one with a single member, and one with
//! all members as its children. The first measures the round trip to a member, the second the cost
//! of a further copy.

use std::time::{Duration, Instant};

use treecast_engine::settings::GroupSettings;
use treecast_engine::settings::config::{GroupConfig, check_paths};
use treecast_engine::settings::error::NodeError;
use treecast_plan::shape::Lambda;
use treecast_plan::{Scheme, TreeScheme};
use treecast_proto::GroupId;

use crate::api::group::Group;
use crate::api::node::Node;

/// The messages in each of the groups, in alternation.
const ROUNDS: usize = 20;

/// The messages before that are not counted.
const WARM_UP: usize = 5;

/// The longest message to measure with, in packets.
const PACKETS_MAX: usize = 32;

/// Members do not read the messages, so the slots have to hold all packets.
const SLOTS: u32 = 1 << 10;
const _: () = assert!((WARM_UP + ROUNDS) * PACKETS_MAX <= SLOTS as usize);

/// How long the root waits for the members, and for each message.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The probe groups: with one member, and with all.
fn probe_groups(settings: &GroupSettings) -> [GroupSettings; 2] {
    let root = settings.members.get(settings.root).copied();
    let first = settings.members.iter().copied().find(|&member| Some(member) != root);
    let probe = |highest_bits: u32, members, root| GroupSettings {
        group: GroupId(settings.group.0 ^ highest_bits << 30),
        members,
        root,
        scheme: Some(Scheme::tree(TreeScheme::Separate)),
        plan: None,
        fabric: None,
        hosts: Vec::new(),
        slots: Some(SLOTS),
        admits: false,
        bytes_per_s_max: None,
        offload: Some(treecast_proto::Offload::Nic),
        ..settings.clone()
    };
    let pair = root.into_iter().chain(first).collect();
    [probe(0b10, pair, 0), probe(0b11, settings.members.clone(), settings.root)]
}

impl Node {
    /// Takes part in a group as the member with this number, after the measurement, if its scheme
    /// needs one.
    pub(crate) fn enter(&self, config: GroupConfig, own: usize) -> Result<Group, NodeError> {
        let settings = config.settings();
        check_paths(settings, Some(own))?;
        if own == settings.root {
            return self.create_group(&with_lambda(self, self.for_engine(config)?)?);
        }
        let probes = join_probes(self, settings, own)?;
        Ok(self.join_group(settings, Some(own))?.with_probes(probes))
    }
}

/// At a member: joins the probe groups. The caller keeps them until the measured group exists.
fn join_probes(node: &Node, settings: &GroupSettings, own: usize) -> Result<Vec<Group>, NodeError> {
    if !settings.measures_lambda() {
        return Ok(Vec::new());
    }
    let [pair, all] = probe_groups(settings);
    let is_first = pair.members.get(1) == settings.members.get(own);
    let mut joined = vec![node.join_group(&all, Some(own))?];
    if is_first {
        joined.push(node.join_group(&pair, Some(1))?);
    }
    Ok(joined)
}

/// At the root: the group with a measured lambda. If members are missing at the timeout, the scheme
/// is chosen without measuring.
fn with_lambda(node: &Node, config: GroupConfig) -> Result<GroupConfig, NodeError> {
    let settings = config.settings();
    if !settings.measures_lambda() {
        return Ok(config);
    }
    let [pair, all] = probe_groups(settings);
    let pair = node.create_group(&GroupConfig::new(pair)?)?;
    let all = node.create_group(&GroupConfig::new(all)?)?;
    let scheme = match lambda(&pair, &all, settings) {
        Ok(lambda) => {
            tracing::info!(lambda, "the postal tree's lambda has been measured");
            // A member that is lost here is lost in the group itself too, which reports it.
            let _ = pair.close(Some(TIMEOUT));
            let _ = all.close(Some(TIMEOUT));
            Some(Scheme::tree(TreeScheme::Postal { lambda: Lambda::of((lambda * 100.0).round() / 100.0) }))
        }
        Err(error) => {
            tracing::warn!(%error, "cannot measure lambda");
            None
        }
    };
    Ok(config.with_scheme(scheme))
}

fn lambda(pair: &Group, all: &Group, settings: &GroupSettings) -> Result<f64, NodeError> {
    let until = Instant::now() + TIMEOUT;
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
            group.flush(Some(TIMEOUT))?;
            if round >= WARM_UP {
                spans.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let [one, copies] = spans.map(median);
    Ok(lambda_of(one, copies, settings.members.len() - 1))
}

/// Lambda, from the round-trip time to one member, and to `members` members that each get a copy.
fn lambda_of(one_s: f64, all_s: f64, members: usize) -> f64 {
    let copy_s = (all_s - one_s) / (members - 1) as f64;
    // The one-way time is half of the round trip.
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
        // A round trip of 40 us, 5 us per copy.
        assert!((lambda_of(40e-6, 110e-6, 15) - 4.0).abs() < 1e-9);
        assert!((lambda_of(40e-6, 440e-6, 3) - 1.0).abs() < 1e-9);
        // Copies that seem to be free do not make lambda infinite.
        assert!((lambda_of(40e-6, 30e-6, 15) - 500.0).abs() < 1e-9);
        // Nor does a clock without progress.
        assert!((lambda_of(0.0, 0.0, 15) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_probe_groups_have_their_own_numbers() {
        let members = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|address| address.parse().unwrap());
        let settings = GroupSettings {
            root: 1,
            scheme: Some("postal".parse().unwrap()),
            ..GroupSettings::new(members.to_vec())
        };
        assert!(settings.measures_lambda());
        let [pair, all] = probe_groups(&settings);
        assert_eq!((pair.members, pair.root), (vec![members[1], members[0]], 0));
        assert_eq!((all.members, all.root), (members.to_vec(), 1));
        assert!(pair.group != all.group && pair.group != settings.group && all.group != settings.group);
    }
}
