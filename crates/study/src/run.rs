//! The runs of a figure.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::{Rng, RngExt};
use rand_pcg::Pcg64;
use rayon::prelude::*;
use treecast_fabric::{Cycles, Fabric, FabricSpec};
use treecast_plan::{Group, MemberId, MemberList, Placement, PlanError, PlanOptions, plan};
use treecast_sim::{Run, SimError, packet_count};

use crate::spec::{FigureSpec, PanelSpec, Point, SeriesSpec};
use crate::{Row, Setup, StudyError};

/// The stream of a seed that draws groups.
const GROUP_STREAM: u128 = 0x6772_6f75;

/// One multicast of a figure.
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

    /// Runs it.
    ///
    /// # Errors
    /// [`StudyError::Run`] where the fabric, the plan or the run is not possible.
    pub fn run(&self) -> Result<Row<'a>, StudyError> {
        self.run_on(&self.build()?)
    }

    fn build(&self) -> Result<Fabric, StudyError> {
        Fabric::from_spec(&self.fabric()).map_err(|error| self.error(&error))
    }

    fn run_on(&self, fabric: &Fabric) -> Result<Row<'a>, StudyError> {
        let Setup { message, destinations, parameters, .. } = self.setup();
        let hosts = fabric.topology().host_count();
        let placement = Placement::one_per_host(hosts);
        let (seed, root) = self.draw(hosts);
        let packets = packet_count(*message, parameters.packet_flits).map_err(|error| self.error(&error))?;
        let options = PlanOptions { order: self.series().order, packets };
        let plan = MemberList::Random(*destinations)
            .resolve(&placement, root, seed)
            .and_then(|destinations| Group::new(placement, root, destinations))
            .and_then(|group| Ok((plan(fabric, &group, &self.series().scheme, &options)?, group)));
        let (plan, group) = plan.map_err(|error: PlanError| self.error(&error))?;
        let offload = self.series().offload;
        let run = Run { fabric, plan: &plan, offload, message: *message, parameters, seed };
        let outcome = run.simulate().map_err(|error: SimError| self.error(&error))?;
        Ok(Row {
            spec: *self,
            seed,
            root,
            destinations: group.destinations().to_vec(),
            label: plan.label(),
            status: outcome.status,
            latency: outcome.latency,
            worms: outcome.worms,
            cpu_busy: outcome.cpu_busy.iter().copied().sum::<Cycles>(),
        })
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

/// Runs all of them on the threads of the current rayon pool, each fabric built once; `progress` is told how many are
/// done. The rows are in the order of the runs, the same on any number of threads.
///
/// # Errors
/// The first that [`RunSpec::run`] gives, in the order of the runs.
pub fn run_all<'a>(
    runs: &[RunSpec<'a>],
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Vec<Row<'a>>, StudyError> {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut firsts = Vec::new();
    let mut fabric_of = Vec::with_capacity(runs.len());
    for run in runs {
        let place = *places.entry(run.fabric().to_string()).or_insert_with(|| {
            firsts.push(run);
            firsts.len() - 1
        });
        fabric_of.push(place);
    }
    let fabrics: Vec<_> = firsts.par_iter().map(|run| run.build()).collect();
    let fabrics = fabrics.into_iter().collect::<Result<Vec<Fabric>, _>>()?;
    let done = AtomicUsize::new(0);
    let rows: Vec<_> = runs
        .par_iter()
        .zip(&fabric_of)
        .map(|(run, &place)| {
            let row = run.run_on(&fabrics[place]);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
            row
        })
        .collect();
    rows.into_iter().collect()
}
