//! The measures of a run.

use treecast_terms::Picoseconds;

use super::node::{Node, Phase};
use super::simulation::Simulation;
use crate::task::{Measure, ROOT_USER_SHARE, ROOT_USER_US};

/// The measures besides the latency, up to the end of the operation. Times are means over
/// broadcasts in a row, with the barriers between them.
pub const MEASURES: &[Measure] = &[
    Measure {
        name: "delivered_us",
        label: "time until the last has the last (us)",
        about: "until the last process had the last message",
    },
    Measure {
        name: "host_cpu_us",
        label: "mean CPU time of a process (us)",
        about: "CPU time of a process in the operation, busy and waiting, on average over all",
    },
    Measure {
        name: "host_busy_us",
        label: "mean busy CPU time of a process (us)",
        about: "the busy part of host_cpu_us",
    },
    Measure {
        name: "host_waiting_us",
        label: "mean waiting CPU time (us)",
        about: "the waiting part of host_cpu_us",
    },
    Measure {
        name: "root_cpu_us",
        label: "busy time of the root's CPU (us)",
        about: "busy CPU time of the root",
    },
    Measure {
        name: "root_cpu_utilization",
        label: "utilization of the root's CPU (0 to 1)",
        about: "root_cpu_us over the time of the operation, 0 to 1",
    },
    Measure {
        name: "nic_busy_us",
        label: "mean busy time of a NIC (us)",
        about: "busy time of a NIC's processor, on average over all",
    },
    Measure {
        name: "nic_busy_max_us",
        label: "busy time of the busiest NIC (us)",
        about: "busy time of the busiest NIC's processor",
    },
    Measure {
        name: "pci_busy_us",
        label: "mean busy time of an I/O bus (us)",
        about: "busy time of an I/O bus, on average over all",
    },
    Measure {
        name: "retransmissions",
        label: "retransmitted packets",
        about: "retransmitted packets, each copy counted",
    },
    Measure {
        name: "lost_packets",
        label: "packets lost",
        about: "packets lost on the wire, acknowledgments too",
    },
    Measure { name: "refused_packets", label: "packets refused", about: "packets without a receive token" },
    Measure {
        name: "held_packets",
        label: "packets held up",
        about: "packets that the network held up for want of a packet buffer",
    },
    Measure {
        name: "send_tokens_peak",
        label: "most send tokens in use",
        about: "most send tokens in use at a process",
    },
    Measure {
        name: "receive_tokens_peak",
        label: "most receive tokens in use",
        about: "most receive tokens in use at a process",
    },
    Measure {
        name: "nic_send_buffers_peak",
        label: "most send buffers in use",
        about: "most send buffers in use at a NIC",
    },
    Measure {
        name: "nic_receive_buffers_peak",
        label: "most receive buffers in use",
        about: "most receive buffers in use at a NIC",
    },
    Measure {
        name: "manager_utilization",
        label: "utilization of the manager's CPU (0 to 1)",
        about: "CPU time of the credit manager for requests and returns over the time of the operation, 0 to 1",
    },
    Measure {
        name: "manager_nic_utilization",
        label: "utilization of the manager's NIC (0 to 1)",
        about: "busy time of the manager's NIC's processor over the time of the operation, 0 to 1",
    },
    Measure {
        name: "link_concentration_run",
        label: "link concentration (visits a link)",
        about: "link visits of messages over distinct links visited, counted in the run",
    },
    Measure {
        name: "link_concurrency_run",
        label: "link concurrency (messages at a time)",
        about: "the most copies of messages in transit at a time, from the first byte on a link to the last one off it",
    },
    Measure {
        name: "unicast_us",
        label: "mean time of a unicast (us)",
        about: "from the call of a unicast until the process of its receiver has it, on average over all",
    },
    Measure {
        name: "unicast_max_us",
        label: "longest time of a unicast (us)",
        about: "the longest time from the call of a unicast until the process of its receiver has it",
    },
    Measure {
        name: "unicast_mb_per_s",
        label: "bandwidth of unicasts (MB/s)",
        about: "bytes of delivered unicasts over the time until the last of them was delivered",
    },
    ROOT_USER_US,
    ROOT_USER_SHARE,
    Measure {
        name: "lambda",
        label: "measured lambda",
        about: "lambda that the model measured for a postal tree",
    },
];

impl Node {
    /// The busy time of the process until now.
    pub fn cpu_busy(&self, now: Picoseconds) -> Picoseconds {
        busy(&self.cpu, now)
    }
}

/// The busy time of a part until now, without accepted work that is not done yet.
fn busy(server: &crate::kernel::Server, now: Picoseconds) -> Picoseconds {
    Picoseconds(server.busy().0 - server.free_at().0.saturating_sub(now.0))
}

impl Simulation<'_> {
    /// The current values of [`MEASURES`], except those of the root's time at user level, those of
    /// unicasts, and lambda; the manager's only if there is one.
    pub fn measured(&self) -> Vec<(&'static str, f64)> {
        let now = self.events.now();
        let nodes = &self.nodes;
        let mean = |time: &dyn Fn(&Node) -> Picoseconds| {
            nodes.iter().map(time).sum::<Picoseconds>().us() / nodes.len() as f64
        };
        let peak = |most: &dyn Fn(&Node) -> u32| f64::from(nodes.iter().map(most).max().unwrap_or(0));
        let fraction = |part: Picoseconds| if now.0 == 0 { 0.0 } else { part.0 as f64 / now.0 as f64 };
        let broadcasts = f64::from(self.parameters.broadcasts);
        // A process that has not returned is still in the call.
        let is_in = |node: &Node| node.phase == Phase::Called;
        let current = |node: &Node| if is_in(node) { now - node.called } else { Picoseconds::ZERO };
        let busy_in_current = |node: &Node| {
            if is_in(node) { node.cpu_busy(now) - node.busy_before } else { Picoseconds::ZERO }
        };
        let whole = mean(&|node| node.in_calls + current(node)) / broadcasts;
        let part = mean(&|node| node.busy_in_calls + busy_in_current(node)) / broadcasts;
        let root = nodes[0].cpu_busy(now);
        let nic = |node: &Node| busy(&node.processor, now);
        let mut measured = vec![
            ("delivered_us", self.row.mean_delivery(self.parameters.broadcasts).us()),
            ("host_cpu_us", whole),
            ("host_busy_us", part),
            ("host_waiting_us", whole - part),
            ("root_cpu_us", root.us() / broadcasts),
            ("root_cpu_utilization", fraction(root)),
            ("nic_busy_us", mean(&nic) / broadcasts),
            ("nic_busy_max_us", nodes.iter().map(nic).max().unwrap_or_default().us() / broadcasts),
            ("pci_busy_us", mean(&|node| busy(&node.bus, now)) / broadcasts),
            ("retransmissions", self.counts.retransmissions as f64),
            ("lost_packets", self.counts.lost as f64),
            ("refused_packets", self.counts.refused as f64),
            ("held_packets", self.counts.held as f64),
            ("send_tokens_peak", peak(&|node| node.peak.send_tokens)),
            ("receive_tokens_peak", peak(&|node| node.peak.receive_tokens)),
            ("nic_send_buffers_peak", peak(&|node| node.peak.send_buffers)),
            ("nic_receive_buffers_peak", peak(&|node| node.peak.receive_buffers)),
        ];
        if let Some(manager) = &self.manager {
            measured.push(("manager_utilization", fraction(manager.busy)));
            measured.push(("manager_nic_utilization", fraction(nic(&nodes[manager.node]))));
        }
        measured.push(("link_concentration_run", self.transits.concentration() / broadcasts));
        measured.push(("link_concurrency_run", f64::from(self.transits.concurrency())));
        measured
    }
}
