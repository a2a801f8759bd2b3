//! A report as a figure.

use treecast_study::figure::{Best, Curve, Figure, Panel, Point, Scale};

use treecast_node::{Integrity, Transport};
use treecast_terms::{Operation, format_size};

use crate::report::{Report, Row};

/// A quantity on the y axis.
struct Quantity {
    name: &'static str,
    title: &'static str,
    label: &'static str,
    best: Best,
    caption: &'static str,
    /// The value of a row, and the end of its band.
    value: fn(&Row) -> (f64, f64),
}

/// A parameter on the x axis.
struct Parameter {
    /// The end of a title.
    title: &'static str,
    label: &'static str,
    caption: &'static str,
    x_scale: Scale,
    y_scale: Scale,
    value: fn(&Row) -> f64,
    /// The title of a row's panel.
    panel: fn(&Row) -> String,
    /// What a row's curve has behind the name of its configuration.
    suffix: fn(&Row) -> String,
}

const SIZE: Parameter = Parameter {
    title: "",
    label: "message (bytes)",
    caption: "",
    x_scale: Scale::Log2,
    y_scale: Scale::Log2,
    value: |row| row.bytes as f64,
    panel: |_| String::new(),
    suffix: lateness,
};

/// As in the experiment of Yu, Buntinas and Panda (OSU TR33, 2003).
const SKEW: Parameter = Parameter {
    title: " over the skew",
    label: "average skew (us)",
    caption: " Curves compare configurations by how late members enter their calls. Each member draws its delays from \
              a range three times as wide as the average skew; half of it is negative and means no delay.",
    x_scale: Scale::Linear,
    y_scale: Scale::Linear,
    value: late_us,
    panel: |row| format!("messages of {}", format_size(row.bytes)),
    suffix: |_| String::new(),
};

const LATE: Parameter = Parameter {
    title: " over the delay of a late process",
    label: "delay of the late process (us)",
    caption: " Curves compare configurations by how late one process of each host, or of one host, enters its calls.",
    ..SKEW
};

const PERCENTILES: &str = "Medians; bands end at the 99th percentile.";

const LAST_DELIVERY: Quantity = Quantity {
    name: "last-delivery",
    title: "latency of the last delivery",
    label: "last delivery (us)",
    best: Best::Lowest,
    caption: PERCENTILES,
    value: |row| (row.last_delivery_us_p50, row.last_delivery_us_p99),
};

const CALL: Quantity = Quantity {
    name: "call",
    title: "mean time in the call",
    label: "mean time in the call (us)",
    best: Best::Lowest,
    caption: "Mean time in the call of the processes that receive (with --late, of those in time).",
    value: |row| {
        let mean = row.late.as_ref().map_or(row.call_us_mean, |late| late.others_call_us_mean);
        (mean, mean)
    },
};

const CALL_CPU: Quantity = Quantity {
    name: "call-cpu",
    title: "mean CPU time in the call",
    label: "mean CPU time in the call (us)",
    best: Best::Lowest,
    caption: "Mean CPU time in the call of the threads that receive.",
    value: |row| {
        let mean = row.call_cpu_us_mean.unwrap_or_default();
        (mean, mean)
    },
};

const ROOT: Quantity = Quantity {
    name: "root",
    title: "time of the root",
    label: "root (us)",
    best: Best::Lowest,
    caption: PERCENTILES,
    value: |row| (row.root_us_p50, row.root_us_p99),
};

const CPU: Quantity = Quantity {
    name: "cpu",
    title: "CPU time of all processes",
    label: "CPU (us)",
    best: Best::Lowest,
    caption: "CPU time for each call, of all processes together.",
    value: |row| (row.cpu_us_per_broadcast, row.cpu_us_per_broadcast),
};

const THROUGHPUT: Quantity = Quantity {
    name: "throughput",
    title: "throughput",
    label: "throughput (MB/s)",
    best: Best::Highest,
    caption: "10^6 bytes per second that each member received.",
    value: |row| (row.throughput_mb_s, row.throughput_mb_s),
};

/// The quantities over the message size, the most important first.
const OVER_SIZE: &[Quantity] = &[LAST_DELIVERY, CALL, CALL_CPU, ROOT, CPU, THROUGHPUT];

/// Those over how late processes are. Then one message is sent per period, so that the throughput
/// says nothing.
const OVER_DELAY: &[Quantity] = &[CALL, CALL_CPU, LAST_DELIVERY, ROOT, CPU];

/// The most important figure of a report, with one curve per configuration: the latency of the last
/// delivery over the message size. Where several skews or delays were measured, it is the time in
/// the call over these, with one panel per message size.
pub fn figure(report: &Report, command: String) -> Figure {
    let (parameter, quantities) = axes(report);
    drawn(report, command, parameter, &quantities[0])
}

/// That figure, and those of the other quantities that all rows have.
pub fn figures(report: &Report, command: &str) -> Vec<Figure> {
    let (parameter, quantities) = axes(report);
    let is_everywhere = |quantity: &&Quantity| report.rows.iter().all(|row| (quantity.value)(row).0 > 0.0);
    let (first, others) = quantities.split_at(1);
    first
        .iter()
        .chain(others.iter().filter(is_everywhere))
        .map(|quantity| drawn(report, command.to_string(), parameter, quantity))
        .collect()
}

/// What a report is drawn over, and the quantities that are drawn.
fn axes(report: &Report) -> (&'static Parameter, &'static [Quantity]) {
    let [first, others @ ..] = &report.rows[..] else { return (&SIZE, OVER_SIZE) };
    if others.iter().all(|row| late_us(row).total_cmp(&late_us(first)).is_eq()) {
        (&SIZE, OVER_SIZE)
    } else {
        (if first.skew_us.is_some() { &SKEW } else { &LATE }, OVER_DELAY)
    }
}

/// How late processes are: the average skew, or the delay of the late process.
fn late_us(row: &Row) -> f64 {
    let late = row.late.as_ref().map(|late| late.delay_us);
    row.skew_us.or(late).unwrap_or_default()
}

fn drawn(report: &Report, command: String, parameter: &Parameter, quantity: &Quantity) -> Figure {
    let mut panels: Vec<Panel> = Vec::new();
    for row in &report.rows {
        let title = (parameter.panel)(row);
        let place = panels.iter().position(|panel| panel.title == title).unwrap_or_else(|| {
            panels.push(Panel { title, curves: Vec::new() });
            panels.len() - 1
        });
        let curves = &mut panels[place].curves;
        let name = configuration(row) + &(parameter.suffix)(row);
        let (mean, high) = (quantity.value)(row);
        let point = Point { x: (parameter.value)(row), mean, low: mean, high, runs: row.messages as usize };
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve {
                description: description(row),
                name,
                row: None,
                points: vec![point],
                missing: Vec::new(),
            }),
        }
    }
    Figure {
        study: "bench".into(),
        name: quantity.name.into(),
        title: format!("{}: {}{}", what_was_measured(report), quantity.title, parameter.title),
        x_label: parameter.label.into(),
        y_label: quantity.label.into(),
        row_label: None,
        best: quantity.best,
        x_scale: parameter.x_scale,
        y_scale: parameter.y_scale,
        shared_y: false,
        columns: panels.len().clamp(1, 2),
        panels,
        caption: format!("{}{}", quantity.caption, parameter.caption),
        command,
    }
}

/// Whether the row is of other software, with or without our shim: only that authenticates nothing.
fn is_peer(row: &Row) -> bool {
    row.auth == "none"
}

/// The name of a row's configuration. Other software has no offload and no scheme of ours.
fn configuration(row: &Row) -> String {
    if is_peer(row) {
        return row.engine.clone();
    }
    let integrity = if row.integrity == Integrity::default().to_string() { "" } else { &row.integrity };
    let transport = if row.transport == Transport::default().to_string() { "" } else { &row.transport };
    let racks = if row.on_fabric == Some(true) { "racks" } else { "" };
    let parts = [&row.engine, &row.offload, &row.scheme, &row.auth, integrity, transport, racks];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// How late processes are, in the name of a curve over the message size.
fn lateness(row: &Row) -> String {
    let late = row.late.as_ref().map_or_else(String::new, |late| format!(" late {} us", late.delay_us));
    let skew = row.skew_us.map_or_else(String::new, |skew| format!(" skew {skew} us"));
    late + &skew
}

/// The operation and its members.
fn what_was_measured(report: &Report) -> String {
    let (hosts, processes) = report.rows.first().map_or((0, 1), |row| (row.hosts, row.processes));
    let operation = match report.rows.first().map(|row| row.operation.parse()) {
        Some(Ok(Operation::AllReduce)) => "All-reduce",
        Some(Ok(Operation::Barrier)) => "Barrier",
        _ => "Broadcast",
    };
    let processes = if processes > 1 { format!(" of {processes} processes") } else { String::new() };
    format!("{operation} among {hosts} hosts{processes}")
}

/// What the name of a row's configuration means.
fn description(row: &Row) -> String {
    match is_peer(row) {
        true if row.engine.ends_with("+shim") => "other software with our shim".into(),
        true => "other software".into(),
        false => {
            format!("{} forwards, tree {}, {} authenticated", who_forwards(row), row.scheme, row.auth)
        }
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

    fn row(offload: &str, auth: &str, bytes: u64) -> Row {
        Row {
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
            on_fabric: None,
            uplink_bytes_per_broadcast: None,
            busiest_uplink_bytes_per_broadcast: None,
            skew_us: None,
            late: None,
            killed: None,
            broadcast: None,
        }
    }

    fn late(delay_us: f64) -> LateProcess {
        LateProcess {
            process: 0,
            host: None,
            delay_us,
            others_last_delivery_us_p50: 40.0,
            others_last_delivery_us_p99: 70.0,
            others_call_us_mean: 8.0,
        }
    }

    fn report(rows: impl IntoIterator<Item = Row>) -> Report {
        Report::new(rows.into_iter().collect(), Vec::new(), 0)
    }

    fn names(figures: &[Figure]) -> Vec<&str> {
        figures.iter().map(|figure| figure.name.as_str()).collect()
    }

    fn points(curve: &Curve) -> Vec<(f64, f64, f64)> {
        curve.points.iter().map(|point| (point.x, point.mean, point.high)).collect()
    }

    #[test]
    fn every_configuration_is_a_curve() {
        let configurations = [("host", "header"), ("nic", "header"), ("nic", "payload")];
        let rows = [64, 1_024].iter().flat_map(|&bytes| {
            configurations.map(|(offload, auth)| Row {
                on_fabric: (offload == "nic").then_some(auth == "payload"),
                ..row(offload, auth, bytes)
            })
        });
        let figure = figure(&report(rows), "treecast bench".into());
        assert_eq!(
            figure.curve_names(),
            ["user host auto header", "user nic auto header", "user nic auto payload racks"]
        );
        assert_eq!(points(&figure.panels[0].curves[0]), [(64.0, 40.0, 70.0), (1_024.0, 40.0, 70.0)]);
    }

    #[test]
    fn where_processes_are_late_the_time_of_the_others_in_the_call_counts() {
        let row = Row { late: Some(late(400.0)), ..row("nic", "header", 64) };
        let figures = figures(&report([row]), "treecast bench");
        assert_eq!(names(&figures), ["last-delivery", "call", "root", "cpu", "throughput"]);
        let [curve] = &figures[1].panels[0].curves[..] else { panic!("one curve") };
        assert_eq!(curve.name, "user nic auto header late 400 us");
        assert_eq!(points(curve), [(64.0, 8.0, 8.0)]);
        assert_eq!(curve.description, "the node forwards, tree auto, header authenticated");
    }

    #[test]
    fn other_software_is_called_by_its_name() {
        let peers = ["openmpi", "openmpi+shim"];
        let rows = peers.map(|engine| Row { engine: engine.into(), ..row("host", "none", 64) });
        let figure = figure(&report(rows), "treecast bench".into());
        assert_eq!(figure.curve_names(), peers);
        let descriptions = figure.panels[0].curves.iter().map(|curve| curve.description.as_str());
        assert_eq!(descriptions.collect::<Vec<_>>(), ["other software", "other software with our shim"]);
    }

    #[test]
    fn several_skews_are_an_axis_with_a_panel_for_each_size() {
        let rows = [64, 4_096].into_iter().flat_map(|bytes| {
            ["host", "nic"].into_iter().flat_map(move |offload| {
                [0.0, 400.0].map(|skew_us| Row {
                    skew_us: Some(skew_us),
                    call_us_mean: 10.0 + skew_us,
                    call_cpu_us_mean: Some(5.0),
                    ..row(offload, "header", bytes)
                })
            })
        });
        let figures = figures(&report(rows), "treecast bench");
        assert_eq!(names(&figures), ["call", "call-cpu", "last-delivery", "root", "cpu"]);
        let [call, call_cpu, ..] = &figures[..] else { panic!("two figures") };
        assert_eq!(call.title, "Broadcast among 4 hosts: mean time in the call over the skew");
        assert_eq!((call.x_label.as_str(), call.x_scale), ("average skew (us)", Scale::Linear));
        let panels: Vec<_> = call.panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(panels, ["messages of 64 bytes", "messages of 4K"]);
        assert_eq!(call.curve_names(), ["user host auto header", "user nic auto header"]);
        for curve in call.panels.iter().flat_map(|panel| &panel.curves) {
            assert_eq!(points(curve), [(0.0, 10.0, 10.0), (400.0, 410.0, 410.0)]);
        }
        assert_eq!(points(&call_cpu.panels[1].curves[0]), [(0.0, 5.0, 5.0), (400.0, 5.0, 5.0)]);
    }

    #[test]
    fn several_delays_of_a_late_process_are_an_axis() {
        let rows =
            [0.0, 1_600.0].map(|delay_us| Row { late: Some(late(delay_us)), ..row("nic", "header", 4) });
        let figure = figure(&report(rows), "treecast bench".into());
        assert_eq!(
            (figure.name.as_str(), figure.x_label.as_str()),
            ("call", "delay of the late process (us)")
        );
        assert_eq!(points(&figure.panels[0].curves[0]), [(0.0, 8.0, 8.0), (1_600.0, 8.0, 8.0)]);
    }
}
