//! Runs figures on all cores, with a progress bar and a journal per figure.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use indicatif::ProgressBar;
use treecast_study::journal::Journal;
use treecast_study::{Row, RunSpec, run_all};

use crate::journal_file::JournalFile;
use crate::output::{NotWritten, print_note, progress_bar};

/// Figures that are run one after the other, with results in one directory.
pub struct Sweep {
    directory: PathBuf,
    fresh: bool,
    pool: rayon::ThreadPool,
    /// Its unit is the cost of runs.
    bar: ProgressBar,
    /// The runs of earlier figures, which later figures reuse.
    known: Journal,
    journals: Vec<PathBuf>,
}

impl Sweep {
    /// A sweep of figures that consist of `runs`, on `jobs` threads, or one per core. `fresh`
    /// ignores the journals.
    pub fn new<'a>(
        directory: &Path,
        runs: impl Iterator<Item = &'a RunSpec<'a>>,
        jobs: Option<usize>,
        fresh: bool,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            directory: directory.into(),
            fresh,
            pool: rayon::ThreadPoolBuilder::new().num_threads(jobs.unwrap_or(0)).build()?,
            bar: progress_bar(Some(runs.map(RunSpec::cost).sum()), "{msg} {wide_bar} {eta} to go"),
            known: Journal::default(),
            journals: Vec::new(),
        })
    }

    /// The rows of a figure: from the journal of an interrupted command, from earlier figures, and
    /// from new runs.
    pub fn run<'a>(&mut self, figure: &str, runs: &[RunSpec<'a>]) -> anyhow::Result<Vec<Row<'a>>> {
        let path = self.directory.join(format!("{figure}.journal"));
        let (file, mut journal) = JournalFile::open(&path, self.fresh)?;
        self.journals.push(path.clone());
        let all = runs.len();
        let taken = all - journal.recall(runs).left().len();
        if taken > 0 {
            self.aside(|| print_note(&format!("took {taken} of {all} runs from {}", path.display())));
        }
        journal.extend(&self.known);
        let recalled = journal.recall(runs);
        let cost = |runs: &[RunSpec]| runs.iter().map(RunSpec::cost).sum::<u64>();
        // Recalled runs take no time, so they do not count as progress.
        self.bar.dec_length(cost(runs) - cost(recalled.left()));
        let count = AtomicUsize::new(all - recalled.left().len());
        self.bar.set_message(format!("{figure} {}/{all} runs", count.load(Ordering::Relaxed)));
        let done = |row: &Row| {
            file.add(row);
            let count = count.fetch_add(1, Ordering::Relaxed) + 1;
            if !self.bar.is_hidden() {
                self.bar.set_message(format!("{figure} {count}/{all} runs"));
            }
            self.bar.inc(row.spec.cost());
        };
        let rows = self.pool.install(|| run_all(recalled.left(), &done))?;
        file.close()?;
        let rows = recalled.joined(rows);
        self.known.learn(&rows);
        Ok(rows)
    }

    /// Prints with the progress bar hidden.
    pub fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Removes the journals, because the sweep is complete: another one starts anew.
    pub fn finish(self) -> anyhow::Result<()> {
        self.bar.finish_and_clear();
        for journal in self.journals {
            std::fs::remove_file(&journal).with_context(|| NotWritten(journal))?;
        }
        Ok(())
    }
}
