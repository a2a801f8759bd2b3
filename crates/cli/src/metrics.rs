//! The state of nodes as metrics of Prometheus, as text.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use treecast_node::status::{ChildDocument, GroupDocument, NodeDocument};

/// The labels of a sample.
type Labels = Vec<(&'static str, String)>;

/// All samples of one metric.
type Samples<T> = Vec<(Labels, T)>;

/// The metrics of these nodes.
pub fn metrics(nodes: Vec<NodeDocument>) -> String {
    let mut registry = Registry::with_prefix("treecast");
    registry.register_collector(Box::new(Nodes(nodes)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string does not fail");
    text
}

#[derive(Debug)]
struct Nodes(Vec<NodeDocument>);

impl Collector for Nodes {
    fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
        let nodes = || self.0.iter();
        let open = nodes().map(|node| (of_node(node), node.seconds)).collect();
        gauges(&mut to, "node_open_seconds", "Time since the node was opened", open)?;
        let groups = nodes().map(|node| (of_node(node), node.groups.len() as f64)).collect();
        gauges(&mut to, "node_groups", "Groups of the node", groups)?;
        let strays = nodes().flat_map(|node| counted(&of_node(node), "kind", &node.strays)).collect();
        counters(&mut to, "node_strays", "Datagrams that belonged to no group, by kind", strays)?;

        let bytes = self.of_groups(|group| Some(group.bytes));
        counters(&mut to, "group_bytes", "Bytes of all messages that the node has", bytes)?;
        let unstable = self.of_groups(|group| Some(f64::from(group.next.wrapping_sub(group.stable))));
        let help = "Packets that the node has and some member below it has not acknowledged";
        gauges(&mut to, "group_unstable_packets", help, unstable)?;
        let in_kernel = self.of_groups(|group| Some(f64::from(u8::from(group.in_kernel))));
        gauges(&mut to, "group_in_kernel", "Whether the kernel's packet path runs the group", in_kernel)?;
        let members =
            self.groups().flat_map(|(node, group)| members(&of_group(node, group), group)).collect();
        gauges(&mut to, "group_members", "Members of the group at its root, by state", members)?;
        let packets = self
            .groups()
            .flat_map(|(node, group)| counted(&of_group(node, group), "kind", &group.counters))
            .collect();
        counters(&mut to, "group_events", "Events of the group by kind: packets, and timeouts", packets)?;

        let behind = self.of_children(|child| Some(f64::from(child.subtree_behind)));
        let help = "Packets that the node has and the child, or a member below it, has not acknowledged";
        gauges(&mut to, "child_behind_packets", help, behind)?;
        let rtt = self.of_children(|child| child.rtt_us.map(|rtt| rtt / 1e6));
        gauges(&mut to, "child_rtt_seconds", "Smoothed round-trip time to the child", rtt)
    }
}

impl Nodes {
    fn groups(&self) -> impl Iterator<Item = (&NodeDocument, &GroupDocument)> {
        self.0.iter().flat_map(|node| node.groups.iter().map(move |group| (node, group)))
    }

    fn of_groups<T>(&self, value: impl Fn(&GroupDocument) -> Option<T>) -> Samples<T> {
        self.groups().filter_map(|(node, group)| Some((of_group(node, group), value(group)?))).collect()
    }

    fn of_children(&self, value: impl Fn(&ChildDocument) -> Option<f64>) -> Samples<f64> {
        let children = self.groups().flat_map(|(node, group)| {
            let labels = of_group(node, group);
            group.children.iter().map(move |child| (labels.clone(), child))
        });
        let sample = |(mut labels, child): (Labels, &ChildDocument)| {
            labels.extend([("member", child.member.to_string()), ("address", child.address.to_string())]);
            Some((labels, value(child)?))
        };
        children.filter_map(sample).collect()
    }
}

fn of_node(node: &NodeDocument) -> Labels {
    vec![
        ("node", node.address.to_string()),
        ("process", node.process.to_string()),
        ("engine", node.engine.clone()),
    ]
}

fn of_group(node: &NodeDocument, group: &GroupDocument) -> Labels {
    let role = if group.is_root() { "root" } else { "member" };
    vec![("node", node.address.to_string()), ("group", group.group.to_string()), ("role", role.into())]
}

/// A sample for each counter, with its name as a label.
fn counted(labels: &Labels, key: &'static str, counters: &BTreeMap<String, u64>) -> Samples<u64> {
    let sample = |(name, &count): (&String, &u64)| ([&labels[..], &[(key, name.clone())]].concat(), count);
    counters.iter().map(sample).collect()
}

/// At a root, the numbers of its members in each state.
fn members(labels: &Labels, group: &GroupDocument) -> Samples<f64> {
    if !group.is_root() {
        return Vec::new();
    }
    let lost = group.members.iter().filter(|member| member.lost.is_some()).count();
    let joined = group.members.iter().filter(|member| member.lost.is_none() && member.joined).count();
    let states = [("joined", joined), ("awaited", group.members.len() - joined - lost), ("lost", lost)];
    let sample =
        |(state, count): (&str, usize)| ([&labels[..], &[("state", state.into())]].concat(), count as f64);
    states.into_iter().map(sample).collect()
}

fn gauges(to: &mut DescriptorEncoder, name: &str, help: &str, samples: Samples<f64>) -> fmt::Result {
    let mut metric = to.encode_descriptor(name, help, None, ConstGauge::new(0.0).metric_type())?;
    for (labels, value) in samples {
        ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

fn counters(to: &mut DescriptorEncoder, name: &str, help: &str, samples: Samples<u64>) -> fmt::Result {
    let mut metric = to.encode_descriptor(name, help, None, ConstCounter::new(0_u64).metric_type())?;
    for (labels, value) in samples {
        ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_group_has_its_metrics() {
        let node = json!({
            "format": "treecast-status/1", "process": 7, "program": "p", "user": 0, "address": "10.0.0.1:7000",
            "engine": "user", "seconds": 1.5, "strays": {"malformed": 3},
            "groups": [{
                "group": 5, "owner": null, "root": null, "member": 0, "parent": null, "epoch": 1, "offload": "nic",
                "transport": "packets", "in_kernel": false, "closed": false, "slots": 8, "next": 2, "stable": 4_294_967_295_u32,
                "bytes": 99, "counters": {"retransmitted": 4}, "kernel_counters": null,
                "children": [{"member": 1, "address": "10.0.0.2:7000", "behind": 0, "subtree_behind": 3,
                              "in_flight": 0, "rtt_us": 250.0, "silent_ms": 0}],
                "members": [{"member": 0, "address": "10.0.0.1:7000", "parent": null, "joined": true, "lost": null},
                            {"member": 1, "address": "10.0.0.2:7000", "parent": 0, "joined": false, "lost": "left"}],
            }],
        });
        let text = metrics(vec![serde_json::from_value(node).unwrap()]);
        let group = "node=\"10.0.0.1:7000\",group=\"5\",role=\"root\"";
        for line in [
            "treecast_node_open_seconds{node=\"10.0.0.1:7000\",process=\"7\",engine=\"user\"} 1.5".to_string(),
            "treecast_node_strays_total{node=\"10.0.0.1:7000\",process=\"7\",engine=\"user\",kind=\"malformed\"} 3".into(),
            "# TYPE treecast_group_bytes counter".into(),
            format!("treecast_group_bytes_total{{{group}}} 99"),
            format!("treecast_group_unstable_packets{{{group}}} 3.0"),
            format!("treecast_group_members{{{group},state=\"joined\"}} 1.0"),
            format!("treecast_group_members{{{group},state=\"lost\"}} 1.0"),
            format!("treecast_group_events_total{{{group},kind=\"retransmitted\"}} 4"),
            format!("treecast_child_rtt_seconds{{{group},member=\"1\",address=\"10.0.0.2:7000\"}} 0.00025"),
            "# EOF".into(),
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}
