//! The files of a study: their form in TOML, and how they are read. docs/studies.md describes every
//! key.

mod cross;
mod tables;

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use toml::Spanned;
use treecast_model::Model;
use treecast_plan::PlanError;
use treecast_terms::{SpecError, Value, reworded};

use crate::error::StudyError;
use crate::measure::Measure;
use crate::setup::GUESS_SHIFT;
use crate::setup::{Draft, Testbed};
use crate::spec::{FigureSpec, MeasuredSpec, PanelSpec, SeriesSpec, Settings, Study, Vary};
use cross::{Axes, Cross};
use tables::{
    FigureFile, MeasuredTable, PanelTable, SeriesTable, StudyFile, Table, TestbedFile, VALUES_MAX, VaryTable,
};

const NO_VALUES: &str =
    "values are missing: an axis has values, or each panel has measured points whose x are taken";
const STUDY_FILE: &str = "study.toml";
/// The prefix of the names of files that describe testbeds.
const TESTBED_PREFIX: &str = "testbed-";

impl Study {
    /// Reads a study from its files, each a name and its text: `study.toml`, and a file a figure.
    ///
    /// # Errors
    /// [`StudyError::NoStudyFile`]; [`StudyError::Malformed`] with file and line.
    pub fn parse(files: &[(&str, &str)]) -> Result<Self, StudyError> {
        read(files)
    }
}

/// Reads a study from its files, in any order.
fn read(files: &[(&str, &str)]) -> Result<Study, StudyError> {
    let (name, text) = files.iter().find(|(name, _)| *name == STUDY_FILE).ok_or(StudyError::NoStudyFile)?;
    let file = File { name, text };
    let study: StudyFile = file.read()?;
    check_name(&file, &study.name)?;
    let mut testbeds = BTreeMap::new();
    let mut of_figures = Vec::new();
    for &(name, text) in files.iter().filter(|(name, _)| *name != STUDY_FILE) {
        let file = File { name, text };
        match name.strip_prefix(TESTBED_PREFIX) {
            Some(name) => {
                let name = name.trim_end_matches(".toml");
                testbeds.insert(name.into(), testbed(&file, name)?);
            }
            None => of_figures.push(file),
        }
    }
    let mut defaults = Draft::new(Arc::new(testbeds));
    file.apply(&mut defaults, &study.defaults)?;
    let base = Base { study: &study, defaults: &defaults, file: &file };
    let mut figures: Vec<FigureSpec> =
        of_figures.iter().map(|file| base.figure(file)).collect::<Result<_, _>>()?;
    figures.sort_by_cached_key(|figure| natural(figure.name()));
    Ok(Study::new(
        [study.name.into_inner(), study.title, study.source, study.summary],
        texts(&study.defaults),
        figures,
    ))
}

/// Reads the description of a testbed.
fn testbed(file: &File, name: &str) -> Result<Testbed, StudyError> {
    let TestbedFile { model, guessed, set } = file.read()?;
    let mut model = Model::named(model.get_ref()).map_err(|error| file.error(&model.span(), error))?;
    for (key, value) in &set {
        let applied = model.set(key, &value.get_ref().to_string());
        applied.map_err(|error| file.error(&value.span(), error))?;
    }
    for (place, key) in guessed.iter().enumerate() {
        check_guess(&model, &set, key.get_ref()).map_err(|reason| file.error(&key.span(), reason))?;
        if guessed[..place].iter().any(|other| other.get_ref() == key.get_ref()) {
            return Err(
                file.error(&key.span(), format_args!("'{}' is guessed already: name it once", key.get_ref()))
            );
        }
    }
    Ok(Testbed { name: name.into(), model, guessed: guessed.into_iter().map(Spanned::into_inner).collect() })
}

/// Checks that a guess is a number that the file sets, and that a fifth less and a fifth more of it
/// are possible.
fn check_guess(model: &Model, set: &Table, key: &str) -> Result<(), String> {
    let value = model.value(key).map_err(|error| error.to_string())?;
    if !set.contains_key(key) {
        return Err(format!("'{key}' is guessed, but [set] does not set it: give it a value there"));
    }
    if let Value::Text(value) = value {
        return Err(format!("'{key}' is guessed, but {value} is no number to move: take it from guessed"));
    }
    for factor in [1.0 - GUESS_SHIFT, 1.0 + GUESS_SHIFT] {
        model.clone().scale(key, factor).map_err(|error| {
            format!(
                "'{key}' is guessed, and {factor} times as much is not possible: {error}; take it from guessed"
            )
        })?;
    }
    Ok(())
}

/// A study's name becomes the name of a directory and of a file.
fn check_name(file: &File, name: &Spanned<String>) -> Result<(), StudyError> {
    let text = name.get_ref();
    if !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_') {
        return Ok(());
    }
    let reason = format_args!(
        "invalid value name={text}: expected letters, digits, - and _, because it also names a directory"
    );
    Err(file.error(&name.span(), reason))
}

/// `fig10` comes after `fig9`.
fn natural(name: &str) -> (String, u64) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem.into(), name[stem.len()..].parse().unwrap_or(0))
}

/// The common part of the figures of a study.
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
        let measured: Vec<_> = figure.measured.iter().map(measured).collect();
        let names = series.iter().map(|series| (&series.spec.name, &series.span));
        distinct(file, "series", names.chain(measured.iter().map(|(curve, span)| (&curve.name, span))))?;
        for panel in &figure.panels {
            check_measured(file, panel.get_ref(), &measured)?;
        }
        let measure = figure.measure.as_ref().map_or(Ok(Measure::default()), |text| file.parsed(text))?;
        let relative_to = figure.relative_to.as_ref().map(|name| {
            let found = series.iter().position(|series| series.spec.name == *name.get_ref());
            found.ok_or_else(|| {
                let known = series.iter().map(|series| series.spec.name.clone()).collect();
                let given = name.get_ref().clone();
                file.error(&name.span(), SpecError::UnknownName { what: "series", given, known })
            })
        });
        if figure.y.is_some() != (measure == Measure::Winner) {
            let span = figure.y.as_ref().map_or(0..0, Spanned::span);
            return Err(file.error(&span, "measure = 'winner' and the table [y] belong together"));
        }
        let y = figure.y.as_ref().map(Spanned::get_ref);
        let x = figure.x.get_ref();
        let (x_spec, y_spec) = (vary(x), y.map(vary));
        let axes = Axes { x: &x_spec, y: y_spec.as_ref() };
        let schemes = figure.series.get_ref().iter().map(|series| series.get_ref().scheme.span()).collect();
        let cross = Cross { file, measure, axes, draft, panels, series, schemes };
        let repeat = &figure.repeat;
        let topologies = repeat.topologies.as_ref().or(self.study.repeat.topologies.as_ref());
        let topologies = topologies.map_or(&[][..], Vec::as_slice);
        let groups = match (&repeat.groups, &self.study.repeat.groups) {
            (Some(groups), _) => count(file, groups)?,
            (None, Some(groups)) => count(self.file, groups)?,
            (None, None) => 1,
        };
        let y_values = y.and_then(|y| y.values.as_ref());
        let missing = match &figure.y {
            _ if x.values.is_none() && cross.panels.iter().any(|panel| panel.spec.measured.is_empty()) => {
                Some(figure.x.span())
            }
            Some(y) if y.get_ref().values.is_none() => Some(y.span()),
            _ => None,
        };
        if let Some(span) = missing {
            return Err(file.error(&span, NO_VALUES));
        }
        let nothing = Table::new();
        let full = cross.sweep([x.values.as_ref(), y_values], &nothing, topologies, groups)?;
        let quick = &figure.quick;
        let quick = cross.sweep(
            [
                quick.values.as_ref().or(x.values.as_ref()),
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
            measure,
            unit: self.study.unit,
            relative_to: relative_to.transpose()?,
            best: figure.best,
            shared_y: figure.shared_y,
            y_scale: figure.y_scale,
            columns: figure.columns,
            settings: texts(&figure.set),
            x: x_spec,
            y: y_spec,
            panels,
            series,
            measured: measured.into_iter().map(|(curve, _)| curve).collect(),
            full,
            quick,
        })
    }
}

/// A panel or a series, with its settings, which replace earlier ones.
struct Layer<'a, T> {
    spec: T,
    table: &'a Table,
    span: Range<usize>,
}

fn panel(panel: &Spanned<PanelTable>) -> Layer<'_, PanelSpec> {
    let PanelTable { label, set, with, measured } = panel.get_ref();
    let with = with.iter().map(|(key, &factor)| (key.clone(), factor)).collect();
    let measured = measured.iter().map(|(name, points)| (name.clone(), points.get_ref().clone())).collect();
    let spec = PanelSpec { label: label.clone(), settings: texts(set), with, measured };
    Layer { spec, table: set, span: panel.span() }
}

fn measured(table: &Spanned<MeasuredTable>) -> (MeasuredSpec, Range<usize>) {
    let MeasuredTable { name, description } = table.get_ref();
    (MeasuredSpec { name: name.clone(), description: description.clone() }, table.span())
}

/// The points of a panel belong to curves that the figure names.
fn check_measured(
    file: &File,
    panel: &PanelTable,
    measured: &[(MeasuredSpec, Range<usize>)],
) -> Result<(), StudyError> {
    for (name, points) in &panel.measured {
        if !measured.iter().any(|(curve, _)| curve.name == *name) {
            let known = measured.iter().map(|(curve, _)| curve.name.clone()).collect();
            let given = name.clone();
            return Err(
                file.error(&points.span(), SpecError::UnknownName { what: "measured curve", given, known })
            );
        }
        let fits = |points: &[[f64; 2]]| {
            (1..=VALUES_MAX).contains(&points.len())
                && points.iter().flatten().all(|number| number.is_finite())
        };
        if !fits(points.get_ref()) {
            let reason = format_args!("measured points are 1 to {VALUES_MAX} pairs of numbers, [x, y]");
            return Err(file.error(&points.span(), reason));
        }
    }
    Ok(())
}

fn series<'a>(file: &File, series: &'a Spanned<SeriesTable>) -> Result<Layer<'a, SeriesSpec>, StudyError> {
    let table = series.get_ref();
    let spec = SeriesSpec {
        name: table.name.clone(),
        description: table.description.clone(),
        scheme: file.parsed(&table.scheme)?,
        order: table.order.as_ref().map(|order| file.parsed(order)).transpose()?,
        offload: table
            .offload
            .as_ref()
            .map(|offload| file.parsed(offload))
            .transpose()?
            .unwrap_or(treecast_sim::Offload::Host),
        label: table.label,
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

/// Checks that the names of panels, or of series, are distinct.
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
        0 => Err(file.error(&groups.span(), "invalid value groups=0: expected a whole number from 1")),
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

    fn parsed<T: FromStr<Err: Display>>(&self, text: &Spanned<String>) -> Result<T, StudyError> {
        text.get_ref().parse().map_err(|error| self.error(&text.span(), error))
    }

    /// Applies settings: testbed and fabric first, because other settings change them.
    fn apply(&self, draft: &mut Draft, table: &Table) -> Result<(), StudyError> {
        let (bases, rest): (Vec<_>, Vec<_>) =
            table.iter().partition(|(key, _)| ["fabric", "testbed"].contains(&key.as_str()));
        for (key, value) in bases.into_iter().chain(rest) {
            let set = draft.set(key, &value.get_ref().to_string());
            set.map_err(|error| self.error(&value.span(), error))?;
        }
        Ok(())
    }
}
