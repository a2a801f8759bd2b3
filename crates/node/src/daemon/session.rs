//! One client of the daemon: what it asks for, and what it has.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use treecast_proto::{GroupId, Input, MemberId, Refused, Sequence};

use super::client_link::{Budget, Ear, Line, Share};
use super::messages::{
    Answer, Ask, LOSSES_AT_ONCE, LossWord, MEMBERS_AT_ONCE, News, PlacedWord, Terms, VERSION,
};
use super::policy::{Person, Policy};
use super::seqpacket::{self, DESCRIPTORS_MAX};
use crate::api::addresses::find_own;
use crate::engine::enter;
use crate::engine::{Request, Shared};
use crate::memory::shared_group::{Channel, State};
use crate::{GroupSettings, NodeError};

/// What all clients have in common.
#[derive(Debug)]
pub(super) struct Desk {
    pub shared: Arc<Shared>,
    pub policy: Policy,
    pub users: BTreeMap<u32, User>,
}

/// What a user has, in all its processes.
#[derive(Debug)]
pub(super) struct User {
    pub clients: usize,
    budget: Arc<Budget>,
    groups: Vec<Weak<Channel>>,
}

impl User {
    pub fn new(rule: &str, memory_max: Option<u64>) -> Self {
        let budget = Budget { rule: rule.into(), bytes_max: memory_max, bytes: AtomicU64::new(0) };
        Self { clients: 0, budget: Arc::new(budget), groups: Vec::new() }
    }

    /// How many groups it has; those of clients that have gone count until they are over.
    fn groups(&mut self) -> usize {
        self.groups.retain(|group| group.upgrade().is_some_and(|group| !group.has_ended()));
        self.groups.len()
    }
}

/// A client.
#[derive(Debug)]
pub(super) struct Session {
    pub socket: OwnedFd,
    pub person: Person,
    /// The place of the rule that is about it.
    rule: usize,
    ear: Arc<Ear>,
    /// What the client is given when it says its first word.
    gift: Option<(OwnedFd, UdpSocket)>,
    groups: BTreeMap<GroupId, Held>,
}

/// A group that a client has.
#[derive(Debug)]
struct Held {
    channel: Arc<Channel>,
    losses_told: usize,
}

/// What is answered, and what comes with it.
type Reply = (Answer, Vec<OwnedFd>);

impl Session {
    pub fn new(
        socket: OwnedFd,
        person: Person,
        rule: usize,
        ear: Ear,
        bell: OwnedFd,
        wake: UdpSocket,
    ) -> Self {
        Self { socket, person, rule, ear: Arc::new(ear), gift: Some((bell, wake)), groups: BTreeMap::new() }
    }

    /// How many groups it has.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Does what a message asks for.
    ///
    /// # Errors
    /// Why the client does not belong here.
    pub fn handle(&mut self, desk: &mut Desk, message: &[u8]) -> Result<(), String> {
        let ask = serde_json::from_slice(message).map_err(|error| format!("no word of a client: {error}"))?;
        if self.gift.is_some() && !matches!(ask, Ask::Hello { .. }) {
            return Err("the first word is hello".into());
        }
        let Some((answer, descriptors)) = self.answer(desk, ask)? else { return Ok(()) };
        self.say(&answer, &descriptors)
    }

    /// # Errors
    /// Why it cannot be said.
    pub fn say(&self, answer: &Answer, descriptors: &[OwnedFd]) -> Result<(), String> {
        let text = serde_json::to_vec(answer).map_err(|error| error.to_string())?;
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        debug_assert!(descriptors.len() <= DESCRIPTORS_MAX, "there is room for them");
        // Whoever asks without taking answers is not waited for.
        seqpacket::send(&self.socket, &text, &descriptors, false)
            .map_err(|error| format!("it does not take its answers: {error}"))
    }

    fn answer(&mut self, desk: &mut Desk, ask: Ask) -> Result<Option<Reply>, String> {
        let reply = match ask {
            Ask::Hello { version } => self.welcome(desk, version)?,
            Ask::Lead { terms } => self.entered(desk, terms, None),
            Ask::Follow { terms, asks: sends_join } => self.entered(desk, terms, Some(sends_join)),
            Ask::Look => self.news(),
            Ask::Kick => {
                self.groups.values().for_each(|held| held.channel.give_news());
                desk.shared.kick();
                return Ok(None);
            }
            Ask::Close { group } => return Ok(self.ask(desk, group, |group| Input::Close { group })),
            Ask::Leave { group } => return Ok(self.ask(desk, group, |group| Input::Leave { group })),
            Ask::Abort { group } => return Ok(self.ask(desk, group, |group| Input::Abort { group })),
            Ask::Forward { group, upto, child } => {
                let (upto, child) = (Sequence(upto), child.map(MemberId));
                return Ok(self.ask(desk, group, |group| Input::Forward { group, upto, child }));
            }
            Ask::End { group } => {
                if self.groups.contains_key(&GroupId(group)) {
                    desk.shared.request(Request::End(GroupId(group)));
                }
                return Ok(None);
            }
            Ask::Children { group } => self.members(desk, group, crate::engine::Engine::children),
            Ask::Awaited { group } => self.members(desk, group, crate::engine::Engine::awaited),
            Ask::Counters { group } => {
                let own = self.own(group);
                let counters = own.and_then(|group| desk.shared.with(|engine| engine.counters(group)));
                let numbers = counters.map(|counters| counters.values().map(|(_, count)| count).collect());
                (Answer::Numbers { numbers }, Vec::new())
            }
            Ask::KernelCounters { group } => {
                let own = self.own(group);
                let counts = own.and_then(|group| desk.shared.with(|engine| engine.kernel_counters(group)));
                let numbers = counts.map(|counts| counts.values());
                (Answer::Numbers { numbers }, Vec::new())
            }
            Ask::Strays => {
                let strays = desk.shared.with(|engine| engine.strays());
                let numbers = Some(strays.values().map(|(_, count)| count).collect());
                (Answer::Numbers { numbers }, Vec::new())
            }
        };
        Ok(Some(reply))
    }

    fn welcome(&mut self, desk: &Desk, version: u32) -> Result<Reply, String> {
        if version != VERSION {
            return Err(format!("the daemon speaks version {VERSION}, and not {version}"));
        }
        let (bell, wake) = self.gift.take().ok_or("hello was said already")?;
        let (address, has_kernel) = (desk.shared.address(), desk.shared.has_kernel());
        Ok((Answer::Welcome { address, has_kernel }, vec![bell, wake.into()]))
    }

    /// A group of this client.
    fn own(&self, group: u32) -> Option<GroupId> {
        Some(GroupId(group)).filter(|group| self.groups.contains_key(group))
    }

    /// Hands on what an application asks of its group, which may be over already.
    fn ask(&self, desk: &Desk, group: u32, input: impl FnOnce(GroupId) -> Input<'static>) -> Option<Reply> {
        if let Some(held) = self.groups.get(&GroupId(group)) {
            held.channel.give_news();
            desk.shared.request(Request::Input(input(GroupId(group))));
        }
        None
    }

    fn members(
        &self,
        desk: &Desk,
        group: u32,
        find: impl FnOnce(&crate::engine::Engine, GroupId) -> Vec<MemberId>,
    ) -> Reply {
        let found = self.own(group).map(|group| desk.shared.with(|engine| find(engine, group)));
        let members = found.unwrap_or_default().into_iter().take(MEMBERS_AT_ONCE).map(|member| member.0);
        (Answer::Members { members: members.collect() }, Vec::new())
    }

    fn entered(&mut self, desk: &mut Desk, terms: Terms, follows: Option<bool>) -> Reply {
        match self.enter(desk, terms, follows) {
            Ok(reply) => reply,
            Err(error) => {
                let why = error.to_string();
                tracing::warn!(client = %self.person, %why, "a group is refused");
                (Answer::Refused { why }, Vec::new())
            }
        }
    }

    /// Takes part in a group for the client: as its root, or following it.
    fn enter(&mut self, desk: &mut Desk, terms: Terms, follows: Option<bool>) -> Result<Reply, NodeError> {
        let settings = terms.read()?;
        settings.check()?;
        let group = settings.group;
        self.groups.retain(|_, held| !held.channel.has_ended());
        let no_rule = || NodeError::Daemon("the policy has no rule about this user any more".into());
        let (_, rule) = desk
            .policy
            .rule_for(&self.person)
            .filter(|(place, _)| *place == self.rule)
            .ok_or_else(no_rule)?;
        let user = desk.users.get_mut(&self.person.user).ok_or_else(no_rule)?;
        rule.allows(group.0, user.groups()).map_err(NodeError::Daemon)?;
        if desk.shared.with(|engine| engine.knows(group)) {
            return Err(Refused::GroupExists(group).into());
        }
        let line = Line::new(Arc::clone(&self.ear), follows.is_none(), Arc::clone(&user.budget));
        let channel = Arc::new(Channel::with_line(group, desk.shared.leader_waker(), line));
        let mut descriptors = Vec::new();
        let memory = match follows {
            None => {
                let source = lead(&desk.shared, &settings, &channel)?;
                let share = channel.line.as_ref().and_then(Line::take_share);
                share.map(|Share { memory, slots, page }| {
                    descriptors.extend([slots, page].into_iter().chain(source.map(OwnedFd::from)));
                    memory
                })
            }
            Some(sends_join) => {
                enter::follow(&desk.shared, &settings, sends_join, &channel)?;
                None
            }
        };
        user.groups.push(Arc::downgrade(&channel));
        tracing::info!(client = %self.person, %group, root = follows.is_none(), "a group");
        self.groups.insert(group, Held { channel, losses_told: 0 });
        Ok((Answer::Entered { memory }, descriptors))
    }

    /// What is new of one group.
    fn news(&mut self) -> Reply {
        let is_new = |held: &Held| held.channel.line.as_ref().is_some_and(Line::take_news);
        let Some((&group, held)) = self.groups.iter_mut().find(|(_, held)| is_new(held)) else {
            return (Answer::News { news: None, is_all: true }, Vec::new());
        };
        let mut descriptors = Vec::new();
        // Whether it is closed is asked first: what is in its memory by then is all.
        let is_closed = held.channel.is_closed();
        let State { is_ready, losses, ending, does_not_fit, broken, .. } = held.channel.state().clone();
        let untold: Vec<(u32, LossWord)> = losses
            .iter()
            .skip(held.losses_told)
            .take(LOSSES_AT_ONCE)
            .map(|&(member, loss)| (member.0, loss.into()))
            .collect();
        held.losses_told += untold.len();
        let is_all_told = held.losses_told == losses.len();
        if let Some(line) = held.channel.line.as_ref().filter(|_| !is_all_told) {
            line.tell();
        }
        let line = held.channel.line.as_ref();
        // The root has its memory from the beginning.
        let placed = held.channel.placed().and_then(|placed| {
            let Share { memory, slots, page } = line?.take_share()?;
            descriptors.extend([slots, page]);
            Some(PlacedWord { member: placed.member, offload: placed.offload.to_string(), memory })
        });
        let ending = ending.filter(|_| is_all_told).map(Into::into);
        let news = News {
            group: group.0,
            is_ready,
            is_closed,
            does_not_fit,
            broken,
            placed,
            losses: untold,
            ending,
        };
        if ending.is_some() {
            self.groups.remove(&group);
        }
        (Answer::News { news: Some(Box::new(news)), is_all: false }, descriptors)
    }

    /// The client is gone: what it had is given up.
    pub fn end(&self, desk: &Desk) {
        for (&group, held) in &self.groups {
            if !held.channel.has_ended() {
                desk.shared.request(Request::End(group));
            }
        }
    }
}

fn lead(
    shared: &Shared,
    settings: &GroupSettings,
    channel: &Arc<Channel>,
) -> Result<Option<UdpSocket>, NodeError> {
    crate::tree::check(settings)?;
    let own = find_own(shared.address(), &settings.members)?;
    if own != settings.root {
        return Err(NodeError::Members(format!(
            "the root is at {}, and not at this node",
            settings.members[settings.root]
        )));
    }
    enter::lead(shared, settings, channel)
}
