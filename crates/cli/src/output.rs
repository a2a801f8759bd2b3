//! Output: atomically written files, standard output, messages on standard error, progress bars.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use anyhow::Context;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use treecast_study::chart::Ink;

use crate::interrupt;

#[derive(Debug, clap::Args)]
pub struct OutArguments {
    /// The output file; standard output if not given, or if it is -
    #[arg(id = "out", long = "out", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl OutArguments {
    /// The file; none for standard output.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref().filter(|path| !is_standard_output(path))
    }
}

/// Whether a file that a user names is standard output: `-`. A file of this name is `./-`.
pub fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}

/// An output that could not be written: a file, a directory, standard output.
#[derive(Debug)]
pub struct NotWritten(pub PathBuf);

impl std::fmt::Display for NotWritten {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = if is_standard_output(&self.0) { Path::new("standard output") } else { &self.0 };
        write!(formatter, "{} could not be written", path.display())
    }
}

/// Writes a file, or standard output for `-`. A file is written atomically: to a temporary file in
/// the same directory, which is then renamed.
pub fn write_file(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
    write_and_move(path, contents).with_context(|| NotWritten(path.into()))
}

fn write_and_move(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = OutFile::create_at(path)?;
    file.write_all(contents)?;
    file.keep()
}

/// An output file that is replaced atomically when it is complete.
pub enum OutFile {
    /// A temporary file, which is renamed to the path.
    Temporary(tempfile::NamedTempFile, PathBuf),
    /// Standard output, a pipe or a device, which cannot be replaced.
    Direct(File),
}

impl OutFile {
    /// Opens standard output for `-`.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        Self::create_at(path).with_context(|| NotWritten(path.into()))
    }

    fn create_at(path: &Path) -> io::Result<Self> {
        if is_standard_output(path) {
            let standard = io::stdout().as_fd().try_clone_to_owned()?;
            return Ok(Self::Direct(standard.into()));
        }
        let resolved = path.canonicalize();
        let path = resolved.as_deref().unwrap_or(path);
        let directory =
            path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match path.metadata() {
            Ok(metadata) if metadata.is_dir() => Err(io::Error::other("it is a directory")),
            Ok(metadata) if !metadata.is_file() => Ok(Self::Direct(File::options().write(true).open(path)?)),
            Err(_) if !directory.is_dir() => Err(io::Error::other("no such directory")),
            _ => {
                let file = temporary(directory)?;
                interrupt::remove_on_signal(file.path());
                Ok(Self::Temporary(file, path.into()))
            }
        }
    }

    /// Moves the complete file to its path. Without this call it is removed.
    pub fn keep(self) -> io::Result<()> {
        match self {
            Self::Temporary(file, path) => file.persist(path).map(drop).map_err(|error| error.error),
            Self::Direct(_) => Ok(()),
        }
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Temporary(file, _) => file.write(bytes),
            Self::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Temporary(file, _) => file.flush(),
            Self::Direct(file) => file.flush(),
        }
    }
}

/// Creates a directory unless it exists, and checks that it is writable.
pub fn make_directory(directory: &Path) -> anyhow::Result<()> {
    let made = std::fs::create_dir_all(directory).and_then(|()| temporary(directory));
    made.map(drop).with_context(|| NotWritten(directory.into()))
}

/// A temporary file, with the permissions of a regular file, because it may become one.
fn temporary(directory: &Path) -> io::Result<tempfile::NamedTempFile> {
    use std::os::unix::fs::PermissionsExt;
    let permissions = std::fs::Permissions::from_mode(0o666);
    let made = tempfile::Builder::new().permissions(permissions).tempfile_in(directory);
    // The library adds the path of the temporary file, which means nothing to a user.
    made.map_err(|error| error.kind().into())
}

/// Prints to standard output, or writes to a file.
pub fn emit(out: Option<&Path>, text: &str) -> anyhow::Result<()> {
    match out {
        Some(path) => write_file(path, text.as_bytes()),
        None => print(text).with_context(|| NotWritten("standard output".into())),
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// The reader of a pipe may stop reading: then the command ends without an error message, as others
/// do.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// How much is printed to standard error besides errors, and in which form.
#[derive(Debug, Clone, Copy, Default)]
pub struct Messages {
    pub is_quiet: bool,
    pub is_verbose: bool,
    pub is_json: bool,
}

/// The choice of messages, which is made once, when the command starts.
static MESSAGES: OnceLock<Messages> = OnceLock::new();

/// Chooses how messages are printed. The first call counts.
pub fn set_messages(messages: Messages) {
    // The command parses its options once.
    let _ = MESSAGES.set(messages);
}

/// The choice of messages.
pub fn messages() -> Messages {
    MESSAGES.get().copied().unwrap_or_default()
}

/// Prints an error in one line to standard error. Control characters, which input may contain, are
/// escaped.
pub fn print_message(sentence: &str) {
    print_line("ERROR", sentence);
}

/// Prints what is not an error in one line to standard error, unless `--quiet` is given.
pub fn print_note(sentence: &str) {
    if !messages().is_quiet {
        print_line("INFO", sentence);
    }
}

fn print_line(level: &str, sentence: &str) {
    if messages().is_json {
        return write_line(json_line(level, sentence).as_bytes());
    }
    let mut escaped = String::new();
    for character in sentence.chars() {
        if character.is_control() {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    write_line(format!("treecast: {escaped}\n").as_bytes());
}

/// A message of the command as a line of the log in JSON.
fn json_line(level: &str, message: &str) -> String {
    let mut timestamp = String::new();
    // If the time cannot be written, the message still is.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let object = serde_json::json!({
        "timestamp": timestamp, "level": level, "message": message, "target": "treecast",
    });
    format!("{object}\n")
}

/// Writes one line to standard error, above the progress bar.
pub fn write_line(line: &[u8]) {
    // One write per line, so that lines of several processes do not mix. If standard error is
    // closed, the message is lost.
    let write = || drop(io::stderr().write_all(line));
    if BARS.is_hidden() { write() } else { BARS.suspend(write) }
}

/// A table without borders and trailing blanks.
pub fn plain(mut table: comfy_table::Table) -> String {
    table.load_style(comfy_table::presets::NOTHING);
    table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

/// The number of columns of the terminal; 100 without a terminal.
pub fn width() -> u16 {
    let (_, columns) = console::Term::stdout().size_checked().unwrap_or((0, 100));
    columns.clamp(60, 200)
}

/// The ink of charts on standard output: colours on a terminal, unless its type is `dumb` or the
/// user has set `NO_COLOR`.
pub fn ink() -> Ink {
    let has_colours = console::Term::stdout().features().colors_supported();
    if has_colours { Ink::Colour } else { Ink::Plain }
}

/// How long an operation runs before its progress bar appears.
const PROGRESS_BAR_DELAY: Duration = Duration::from_secs(2);

/// What draws the progress bar, so that lines can be written above it.
static BARS: LazyLock<MultiProgress> =
    LazyLock::new(|| MultiProgress::with_draw_target(ProgressDrawTarget::hidden()));

/// A progress bar, on a terminal only, which appears after a delay; without a length where the
/// amount of work is unknown. With `--quiet` and where standard error is JSON, it does not appear.
pub fn progress_bar(length: Option<u64>, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
    let bar = bar.with_style(style).with_finish(ProgressFinish::AndClear);
    if io::stderr().is_terminal() && !messages().is_quiet && !messages().is_json {
        let late = bar.downgrade();
        std::thread::spawn(move || {
            std::thread::sleep(PROGRESS_BAR_DELAY);
            if let Some(bar) = late.upgrade() {
                BARS.set_draw_target(ProgressDrawTarget::stderr());
                BARS.add(bar.clone()).enable_steady_tick(Duration::from_millis(200));
            }
        });
    }
    bar
}
