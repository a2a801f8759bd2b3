//! A client creates or joins a group, which other processes of its host may have already.

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use treecast_engine::audit::{self, AuditKind};
use treecast_engine::backend::Backend;
use treecast_engine::settings::addresses::find_own;
use treecast_engine::settings::config::GroupConfig;
use treecast_engine::settings::error::NodeError;
use treecast_engine::text::printable;
use treecast_engine::{EngineHandle, enter};
use treecast_proto::{MemberId, Refused, SessionId};
use treecast_shm::clients::Clients;
use treecast_shm::places::ProcessPlace;
use treecast_shm::readers::{READERS_MAX, Readers, SharedReaders};
use treecast_shm::shared_group::SharedGroup;

use super::{ClientGroup, Connection, Reply, copies, report_readers};
use crate::client_link::{ClientLink, LinkedGroup};
use crate::messages::{DaemonMessage, SettingsMessage};
use crate::users::User;

/// How a client takes part in a group.
#[derive(Debug)]
pub(super) enum Entry {
    Create { session: SessionId, children: Vec<Vec<MemberId>> },
    Join,
}

impl Connection {
    /// Takes part in a group for the client, or says why it cannot.
    pub(super) fn enter_or_refuse(
        &mut self,
        user: &User,
        settings: SettingsMessage,
        place: Option<ProcessPlace>,
        entry: Entry,
    ) -> Reply {
        match self.enter(user, settings, place, entry) {
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
    fn enter(
        &mut self,
        user: &User,
        settings: SettingsMessage,
        place: Option<ProcessPlace>,
        entry: Entry,
    ) -> Result<Reply, NodeError> {
        let config = GroupConfig::new(settings.read()?)?;
        let group = config.settings().group;
        check_place(place)?;
        // The daemon may have more rights than its client.
        if let Some(algorithm) = &config.settings().tcp_congestion
            && self.peer.user != 0
        {
            algorithm.check_allowed()?;
        }
        self.groups.retain(|_, entry| !entry.has_ended());
        let no_rule = || NodeError::Daemon("the policy has no rule for this user".into());
        let rule = user.shared.policy.rule_for(&self.peer).filter(|(index, _)| *index == self.rule);
        let (_, rule) = rule.ok_or_else(no_rule)?;
        let is_root = matches!(entry, Entry::Create { .. });
        if is_root {
            rule.allows_members(config.hosts().count()).map_err(NodeError::Daemon)?;
        }
        let _entering = user.shared.begin_entering(group).ok_or(Refused::GroupExists(group))?;
        let number = place.map_or(0, |place| place.number);
        let known = place.and_then(|_| user.find_group(group, (!is_root).then_some(number)));
        let linked = if let Some(known) = known {
            self.enter_known(user, &known, &config, place, is_root)?;
            known
        } else {
            rule.allows(group.0, user.group_count()).map_err(NodeError::Daemon)?;
            let new = self.new_group(user, &config, place, is_root)?;
            user.add_group(&new);
            new
        };
        let LinkedGroup { shared: shared_group, link } = &linked;
        let engine = &user.shared.engine;
        let entered = match entry {
            Entry::Create { session, children } => {
                link.set_entered();
                let config = config.with_session(session).with_members_max(rule.members_max());
                create_group(engine, &config, children, shared_group).map(|socket| {
                    if let Some(SharedReaders { readers, .. }) = link.readers() {
                        // The root writes the slots, and reads none.
                        readers.places()[number as usize].leave();
                    }
                    let lent = link.take_lent(number)?;
                    let descriptors = copies(&lent, link).into_iter().chain(socket.map(OwnedFd::from));
                    Some((self.leases.add(&lent), descriptors.collect()))
                })
            }
            // The first process of a host joins for all. Where the root is one of them, they wait
            // for it.
            Entry::Join if place.is_none() || !link.is_root() && !link.is_entered() => {
                link.set_entered();
                enter::join_group(engine, &config, shared_group).map(|()| None)
            }
            Entry::Join => {
                if !link.is_entered() {
                    user.await_root(&linked);
                }
                enter::charge_new(engine, shared_group).map(|()| None)
            }
        };
        // Other processes of this host may wait for the group.
        let entered = entered.inspect_err(|error| shared_group.fail(&error.to_string()))?;
        report_readers(&linked, user);
        tracing::info!(client = %self.peer, %group, root = is_root, "a group");
        link.wake_one_for_update(number);
        self.groups.insert(group, ClientGroup { group: linked, place: number, is_root, losses_sent: 0 });
        let (memory, descriptors) = entered.unzip();
        Ok((DaemonMessage::Entered { memory }, descriptors.unwrap_or_default()))
    }

    /// Takes part in a group that other processes of this host have, or wait for.
    fn enter_known(
        &self,
        user: &User,
        LinkedGroup { shared: known, link }: &LinkedGroup,
        config: &GroupConfig,
        place: Option<ProcessPlace>,
        is_root: bool,
    ) -> Result<(), NodeError> {
        let exists = || NodeError::from(Refused::GroupExists(known.group));
        link.check_same(config, place).map_err(NodeError::Daemon)?;
        if self.groups.contains_key(&known.group) {
            return Err(exists());
        }
        let is_at_root = is_root || find_own(user.shared.engine.address(), &[config.root()]).is_ok();
        if is_at_root != link.is_root() || is_root && link.is_entered() {
            return Err(NodeError::Daemon(format!(
                "another process of this host has group {} with another root: give all processes the same root",
                known.group
            )));
        }
        let number = place.map_or(0, |place| place.number);
        link.add_client(number, &self.waker).map_err(NodeError::Daemon)
    }

    /// A group that no other client has.
    fn new_group(
        &self,
        user: &User,
        config: &GroupConfig,
        place: Option<ProcessPlace>,
        is_root: bool,
    ) -> Result<LinkedGroup, NodeError> {
        let group = config.settings().group;
        if user.shared.engine.knows(group) {
            return Err(Refused::GroupExists(group).into());
        }
        let what = "cannot allocate the memory of a group's processes";
        let new_readers = |place: ProcessPlace| {
            let charge = user.account.charge(Readers::bytes_for(place.count) as u64);
            let charge = charge.map_err(NodeError::Daemon)?;
            let readers = SharedReaders::allocate(place.count);
            Ok::<_, NodeError>((readers.map_err(|source| NodeError::System { what, source })?, charge))
        };
        let readers = place.map(new_readers).transpose()?;
        let is_at_root = || find_own(user.shared.engine.address(), &[config.root()]).is_ok();
        let has_root = is_root || place.is_some() && is_at_root();
        let number = place.map_or(0, |place| place.number);
        let accounts = (&user.account, &user.shared.kernel_memory);
        let link = ClientLink::new(
            &self.waker,
            has_root,
            accounts,
            ClientGroup::BYTES,
            config.key(),
            number,
            readers,
        );
        let waker = user.shared.engine.poller().waker();
        let progress = user.shared.engine.progress();
        let link = Arc::new(link);
        let clients = Arc::clone(&link) as Arc<dyn Clients>;
        let shared = Arc::new(SharedGroup::with_clients(group, waker, progress, clients));
        Ok(LinkedGroup { shared, link })
    }
}

/// # Errors
/// [`NodeError::Members`] for an impossible place.
fn check_place(place: Option<ProcessPlace>) -> Result<(), NodeError> {
    let is_possible =
        |place: &ProcessPlace| place.number < place.count && (2..=READERS_MAX).contains(&place.count);
    match place.filter(|place| !is_possible(place)) {
        Some(ProcessPlace { number, count }) => Err(NodeError::Members(format!(
            "place {number} of {count} on this host: there are from 2 to {READERS_MAX}, numbered from 0"
        ))),
        None => Ok(()),
    }
}

fn create_group(
    engine: &EngineHandle,
    config: &GroupConfig,
    children: Vec<Vec<MemberId>>,
    shared_group: &Arc<SharedGroup>,
) -> Result<Option<UdpSocket>, NodeError> {
    let settings = config.settings();
    if find_own(engine.address(), config.hosts().addresses())? != config.hosts().host_of(settings.root) {
        return Err(NodeError::Members(format!("the root is at {}, and not at this node", config.root())));
    }
    enter::create_group(engine, config, children, shared_group)
}
