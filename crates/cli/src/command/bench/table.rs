//! A report as tables for people.

use comfy_table::{CellAlignment, Table};
use treecast_bench::{KilledMember, LateProcess, Limits, Peer, Report, Row};
use treecast_node::{Integrity, Transport};
use treecast_terms::{Operation, format_count};

use crate::output::plain;

/// A column of the table: its name with its unit, whether it has text, which is aligned to the
/// left, and its cells.
type Column = (&'static str, bool, fn(&Row) -> String);

/// The columns for which the rows have values.
fn columns(report: &Report) -> Vec<Column> {
    const NUMBER: bool = false;
    const TEXT: bool = true;
    let any = |is_in: fn(&Row) -> bool| report.rows.iter().any(is_in);
    let mut columns: Vec<Column> = vec![("bytes", NUMBER, |row| row.bytes.to_string())];
    if any(|row| row.operation != Operation::default().to_string()) {
        columns.insert(0, ("operation", TEXT, |row| row.operation.clone()));
    }
    if any(|row| row.processes > 1) {
        columns.push(("processes", NUMBER, |row| row.processes.to_string()));
    }
    columns.extend::<[Column; 4]>([
        ("engine", TEXT, |row| row.engine.clone()),
        ("offload", TEXT, |row| row.offload.clone()),
        ("scheme", TEXT, |row| row.scheme.clone()),
        ("auth", TEXT, |row| row.auth.clone()),
    ]);
    if any(|row| row.integrity != Integrity::default().to_string()) {
        columns.push(("integrity", TEXT, |row| row.integrity.clone()));
    }
    if any(|row| row.transport != Transport::default().to_string() && row.auth != "none") {
        columns.push(("transport", TEXT, |row| row.transport.clone()));
    }
    columns.extend::<[Column; 12]>([
        ("root p50, us", NUMBER, |row| decimal(row.root_us_p50)),
        ("last delivery p50, us", NUMBER, |row| decimal(row.last_delivery_us_p50)),
        ("p99, us", NUMBER, |row| decimal(row.last_delivery_us_p99)),
        ("last stored p50, us", NUMBER, |row| row.last_stored_us_p50.map_or_else(|| "-".into(), decimal)),
        ("call mean, us", NUMBER, |row| decimal(row.call_us_mean)),
        ("call CPU, us", NUMBER, |row| row.call_cpu_us_mean.map_or_else(|| "-".into(), decimal)),
        ("CPU, us", NUMBER, |row| decimal(row.cpu_us_per_broadcast)),
        ("root CPU, us", NUMBER, |row| decimal(row.root_cpu_us_per_broadcast)),
        ("MB/s", NUMBER, |row| decimal(row.throughput_mb_s)),
        ("retransmitted", NUMBER, |row| decimal(row.retransmitted_per_broadcast)),
        ("lost", NUMBER, |row| row.lost.to_string()),
        ("duplicates", NUMBER, |row| row.duplicates.to_string()),
    ]);
    if any(|row| row.uplink_bytes_per_broadcast.is_some()) {
        columns.extend::<[Column; 2]>([
            ("uplinks, bytes", NUMBER, |row| bytes(row.uplink_bytes_per_broadcast)),
            ("busiest uplink, bytes", NUMBER, |row| bytes(row.busiest_uplink_bytes_per_broadcast)),
        ]);
    }
    if any(|row| row.last_delivery_us_predicted.is_some()) {
        columns.extend::<[Column; 2]>([
            ("predicted, us", NUMBER, |row| {
                row.last_delivery_us_predicted.map_or_else(|| "-".into(), decimal)
            }),
            ("error", NUMBER, |row| {
                row.prediction_error().map_or_else(|| "-".into(), |error| format!("{:+.0} %", 100.0 * error))
            }),
        ]);
    }
    if any(|row| row.on_fabric.is_some()) {
        columns.push(("tree for", TEXT, |row| {
            if row.on_fabric == Some(true) { "racks".into() } else { "any hosts".into() }
        }));
    }
    if any(|row| row.skew_us.is_some()) {
        columns.push(("skew, us", NUMBER, |row| row.skew_us.map_or_else(String::new, decimal)));
    }
    if any(|row| row.late.is_some()) {
        columns.extend::<[Column; 4]>([
            ("late, us", NUMBER, |row| of_late(row, |late| late.delay_us)),
            ("others p50, us", NUMBER, |row| of_late(row, |late| late.others_last_delivery_us_p50)),
            ("others p99, us", NUMBER, |row| of_late(row, |late| late.others_last_delivery_us_p99)),
            ("others' call, us", NUMBER, |row| of_late(row, |late| late.others_call_us_mean)),
        ]);
    }
    columns
}

fn decimal(number: f64) -> String {
    format!("{number:.1}")
}

fn bytes(number: Option<f64>) -> String {
    number.map_or_else(String::new, |bytes| format_count(bytes as u64))
}

fn of_late(row: &Row, number: fn(&LateProcess) -> f64) -> String {
    row.late.as_ref().map_or_else(String::new, |late| decimal(number(late)))
}

pub fn table(report: &Report) -> String {
    let columns = columns(report);
    let mut table = Table::new();
    table.set_header(columns.iter().map(|(name, ..)| *name));
    for row in &report.rows {
        table.add_row(columns.iter().map(|(_, _, cell)| cell(row)));
    }
    for ((_, is_text, _), column) in columns.iter().zip(table.column_iter_mut()) {
        if !is_text {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = format!("{}\n", plain(table));
    for lost in &report.lost_members {
        text += &format!("{lost}\n");
    }
    if let Some(killed) = report.rows.iter().find_map(|row| row.killed.as_ref()) {
        text += &killed_sentence(killed);
    }
    if let Some(limits) = &report.limits {
        text += &limits_sentence(limits);
    }
    if let Some(error) = report.prediction_error() {
        text += &format!("The median error of the predictions is {:.0} %.\n", 100.0 * error);
    }
    if report.clock_error_us > 0.0 {
        text += &format!(
            "Clocks were compared over the network: times of last deliveries have an error of up to {:.0} us.\n",
            report.clock_error_us
        );
    }
    text
}

/// What is compared with a peer: its name, whether more is better, and how it is read.
type Compared = (&'static str, bool, fn(&Row) -> f64);

/// A stream is compared by its throughput, and calls that processes enter late by their durations:
/// the last delivery is hardly earlier than the last process.
fn compared(report: &Report, is_stream: bool) -> Compared {
    let any = |is_in: fn(&Row) -> bool| report.rows.iter().any(is_in);
    if is_stream {
        ("MB/s", true, |row| row.throughput_mb_s)
    } else if any(|row| row.skew_us.is_some()) {
        ("Call mean in us", false, |row| row.call_us_mean)
    } else if any(|row| row.late.is_some()) {
        ("Others' call mean in us", false, |row| {
            row.late.as_ref().map_or(row.call_us_mean, |late| late.others_call_us_mean)
        })
    } else {
        ("Last delivery p50 in us", false, |row| row.last_delivery_us_p50)
    }
}

/// How late processes are, in microseconds, if some are.
fn lateness(row: &Row) -> Option<f64> {
    row.skew_us.or_else(|| row.late.as_ref().map(|late| late.delay_us))
}

/// Each configuration beside the peer, and how many times as fast it is.
pub fn comparison(report: &Report, peer: Peer, is_stream: bool) -> String {
    let (what, is_more_better, measured) = compared(report, is_stream);
    let ratio = |ours: f64, theirs: f64| if is_more_better { ours / theirs } else { theirs / ours };
    let transport = |row: &Row| match &row.transport[..] {
        "packets" => String::new(),
        streams => format!(" {streams}"),
    };
    let name = |row: &Row| format!("{} {}{}", row.engine, row.offload, transport(row));
    let is_peer = |row: &&Row| Peer::NAMES.iter().any(|(name, _)| row.engine.split('+').next() == Some(name));
    let theirs: Vec<&Row> = report.rows.iter().filter(|row| row.engine == peer.to_string()).collect();
    let ours: Vec<&Row> =
        report.rows.iter().filter(|row| !is_peer(row) || row.engine == format!("{peer}+shim")).collect();
    let mut names: Vec<String> = Vec::new();
    for row in &ours {
        if !names.contains(&name(row)) {
            names.push(name(row));
        }
    }
    let late = theirs.iter().any(|row| lateness(row).is_some()).then(|| "late, us".to_owned());
    let mut table = Table::new();
    let first = ["bytes".into()].into_iter().chain(late).chain([peer.to_string()]);
    table.set_header(first.chain(names.iter().cloned()));
    for theirs in theirs {
        let mut cells = vec![theirs.bytes.to_string()];
        cells.extend(lateness(theirs).map(decimal));
        cells.push(decimal(measured(theirs)));
        cells.extend(names.iter().map(|column| {
            let is_same = |row: &Row| row.bytes == theirs.bytes && lateness(row) == lateness(theirs);
            let same = ours.iter().filter(|row| is_same(row) && name(row) == *column);
            let of_all = same.map(|row| {
                format!("{} ({:.2})", decimal(measured(row)), ratio(measured(row), measured(theirs)))
            });
            of_all.collect::<Vec<_>>().join(" ")
        }));
        table.add_row(cells);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    format!("{what}, and how many times as fast as {peer}:\n\n{}\n", plain(table))
}

fn limits_sentence(limits: &Limits) -> String {
    let Limits { processes, futex_wake_us, yield_notice_us, udp_each_us, .. } = limits;
    let gigabytes = |bytes_per_s: f64| bytes_per_s / 1e9;
    format!(
        "Limits of this machine (receivers: {processes}): a futex wakes all after {futex_wake_us:.0} us, a datagram to each over loopback after {udp_each_us:.0} us; \
         by checking and yielding they notice after {yield_notice_us:.0} us. It copies {:.1} GB/s, and a chain of TCP connections carries {:.2} GB/s.\n",
        gigabytes(limits.copy_bytes_per_s),
        gigabytes(limits.tcp_chain_bytes_per_s),
    )
}

fn killed_sentence(killed: &KilledMember) -> String {
    let KilledMember { member, root_knew_us, survivors_complete_us } = killed;
    let root = root_knew_us.map_or_else(
        || "all survivors had the message before the root detected it".into(),
        |us| format!("the root reported it {:.0} ms later", us / 1e3),
    );
    let survivors = survivors_complete_us.map_or_else(
        || "there were no survivors".into(),
        |us| format!("the last survivor had the message {:.0} ms later", us / 1e3),
    );
    format!("Member {member} was killed halfway through the message: {root}, and {survivors}.\n")
}
