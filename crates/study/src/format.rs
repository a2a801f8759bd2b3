//! The files of a study: what they look like in TOML, and how they are read. docs/studies.md describes every key.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::OnceLock;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use treecast_fabric::SpecError;
use treecast_plan::PlanError;

use crate::figure::Scale;
use crate::setup::Draft;
use crate::spec::{Factors, FigureSpec, Measure, PanelSpec, Point, SeriesSpec, Settings, Study, Sweep, Vary};
use crate::{Setup, StudyError};

const STUDY_FILE: &str = "study.toml";
/// The most values of x.
const VALUES_MAX: usize = 10_000;
/// The most runs of a figure.
const RUNS_MAX: usize = 10_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StudyFile {
    name: Spanned<String>,
    title: String,
    source: String,
    summary: String,
    #[serde(default)]
    defaults: Table,
    #[serde(default)]
    repeat: Repeat,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureFile {
    title: String,
    question: String,
    #[serde(default)]
    measure: Measure,
    #[serde(default = "yes")]
    shared_y: bool,
    #[serde(default)]
    y_scale: Scale,
    #[serde(default = "two")]
    columns: usize,
    #[serde(default)]
    set: Table,
    x: VaryTable,
    y: Option<Spanned<VaryTable>>,
    #[serde(default)]
    panels: Vec<Spanned<PanelTable>>,
    series: Spanned<Vec<Spanned<SeriesTable>>>,
    #[serde(default)]
    repeat: Repeat,
    #[serde(default)]
    quick: Quick,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VaryTable {
    vary: String,
    #[serde(default)]
    with: BTreeMap<String, f64>,
    label: String,
    values: Spanned<Values>,
    #[serde(default)]
    scale: Scale,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PanelTable {
    label: String,
    #[serde(default)]
    set: Table,
    #[serde(default)]
    with: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesTable {
    name: String,
    description: String,
    scheme: Spanned<String>,
    order: Option<Spanned<String>>,
    offload: Option<Spanned<String>>,
    #[serde(default)]
    set: Table,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Repeat {
    topologies: Option<Vec<u64>>,
    groups: Option<Spanned<u32>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quick {
    values: Option<Spanned<Values>>,
    y_values: Option<Spanned<Values>>,
    #[serde(default)]
    set: Table,
    topologies: Option<Vec<u64>>,
    groups: Option<Spanned<u32>>,
}

type Table = BTreeMap<String, Spanned<Scalar>>;

#[derive(Deserialize)]
#[serde(untagged, expecting = "a number or a text")]
enum Scalar {
    Number(f64),
    Text(String),
}

#[derive(Clone, Deserialize)]
#[serde(untagged, expecting = "a list of numbers, or { from = 1, to = 31, step = 1 }")]
enum Values {
    List(Vec<f64>),
    Steps(Steps),
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Steps {
    from: f64,
    to: f64,
    #[serde(default = "one")]
    step: f64,
}

fn yes() -> bool {
    true
}

fn two() -> usize {
    2
}

fn one() -> f64 {
    1.0
}

impl fmt::Display for Scalar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Text(text) => text.fmt(formatter),
        }
    }
}

impl Values {
    /// All values; `None` where there are none, or too many.
    fn all(&self) -> Option<Vec<f64>> {
        let values = match *self {
            Self::List(ref values) => values.clone(),
            Self::Steps(Steps { from, to, step }) => {
                let count = ((to - from) / step + 1e-9).floor();
                if !(0.0..VALUES_MAX as f64).contains(&count) {
                    return None;
                }
                // Nine decimals hide the rounding of steps such as 3 * 0.1.
                let at = |i| ((from + f64::from(i) * step) * 1e9).round() / 1e9;
                (0..=count as u32).map(at).collect()
            }
        };
        let fits = (1..=VALUES_MAX).contains(&values.len()) && values.iter().all(|value| value.is_finite());
        fits.then_some(values)
    }
}

/// Reads a study from its files, in any order.
pub(crate) fn read(files: &[(&str, &str)]) -> Result<Study, StudyError> {
    let (name, text) = files.iter().find(|(name, _)| *name == STUDY_FILE).ok_or(StudyError::NoStudyFile)?;
    let file = File { name, text };
    let study: StudyFile = file.read()?;
    check_name(&file, &study.name)?;
    let mut defaults = Draft::default();
    file.apply(&mut defaults, &study.defaults)?;
    let base = Base { study: &study, defaults: &defaults, file: &file };
    let mut figures = Vec::new();
    for &(name, text) in files.iter().filter(|(name, _)| *name != STUDY_FILE) {
        figures.push(base.figure(&File { name, text })?);
    }
    figures.sort_by_cached_key(|figure| natural(figure.name()));
    Ok(Study::new(
        [study.name.into_inner(), study.title, study.source, study.summary],
        texts(&study.defaults),
        figures,
    ))
}

/// A study's name becomes that of a folder and of a file.
fn check_name(file: &File, name: &Spanned<String>) -> Result<(), StudyError> {
    let text = name.get_ref();
    if !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_') {
        return Ok(());
    }
    let reason = format_args!("name={text} does not fit: letters, digits, - and _, as it names a folder too");
    Err(file.error(&name.span(), reason))
}

/// `fig10` comes after `fig9`.
fn natural(name: &str) -> (String, u64) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem.into(), name[stem.len()..].parse().unwrap_or(0))
}

/// What the figures of a study have in common.
struct Base<'a> {
    study: &'a StudyFile,
    defaults: &'a Draft,
    file: &'a File<'a>,
}

impl Base<'_> {
    fn figure(&self, file: &File) -> Result<FigureSpec, StudyError> {
        let figure: FigureFile = file.read()?;
        let mut draft = self.defaults.clone();
        file.apply(&mut draft, &figure.set)?;
        let panels = match &figure.panels[..] {
            [] => vec![Layer { spec: PanelSpec::default(), table: &figure.set, span: 0..0 }],
            panels => panels.iter().map(panel).collect(),
        };
        let series: Vec<_> = figure
            .series
            .get_ref()
            .iter()
            .map(|series| self::series(file, series))
            .collect::<Result<_, _>>()?;
        if series.is_empty() {
            return Err(file.error(&figure.series.span(), "a figure needs at least one series"));
        }
        distinct(file, "panel", panels.iter().map(|panel| (&panel.spec.label, &panel.span)))?;
        distinct(file, "series", series.iter().map(|series| (&series.spec.name, &series.span)))?;
        if figure.y.is_some() != (figure.measure == Measure::Winner) {
            let span = figure.y.as_ref().map_or(0..0, Spanned::span);
            return Err(file.error(&span, "measure = 'winner' and the table [y] belong together"));
        }
        let y = figure.y.as_ref().map(Spanned::get_ref);
        let (x_spec, y_spec) = (vary(&figure.x), y.map(vary));
        let axes = Axes { x: &x_spec, y: y_spec.as_ref() };
        let cross = Cross { file, measure: figure.measure, axes, draft, panels, series };
        let repeat = &figure.repeat;
        let topologies = repeat.topologies.as_ref().or(self.study.repeat.topologies.as_ref());
        let topologies = topologies.map_or(&[][..], Vec::as_slice);
        let groups = match (&repeat.groups, &self.study.repeat.groups) {
            (Some(groups), _) => count(file, groups)?,
            (None, Some(groups)) => count(self.file, groups)?,
            (None, None) => 1,
        };
        let y_values = y.map(|y| &y.values);
        let nothing = Table::new();
        let full = cross.sweep([Some(&figure.x.values), y_values], &nothing, topologies, groups)?;
        let quick = &figure.quick;
        let quick = cross.sweep(
            [
                Some(quick.values.as_ref().unwrap_or(&figure.x.values)),
                quick.y_values.as_ref().filter(|_| y.is_some()).or(y_values),
            ],
            &quick.set,
            quick.topologies.as_ref().map_or(topologies, Vec::as_slice),
            quick.groups.as_ref().map_or(Ok(groups), |groups| count(file, groups))?,
        )?;
        let panels = cross.panels.into_iter().map(|panel| panel.spec).collect();
        let series = cross.series.into_iter().map(|series| series.spec).collect();
        Ok(FigureSpec {
            study: self.study.name.get_ref().clone(),
            name: file.name.trim_end_matches(".toml").into(),
            title: figure.title,
            question: figure.question,
            measure: figure.measure,
            shared_y: figure.shared_y,
            y_scale: figure.y_scale,
            columns: figure.columns,
            settings: texts(&figure.set),
            x: x_spec,
            y: y_spec,
            panels,
            series,
            full,
            quick,
        })
    }
}

/// A panel or a series, with the settings that it lays over those before it.
struct Layer<'a, T> {
    spec: T,
    table: &'a Table,
    span: Range<usize>,
}

fn panel(panel: &Spanned<PanelTable>) -> Layer<'_, PanelSpec> {
    let PanelTable { label, set, with } = panel.get_ref();
    let with = with.iter().map(|(key, &factor)| (key.clone(), factor)).collect();
    let spec = PanelSpec { label: label.clone(), settings: texts(set), with };
    Layer { spec, table: set, span: panel.span() }
}

fn series<'a>(file: &File, series: &'a Spanned<SeriesTable>) -> Result<Layer<'a, SeriesSpec>, StudyError> {
    let table = series.get_ref();
    let spec = SeriesSpec {
        name: table.name.clone(),
        description: table.description.clone(),
        scheme: file.parsed(&table.scheme)?,
        order: table.order.as_ref().map(|order| file.parsed(order)).transpose()?,
        offload: table.offload.as_ref().map(|offload| file.parsed(offload)).transpose()?.unwrap_or_default(),
        settings: texts(&table.set),
    };
    match &table.order {
        Some(order) if !spec.scheme.takes_order() => {
            let scheme = spec.scheme.name();
            Err(file.error(&order.span(), PlanError::TakesNoOrder { scheme }))
        }
        _ => Ok(Layer { spec, table: &table.set, span: series.span() }),
    }
}

/// Names tell panels, and series, apart.
fn distinct<'a>(
    file: &File,
    what: &str,
    names: impl Iterator<Item = (&'a String, &'a Range<usize>)>,
) -> Result<(), StudyError> {
    let mut seen: Vec<&str> = Vec::new();
    for (name, span) in names {
        if seen.contains(&name.as_str()) {
            return Err(file.error(span, format_args!("there is a {what} '{name}' already")));
        }
        seen.push(name);
    }
    Ok(())
}

fn count(file: &File, groups: &Spanned<u32>) -> Result<u32, StudyError> {
    match *groups.get_ref() {
        0 => Err(file.error(&groups.span(), "groups=0 does not fit: a whole number from 1")),
        groups => Ok(groups),
    }
}

fn texts(table: &Table) -> Settings {
    table.iter().map(|(key, value)| (key.clone(), value.get_ref().to_string())).collect()
}

fn vary(table: &VaryTable) -> Vary {
    let with = table.with.iter().map(|(key, &factor)| (key.clone(), factor)).collect();
    Vary { varies: table.vary.clone(), with, label: table.label.clone(), scale: table.scale }
}

/// What varies.
#[derive(Clone, Copy)]
struct Axes<'a> {
    x: &'a Vary,
    y: Option<&'a Vary>,
}

/// The cross-product of a figure: panels, series and values of x and y.
struct Cross<'a> {
    file: &'a File<'a>,
    measure: Measure,
    axes: Axes<'a>,
    draft: Draft,
    panels: Vec<Layer<'a, PanelSpec>>,
    series: Vec<Layer<'a, SeriesSpec>>,
}

impl Cross<'_> {
    /// The sweep over values of x, and of y if there is one, with what it sets besides.
    fn sweep(
        &self,
        values: [Option<&Spanned<Values>>; 2],
        besides: &Table,
        topologies: &[u64],
        groups: u32,
    ) -> Result<Sweep, StudyError> {
        let [xs, ys] = values.map(|values| values.map_or(Ok(Vec::new()), |values| self.values(values)));
        let (xs, ys) = (xs?, ys?);
        let span = values[0].map(Spanned::span).unwrap_or_default();
        let factors = [
            self.panels.len(),
            self.series.len(),
            xs.len(),
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
                let rows: Vec<Option<f64>> =
                    if ys.is_empty() { vec![None] } else { ys.iter().copied().map(Some).collect() };
                for (y, x) in rows.iter().flat_map(|&y| xs.iter().map(move |&x| (y, x))) {
                    let setup = self.setup(draft.clone(), &panel.spec.with, x, y, topologies);
                    let setup = setup.map_err(|error| self.file.error(&span, error))?;
                    points.push(Point { panel_index, series_index, y, x, setup, digest: OnceLock::new() });
                }
            }
        }
        let (topologies, settings) = (topologies.to_vec(), texts(besides));
        Ok(Sweep { points, values: xs, y_values: ys, settings, topologies, groups })
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
        match (self.measure, setup.applied_load) {
            (Measure::AcceptedLoad, None) => Err("an accepted load needs load or effective_load".into()),
            (Measure::Saturation, Some(_)) => {
                Err("where saturation is searched for, load and effective_load are not set".into())
            }
            _ => Ok(setup),
        }
    }
}

/// A file of a study.
struct File<'a> {
    name: &'a str,
    text: &'a str,
}

impl File<'_> {
    fn read<T: DeserializeOwned>(&self) -> Result<T, StudyError> {
        toml::from_str(self.text)
            .map_err(|error| self.error(&error.span().unwrap_or_default(), reworded(error.message())))
    }

    fn error(&self, span: &Range<usize>, reason: impl fmt::Display) -> StudyError {
        let before = self.text.bytes().take(span.start);
        let line = before.filter(|&byte| byte == b'\n').count() + 1;
        StudyError::Malformed { file: self.name.into(), line, reason: reason.to_string() }
    }

    fn parsed<T: FromStr<Err = SpecError>>(&self, text: &Spanned<String>) -> Result<T, StudyError> {
        text.get_ref().parse().map_err(|error| self.error(&text.span(), error))
    }

    /// Applies settings: the fabric first, for its options are laid over it.
    fn apply(&self, draft: &mut Draft, table: &Table) -> Result<(), StudyError> {
        let (fabric, rest): (Vec<_>, Vec<_>) = table.iter().partition(|(key, _)| *key == "fabric");
        for (key, value) in fabric.into_iter().chain(rest) {
            let set = draft.set(key, &value.get_ref().to_string());
            set.map_err(|error| self.error(&value.span(), error))?;
        }
        Ok(())
    }
}

/// The library's "unknown field `titel`, expected one of `name`, `title`", said as unknown names are said elsewhere.
fn reworded(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2).map(String::from);
    match quoted.next() {
        Some(given) if message.starts_with("unknown field") => {
            SpecError::UnknownName { what: "key", given, known: quoted.collect() }.to_string()
        }
        Some(given) if message.starts_with("unknown variant") => {
            SpecError::UnknownName { what: "value", given, known: quoted.collect() }.to_string()
        }
        _ => message.replace('\n', " "),
    }
}
