//! One multicast, all-reduce or barrier on an otherwise idle fabric.

use treecast_fabric::{Fabric, HostId};
use treecast_plan::{MemberId, Plan};
use treecast_terms::{Cycles, Flits};

use crate::error::{SimError, check_offload};
use crate::multicast::{BARRIER_MESSAGE, Multicast, MulticastParameters, packet_count};
use crate::observer::{Observer, Recorder, Slice, Track, Watch, Watched, unwatched};
use crate::outcome::{Delivery, Outcome, Status};
use crate::parameters::Parameters;
use crate::setting::{Ending, Setting};
use crate::simulator::{Simulator, simulate};
use treecast_terms::{Offload, Operation};

/// The simulation of one multicast, all-reduce or barrier. The root's process starts to send at
/// cycle 0; all processes start to contribute at cycle 0.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The fabric.
    pub fabric: &'a Fabric,
    /// The plan that is carried out.
    pub plan: &'a Plan,
    /// What the members do: the plan is the way down of an all-reduce or a barrier.
    pub operation: Operation,
    /// Which part of a host forwards.
    pub offload: Offload,
    /// The length of the message. It is segmented into packets. A contribution has the same length,
    /// and is one packet; that of a barrier has [`BARRIER_MESSAGE`](crate::BARRIER_MESSAGE).
    pub message: Flits,
    /// The parameters of hosts, network interfaces and switches.
    pub parameters: &'a Parameters,
    /// The seed of all random choices. Without a random policy it has no effect.
    pub seed: u64,
    /// The simulator.
    pub simulator: Simulator,
}

impl Run<'_> {
    /// Simulates the operation. The run ends when no event is left, or at
    /// [`Parameters::cycles_max`].
    ///
    /// # Errors
    /// [`SimError`] for an empty message, a message of too many packets, a contribution of several
    /// packets, a barrier with values, a packet larger than an input buffer, a plan that does not
    /// fit the fabric, offload `switch`, and wormhole switching with a simulator that does not
    /// support it.
    pub fn simulate(&self) -> Result<Outcome, SimError> {
        self.simulate_recorded(None)
    }

    /// Simulates the operation, and records the work of CPUs, buses, network interfaces and links.
    ///
    /// # Errors
    /// As [`Run::simulate`].
    pub fn simulate_recorded(&self, recorder: Option<&mut dyn Recorder>) -> Result<Outcome, SimError> {
        self.simulate_watched(recorder, &mut unwatched)
    }

    /// As [`Run::simulate_recorded`]; calls `watch`, which may end the run.
    ///
    /// # Errors
    /// As [`Run::simulate`]; [`SimError::Interrupted`].
    pub fn simulate_watched(
        &self,
        recorder: Option<&mut dyn Recorder>,
        watch: &mut Watch,
    ) -> Result<Outcome, SimError> {
        check_offload(self.offload)?;
        packet_count(self.message, self.parameters.packet_flits)?;
        if self.operation == Operation::Barrier && self.message != BARRIER_MESSAGE {
            return Err(SimError::BarrierWithValues(self.message));
        }
        self.plan.check(self.fabric)?;
        let setting = Setting {
            fabric: self.fabric,
            placement: self.plan.placement().clone(),
            parameters: self.parameters,
            seed: self.seed,
            last_cycle: self.parameters.cycles_max,
            in_flight_max: 1,
        };
        let multicast = MulticastParameters {
            number: 0,
            start: Cycles::ZERO,
            offload: self.offload,
            message: self.message,
            reduces: self.reduces(),
        };
        let multicast = Multicast::new(self.fabric, self.parameters, self.plan, multicast);
        let mut observer = (Record::new(self), (recorder, Watched(watch)));
        let (ending, _) = simulate(self.simulator, &setting, std::iter::once(multicast), &mut observer)?;
        Ok(observer.0.outcome(self, ending))
    }

    /// Whether contributions go up the tree first.
    fn reduces(&self) -> bool {
        self.operation != Operation::Broadcast
    }

    /// The number of deliveries of a complete run. The root, too, receives the result of a
    /// reduction.
    fn delivery_count(&self) -> usize {
        self.plan.destination_count() + usize::from(self.reduces())
    }
}

/// The observer that collects the outcome of a run.
struct Record<'a> {
    run: &'a Run<'a>,
    deliveries: Vec<Delivery>,
    cpu_busy: Vec<Cycles>,
    /// Whether each worm has been injected.
    injected: Vec<bool>,
}

impl<'a> Record<'a> {
    fn new(run: &'a Run) -> Self {
        let contributions = if run.reduces() { run.plan.destination_count() } else { 0 };
        Self {
            run,
            deliveries: Vec::with_capacity(run.delivery_count()),
            cpu_busy: vec![Cycles::ZERO; run.plan.placement().host_count() as usize],
            injected: vec![false; run.plan.worms().len() + contributions],
        }
    }

    fn outcome(mut self, run: &Run, ending: Ending) -> Outcome {
        self.deliveries.sort_unstable_by_key(|delivery| delivery.member);
        let complete = self.deliveries.len() == run.delivery_count();
        let (status, deadlock) = match ending {
            Ending::Deadlocked(deadlock) => (Status::Deadlocked, Some(deadlock)),
            _ if complete => (Status::Complete, None),
            _ => (Status::Incomplete, None),
        };
        let latency = self.deliveries.iter().map(|delivery| delivery.cycle).max();
        Outcome {
            status,
            latency: latency.filter(|_| status == Status::Complete),
            deliveries: self.deliveries,
            worms: self.injected.iter().filter(|&&injected| injected).count() as u32,
            cpu_busy: self.cpu_busy,
            deadlock,
        }
    }
}

impl Observer for Record<'_> {
    fn started(&mut self, _: u64, _: Cycles) {}

    fn delivered(&mut self, _: u64, member: MemberId, host: HostId, cycle: Cycles) {
        self.deliveries.push(Delivery { member, host, cycle });
    }

    fn worked(&mut self, slice: &Slice) {
        if let Track::Cpu(member) = slice.track {
            let host = self.run.plan.placement().host_of(member);
            // The run may end before the work does.
            let end = slice.to.min(self.run.parameters.cycles_max);
            self.cpu_busy[host.index()] += end - slice.from;
        }
    }

    fn carried(&mut self, slice: &Slice, _: Flits) {
        self.injected[slice.worm as usize] = true;
    }
}
