//! A report as a figure.

use treecast_study::figure::{Best, Curve, Figure, Panel, Point, Scale};

use treecast_node::{Integrity, Transport};
use treecast_terms::Operation;

use crate::report::{Report, Row};

/// A quantity over the message size.
struct Quantity {
    name: &'static str,
    title: &'static str,
    label: &'static str,
    best: Best,
    caption: &'static str,
    /// The value of a row, and the end of its band.
    value: fn(&Row) -> (f64, f64),
}

const PERCENTILES: &str = "Medians; bands end at the 99th percentile.";

const LAST_DELIVERY: Quantity = Quantity {
    name: "last-delivery",
    title: "latency of the last delivery",
    label: "last delivery (us)",
    best: Best::Lowest,
    caption: PERCENTILES,
    value: |row| (row.last_delivery_us_p50, row.last_delivery_us_p99),
};

const OTHERS: [Quantity; 4] = [
    Quantity {
        name: "call",
        title: "time in the call",
        label: "time in the call (us)",
        best: Best::Lowest,
        caption: "Mean time in the call of the processes that receive; where one of each host is late, of the others.",
        value: |row| {
            let mean = row.late.as_ref().map_or(row.call_us_mean, |late| late.others_call_us_mean);
            (mean, mean)
        },
    },
    Quantity {
        name: "root",
        title: "time of the root",
        label: "root (us)",
        best: Best::Lowest,
        caption: PERCENTILES,
        value: |row| (row.root_us_p50, row.root_us_p99),
    },
    Quantity {
        name: "cpu",
        title: "CPU time of all processes",
        label: "CPU (us)",
        best: Best::Lowest,
        caption: "CPU time for each call, of all processes together.",
        value: |row| (row.cpu_us_per_broadcast, row.cpu_us_per_broadcast),
    },
    Quantity {
        name: "throughput",
        title: "throughput",
        label: "throughput (MB/s)",
        best: Best::Highest,
        caption: "10^6 bytes per second that each member received.",
        value: |row| (row.throughput_mb_s, row.throughput_mb_s),
    },
];

/// The latency of the last delivery over the message size, with one curve per configuration. A
/// point is the median; the band ends at the 99th percentile.
pub fn figure(report: &Report, command: String) -> Figure {
    drawn(report, command, &LAST_DELIVERY)
}

/// That figure, and those of the time in the call, the root's time, CPU time and throughput, where
/// all rows have them.
pub fn figures(report: &Report, command: &str) -> Vec<Figure> {
    let is_everywhere = |quantity: &&Quantity| report.rows.iter().all(|row| (quantity.value)(row).0 > 0.0);
    std::iter::once(&LAST_DELIVERY)
        .chain(OTHERS.iter().filter(is_everywhere))
        .map(|quantity| drawn(report, command.to_string(), quantity))
        .collect()
}

fn drawn(report: &Report, command: String, quantity: &Quantity) -> Figure {
    let mut curves: Vec<Curve> = Vec::new();
    for row in &report.rows {
        let racks = if row.on_fabric == Some(true) { " racks" } else { "" };
        let late = row.late.as_ref().map_or_else(String::new, |late| format!(" late {} us", late.delay_us));
        let skew = row.skew_us.map_or_else(String::new, |skew| format!(" skew {skew} us"));
        let integrity = if row.integrity == Integrity::default().to_string() { "" } else { &row.integrity };
        let is_default = row.transport == Transport::default().to_string() || row.auth == "none";
        let transport = if is_default { "" } else { &row.transport };
        let parts = [&row.engine, &row.offload, &row.scheme, &row.auth, integrity, transport];
        let name = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
            + racks
            + &late
            + &skew;
        let (mean, high) = (quantity.value)(row);
        let point = Point { x: row.bytes as f64, mean, low: mean, high, runs: row.messages as usize };
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve {
                description: format!(
                    "{} forwards, tree {}, {} authenticated",
                    who_forwards(row),
                    row.scheme,
                    if row.auth == "none" { "nothing" } else { &row.auth }
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
        name: quantity.name.into(),
        title: format!("{operation} among {hosts} hosts{processes}: {}", quantity.title),
        x_label: "message (bytes)".into(),
        y_label: quantity.label.into(),
        row_label: None,
        best: quantity.best,
        x_scale: Scale::Log2,
        y_scale: Scale::Log2,
        shared_y: true,
        columns: 1,
        panels: vec![Panel { title: String::new(), curves }],
        caption: quantity.caption.into(),
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
    use crate::report::LateProcess;

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
            skew_us: None,
            late: None,
            killed: None,
            broadcast: None,
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
        // Where processes are late, the time of the others in the call is what counts.
        let late = LateProcess {
            process: 0,
            host: None,
            delay_us: 400.0,
            others_last_delivery_us_p50: 40.0,
            others_last_delivery_us_p99: 70.0,
            others_call_us_mean: 8.0,
        };
        let row = Row { late: Some(late), ..row("nic", "none", 64) };
        let figures = figures(&Report::new(vec![row], Vec::new(), 0), "treecast bench");
        let call = figures.iter().find(|figure| figure.name == "call").unwrap();
        let [curve, ..] = &call.panels[0].curves[..] else { panic!("a curve") };
        let point = &curve.points[0];
        assert_eq!((point.x, point.mean), (64.0, 8.0));
        assert_eq!(curve.description, "the node forwards, tree auto, nothing authenticated");
    }
}
