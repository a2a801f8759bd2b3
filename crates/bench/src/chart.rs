//! A report as a figure.

use treecast_study::figure::{Best, Curve, Figure, Panel, Point, Scale};

use treecast_node::{Integrity, Transport};
use treecast_terms::Operation;

use crate::report::{Report, Row};

/// The latency of the last delivery over the message size, with one curve per configuration. A
/// point is the median; its error bar ends at the 99th percentile.
pub fn figure(report: &Report, command: String) -> Figure {
    let mut curves: Vec<Curve> = Vec::new();
    for row in &report.rows {
        let racks = if row.on_fabric == Some(true) { " racks" } else { "" };
        let late = row.late.as_ref().map_or_else(String::new, |late| format!(" late {} us", late.delay_us));
        let integrity = if row.integrity == Integrity::default().to_string() { "" } else { &row.integrity };
        let is_default = row.transport == Transport::default().to_string() || row.auth == "none";
        let transport = if is_default { "" } else { &row.transport };
        let parts = [&row.engine, &row.offload, &row.scheme, &row.auth, integrity, transport];
        let name =
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ") + racks + &late;
        let point = Point {
            x: row.bytes as f64,
            mean: row.last_delivery_us_p50,
            low: row.last_delivery_us_p50,
            high: row.last_delivery_us_p99,
            runs: row.messages as usize,
        };
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve {
                description: format!(
                    "{} forwards, tree {}, {} authenticated",
                    who_forwards(row),
                    row.scheme,
                    row.auth
                ),
                name,
                row: None,
                points: vec![point],
                missing: Vec::new(),
            }),
        }
    }
    let (hosts, processes) = report.rows.first().map_or((0, 1), |row| (row.hosts, row.processes));
    let operation = report.rows.first().map(|row| row.operation.parse());
    let operation = match operation {
        Some(Ok(Operation::AllReduce)) => "All-reduce",
        Some(Ok(Operation::Barrier)) => "Barrier",
        _ => "Broadcast",
    };
    let processes = if processes > 1 { format!(" of {processes} processes") } else { String::new() };
    Figure {
        study: "bench".into(),
        name: "last-delivery".into(),
        title: format!("{operation} among {hosts} hosts{processes}: latency of the last delivery"),
        x_label: "message (bytes)".into(),
        y_label: "last delivery (us)".into(),
        row_label: None,
        best: Best::Lowest,
        x_scale: Scale::Log2,
        y_scale: Scale::Log2,
        shared_y: true,
        columns: 1,
        panels: vec![Panel { title: String::new(), curves }],
        caption: "Medians; error bars end at the 99th percentile.".into(),
        command,
    }
}

fn who_forwards(row: &Row) -> &'static str {
    match (row.offload.as_str(), row.engine.as_str()) {
        ("host", _) => "the application",
        ("assisted", _) => "the node when the application asks",
        (_, "ebpf") => "the kernel",
        _ => "the node",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_is_a_curve() {
        let row = |offload: &str, auth: &str, bytes| Row {
            operation: "broadcast".into(),
            engine: "user".into(),
            offload: offload.into(),
            scheme: "auto".into(),
            auth: auth.into(),
            integrity: "network".into(),
            transport: "packets".into(),
            hosts: 4,
            processes: 1,
            bytes,
            messages: 10,
            root_us_p50: 50.0,
            root_us_p99: 60.0,
            last_delivery_us_p50: 40.0,
            last_delivery_us_p99: 70.0,
            last_delivery_us_predicted: None,
            last_stored_us_p50: None,
            last_stored_us_p99: None,
            cpu_us_per_broadcast: 1.0,
            root_cpu_us_per_broadcast: 0.5,
            call_us_mean: 1.0,
            call_cpu_us_mean: None,
            throughput_mb_s: 1.0,
            packets_per_broadcast: 3.0,
            retransmitted_per_broadcast: 0.0,
            lost: 0,
            duplicates: 0,
            on_fabric: (offload == "nic").then_some(auth == "payload"),
            uplink_bytes_per_broadcast: None,
            busiest_uplink_bytes_per_broadcast: None,
            late: None,
            killed: None,
        };
        let configurations = [("host", "header"), ("nic", "header"), ("nic", "payload")];
        let rows = [64, 1_024]
            .iter()
            .flat_map(|&bytes| configurations.map(|(offload, auth)| row(offload, auth, bytes)));
        let figure = figure(&Report::new(rows.collect(), Vec::new(), 0), "treecast bench".into());
        assert_eq!(
            figure.curve_names(),
            ["user host auto header", "user nic auto header", "user nic auto payload racks"]
        );
        let [curve, ..] = &figure.panels[0].curves[..] else { panic!("a curve") };
        let points: Vec<_> = curve.points.iter().map(|point| (point.x, point.mean, point.high)).collect();
        assert_eq!(points, [(64.0, 40.0, 70.0), (1_024.0, 40.0, 70.0)]);
    }
}
