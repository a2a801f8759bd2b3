//! The events of a run that observers receive: which resource worked on which packet, and when.

use std::ops::ControlFlow;

use treecast_fabric::{Channel, HostId};
use treecast_plan::MemberId;
use treecast_terms::{Cycles, Flits};

/// A resource that does one piece of work at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Track {
    /// The CPU of a process.
    Cpu(MemberId),
    /// The I/O bus of a host.
    Bus(HostId),
    /// The processor of a host's network interface; with one for each direction, the one that
    /// sends.
    Nic(HostId),
    /// The processor of a host's network interface that receives, where each direction has one.
    NicReceive(HostId),
    /// A virtual channel of a directed link.
    Link(Channel),
}

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// A CPU sends a message.
    HostSend,
    /// A CPU receives a message.
    HostReceive,
    /// A CPU copies a message into shared memory.
    LocalSend,
    /// A CPU copies a message out of shared memory.
    LocalReceive,
    /// A bus moves a packet to the network interface.
    BusToNic,
    /// A bus moves a packet to host memory.
    BusToMemory,
    /// A network interface sends a copy of a packet.
    NicSend,
    /// A network interface receives a packet.
    NicReceive,
    /// A link carries a packet.
    Transfer,
}

impl Work {
    /// All of them with their names.
    pub const NAMES: [(&str, Self); 9] = [
        ("host send", Self::HostSend),
        ("host receive", Self::HostReceive),
        ("local send", Self::LocalSend),
        ("local receive", Self::LocalReceive),
        ("bus to NIC", Self::BusToNic),
        ("bus to memory", Self::BusToMemory),
        ("NIC send", Self::NicSend),
        ("NIC receive", Self::NicReceive),
        ("transfer", Self::Transfer),
    ];

    /// Whether it is done once per message and not once per packet. This is the work of CPUs.
    pub const fn is_of_message(self) -> bool {
        matches!(self, Self::HostSend | Self::HostReceive | Self::LocalSend | Self::LocalReceive)
    }
}

/// One piece of work, in the cycles `from..to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    /// The resource.
    pub track: Track,
    /// The kind of work.
    pub work: Work,
    /// Which multicast it belongs to, from 0.
    pub multicast: u64,
    /// Which worm of its plan, from 0. Where one piece of work serves several worms, the first of
    /// them.
    pub worm: u32,
    /// Which packet, from 0. Meaningless where the work [is of the whole
    /// message](Work::is_of_message).
    pub packet: u32,
    /// The first cycle.
    pub from: Cycles,
    /// The cycle after the last.
    pub to: Cycles,
}

/// Receives the work of a run, such as a [`Trace`](crate::Trace).
///
/// Slices of one track come in the order of their starts, and do not overlap; tracks interleave.
pub trait Recorder {
    /// Adds a slice.
    fn record(&mut self, slice: &Slice);
}

/// Receives the events of a simulation.
///
/// Work is reported when it starts, in the order of cycles. With wormhole switching, a transfer
/// over a link is reported when the tail flit has left, or when the run ends. On one track, times
/// never decrease.
pub(crate) trait Observer {
    /// A process wants to send a multicast.
    fn started(&mut self, multicast: u64, cycle: Cycles);
    /// A process has received a multicast.
    fn delivered(&mut self, multicast: u64, member: MemberId, host: HostId, cycle: Cycles);
    /// A piece of work starts on a CPU, a bus or a network interface. It takes at least one cycle.
    fn worked(&mut self, slice: &Slice);
    /// A link carries `flits` flits of a packet during the slice.
    fn carried(&mut self, slice: &Slice, flits: Flits);
    /// The simulation has reached a cycle. Called a few times per millisecond of its work; `Break`
    /// ends the run with
    /// [`SimError::Interrupted`](crate::SimError::Interrupted).
    fn reached(&mut self, _: Cycles) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// What a run that is watched calls with the cycle that it has reached, a few times per millisecond
/// of its work. `Break` ends the run with [`SimError::Interrupted`](crate::SimError::Interrupted).
pub type Watch<'a> = dyn FnMut(Cycles) -> ControlFlow<()> + 'a;

/// A watch that lets a run go on to its end.
pub fn unwatched(_: Cycles) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Calls a watch.
pub(crate) struct Watched<'a, 'b>(pub &'a mut Watch<'b>);

impl Observer for Watched<'_, '_> {
    fn started(&mut self, _: u64, _: Cycles) {}

    fn delivered(&mut self, _: u64, _: MemberId, _: HostId, _: Cycles) {}

    fn worked(&mut self, _: &Slice) {}

    fn carried(&mut self, _: &Slice, _: Flits) {}

    fn reached(&mut self, cycle: Cycles) -> ControlFlow<()> {
        self.0(cycle)
    }
}

/// Both observers receive every event.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn started(&mut self, multicast: u64, cycle: Cycles) {
        self.0.started(multicast, cycle);
        self.1.started(multicast, cycle);
    }

    fn delivered(&mut self, multicast: u64, member: MemberId, host: HostId, cycle: Cycles) {
        self.0.delivered(multicast, member, host, cycle);
        self.1.delivered(multicast, member, host, cycle);
    }

    fn worked(&mut self, slice: &Slice) {
        self.0.worked(slice);
        self.1.worked(slice);
    }

    fn carried(&mut self, slice: &Slice, flits: Flits) {
        self.0.carried(slice, flits);
        self.1.carried(slice, flits);
    }

    fn reached(&mut self, cycle: Cycles) -> ControlFlow<()> {
        self.0.reached(cycle)?;
        self.1.reached(cycle)
    }
}

/// A recorder receives all work that takes time.
impl Observer for Option<&mut (dyn Recorder + '_)> {
    fn started(&mut self, _: u64, _: Cycles) {}

    fn delivered(&mut self, _: u64, _: MemberId, _: HostId, _: Cycles) {}

    fn worked(&mut self, slice: &Slice) {
        if let Some(recorder) = self {
            recorder.record(slice);
        }
    }

    fn carried(&mut self, slice: &Slice, _: Flits) {
        self.worked(slice);
    }
}
