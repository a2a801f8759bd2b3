//! Groups of three members on three hosts: a chain of root, relay and leaf. Each member has a
//! thread in the network of its host.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use treecast_node::{
    Authentication, EngineChoice, Group, GroupId, GroupSettings, Keyed, Node, NodeError, NodeSettings,
    Offload, Scheme, TreeScheme,
};

use super::hosts::Hosts;

pub const ROOT: usize = 0;
pub const RELAY: usize = 1;
pub const LEAF: usize = 2;
/// A host that is no member.
pub const STRANGER: usize = 3;

pub const TOKEN: &str = "3f6c2b8f0d5e4a7196b1c8e2d4f7a05b";

/// The number of slots of each member.
pub const SLOTS: usize = 64;

/// Longer than any timeout of the protocol: a call that takes longer hangs.
const FOREVER: Duration = Duration::from_secs(20);

/// What groups of a world have in common.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub is_v6: bool,
    pub offload: Offload,
    pub authentication: Authentication,
}

impl Setting {
    /// Along the tree, over IPv4.
    pub const DEFAULT: Self =
        Self { is_v6: false, offload: Offload::Nic, authentication: Authentication::Header };
}

/// A lab with a node on each host but the stranger's.
pub struct World {
    pub setting: Setting,
    /// Closed before the lab ends.
    pub nodes: Vec<Node>,
    pub hosts: Hosts,
}

impl World {
    /// `None`, with the reason on standard error, where the machine does not allow it.
    pub fn start(engine: EngineChoice) -> Option<Arc<Self>> {
        Self::with(engine, Setting::DEFAULT)
    }

    pub fn with(engine: EngineChoice, setting: Setting) -> Option<Arc<Self>> {
        let hosts = Hosts::with_ip(4, setting.is_v6)?;
        let open = |host| {
            let bind = hosts.node_address(host);
            hosts.run_on(host, || {
                let mut settings = NodeSettings { bind, engine, ..NodeSettings::default() };
                // Other tests keep the processors busy for longer than the default.
                settings.set_key("peer_timeout_ms", "1600").unwrap();
                Node::open(&settings).unwrap()
            })
        };
        let nodes = (ROOT..=LEAF).map(open).collect();
        Some(Arc::new(Self { setting, nodes, hosts }))
    }

    fn settings(&self, group: u32) -> GroupSettings {
        let members = (ROOT..=LEAF).map(|host| self.hosts.node_address(host)).collect();
        GroupSettings {
            group: GroupId(group),
            token: TOKEN.into(),
            scheme: Some(Scheme::tree(TreeScheme::Serial)),
            slots: Some(SLOTS as u32),
            mtu_bytes: Some(1_280),
            offload: Some(self.setting.offload),
            authentication: Some(self.setting.authentication),
            ..GroupSettings::new(members)
        }
    }

    /// Enters a group in the network of its host.
    fn group(&self, host: usize, group: u32) -> Arc<Group> {
        Arc::new(self.nodes[host].group(&self.settings(group)).unwrap())
    }

    /// How many packets a node has dropped, or taken for repetitions, in a group and without one.
    pub fn dropped(&self, host: usize, group: &Group) -> u64 {
        const COUNTERS: [&str; 5] = ["duplicates", "stale", "no_slot", "unknown_sender", "invalid"];
        self.hosts.run_on(host, || {
            let of_group = group.counters().unwrap_or_default();
            let of_group = of_group.values().filter(|(name, _)| COUNTERS.contains(name));
            let strays = self.nodes[host].strays().unwrap();
            of_group.chain(strays.values()).map(|(_, count)| count).sum()
        })
    }
}

/// A running group.
pub struct Chain {
    world: Arc<World>,
    pub number: u32,
    root: Option<JoinHandle<Outcome>>,
    lines: Option<Sender<String>>,
    demand: Arc<Mutex<Demand>>,
    members: Vec<Member>,
    /// By member.
    pub groups: Vec<Arc<Group>>,
    /// The lines that the root has sent.
    pub sent: Vec<String>,
}

/// What the test has asked of a group, so that a member knows whether it waits in vain.
struct Demand {
    lines: usize,
    is_closed: bool,
    /// When something was asked last.
    since: Instant,
}

impl Demand {
    /// Whether a member that has received this number of lines should have received more by now, or
    /// the end. While nothing is asked, a member may wait for as long as a busy machine takes.
    fn is_overdue(&self, received: usize) -> bool {
        (self.is_closed || received < self.lines) && self.since.elapsed() >= FOREVER
    }
}

/// The relay or the leaf.
struct Member {
    thread: JoinHandle<Outcome>,
    received: Receiver<String>,
    /// The number of lines after which it rests.
    rests_after: Arc<AtomicUsize>,
}

/// How a group has ended at a member.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The group is closed. At the root: and these members were lost.
    Closed(Vec<u32>),
    Ended(String),
    /// It would have waited for ever.
    Hung,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(lost) if lost.is_empty() => formatter.write_str("closed"),
            Self::Closed(lost) => write!(formatter, "closed without {lost:?}"),
            Self::Ended(reason) => write!(formatter, "ended: {reason}"),
            Self::Hung => formatter.write_str("hung"),
        }
    }
}

impl From<NodeError> for Outcome {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::TimedOut | NodeError::Unanswered(_) => Self::Hung,
            error => Self::Ended(error.to_string()),
        }
    }
}

impl Chain {
    /// Starts a group, whose members find each other soon.
    pub fn start(world: &Arc<World>, number: u32) -> Self {
        let (entered, has_entered) = channel();
        let (lines, to_send) = channel();
        let (of_root, root_entered) = (Arc::clone(world), entered.clone());
        let root = thread::spawn(move || {
            of_root.hosts.enter(ROOT);
            let group = of_root.group(ROOT, number);
            root_entered.send(Arc::clone(&group)).unwrap();
            send(&group, &to_send).unwrap_or_else(Outcome::from)
        });
        // Before it the members could still meet the end of an earlier session.
        let mut groups = vec![has_entered.recv().unwrap()];
        let demand = Arc::new(Mutex::new(Demand { lines: 0, is_closed: false, since: Instant::now() }));
        let mut members = Vec::new();
        for host in [RELAY, LEAF] {
            let (sender, received) = channel();
            let (world, entered) = (Arc::clone(world), entered.clone());
            let rests_after = Arc::new(AtomicUsize::new(usize::MAX));
            let of_member = (Arc::clone(&rests_after), Arc::clone(&demand));
            let thread = thread::spawn(move || {
                world.hosts.enter(host);
                let group = world.group(host, number);
                entered.send(Arc::clone(&group)).unwrap();
                receive(&group, &of_member.0, &of_member.1, &sender).unwrap_or_else(Outcome::from)
            });
            members.push(Member { thread, received, rests_after });
            groups.push(has_entered.recv().unwrap());
        }
        Self {
            world: Arc::clone(world),
            number,
            root: Some(root),
            lines: Some(lines),
            demand,
            members,
            groups,
            sent: Vec::new(),
        }
    }

    /// The line that is sent next. Each has the same length.
    pub fn next_line(&self) -> String {
        format!("group {:2}, line {:3}", self.number, self.sent.len())
    }

    /// Sends a line.
    pub fn send(&mut self) {
        let line = self.next_line();
        self.sent.push(line.clone());
        let mut demand = self.demand.lock().unwrap();
        (demand.lines, demand.since) = (self.sent.len(), Instant::now());
        drop(demand);
        // The root's end is found at the end.
        let _ = self.lines.as_ref().expect("the group is not closed").send(line);
    }

    /// Sends a line, which both members receive.
    pub fn exchange(&mut self, after: &str) {
        self.try_exchange(after).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Sends a line.
    ///
    /// # Errors
    ///
    /// A member does not receive it; how the group has ended at each member.
    pub fn try_exchange(&mut self, after: &str) -> Result<(), String> {
        self.send();
        for place in 0..self.members.len() {
            let line = self.members[place].received.recv_timeout(FOREVER);
            if line.as_ref() != Ok(self.sent.last().unwrap()) {
                let outcomes = self.finish_here();
                return Err(format!("after {after} member {} received {line:?}: {outcomes:?}", place + 1));
            }
        }
        Ok(())
    }

    /// How many packets a member's node has dropped.
    pub fn dropped(&self, host: usize) -> u64 {
        self.world.dropped(host, &self.groups[host])
    }

    /// Waits until a member's node has dropped this number of packets.
    pub fn wait_until_dropped(&self, host: usize, count: u64, what: &str) {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let dropped = self.dropped(host);
            if dropped >= count {
                return;
            }
            assert!(Instant::now() < end, "{what}: {} of the packets were not dropped", count - dropped);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a packet until a member's node has stored it as the one after `packets`, at most 50
    /// times; whether it has.
    pub fn is_stored(&self, host: usize, packets: u64, send: impl Fn()) -> bool {
        let is_stored = || self.groups[host].counters().is_some_and(|counters| counters.accepted > packets);
        (0..50).any(|_| {
            let dropped = self.dropped(host);
            send();
            let end = Instant::now() + Duration::from_secs(5);
            while !is_stored() && self.dropped(host) == dropped && Instant::now() < end {
                thread::sleep(Duration::from_millis(1));
            }
            is_stored()
        })
    }

    /// Waits until a member's node has stored this number of packets.
    pub fn wait_until_stored(&self, host: usize, packets: u64) {
        let stored = || self.groups[host].counters().map_or(0, |counters| counters.accepted);
        let end = Instant::now() + FOREVER;
        while stored() < packets {
            assert!(Instant::now() < end, "{} of {packets} packets were stored", stored());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A member leaves, or the root aborts.
    pub fn abort(&self, host: usize) {
        let group = &self.groups[host];
        self.world.hosts.run_on(host, || group.abort());
    }

    /// From now on a member rests once it has received this number of lines.
    pub fn rest_after(&self, host: usize, lines: usize) {
        self.members[host - RELAY].rests_after.store(lines, Ordering::SeqCst);
    }

    /// Waits until a member has received all lines that were sent after this one, and returns them.
    pub fn take_lines_after(&self, host: usize, line: usize) -> Vec<String> {
        let received = &self.members[host - RELAY].received;
        (line..self.sent.len()).map(|_| received.recv_timeout(FOREVER).unwrap()).collect()
    }

    /// Closes the group once the lines are sent; does not wait.
    pub fn close(&mut self) {
        if self.lines.take().is_some() {
            let mut demand = self.demand.lock().unwrap();
            (demand.is_closed, demand.since) = (true, Instant::now());
        }
    }

    /// Closes the group; the outcome at each member, and the lines that it has received since the
    /// last exchange.
    pub fn finish(mut self) -> Vec<(Outcome, Vec<String>)> {
        self.finish_here()
    }

    fn finish_here(&mut self) -> Vec<(Outcome, Vec<String>)> {
        self.close();
        let root = self.root.take().into_iter().map(|root| (root.join().unwrap(), Vec::new()));
        let members = self.members.drain(..).map(|member| {
            let outcome = member.thread.join().unwrap();
            (outcome, member.received.iter().collect())
        });
        root.chain(members).collect()
    }
}

fn send(group: &Group, lines: &Receiver<String>) -> Result<Outcome, NodeError> {
    group.wait_until_ready(Some(FOREVER))?;
    for line in lines {
        group.send(line.as_bytes())?;
    }
    let lost = group.close(Some(FOREVER))?;
    Ok(Outcome::Closed(lost.into_iter().map(|lost| lost.member).collect()))
}

fn receive(
    group: &Group,
    rests_after: &AtomicUsize,
    demand: &Mutex<Demand>,
    lines: &Sender<String>,
) -> Result<Outcome, NodeError> {
    for received in 0.. {
        while received >= rests_after.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        let line = loop {
            match group.receive(Some(FOREVER)) {
                Err(NodeError::TimedOut) if !demand.lock().unwrap().is_overdue(received) => {}
                line => break line?,
            }
        };
        let Some(line) = line else { break };
        // The test may have failed.
        let _ = lines.send(String::from_utf8_lossy(&line).into_owned());
    }
    Ok(Outcome::Closed(Vec::new()))
}

impl Drop for Chain {
    /// A test that fails does not leave a member at rest, or waiting for lines.
    fn drop(&mut self) {
        self.close();
        for member in &self.members {
            member.rests_after.store(usize::MAX, Ordering::SeqCst);
        }
    }
}
