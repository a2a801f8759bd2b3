//! What is done of a figure, line by line, so that an interrupted sweep goes on where it stopped.
//!
//! A journal is a text: a head that names the program, then one line a finished run, in the order in which they
//! finished. A line is appended when its run is done. One that was cut short is no JSON, or has no end, and counts as not
//! there. A run is known by a digest of all that determines it, so that a row is taken for just the run that gave it,
//! whatever was changed in the figure meanwhile.

use std::collections::BTreeMap;

pub use crate::digest::digest;
use crate::measured::Measured;
use crate::run::{Row, RunSpec};
use serde::{Deserialize, Serialize};

/// What the first line of a journal begins with; the number is that of the format.
const HEAD: &str = "treecast journal 1, program ";

/// The finished runs that a journal names.
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
    /// Reads what there is of a journal. One that another program wrote, or that is none, is empty: its rows may not be
    /// those that this program would give.
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

    /// The first line of a journal of `program`, with its end. `program` is one line that tells builds apart.
    pub fn head(program: &str) -> String {
        format!("{HEAD}{program}\n")
    }

    /// The line of a finished run, with its end.
    pub fn line(row: &Row) -> String {
        let line = Line { run: format!("{:032x}", row.spec.digest()), gave: &row.measured };
        serde_json::to_string(&line).expect("what was measured is plain data") + "\n"
    }

    /// Takes up rows: the same runs in another figure need not be made again.
    pub fn learn(&mut self, rows: &[Row]) {
        self.runs.extend(rows.iter().map(|row| (row.spec.digest(), row.measured.clone())));
    }

    /// Takes up what another journal names.
    pub fn extend(&mut self, other: &Self) {
        self.runs.extend(other.runs.iter().map(|(&run, gave)| (run, gave.clone())));
    }

    /// How many bytes of the journal are whole lines: the next line belongs there. 0: the head is missing.
    pub fn whole(&self) -> usize {
        self.whole
    }

    /// Sets the runs that are done apart from those that are left.
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

/// Runs of which some are done.
#[derive(Debug)]
pub struct Recalled<'a> {
    done: Vec<Option<Row<'a>>>,
    left: Vec<RunSpec<'a>>,
}

impl<'a> Recalled<'a> {
    /// The runs that are left, in their order.
    pub fn left(&self) -> &[RunSpec<'a>] {
        &self.left
    }

    /// All rows in the order of the runs, once the rows of those that were [left](Self::left) are there, in their order.
    pub fn joined(self, rows: Vec<Row<'a>>) -> Vec<Row<'a>> {
        let mut rows = rows.into_iter();
        self.done.into_iter().filter_map(|row| row.or_else(|| rows.next())).collect()
    }
}
