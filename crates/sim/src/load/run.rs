//! Runs under load: many multicasts at once, at random times from random sources.

use treecast_fabric::{Fabric, HostId};
use treecast_plan::{Group, MemberId, Order, Placement, PlanOptions, Planner, Scheme};
use treecast_terms::{Cycles, Flits};

use super::saturation::search;
use super::{
    Arrival, Arrivals, DestinationSets, LoadFigures, Measurement, Saturation, SaturationPoint, ShortWindow,
    Traffic,
};
use crate::deadlock::Deadlock;
use crate::error::{SimError, check_offload};
use crate::multicast::packet_count;
use crate::multicast::{Multicast, MulticastParameters};
use crate::observer::{Recorder, Watch, Watched, unwatched};
use crate::outcome::Status;
use crate::parameters::Parameters;
use crate::setting::{Ending, Setting};
use crate::simulator::{Simulator, simulate};
use treecast_terms::Offload;

/// A run under load: every host multicasts to sets of other hosts, again and again.
#[derive(Debug, Clone, Copy)]
pub struct LoadRun<'a> {
    /// The fabric.
    pub fabric: &'a Fabric,
    /// The scheme of each multicast.
    pub scheme: &'a Scheme,
    /// The order on which trees are built. `None` is [`Order::Id`], and is valid also for schemes
    /// that take no order.
    pub order: Option<Order>,
    /// Which part of a host forwards.
    pub offload: Offload,
    /// The length of each message.
    pub message: Flits,
    /// The number of destinations of each multicast.
    pub degree: u32,
    /// The offered load in flits/host/cycle: message flits offered by a host per cycle, each
    /// counted once whatever the degree.
    pub load: f64,
    /// The arrival process of each host.
    pub arrivals: Arrivals,
    /// The choice of destinations.
    pub sets: DestinationSets,
    /// The number of simulated cycles.
    pub cycles: Cycles,
    /// The warm-up: cycles before the measurement window.
    pub warmup: Cycles,
    /// The bound of multicasts in flight, beyond which the run ends as saturated; `None` for
    /// [`LoadRun::BACKLOG_PER_HOST`] per host.
    pub backlog_max: Option<usize>,
    /// The parameters of hosts, network interfaces and switches.
    pub parameters: &'a Parameters,
    /// The seed of the traffic and of all random choices.
    pub seed: u64,
    /// The simulator.
    pub simulator: Simulator,
}

/// The outcome of a run under load.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOutcome {
    /// How it ended: `Incomplete` if no multicast was completed in the window.
    pub status: Status,
    /// The measured figures.
    pub figures: LoadFigures,
    /// The utilization of each link, by its number, links inside nodes included.
    pub utilization_of_links: Vec<f64>,
    /// The deadlock, if the run ended in one.
    pub deadlock: Option<Deadlock>,
    /// The cycle at which it ended; that cycle was not simulated.
    pub end: Cycles,
    /// The number of simulated events ([`Simulator::Event`]) or cycles ([`Simulator::Cycle`]).
    pub events: u64,
}

impl LoadRun<'_> {
    /// The ejection load, which all destinations of a host's multicasts receive together: the
    /// degree times the offered load.
    pub fn ejection_load(&self) -> f64 {
        f64::from(self.degree) * self.load
    }

    /// The bound of multicasts in flight.
    pub fn in_flight_max(&self) -> usize {
        let hosts = self.fabric.topology().host_count() as usize;
        self.backlog_max.unwrap_or(Self::BACKLOG_PER_HOST * hosts)
    }

    /// Simulates the run. It ends with its last cycle, or earlier if the backlog exceeds its bound
    /// or the worms deadlock.
    ///
    /// # Errors
    /// [`SimError`] for a load or degree out of range, a window that is too short, a scheme that
    /// does not fit the fabric, and a packet larger than an input buffer.
    pub fn simulate(&self) -> Result<LoadOutcome, SimError> {
        self.simulate_recorded(None)
    }

    /// Simulates the run, and records the work of CPUs, buses, network interfaces and links.
    ///
    /// # Errors
    /// As [`LoadRun::simulate`].
    pub fn simulate_recorded(&self, recorder: Option<&mut dyn Recorder>) -> Result<LoadOutcome, SimError> {
        self.simulate_watched(recorder, &mut unwatched)
    }

    /// As [`LoadRun::simulate_recorded`]; calls `watch`, which may end the run.
    ///
    /// # Errors
    /// As [`LoadRun::simulate`]; [`SimError::Interrupted`].
    pub fn simulate_watched(
        &self,
        recorder: Option<&mut dyn Recorder>,
        watch: &mut Watch,
    ) -> Result<LoadOutcome, SimError> {
        self.check()?;
        let topology = self.fabric.topology();
        let placement = Placement::one_per_host(topology.host_count());
        let setting = Setting {
            fabric: self.fabric,
            placement: placement.clone(),
            parameters: self.parameters,
            seed: self.seed,
            last_cycle: self.cycles - Cycles(1),
            in_flight_max: self.in_flight_max(),
        };
        let window = self.warmup..self.cycles;
        let measurement = Measurement::new(window, self.degree, self.message, topology.link_count());
        let mut observer = (measurement, (recorder, Watched(watch)));
        let multicasts = self.multicasts(placement)?;
        let (ending, events) = simulate(self.simulator, &setting, multicasts, &mut observer)?;
        let (end, deadlock) = match ending {
            Ending::BacklogLimit(cycle) => (cycle, None),
            Ending::Deadlocked(deadlock) => (deadlock.cycle.min(self.cycles), Some(deadlock)),
            Ending::Drained | Ending::CycleLimit => (self.cycles, None),
        };
        let (figures, utilization_of_links, backlog_grows) = observer.0.finish(topology, end);
        let status = if deadlock.is_some() {
            Status::Deadlocked
        } else if end < self.cycles || backlog_grows {
            Status::Saturated
        } else if figures.multicasts_measured == 0 {
            Status::Incomplete
        } else {
            Status::Complete
        };
        Ok(LoadOutcome { status, figures, utilization_of_links, deadlock, end, events })
    }

    /// Searches for the highest offered load that is sustained, up to the bandwidth of ejection
    /// links. `self.load` is ignored; `precision` is relative, one of [`LoadRun::PRECISIONS`].
    ///
    /// # Errors
    /// As [`LoadRun::simulate`]; [`SimError::Precision`].
    pub fn find_saturation(&self, precision: f64) -> Result<Saturation, SimError> {
        self.find_saturation_watched(precision, |_| (), &mut unwatched)
    }

    /// As [`LoadRun::find_saturation`]; calls `tried` with every load tried, when its run has
    /// ended, and `watch` while a load is tried, which may end the search.
    ///
    /// # Errors
    /// As [`LoadRun::find_saturation`]; [`SimError::Interrupted`].
    pub fn find_saturation_watched(
        &self,
        precision: f64,
        mut tried: impl FnMut(&SaturationPoint),
        watch: &mut Watch,
    ) -> Result<Saturation, SimError> {
        if !Self::PRECISIONS.contains(&precision) {
            return Err(SimError::Precision(precision));
        }
        // Every destination receives over one link of one flit per cycle.
        let load_max = 1.0 / f64::from(self.degree.max(1));
        search(load_max, precision, |load| {
            let outcome = Self { load, ..*self }.simulate_watched(None, watch)?;
            let point = SaturationPoint {
                offered_load: load,
                status: outcome.status,
                latency_mean_cycles: outcome.figures.latency_mean_cycles,
            };
            tried(&point);
            Ok(point)
        })
    }

    /// The warning that the window of a run is too short for the latencies that it has measured.
    pub fn warning(&self, outcome: &LoadOutcome) -> Option<ShortWindow> {
        let latency = outcome.figures.latency_mean_cycles.filter(|_| outcome.end == self.cycles);
        ShortWindow::check(self.cycles, self.warmup, latency, false)
    }

    /// The warning that the window is too short for the latencies at the saturation load that a
    /// search has found.
    pub fn saturation_warning(&self, saturation: &Saturation) -> Option<ShortWindow> {
        let latency = saturation.found().and_then(|point| point.latency_mean_cycles);
        ShortWindow::check(self.cycles, self.warmup, latency, true)
    }

    fn check(&self) -> Result<(), SimError> {
        let hosts = self.fabric.topology().host_count();
        if !(1..hosts).contains(&self.degree) {
            return Err(SimError::Degree { degree: self.degree, hosts });
        }
        self.permutation()?;
        check_offload(self.offload)?;
        packet_count(self.message, self.parameters.packet_flits)?;
        if !(f64::MIN_POSITIVE..=1.0).contains(&self.load) {
            return Err(SimError::Load(self.load));
        }
        // A double does not resolve single cycles beyond this.
        if self.mean_gap() > 1e15 {
            return Err(SimError::Gap { message: self.message, load: self.load });
        }
        if self.warmup + Self::WINDOW_MIN > self.cycles || self.cycles > Self::CYCLES_MAX {
            return Err(SimError::Window { warmup: self.warmup, cycles: self.cycles });
        }
        match (self.arrivals, self.in_flight_max()) {
            (_, 0) => Err(SimError::NoBacklog),
            (Arrivals::Burst { size }, most) if size as usize > most => Err(SimError::Burst { size, most }),
            _ => Ok(()),
        }
    }

    /// The destination of each host, if the destination sets are a permutation.
    fn permutation(&self) -> Result<Vec<HostId>, SimError> {
        let DestinationSets::Permutation(permutation) = self.sets else { return Ok(Vec::new()) };
        if self.degree != 1 {
            return Err(SimError::PatternDegree { pattern: permutation.name(), degree: self.degree });
        }
        let topology = self.fabric.topology();
        let hosts = topology.host_count();
        permutation.destinations(topology).map_err(|expected| SimError::Pattern {
            pattern: permutation.name(),
            expected,
            hosts,
        })
    }

    fn mean_gap(&self) -> f64 {
        self.message.0 as f64 / self.load
    }

    /// The multicasts of all hosts, each planned when it starts.
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
            &self.permutation()?,
            self.seed,
        );
        Ok(traffic.map(move |Arrival { number, cycle, source, destinations }| {
            let destinations = destinations.into_iter().map(|host| MemberId(host.0)).collect();
            let group = Group::new(placement.clone(), MemberId(source.0), destinations)?;
            let plan = planner.plan(&group)?;
            let multicast = MulticastParameters { number, start: cycle, offload, message, reduces: false };
            Multicast::new(fabric, parameters, &plan, multicast)
        }))
    }
}
