//! The log of the command and of the libraries, and options that all commands have for it.

use std::io::{self, Write};

use clap::{ArgAction, Args, ValueEnum};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::output::{Messages, print_message, set_messages, write_line};

/// The variable that chooses levels by crate, in place of `-v` and `-q`.
const VARIABLE: &str = "RUST_LOG";

/// The target of what a daemon reports about its users and about strangers. In other commands it is
/// a detail: datagrams of groups that have not begun yet, or have ended, come in every run.
const AUDIT: &str = "audit";

#[derive(Debug, Args)]
#[command(next_help_heading = "Options of all commands")]
pub struct LogArguments {
    /// Log what happens to standard error; -vv logs details too, -vvv everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,

    /// Print errors only: no warnings, notes or progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,

    /// The format of what goes to standard error: text, or json (one object per line)
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text", hide_possible_values = true)]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

impl LogArguments {
    /// Starts the log, of events from level `usual` unless an option or the variable says
    /// otherwise. A worker does not report an invalid variable, because the command that started it
    /// has.
    pub fn start(&self, usual: LevelFilter, is_worker: bool) {
        let is_json = self.log_format == LogFormat::Json;
        set_messages(Messages { is_quiet: self.quiet, is_verbose: self.verbose > 0, is_json });
        let level = match self.verbose {
            _ if self.quiet => LevelFilter::ERROR,
            0 => usual,
            1 => LevelFilter::INFO,
            2 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        };
        let of_level = Targets::new().with_default(level);
        let hides_audit = usual < LevelFilter::INFO && level < LevelFilter::DEBUG;
        let of_level = if hides_audit { of_level.with_target(AUDIT, LevelFilter::OFF) } else { of_level };
        let log = registry().with(filter(of_level, is_worker));
        let lines = fmt::layer().with_writer(|| Lines).with_ansi(false);
        if is_json {
            log.with(lines.json().flatten_event(true)).init();
        } else {
            log.with(lines.with_target(false)).init();
        }
    }

    /// The options as another process of this command takes them.
    pub fn to_words(&self) -> Vec<String> {
        let level =
            std::iter::repeat_n("--verbose", self.verbose.into()).chain(self.quiet.then_some("--quiet"));
        let format = (self.log_format == LogFormat::Json).then_some("--log-format=json");
        level.chain(format).map(String::from).collect()
    }
}

/// The filter of the variable, if it is set and valid.
fn filter(of_level: Targets, is_worker: bool) -> Targets {
    let text = match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => text,
        _ => return of_level,
    };
    text.parse().unwrap_or_else(|error| {
        if !is_worker {
            print_message(&format!("the variable {VARIABLE} is ignored: '{text}': {error}"));
        }
        of_level
    })
}

/// Standard error, above any progress bar. Each write is one event.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write_line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
