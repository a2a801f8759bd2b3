//! The cross-product of a figure: panels, series and values of x and y.

use std::ops::Range;
use std::sync::OnceLock;

use toml::Spanned;
use treecast_model::Model;
use treecast_plan::PlanError;

use super::tables::{Table, VALUES_MAX, Values};
use super::{File, Layer, texts};
use crate::error::StudyError;
use crate::measure::Measure;
use crate::setup::Draft;
use crate::setup::Setup;
use crate::spec::{Factors, PanelSpec, Point, SeriesSpec, Sweep, Vary};

/// The maximum number of runs of a figure.
const RUNS_MAX: usize = 10_000_000;

/// The variations of a figure.
#[derive(Clone, Copy)]
pub(super) struct Axes<'a> {
    pub x: &'a Vary,
    pub y: Option<&'a Vary>,
}

/// The cross-product of a figure: panels, series and values of x and y.
pub(super) struct Cross<'a> {
    pub file: &'a File<'a>,
    pub measure: Measure,
    pub axes: Axes<'a>,
    pub draft: Draft,
    pub panels: Vec<Layer<'a, PanelSpec>>,
    pub series: Vec<Layer<'a, SeriesSpec>>,
    /// The positions of their schemes in the file.
    pub schemes: Vec<Range<usize>>,
}

impl Cross<'_> {
    /// The sweep over values of x, and of y if there is one, with its further settings.
    pub fn sweep(
        &self,
        values: [Option<&Spanned<Values>>; 2],
        besides: &Table,
        topologies: &[u64],
        groups: u32,
    ) -> Result<Sweep, StudyError> {
        let [xs, ys] = values.map(|values| values.map_or(Ok(Vec::new()), |values| self.values(values)));
        let (xs, ys) = (xs?, ys?);
        let span = values[0].map(Spanned::span).unwrap_or_default();
        let xs_of: Vec<Vec<f64>> = self.panels.iter().map(|panel| xs_of(&panel.spec, &xs)).collect();
        let factors = [
            self.series.len(),
            xs_of.iter().map(Vec::len).sum(),
            ys.len().max(1),
            topologies.len().max(1),
            groups as usize,
        ];
        let runs = factors.iter().try_fold(1_usize, |runs, &factor| runs.checked_mul(factor));
        if runs.is_none_or(|runs| runs > RUNS_MAX) {
            return Err(self.file.error(&span, format_args!("a figure has at most {RUNS_MAX} runs")));
        }
        let mut points = Vec::new();
        for (panel_index, panel) in self.panels.iter().enumerate() {
            for (series_index, series) in self.series.iter().enumerate() {
                let mut draft = self.draft.clone();
                self.file.apply(&mut draft, panel.table)?;
                self.file.apply(&mut draft, series.table)?;
                self.file.apply(&mut draft, besides)?;
                self.check_scheme(series_index, &draft)?;
                let rows: Vec<Option<f64>> =
                    if ys.is_empty() { vec![None] } else { ys.iter().copied().map(Some).collect() };
                for (y, x) in rows.iter().flat_map(|&y| xs_of[panel_index].iter().map(move |&x| (y, x))) {
                    let setup = self.setup(draft.clone(), &panel.spec.with, x, y, topologies);
                    let setup = setup.map_err(|error| self.file.error(&span, error))?;
                    points.push(Point { panel_index, series_index, y, x, setup, digest: OnceLock::new() });
                }
            }
        }
        let (topologies, settings) = (topologies.to_vec(), texts(besides));
        Ok(Sweep { points, values: xs, y_values: ys, settings, topologies, groups })
    }

    /// A plan of a series' scheme must be possible; a model that measures lambda needs none.
    fn check_scheme(&self, series_index: usize, draft: &Draft) -> Result<(), StudyError> {
        let SeriesSpec { scheme, order, .. } = &self.series[series_index].spec;
        let measures_lambda = measures(draft.model()).iter().any(|measure| measure.name == "lambda");
        match scheme.check(*order) {
            Err(PlanError::NeedsLambda { .. }) if measures_lambda => Ok(()),
            checked => checked.map_err(|error| self.file.error(&self.schemes[series_index], error)),
        }
    }

    fn values(&self, values: &Spanned<Values>) -> Result<Vec<f64>, StudyError> {
        let wrong =
            || format!("values are 1 to {VALUES_MAX} numbers, and steps lead from one end to the other");
        values.get_ref().all().ok_or_else(|| self.file.error(&values.span(), wrong()))
    }

    fn setup(
        &self,
        mut draft: Draft,
        with: &Factors,
        x: f64,
        y: Option<f64>,
        topologies: &[u64],
    ) -> Result<Setup, Box<dyn std::error::Error>> {
        let along_y = self.axes.y.zip(y).into_iter().flat_map(|(vary, y)| vary.settings(y, &[]));
        for (key, value) in along_y.chain(self.axes.x.settings(x, with)) {
            draft.set(key, &value.to_string())?;
        }
        let setup = draft.finish(topologies)?;
        match (self.measure, setup.offered_load) {
            (Measure::AcceptedLoad, None) => Err("an accepted load needs load or ejection_load".into()),
            _ if setup.offered_load.is_some() && (setup.processes > 1 || setup.model().is_some()) => {
                Err("runs under load have one process a host, and no testbed".into())
            }
            (Measure::Saturation, _) if setup.model().is_some() => {
                Err("saturation is searched for without a testbed".into())
            }
            (Measure::Of(measure), _)
                if !measures(setup.model()).iter().any(|other| other.name == measure.name) =>
            {
                Err(format!("{} is not measured here: set the testbed of a model that does", measure.name)
                    .into())
            }
            (Measure::Saturation, Some(_)) => {
                Err("where saturation is searched for, load and ejection_load are not set".into())
            }
            _ => Ok(setup),
        }
    }
}

/// The values of x in a panel: those given, otherwise those of its measured points, each once, in
/// order.
fn xs_of(panel: &PanelSpec, given: &[f64]) -> Vec<f64> {
    if !given.is_empty() {
        return given.to_vec();
    }
    let mut xs: Vec<f64> = panel.measured.values().flatten().map(|&[x, _]| x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    xs
}

/// The measures of a model besides the latency.
fn measures(model: Option<&Model>) -> &'static [treecast_model::Measure] {
    model.map_or(&[], Model::measures)
}
