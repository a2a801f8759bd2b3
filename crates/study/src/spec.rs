//! A study: its figures, and the cross-product of each.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use treecast_fabric::Fabric;
use treecast_plan::{Label, Order, Scheme};
use treecast_sim::Offload;
use treecast_terms::{SpecError, format_count};

use crate::error::StudyError;
use crate::figure::{Best, Scale};
use crate::measure::{Measure, Unit};
use crate::setup::Setup;

/// Keys with their values, as in the file.
pub type Settings = Vec<(String, String)>;

/// Settings that go with another, each with its factor.
pub type Factors = Vec<(String, f64)>;

/// A published experiment, or one of ours: parameters and figures.
///
/// ```
/// use treecast_study::{Study, run_all};
///
/// let study = "name = 'small'\ntitle = 'A small study'\nsource = 'ours'\nsummary = 'One star.'\n\
///              [defaults]\nfabric = 'star:hosts=8'\nmessage = 128";
/// let figure = "title = 'Latency'\nquestion = 'How does latency grow?'\n\
///               [x]\nvary = 'destinations'\nlabel = 'destinations'\nvalues = [1, 3, 7]\n\
///               [[series]]\nname = 'uni'\ndescription = 'unicasts'\nscheme = 'binomial'";
/// let study = Study::parse(&[("study.toml", study), ("latency.toml", figure)])?;
/// let spec = study.figure("latency")?;
/// let rows = run_all(&spec.runs(false), &|_| ())?;
/// assert_eq!(rows.len(), 3);
/// let figure = spec.figure(&rows);
/// assert!(figure.panels[0].curves[0].points[0].mean < figure.panels[0].curves[0].points[2].mean);
/// # Ok::<(), treecast_study::StudyError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Study {
    name: String,
    title: String,
    source: String,
    summary: String,
    defaults: Settings,
    figures: Vec<FigureSpec>,
}

impl Study {
    pub(crate) fn new(texts: [String; 4], defaults: Settings, figures: Vec<FigureSpec>) -> Self {
        let [name, title, source, summary] = texts;
        Self { name, title, source, summary, defaults, figures }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A title of one line.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Its figures; those whose names end in numbers in the order of these numbers.
    pub fn figures(&self) -> &[FigureSpec] {
        &self.figures
    }

    /// The figure with a name.
    ///
    /// # Errors
    /// [`SpecError::UnknownName`], with similar names.
    pub fn figure(&self, name: &str) -> Result<&FigureSpec, StudyError> {
        let found = self.figures.iter().find(|figure| figure.name == name);
        found.ok_or_else(|| {
            let known = self.figures.iter().map(|figure| figure.name.clone()).collect();
            SpecError::UnknownName { what: "figure", given: name.into(), known }.into()
        })
    }

    /// Its name and title, and those of its figures, as text.
    pub fn contents(&self) -> String {
        let figures = self.figures.iter().map(|figure| (figure.name.as_str(), figure.title.clone()));
        paragraph(&format!("{}: {}", self.name, self.title)) + &list(figures)
    }

    /// Its description, its source, its parameters and its figures, as text.
    pub fn describe(&self) -> String {
        let figure = |figure: &'_ FigureSpec| {
            format!("{} ({} runs)", figure.title, format_count(figure.full.runs() as u64))
        };
        [
            paragraph(&format!("{}: {}", self.name, self.title)),
            paragraph(&format!("Source: {}", self.source)),
            paragraphs(&self.summary),
            "Settings, where a figure does not set them otherwise:\n".to_owned() + &settings(&self.defaults),
            "Figures:\n".to_owned()
                + &list(self.figures.iter().map(|spec| (spec.name.as_str(), figure(spec)))),
            paragraph(&format!(
                "A run is one multicast, or many under load. 'treecast paper show {0} FIGURE' says what a figure is made of, \
                 'treecast paper run {0} FIGURE' runs it.",
                self.name
            )),
        ]
        .join("\n")
    }
}

/// One figure of a study: the cross-product of panels, series and values of x, and how often each
/// is repeated.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureSpec {
    pub(crate) study: String,
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) question: String,
    pub(crate) measure: Measure,
    pub(crate) unit: Unit,
    /// The series that the others are compared with, where a figure shows factors.
    pub(crate) relative_to: Option<usize>,
    /// Which of two means is better, where the file states it.
    pub(crate) best: Option<Best>,
    pub(crate) shared_y: bool,
    pub(crate) y_scale: Scale,
    pub(crate) columns: usize,
    pub(crate) settings: Settings,
    pub(crate) x: Vary,
    /// The variation along y, in a map of winners.
    pub(crate) y: Option<Vary>,
    pub(crate) panels: Vec<PanelSpec>,
    pub(crate) series: Vec<SeriesSpec>,
    /// The curves that others measured.
    pub(crate) measured: Vec<MeasuredSpec>,
    pub(crate) full: Sweep,
    pub(crate) quick: Sweep,
}

/// The variation of a figure along x, or along y in a map of winners.
#[derive(Debug, Clone, PartialEq)]
pub struct Vary {
    /// The setting that takes the values.
    pub varies: String,
    /// Settings that go with it: each takes the value times its factor.
    pub with: Factors,
    /// Its label, with its unit.
    pub label: String,
    /// Its scale.
    pub scale: Scale,
}

impl Vary {
    /// Every setting that it makes, with its value at `at`; `with` names more that go with it.
    pub(crate) fn settings<'a>(
        &'a self,
        at: f64,
        with: &'a [(String, f64)],
    ) -> impl Iterator<Item = (&'a str, f64)> {
        // Nine decimals hide the rounding of products such as 0.1 * 3.
        let times = move |factor: f64| (at * factor * 1e9).round() / 1e9;
        let others = self.with.iter().chain(with).map(move |(key, factor)| (key.as_str(), times(*factor)));
        std::iter::once((self.varies.as_str(), at)).chain(others)
    }

    fn describe(&self, axis: &str) -> String {
        format!("Along {axis}: {} (the setting {}{})", self.label, self.varies, going(&self.with))
    }
}

/// A panel, by its differences from the others.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PanelSpec {
    /// Its title; empty where there is one panel only.
    pub label: String,
    /// Its settings.
    pub settings: Settings,
    /// Settings that go with x in it: each takes x times its factor.
    pub with: Factors,
    /// Points (x, y) that others measured for it, by the name of their curve.
    pub measured: BTreeMap<String, Vec<[f64; 2]>>,
}

impl PanelSpec {
    fn describe(&self) -> String {
        let going = going(&self.with);
        let set = joined(&self.settings);
        if set.is_empty() { going.trim_start_matches(", and ").to_owned() } else { set + &going }
    }
}

/// A curve that others measured: its points are in the panels.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredSpec {
    /// Its short name.
    pub name: String,
    /// Who measured what.
    pub description: String,
}

/// A series: one curve in every panel.
#[derive(Debug, Clone, PartialEq)]
pub struct SeriesSpec {
    /// Its short name.
    pub name: String,
    /// Its meaning.
    pub description: String,
    /// The scheme of its multicasts.
    pub scheme: Scheme,
    /// The order on which its tree is built; `None` is [`Order::Id`], and fits schemes that take no
    /// order.
    pub order: Option<Order>,
    /// Which part of a host forwards.
    pub offload: Offload,
    /// Its origin, if that is farther from a publication than its scheme: its settings may be ours.
    pub label: Option<Label>,
    /// Its settings.
    pub settings: Settings,
}

impl SeriesSpec {
    /// Its origin; the chain-concatenated order is reconstructed.
    pub fn label(&self) -> Label {
        self.farthest(match self.order {
            Some(Order::Cco) => self.scheme.label().max(Label::Reconstructed),
            _ => self.scheme.label(),
        })
    }

    /// Its origin on a fabric.
    pub(crate) fn label_on(&self, fabric: &Fabric) -> Label {
        self.farthest(self.scheme.label_on(fabric, self.order))
    }

    fn farthest(&self, label: Label) -> Label {
        self.label.map_or(label, |own| own.max(label))
    }

    /// The order in use; `None` where the scheme takes none.
    pub fn order_used(&self) -> Option<Order> {
        self.scheme.takes_order().then(|| self.order.unwrap_or_default())
    }

    /// Its description with scheme, order, offload and label.
    pub(crate) fn describe(&self) -> String {
        let order = self.order_used().map(|order| format!(", order {order}")).unwrap_or_default();
        let set =
            if self.settings.is_empty() { String::new() } else { format!(", {}", joined(&self.settings)) };
        let Self { description, scheme, offload, .. } = self;
        format!("{description} (scheme {scheme}{order}, offload {offload}{set}; {})", self.label())
    }
}

/// The points of a figure, and how often each is repeated.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sweep {
    pub points: Vec<Point>,
    /// Values of x; empty where each panel has the x of its measured points.
    pub values: Vec<f64>,
    /// Values of y, in a map of winners.
    pub y_values: Vec<f64>,
    /// Its further settings.
    pub settings: Settings,
    /// Seeds of the topologies; empty where the fabric is taken as it is.
    pub topologies: Vec<u64>,
    pub groups: u32,
}

/// One x, and y, of one series in one panel.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Point {
    pub panel_index: usize,
    pub series_index: usize,
    pub y: Option<f64>,
    pub x: f64,
    pub setup: Setup,
    /// The common part of the digests of all its runs, computed once.
    pub digest: OnceLock<u128>,
}

impl Sweep {
    pub fn runs(&self) -> usize {
        self.points.len() * self.topologies.len().max(1) * self.groups as usize
    }

    fn describe(&self) -> String {
        let topologies = match &self.topologies[..] {
            [] => "the fabric as it is".into(),
            [first, _, .., last]
                if self.topologies.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1])) =>
            {
                format!("topologies with seeds {first} to {last}")
            }
            seeds => format!("topologies with seeds {}", listed(seeds)),
        };
        let drawn = self.points.iter().map(|point| point.setup.drawn()).max().unwrap_or_default();
        let groups = match self.groups {
            1 => format!("1 {}", drawn.run()),
            groups => format!("{groups} {}", drawn.runs()),
        };
        let runs = format_count(self.runs() as u64);
        let y = if self.y_values.is_empty() {
            String::new()
        } else {
            format!(" y = {};", listed(&self.y_values))
        };
        let set =
            if self.settings.is_empty() { String::new() } else { format!("; {}", joined(&self.settings)) };
        let x = if self.values.is_empty() {
            "those of the measured points".to_owned()
        } else {
            listed(&self.values)
        };
        format!("{runs} runs: x = {x};{y} {topologies}; {groups} on each{set}")
    }
}

impl FigureSpec {
    /// Its name, which is the file's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One line above the figure.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The label of x, with its unit.
    pub fn x_label(&self) -> &str {
        &self.x.label
    }

    /// Whether it shows improvement factors, one series over the others.
    pub fn shows_factors(&self) -> bool {
        self.relative_to.is_some()
    }

    /// The measure that it shows of its runs.
    pub fn measure(&self) -> Measure {
        self.measure
    }

    /// The command that makes it.
    pub fn command(&self, quick: bool) -> String {
        let quick = if quick { " --quick" } else { "" };
        format!("treecast paper run {} {}{quick}", self.study, self.name)
    }

    /// Its question and its parts, as text.
    pub fn describe(&self) -> String {
        let mut parts = vec![
            paragraph(&format!("{} {}: {}", self.study, self.name, self.title)),
            paragraphs(&self.question),
            paragraph(&self.x.describe("x")),
        ];
        parts.extend(self.y.as_ref().map(|y| paragraph(&y.describe("y"))));
        parts.extend(self.measure.describe().as_deref().map(paragraph));
        parts.extend(self.relative_to.map(|series| {
            let name = &self.series[series].name;
            paragraph(&format!("Shown: how many times {name} takes as much, the improvement factor over it"))
        }));
        if !self.settings.is_empty() {
            parts.push("Settings of all panels:\n".to_owned() + &settings(&self.settings));
        }
        let panels = self.panels.iter().filter(|panel| !panel.label.is_empty());
        let panels = list(panels.map(|panel| (panel.label.as_str(), panel.describe())));
        if !panels.is_empty() {
            parts.push("Panels, and what each sets:\n".to_owned() + &panels);
        }
        let series = self.series.iter().map(|series| (series.name.as_str(), series.describe()));
        parts.push("Series, one curve in every panel:\n".to_owned() + &list(series));
        if !self.measured.is_empty() {
            let measured = self.measured.iter().map(|curve| (curve.name.as_str(), curve.description.clone()));
            parts.push("Measured by others:\n".to_owned() + &list(measured));
        }
        parts.push(paragraph(LABELS));
        let commands = [(false, &self.full), (true, &self.quick)].map(|(quick, sweep)| {
            format!("  {}\n{}", self.command(quick), indented("    ", &sweep.describe()))
        });
        parts.push("Commands:\n".to_owned() + &commands.concat());
        parts.join("\n")
    }
}

/// The meanings of the labels of series.
const LABELS: &str = "Published: the algorithm is in a publication. Reconstructed: a publication names it, and \
                      this is our reading. Ours: it is new here.";
/// Columns of the texts.
const TEXT_WIDTH: usize = 100;

/// `text` as one paragraph, with the end of its last line.
fn paragraph(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    textwrap::fill(&words, TEXT_WIDTH) + "\n"
}

/// The paragraphs of `text`, which are separated by empty lines.
fn paragraphs(text: &str) -> String {
    text.trim().split("\n\n").map(paragraph).collect::<Vec<_>>().join("\n")
}

/// Names and their meanings, in two columns.
fn list<'a>(entries: impl Iterator<Item = (&'a str, String)> + Clone) -> String {
    let width = entries.clone().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    let next_lines = " ".repeat(width + 4);
    let mut text = String::new();
    for (name, meaning) in entries {
        let first_line = format!("  {name:<width$}  ");
        let options =
            textwrap::Options::new(TEXT_WIDTH).initial_indent(&first_line).subsequent_indent(&next_lines);
        let _ = writeln!(text, "{}", textwrap::fill(&meaning, options));
    }
    text
}

/// Settings, with the fabric on a separate line.
fn settings(settings: &Settings) -> String {
    let (fabric, rest): (Settings, Settings) = settings.iter().cloned().partition(|(key, _)| key == "fabric");
    let lines = [fabric, rest].into_iter().filter(|settings| !settings.is_empty());
    lines.map(|settings| indented("  ", &joined(&settings))).collect()
}

/// `text` as one paragraph behind a margin.
fn indented(margin: &str, text: &str) -> String {
    let options = textwrap::Options::new(TEXT_WIDTH).initial_indent(margin).subsequent_indent(margin);
    textwrap::fill(text, options) + "\n"
}

/// The settings that go with x, as the end of a sentence.
fn going(factors: &Factors) -> String {
    factors.iter().fold(String::new(), |mut text, (key, factor)| {
        let _ = write!(text, ", and {key} = {factor} times x");
        text
    })
}

fn joined(settings: &Settings) -> String {
    settings.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
}

/// The values with commas between; the first and the last where there are many.
fn listed<T: ToString>(values: &[T]) -> String {
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    match &texts[..] {
        [first, second, .., last] if texts.len() > 10 => {
            format!("{first}, {second} .. {last} ({} values)", texts.len())
        }
        _ => texts.join(", "),
    }
}
