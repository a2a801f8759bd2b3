//! The command that is the receiver, and how it comes to hosts that do not have it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

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
    pub path: PathBuf,
    length: u64,
    /// The name under which hosts keep it; none if they do not.
    kept: Option<String>,
    uploads: Uploads,
}

impl Program {
    /// # Errors
    /// The command cannot be read.
    pub fn new(path: &Path, is_kept: bool) -> io::Result<Self> {
        let length = path.metadata()?.len();
        let kept = if is_kept { Some(hash(path)?) } else { None };
        Ok(Self { path: path.to_path_buf(), length, kept, uploads: Uploads::default() })
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

/// Without single quotes. `runs PROGRAM`: whether it is a receiver of this version.
const SCRIPT: &str = r#"
    runs() { [ "$("$1" RECEIVER ASK 2>/dev/null)" = "HELLO" ]; };
    kept="KEPT"; directory="${kept%/*}";
    for program in HERE treecast "$kept"; do
      if runs "$program"; then exec "$program" RECEIVER; fi;
    done;
    temporary() { copy=$(mktemp "${TMPDIR:-/tmp}/treecast.XXXXXX") || exit; };
    if [ -n "$kept" ] && mkdir -p "$directory" 2>/dev/null && copy=$(mktemp "$directory/upload.XXXXXX" 2>/dev/null); then :;
    else kept=""; temporary; fi;
    trap "rm -f \"\$copy\"" EXIT; trap "exit 1" HUP INT TERM;
    echo "\"Missing\"";
    head -c LENGTH > "$copy" && [ "$(wc -c < "$copy")" -eq LENGTH ] && chmod 700 "$copy" || exit;
    if [ -n "$kept" ]; then
      if runs "$copy"; then
        find "$directory" -name "receiver-*" -mtime +30 -exec rm -f {} + 2>/dev/null;
        mv -f "$copy" "$kept" && exec "$kept" RECEIVER;
      fi;
      upload="$copy"; temporary; cp "$upload" "$copy"; rm -f "$upload"; chmod 700 "$copy" || exit;
    fi;
    "$copy" RECEIVER
"#;

/// The beginning of a file's hash, for a name.
fn hash(path: &Path) -> io::Result<String> {
    Ok(blake3::hash(&fs::read(path)?).to_hex()[..16].to_string())
}

/// Counts the hosts that are sent the command.
#[derive(Debug, Default)]
struct Uploads {
    count: Mutex<usize>,
    ended: Condvar,
}

/// A host's turn, until it is dropped.
pub(crate) struct Turn<'a>(&'a Uploads);

impl Uploads {
    fn turn(&self, mut wait: impl FnMut()) -> Turn<'_> {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count >= UPLOADS_MAX {
            let waited = self.ended.wait_timeout(count, WAIT_INTERVAL);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
            wait();
        }
        *count += 1;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
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
            let script = Program::new(Path::new("/proc/self/exe"), is_kept).unwrap().script();
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
    }
}
