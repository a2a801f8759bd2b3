//! What a world is made of, drawn from its seed.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use treecast_proto::{MemberId, Nanoseconds, Offload, Sequence};

/// A cluster, its traffic and its misfortunes.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub hosts: usize,
    pub groups: Vec<GroupScenario>,
    pub weather: Weather,
    pub faults: Vec<(Nanoseconds, Fault)>,
}

/// A group and what is sent in it.
#[derive(Debug, Clone)]
pub struct GroupScenario {
    /// The hosts of its members, in order; at first one a member.
    pub hosts: Vec<usize>,
    pub root: MemberId,
    pub children: Vec<Vec<MemberId>>,
    pub slots: u32,
    pub payload_bytes_max: u16,
    pub offload: Offload,
    pub start: Sequence,
    pub admits: bool,
    pub bytes_per_s_max: Option<u64>,
    /// The lengths of the messages, in bytes.
    pub messages: Vec<u64>,
    /// The root waits as long at most between messages.
    pub pause_max: Nanoseconds,
    /// A reader waits as long at most between looks, and reads as much at most at each.
    pub read_pause_max: Nanoseconds,
    pub read_packets_max: u32,
}

/// What a network does to datagrams; shares from 0 to 1.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    pub lost: f64,
    pub doubled: f64,
    pub changed: f64,
    pub late: f64,
    pub delay_min: Nanoseconds,
    pub delay_max: Nanoseconds,
    pub late_max: Nanoseconds,
}

/// Something that goes wrong, or that not every cluster sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A host is gone, with all it knew.
    Crash(usize),
    /// It is back, and knows nothing.
    Restart(usize),
    /// A host does nothing for a while.
    Pause { host: usize, span: Nanoseconds },
    /// The readers of a host do nothing for a while.
    StopReading { host: usize, span: Nanoseconds },
    /// Hosts whose bit is set hear nothing of the others for a while, nor the others of them.
    Part { side: u64, span: Nanoseconds },
    /// One host hears nothing of another one for a while.
    Deafen { from: usize, to: usize, span: Nanoseconds },
    /// A member leaves.
    Leave { host: usize, group: u32 },
    /// A host that is not among the members asks to be one.
    Join { host: usize, group: u32 },
}

impl Fault {
    /// How long it makes the host pause.
    fn pause_of(self, host: usize) -> Nanoseconds {
        match self {
            Self::Pause { host: paused, span } if paused == host => span,
            _ => Nanoseconds::ZERO,
        }
    }
}

impl Scenario {
    /// The most hosts.
    pub const HOSTS_MAX: usize = 12;

    pub fn random(seed: u64) -> Self {
        let mut random = Pcg64::seed_from_u64(seed);
        let hosts = random.random_range(2..=Self::HOSTS_MAX);
        let groups =
            (0..random.random_range(1..=3)).map(|_| GroupScenario::random(&mut random, hosts)).collect();
        let weather = Weather::random(&mut random);
        let mut scenario = Self { seed, hosts, groups, weather, faults: Vec::new() };
        if random.random_bool(0.7) {
            for _ in 0..random.random_range(1..=4) {
                scenario.add_fault(&mut random);
            }
        }
        scenario
    }

    fn add_fault(&mut self, random: &mut Pcg64) {
        let at = Nanoseconds::from_us(random.random_range(0..=300_000));
        let host = random.random_range(0..self.hosts);
        let short = Nanoseconds::from_us(random.random_range(1..=200_000));
        let long = Nanoseconds::from_us(random.random_range(1..=3_000_000));
        let span = if random.random_bool(0.5) { short } else { long };
        let group = random.random_range(0..self.groups.len() as u32);
        let fault = match random.random_range(0..10) {
            0 => {
                if random.random_bool(0.5) {
                    self.faults.push((at + span, Fault::Restart(host)));
                }
                Fault::Crash(host)
            }
            1 => Fault::Pause { host, span },
            2 | 3 => Fault::StopReading { host, span },
            4 => Fault::Part { side: random.random_range(0..1 << self.hosts), span },
            5 => Fault::Leave { host, group },
            6 | 7 => Fault::Deafen { from: host, to: random.random_range(0..self.hosts), span },
            _ => Fault::Join { host, group },
        };
        self.faults.push((at, fault));
    }

    /// Whether others may go on without this host, or the host without others, because of what happens to it.
    pub fn may_lose(&self, host: usize) -> bool {
        // A pause or a break of a quarter of the silence that nodes bear may, with losses, become one that they do not bear.
        let is_long = |span: Nanoseconds| span > Nanoseconds::from_ms(200);
        self.faults.iter().any(|(_, fault)| match *fault {
            Fault::Crash(crashed) => crashed == host,
            Fault::Pause { host: paused, span } => paused == host && is_long(span),
            Fault::Part { span, .. } => is_long(span),
            // The root makes up for a way between two others that is broken.
            Fault::Deafen { from, to, span } => {
                let is_root = |host| (0..self.groups.len() as u32).any(|group| self.root_host(group) == host);
                is_long(span) && (is_root(from) || is_root(to)) && (from == host || to == host)
            }
            Fault::Restart(_) | Fault::StopReading { .. } | Fault::Leave { .. } | Fault::Join { .. } => false,
        })
    }

    /// Whether a root at this host may lose members to which nothing has happened. A pause shorter than others bear is none of
    /// their concern, and a node that has paused itself knows it.
    pub fn may_mislead(&self, root: usize) -> bool {
        let paused_ns: u64 = self.faults.iter().map(|(_, fault)| fault.pause_of(root).0).sum();
        let others = Self {
            faults: self.faults.iter().copied().filter(|(_, fault)| fault.pause_of(root).0 == 0).collect(),
            ..self.clone()
        };
        Nanoseconds(paused_ns) > Nanoseconds::from_ms(1_000) || others.may_lose(root)
    }

    /// Whether the host asks to leave the group.
    pub fn leaves(&self, host: usize, group: u32) -> bool {
        self.faults.iter().any(|&(_, fault)| fault == Fault::Leave { host, group })
    }
}

impl GroupScenario {
    fn random(random: &mut Pcg64, hosts: usize) -> Self {
        let mut members: Vec<usize> = (0..hosts).collect();
        for place in (1..hosts).rev() {
            members.swap(place, random.random_range(0..=place));
        }
        members.truncate(random.random_range(1..=hosts));
        let root = MemberId(random.random_range(0..members.len() as u32));
        let children = random_tree(random, members.len(), root);
        let slots = 1 << random.random_range(2..=8);
        let payload_bytes_max = 512;
        let packets_max = if random.random_bool(0.2) { 4 * slots } else { 6 };
        let count = random.random_range(0..=30);
        let messages = (0..count).map(|_| {
            let bytes = random.random_range(0..=u64::from(packets_max) * u64::from(payload_bytes_max));
            if random.random_bool(0.3) { bytes % 100 } else { bytes }
        });
        let messages = messages.collect();
        let offload =
            [Offload::Nic, Offload::Nic, Offload::Host, Offload::Assisted][random.random_range(0..4)];
        let start =
            if random.random_bool(0.5) { u32::MAX - random.random_range(0..200) } else { random.random() };
        Self {
            hosts: members,
            root,
            children,
            slots,
            payload_bytes_max,
            offload,
            start: Sequence(start),
            admits: random.random_bool(0.7),
            bytes_per_s_max: random.random_bool(0.2).then(|| random.random_range(100_000..=100_000_000)),
            messages,
            pause_max: Nanoseconds::from_us(10_u64.pow(random.random_range(0..=4))),
            read_pause_max: Nanoseconds::from_us(10_u64.pow(random.random_range(0..=3))),
            read_packets_max: random.random_range(1..=slots),
        }
    }
}

/// A tree over members that keeps the id rule.
fn random_tree(random: &mut Pcg64, members: usize, root: MemberId) -> Vec<Vec<MemberId>> {
    let mut children = vec![Vec::new(); members];
    let fan_out_max = random.random_range(1..=members);
    for member in (0..members as u32).map(MemberId).filter(|&member| member != root) {
        let earlier = (0..member.0).map(MemberId).filter(|&earlier| earlier != root);
        let parents: Vec<MemberId> =
            earlier.chain([root]).filter(|parent| children[parent.0 as usize].len() < fan_out_max).collect();
        let parent = if parents.is_empty() { root } else { parents[random.random_range(0..parents.len())] };
        children[parent.0 as usize].push(member);
    }
    children
}

impl Weather {
    fn random(random: &mut Pcg64) -> Self {
        let mut share = |max: f64| if random.random_bool(0.5) { random.random_range(0.0..=max) } else { 0.0 };
        let (lost, doubled, changed, late) = (share(0.3), share(0.1), share(0.05), share(0.2));
        let delay_min = Nanoseconds(random.random_range(1_000..=200_000));
        let delay_max = delay_min + Nanoseconds(random.random_range(1..=300_000));
        let late_max = Nanoseconds(random.random_range(1_000..=5_000_000));
        Self { lost, doubled, changed, late, delay_min, delay_max, late_max }
    }
}
