//! Published experiments.

use std::sync::{Mutex, MutexGuard};

use arrow_array::RecordBatch;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use treecast_study::journal::Journal;
use treecast_study::table::{Rows, table};
use treecast_study::{FigureSpec, Row, builtin, chart, page, rows, run_until_stopped};
use treecast_terms::nearest_hint;

use crate::error::{TreecastError, read_text, refused};
use crate::interrupt::interruptible_thread;
use crate::json;
use crate::number::Whole;
use crate::table::Table;

/// A published experiment: what it measured, figure by figure, and how it is shown.
///
/// `name` is that of a study that comes along (`Study.known()`), or the path of a directory with a
/// study of your own; docs/studies.md says how to write one.
///
/// Raises TreecastError for an unknown name and, with file and line, for invalid data; OSError if a
/// file cannot be read.
///
/// >>> study = Study("icpp98")
/// >>> study
/// <Study icpp98: Multicast support in the network interface or in the switch, on irregular networks>
/// >>> study.figures[:3]
/// ['fig6', 'fig7', 'fig8']
#[pyclass(frozen, module = "treecast")]
pub struct Study(treecast_study::Study);

#[pymethods]
impl Study {
    #[new]
    fn new(name: Bound<'_, PyAny>) -> PyResult<Self> {
        if let Some(study) = name.extract::<String>().ok().and_then(|name| builtin::study(&name)) {
            return study.map(Self).map_err(refused);
        }
        let path = name.py().import("pathlib")?.getattr("Path")?.call1((&name,))?;
        if !path.call_method0("is_dir")?.is_truthy()? {
            let hint = nearest_hint(&path.to_string(), &builtin::names());
            return Err(TreecastError::new_err(format!("unknown study '{path}', and no directory{hint}")));
        }
        let mut files = Vec::new();
        for file in path.call_method1("glob", ("*.toml",))?.try_iter()? {
            let file = file?;
            let text = read_text(&file)?;
            files.push((file.getattr("name")?.extract::<String>()?, text));
        }
        files.sort();
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (&**name, &**text)).collect();
        let study = treecast_study::Study::parse(&files);
        study.map(Self).map_err(|error| TreecastError::new_err(format!("{path}: {error}")))
    }

    /// The names of the studies that come along.
    #[staticmethod]
    fn known() -> Vec<&'static str> {
        builtin::names()
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// One line that says what it is.
    #[getter]
    fn title(&self) -> &str {
        self.0.title()
    }

    /// The names of its figures.
    #[getter]
    fn figures(&self) -> Vec<&str> {
        self.0.figures().iter().map(FigureSpec::name).collect()
    }

    /// What it is made of, or one of its figures, as `treecast paper show` says it.
    ///
    /// Raises TreecastError for an unknown figure.
    #[pyo3(signature = (figure = None))]
    fn describe(&self, figure: Option<&str>) -> PyResult<String> {
        match figure {
            None => Ok(self.0.describe()),
            Some(figure) => self.0.figure(figure).map(FigureSpec::describe).map_err(refused),
        }
    }

    /// Runs a figure. `quick` takes fewer points, topologies and groups. `threads` is how many run
    /// at once; None means one per core. `progress` is called with the number of runs that are done
    /// and that of all: at the beginning, and whenever one is done, from the thread that ran it.
    ///
    /// `resume` is the path of a file where each run that is done is kept: a figure that was
    /// interrupted goes on from there. Several figures may keep their runs in one file, and a run
    /// that stands in two of them is made once. The file stays when all is done.
    ///
    /// Other Python threads run meanwhile. Ctrl-C ends the runs; one of a model is completed first.
    ///
    /// Raises TreecastError for an unknown figure and, with its name, for an invalid run; OSError
    /// or TreecastError for a file that cannot be used; and what `progress` raised first, when the
    /// figure is done.
    #[pyo3(signature = (figure, quick = false, threads = None, progress = None, resume = None))]
    fn run(
        &self,
        py: Python<'_>,
        figure: &str,
        quick: bool,
        threads: Option<Whole<u32>>,
        progress: Option<Py<PyAny>>,
        resume: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Figure> {
        let spec = self.0.figure(figure).map_err(refused)?;
        let threads = threads.map_or(Ok(0), checked_threads)?;
        let (file, journal) = resume.map(|path| open_journal(&path)).transpose()?.unzip();
        let journal = journal.unwrap_or_default();
        let watch = Watch { file, progress, state: Mutex::default() };
        let done = |row: &Row| watch.done(row);
        let made = interruptible_thread(py, |stop| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let pool = pool.map_err(|error| TreecastError::new_err(error.to_string()))?;
            let runs = spec.runs(quick);
            let recalled = journal.recall(&runs);
            watch.begin(runs.len() - recalled.left().len(), runs.len());
            let made = pool.install(|| run_until_stopped(recalled.left(), &done, stop)).map_err(refused)?;
            let made = recalled.joined(made);
            Ok(Figure { rows: rows::batch(&made).map_err(refused)?, figure: spec.figure(&made) })
        });
        watch.end(py).and(made)
    }

    fn __repr__(&self) -> String {
        format!("<Study {}: {}>", self.0.name(), self.0.title())
    }
}

/// The bound on `threads`; starting more takes longer than it saves.
const THREADS_MAX: u32 = 1024;

fn checked_threads(Whole(threads): Whole<u32>) -> PyResult<usize> {
    if (1..=THREADS_MAX).contains(&threads) {
        return Ok(threads as usize);
    }
    Err(TreecastError::new_err(format!("invalid value {threads} for threads: expected 1 to {THREADS_MAX}")))
}

/// Opens the file of a journal, and reads what it holds.
fn open_journal(path: &Bound<'_, PyAny>) -> PyResult<(Py<PyAny>, Journal)> {
    let files = path.py().import("treecast._journal")?;
    let build: String = files.call_method0("build")?.extract()?;
    let file = files.getattr("JournalFile")?.call1((path, Journal::head(&build), "study"))?;
    let journal = Journal::read(file.getattr("text")?.extract()?, &build);
    Ok((file.unbind(), journal))
}

/// Keeps the runs that are done in the file of a journal, and tells how many they are until that
/// raises an error.
struct Watch {
    file: Option<Py<PyAny>>,
    progress: Option<Py<PyAny>>,
    state: Mutex<WatchState>,
}

#[derive(Default)]
struct WatchState {
    done: usize,
    all: usize,
    raised: Option<PyErr>,
}

impl Watch {
    fn begin(&self, done: usize, all: usize) {
        Python::attach(|py| {
            let mut state = self.locked(py);
            *state = WatchState { done, all, raised: None };
            self.tell(py, &mut state);
        });
    }

    fn done(&self, row: &Row) {
        if self.file.is_none() && self.progress.is_none() {
            return;
        }
        Python::attach(|py| {
            let mut state = self.locked(py);
            state.done += 1;
            if let Some(file) = &self.file
                && let Err(error) = file.call_method1(py, "write", (Journal::line(row),))
            {
                state.raised.get_or_insert(error);
            }
            self.tell(py, &mut state);
        });
    }

    /// The GIL is released while waiting, because `progress` may itself wait for other Python
    /// threads.
    fn locked<'a>(&'a self, py: Python<'_>) -> MutexGuard<'a, WatchState> {
        self.state.lock_py_attached(py).expect("no thread panics while it holds this lock")
    }

    fn tell(&self, py: Python<'_>, state: &mut WatchState) {
        if let Some(progress) = &self.progress
            && state.raised.is_none()
        {
            state.raised = progress.call1(py, (state.done, state.all)).err();
        }
    }

    /// Closes the file, and returns the first exception.
    fn end(self, py: Python<'_>) -> PyResult<()> {
        let closed = self.file.map(|file| file.call_method0(py, "close")).transpose();
        let state = self.state.into_inner().expect("no thread panics while it holds this lock");
        state.raised.map_or(Ok(()), Err).and(closed.map(|_| ()))
    }
}

/// A figure of a study as it was measured: every run, and the curves that their means make.
///
/// It shows as a picture in a notebook, and prints as numbers.
///
/// >>> figure = Study("icpp98").run("fig7", quick=True)
/// >>> len(figure.rows) > 100, "<svg" in figure.svg()
/// (True, True)
#[pyclass(frozen, module = "treecast")]
pub struct Figure {
    rows: RecordBatch,
    figure: treecast_study::figure::Figure,
}

#[pymethods]
impl Figure {
    /// The name of the figure.
    #[getter]
    fn name(&self) -> &str {
        &self.figure.name
    }

    /// The title.
    #[getter]
    fn title(&self) -> &str {
        &self.figure.title
    }

    /// The caption.
    #[getter]
    fn caption(&self) -> &str {
        &self.figure.caption
    }

    /// One row per run, with everything needed to repeat it; docs/studies.md says what the columns
    /// are.
    #[getter]
    fn rows(&self) -> Table {
        Table::from(self.rows.clone())
    }

    /// The chart in SVG.
    fn svg(&self) -> PyResult<String> {
        chart::svg(&self.figure).map_err(refused)
    }

    /// The picture for a notebook.
    fn _repr_svg_(&self) -> PyResult<String> {
        self.svg()
    }

    /// A self-contained HTML page with an interactive chart and the numbers.
    fn html(&self) -> String {
        page::html(std::slice::from_ref(&self.figure))
    }

    /// The chart as a Vega-Lite specification, a dict: what Altair's `Chart.from_dict` takes.
    fn vega_lite<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::to_python(py, &chart::vega_lite(&self.figure))
    }

    fn __str__(&self) -> String {
        table(&self.figure, 100, Rows::All).trim_end().into()
    }

    fn __repr__(&self) -> String {
        format!(
            "<Figure {} {}: {}, {} runs>",
            self.figure.study,
            self.figure.name,
            self.figure.title,
            self.rows.num_rows()
        )
    }
}
