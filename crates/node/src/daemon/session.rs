//! One client of the daemon: its requests, and its groups.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use treecast_proto::{GroupId, Input, MemberId, Refused, Sequence, SessionId};

use super::client_link::{ClientLink, ClientWaker, Share};
use super::messages::{
    ClientMessage, DaemonMessage, GroupUpdate, LOSSES_PER_UPDATE_MAX, LossMessage, MEMBERS_PER_ANSWER_MAX,
    PlacementMessage, SettingsMessage, VERSION,
};
use super::policy::PeerCredentials;
use super::seqpacket::{self, DESCRIPTORS_MAX};
use super::user::User;
use crate::NodeError;
use crate::api::addresses::find_own;
use crate::api::config::GroupConfig;
use crate::audit::{self, AuditKind};
use crate::engine::backend::Backend;
use crate::engine::query::{Answer, Query};
use crate::engine::{EngineHandle, Request, enter};
use crate::memory::shared_group::{GroupState, SharedGroup};
use crate::text::printable;

/// A client.
#[derive(Debug)]
pub(super) struct Session {
    pub socket: OwnedFd,
    pub peer: PeerCredentials,
    /// The index of the policy's rule for this client.
    rule: usize,
    waker: Arc<ClientWaker>,
    /// The client's ends of its wake-ups, until they are sent with the answer to its first message.
    client_ends: Option<(OwnedFd, UdpSocket)>,
    groups: BTreeMap<GroupId, ClientGroup>,
}

/// A group of a client.
#[derive(Debug)]
pub(crate) struct ClientGroup {
    shared_group: Arc<SharedGroup>,
    /// The number of losses that the client knows.
    losses_sent: usize,
}

impl ClientGroup {
    /// What the groups of a client take for each, in bytes: the nodes of a B-tree are at least half full.
    pub const BYTES: usize = 2 * size_of::<(GroupId, Self)>();
}

/// How a client takes part in a group.
#[derive(Debug)]
enum Entry {
    Create { session: SessionId, children: Vec<Vec<MemberId>> },
    Join,
}

/// An answer, and the descriptors that are sent with it.
type Reply = (DaemonMessage, Vec<OwnedFd>);

impl Session {
    pub fn new(
        socket: OwnedFd,
        peer: PeerCredentials,
        rule: usize,
        waker: ClientWaker,
        client_ends: (OwnedFd, UdpSocket),
    ) -> Self {
        let groups = BTreeMap::new();
        Self { socket, peer, rule, waker: Arc::new(waker), client_ends: Some(client_ends), groups }
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
            ClientMessage::CreateGroup { settings, children, session } => {
                let entry = Entry::Create { session: SessionId(session), children };
                return Ok(Some(self.enter_or_refuse(user, settings, entry)));
            }
            ClientMessage::JoinGroup { settings } => {
                return Ok(Some(self.enter_or_refuse(user, settings, Entry::Join)));
            }
            ClientMessage::PollUpdate => return Ok(Some(self.update())),
            ClientMessage::Query(query) => {
                return Ok(Some((DaemonMessage::Answer(self.answer(user, query)), Vec::new())));
            }
            ClientMessage::Wake => {
                self.groups.values().for_each(|entry| entry.shared_group.mark_progress());
                user.mark_progress();
            }
            ClientMessage::Close { group } => self.request(user, Input::Close { group: GroupId(group) }),
            ClientMessage::Leave { group } => self.request(user, Input::Leave { group: GroupId(group) }),
            ClientMessage::Abort { group } => self.request(user, Input::Abort { group: GroupId(group) }),
            ClientMessage::Forward { group, upto, child } => {
                let child = child.map(MemberId);
                self.request(user, Input::Forward { group: GroupId(group), upto: Sequence(upto), child });
            }
            ClientMessage::End { group } => {
                if self.groups.contains_key(&GroupId(group)) {
                    user.shared.engine.send_request(Request::End(GroupId(group)));
                }
            }
        }
        Ok(None)
    }

    fn welcome(&mut self, user: &User, version: u32) -> Result<Reply, String> {
        if version != VERSION {
            return Err(format!("the daemon uses version {VERSION} of the protocol, and not {version}"));
        }
        let (wakeups, kernel_wakeups) = self.client_ends.take().ok_or("duplicate hello")?;
        let (address, has_kernel) = (user.shared.engine.address(), user.shared.engine.has_kernel());
        Ok((DaemonMessage::Welcome { address, has_kernel }, vec![wakeups, kernel_wakeups.into()]))
    }

    /// Passes a request to the engine, if its group is the client's. The group may have ended.
    fn request(&self, user: &User, input: Input<'static>) {
        if let Some(entry) = input.group().and_then(|group| self.groups.get(&group)) {
            entry.shared_group.mark_progress();
            user.shared.engine.request(input);
        }
    }

    /// Answers a query about a group of this client; about another group as if it did not exist.
    fn answer(&self, user: &User, query: Query) -> Answer {
        if query.group().is_some_and(|group| !self.groups.contains_key(&group)) {
            return query.empty_answer();
        }
        let mut answer = user.shared.engine.query(query);
        if let Answer::Members(members) = &mut answer {
            members.truncate(MEMBERS_PER_ANSWER_MAX);
        }
        answer
    }

    fn enter_or_refuse(&mut self, user: &User, settings: SettingsMessage, entry: Entry) -> Reply {
        match self.enter(user, settings, entry) {
            Ok(reply) => reply,
            Err(error) => {
                let reason = printable(&error.to_string());
                user.shared.refused_groups.fetch_add(1, Ordering::SeqCst);
                if user.may_log(AuditKind::RefusedGroup) {
                    let client = &self.peer;
                    tracing::warn!(target: audit::TARGET, %client, %reason, "audit: a group is refused");
                }
                (DaemonMessage::Refused { reason }, Vec::new())
            }
        }
    }

    /// Takes part in a group for the client.
    fn enter(&mut self, user: &User, settings: SettingsMessage, entry: Entry) -> Result<Reply, NodeError> {
        let config = GroupConfig::new(settings.read()?)?;
        let group = config.settings().group;
        self.groups.retain(|_, entry| !entry.shared_group.has_ended());
        let no_rule = || NodeError::Daemon("the policy has no rule for this user".into());
        let rule = user.shared.policy.rule_for(&self.peer).filter(|(index, _)| *index == self.rule);
        let (_, rule) = rule.ok_or_else(no_rule)?;
        rule.allows(group.0, user.group_count()).map_err(NodeError::Daemon)?;
        let is_root = matches!(entry, Entry::Create { .. });
        if is_root {
            rule.allows_members(config.settings().members.len()).map_err(NodeError::Daemon)?;
        }
        let members_max = rule.members_max();
        let _entering = user.shared.begin_entering(group).ok_or(Refused::GroupExists(group))?;
        if user.shared.engine.with(|engine| engine.knows(group)) {
            return Err(Refused::GroupExists(group).into());
        }
        let link = ClientLink::new(Arc::clone(&self.waker), is_root, Arc::clone(&user.budget));
        let leader = user.shared.engine.leader_followers().waker();
        let shared_group = Arc::new(SharedGroup::with_client(group, leader, link));
        let mut descriptors = Vec::new();
        let memory = match entry {
            Entry::Create { session, children } => {
                let socket = create_group(
                    &user.shared.engine,
                    &config.with_session(session).with_members_max(members_max),
                    children,
                    &shared_group,
                )?;
                let share = shared_group.client.as_ref().and_then(ClientLink::take_share);
                share.map(|Share { memory, slots, page }| {
                    descriptors.extend([slots, page].into_iter().chain(socket.map(OwnedFd::from)));
                    memory
                })
            }
            Entry::Join => {
                enter::join_group(&user.shared.engine, &config, &shared_group)?;
                None
            }
        };
        user.add_group(&shared_group);
        tracing::info!(client = %self.peer, %group, root = is_root, "a group");
        self.groups.insert(group, ClientGroup { shared_group, losses_sent: 0 });
        Ok((DaemonMessage::Entered { memory }, descriptors))
    }

    /// The update of one group that has changed.
    fn update(&mut self) -> Reply {
        let has_update =
            |entry: &ClientGroup| entry.shared_group.client.as_ref().is_some_and(ClientLink::take_update);
        let Some((&group, entry)) = self.groups.iter_mut().find(|(_, entry)| has_update(entry)) else {
            return (DaemonMessage::Update { update: None, is_last: true }, Vec::new());
        };
        let mut descriptors = Vec::new();
        // The close is read first: all packets of a closed group are in its memory then.
        let is_closed = entry.shared_group.is_closed();
        let GroupState { is_ready, losses, ending, datagrams_too_long, failure, .. } =
            entry.shared_group.state().clone();
        let unsent: Vec<(u32, LossMessage)> = losses
            .iter()
            .skip(entry.losses_sent)
            .take(LOSSES_PER_UPDATE_MAX)
            .map(|&(member, loss)| (member.0, loss.into()))
            .collect();
        entry.losses_sent += unsent.len();
        let are_all_sent = entry.losses_sent == losses.len();
        let link = entry.shared_group.client.as_ref();
        if let Some(link) = link.filter(|_| !are_all_sent) {
            link.wake_for_update();
        }
        // The root has its memory from the beginning.
        let placement = entry.shared_group.placement().and_then(|placement| {
            let Share { memory, slots, page } = link?.take_share()?;
            descriptors.extend([slots, page]);
            Some(PlacementMessage {
                member: placement.member,
                offload: placement.offload.to_string(),
                memory,
            })
        });
        let ending = ending.filter(|_| are_all_sent).map(Into::into);
        let update = GroupUpdate {
            group: group.0,
            is_ready,
            is_closed,
            datagrams_too_long,
            failure,
            placement,
            losses: unsent,
            ending,
        };
        if ending.is_some() {
            self.groups.remove(&group);
        }
        (DaemonMessage::Update { update: Some(Box::new(update)), is_last: false }, descriptors)
    }

    /// The client has gone: ends its groups.
    pub fn end(&self, engine: &EngineHandle) {
        for (&group, entry) in &self.groups {
            if !entry.shared_group.has_ended() {
                engine.send_request(Request::End(group));
            }
        }
    }
}

fn create_group(
    engine: &EngineHandle,
    config: &GroupConfig,
    children: Vec<Vec<MemberId>>,
    shared_group: &Arc<SharedGroup>,
) -> Result<Option<UdpSocket>, NodeError> {
    let settings = config.settings();
    if find_own(engine.address(), &settings.members)? != settings.root {
        return Err(NodeError::Members(format!("the root is at {}, and not at this node", config.root())));
    }
    enter::create_group(engine, config, children, shared_group)
}
