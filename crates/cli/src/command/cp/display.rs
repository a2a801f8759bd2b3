//! The progress of a copy, on a terminal and in lines.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{DecimalBytes, ProgressBar};
use treecast_copy::{Progress, Slow, Upload};

use crate::output::{messages, print_note, progress_bar};

/// The interval of progress lines when standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// How long hosts may take to start before a line names them.
const AWAITED_DELAY: Duration = Duration::from_secs(1);

/// The maximum number of hosts that this line names.
const AWAITED_NAMES_MAX: usize = 5;

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
        let template =
            "{decimal_bytes} of {decimal_total_bytes} {wide_bar} {decimal_bytes_per_sec}, ETA {eta}{msg}";
        let bar = progress_bar(Some(total), template);
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
        // The length of standard input is not known.
        self.bar.set_length(progress.total.max(progress.sent));
        self.bar.set_position(progress.sent);
        for slow in progress.relieved.iter().skip(self.told_relieved) {
            let note = match slow {
                Slow::Path(_, to) => format!("{slow}: this host sends to {to} instead"),
                _ => format!("{slow}: this host sends to its children instead"),
            };
            print_note(&note);
        }
        self.told_relieved = progress.relieved.len();
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
        if messages().is_verbose {
            for (host, bytes) in &progress.hosts {
                let percent = bytes * 100 / progress.total.max(1);
                message += &format!("\n  {host}: {} ({percent} %)", DecimalBytes(*bytes));
            }
        }
        let is_known = progress.total.max(progress.sent) > 0;
        if is_known && !io::stderr().is_terminal() && Instant::now() >= self.line_at {
            self.line_at = Instant::now() + LINE_INTERVAL;
            let (sent, total) = (DecimalBytes(progress.sent), DecimalBytes(progress.total));
            message.split('\n').enumerate().for_each(|(number, line)| {
                print_note(&if number == 0 { format!("{sent} of {total}{line}") } else { line.into() });
            });
        }
        self.bar.set_message(message);
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
