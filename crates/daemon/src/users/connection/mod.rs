//! The daemon's end of the connection of one client: its requests, and its groups.

mod entering;

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use treecast_proto::{
    AbortReason, Contribution, Ending, Eviction, GroupId, Input, MemberId, Process, Sequence, SessionId,
};

use super::{PeerCredentials, User};
use crate::account::Lease;
use crate::client_link::{ClientLink, ClientWaker, Lent, LinkedGroup, Others};
use crate::messages::{
    AbortMessage, ClientMessage, DaemonMessage, GroupUpdate, HostLossMessage, LOSSES_PER_UPDATE_MAX,
    MEMBERS_PER_ANSWER_MAX, MemoryLayout, PlacementMessage, VERSION,
};
use crate::seqpacket::{self, DESCRIPTORS_MAX};

use entering::Entry;
use treecast_engine::backend::Backend;
use treecast_engine::query::{Answer, Query};
use treecast_engine::text::printable;
use treecast_shm::readers::SharedReaders;
use treecast_shm::shared_group::GroupState;

/// The connection of a client, with its groups.
#[derive(Debug)]
pub(crate) struct Connection {
    pub socket: OwnedFd,
    pub peer: PeerCredentials,
    /// The index of the policy's rule for this client.
    rule: usize,
    waker: Arc<ClientWaker>,
    /// The client's ends of its wake-ups, until they are sent with the answer to its first message.
    client_ends: Option<(OwnedFd, UdpSocket)>,
    groups: BTreeMap<GroupId, ClientGroup>,
    leases: Leases,
}

/// The memory that a client was sent and has not unmapped, as far as it reports that.
#[derive(Debug, Default)]
struct Leases {
    next: u64,
    leases: BTreeMap<u64, Vec<Arc<Lease>>>,
}

impl Leases {
    /// The client is sent this memory.
    fn add(&mut self, lent: &Lent) -> MemoryLayout {
        let lease = (!lent.leases.is_empty()).then_some(self.next);
        if let Some(lease) = lease {
            self.next += 1;
            self.leases.insert(lease, lent.leases.clone());
        }
        MemoryLayout { lease, ..lent.memory }
    }
}

/// A group of a client.
#[derive(Debug)]
pub(crate) struct ClientGroup {
    group: LinkedGroup,
    /// The client's place among the processes of this host that have the group; 0 if it is the only
    /// one.
    place: u32,
    /// Whether the client is the root.
    is_root: bool,
    /// The number of losses that the client knows.
    losses_sent: usize,
}

impl ClientGroup {
    fn mark_progress(&self) {
        self.group.shared.mark_progress();
        // What another process of this host has written or read concerns those that poll
        // descriptors.
        self.group.link.wake_watchers(self.group.shared.group);
    }

    fn take_update(&self) -> bool {
        self.group.link.take_update(self.place)
    }

    /// Leaves the group, if other processes of this host have it too, or are to come. Without its
    /// root a group ends for all.
    fn leave_to_others(&self, user: &User) -> bool {
        if self.is_root {
            return false;
        }
        let link = &self.group.link;
        match link.others(self.place) {
            Others::None if !link.is_root() => return false,
            Others::Awaited => user.await_clients(&self.group),
            Others::None | Others::Some => {}
        }
        let ending = if self.has_received_all() { Ending::Closed } else { Ending::Evicted(Eviction::Left) };
        link.leave(self.place, ending);
        report_readers(&self.group, user);
        true
    }

    /// Whether the group has ended, for all or for this client.
    fn has_ended(&self) -> bool {
        self.group.shared.has_ended() || self.group.link.ending_of(self.place).is_some()
    }

    fn has_received_all(&self) -> bool {
        self.group.shared.is_closed() && self.group.link.has_read_all(self.place)
    }

    /// Memory per group of a client, in bytes: the nodes of a B-tree are at least half full.
    const BYTES: usize = 2 * size_of::<(GroupId, Self)>();
}

/// An answer, and the descriptors that are sent with it.
type Reply = (DaemonMessage, Vec<OwnedFd>);

impl Connection {
    pub fn new(
        socket: OwnedFd,
        peer: PeerCredentials,
        rule: usize,
        waker: ClientWaker,
        client_ends: (OwnedFd, UdpSocket),
    ) -> Self {
        let groups = BTreeMap::new();
        Self {
            socket,
            peer,
            rule,
            waker: Arc::new(waker),
            client_ends: Some(client_ends),
            groups,
            leases: Leases::default(),
        }
    }

    /// The number of its groups.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Handles a message.
    ///
    /// # Errors
    /// Why the client is disconnected.
    pub fn handle(&mut self, user: &User, message: &[u8]) -> Result<(), String> {
        let message = serde_json::from_slice(message)
            .map_err(|error| format!("invalid message: {}", printable(&error.to_string())))?;
        if self.client_ends.is_some() && !matches!(message, ClientMessage::Hello { .. }) {
            return Err("the first message is hello".into());
        }
        let Some((answer, descriptors)) = self.reply(user, message)? else { return Ok(()) };
        self.send(&answer, &descriptors)
    }

    /// # Errors
    /// Why it cannot be sent.
    pub fn send(&self, answer: &DaemonMessage, descriptors: &[OwnedFd]) -> Result<(), String> {
        let text = serde_json::to_vec(answer).map_err(|error| error.to_string())?;
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        debug_assert!(descriptors.len() <= DESCRIPTORS_MAX, "the client has room for the descriptors");
        // The daemon does not block on a client that does not read its answers.
        seqpacket::send(&self.socket, &text, &descriptors, false)
            .map_err(|error| format!("it does not read its answers: {error}"))
    }

    fn reply(&mut self, user: &User, message: ClientMessage) -> Result<Option<Reply>, String> {
        match message {
            ClientMessage::Hello { version } => return self.welcome(user, version).map(Some),
            ClientMessage::CreateGroup { settings, children, session, place } => {
                let entry = Entry::Create { session: SessionId(session), children };
                return Ok(Some(self.enter_or_refuse(user, settings, place, entry)));
            }
            ClientMessage::JoinGroup { settings, place } => {
                return Ok(Some(self.enter_or_refuse(user, settings, place, Entry::Join)));
            }
            ClientMessage::PollUpdate => return Ok(Some(self.update())),
            ClientMessage::Query(query) => {
                return Ok(Some((DaemonMessage::Answer(self.answer(user, query)), Vec::new())));
            }
            ClientMessage::Wake => {
                self.groups.values().for_each(ClientGroup::mark_progress);
                user.mark_progress();
            }
            ClientMessage::Close { group } => {
                let group = GroupId(group);
                self.request(user, Input::Close { group });
                // The other processes of the root's host have all packets then.
                if let Some(entry) = self.groups.get(&group).filter(|entry| entry.is_root) {
                    entry.group.shared.close();
                }
            }
            ClientMessage::Leave { group } => {
                let group = GroupId(group);
                if self.leave_to_others(user, group) {
                    return Ok(None);
                }
                if self.has_received_all(group) {
                    // It waits until the root knows that.
                    user.mark_progress();
                } else {
                    self.request(user, Input::Leave { group });
                }
            }
            ClientMessage::Unmapped { lease } => {
                self.leases.leases.remove(&lease);
            }
            ClientMessage::Evict { group, member } => {
                self.request(user, Input::Evict { group: GroupId(group), member: MemberId(member) });
            }
            ClientMessage::Relieve { group, member } => {
                self.request(user, Input::Relieve { group: GroupId(group), member: MemberId(member) });
            }
            ClientMessage::Abort { group, why: AbortMessage(why) } => {
                self.request(user, Input::Abort { group: GroupId(group), why });
            }
            ClientMessage::Forward { group, upto, child } => {
                let child = child.map(MemberId);
                self.request(user, Input::Forward { group: GroupId(group), upto: Sequence(upto), child });
            }
            ClientMessage::Contribute { group, contribution } => {
                let contribution = Contribution::read(&contribution).ok_or("invalid contribution")?;
                self.contribute(user, GroupId(group), contribution);
            }
            ClientMessage::Flush { group } => self.request(user, Input::Flush { group: GroupId(group) }),
            ClientMessage::Repair { group, packet } => {
                self.request(user, Input::Repair { group: GroupId(group), packet: Sequence(packet) });
            }
            ClientMessage::End { group } => {
                let group = GroupId(group);
                if self.groups.contains_key(&group) && !self.leave_to_others(user, group) {
                    user.shared.engine.end_group(group, AbortReason::NodeClosed);
                }
            }
        }
        Ok(None)
    }

    /// Whether the group is closed, and the processes of this host have received everything.
    fn has_received_all(&self, group: GroupId) -> bool {
        let Some(entry) = self.groups.get(&group).filter(|entry| entry.has_received_all()) else {
            return false;
        };
        entry.mark_progress();
        entry.group.link.advance_read();
        true
    }

    /// The client leaves a group that other processes of this host have too. Says whether that is
    /// so; if not, the group itself is to end.
    fn leave_to_others(&self, user: &User, group: GroupId) -> bool {
        let Some(entry) = self.groups.get(&group) else { return false };
        let left = entry.leave_to_others(user);
        if left {
            entry.mark_progress();
            user.mark_progress();
        }
        left
    }

    fn welcome(&mut self, user: &User, version: u32) -> Result<Reply, String> {
        if version != VERSION {
            return Err(format!("the daemon uses version {VERSION} of the protocol, and not {version}"));
        }
        let (wakeups, kernel_wakeups) = self.client_ends.take().ok_or("duplicate hello")?;
        let engine = &user.shared.engine;
        let (address, has_kernel) = (engine.address(), engine.has_kernel());
        let has_streams = engine.has_streams();
        let wake_nonce = self.waker.wake_socket.nonce.0;
        let welcome = DaemonMessage::Welcome { address, has_kernel, has_streams, wake_nonce };
        Ok((welcome, vec![wakeups, kernel_wakeups.into()]))
    }

    /// Passes a request to the engine, if its group is the client's. The group may have ended. At
    /// the root's host the root alone requests anything: to leave is a matter of each process
    /// (`leave_to_others`).
    fn request(&self, user: &User, input: Input<'static>) {
        if let Some(entry) = input.group().and_then(|group| self.groups.get(&group))
            && (entry.is_root || !entry.group.link.is_root())
        {
            entry.mark_progress();
            user.shared.engine.request(input);
        }
    }

    /// Passes a contribution to the engine, if its group is the client's.
    fn contribute(&self, user: &User, group: GroupId, contribution: Contribution) {
        let Some(entry) = self.groups.get(&group) else { return };
        let process = Process { place: entry.place, count: entry.group.link.place_count() };
        entry.mark_progress();
        user.shared.engine.request(Input::Contribute { group, process, contribution });
    }

    /// Answers a query about a group of this client; about another group as if it did not exist.
    fn answer(&self, user: &User, query: Query) -> Answer {
        if query.group().is_some_and(|group| !self.groups.contains_key(&group)) {
            return query.empty_answer();
        }
        let mut answer = user.shared.engine.query(query);
        match &mut answer {
            Answer::Members(members) => members.truncate(MEMBERS_PER_ANSWER_MAX),
            Answer::Readers(readers) => readers.truncate(MEMBERS_PER_ANSWER_MAX),
            Answer::Numbers(_) => {}
        }
        answer
    }

    /// The update of one group that has changed.
    fn update(&mut self) -> Reply {
        let Some((&group, entry)) = self.groups.iter_mut().find(|(_, entry)| entry.take_update()) else {
            return (DaemonMessage::Update { update: None, is_last: true }, Vec::new());
        };
        let mut descriptors = Vec::new();
        // The close is read first: all packets of a closed group are in its memory then.
        let is_closed = entry.group.shared.is_closed();
        let GroupState { is_ready, losses, reduced, ending, datagrams_too_long, failure, .. } =
            entry.group.shared.state().clone();
        // They are for the root, and not for the other processes of its host.
        let losses = if entry.is_root { losses } else { Vec::new() };
        let unsent: Vec<HostLossMessage> = losses
            .iter()
            .skip(entry.losses_sent)
            .take(LOSSES_PER_UPDATE_MAX)
            .map(|&loss| loss.into())
            .collect();
        entry.losses_sent += unsent.len();
        let are_all_sent = entry.losses_sent == losses.len();
        let link = &entry.group.link;
        if !are_all_sent {
            link.wake_one_for_update(entry.place);
        }
        // The root has its memory from the beginning.
        let placement = entry.group.shared.placement().and_then(|placement| {
            let lent = link.take_lent(entry.place)?;
            descriptors.extend(copies(&lent, link));
            Some(PlacementMessage {
                member: placement.member,
                offload: placement.offload.to_string(),
                encrypted_session: placement.encrypted_session.map(|session| session.0),
                memory: self.leases.add(&lent),
                is_at_root: link.is_root(),
            })
        });
        let own_ending = link.ending_of(entry.place);
        let ending = own_ending.or(ending).filter(|_| are_all_sent);
        if let Some(ending) = ending {
            link.set_ended(entry.place, ending);
        }
        let ending = ending.map(Into::into);
        let update = GroupUpdate {
            group: group.0,
            is_ready,
            is_closed,
            datagrams_too_long,
            failure,
            placement,
            losses: unsent,
            reduced: reduced.filter(|_| entry.is_root).map(|result| result.write()),
            ending,
        };
        if ending.is_some() {
            self.groups.remove(&group);
        }
        (DaemonMessage::Update { update: Some(Box::new(update)), is_last: false }, descriptors)
    }

    /// The client has gone: ends its groups.
    pub fn end(&self, user: &User) {
        let engine = &user.shared.engine;
        for (&group, entry) in &self.groups {
            if !entry.group.shared.has_ended() && !entry.leave_to_others(user) {
                engine.end_group(group, AbortReason::Dropped);
            }
            entry.mark_progress();
        }
        engine.wake_thread();
    }
}

/// Copies of the descriptors of a group's memory, for one client. Where the system has no more
/// descriptors, the client gets fewer, and reports that.
fn copies(lent: &Lent, link: &ClientLink) -> Vec<OwnedFd> {
    let places = link.readers().map(SharedReaders::descriptor);
    let all = [lent.slots.as_fd(), lent.page.as_fd()].into_iter().chain(places);
    all.filter_map(|descriptor| descriptor.try_clone_to_owned().ok()).collect()
}

/// Lets the root know which of the processes that share this node have a group.
fn report_readers(LinkedGroup { shared, link }: &LinkedGroup, user: &User) {
    if link.is_entered()
        && let Some(readers) = link.present_readers()
        && !shared.has_ended()
    {
        user.shared.engine.request(Input::Readers { group: shared.group, readers });
    }
}
