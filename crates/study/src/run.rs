//! The runs of a figure.

use std::fmt::Write as _;

use rand::{Rng, RngExt};
use rand_pcg::Pcg64;
use treecast_fabric::generate::Irregular;
use treecast_fabric::{Cycles, Fabric, FabricSpec};
use treecast_plan::{Group, MemberId, MemberList, Placement, PlanOptions, plan};
use treecast_sim::{LoadRun, Parameters, Run, SimError, Simulator, Status, packet_count};

use crate::journal::digest;
use crate::measured::{Measured, Multicast, Quantities};
use crate::spec::{FigureSpec, Measure, PanelSpec, Point, SeriesSpec};
use crate::{Row, Setup, StudyError};

/// The stream of a seed that draws groups.
const GROUP_STREAM: u128 = 0x6772_6f75;

/// How many loads a search for saturation tries, about, and where it finds it, in flits that a host receives in a cycle:
/// for guesses at what runs cost.
const PROBES: u64 = 10;
const SATURATION_GUESS: f64 = 0.05;

/// What a run simulates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// One multicast on an idle fabric.
    Multicast,
    /// Many at once.
    Load {
        /// The load that every host applies, in flits of messages a cycle.
        applied_load: f64,
    },
    /// Many at once, at one load after the other, in search of the highest that is sustained.
    Saturation,
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
    /// The figure that it belongs to.
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

    /// What it depends on besides its scheme and its group.
    pub fn setup(&self) -> &'a Setup {
        &self.point.setup
    }

    /// Which of the groups on its topology it has.
    pub fn group_index(&self) -> u32 {
        self.group_index
    }

    /// The seed of its topology, if that is drawn.
    pub fn topology_seed(&self) -> Option<u64> {
        self.setup().fabrics[self.topology_index].0
    }

    /// Its fabric.
    pub fn fabric(&self) -> FabricSpec {
        self.setup().fabrics[self.topology_index].1
    }

    /// The seed of its group and of its random choices, and its root among so many hosts.
    ///
    /// They depend on the topology's seed, the number of the group and the number of destinations alone: all series and
    /// panels multicast among the same hosts.
    fn draw(&self, hosts: u32) -> (u64, MemberId) {
        let topology = u128::from(self.topology_seed().unwrap_or(0)) << 64;
        let group = u128::from(self.group_index) << 32 | u128::from(self.setup().destinations);
        let mut random = Pcg64::new(topology | group, GROUP_STREAM);
        (random.next_u64(), MemberId(random.random_range(0..hosts)))
    }

    /// The fabric with its routing, in a line.
    pub(crate) fn fabric_line(&self) -> String {
        format!("{} {}", self.fabric(), self.setup().routing)
    }

    /// What is simulated.
    pub fn kind(&self) -> Kind {
        match (self.figure.measure, self.setup().applied_load) {
            (Measure::Saturation, _) => Kind::Saturation,
            (_, Some(applied_load)) => Kind::Load { applied_load },
            (_, None) => Kind::Multicast,
        }
    }

    /// About how long it takes beside other runs: the packets that it brings to hosts.
    pub fn cost(&self) -> u64 {
        let Setup { message, destinations, parameters, traffic, .. } = self.setup();
        let packets = |load: f64| {
            let flits = load * f64::from(*destinations) * hosts(&self.fabric()) * traffic.cycles.0 as f64;
            (flits / parameters.packet_flits.min(*message).0 as f64) as u64
        };
        match self.kind() {
            Kind::Multicast => message.0.div_ceil(parameters.packet_flits.0) * u64::from(*destinations),
            Kind::Load { applied_load } => packets(applied_load).max(1),
            Kind::Saturation => PROBES * packets(SATURATION_GUESS / f64::from(*destinations)).max(1),
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`StudyError::Run`] where the fabric, the plan or the run is not possible.
    pub fn run(&self) -> Result<Row<'a>, StudyError> {
        self.run_on(&self.build()?)
    }

    pub(crate) fn build(&self) -> Result<Fabric, StudyError> {
        let fabric =
            self.fabric().topology().and_then(|topology| Fabric::new(topology, self.setup().routing));
        fabric.map_err(|error| self.error(&error))
    }

    pub(crate) fn run_on(&self, fabric: &Fabric) -> Result<Row<'a>, StudyError> {
        let (seed, root) = self.draw(fabric.topology().host_count());
        let label = self.series().scheme.label_on(fabric, self.series().order);
        let ran = match self.kind() {
            Kind::Multicast => self.multicast(fabric, seed, root),
            Kind::Load { applied_load } => self.load(fabric, seed, applied_load),
            Kind::Saturation => self.saturation(fabric, seed),
        };
        let (status, quantities) = ran.map_err(|error| self.error(&error))?;
        Ok(Row { spec: *self, measured: Measured { seed, label, status, quantities } })
    }

    fn multicast(
        &self,
        fabric: &Fabric,
        seed: u64,
        root: MemberId,
    ) -> Result<(Status, Quantities), SimError> {
        let Setup { message, destinations, parameters, .. } = self.setup();
        let SeriesSpec { scheme, order, offload, .. } = self.series();
        let placement = Placement::one_per_host(fabric.topology().host_count());
        let packets = packet_count(*message, parameters.packet_flits)?;
        let destinations = MemberList::Random(*destinations).resolve(&placement, root, seed)?;
        let group = Group::new(placement, root, destinations)?;
        let plan = plan(fabric, &group, scheme, &PlanOptions { order: *order, packets })?;
        let run = Run {
            fabric,
            plan: &plan,
            offload: *offload,
            message: *message,
            parameters,
            seed,
            simulator: Simulator::Event,
        };
        let outcome = run.simulate()?;
        let quantities = Quantities::Multicast(Multicast {
            root,
            destinations: group.destinations().to_vec(),
            latency: outcome.latency,
            worms: outcome.worms,
            cpu_busy: outcome.cpu_busy.iter().copied().sum::<Cycles>(),
        });
        Ok((outcome.status, quantities))
    }

    fn load(&self, fabric: &Fabric, seed: u64, load: f64) -> Result<(Status, Quantities), SimError> {
        let outcome = LoadRun { load, ..self.load_run(fabric, seed) }.simulate()?;
        Ok((outcome.status, Quantities::Load(outcome.figures)))
    }

    fn saturation(&self, fabric: &Fabric, seed: u64) -> Result<(Status, Quantities), SimError> {
        let found = self.load_run(fabric, seed).find_saturation(self.setup().traffic.precision)?;
        let status = if found.applied_load.is_some() { Status::Complete } else { Status::Saturated };
        let quantities = Quantities::Saturation {
            applied_load: found.applied_load,
            deadlocks: found.points.iter().filter(|point| point.status == Status::Deadlocked).count() as u32,
            points: found.points.len() as u32,
        };
        Ok((status, quantities))
    }

    /// Its run under load, but for the load.
    fn load_run(&self, fabric: &'a Fabric, seed: u64) -> LoadRun<'a> {
        let Setup { message, destinations, parameters, traffic, .. } = self.setup();
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

    /// A digest of all that determines what it gives: the same for the same run, in whatever figure it stands.
    pub(crate) fn digest(&self) -> u128 {
        // What the runs of a point share is put together once.
        let of_point = self.point.digest.get_or_init(|| {
            let Setup { fabrics: _, routing, message, destinations, parameters, .. } = self.setup();
            let SeriesSpec { scheme, offload, .. } = self.series();
            let order = self.series().order_used().map(|order| order.to_string());
            let mut text = format!("{routing} {scheme} {order:?} {offload} {message} {destinations}");
            for key in Parameters::keys() {
                let _ = write!(text, " {}={}", key.name, key.value(parameters));
            }
            if self.kind() != Kind::Multicast {
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

/// How many hosts a fabric has.
fn hosts(fabric: &FabricSpec) -> f64 {
    match *fabric {
        FabricSpec::Irregular(Irregular { hosts, .. }) | FabricSpec::Star(hosts) => f64::from(hosts),
        FabricSpec::Grid(_, radix, dimensions) => f64::from(radix).powf(f64::from(dimensions)),
        FabricSpec::FatTree(k) => f64::from(k).powf(3.0) / 4.0,
    }
}
