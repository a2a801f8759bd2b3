//! Taking part in a group at an engine of this process, for an application here or for a client.

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use treecast_ebpf::SlotMemory;
use treecast_proto::{CreateGroup, Input, MemberId, Sequence};

use crate::engine::root_socket::Source;
use crate::engine::{NewRing, Request, RingTerms, Shared};
use crate::memory::shared_group::{Channel, Placed, Side};
use crate::{GroupSettings, NodeError, tree};

/// Makes a group at its root. Where the kernel's packet path forwards, the answer is the socket that is its way in.
pub(crate) fn lead(
    shared: &Shared,
    settings: &GroupSettings,
    channel: &Arc<Channel>,
) -> Result<Option<UdpSocket>, NodeError> {
    settings.check()?;
    let children = tree::children(settings, shared.has_kernel())?;
    let payload_bytes_max = settings.payload_bytes_max();
    let start = Sequence(0);
    let input = Input::CreateGroup(Box::new(CreateGroup {
        group: settings.group,
        cookie: settings.cookie(),
        root: MemberId(settings.root as u32),
        members: settings.members.clone(),
        children,
        slots: settings.slots,
        payload_bytes_max,
        offload: settings.offload,
        start,
        admits: settings.admits,
        bytes_per_s_max: settings.bytes_per_s_max,
    }));
    let terms = RingTerms { slots: settings.slots, payload_bytes_max, start, offload: settings.offload };
    let new = shared.with(|engine| engine.make_ring(channel, terms));
    let NewRing { writer, reader, is_kernels } = new.map_err(NodeError::Daemon)?;
    let memory = writer.shared_memory().cloned();
    let source =
        memory.clone().filter(|_| is_kernels).map(|memory| open_source(shared, settings, memory)).transpose();
    if let Some(memory) = memory {
        channel.events.attach_kernel(memory);
    }
    let place = Placed {
        side: Mutex::new(Some(Side::Writer(writer))),
        member: settings.root as u32,
        offload: settings.offload,
    };
    channel.place(place);
    let entered = source.and_then(|source| {
        give(shared, channel, input, Some(Side::Reader(reader)))?;
        Ok(source)
    });
    // Of a group that is not there the kernel keeps nothing.
    if entered.is_err() && is_kernels {
        shared.with(|engine| engine.forget(settings.group));
    }
    entered
}

/// The way into the kernel's packet path for the packets of a group's root, which the application and its node have both.
fn open_source(
    shared: &Shared,
    settings: &GroupSettings,
    memory: SlotMemory,
) -> Result<UdpSocket, NodeError> {
    let (socket, cookie) = Source::open(settings.members[settings.root])?;
    let what = "cannot share the socket of the root's packets";
    let of_node = socket.try_clone().map_err(|source| NodeError::System { what, source })?;
    let of_node = Source::new(of_node, settings, memory).beside();
    shared.with(|engine| engine.set_root_socket(settings.group, cookie, of_node));
    Ok(socket)
}

/// Follows the root, as a member that it knows, or as one that asks to be one.
pub(crate) fn follow(
    shared: &Shared,
    settings: &GroupSettings,
    sends_join: bool,
    channel: &Arc<Channel>,
) -> Result<(), NodeError> {
    let root = root_of(settings)?;
    let input = Input::JoinGroup { group: settings.group, cookie: settings.cookie(), root, sends_join };
    give(shared, channel, input, None)
}

/// Where the root is.
pub(crate) fn root_of(settings: &GroupSettings) -> Result<SocketAddr, NodeError> {
    let no_root = || tree::no_such_root(settings.root, settings.members.len());
    settings.members.get(settings.root).copied().ok_or_else(no_root)
}

/// Gives the group to the engine.
fn give(
    shared: &Shared,
    channel: &Arc<Channel>,
    input: Input<'static>,
    side: Option<Side>,
) -> Result<(), NodeError> {
    shared.request_and_wait(Request::Enter { channel: Arc::clone(channel), input, side });
    match channel.state().refused.clone() {
        Some(refused) => Err(refused.into()),
        None => Ok(()),
    }
}
