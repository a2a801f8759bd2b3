//! The journal of a figure: its finished runs, so that an interrupted sweep continues where it
//! stopped.
//!
//! A journal is a text: a header that names the program, then one line per finished run, in the
//! order of completion. A truncated line is not valid JSON, or has no line end, and is ignored. A
//! run is identified by a digest of all that determines it, so a row is reused only for the same
//! run, even if the figure has changed meanwhile.

use std::collections::BTreeMap;

pub use crate::digest::digest;
use crate::measured::Measured;
use crate::run::{Row, RunSpec};
use serde::{Deserialize, Serialize};

/// The start of the first line of a journal, with the number of the format.
const HEAD: &str = "treecast journal 1, program ";

/// The finished runs in a journal.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    runs: BTreeMap<u128, Measured>,
    whole: usize,
}

/// A line of a journal.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<M> {
    run: String,
    gave: M,
}

impl Journal {
    /// Reads a journal. One that another program wrote, or that is malformed, counts as empty: this
    /// program might give other rows.
    ///
    /// ```
    /// use treecast_study::journal::Journal;
    ///
    /// let head = Journal::head("v1");
    /// assert_eq!(Journal::read(format!("{head}cut sho").as_bytes(), "v1").whole(), head.len());
    /// assert_eq!(Journal::read(head.as_bytes(), "v2").whole(), 0);
    /// ```
    pub fn read(bytes: &[u8], program: &str) -> Self {
        let head = Self::head(program);
        let Some(lines) = bytes.strip_prefix(head.as_bytes()) else {
            return Self::default();
        };
        let whole = lines.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        let entry = |line: &[u8]| {
            let line: Line<Measured> = serde_json::from_slice(line).ok()?;
            Some((u128::from_str_radix(&line.run, 16).ok()?, line.gave))
        };
        let runs = lines[..whole].split(|&byte| byte == b'\n').filter_map(entry).collect();
        Self { runs, whole: head.len() + whole }
    }

    /// The first line of a journal of `program`, with its end. `program` is one line that tells
    /// builds apart.
    pub fn head(program: &str) -> String {
        format!("{HEAD}{program}\n")
    }

    /// The line of a finished run, with its end.
    pub fn line(row: &Row) -> String {
        let line = Line { run: format!("{:032x}", row.spec.digest()), gave: &row.measured };
        serde_json::to_string(&line).expect("measurements are plain data") + "\n"
    }

    /// Adds rows, so that the same runs in another figure are not repeated.
    pub fn learn(&mut self, rows: &[Row]) {
        self.runs.extend(rows.iter().map(|row| (row.spec.digest(), row.measured.clone())));
    }

    /// Adds the runs of another journal.
    pub fn extend(&mut self, other: &Self) {
        self.runs.extend(other.runs.iter().map(|(&run, gave)| (run, gave.clone())));
    }

    /// The length of the whole lines in bytes, where the next line is to be written. 0: the header
    /// is missing.
    pub fn whole(&self) -> usize {
        self.whole
    }

    /// Separates finished runs from the remaining ones.
    pub fn recall<'a>(&self, runs: &[RunSpec<'a>]) -> Recalled<'a> {
        let row = |run: &RunSpec<'a>| {
            let measured = self.runs.get(&run.digest())?.clone();
            Some(Row { spec: *run, measured })
        };
        let done: Vec<_> =
            runs.iter().map(|run| if self.runs.is_empty() { None } else { row(run) }).collect();
        let left = runs.iter().zip(&done).filter(|(_, row)| row.is_none()).map(|(run, _)| *run).collect();
        Recalled { done, left }
    }
}

/// Runs of which some are finished.
#[derive(Debug)]
pub struct Recalled<'a> {
    done: Vec<Option<Row<'a>>>,
    left: Vec<RunSpec<'a>>,
}

impl<'a> Recalled<'a> {
    /// The remaining runs, in their order.
    pub fn left(&self) -> &[RunSpec<'a>] {
        &self.left
    }

    /// All rows in the order of the runs, given the rows of the [remaining](Self::left) ones in
    /// their order.
    pub fn joined(self, rows: Vec<Row<'a>>) -> Vec<Row<'a>> {
        let mut rows = rows.into_iter();
        self.done.into_iter().filter_map(|row| row.or_else(|| rows.next())).collect()
    }
}
