//! The command that is the receiver, and how it comes to hosts that do not have it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::Upload;
use crate::control::HELLO;

/// The command's argument for a receiver, and the option by which it only says [`HELLO`].
const RECEIVER: &str = "copy-receiver";
const ASK: &str = "--hello";

/// Hosts to which the command is sent at a time: they share this host's link.
const UPLOADS_MAX: usize = 4;

/// How often a host that waits for its turn says so.
const WAIT_INTERVAL: Duration = Duration::from_secs(1);

/// The command on this host.
#[derive(Debug)]
pub(crate) struct Program {
    /// Where this host has the command, and others may have it.
    path: PathBuf,
    /// The receiver that is sent to hosts that do not have the command.
    sent: PathBuf,
    length: u64,
    /// The name under which hosts keep it; none if they do not.
    kept: Option<String>,
    plain: Form,
    compressed: Form,
    uploads: Uploads,
}

/// The bytes that are sent, made when they are first needed; none if that has failed.
type Form = OnceLock<Option<Arc<[u8]>>>;

impl Program {
    /// The command at `path`, of which hosts that lack it are sent `sent`: the command, or only its
    /// receiver.
    ///
    /// # Errors
    /// What is sent cannot be read.
    pub fn new(path: &Path, sent: &Path, is_kept: bool) -> io::Result<Self> {
        let length = sent.metadata()?.len();
        let kept = if is_kept { Some(hash(sent)?) } else { None };
        Ok(Self {
            path: path.to_path_buf(),
            sent: sent.to_path_buf(),
            length,
            kept,
            plain: Form::new(),
            compressed: Form::new(),
            uploads: Uploads::default(),
        })
    }

    /// What is sent to a host that does not have the command, compressed if this host and that one
    /// have gzip.
    ///
    /// # Errors
    /// The program cannot be read any more.
    pub fn bytes(&self, has_gzip: bool) -> io::Result<(Arc<[u8]>, Packing)> {
        let compressed = || self.compressed.get_or_init(|| gzipped(&self.sent).map(Into::into));
        if let Some(bytes) = has_gzip.then(compressed).and_then(Option::as_ref) {
            return Ok((Arc::clone(bytes), Packing::Gzip));
        }
        match self.plain.get_or_init(|| fs::read(&self.sent).ok().map(Into::into)) {
            Some(bytes) => Ok((Arc::clone(bytes), Packing::Plain)),
            None => Err(io::Error::other(format!("{} cannot be read any more", self.sent.display()))),
        }
    }

    /// How far the uploads are; none before the first one.
    pub fn upload(&self) -> Option<Upload> {
        self.uploads.progress()
    }

    /// Counts bytes of an upload.
    pub fn note_sent(&self, bytes: usize) {
        self.uploads.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Waits until few other hosts are sent the command. `wait` is called meanwhile.
    pub fn turn(&self, wait: impl FnMut()) -> Turn<'_> {
        self.uploads.turn(wait)
    }

    /// The command for the user's shell on a host: it starts a receiver by the program at the same
    /// path as this one, by that in the search path, or by the one that an earlier copy has left,
    /// whichever is of this version; else it says so, and takes the program from its standard
    /// input. It keeps that in the user's cache, where programs can run there, and those of earlier
    /// versions for a month; otherwise it removes it when the receiver ends.
    ///
    /// It is in single quotes, which all shells treat alike.
    pub fn script(&self) -> String {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._+-".contains(byte);
        let here =
            self.path.to_str().filter(|path| path.as_bytes().iter().all(is_plain)).unwrap_or("treecast");
        let kept = self.kept.as_ref().map_or_else(String::new, |hash| {
            format!("${{XDG_CACHE_HOME:-$HOME/.cache}}/treecast/receiver-{hash}")
        });
        let lines = SCRIPT.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let script = lines
            .replace("KEPT", &kept)
            .replace("HELLO", HELLO)
            .replace("LENGTH", &self.length.to_string())
            .replace("RECEIVER", RECEIVER)
            .replace("ASK", ASK)
            // The last, as a path may have any of these words.
            .replace("HERE", here);
        format!("exec sh -c '{script}'")
    }
}

/// Without single quotes. The program comes after a line with its packing and its length as it is
/// sent: the shell reads no byte beyond that line. `runs PROGRAM`: whether it is a receiver of this
/// version.
const SCRIPT: &str = r#"
    runs() { [ "$("$1" RECEIVER ASK 2>/dev/null)" = "HELLO" ]; };
    kept="KEPT"; directory="${kept%/*}";
    for program in HERE treecast "$kept"; do
      if runs "$program"; then exec "$program" RECEIVER; fi;
    done;
    fail() { echo "$1: ${copy%/*} has no room for the receiver, or no programs run there: set TMPDIR there, or install treecast" >&2; exit 1; };
    temporary() { copy="${TMPDIR:-/tmp}/treecast.XXXXXX"; made=$(mktemp "$copy" 2>&1) || fail "$made"; copy="$made"; };
    if [ -n "$kept" ] && mkdir -p "$directory" 2>/dev/null && copy=$(mktemp "$directory/upload.XXXXXX" 2>/dev/null); then :;
    else kept=""; temporary; fi;
    trap "rm -f \"\$copy\"" EXIT; trap "exit 1" HUP INT TERM;
    gzip=false; unpack=cat;
    if [ "$(echo works | gzip -c 2>/dev/null | gzip -dc 2>/dev/null)" = works ]; then gzip=true; fi;
    echo "{\"Missing\":{\"has_gzip\":$gzip}}";
    read -r packing length || exit;
    if [ "$packing" = gzip ]; then unpack="gzip -dc"; fi;
    why=$( { head -c "$length" | $unpack > "$copy"; } 2>&1 );
    [ "$(wc -c < "$copy")" -eq LENGTH ] && chmod 700 "$copy" || fail "${why:-the receiver did not come whole}";
    if [ -n "$kept" ]; then
      if runs "$copy"; then
        find "$directory" -name "receiver-*" -mtime +30 -exec rm -f {} + 2>/dev/null;
        mv -f "$copy" "$kept" && exec "$kept" RECEIVER;
      fi;
      upload="$copy"; temporary; cp "$upload" "$copy"; rm -f "$upload"; chmod 700 "$copy" || exit;
    fi;
    runs "$copy" || fail "the receiver does not run";
    "$copy" RECEIVER
"#;

/// The beginning of a file's hash, for a name.
fn hash(path: &Path) -> io::Result<String> {
    Ok(blake3::hash(&fs::read(path)?).to_hex()[..16].to_string())
}

/// A file compressed by this host's gzip; none if there is none, or if it fails.
fn gzipped(path: &Path) -> Option<Vec<u8>> {
    let mut gzip = Command::new("gzip");
    // The fastest level: this host does it while others wait, and the link is rarely slower.
    gzip.args(["-1", "-c"]).stdin(fs::File::open(path).ok()?).stderr(Stdio::null());
    let output = gzip.output().ok()?;
    output.status.success().then_some(output.stdout)
}

/// How the program is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
}

impl Packing {
    /// The line before the bytes.
    pub fn line(self, length: usize) -> String {
        match self {
            Self::Plain => format!("plain {length}\n"),
            Self::Gzip => format!("gzip {length}\n"),
        }
    }
}

/// Counts the hosts that are sent the command.
#[derive(Debug, Default)]
struct Uploads {
    counts: Mutex<Counts>,
    ended: Condvar,
    /// The bytes that were sent.
    bytes: AtomicU64,
}

/// Hosts that lack the command.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    waiting: usize,
    receiving: usize,
    ended: usize,
}

/// A host's turn, until it is dropped.
pub(crate) struct Turn<'a>(&'a Uploads);

impl Uploads {
    fn turn(&self, mut wait: impl FnMut()) -> Turn<'_> {
        let mut counts = self.lock();
        counts.waiting += 1;
        while counts.receiving >= UPLOADS_MAX {
            let waited = self.ended.wait_timeout(counts, WAIT_INTERVAL);
            counts = waited.unwrap_or_else(PoisonError::into_inner).0;
            wait();
        }
        counts.waiting -= 1;
        counts.receiving += 1;
        Turn(self)
    }

    fn progress(&self) -> Option<Upload> {
        let Counts { waiting, receiving, ended } = *self.lock();
        (waiting + receiving + ended > 0).then(|| Upload {
            waiting,
            receiving,
            ended,
            bytes: self.bytes.load(Ordering::Relaxed),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut counts = self.0.lock();
        counts.receiving -= 1;
        counts.ended += 1;
        self.0.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn the_script_has_no_quote_that_would_end_it() {
        for is_kept in [true, false] {
            let script = Program::new(Path::new("/usr/bin/treecast"), Path::new("/proc/self/exe"), is_kept)
                .unwrap()
                .script();
            assert_eq!(script.matches('\'').count(), 2, "{script}");
            assert!(script.ends_with('\'') && !script.contains('\n'));
        }
    }

    #[test]
    fn few_hosts_have_their_turn_at_a_time_and_all_have_it() {
        let uploads = Uploads::default();
        let (now, most, all) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    let _turn = uploads.turn(|| ());
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(2));
                    now.fetch_sub(1, Ordering::SeqCst);
                    all.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(all.into_inner(), 20);
        assert!(most.into_inner() <= UPLOADS_MAX);
        assert_eq!(uploads.progress(), Some(Upload { waiting: 0, receiving: 0, ended: 20, bytes: 0 }));
    }

    #[test]
    fn the_program_is_compressed_where_both_hosts_have_gzip() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), vec![7; 100_000]).unwrap();
        let program = Program::new(Path::new("treecast"), file.path(), false).unwrap();
        let (plain, packing) = program.bytes(false).unwrap();
        assert_eq!((plain.len(), packing.line(plain.len())), (100_000, "plain 100000\n".into()));
        let (bytes, packing) = program.bytes(true).unwrap();
        // This host may have no gzip.
        assert!(packing == Packing::Plain && bytes == plain || bytes.len() < 1_000, "{packing:?}");
    }
}
