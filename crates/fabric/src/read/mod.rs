//! Readers: each builds a [`Topology`] from the text of a file. The crate opens no file: the name
//! is for messages only.

mod graphml;
mod ibnetdiscover;
mod inventory;
mod parts;
mod slurm;
mod toml;

use std::fmt;

pub use self::toml::toml;
pub use graphml::graphml;
pub use ibnetdiscover::ibnetdiscover;
pub use inventory::inventory;
pub use slurm::slurm;

use crate::error::FabricError;
use crate::topology::Topology;

/// The contents of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The hosts, switches and links.
    pub topology: Topology,
    /// Notes for the user on what was left out, one sentence each.
    pub notes: Vec<String>,
}

/// Reads a file in any of the formats: the one that its extension names, or else the one that its
/// text indicates.
///
/// `.toml` is [`toml()`]; `.graphml` and `.xml` are [`graphml()`]; `.topo`, `.txt` and
/// `.ibnetdiscover` are [`ibnetdiscover()`]; `.conf` is [`slurm()`]; `.inventory` and `.csv` are
/// [`inventory()`].
///
/// # Errors
/// [`FabricError::Malformed`], also if neither the name nor the text indicates the format.
///
/// ```
/// let read = treecast_fabric::read::read("lab.toml", "generator = 'star:4'")?;
/// assert_eq!(read.topology.host_count(), 4);
/// # Ok::<(), treecast_fabric::FabricError>(())
/// ```
pub fn read(file: &str, text: &str) -> Result<Read, FabricError> {
    let extension = file.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    match extension.as_deref() {
        Some("toml") => toml(file, text),
        Some("graphml" | "xml") => graphml(file, text),
        Some("topo" | "txt" | "ibnetdiscover") => ibnetdiscover(file, text),
        Some("conf") => slurm(file, text),
        Some("inventory" | "csv") => inventory(file, text),
        _ => by_content(file, text),
    }
}

fn by_content(file: &str, text: &str) -> Result<Read, FabricError> {
    let text_begins = without_mark(text).trim_start();
    if text_begins.starts_with('<') {
        return graphml(file, text);
    }
    for line in text_begins.lines().map(str::trim_start) {
        if ["vendid=", "switchguid=", "caguid=", "Switch\t", "Switch ", "Ca\t"]
            .iter()
            .any(|start| line.starts_with(start))
        {
            return ibnetdiscover(file, text);
        }
        if ["[[switch]]", "[[host]]", "[[link]]", "[grid]", "generator"]
            .iter()
            .any(|start| line.starts_with(start))
        {
            return toml(file, text);
        }
        if slurm::is_switch(line) {
            return slurm(file, text);
        }
        if inventory::is_header(line) {
            return inventory(file, text);
        }
    }
    Err(Source::new(file, text).error(
        1,
        "neither the file's name nor its text indicates its format: name it .toml, .graphml, .ibnetdiscover, .conf or \
         .inventory",
    ))
}

/// The start of a text, for messages.
fn start_of(text: &str) -> String {
    text.chars().take(60).collect()
}

/// The text without the byte order mark that some editors put before it.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// A file's name and the offsets of its lines, for error messages.
struct Source<'a> {
    file: &'a str,
    line_starts: Vec<usize>,
}

impl<'a> Source<'a> {
    fn new(file: &'a str, text: &str) -> Self {
        let line_starts = text.match_indices('\n').map(|(newline, _)| newline + 1).collect();
        Self { file, line_starts }
    }

    /// The line, from 1, of a byte.
    fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= offset) + 1
    }

    /// A value from the file may contain line breaks and escape sequences: they are escaped, so
    /// that they do not reach the terminal.
    fn error(&self, line: usize, reason: impl fmt::Display) -> FabricError {
        let mut shown = String::new();
        for character in reason.to_string().chars() {
            if character.is_control() {
                shown.extend(character.escape_default());
            } else {
                shown.push(character);
            }
        }
        FabricError::Malformed { file: self.file.into(), line, reason: shown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOML: &str = "# lab\n[[switch]]\nports = 2\n[[host]]\nswitch = 's0'\n";

    #[test]
    fn the_extension_or_else_the_text_selects_the_format() {
        assert!(read("a.TOML", TOML).is_ok());
        assert!(read("a", TOML).is_ok());
        assert!(read("a.b", "generator = 'star:2'").is_ok());
        let xml = "\u{feff} <graphml><graph><node id='a'/><node id='b'/><node id='c'/>\
                   <edge source='a' target='b'/><edge source='b' target='c'/></graph></graphml>";
        assert_eq!(read("a", xml).unwrap().topology.host_count(), 2);
        let as_xml = read("a.xml", TOML).unwrap_err().to_string();
        assert!(as_xml.starts_with("a.xml:1: "), "{as_xml}");
        let as_ib = read("a.txt", TOML).unwrap_err().to_string();
        assert_eq!(as_ib, "a.txt:2: '[[switch]]' is not a line of ibnetdiscover output");
        let slurm = "# a leaf\n switchname = s0 Nodes=n[1-3]\n";
        for file in ["topology.conf", "a.CONF", "a"] {
            assert_eq!(read(file, slurm).unwrap().topology.host_count(), 3);
        }
        for (file, text) in
            [("a.csv", "n[1-3],r1"), ("a.inventory", "n[1-3] r1"), ("a", "# lab\nhost,rack\nn[1-3],r1")]
        {
            assert_eq!(read(file, text).unwrap().topology.host_count(), 3);
        }
    }

    #[test]
    fn an_unclear_text_asks_for_a_name() {
        assert_eq!(
            read("a.cfg", "hello\n").unwrap_err().to_string(),
            "a.cfg:1: neither the file's name nor its text indicates its format: name it .toml, .graphml, \
             .ibnetdiscover, .conf or .inventory"
        );
    }
}
