//! The runs of a figure.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::{Rng, RngExt};
use rand_pcg::Pcg64;
use treecast_fabric::{Fabric, FabricSpec};
use treecast_model::{Model, ModelError, Task};
use treecast_plan::{Group, MemberId, MemberList, Placement, PlanError, PlanOptions, plan};
use treecast_sim::{LoadRun, Operation, Parameters, Run, SimError, Simulator, Status, packet_count};
use treecast_terms::{Bytes, Cycles, Flits, Keyed as _};

use crate::digest::digest;
use crate::error::StudyError;
use crate::measure::Measure;
use crate::measured::{Measured, Modelled, Multicast, Quantities};
use crate::setup::{Hardware, hosts};
use crate::setup::{Selection, Setup};
use crate::spec::{FigureSpec, PanelSpec, Point, SeriesSpec};

/// The stream of a seed that draws groups.
const GROUP_STREAM: u128 = 0x6772_6f75;

/// The approximate number of loads that a search for saturation tries, and the ejection load that
/// it finds: for estimates of the cost of runs.
const PROBES: u64 = 10;
const SATURATION_GUESS: f64 = 0.05;
/// The approximate payload of a packet in models, likewise.
const MODEL_PACKET: Flits = Flits(2048);

/// The kind of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// One multicast on an idle fabric.
    Multicast,
    /// A run under load.
    Load {
        /// The offered load in flits/host/cycle.
        offered_load: f64,
    },
    /// A search for the highest sustained load.
    Saturation,
    /// One operation of a model.
    Model,
}

/// One run of a figure.
#[derive(Debug, Clone, Copy)]
pub struct RunSpec<'a> {
    pub(crate) figure: &'a FigureSpec,
    pub(crate) point: &'a Point,
    pub(crate) topology_index: usize,
    pub(crate) group_index: u32,
    pub(crate) quick: bool,
}

impl<'a> RunSpec<'a> {
    /// Its figure.
    pub fn figure(&self) -> &'a FigureSpec {
        self.figure
    }

    /// Its panel.
    pub fn panel(&self) -> &'a PanelSpec {
        &self.figure.panels[self.point.panel_index]
    }

    /// Its series.
    pub fn series(&self) -> &'a SeriesSpec {
        &self.figure.series[self.point.series_index]
    }

    /// Its x.
    pub fn x(&self) -> f64 {
        self.point.x
    }

    /// Its y, in a map of winners.
    pub fn y(&self) -> Option<f64> {
        self.point.y
    }

    /// Its inputs besides its scheme and its group.
    pub fn setup(&self) -> &'a Setup {
        &self.point.setup
    }

    /// The index of its group on its topology.
    pub fn group_index(&self) -> u32 {
        self.group_index
    }

    /// The seed of its topology, if the topology is drawn.
    pub fn topology_seed(&self) -> Option<u64> {
        self.setup().fabrics[self.topology_index].0
    }

    /// Its fabric.
    pub fn fabric(&self) -> FabricSpec {
        self.setup().fabrics[self.topology_index].1
    }

    /// The seed of its group and of its random choices, and its root, for a number of members.
    ///
    /// They depend only on the topology's seed, the number of the group and the number of
    /// destinations, so all series and panels multicast among the same hosts.
    fn draw(&self, members: u32) -> (u64, MemberId) {
        let topology = u128::from(self.topology_seed().unwrap_or(0)) << 64;
        let group = u128::from(self.group_index) << 32 | u128::from(self.setup().destinations);
        let mut random = Pcg64::new(topology | group, GROUP_STREAM);
        let (seed, drawn) = (random.next_u64(), MemberId(random.random_range(0..members)));
        (seed, self.setup().root.unwrap_or(drawn))
    }

    /// The fabric with its routing, in a line.
    pub(crate) fn fabric_line(&self) -> String {
        format!("{} {}", self.fabric(), self.setup().routing)
    }

    /// The kind of the run.
    pub fn kind(&self) -> Kind {
        match (self.figure.measure, self.setup().offered_load) {
            _ if self.setup().model().is_some() => Kind::Model,
            (Measure::Saturation, _) => Kind::Saturation,
            (_, Some(offered_load)) => Kind::Load { offered_load },
            (_, None) => Kind::Multicast,
        }
    }

    /// Its approximate relative cost: the number of packet deliveries.
    pub fn cost(&self) -> u64 {
        let Setup { message, destinations, traffic, .. } = self.setup();
        let packet = self.setup().parameters().map_or(MODEL_PACKET, |parameters| parameters.packet_flits);
        let packets = |load: f64| {
            let flits = load * f64::from(*destinations) * hosts(&self.fabric()) * traffic.cycles.0 as f64;
            (flits / packet.min(*message).0 as f64) as u64
        };
        match self.kind() {
            Kind::Multicast | Kind::Model => message.0.div_ceil(packet.0) * u64::from(*destinations),
            Kind::Load { offered_load } => packets(offered_load).max(1),
            Kind::Saturation => PROBES * packets(SATURATION_GUESS / f64::from(*destinations)).max(1),
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`StudyError::Run`] for an invalid fabric, plan or run.
    pub fn run(&self) -> Result<Row<'a>, StudyError> {
        let stop = AtomicBool::new(false);
        self.run_on(&self.build(&stop)?, &stop)
    }

    pub(crate) fn build(&self, stop: &AtomicBool) -> Result<Fabric, StudyError> {
        if stop.load(Ordering::Relaxed) {
            return Err(StudyError::Interrupted);
        }
        let fabric =
            self.fabric().topology().and_then(|topology| Fabric::new(topology, self.setup().routing));
        fabric.map_err(|error| self.error(&error))
    }

    pub(crate) fn run_on(&self, fabric: &Fabric, stop: &AtomicBool) -> Result<Row<'a>, StudyError> {
        if stop.load(Ordering::Relaxed) {
            return Err(StudyError::Interrupted);
        }
        let Setup { processes, arrangement, hardware, .. } = self.setup();
        let placement = Placement::new(fabric.topology().host_count(), *processes, *arrangement);
        let placement = placement.map_err(|error| self.error(&error))?;
        let (seed, root) = self.draw(placement.member_count());
        let label = self.series().label_on(fabric);
        let (status, quantities) = match (hardware, self.kind()) {
            (Hardware::Testbed(testbed), _) => self
                .modelled(&testbed.model, fabric, placement, seed, root, stop)
                .map_err(|error| match error {
                    ModelError::Interrupted => StudyError::Interrupted,
                    error => self.error(&error),
                })?,
            (Hardware::Cycles(parameters), kind) => {
                let ran = match kind {
                    Kind::Load { offered_load } => self.load(parameters, fabric, seed, offered_load, stop),
                    Kind::Saturation => self.saturation(parameters, fabric, seed, stop),
                    _ => self.multicast(parameters, fabric, placement, seed, root, stop),
                };
                ran.map_err(|error| match error {
                    SimError::Interrupted => StudyError::Interrupted,
                    error => self.error(&error),
                })?
            }
        };
        Ok(Row { spec: *self, measured: Measured { seed, label, status, quantities } })
    }

    fn group(&self, placement: Placement, seed: u64, root: MemberId) -> Result<Group, PlanError> {
        let count = self.setup().destinations;
        let destinations = match self.setup().selection {
            Selection::Random => MemberList::Random(count).resolve(&placement, root, seed)?,
            Selection::Contiguous => {
                let members = placement.member_count();
                (1..=count).map(|step| MemberId((root.0 + step) % members)).collect()
            }
        };
        Group::new(placement, root, destinations)
    }

    fn modelled(
        &self,
        model: &Model,
        fabric: &Fabric,
        placement: Placement,
        seed: u64,
        root: MemberId,
        stop: &AtomicBool,
    ) -> Result<(Status, Quantities), ModelError> {
        let SeriesSpec { scheme, order, offload, .. } = self.series();
        let group = self.group(placement, seed, root)?;
        let message = Bytes(self.setup().message.0);
        let task = Task {
            fabric,
            group: &group,
            scheme,
            order: *order,
            offload: *offload,
            message,
            seed,
            stop: Some(stop),
        };
        let outcome = model.run(&task)?;
        let quantities = Quantities::Modelled(Modelled {
            root,
            destinations: group.destinations().to_vec(),
            latency: outcome.latency,
            measured: outcome.measured.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
            deadlock: outcome.deadlock,
        });
        Ok((outcome.status, quantities))
    }

    fn multicast(
        &self,
        parameters: &Parameters,
        fabric: &Fabric,
        placement: Placement,
        seed: u64,
        root: MemberId,
        stop: &AtomicBool,
    ) -> Result<(Status, Quantities), SimError> {
        let Setup { message, .. } = self.setup();
        let SeriesSpec { scheme, order, offload, .. } = self.series();
        let packets = packet_count(*message, parameters.packet_flits)?;
        let group = self.group(placement, seed, root)?;
        let plan = plan(fabric, &group, scheme, &PlanOptions { order: *order, packets })?;
        let run = Run {
            fabric,
            plan: &plan,
            operation: Operation::Broadcast,
            offload: *offload,
            message: *message,
            parameters,
            seed,
            simulator: Simulator::Event,
        };
        let outcome = run.simulate_watched(None, &mut |_| unless_stopped(stop))?;
        let quantities = Quantities::Multicast(Multicast {
            root,
            destinations: group.destinations().to_vec(),
            latency: outcome.latency,
            worms: outcome.worms,
            phases: plan.phases(),
            cpu_busy: outcome.cpu_busy.iter().copied().sum::<Cycles>(),
        });
        Ok((outcome.status, quantities))
    }

    fn load(
        &self,
        parameters: &Parameters,
        fabric: &Fabric,
        seed: u64,
        load: f64,
        stop: &AtomicBool,
    ) -> Result<(Status, Quantities), SimError> {
        let run = LoadRun { load, ..self.load_run(parameters, fabric, seed) };
        let outcome = run.simulate_watched(None, &mut |_| unless_stopped(stop))?;
        Ok((outcome.status, Quantities::Load(outcome.figures)))
    }

    fn saturation(
        &self,
        parameters: &Parameters,
        fabric: &Fabric,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<(Status, Quantities), SimError> {
        let run = self.load_run(parameters, fabric, seed);
        let precision = self.setup().traffic.precision;
        let found = run.find_saturation_watched(precision, |_| (), &mut |_| unless_stopped(stop))?;
        let status = if found.offered_load.is_some() { Status::Complete } else { Status::Saturated };
        let quantities = Quantities::Saturation {
            offered_load: found.offered_load,
            deadlocks: found.points.iter().filter(|point| point.status == Status::Deadlocked).count() as u32,
            points: found.points.len() as u32,
        };
        Ok((status, quantities))
    }

    /// Its run under load, except for the load.
    fn load_run<'b>(&self, parameters: &'b Parameters, fabric: &'b Fabric, seed: u64) -> LoadRun<'b>
    where
        'a: 'b,
    {
        let Setup { message, destinations, traffic, .. } = self.setup();
        let SeriesSpec { scheme, order, offload, .. } = self.series();
        LoadRun {
            fabric,
            scheme,
            order: *order,
            offload: *offload,
            message: *message,
            degree: *destinations,
            load: 0.0,
            arrivals: traffic.arrivals,
            sets: traffic.sets,
            cycles: traffic.cycles,
            warmup: traffic.warmup,
            backlog_max: traffic.backlog_max,
            parameters,
            seed,
            simulator: Simulator::Event,
        }
    }

    /// A digest of everything that determines its result. The same run has the same digest in every
    /// figure.
    pub(crate) fn digest(&self) -> u128 {
        // The part that the runs of a point share is computed once.
        let of_point = self.point.digest.get_or_init(|| {
            let Setup { fabrics: _, routing, message, destinations, root, processes, arrangement, .. } =
                self.setup();
            let SeriesSpec { scheme, offload, label, .. } = self.series();
            let order = self.series().order_used().map(|order| order.to_string());
            let mut text = format!(
                "{routing} {scheme} {order:?} {offload} {label:?} {message} {destinations} {root:?} {processes} {arrangement:?}"
            );
            if self.setup().selection == Selection::Contiguous {
                text += " contiguous";
            }
            let values = match &self.setup().hardware {
                Hardware::Cycles(parameters) => parameters.values().collect(),
                Hardware::Testbed(testbed) => {
                    text += testbed.model.name();
                    testbed.model.values()
                }
            };
            for (key, value) in values {
                let _ = write!(text, " {key}={value}");
            }
            if matches!(self.kind(), Kind::Load { .. } | Kind::Saturation) {
                let _ = write!(text, " {:?} {:?}", self.kind(), self.setup().traffic);
            }
            digest(text.as_bytes())
        });
        let seed = self.topology_seed();
        digest(format!("{of_point:x} {} {seed:?} {}", self.fabric(), self.group_index).as_bytes())
    }

    fn error(&self, reason: &dyn std::error::Error) -> StudyError {
        let Self { figure, group_index, .. } = self;
        let panel = Some(self.panel().label.as_str()).filter(|label| !label.is_empty());
        let panel = panel.map(|label| format!(", panel '{label}'")).unwrap_or_default();
        let run = format!(
            "{} {}{panel}, series {}, {} {}, {}, group {group_index}",
            figure.study,
            figure.name,
            self.series().name,
            figure.x.label,
            self.x(),
            self.fabric()
        );
        StudyError::Run { run, reason: reason.to_string() }
    }
}

fn unless_stopped(stop: &AtomicBool) -> ControlFlow<()> {
    if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

impl FigureSpec {
    /// All its runs: panel by panel, series by series, y by y, x by x, topology by topology, group
    /// by group.
    ///
    /// `quick` takes the smaller sweep of the file's `[quick]` table.
    pub fn runs(&self, quick: bool) -> Vec<RunSpec<'_>> {
        let sweep = if quick { &self.quick } else { &self.full };
        let mut runs = Vec::with_capacity(sweep.runs());
        for point in &sweep.points {
            for topology_index in 0..point.setup.fabrics.len() {
                for group_index in 0..sweep.groups {
                    runs.push(RunSpec { figure: self, point, topology_index, group_index, quick });
                }
            }
        }
        runs
    }
}

/// A run and its result, with all inputs that reproduce it.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    /// The run.
    pub spec: RunSpec<'a>,
    /// The result.
    pub measured: Measured,
}
