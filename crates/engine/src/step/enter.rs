//! Taking part in a group at the engine of this process, for an application of this process or for
//! a daemon's client.

use std::net::UdpSocket;
use std::sync::{Arc, Mutex};

use treecast_ebpf::{EbpfError, KernelGroup};
use treecast_proto::{CreateGroup, Input, MemberId, Offload, Sequence, StateSize};
use treecast_shm::settings::RingSettings;
use treecast_shm::shared_group::{Placement, RingSide, SharedGroup};

use super::backend::Backend;
use super::charge::state_bytes;
use super::rings::NewRing;
use super::root_socket::RootSocket;
use super::{EngineHandle, KernelRoot, Request, RootRing};
use crate::random;
use crate::settings::config::GroupConfig;
use crate::settings::error::NodeError;
use crate::settings::stream_settings::StreamSettings;

/// Creates a group at its root, with the children of each host. Where the kernel's packet path
/// sends, the result is the socket by which packets enter it.
///
/// # Errors
/// The reason why memory or random numbers for the group could not be had.
pub fn create_group(
    handle: &EngineHandle,
    config: &GroupConfig,
    children: Vec<Vec<MemberId>>,
    shared_group: &Arc<SharedGroup>,
) -> Result<Option<UdpSocket>, NodeError> {
    let (settings, offload) = (config.settings(), config.offload().offload);
    let payload_bytes_max = config.payload_bytes_max();
    let start = Sequence(0);
    let create = CreateGroup {
        group: settings.group,
        key: config.key(),
        session: config.session(),
        authentication: config.authentication(),
        integrity: settings.integrity,
        transport: config.transport(),
        is_encrypted: settings.is_encrypted,
        root: MemberId(config.hosts().host_of(settings.root) as u32),
        members: config.hosts().addresses().to_vec(),
        readers: config.hosts().shared(),
        children,
        slots: config.slots(),
        payload_bytes_max,
        offload,
        multicast: config.multicast(),
        start,
        admits: settings.admits,
        members_max: config.members_max(),
        bytes_per_s_max: settings.bytes_per_s_max,
    };
    let state_bytes = state_bytes(create.state_size(), handle.has_kernel());
    let input = Input::CreateGroup(Box::new(create));
    let transport = config.transport();
    let (slots, encrypted_session) = (config.slots(), config.encrypted_session());
    let ring = RingSettings { slots, payload_bytes_max, start, offload, transport, encrypted_session };
    let made = handle.rings().make(shared_group, ring, state_bytes);
    let NewRing { writer, reader, kernel } = made.map_err(NodeError::Daemon)?;
    let memory = writer.shared_memory().cloned();
    let (socket, kernel) = match kernel {
        // Data by multicast is sent in user space.
        Some(group) if offload == Offload::Switch => (None, Some(KernelRoot { group, socket: None })),
        kernel => kernel.and_then(|kernel| open_root_socket(handle, config, kernel)).unzip(),
    };
    if let Some(memory) = memory {
        shared_group.events.attach_kernel(memory);
    }
    shared_group.set_placement(Placement {
        side: Mutex::new(Some(RingSide::Writer(writer))),
        member: config.hosts().host_of(settings.root) as u32,
        offload,
        encrypted_session,
    });
    enter(handle, config, shared_group, input, Some(Box::new(RootRing { reader, kernel })))?;
    Ok(socket)
}

/// Opens the socket by which the root's packets enter the kernel's packet path. Where that is
/// impossible, user space runs the group: the root's address may be on an interface without
/// Ethernet.
fn open_root_socket(
    handle: &EngineHandle,
    config: &GroupConfig,
    group: KernelGroup,
) -> Option<(UdpSocket, KernelRoot)> {
    let open = || {
        let (socket, cookie) = RootSocket::open(config.root())?;
        let what = "cannot share the socket of the root's packets";
        let shared = socket.try_clone().map_err(|source| EbpfError::System { what, source })?;
        let shared = RootSocket::new(shared, config, group.memory().clone()).for_engine();
        Ok::<_, EbpfError>((socket, cookie, shared))
    };
    match open() {
        Ok((socket, cookie, shared)) => Some((socket, KernelRoot { group, socket: Some((cookie, shared)) })),
        Err(error) => {
            tracing::warn!(%error, "group {} runs in user space only", group.id());
            handle.rings().unmake(group);
            None
        }
    }
}

/// Becomes a member of the root's group.
///
/// # Errors
/// As [`create_group`].
pub fn join_group(
    handle: &EngineHandle,
    config: &GroupConfig,
    shared_group: &Arc<SharedGroup>,
) -> Result<(), NodeError> {
    let group = config.settings().group;
    charge_new(handle, shared_group)?;
    let seed = random::words().map_err(NodeError::no_random_number)?;
    let input = Input::JoinGroup { group, key: config.key(), root: config.root(), seed };
    enter(handle, config, shared_group, input, None)
}

/// Charges the user of a daemon's client for a group whose slots and children are not known yet.
/// What is known already stays charged.
///
/// # Errors
/// [`NodeError::Daemon`], if that user may not have it.
pub fn charge_new(handle: &EngineHandle, shared_group: &SharedGroup) -> Result<(), NodeError> {
    let Some(clients) = shared_group.clients.as_ref().filter(|clients| !clients.is_charged()) else {
        return Ok(());
    };
    let bytes = state_bytes(StateSize::default(), handle.has_kernel());
    clients.charge_state(bytes).map_err(NodeError::Daemon)
}

/// Passes the group to the engine.
fn enter(
    handle: &EngineHandle,
    config: &GroupConfig,
    shared_group: &Arc<SharedGroup>,
    input: Input<'static>,
    root_ring: Option<Box<RootRing>>,
) -> Result<(), NodeError> {
    let (shared, stream_settings) = (Arc::clone(shared_group), StreamSettings::of(config.settings()));
    handle.request_and_wait(Request::Enter { shared_group: shared, input, stream_settings, root_ring });
    match shared_group.state().refused.clone() {
        Some(refused) => Err(refused.into()),
        None => Ok(()),
    }
}
