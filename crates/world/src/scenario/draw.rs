//! Draws a scenario from a seed.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use treecast_proto::{Authentication, MemberId, Nanoseconds, Offload, Sequence, Transport};

use super::{
    Attacks, Fault, GroupScenario, Kernels, MulticastWeather, Scenario, StreamWeather, Waiting, Weather,
};

/// The expected number of times that the stream of a member breaks, at most.
const BREAKS_MAX: f64 = 30.0;

/// The range of lengths to which paths shrink, in bytes. All that a host has to send in order to be
/// a member is shorter; data may be longer.
const DATAGRAM_BYTES_MIN: usize = 200;
const DATAGRAM_BYTES_MAX: usize = 576;

impl Scenario {
    pub fn random(seed: u64) -> Self {
        let mut random = Pcg64::seed_from_u64(seed);
        let hosts = random.random_range(2..=Self::HOSTS_MAX);
        let groups: Vec<GroupScenario> =
            (0..random.random_range(1..=3)).map(|_| GroupScenario::random(&mut random, hosts)).collect();
        let weather = Weather::random(&mut random);
        let attacks = Attacks::random(&mut random);
        let multicast = MulticastWeather::random(seed, hosts);
        let kernels = Kernels::random(seed, hosts);
        let streams = StreamWeather::random(seed, &groups);
        let faults = Vec::new();
        let mut scenario =
            Self { seed, hosts, groups, weather, multicast, streams, kernels, attacks, faults };
        if random.random_bool(0.7) {
            for _ in 0..random.random_range(1..=4) {
                scenario.add_fault(&mut random);
            }
        }
        scenario.calm_weather();
        scenario.take_multicast();
        scenario.take_streams();
        scenario.shrink_paths();
        scenario.take_variants();
        scenario.take_processes();
        scenario.take_reductions();
        scenario.relieve_members();
        scenario
    }

    /// In some worlds groups carry out all-reduces. A random stream of its own decides that, so
    /// that it changes nothing else.
    fn take_reductions(&mut self) {
        let mut random = Pcg64::seed_from_u64(self.seed ^ 0x7265_6475_6365_0000);
        if random.random_bool(0.6) {
            return;
        }
        for group in &mut self.groups {
            if random.random_bool(0.8) {
                group.reduced_every = random.random_range(1..=4);
            }
        }
    }

    /// In some worlds several processes share nodes. They come early or late, some are killed, and
    /// a few never come. A random stream of its own decides that, so that it changes nothing else.
    fn take_processes(&mut self) {
        let mut random = Pcg64::seed_from_u64(self.seed ^ 0x7072_6f63_6573_7300);
        if random.random_bool(0.7) {
            return;
        }
        for (group, setting) in (0..).zip(&mut self.groups) {
            for (&host, count) in setting.hosts.iter().zip(&mut setting.processes) {
                if random.random_bool(0.6) {
                    continue;
                }
                *count = random.random_range(2..=4);
                for process in 0..*count {
                    let latest_us = 10_u64.pow(random.random_range(1..=6));
                    let come_at = Nanoseconds::from_us(random.random_range(0..=latest_us));
                    let kill_at = come_at + Nanoseconds::from_us(random.random_range(0..=500_000));
                    if random.random_bool(0.97) {
                        self.faults.push((come_at, Fault::Come { host, group, process }));
                        if random.random_bool(0.2) {
                            self.faults.push((kill_at, Fault::Kill { host, group, process }));
                        }
                    }
                }
            }
        }
    }

    /// What codes cover and how applications wait, of some groups; from a stream of its own, so
    /// that it changes nothing else.
    fn take_variants(&mut self) {
        let mut random = Pcg64::seed_from_u64(self.seed ^ 0x7661_7269_616e_7400);
        for group in &mut self.groups {
            // Data by multicast always has codes of its payloads.
            if random.random_bool(0.5) || group.offload == Offload::Switch {
                group.authentication = Authentication::Payload;
            }
            if random.random_bool(0.5) {
                group.waiting = Waiting::Sleeps;
            }
        }
    }

    /// In most worlds with the kernel's packet path, little happens to packets: that path handles
    /// no packet out of order. A stream of its own decides that, so that it changes nothing else.
    fn calm_weather(&mut self) {
        let mut random = Pcg64::seed_from_u64(self.seed ^ 0x6361_6c6d_0000_0000);
        if self.kernels.hosts == 0 || random.random_bool(0.3) {
            return;
        }
        let factor = 0.1_f64.powi(random.random_range(0..=3));
        let Weather { lost, duplicated, corrupted, late, keeps_order, .. } = &mut self.weather;
        *keeps_order = true;
        for share in [lost, duplicated, corrupted, late] {
            *share *= factor;
        }
    }

    /// In some worlds, groups whose nodes forward by themselves send by multicast. A stream of its
    /// own decides that, so that it changes nothing else.
    fn take_multicast(&mut self) {
        let mut random = Pcg64::seed_from_u64(self.seed ^ 0x7377_6974_6368_0000);
        if random.random_bool(0.5) {
            return;
        }
        for group in self.groups.iter_mut().filter(|group| group.offload == Offload::Nic) {
            if random.random_bool(0.8) {
                group.offload = Offload::Switch;
            }
        }
    }

    /// In some worlds groups without multicast send on streams, or both on streams and in
    /// datagrams. A stream of its own decides that, so that it changes nothing else.
    fn take_streams(&mut self) {
        let mut random = Pcg64::seed_from_u64(self.seed ^ 0x7374_7265_616d_0000);
        if random.random_bool(0.5) {
            return;
        }
        for group in self.groups.iter_mut().filter(|group| group.offload != Offload::Switch) {
            if random.random_bool(0.8) {
                let has_both = random.random_bool(0.4);
                group.transport = if has_both { Transport::Both } else { Transport::Streams };
            }
        }
    }

    /// In some worlds paths shrink. A stream of its own draws that, so that it changes nothing
    /// else.
    fn shrink_paths(&mut self) {
        let mut random = Pcg64::seed_from_u64(self.seed ^ 0x7368_7269_6e6b_0000);
        if random.random_bool(0.8) {
            return;
        }
        for _ in 0..random.random_range(1..=2) {
            let at = Nanoseconds::from_us(random.random_range(0..=300_000));
            let from = random.random_bool(0.5).then(|| random.random_range(0..self.hosts));
            let to = random.random_range(0..self.hosts);
            let datagram_bytes_max = random.random_range(DATAGRAM_BYTES_MIN..DATAGRAM_BYTES_MAX);
            self.faults.push((at, Fault::Shrink { from, to, datagram_bytes_max }));
        }
    }

    /// In some worlds roots make members leaves. A stream of its own draws that, so that it changes
    /// nothing else.
    fn relieve_members(&mut self) {
        let mut random = Pcg64::seed_from_u64(self.seed ^ 0x7265_6c69_6576_6500);
        if random.random_bool(0.7) {
            return;
        }
        for _ in 0..random.random_range(1..=4) {
            let at = Nanoseconds::from_us(random.random_range(0..=300_000));
            let group = random.random_range(0..self.groups.len() as u32);
            let member = MemberId(random.random_range(0..self.hosts as u32));
            self.faults.push((at, Fault::Relieve { group, member }));
        }
    }

    fn add_fault(&mut self, random: &mut Pcg64) {
        let at = Nanoseconds::from_us(random.random_range(0..=300_000));
        let host = random.random_range(0..self.hosts);
        let short = Nanoseconds::from_us(random.random_range(1..=200_000));
        let long = Nanoseconds::from_us(random.random_range(1..=3_000_000));
        let span = if random.random_bool(0.5) { short } else { long };
        let group = random.random_range(0..self.groups.len() as u32);
        let fault = match random.random_range(0..14) {
            0 => {
                if random.random_bool(0.5) {
                    self.faults.push((at + span, Fault::Restart(host)));
                }
                Fault::Crash(host)
            }
            1 => Fault::Pause { host, span },
            2 | 3 => Fault::StopReading { host, span },
            4 => Fault::Partition { side: random.random_range(0..1 << self.hosts), span },
            5 => Fault::Leave { host, group },
            10..=13 => {
                // A root is restarted, perhaps while a host is not scheduled.
                let root = self.root_host(group);
                if random.random_bool(0.5) {
                    self.faults.push((at, Fault::Pause { host, span: long }));
                }
                let crash_at = at + Nanoseconds::from_us(random.random_range(0..=2_000));
                self.faults.push((crash_at + short, Fault::Restart(root)));
                self.faults.push((crash_at, Fault::Crash(root)));
                return;
            }
            6 | 7 => Fault::BreakPath { from: host, to: random.random_range(0..self.hosts), span },
            _ => Fault::Join { host, group },
        };
        self.faults.push((at, fault));
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
        let messages: Vec<u64> = messages.collect();
        // A root that sends a copy to each member is done in a quarter of a minute, so that a world
        // ends in time.
        let slowest = messages.iter().sum::<u64>() * members.len() as u64 / 15;
        let offload =
            [Offload::Nic, Offload::Nic, Offload::Host, Offload::Assisted][random.random_range(0..4)];
        let start =
            if random.random_bool(0.5) { u32::MAX - random.random_range(0..200) } else { random.random() };
        Self {
            processes: vec![0; members.len()],
            hosts: members,
            root,
            children,
            slots,
            payload_bytes_max,
            offload,
            authentication: Authentication::Header,
            transport: Transport::Packets,
            start: Sequence(start),
            admits: random.random_bool(0.7),
            bytes_per_s_max: random
                .random_bool(0.2)
                .then(|| random.random_range(slowest.max(100_000)..=100_000_000)),
            messages,
            reduced_every: 0,
            pause_max: Nanoseconds::from_us(10_u64.pow(random.random_range(0..=4))),
            read_pause_max: Nanoseconds::from_us(10_u64.pow(random.random_range(0..=3))),
            read_packets_max: random.random_range(1..=slots),
            waiting: Waiting::Checks,
            is_repeated: random.random_bool(0.8),
            has_equal_sessions: random.random_bool(0.5),
        }
    }
}

/// A random tree over members, which need not be numbered from the root on.
fn random_tree(random: &mut Pcg64, members: usize, root: MemberId) -> Vec<Vec<MemberId>> {
    let mut children = vec![Vec::new(); members];
    let fan_out_max = random.random_range(1..=members);
    let mut others: Vec<MemberId> =
        (0..members as u32).map(MemberId).filter(|&member| member != root).collect();
    others.shuffle(random);
    let mut reached = vec![root];
    for member in others {
        let parents: Vec<MemberId> = reached
            .iter()
            .copied()
            .filter(|parent| children[parent.0 as usize].len() < fan_out_max)
            .collect();
        let parent = parents[random.random_range(0..parents.len())];
        children[parent.0 as usize].push(member);
        reached.push(member);
    }
    children
}

impl Kernels {
    /// A stream of its own draws that, so that it changes nothing else.
    fn random(seed: u64, hosts: usize) -> Self {
        let mut random = Pcg64::seed_from_u64(seed ^ 0x6b65_726e_656c_0000);
        let all = (1_u64 << hosts) - 1;
        let with_kernel = match random.random_range(0..3) {
            0 => 0,
            1 => random.random_range(0..=all),
            _ => all,
        };
        Self {
            hosts: with_kernel,
            running_through_pauses: random.random_range(0..=all),
            handed_off: random.random_range(0.3..=1.0),
            passed_up: if random.random_bool(0.5) { random.random_range(0.0..0.1) } else { 0.0 },
            latency_max: Nanoseconds(10_u64.pow(random.random_range(0..=6))),
        }
    }
}

impl Attacks {
    fn random(random: &mut Pcg64) -> Self {
        let mut share = |max: f64| if random.random_bool(0.3) { random.random_range(0.0..=max) } else { 0.0 };
        let (replayed, forged) = (share(0.3), share(0.3));
        Self { replayed, forged, has_token: random.random_bool(0.2) }
    }
}

impl StreamWeather {
    fn random(seed: u64, groups: &[GroupScenario]) -> Self {
        let mut random = Pcg64::seed_from_u64(seed ^ 0x7374_7265_616d_0001);
        let mut share = |max: f64| if random.random_bool(0.5) { random.random_range(0.0..=max) } else { 0.0 };
        let (breaks, unheard) = (share(0.05), share(0.5));
        // So few streams break that a world ends in time: each break may take half a second.
        let packets = |group: &GroupScenario| {
            group.messages.iter().map(|bytes| 1 + bytes / u64::from(group.payload_bytes_max)).sum::<u64>()
        };
        let packets = groups.iter().map(packets).max().unwrap_or_default().max(1);
        let breaks = breaks.min(BREAKS_MAX / packets as f64);
        let packets_max = 1 << random.random_range(0..=6);
        let forgets = if random.random_bool(0.5) { random.random_range(0.0..=1.0) } else { 0.0 };
        Self { breaks, unheard, packets_max, forgets }
    }
}

impl MulticastWeather {
    fn random(seed: u64, hosts: usize) -> Self {
        let mut random = Pcg64::seed_from_u64(seed ^ 0x6d75_6c74_6963_6100);
        let set = |random: &mut Pcg64| random.random_range(0..1_u64 << hosts);
        let lossy_links = (0..random.random_range(0..3))
            .map(|_| (set(&mut random), random.random_range(0.0..0.5)))
            .collect();
        let end = Nanoseconds(u64::MAX);
        let mut unreached = Vec::new();
        if random.random_bool(0.4) {
            unreached.push((set(&mut random), Nanoseconds::ZERO, end));
        }
        for _ in 0..random.random_range(0..3) {
            let from = Nanoseconds::from_us(random.random_range(0..=300_000));
            let span = Nanoseconds::from_us(10_u64.pow(random.random_range(2..=6)));
            let until = if random.random_bool(0.3) { end } else { from + span };
            unreached.push((set(&mut random), from, until));
        }
        Self { lossy_links, unreached }
    }
}

impl Weather {
    fn random(random: &mut Pcg64) -> Self {
        let mut share = |max: f64| if random.random_bool(0.5) { random.random_range(0.0..=max) } else { 0.0 };
        let lost = share(0.3);
        let duplicated = share(0.1);
        let corrupted = share(0.05);
        let late = share(0.2);
        let delay_min = Nanoseconds(random.random_range(1_000..=200_000));
        let delay_max = delay_min + Nanoseconds(random.random_range(1..=300_000));
        let late_max = Nanoseconds(random.random_range(1_000..=5_000_000));
        Self { lost, duplicated, corrupted, late, delay_min, delay_max, late_max, keeps_order: false }
    }
}
