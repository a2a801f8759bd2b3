//! The outcome of a copy, as text and as JSON.

use indicatif::DecimalBytes;
use serde_json::json;
use treecast_copy::{Cause, HostReport, Outcome, Planned, Relieved, Report, Served};

use crate::output::{messages, print_message, print_note};

pub(super) fn print_failures(report: &Report) {
    for (path, why) in &report.left_out {
        print_message(&format!("{}: {why}", path.display()));
    }
    for HostReport { host, outcome, .. } in &report.hosts {
        match outcome {
            Outcome::Complete => {}
            Outcome::Incomplete { failures, count } => {
                for failure in failures {
                    print_message(&format!("{host}: {failure}"));
                }
                let others = count.saturating_sub(failures.len() as u64);
                if others > 0 {
                    print_message(&format!("{host}: {others} others"));
                }
            }
            Outcome::Failed(why) => print_message(&format!("{host}: {why}")),
        }
    }
}

/// What hosts have served to others, and what they could not.
pub(super) fn print_served(report: &Report) {
    for Served { host, bytes, refusal, failure } in &report.served_by {
        if let Some(why) = refusal {
            print_message(&format!("{host}: {why}: this host sends what {host} does not serve"));
        }
        if let Some(why) = failure {
            print_message(&format!("{host}: it has failed as it served others: {why}"));
        }
        if messages().is_verbose {
            print_note(&format!("{host} has served {}", DecimalBytes(*bytes)));
        }
    }
}

pub(super) fn summary(report: &Report) -> String {
    let hosts = report.hosts.len();
    let complete = report.hosts.iter().filter(|host| host.outcome == Outcome::Complete).count();
    let files = report.files.len();
    let seconds = report.duration.as_secs_f64();
    let rate = report.bytes as f64 / seconds / 1e6;
    let kept: u64 = report.hosts.iter().map(|host| host.kept).sum();
    let deleted: u64 = report.hosts.iter().map(|host| host.deleted).sum();
    let kept_text = match kept {
        0 => String::new(),
        1 => "; 1 was there and kept".into(),
        _ => format!("; {kept} were there and kept"),
    };
    let deleted_text = if deleted > 0 { format!("; {deleted} deleted") } else { String::new() };
    let compressed_text = if report.stream_bytes < report.bytes {
        format!("; compressed to {}", DecimalBytes(report.stream_bytes))
    } else {
        String::new()
    };
    let plural = if files == 1 { "" } else { "s" };
    let hosts_text = if complete == hosts {
        format!("{hosts} host{}", if hosts == 1 { "" } else { "s" })
    } else {
        format!("{complete} of {hosts} hosts")
    };
    if files == 0 && kept > 0 {
        return format!("nothing to send to {hosts_text}{kept_text}{deleted_text}");
    }
    let bytes = DecimalBytes(report.bytes);
    let attempts_text =
        if report.attempts > 1 { format!(" in {} attempts", report.attempts) } else { String::new() };
    format!(
        "{files} file{plural}, {bytes}{attempts_text}, to {hosts_text} in {seconds:.1} s: {rate:.1} MB/s{compressed_text}{kept_text}{deleted_text}"
    )
}

/// The files that would be copied and deleted, a line each.
pub(super) fn plan(report: &Report) -> String {
    let mut text = String::new();
    for Planned { source, length, hosts } in &report.planned {
        let hosts = hosts.join(",");
        let length = length.map(|length| format!(" ({})", DecimalBytes(length))).unwrap_or_default();
        text += &format!("copy {}{length} to {hosts}\n", source.display());
    }
    for HostReport { host, deleted, deletions, .. } in &report.hosts {
        for path in deletions {
            text += &format!("delete {host}:{path}\n");
        }
        let others = deleted.saturating_sub(deletions.len() as u64);
        if others > 0 {
            text += &format!("delete {others} others on {host}\n");
        }
    }
    text
}

pub(super) fn summary_of_plan(report: &Report) -> String {
    let bytes: u64 = report.planned.iter().filter_map(|planned| planned.length).sum();
    let deleted: u64 = report.hosts.iter().map(|host| host.deleted).sum();
    let (sources, bytes) = (report.planned.len(), DecimalBytes(bytes));
    format!("nothing was changed: {sources} to be copied, {bytes}; {deleted} to be deleted")
}

pub(super) fn in_json(report: &Report) -> serde_json::Value {
    let hosts = report.hosts.iter().map(|host| {
        let HostReport { host, outcome, files, kept, deleted, deletions, .. } = host;
        match outcome {
            Outcome::Complete => json!({
                "host": host, "state": "complete", "files": files, "kept": kept, "deleted": deleted,
                "deletions": deletions,
            }),
            Outcome::Incomplete { failures, count } => json!({
                "host": host, "state": "incomplete", "files": files, "kept": kept, "deleted": deleted,
                "failures": failures, "failure_count": count,
            }),
            Outcome::Failed(why) => json!({"host": host, "state": "failed", "why": why}),
        }
    });
    let files = report.files.iter().map(
        |file| json!({"source": file.source.display().to_string(), "bytes": file.length, "blake3": file.hash_text()}),
    );
    let planned = report.planned.iter().map(|planned| {
        let Planned { source, length, hosts } = planned;
        json!({"source": source.display().to_string(), "bytes": length, "hosts": hosts})
    });
    let left_out =
        report.left_out.iter().map(|(path, why)| json!({"source": path.display().to_string(), "why": why}));
    let relieved = report.relieved.iter().map(|Relieved { host, to, cause }| {
        let cause = match cause {
            Cause::Forwarding => "forwarding",
            Cause::Disk => "disk",
            Cause::Writing => "writing",
        };
        json!({"host": host, "to": to, "cause": cause})
    });
    let served_by = report.served_by.iter().map(|served| {
        let Served { host, bytes, refusal, failure } = served;
        json!({"host": host, "bytes": bytes, "refusal": refusal, "failure": failure})
    });
    json!({
        "complete": report.is_complete(),
        "attempts": report.attempts,
        "bytes": report.bytes,
        "stream_bytes": report.stream_bytes,
        "seconds": report.duration.as_secs_f64(),
        "files": files.collect::<Vec<_>>(),
        "planned": planned.collect::<Vec<_>>(),
        "left_out": left_out.collect::<Vec<_>>(),
        "relieved": relieved.collect::<Vec<_>>(),
        "served_by": served_by.collect::<Vec<_>>(),
        "hosts": hosts.collect::<Vec<_>>(),
    })
}
