//! The progress of a copy, on a terminal and in lines.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use treecast_copy::{Progress, Slow, Upload};

use crate::output::{messages, print_note, progress_bar};

/// The interval of progress lines when standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// How long hosts may take to start before a line names them.
const AWAITED_DELAY: Duration = Duration::from_secs(1);

/// The maximum number of hosts that this line names.
const AWAITED_NAMES_MAX: usize = 5;

/// The bar of a copy whose length is known.
const BAR: &str =
    "{decimal_bytes} of {decimal_total_bytes} {wide_bar} {decimal_bytes_per_sec}, ETA {eta}{msg}";

/// The same where the length is unknown: that of standard input.
const BAR_WITHOUT_TOTAL: &str = "{decimal_bytes} {spinner} {decimal_bytes_per_sec}{msg}";

/// The display while files are copied.
pub(super) struct Display {
    bar: ProgressBar,
    line_at: Instant,
    /// When the awaited hosts are named.
    awaited_at: Instant,
    /// Whether a line has said that the receiver is sent.
    has_told_upload: bool,
    /// The number of changes of the tree that lines have announced.
    told_relieved: usize,
}

impl Display {
    pub fn new(total: u64) -> Self {
        let total = known(total);
        let bar = progress_bar(total, template(total));
        bar.set_message("; starting receivers");
        Self {
            bar,
            line_at: Instant::now() + LINE_INTERVAL,
            awaited_at: Instant::now() + AWAITED_DELAY,
            has_told_upload: false,
            told_relieved: 0,
        }
    }

    pub fn show(&mut self, progress: &Progress<'_>) {
        if !progress.awaited.is_empty() {
            let upload = progress.upload.as_ref().map(upload_text);
            self.show_awaited(&progress.awaited, "to start", upload);
            return;
        }
        if !progress.joining.is_empty() {
            self.show_awaited(&progress.joining, "to answer by UDP", None);
            return;
        }
        if !progress.comparing.is_empty() {
            self.show_awaited(&progress.comparing, "to compare the files", None);
            return;
        }
        self.set_total(known(progress.total));
        self.bar.set_position(progress.sent);
        for slow in progress.relieved.iter().skip(self.told_relieved) {
            let note = match slow {
                Slow::Path(_, to) => format!("{slow}: this host sends to {to} instead"),
                _ => format!("{slow}: this host sends to its children instead"),
            };
            print_note(&note);
        }
        self.told_relieved = progress.relieved.len();
        let message = message(progress, messages().is_verbose);
        let has_begun = progress.total.max(progress.sent) > 0;
        if has_begun && !io::stderr().is_terminal() && Instant::now() >= self.line_at {
            self.line_at = Instant::now() + LINE_INTERVAL;
            text(progress, &message).lines().for_each(print_note);
        }
        self.bar.set_message(message);
    }

    /// Sets the length of the bar, and the template that goes with it.
    fn set_total(&self, total: Option<u64>) {
        if total == self.bar.length() {
            return;
        }
        if total.is_some() != self.bar.length().is_some() {
            let style = ProgressStyle::with_template(template(total)).expect("the template is well-formed");
            self.bar.set_style(style);
        }
        total.map_or_else(|| self.bar.unset_length(), |total| self.bar.set_length(total));
    }

    /// Names hosts that are awaited, and says for what; also how far an upload is.
    fn show_awaited(&mut self, hosts: &[&str], what: &str, upload: Option<String>) {
        let names = hosts.iter().take(AWAITED_NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
        let others = hosts.len().saturating_sub(AWAITED_NAMES_MAX);
        let others = if others > 0 { format!(" and {others} others") } else { String::new() };
        let mut message = format!("waiting for {names}{others} {what}");
        if let Some(upload) = upload {
            message += &format!("; {upload}");
            if !self.has_told_upload {
                // The first such line comes at once: an upload may take as long as the copy.
                self.has_told_upload = true;
                self.awaited_at = Instant::now();
            }
        }
        self.bar.set_message(format!("; {message}"));
        if self.bar.is_hidden() && Instant::now() >= self.awaited_at {
            self.awaited_at = Instant::now() + LINE_INTERVAL;
            print_note(&message);
        }
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// The bytes of all files; none where the length is unknown.
fn known(total: u64) -> Option<u64> {
    (total > 0).then_some(total)
}

const fn template(total: Option<u64>) -> &'static str {
    if total.is_some() { BAR } else { BAR_WITHOUT_TOTAL }
}

/// How far the copy is, in lines.
fn text(progress: &Progress<'_>, message: &str) -> String {
    let sent = DecimalBytes(progress.sent);
    match known(progress.total) {
        Some(total) => format!("{sent} of {}{message}", DecimalBytes(total)),
        None => format!("{sent} sent{message}"),
    }
}

/// Hosts that are slow or have failed; with `is_verbose` also a line for each host.
fn message(progress: &Progress<'_>, is_verbose: bool) -> String {
    let mut message = match (&progress.slow, progress.slowest()) {
        (Some(slow), _) => format!("; {slow}"),
        (None, Some((host, bytes))) if bytes < progress.total => {
            format!("; slowest {host}: {}", DecimalBytes(bytes))
        }
        _ => String::new(),
    };
    if progress.failed > 0 {
        message += &format!("; {} failed", progress.failed);
    }
    if is_verbose {
        for &(host, bytes) in &progress.hosts {
            let percent = known(progress.total).map(|total| format!(" ({} %)", bytes * 100 / total));
            message += &format!("\n  {host}: {}{}", DecimalBytes(bytes), percent.unwrap_or_default());
        }
    }
    message
}

/// How far the receiver has been sent to the hosts that lack it.
fn upload_text(upload: &Upload) -> String {
    let Upload { waiting, receiving, ended, bytes } = *upload;
    let hosts = waiting + receiving + ended;
    let plural = if hosts == 1 { "" } else { "s" };
    let mut text = format!(
        "sending the receiver to {hosts} host{plural} without treecast: {} sent, {ended} done, {receiving} receiving",
        DecimalBytes(bytes)
    );
    if waiting > 0 {
        text += &format!(", {waiting} waiting");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far a copy to two hosts is, in lines and on the bar.
    fn shown(total: u64) -> (String, Option<u64>) {
        let hosts = vec![("a", 262_060), ("b", 200_000)];
        let progress = Progress { sent: 262_060, total, hosts, failed: 1, ..Progress::default() };
        let mut display = Display::new(0);
        display.show(&progress);
        (text(&progress, &message(&progress, true)), display.bar.length())
    }

    #[test]
    fn a_copy_of_known_length_has_a_total_and_percentages() {
        let text = "262.06 kB of 400.00 kB; slowest b: 200.00 kB; 1 failed\n  a: 262.06 kB (65 %)\n  b: 200.00 kB (50 %)";
        assert_eq!(shown(400_000), (text.into(), Some(400_000)));
    }

    #[test]
    fn a_copy_of_unknown_length_has_no_total_and_no_percentage() {
        let text = "262.06 kB sent; 1 failed\n  a: 262.06 kB\n  b: 200.00 kB";
        assert_eq!(shown(0), (text.into(), None));
        for part in ["total", "bar", "eta", "percent"] {
            assert!(!template(None).contains(part), "{part}");
        }
    }

    #[test]
    fn uploads_say_how_many_hosts_and_bytes() {
        let text =
            |waiting, receiving, ended, bytes| upload_text(&Upload { waiting, receiving, ended, bytes });
        assert_eq!(
            text(6, 4, 2, 24_000_000),
            "sending the receiver to 12 hosts without treecast: 24.00 MB sent, 2 done, 4 receiving, 6 waiting"
        );
        assert_eq!(
            text(0, 1, 0, 0),
            "sending the receiver to 1 host without treecast: 0 B sent, 0 done, 1 receiving"
        );
    }
}
