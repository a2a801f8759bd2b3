//! Simulation.

use pyo3::prelude::*;
use treecast_sim::{BARRIER_MESSAGE, Offload, Operation, Recorder, Run, RunContext, RunDocument, Watch};
use treecast_terms::Flits;

use crate::error::{TreecastError, refused};
use crate::fabric::Fabric;
use crate::json;
use crate::number::Whole;
use crate::parameters::{self, Parameters};
use crate::plan::Plan;
use crate::table::{Table, numbers, times};
use crate::trace::traced;

/// Simulates a plan on a fabric, cycle by cycle.
///
/// `offload` says who forwards at a host in the middle: `host`, the process; `assisted`, the
/// process asks and the network interface (NIC) makes the copies; `nic`, the NIC alone. `message`
/// is the length of the message in flits, which are bytes; None is as many packets as the plan was
/// made for. `parameters` are `Parameters` or a dict of their keys. `seed` is that of all random
/// choices: one seed makes one run, byte for byte. `simulator` is `event`, or `cycle`, which looks
/// at every flit in every cycle: slow, and the one that knows wormhole switching; both give the
/// same.
///
/// `operation` is `broadcast`, `all-reduce` or `barrier`: in the last two, contributions of all
/// members go up the tree of the plan before the plan brings the result down. A contribution is one
/// packet; a barrier takes no `message`.
///
/// `trace` is the path of a file that is to show what every CPU, bus, NIC and link did, for
/// https://ui.perfetto.dev; it is written whole or not at all, and is at most 256 MiB.
///
/// Other threads run meanwhile. Ctrl-C ends the run; the parameter `cycles_max` bounds it.
/// docs/simulation.md states the model and derives its closed forms.
///
/// Raises TreecastError where the plan does not fit the fabric, and for a message or parameters
/// that are not possible; OSError where the trace cannot be written.
///
/// >>> fabric = Fabric("star:4")
/// >>> tree = plan(fabric, Group(fabric), "binomial")
/// >>> simulate(fabric, tree).latency_cycles, simulate(fabric, tree, "nic").latency_cycles
/// (8652, 6458)
/// >>> simulate(fabric, tree, "nic", operation="barrier").latency_cycles
/// 10022
#[pyfunction]
#[pyo3(signature = (fabric, plan, offload = "host", message = None, parameters = None, seed = Whole(1), *, operation = "broadcast", simulator = "event", trace = None))]
#[pyo3(
    text_signature = "(fabric, plan, offload='host', message=None, parameters=None, seed=1, *, operation='broadcast', simulator='event', trace=None)"
)]
#[expect(clippy::too_many_arguments, reason = "a run has this many independent settings")]
pub fn simulate(
    py: Python<'_>,
    fabric: &Bound<'_, Fabric>,
    plan: &Bound<'_, Plan>,
    offload: &str,
    message: Option<Whole<u64>>,
    parameters: Option<&Bound<'_, PyAny>>,
    seed: Whole<u64>,
    operation: &str,
    simulator: &str,
    trace: Option<Bound<'_, PyAny>>,
) -> PyResult<Result> {
    let (fabric, plan) = (fabric.get(), plan.get());
    let offload: Offload = offload.parse().map_err(refused)?;
    let parameters = parameters::read(parameters)?;
    let operation: Operation = operation.parse().map_err(|expected| {
        TreecastError::new_err(format!("invalid value {operation} for operation: expected {expected}"))
    })?;
    let message = match message {
        Some(Whole(flits)) => Flits(flits),
        None if operation == Operation::Barrier => BARRIER_MESSAGE,
        None => Flits(u64::from(plan.packets) * parameters.packet_flits.0),
    };
    let run = Run {
        fabric: &fabric.fabric,
        plan: &plan.plan,
        operation,
        offload,
        message,
        parameters: &parameters,
        seed: seed.0,
        simulator: simulator.parse().map_err(refused)?,
    };
    let simulate =
        |recorder: Option<&mut dyn Recorder>, watch: &mut Watch| run.simulate_watched(recorder, watch);
    let outcome = traced(py, trace, fabric, plan.plan.placement(), &parameters, simulate)?;
    let context = RunContext {
        fabric: fabric.source.clone(),
        routing: fabric.policy.to_string(),
        plan: plan.destinations.is_none().then(|| "JSON".into()),
        order: plan.order.map(|order| order.to_string()),
        destinations: plan.destinations.clone(),
    };
    Ok(Result(RunDocument::new(&run, &outcome, context)))
}

/// What a simulated multicast gave, and what it was made with.
///
/// >>> fabric = Fabric("star:3")
/// >>> result = simulate(fabric, plan(fabric, Group(fabric), "separate"))
/// >>> result
/// <Result complete after 5326 cycles: separate, offload host, 128 flits to 2 destinations>
/// >>> result.deliveries.column("cycle")
/// [4326, 5326]
#[pyclass(frozen, eq, module = "treecast")]
#[derive(PartialEq)]
pub struct Result(RunDocument);

#[pymethods]
impl Result {
    /// How the run ended: `complete`, `saturated`, `deadlocked` or `incomplete`.
    #[getter]
    fn status(&self) -> &'static str {
        self.0.status.name()
    }

    /// From the start of the send at the root until the last destination has the message, in
    /// cycles; None unless complete.
    #[getter]
    fn latency_cycles(&self) -> Option<u64> {
        self.0.latency_cycles
    }

    /// The same in nanoseconds.
    #[getter]
    fn latency_ns(&self) -> Option<f64> {
        self.0.latency_ns
    }

    /// A row a destination that has the message, by number: `member`, its `host`, and the `cycle`
    /// in which its process has it.
    #[getter]
    fn deliveries(&self) -> Table {
        let deliveries = &self.0.deliveries;
        Table::new([
            ("member", numbers(deliveries.iter().map(|delivery| delivery.member.0))),
            ("host", numbers(deliveries.iter().map(|delivery| delivery.host))),
            ("cycle", times(deliveries.iter().map(|delivery| delivery.cycle))),
        ])
    }

    /// How many cycles the processes of each host spent on sending and receiving: a row a `host`
    /// that spent any, with its `cycles`.
    #[getter]
    fn cpu_busy_cycles(&self) -> Table {
        let busy = &self.0.cpu_busy_cycles;
        Table::new([("host", numbers(busy.keys().copied())), ("cycles", times(busy.values().copied()))])
    }

    /// How many worms were put into the fabric; those inside a host are not counted.
    #[getter]
    fn worms(&self) -> u32 {
        self.0.worms
    }

    /// What waits for what, where the run ended deadlocked, else None: a dict with the `cycle` in
    /// which it was found, how many packets are `stuck`, and `waits`, some of them that form a
    /// cycle. Each of these is a dict with the numbers of its `multicast`, `worm` and `packet`, the
    /// link `at` whose end it lies, and the link that it `wants`.
    #[getter]
    fn deadlock<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::to_python(py, &self.0.deadlock)
    }

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

    /// The scheme that made the plan, with its keys.
    #[getter]
    fn scheme(&self) -> &str {
        &self.0.scheme
    }

    /// The order as requested.
    #[getter]
    fn order(&self) -> Option<&str> {
        self.0.order.as_deref()
    }

    /// The member that sent first.
    #[getter]
    fn root(&self) -> u32 {
        self.0.root.0
    }

    /// The destinations as a text: `all`, or their numbers; None where the plan was read.
    #[getter]
    fn destinations(&self) -> Option<&str> {
        self.0.destinations.as_deref()
    }

    /// What the members did: `broadcast`, `all-reduce` or `barrier`.
    #[getter]
    fn operation(&self) -> &str {
        &self.0.operation
    }

    /// Who forwards: `host`, `assisted`, `nic`.
    #[getter]
    fn offload(&self) -> &str {
        &self.0.offload
    }

    /// The length of the message in flits.
    #[getter]
    fn message_flits(&self) -> u64 {
        self.0.message_flits
    }

    /// The seed of all random choices.
    #[getter]
    fn seed(&self) -> u64 {
        self.0.seed
    }

    /// The simulator: `event` or `cycle`.
    #[getter]
    fn simulator(&self) -> &str {
        &self.0.simulator
    }

    /// The parameters of the run.
    #[getter]
    fn parameters(&self) -> PyResult<Parameters> {
        Parameters::of(&self.0.parameters)
    }

    /// The run as JSON, as `treecast sim --format json` writes it, with everything needed to repeat
    /// it; docs/schema/run.schema.json is its schema.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// Reads a run from its JSON.
    ///
    /// Raises TreecastError with the position of the error.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        json::read("run", text).map(Self)
    }

    fn __repr__(&self) -> String {
        format!("<Result {}>", self.summary())
    }

    /// The result for a notebook: the summary, and the deliveries.
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        self.deliveries().html_of(py, &self.summary(), None)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("from_json")?, (slf.get().to_json(),)))
    }
}

impl Result {
    fn summary(&self) -> String {
        let RunDocument { operation, scheme, offload, message_flits, .. } = &self.0;
        let ended = match self.0.latency_cycles {
            Some(cycles) => format!("complete after {cycles} cycles"),
            None => self.status().into(),
        };
        let (operation, noun) = if *operation == Operation::Broadcast.to_string() {
            (String::new(), "destination")
        } else {
            (format!("{operation}, "), "member")
        };
        let destinations = treecast_plan::render::counted(self.0.deliveries.len(), noun);
        format!("{ended}: {operation}{scheme}, offload {offload}, {message_flits} flits to {destinations}")
    }
}
