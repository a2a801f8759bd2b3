//! A group as an application sees it. The root sends in `send.rs`, other members receive in
//! `receive.rs`.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use treecast_ebpf::KernelCounters;
use treecast_engine::backend::Backend;
use treecast_engine::query::Query;
use treecast_engine::settings::GroupSettings;
use treecast_engine::settings::error::NodeError;
use treecast_engine::settings::error::{Lost, Unanswered};
use treecast_engine::settings::hosts::Hosts;
use treecast_engine::settings::offload::{ChosenOffload, OffloadStatus};
use treecast_engine::tree;
use treecast_engine::wait::poller::Polling;
use treecast_plan::{Plan, Scheme};
use treecast_proto::{
    AbortReason, Ending, Eviction, GroupCounters, Input, MemberId, Nanoseconds, Offload, Sequence,
};
use treecast_shm::message_buffer::LentBuffer;
use treecast_shm::shared_group::{HostLoss, RingSide, SharedGroup};
use treecast_shm::sync::lock;

use super::receiver::Receiver;
use super::sender::{Sender, SenderConfig};

/// A group at one of its members. Several threads may use it; each message is sent or received
/// whole.
///
/// A root that drops the group without closing it aborts the group; another member leaves.
#[derive(Debug)]
pub struct Group {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) shared_group: Arc<SharedGroup>,
    pub(super) settings: GroupSettings,
    hosts: Hosts,
    /// This member's number, if it was known from the beginning.
    own: Option<usize>,
    /// At the root: the application has closed the group.
    pub(super) is_closing: AtomicBool,
    role: Mutex<Role>,
    /// At the root, if there are other members.
    plan: Option<Arc<Plan>>,
    /// At the root.
    offload: Option<ChosenOffload>,
    /// The groups in which the root measures the network before it creates this one.
    probes: Mutex<Vec<Group>>,
}

/// The application's side of the ring.
#[derive(Debug)]
pub(super) enum Role {
    Root(Box<Sender>),
    /// None until the member has its place in the tree.
    Member(Option<Receiver>),
}

impl Group {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        shared_group: Arc<SharedGroup>,
        settings: &GroupSettings,
        hosts: Hosts,
        own: Option<usize>,
        sender_config: Option<SenderConfig>,
    ) -> Self {
        let offload = sender_config.as_ref().map(|config| config.offload.clone());
        let placement = shared_group.placement();
        let side = placement.and_then(|placement| lock(&placement.side).take());
        let role = match (side, sender_config) {
            (Some(RingSide::Writer(writer)), Some(sender_config)) => {
                Role::Root(Box::new(Sender::new(writer, sender_config)))
            }
            (Some(RingSide::Reader(reader)), _) => {
                Role::Member(Some(Receiver::new(reader, placement, &settings.key())))
            }
            _ => Role::Member(None),
        };
        Self {
            backend,
            shared_group,
            settings: settings.clone(),
            hosts,
            own,
            is_closing: AtomicBool::new(false),
            role: Mutex::new(role),
            plan: None,
            offload,
            probes: Mutex::default(),
        }
    }

    pub(crate) fn with_plan(mut self, plan: Option<Arc<Plan>>) -> Self {
        self.plan = plan;
        self
    }

    pub(crate) fn with_probes(self, probes: Vec<Self>) -> Self {
        *lock(&self.probes) = probes;
        self
    }

    /// The root creates this group after it has measured, so the probes are not needed any more.
    pub(super) fn drop_probes(&self) {
        lock(&self.probes).clear();
    }

    /// At the root: waits until each member has its place in the tree or is lost, and returns the
    /// lost ones. A member that never answers is lost after ten seconds, unless the node sets
    /// another `join_timeout`. At another member: waits until this member has its place. Sending
    /// and receiving do not require it: messages wait.
    ///
    /// # Errors
    /// [`NodeError::Unanswered`] names the members that have not answered by the timeout, or the
    /// root. [`NodeError::Ended`], [`NodeError::DatagramTooLong`].
    pub fn wait_until_ready(&self, timeout: Option<Duration>) -> Result<Vec<Lost>, NodeError> {
        let is_root = self.is_root();
        let waited = self.wait(timeout, || {
            let is_ready = if is_root {
                self.shared_group.state().is_ready
            } else {
                self.shared_group.placement().is_some()
            };
            is_ready.then_some(())
        });
        match waited {
            Ok(()) => Ok(self.losses()),
            Err(NodeError::TimedOut) => Err(NodeError::Unanswered(self.unanswered(is_root))),
            Err(error) => Err(error),
        }
    }

    fn unanswered(&self, is_root: bool) -> Vec<Unanswered> {
        if !is_root {
            let address = self.address_of(MemberId(self.hosts.host_of(self.settings.root) as u32));
            return vec![Unanswered { member: self.settings.root as u32, address }];
        }
        let group = self.shared_group.group.0;
        let hosts = self.backend.query(Query::Unplaced { group }).into_members();
        let all = hosts.iter().flat_map(|&host| self.members_of(host).map(move |member| (host, member)));
        // Of hosts that are there, processes may be missing.
        let readers = self.backend.query(Query::AwaitedReaders { group }).into_readers();
        let readers = readers.into_iter().filter(|(host, _)| !hosts.contains(host));
        let readers =
            readers.filter_map(|(host, place)| Some((host, self.members_of(host).nth(place as usize)?)));
        let unanswered = |(host, member)| Unanswered { member, address: self.address_of(host) };
        all.chain(readers).map(unanswered).collect()
    }

    /// The address of a host's node, if it had members from the beginning.
    fn address_of(&self, host: MemberId) -> Option<SocketAddr> {
        self.hosts.addresses().get(host.index()).copied()
    }

    /// The numbers of a host's members.
    fn members_of(&self, host: MemberId) -> impl Iterator<Item = u32> + use<> {
        self.hosts.members_of(host.index()).into_iter().map(|member| member.0)
    }

    /// At the root: closes the group once each member has all messages, and returns the members
    /// that were lost or have left. At another member: leaves the group. Waiting calls of other
    /// threads end.
    ///
    /// # Errors
    /// [`NodeError::TimedOut`], after which it can be called again; [`NodeError::Ended`] if the
    /// group has ended in another way; [`NodeError::Refused`] at the root in the middle of a
    /// message.
    pub fn close(&self, timeout: Option<Duration>) -> Result<Vec<Lost>, NodeError> {
        self.begin_close()?;
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let find = || self.shared_group.state().ending;
        let ending = self.backend.wait(&self.shared_group, until, find, None, &mut Polling::default());
        if let Some(reason) = &self.shared_group.state().failure {
            return Err(NodeError::GroupFailed(reason.clone()));
        }
        match ending {
            None => Err(NodeError::TimedOut),
            Some(Ending::Closed | Ending::Evicted(Eviction::Left)) => Ok(self.losses()),
            // The member has left without an answer of the root.
            Some(Ending::Aborted) if !self.is_root() => Ok(Vec::new()),
            Some(ending) => Err(NodeError::Ended(ending)),
        }
    }

    /// Whether this member is the root.
    pub fn is_root(&self) -> bool {
        self.own == Some(self.settings.root)
    }

    fn begin_close(&self) -> Result<(), NodeError> {
        if !self.is_root() {
            self.leave();
            return Ok(());
        }
        // The lock waits for a thread that is sending a message.
        if let Role::Root(sender) = &*self.role() {
            sender.check_no_partial_message()?;
            if self.is_closing.swap(true, Ordering::AcqRel) {
                return Ok(());
            }
        }
        self.wake_engine();
        self.backend.request(Input::Close { group: self.shared_group.group });
        Ok(())
    }

    fn leave(&self) {
        if !self.shared_group.is_closed() {
            self.backend.request(Input::Leave { group: self.shared_group.group });
            return;
        }
        // All packets of a closed group have arrived. The root need not know that this member
        // leaves: the node only waits until the packets are read.
        if let Role::Member(receiver) = &mut *self.role() {
            if receiver.is_none() {
                *receiver = self.take_receiver(Some(Instant::now())).ok();
            }
            if let Some(receiver) = receiver {
                receiver.release_all();
                self.report_read(receiver, true);
            }
        }
        if self.shared_group.place.is_some() {
            // Other members of this host may not have read everything, and this one does not wait
            // for them.
            self.backend.request(Input::Leave { group: self.shared_group.group });
        }
    }

    /// At the root: aborts the group, whatever members still lack. At another member: leaves it.
    /// Does not wait; waiting calls of other threads end.
    pub fn abort(&self) {
        self.abort_because(AbortReason::Application);
    }

    /// As [`Group::abort`]; the members of a root are told this reason.
    pub fn abort_because(&self, why: AbortReason) {
        if self.shared_group.has_ended() {
            return;
        }
        if self.is_root() {
            self.backend.request(Input::Abort { group: self.shared_group.group, why });
        } else {
            self.leave();
        }
    }

    /// At the root: declares dead the host of a member of whose end the application knows, so that
    /// nobody waits for it until it has been silent for `peer_timeout`. It is then among the
    /// [losses](Self::losses).
    ///
    /// # Errors
    /// [`NodeError::Members`] at another member, and for a number that no member has.
    pub fn evict(&self, member: u32) -> Result<(), NodeError> {
        let member = self.other_member(member, "evicts another member")?;
        self.backend.request(Input::Evict { group: self.shared_group.group, member });
        Ok(())
    }

    /// At the root: makes the host of a member a leaf of the tree, since it forwards slowly. Its
    /// children become the root's, and nothing is lost. Does nothing if it is a leaf.
    ///
    /// # Errors
    /// [`NodeError::Members`] at another member, and for a number that no other member has.
    pub fn relieve(&self, member: u32) -> Result<(), NodeError> {
        let member = self.other_member(member, "makes another member a leaf")?;
        self.backend.request(Input::Relieve { group: self.shared_group.group, member });
        Ok(())
    }

    /// At the root: the number of another member's host in the tree.
    fn other_member(&self, member: u32, what: &str) -> Result<MemberId, NodeError> {
        let is_known =
            (member as usize) < self.settings.members.len() && member as usize != self.settings.root;
        if !self.is_root() || !is_known {
            return Err(NodeError::Members(format!("only the root {what}, which {member} is not")));
        }
        Ok(MemberId(self.hosts.host_of(member as usize) as u32))
    }

    /// The members that the packets in this host's slots wait for at the moment: children to which
    /// packets come slowly, and this member itself if it receives slowly. Of several members on a
    /// host the first one stands for all.
    ///
    /// If a member names a child most of the time, the path between the two is slow; if it names
    /// all of several children, it forwards slowly. [`relieve`](Self::relieve) lets the root send
    /// to them instead.
    pub fn slow_members(&self) -> Vec<u32> {
        let group = self.shared_group.group.0;
        let hosts = self.backend.query(Query::SlowMembers { group }).into_members();
        hosts.into_iter().filter_map(|host| self.members_of(host).next()).collect()
    }

    /// The number of children of this host in the tree.
    pub fn child_count(&self) -> usize {
        let group = self.shared_group.group.0;
        self.backend.query(Query::Children { group }).into_members().len()
    }

    /// The members that were lost or have left, as far as the root knows: after a
    /// [`flush`](Self::flush), all that it did not wait for.
    pub fn losses(&self) -> Vec<Lost> {
        if self.is_root() {
            self.backend.take_updates();
        }
        let mut all: Vec<Lost> = Vec::new();
        for HostLoss { host, reader, loss } in self.shared_group.state().losses.clone() {
            let address = self.address_of(host);
            let lost =
                (0..).zip(self.members_of(host)).filter(|(place, _)| reader.is_none_or(|one| one == *place));
            let lost = lost.map(|(_, member)| Lost { member, address, loss });
            // Of a host that is lost, processes may have been lost before.
            let new = lost.filter(|lost| all.iter().all(|known| known.member != lost.member));
            let new: Vec<Lost> = new.collect();
            all.extend(new);
        }
        all
    }

    /// This member's number. A member that has asked a running group to join learns it with its
    /// place in the tree.
    pub fn member(&self) -> Option<u32> {
        let placed = || {
            let host = self.shared_group.placement()?.member as usize;
            self.hosts.members_of(host).first().map(|member| member.0)
        };
        self.own.map(|own| own as u32).or_else(placed)
    }

    /// The settings of the group. A member that joined has the root's settings.
    pub fn settings(&self) -> &GroupSettings {
        &self.settings
    }

    /// The plan that the group carries out: the one that was given, or that was made. None at other
    /// members, unless their settings have it too, and in a group of one member. Its tree changes
    /// when members are lost or join.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_deref().or(self.settings.plan.as_deref())
    }

    /// At the root: where packets are forwarded, why that was chosen if the settings leave it open,
    /// and how many of the root's children multicast reaches. Some milliseconds after the group is
    /// ready that is known; it changes with the tree and the network.
    ///
    /// ```
    /// use treecast_node::{GroupSettings, Node, NodeSettings};
    ///
    /// let node = Node::open(&NodeSettings { bind: "127.0.0.1:0".parse()?, ..NodeSettings::default() })?;
    /// let group = node.group(&GroupSettings { offload: None, ..GroupSettings::new(vec![node.address()]) })?;
    /// let status = group.offload_status().expect("this is the root");
    /// assert_eq!(status.to_string(), "offload nic, chosen because no switch is on the way over loopback");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn offload_status(&self) -> Option<OffloadStatus> {
        let ChosenOffload { offload, reason } = self.offload.clone()?;
        let group = self.shared_group.group.0;
        let count = |query| self.backend.query(query).into_members().len();
        let children = count(Query::Children { group });
        let reached = count(Query::ReachedChildren { group });
        Some(OffloadStatus { offload, reason, children, reached })
    }

    /// The scheme of the tree, also if the settings leave it open. None where only the root knows
    /// it: at other members, if the root measures the lambda of `postal`, and at members that
    /// joined a running group.
    pub fn scheme(&self) -> Option<Scheme> {
        if let Some(plan) = self.plan() {
            return Some(*plan.scheme());
        }
        let is_known = self.is_root() || self.own.is_some() && !self.settings.measures_lambda();
        is_known.then(|| tree::scheme(&self.hosts, &self.settings, self.backend.has_kernel()))
    }

    /// A descriptor that becomes readable when the group changes, for programs that wait for
    /// several things. The program reads its eight bytes, and then receives until nothing is
    /// available.
    ///
    /// # Errors
    /// The system cannot make a descriptor.
    pub fn watch(&self) -> std::io::Result<BorrowedFd<'_>> {
        self.shared_group.events.watch()
    }

    /// The counters of this group at this node; none once the node does not have the group any
    /// more.
    pub fn counters(&self) -> Option<GroupCounters> {
        let query = Query::Counters { group: self.shared_group.group.0 };
        self.backend.query(query).into_numbers().map(GroupCounters::from_values)
    }

    /// When the last received packet was stored in this host's memory (`CLOCK_MONOTONIC`), where
    /// the kernel's packet path shares it.
    pub fn stored_at(&self) -> Option<Nanoseconds> {
        if let Role::Member(Some(receiver)) = &*self.role() { receiver.stored_at() } else { None }
    }

    /// The counters of the kernel's packet path for this group; none if it has no part in the
    /// group.
    pub fn kernel_counters(&self) -> Option<KernelCounters> {
        let query = Query::KernelCounters { group: self.shared_group.group.0 };
        self.backend.query(query).into_numbers().map(KernelCounters::from_values)
    }

    /// Whether all members are processes of this host, which share a node.
    pub(super) const fn has_one_host(&self) -> bool {
        self.hosts.are_shared() && self.hosts.count() == 1 && !self.settings.admits
    }

    pub(super) fn role(&self) -> MutexGuard<'_, Role> {
        lock(&self.role)
    }

    /// The application has written or read.
    pub(super) fn wake_engine(&self) {
        self.shared_group.mark_progress();
        self.backend.wake();
    }

    /// The application has delegated sending.
    pub(super) fn wake_engine_thread(&self) {
        self.backend.wake_thread();
    }

    pub(super) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        find: impl FnMut() -> Option<T>,
    ) -> Result<T, NodeError> {
        self.wait_polling(timeout, find, None, &mut Polling::default())
    }

    /// The same within a call that may wait again at once: it ends `polling` when it does not.
    /// Meanwhile the node has the buffer that it lends.
    pub(super) fn wait_polling<'a, T>(
        &'a self,
        timeout: Option<Duration>,
        mut find: impl FnMut() -> Option<T>,
        lent: Option<&mut LentBuffer>,
        polling: &mut Polling<'a>,
    ) -> Result<T, NodeError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let checked = || {
            // The end is checked first: packets that arrived before it are visible then, and take
            // precedence.
            let ended = self.check().err();
            find().map(Ok).or_else(|| ended.map(Err))
        };
        let found = self.backend.wait(&self.shared_group, until, checked, lent, polling);
        found.unwrap_or(Err(NodeError::TimedOut))
    }

    /// The buffer of a call goes that has a part of a packet, or these packets, in place of their
    /// slots.
    pub(super) fn settle(&self, lent: &LentBuffer, stored: Range<Sequence>) {
        self.backend.settle(&self.shared_group, lent, stored);
    }

    /// Whether the group can continue.
    pub(super) fn check(&self) -> Result<(), NodeError> {
        let state = self.shared_group.state();
        if let Some(reason) = &state.failure {
            return Err(NodeError::GroupFailed(reason.clone()));
        }
        if state.datagrams_too_long {
            return Err(NodeError::DatagramTooLong { datagram_bytes: self.settings.mtu_bytes });
        }
        state.ending.map_or(Ok(()), |ending| Err(NodeError::Ended(ending)))
    }

    pub(super) fn wrong_side(&self, is_root: bool) -> NodeError {
        let member = self.member().unwrap_or_default();
        NodeError::WrongSide { group: self.shared_group.group, member, is_root }
    }

    /// With offload `host` or `assisted`: asks for the packets before `upto` to be forwarded. With
    /// `host` each child's copy is a request of its own, as in a program without multicast.
    pub(super) fn forward(&self, offload: Offload, upto: Sequence) {
        let group = self.shared_group.group;
        self.shared_group.mark_progress();
        if offload == Offload::Host {
            for child in self.backend.query(Query::Children { group: group.0 }).into_members() {
                self.backend.request(Input::Forward { group, upto, child: Some(child) });
            }
        } else {
            self.backend.request(Input::Forward { group, upto, child: None });
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group that is being closed continues to close.
        if !self.is_closing.load(Ordering::Acquire) {
            let is_too_long = self.shared_group.state().datagrams_too_long;
            self.abort_because(if is_too_long { AbortReason::DatagramTooLong } else { AbortReason::Dropped });
        }
    }
}
