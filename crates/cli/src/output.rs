//! Writing: files whole or not at all, standard output, and complaints.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

/// Where to write.
#[derive(Debug, clap::Args)]
pub struct OutArguments {
    /// The file to write; standard output if not given
    #[arg(id = "out", long = "out", value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// Something that could not be written: a file, a folder, standard output.
#[derive(Debug)]
pub struct NotWritten(pub PathBuf);

impl std::fmt::Display for NotWritten {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} could not be written", self.0.display())
    }
}

/// Writes a file whole or not at all: beside its place first, then moved there.
pub fn write_file(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
    write_and_move(path, contents).with_context(|| NotWritten(path.into()))
}

fn write_and_move(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = OutFile::create_at(path)?;
    file.write_all(contents)?;
    file.keep()
}

/// A file that is being written: it stands beside its place, and is moved there when it is whole.
pub enum OutFile {
    Beside(tempfile::NamedTempFile, PathBuf),
    /// A pipe or a device is written to, not replaced.
    There(File),
}

impl OutFile {
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        Self::create_at(path).with_context(|| NotWritten(path.into()))
    }

    fn create_at(path: &Path) -> io::Result<Self> {
        let resolved = path.canonicalize();
        let path = resolved.as_deref().unwrap_or(path);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match path.metadata() {
            Ok(there) if there.is_dir() => Err(io::Error::other("it is a directory")),
            Ok(there) if !there.is_file() => Ok(Self::There(File::options().write(true).open(path)?)),
            Err(_) if !folder.is_dir() => Err(io::Error::other("no such directory")),
            _ => Ok(Self::Beside(temporary(folder)?, path.into())),
        }
    }

    /// The file is whole.
    pub fn keep(self) -> io::Result<()> {
        match self {
            Self::Beside(file, path) => file.persist(path).map(drop).map_err(|error| error.error),
            Self::There(_) => Ok(()),
        }
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Beside(file, _) => file.write(bytes),
            Self::There(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Beside(file, _) => file.flush(),
            Self::There(file) => file.flush(),
        }
    }
}

/// Makes a folder unless it is there, and sees that files can be made in it.
pub fn make_folder(folder: &Path) -> anyhow::Result<()> {
    let made = std::fs::create_dir_all(folder).and_then(|()| temporary(folder));
    made.map(drop).with_context(|| NotWritten(folder.into()))
}

/// A file that is gone when it is dropped, with the rights of files that stay: this one may.
fn temporary(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    use std::os::unix::fs::PermissionsExt;
    let permissions = std::fs::Permissions::from_mode(0o666);
    let made = tempfile::Builder::new().permissions(permissions).tempfile_in(folder);
    // The library adds the name of its file, which means nothing to a user.
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

/// Who reads from a pipe may stop reading: then we end as other commands do, and do not complain.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// One line on standard error. What was given may hold line breaks and escape sequences: they are shown, not obeyed.
pub fn complain(sentence: &str) {
    let mut shown = String::new();
    for character in sentence.chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    // In one write, so that those of other processes come before or after it. Where standard error is gone too there is nobody
    // to tell.
    let _ = io::stderr().write_all(format!("treecast: {shown}\n").as_bytes());
}

/// A table without lines, and without blanks at the ends of its rows.
pub fn plain(mut table: comfy_table::Table) -> String {
    table.load_style(comfy_table::presets::NOTHING);
    table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

/// How many columns the terminal has; 100 where there is none.
pub fn width() -> u16 {
    let (_, columns) = console::Term::stdout().size_checked().unwrap_or((0, 100));
    columns.clamp(60, 200)
}

/// How long something may take before a line that says how far it is is worth it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A progress bar, on a terminal only, and only once it has taken a while; without a length, for what nobody knows how long
/// it will take.
pub fn progress_bar(length: Option<u64>, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
    let bar = bar.with_style(style).with_finish(ProgressFinish::AndClear);
    if io::stderr().is_terminal() {
        let late = bar.downgrade();
        std::thread::spawn(move || {
            std::thread::sleep(PATIENCE);
            if let Some(bar) = late.upgrade() {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.enable_steady_tick(Duration::from_millis(200));
            }
        });
    }
    bar
}
