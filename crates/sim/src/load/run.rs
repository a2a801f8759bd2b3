//! Multicasts under load: many at once, at random times from random sources.

use treecast_fabric::{Fabric, HostId};
use treecast_plan::{Group, MemberId, Order, Placement, PlanOptions, Planner, Scheme};
use treecast_terms::{Cycles, Flits};

use super::saturation::search;
use super::{
    Arrival, Arrivals, DestinationSets, LoadFigures, Measurement, Saturation, SaturationPoint, Traffic,
};
use crate::deadlock::Deadlock;
use crate::error::SimError;
use crate::multicast::packet_count;
use crate::multicast::{Multicast, MulticastParameters};
use crate::observer::{Observer, Slice};
use crate::outcome::Status;
use crate::parameters::Parameters;
use crate::setting::{Ending, Setting};
use crate::simulator::{Simulator, simulate};
use crate::trace::Trace;
use treecast_terms::Offload;

/// Multicasts under load: every host sends to sets of others, again and again.
#[derive(Debug, Clone, Copy)]
pub struct LoadRun<'a> {
    /// Where.
    pub fabric: &'a Fabric,
    /// How each multicast is spread.
    pub scheme: &'a Scheme,
    /// The order on which trees are built; `None` is [`Order::Id`], and fits the schemes that take no order too.
    pub order: Option<Order>,
    /// Who forwards.
    pub offload: Offload,
    /// The length of each message.
    pub message: Flits,
    /// How many destinations each multicast has.
    pub degree: u32,
    /// The applied load: flits of messages that a host wants to send in a cycle, each counted once whatever the degree.
    pub load: f64,
    /// When hosts send.
    pub arrivals: Arrivals,
    /// To whom.
    pub sets: DestinationSets,
    /// How many cycles are simulated.
    pub cycles: Cycles,
    /// How many of them pass before the measurement begins.
    pub warmup: Cycles,
    /// The most multicasts in flight at once, beyond which the run ends as saturated; `None` for
    /// [`BACKLOG_PER_HOST`] a host.
    pub backlog_max: Option<usize>,
    /// How fast everything is.
    pub parameters: &'a Parameters,
    /// The seed of the traffic and of all random choices.
    pub seed: u64,
    /// Who simulates.
    pub simulator: Simulator,
}

/// How many multicasts may be in flight at once for each host, unless a run says otherwise.
pub const BACKLOG_PER_HOST: usize = 64;

/// What a run under load gives.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOutcome {
    /// How it ended: `Incomplete` if no multicast was complete within the measurement.
    pub status: Status,
    /// What was measured.
    pub figures: LoadFigures,
    /// What waits for what, where the run ended deadlocked.
    pub deadlock: Option<Deadlock>,
    /// The cycle before which it ended.
    pub end: Cycles,
    /// How many events it took to simulate it, or cycles where every one is looked at.
    pub events: u64,
}

impl LoadRun<'_> {
    /// The load that all destinations of a host's multicasts together receive: the degree times the applied load.
    pub fn effective_load(&self) -> f64 {
        f64::from(self.degree) * self.load
    }

    /// The most multicasts that may be in flight at once.
    pub fn in_flight_max(&self) -> usize {
        let hosts = self.fabric.topology().host_count() as usize;
        self.backlog_max.unwrap_or(BACKLOG_PER_HOST * hosts)
    }

    /// Simulates it. Never hangs: it ends with its last cycle, or earlier if it saturates or deadlocks.
    ///
    /// # Errors
    /// [`SimError`] where the run is not possible: a load or degree out of range, a measurement of no cycles, a scheme
    /// that does not fit the fabric, a packet that does not fit an input buffer.
    pub fn simulate(&self) -> Result<LoadOutcome, SimError> {
        self.simulate_traced(None)
    }

    /// Simulates it, and records what CPUs, buses, network interfaces and links do.
    ///
    /// # Errors
    /// As [`LoadRun::simulate`].
    pub fn simulate_traced(&self, trace: Option<&mut Trace>) -> Result<LoadOutcome, SimError> {
        self.simulate_watched(trace, &mut |_| ())
    }

    /// The same; `progress` is told the cycle in which each multicast begins.
    ///
    /// # Errors
    /// As [`LoadRun::simulate`].
    pub fn simulate_watched(
        &self,
        trace: Option<&mut Trace>,
        progress: &mut dyn FnMut(Cycles),
    ) -> Result<LoadOutcome, SimError> {
        self.check()?;
        let topology = self.fabric.topology();
        let placement = Placement::one_per_host(topology.host_count());
        let setting = Setting {
            fabric: self.fabric,
            placement,
            parameters: self.parameters,
            seed: self.seed,
            last_cycle: self.cycles - Cycles(1),
            in_flight_max: self.in_flight_max(),
        };
        let window = self.warmup..self.cycles;
        let measurement = Measurement::new(window, self.degree, self.message, topology.link_count());
        let mut observer = (measurement, (trace, Progress(progress)));
        let multicasts = self.multicasts(placement)?;
        let (ending, events) = simulate(self.simulator, &setting, multicasts, &mut observer)?;
        let (end, deadlock) = match ending {
            Ending::BacklogLimit(cycle) => (cycle, None),
            Ending::Deadlocked(deadlock) => (deadlock.cycle.min(self.cycles), Some(deadlock)),
            Ending::Drained | Ending::CycleLimit => (self.cycles, None),
        };
        let (figures, backlog_grows) = observer.0.finish(topology, end);
        let status = if deadlock.is_some() {
            Status::Deadlocked
        } else if end < self.cycles || backlog_grows {
            Status::Saturated
        } else if figures.multicasts_measured == 0 {
            Status::Incomplete
        } else {
            Status::Complete
        };
        Ok(LoadOutcome { status, figures, deadlock, end, events })
    }

    /// Searches for the highest applied load that is sustained, up to what the links of hosts carry. `self.load` is not
    /// looked at; `precision` is relative, such as 0.02.
    ///
    /// # Errors
    /// As [`LoadRun::simulate`]; [`SimError::Precision`].
    pub fn find_saturation(&self, precision: f64) -> Result<Saturation, SimError> {
        self.find_saturation_watched(precision, |_| ())
    }

    /// The same; every load tried is told when it is done.
    ///
    /// # Errors
    /// As [`LoadRun::find_saturation`].
    pub fn find_saturation_watched(
        &self,
        precision: f64,
        mut watch: impl FnMut(&SaturationPoint),
    ) -> Result<Saturation, SimError> {
        if !(0.001..=0.5).contains(&precision) {
            return Err(SimError::Precision(precision));
        }
        // Every destination receives over one link of one flit a cycle.
        let load_max = 1.0 / f64::from(self.degree.max(1));
        search(load_max, precision, |load| {
            let outcome = Self { load, ..*self }.simulate()?;
            let point = SaturationPoint {
                applied_load: load,
                status: outcome.status,
                latency_mean_cycles: outcome.figures.latency_mean_cycles,
            };
            watch(&point);
            Ok(point)
        })
    }

    fn check(&self) -> Result<(), SimError> {
        let hosts = self.fabric.topology().host_count();
        if !(1..hosts).contains(&self.degree) {
            return Err(SimError::Degree { degree: self.degree, hosts });
        }
        packet_count(self.message, self.parameters.packet_flits)?;
        if !(f64::MIN_POSITIVE..=1.0).contains(&self.load) {
            return Err(SimError::Load(self.load));
        }
        // Later than this nothing can be told apart by cycles.
        if self.mean_gap() > 1e15 {
            return Err(SimError::Gap { message: self.message, load: self.load });
        }
        if self.warmup + Cycles(MEASURED_MIN) > self.cycles || self.cycles > CYCLES_MAX {
            return Err(SimError::Window { warmup: self.warmup, cycles: self.cycles });
        }
        match (self.arrivals, self.in_flight_max()) {
            (_, 0) => Err(SimError::NoBacklog),
            (Arrivals::Burst { size }, most) if size as usize > most => Err(SimError::Burst { size, most }),
            _ => Ok(()),
        }
    }

    fn mean_gap(&self) -> f64 {
        self.message.0 as f64 / self.load
    }

    /// All that hosts want to send, planned when it begins.
    fn multicasts(
        &self,
        placement: Placement,
    ) -> Result<impl Iterator<Item = Result<Multicast, SimError>>, SimError> {
        let Self { fabric, parameters, offload, message, .. } = *self;
        let packets = packet_count(message, parameters.packet_flits)?;
        let options = PlanOptions { order: self.order, packets };
        let mut planner = Planner::new(fabric, self.scheme, &options)?;
        let traffic = Traffic::new(
            placement.host_count(),
            self.degree,
            self.mean_gap(),
            self.arrivals,
            self.sets,
            self.seed,
        );
        Ok(traffic.map(move |Arrival { number, cycle, source, destinations }| {
            let destinations = destinations.into_iter().map(|host| MemberId(host.0)).collect();
            let group = Group::new(placement, MemberId(source.0), destinations)?;
            let plan = planner.plan(&group)?;
            let multicast = MulticastParameters { number, start: cycle, offload, message };
            Multicast::new(fabric, parameters, &plan, multicast)
        }))
    }
}

/// A measurement has at least a cycle a batch.
const MEASURED_MIN: u64 = 20;

/// More cycles cannot be asked for: times stay far from overflow.
const CYCLES_MAX: Cycles = Cycles(1 << 48);

/// Who is told how far a run is.
struct Progress<'a>(&'a mut dyn FnMut(Cycles));

impl Observer for Progress<'_> {
    fn started(&mut self, _: u64, cycle: Cycles) {
        self.0(cycle);
    }

    fn delivered(&mut self, _: u64, _: MemberId, _: HostId, _: Cycles) {}

    fn worked(&mut self, _: &Slice) {}

    fn carried(&mut self, _: &Slice, _: Flits) {}
}
