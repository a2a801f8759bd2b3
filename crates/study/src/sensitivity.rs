//! Sensitivity analysis: each guessed parameter is varied, and the headline factors are computed
//! again.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use treecast_terms::SpecError;

use crate::error::StudyError;
use crate::figure::Figure;
use crate::journal::Journal;
use crate::setup::{GUESS_SHIFT, Hardware, Testbed};
use crate::spec::FigureSpec;
use crate::sweep::run_all;

/// The best improvement factor of one curve, as a study would quote it.
#[derive(Debug, Clone, PartialEq)]
pub struct Headline {
    /// Its panel; empty if there is only one.
    pub panel: String,
    /// Its series.
    pub series: String,
    /// The factor.
    pub factor: f64,
    /// The x at which it is reached.
    pub x: f64,
}

/// The headlines of a figure, and their values when a guess is varied.
#[derive(Debug, Clone, PartialEq)]
pub struct Sensitivity {
    /// The values with the testbeds' parameters.
    pub headlines: Vec<Headline>,
    /// For each guessed parameter, by its key, the factors in the order of the headlines: with the
    /// parameter a fifth lower, and a fifth higher; `None` where a curve no longer has a point.
    pub moved: Vec<(String, [Vec<Option<f64>>; 2])>,
}

impl FigureSpec {
    /// The keys of parameters that are guesses of its testbeds.
    pub fn guessed(&self) -> Vec<String> {
        let testbeds = self.full.points.iter().filter_map(|point| point.setup.testbed());
        let keys: BTreeSet<&String> = testbeds.flat_map(|testbed| &testbed.guessed).collect();
        keys.into_iter().cloned().collect()
    }

    /// Runs the figure as it is, and with each guess a fifth lower and higher; `done` is called
    /// after each of the `1 + 2 * guesses` sweeps. `quick` takes the smaller sweep of the file's
    /// `[quick]` table.
    ///
    /// # Errors
    /// [`StudyError::NoFactors`] where the figure shows no factors; [`StudyError::Run`] where a run
    /// is not possible.
    pub fn sensitivity(&self, quick: bool, done: &dyn Fn()) -> Result<Sensitivity, StudyError> {
        if self.relative_to.is_none() {
            return Err(StudyError::NoFactors { figure: self.name.clone() });
        }
        let mut known = Journal::default();
        let rows = run_all(&self.runs(quick), &|_| ())?;
        known.learn(&rows);
        let headlines = headlines(&self.figure(&rows));
        done();
        // Runs that do not depend on the moved parameter are not repeated.
        let figure = |spec: &Self| -> Result<Figure, StudyError> {
            let recalled = known.recall(&spec.runs(quick));
            let rows = run_all(recalled.left(), &|_| ())?;
            let figure = spec.figure(&recalled.joined(rows));
            done();
            Ok(figure)
        };
        let mut moved = Vec::new();
        for key in self.guessed() {
            let mut factors = [Vec::new(), Vec::new()];
            for (side, factor) in [1.0 - GUESS_SHIFT, 1.0 + GUESS_SHIFT].into_iter().enumerate() {
                let figure = figure(&self.with_guess(&key, factor)?)?;
                let found = self::headlines(&figure);
                let same = |wanted: &Headline| {
                    let mut found = found.iter();
                    found.find(|other| (&other.panel, &other.series) == (&wanted.panel, &wanted.series))
                };
                factors[side] =
                    headlines.iter().map(|wanted| same(wanted).map(|found| found.factor)).collect();
            }
            moved.push((key, factors));
        }
        Ok(Sensitivity { headlines, moved })
    }

    /// The figure with a guessed parameter multiplied wherever a testbed has it, unless a panel or
    /// series sets it.
    fn with_guess(&self, key: &str, factor: f64) -> Result<Self, SpecError> {
        let mut moved = self.clone();
        for point in moved.full.points.iter_mut().chain(&mut moved.quick.points) {
            let Hardware::Testbed(testbed) = &mut point.setup.hardware else { continue };
            let Testbed { model, guessed, .. } = testbed.as_mut();
            if guessed.iter().any(|guess| guess == key) {
                model.scale(key, factor)?;
                point.digest = OnceLock::new();
            }
        }
        Ok(moved)
    }
}

/// The highest factor of each curve.
fn headlines(figure: &Figure) -> Vec<Headline> {
    let of_panel = figure.panels.iter().flat_map(|panel| {
        panel.curves.iter().filter_map(|curve| {
            let best = curve.points.iter().max_by(|a, b| a.mean.total_cmp(&b.mean))?;
            let (panel, series) = (panel.title.clone(), curve.name.clone());
            Some(Headline { panel, series, factor: best.mean, x: best.x })
        })
    });
    of_panel.collect()
}
