//! Many multicasts at once.

use std::iter;

use pyo3::prelude::*;
use treecast_plan::{Order, Placement, Scheme};
use treecast_sim::{
    Arrivals, DestinationSets, LoadContext, LoadDocument, LoadSetup, Offload, Recorder, SaturationDocument,
    Simulator, Watch,
};
use treecast_terms::{Cycles, Flits};

use crate::error::refused;
use crate::fabric::Fabric;
use crate::interrupt::interruptible;
use crate::json;
use crate::number::Whole;
use crate::parameters::{self, Parameters};
use crate::table::{Table, optional_reals, optional_times, reals, texts, times};
use crate::trace::traced;

/// A run under load, except for its load. `treecast.load` and `treecast.find_saturation` describe
/// the arguments.
#[pyclass(frozen, module = "treecast._treecast")]
pub struct LoadRun {
    fabric: Py<Fabric>,
    scheme: Scheme,
    order: Option<Order>,
    offload: Offload,
    message: Flits,
    degree: u32,
    arrivals: Arrivals,
    sets: DestinationSets,
    cycles: Cycles,
    warmup: Cycles,
    backlog_max: Option<usize>,
    parameters: treecast_sim::Parameters,
    seed: u64,
    simulator: Simulator,
}

#[pymethods]
impl LoadRun {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "a run has that many arguments")]
    fn new(
        fabric: Py<Fabric>,
        scheme: &str,
        degree: Whole<u32>,
        order: Option<&str>,
        offload: &str,
        message: Option<Whole<u64>>,
        arrivals: &str,
        destination_sets: &str,
        cycles: Whole<u64>,
        warmup: Option<Whole<u64>>,
        backlog_max: Option<Whole<u64>>,
        parameters: Option<&Bound<'_, PyAny>>,
        seed: Whole<u64>,
        simulator: &str,
    ) -> PyResult<Self> {
        let parameters = parameters::read(parameters)?;
        Ok(Self {
            fabric,
            scheme: scheme.parse().map_err(refused)?,
            order: order.map(str::parse).transpose().map_err(refused)?,
            offload: offload.parse().map_err(refused)?,
            message: message.map_or(parameters.packet_flits, |Whole(flits)| Flits(flits)),
            degree: degree.0,
            arrivals: arrivals.parse().map_err(refused)?,
            sets: destination_sets.parse().map_err(refused)?,
            cycles: Cycles(cycles.0),
            warmup: warmup
                .map_or(treecast_sim::LoadRun::default_warmup(Cycles(cycles.0)), |Whole(cycles)| {
                    Cycles(cycles)
                }),
            backlog_max: backlog_max.map(|Whole(multicasts)| multicasts as usize),
            parameters,
            seed: seed.0,
            simulator: simulator.parse().map_err(refused)?,
        })
    }

    /// Simulates so much load, in flits/host/cycle; writes a trace if a path is given.
    fn simulate<'py>(
        &self,
        py: Python<'py>,
        load: f64,
        trace: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, LoadResult>> {
        let run = self.with(load);
        let fabric = self.fabric.get();
        let placement = Placement::one_per_host(fabric.topology().host_count());
        let simulate =
            |recorder: Option<&mut dyn Recorder>, watch: &mut Watch| run.simulate_watched(recorder, watch);
        let outcome = traced(py, trace, fabric, &placement, &self.parameters, simulate)?;
        LoadResult::of(py, LoadDocument::new(&run, &outcome, self.context()))
    }

    /// Searches for the highest sustained load.
    fn find_saturation<'py>(
        &self,
        py: Python<'py>,
        precision: f64,
    ) -> PyResult<Bound<'py, SaturationResult>> {
        // A search ignores the load.
        let run = self.with(0.0);
        let saturation =
            interruptible(py, |check| run.find_saturation_watched(precision, |_| (), &mut |_| check()))?;
        SaturationResult::of(py, SaturationDocument::new(&run, precision, &saturation, self.context()))
    }
}

impl LoadRun {
    fn with(&self, load: f64) -> treecast_sim::LoadRun<'_> {
        treecast_sim::LoadRun {
            fabric: &self.fabric.get().fabric,
            scheme: &self.scheme,
            order: self.order,
            offload: self.offload,
            message: self.message,
            degree: self.degree,
            load,
            arrivals: self.arrivals,
            sets: self.sets,
            cycles: self.cycles,
            warmup: self.warmup,
            backlog_max: self.backlog_max,
            parameters: &self.parameters,
            seed: self.seed,
            simulator: self.simulator,
        }
    }

    fn context(&self) -> LoadContext {
        let fabric = self.fabric.get();
        LoadContext { fabric: fabric.source.clone(), routing: fabric.policy.to_string() }
    }
}

/// The input of a run under load.
#[pyclass(frozen, subclass, name = "LoadSetup", module = "treecast")]
pub struct Setup(LoadSetup);

#[pymethods]
impl Setup {
    /// The source of the fabric: its spec, the path of the file, or `networkx`.
    #[getter]
    fn fabric(&self) -> &str {
        &self.0.fabric
    }

    /// The routing as requested.
    #[getter]
    fn routing(&self) -> &str {
        &self.0.routing
    }

    /// The scheme of each multicast, with its keys.
    #[getter]
    fn scheme(&self) -> &str {
        &self.0.scheme
    }

    /// The order as requested.
    #[getter]
    fn order(&self) -> Option<&str> {
        self.0.order.as_deref()
    }

    /// Which part of a host forwards: `host`, `assisted`, `nic`.
    #[getter]
    fn offload(&self) -> &str {
        &self.0.offload
    }

    /// The length of each message in flits.
    #[getter]
    fn message_flits(&self) -> u64 {
        self.0.message_flits
    }

    /// The number of destinations of each multicast.
    #[getter]
    fn degree(&self) -> u32 {
        self.0.degree
    }

    /// The arrival process: `exponential`, `fixed`, `bernoulli`, `burst:size=8`.
    #[getter]
    fn arrivals(&self) -> &str {
        &self.0.arrivals
    }

    /// The choice of destinations: `random`, `fixed`, `neighbours`.
    #[getter]
    fn destination_sets(&self) -> &str {
        &self.0.destination_sets
    }

    /// The number of cycles to simulate.
    #[getter]
    fn cycles(&self) -> u64 {
        self.0.cycles
    }

    /// The number of warm-up cycles, which are not measured.
    #[getter]
    fn warmup_cycles(&self) -> u64 {
        self.0.warmup_cycles
    }

    /// The bound on the number of multicasts in flight.
    #[getter]
    fn backlog_max(&self) -> u64 {
        self.0.backlog_max
    }

    /// The simulator: `event` or `cycle`.
    #[getter]
    fn simulator(&self) -> &str {
        &self.0.simulator
    }

    /// The seed of the traffic and of all random choices.
    #[getter]
    fn seed(&self) -> u64 {
        self.0.seed
    }

    /// The parameters of the run.
    #[getter]
    fn parameters(&self) -> PyResult<Parameters> {
        Parameters::of(&self.0.parameters)
    }
}

/// The input and the results of a run under load. docs/load.md defines each measurement.
///
/// >>> result = load(Fabric("icpp98"), "tree-worm", load=0.02, degree=3, cycles=100_000)
/// >>> result
/// <LoadResult complete: tree-worm, offload host, degree 3, offered load 0.02, mean latency 8530.6 cycles>
/// >>> result.status, result.multicasts_measured, round(result.accepted_load, 3)
/// ('complete', 271, 0.065)
#[pyclass(frozen, eq, extends = Setup, module = "treecast")]
#[derive(PartialEq)]
pub struct LoadResult(LoadDocument);

#[pymethods]
impl LoadResult {
    /// How the run ended: `complete`; `saturated`; `deadlocked`; `incomplete`, if no multicast was
    /// measured.
    #[getter]
    fn status(&self) -> &'static str {
        self.0.status.name()
    }

    /// The offered load, in message flits/host/cycle that hosts inject; each multicast counts once,
    /// whatever the degree.
    #[getter]
    fn offered_load(&self) -> f64 {
        self.0.offered_load
    }

    /// The ejection load: the degree times the offered load.
    #[getter]
    fn ejection_load(&self) -> f64 {
        self.0.ejection_load
    }

    /// The accepted load (accepted throughput) in flits/host/cycle: the ejection load if that is
    /// sustained. None if the run ended before the measurement window started.
    #[getter]
    fn accepted_load(&self) -> Option<f64> {
        self.0.figures.accepted_load
    }

    /// The number of multicasts completed within the measurement.
    #[getter]
    fn multicasts_measured(&self) -> u64 {
        self.0.figures.multicasts_measured
    }

    /// Their mean latency, in cycles: from the arrival of the multicast at its source until the
    /// last destination has the message. This and the following are None if no multicast was
    /// measured.
    #[getter]
    fn latency_mean_cycles(&self) -> Option<f64> {
        self.0.figures.latency_mean_cycles
    }

    /// The median, within 0.1 %.
    #[getter]
    fn latency_p50_cycles(&self) -> Option<u64> {
        self.0.figures.latency_p50.map(|cycles| cycles.0)
    }

    /// The 99th percentile, within 0.1 %.
    #[getter]
    fn latency_p99_cycles(&self) -> Option<u64> {
        self.0.figures.latency_p99.map(|cycles| cycles.0)
    }

    /// The maximum.
    #[getter]
    fn latency_max_cycles(&self) -> Option<u64> {
        self.0.figures.latency_max.map(|cycles| cycles.0)
    }

    /// Half the width of the 95 % confidence interval of the mean, by batch means; None if a batch
    /// has no multicast.
    #[getter]
    fn latency_ci95_cycles(&self) -> Option<f64> {
        self.0.figures.latency_ci95_cycles
    }

    /// The mean time from the first delivery of a multicast to its last.
    #[getter]
    fn first_last_spread_mean_cycles(&self) -> Option<f64> {
        self.0.figures.first_last_spread_mean_cycles
    }

    /// Link utilization, as a dict of fractions of the measured cycles: the `mean` over the links,
    /// the `max`, and the name of the busiest `link`, None if all links were idle.
    #[getter]
    fn link_utilization<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::to_python(py, &self.0.figures.link_utilization)
    }

    /// The utilization of each link that carried flits, as a dict of fractions by the names of the
    /// links. Links inside the nodes of a torus or mesh are left out.
    #[getter]
    fn links<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::to_python(py, &self.0.links)
    }

    /// The length of the run in cycles.
    #[getter]
    fn end_cycle(&self) -> u64 {
        self.0.end_cycle
    }

    /// The packets that wait for one another, if the run is deadlocked, as in `Result.deadlock`;
    /// otherwise None.
    #[getter]
    fn deadlock<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::to_python(py, &self.0.deadlock)
    }

    /// A sentence if the window is too short for the measured latencies, so that the status is
    /// uncertain; else None.
    #[getter]
    fn warning(&self) -> Option<String> {
        self.0.warning().map(|warning| warning.to_string())
    }

    /// The run as JSON, as `treecast sim --load` writes it, with everything needed to repeat it;
    /// docs/schema/load.schema.json is its schema.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// Reads a run from its JSON.
    ///
    /// Raises TreecastError with the position of the error.
    #[staticmethod]
    fn from_json<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, Self>> {
        Self::of(py, json::read("run under load", text)?)
    }

    fn __repr__(&self) -> String {
        format!("<LoadResult {}>", self.summary())
    }

    /// The result for a notebook: the summary, the loads and latencies, and the warning.
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        self.figures().html_of(py, &self.summary(), self.warning())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("from_json")?, (slf.get().to_json(),)))
    }
}

impl LoadResult {
    fn summary(&self) -> String {
        let LoadDocument { setup, offered_load, figures, .. } = &self.0;
        let LoadSetup { scheme, offload, degree, .. } = setup;
        let latency = figures.latency_mean_cycles.map(|mean| format!(", mean latency {mean:.1} cycles"));
        let latency = latency.unwrap_or_default();
        let status = self.status();
        format!(
            "{status}: {scheme}, offload {offload}, degree {degree}, offered load {offered_load}{latency}"
        )
    }

    /// The loads and latencies, in one row.
    fn figures(&self) -> Table {
        let LoadDocument { offered_load, ejection_load, figures, .. } = &self.0;
        let cycles = |latency: Option<Cycles>| optional_times(iter::once(latency.map(|Cycles(it)| it)));
        Table::new([
            ("offered_load", reals(iter::once(*offered_load))),
            ("ejection_load", reals(iter::once(*ejection_load))),
            ("accepted_load", optional_reals(iter::once(figures.accepted_load))),
            ("multicasts_measured", times(iter::once(figures.multicasts_measured))),
            ("latency_mean_cycles", optional_reals(iter::once(figures.latency_mean_cycles))),
            ("latency_p50_cycles", cycles(figures.latency_p50)),
            ("latency_p99_cycles", cycles(figures.latency_p99)),
            ("latency_max_cycles", cycles(figures.latency_max)),
        ])
    }

    fn of(py: Python<'_>, document: LoadDocument) -> PyResult<Bound<'_, Self>> {
        let setup = Setup(document.setup.clone());
        Bound::new(py, PyClassInitializer::from(setup).add_subclass(Self(document)))
    }
}

/// The saturation load of a scheme, and the input of the search.
///
/// >>> found = find_saturation(Fabric("icpp98"), "tree-worm", degree=3, cycles=100_000, precision=0.2)
/// >>> found
/// <SaturationResult tree-worm, offload host, degree 3: sustains an offered load of 0.03125 after 7 runs>
/// >>> found.points.column("status")
/// ['saturated', 'saturated', 'saturated', 'saturated', 'complete', 'complete', 'saturated']
#[pyclass(frozen, eq, extends = Setup, module = "treecast")]
#[derive(PartialEq)]
pub struct SaturationResult(SaturationDocument);

#[pymethods]
impl SaturationResult {
    /// The highest offered load that was sustained, in flits/host/cycle; None if none of those
    /// tried was.
    #[getter]
    fn saturation_offered_load(&self) -> Option<f64> {
        self.0.saturation_offered_load
    }

    /// The corresponding ejection load: the degree times the offered load.
    #[getter]
    fn saturation_ejection_load(&self) -> Option<f64> {
        self.0.saturation_ejection_load
    }

    /// The requested relative precision.
    #[getter]
    fn precision(&self) -> f64 {
        self.0.precision
    }

    /// One row per load that was tried, in order: `offered_load`, `ejection_load`, the `status`,
    /// and `latency_mean_cycles`, null if nothing was measured.
    #[getter]
    fn points(&self) -> Table {
        let points = || self.0.points.iter();
        Table::new([
            ("offered_load", reals(points().map(|point| point.offered_load))),
            ("ejection_load", reals(points().map(|point| point.ejection_load))),
            ("status", texts(points().map(|point| Some(point.status.name().into())))),
            ("latency_mean_cycles", optional_reals(points().map(|point| point.latency_mean_cycles))),
        ])
    }

    /// A sentence if the window is too short for the latencies at the load found, so that the
    /// status is uncertain; else None.
    #[getter]
    fn warning(&self) -> Option<String> {
        self.0.warning().map(|warning| warning.to_string())
    }

    /// The search as JSON, as `treecast sim --find-saturation` writes it;
    /// docs/schema/saturation.schema.json is its schema.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// Reads a search from its JSON.
    ///
    /// Raises TreecastError with the position of the error.
    #[staticmethod]
    fn from_json<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, Self>> {
        Self::of(py, json::read("search for saturation", text)?)
    }

    fn __repr__(&self) -> String {
        format!("<SaturationResult {}>", self.summary())
    }

    /// The result for a notebook: the summary, the loads that were tried, and the warning.
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        self.points().html_of(py, &self.summary(), self.warning())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("from_json")?, (slf.get().to_json(),)))
    }
}

impl SaturationResult {
    fn summary(&self) -> String {
        let LoadSetup { scheme, offload, degree, .. } = &self.0.setup;
        let found = match self.0.saturation_offered_load {
            Some(load) => format!("sustains an offered load of {load}"),
            None => "sustains no load tried".into(),
        };
        let runs = treecast_plan::render::counted(self.0.points.len(), "run");
        format!("{scheme}, offload {offload}, degree {degree}: {found} after {runs}")
    }

    fn of(py: Python<'_>, document: SaturationDocument) -> PyResult<Bound<'_, Self>> {
        let setup = Setup(document.setup.clone());
        Bound::new(py, PyClassInitializer::from(setup).add_subclass(Self(document)))
    }
}
