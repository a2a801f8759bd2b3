//! Groups: members on hosts, and a root among them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use fixedbitset::FixedBitSet;
use rand::RngExt;
use rand_pcg::Pcg64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treecast_fabric::{Fabric, HostId};
use treecast_terms::{MemberId, NameAndOptions, SpecError};

use crate::error::PlanError;
use crate::limits::MEMBERS_MAX;
use crate::numbering::{Numbering, is_sparse};

/// The numbering of processes over hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Arrangement {
    /// Member m is on host `m / processes`.
    #[default]
    Block,
    /// Member m is on host `m % hosts`.
    Cyclic,
}

impl fmt::Display for Arrangement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Block => "block",
            Self::Cyclic => "cyclic",
        })
    }
}

impl FromStr for Arrangement {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "block" => Ok(Self::Block),
            "cyclic" => Ok(Self::Cyclic),
            other => Err(SpecError::UnknownName {
                what: "placement",
                given: other.into(),
                known: vec!["block".into(), "cyclic".into()],
            }),
        }
    }
}

/// Which member runs on which host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Placement {
    hosts: u32,
    numbering: HostNumbering,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum HostNumbering {
    /// The same number of processes on every host.
    Regular { processes: u32, arrangement: Arrangement },
    /// Any other.
    Listed(Arc<Listed>),
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Listed {
    /// The host of each member.
    host_of: Vec<HostId>,
    /// All members, sorted by host and then by number.
    by_host: Vec<MemberId>,
}

impl Listed {
    /// The members of a host, by number.
    fn members_of(&self, host: HostId) -> &[MemberId] {
        let first_of = |host| self.by_host.partition_point(|member| self.host_of[member.index()].0 < host);
        &self.by_host[first_of(host.0)..first_of(host.0 + 1)]
    }

    /// The greatest number of members of one host.
    fn processes(&self) -> u32 {
        let of_one_host =
            self.by_host.chunk_by(|one, next| self.host_of[one.index()] == self.host_of[next.index()]);
        of_one_host.map(<[_]>::len).max().unwrap_or_default() as u32
    }
}

impl Placement {
    /// The maximum number of members of a placement.
    pub const MEMBERS_MAX: u32 = MEMBERS_MAX;

    /// One process per host: member and host have the same number.
    pub const fn one_per_host(hosts: u32) -> Self {
        let numbering = HostNumbering::Regular { processes: 1, arrangement: Arrangement::Block };
        Self { hosts, numbering }
    }

    /// The same number of processes on every host.
    ///
    /// # Errors
    /// [`PlanError::BadProcesses`] for none, or for more than [`Placement::MEMBERS_MAX`] in all.
    pub fn new(hosts: u32, processes: u32, arrangement: Arrangement) -> Result<Self, PlanError> {
        match hosts.checked_mul(processes) {
            None | Some(0) => Err(PlanError::BadProcesses),
            Some(members) if members > Self::MEMBERS_MAX => Err(PlanError::BadProcesses),
            Some(_) => Ok(Self { hosts, numbering: HostNumbering::Regular { processes, arrangement } }),
        }
    }

    /// A placement on this many hosts, by the host of each member, in any order. If every host has
    /// the same number of processes, numbered in blocks or in turn, it equals the placement of
    /// [`Placement::new`].
    ///
    /// # Errors
    /// [`PlanError::BadProcesses`] for no members, and for more than [`Placement::MEMBERS_MAX`];
    /// [`PlanError::NoSuchHost`].
    ///
    /// ```
    /// # use treecast_fabric::HostId;
    /// # use treecast_plan::{MemberId, Placement};
    /// let placement = Placement::listed(2, [0, 1, 1].map(HostId).into())?;
    /// assert_eq!(placement.members_of(HostId(1)).collect::<Vec<_>>(), [MemberId(1), MemberId(2)]);
    /// # Ok::<(), treecast_plan::PlanError>(())
    /// ```
    pub fn listed(hosts: u32, host_of: Vec<HostId>) -> Result<Self, PlanError> {
        let members = u32::try_from(host_of.len()).unwrap_or(u32::MAX);
        if hosts == 0 || !(1..=Self::MEMBERS_MAX).contains(&members) {
            return Err(PlanError::BadProcesses);
        }
        if let Some((member, host)) = (0..).map(MemberId).zip(&host_of).find(|(_, host)| host.0 >= hosts) {
            return Err(PlanError::NoSuchHost { member, host: host.0, hosts });
        }
        for arrangement in [Arrangement::Block, Arrangement::Cyclic] {
            let regular = Self::new(hosts, (members / hosts).max(1), arrangement)?;
            let is_same = |(member, &host)| regular.host_of(MemberId(member)) == host;
            if regular.member_count() == members && (0..).zip(&host_of).all(is_same) {
                return Ok(regular);
            }
        }
        let mut by_host: Vec<MemberId> = (0..members).map(MemberId).collect();
        by_host.sort_by_key(|member| host_of[member.index()]);
        Ok(Self { hosts, numbering: HostNumbering::Listed(Arc::new(Listed { host_of, by_host })) })
    }

    /// The number of hosts.
    pub fn host_count(&self) -> u32 {
        self.hosts
    }

    /// The number of processes on each host; the greatest, if it differs.
    pub fn processes(&self) -> u32 {
        match &self.numbering {
            HostNumbering::Regular { processes, .. } => *processes,
            HostNumbering::Listed(listed) => listed.processes(),
        }
    }

    /// The numbering of processes; none, if every member's host is listed.
    pub fn arrangement(&self) -> Option<Arrangement> {
        match &self.numbering {
            HostNumbering::Regular { arrangement, .. } => Some(*arrangement),
            HostNumbering::Listed(_) => None,
        }
    }

    /// The number of members.
    pub fn member_count(&self) -> u32 {
        match &self.numbering {
            HostNumbering::Regular { processes, .. } => self.hosts * processes,
            HostNumbering::Listed(listed) => listed.host_of.len() as u32,
        }
    }

    /// The host that a member runs on.
    pub fn host_of(&self, member: MemberId) -> HostId {
        match &self.numbering {
            HostNumbering::Regular { processes, arrangement: Arrangement::Block } => {
                HostId(member.0 / processes)
            }
            HostNumbering::Regular { arrangement: Arrangement::Cyclic, .. } => HostId(member.0 % self.hosts),
            HostNumbering::Listed(listed) => listed.host_of[member.index()],
        }
    }

    /// The members that run on a host, by number.
    pub fn members_of(&self, host: HostId) -> impl Iterator<Item = MemberId> + use<'_> {
        let (regular, listed) = match &self.numbering {
            HostNumbering::Regular { processes, arrangement: Arrangement::Block } => {
                (Some((host.0 * processes, 1, *processes)), &[][..])
            }
            HostNumbering::Regular { processes, arrangement: Arrangement::Cyclic } => {
                (Some((host.0, self.hosts, *processes)), &[][..])
            }
            HostNumbering::Listed(listed) => (None, listed.members_of(host)),
        };
        let regular = regular
            .into_iter()
            .flat_map(|(first, step, count)| (0..count).map(move |process| MemberId(first + process * step)));
        regular.chain(listed.iter().copied())
    }

    /// The hosts that members run on, each once, by number.
    pub fn hosts_of(&self, members: &[MemberId]) -> Vec<HostId> {
        let mut hosts: Vec<HostId> = members.iter().map(|&member| self.host_of(member)).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// Checks that the hosts are those of a fabric.
    pub(crate) fn check_fabric(&self, fabric: &Fabric) -> Result<(), PlanError> {
        let (placed, hosts) = (self.hosts, fabric.topology().host_count());
        if placed == hosts { Ok(()) } else { Err(PlanError::PlacementMismatch { placed, hosts }) }
    }

    /// The noun for a member in messages: `host` if each host runs one process.
    fn noun(&self) -> &'static str {
        if self.processes() == 1 { "host" } else { "member" }
    }

    fn check(&self, member: MemberId) -> Result<(), PlanError> {
        if member.0 < self.member_count() {
            return Ok(());
        }
        Err(PlanError::NoSuchMember { what: self.noun(), member: member.0, count: self.member_count() })
    }
}

/// An ordered list of members and one root.
///
/// ```
/// use treecast_plan::{Group, MemberId, Placement};
///
/// let group = Group::new(Placement::one_per_host(16), MemberId(0), vec![MemberId(3), MemberId(5)])?;
/// assert_eq!(group.size(), 3);
/// assert!(Group::new(Placement::one_per_host(16), MemberId(0), vec![MemberId(0)]).is_err());
/// # Ok::<(), treecast_plan::PlanError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Group {
    placement: Placement,
    root: MemberId,
    destinations: Vec<MemberId>,
}

impl Group {
    /// A group of a root and at least one destination, without duplicates.
    ///
    /// # Errors
    /// [`PlanError::NoSuchMember`], [`PlanError::Twice`], [`PlanError::RootAmongDestinations`],
    /// [`PlanError::NoDestinations`].
    pub fn new(placement: Placement, root: MemberId, destinations: Vec<MemberId>) -> Result<Self, PlanError> {
        placement.check(root)?;
        if destinations.is_empty() {
            return Err(PlanError::NoDestinations);
        }
        // Each member is checked to exist before its number is looked up.
        let numbers = Numbering::of(destinations.iter().copied(), placement.member_count());
        let mut seen = FixedBitSet::with_capacity(numbers.len());
        for &member in &destinations {
            placement.check(member)?;
            if member == root {
                return Err(PlanError::RootAmongDestinations(root));
            }
            if seen.put(numbers.number(member).expect("every destination has a number")) {
                return Err(PlanError::Twice(member));
            }
        }
        Ok(Self { placement, root, destinations })
    }

    /// Which member runs on which host.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The root.
    pub fn root(&self) -> MemberId {
        self.root
    }

    /// All members but the root, in the order given.
    pub fn destinations(&self) -> &[MemberId] {
        &self.destinations
    }

    /// The number of members with the root: n.
    pub fn size(&self) -> u32 {
        self.destinations.len() as u32 + 1
    }
}

/// A list of destinations as a user writes it: `1-31`, `3,5,9`, `all`, `random:15`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberList {
    /// All members but the root.
    All,
    /// This number of random members, without the root.
    Random(u32),
    /// Ranges of members, first and last included.
    Ranges(Vec<(u32, u32)>),
}

/// The random stream of a seed that draws destinations.
const DESTINATION_STREAM: u128 = 0x6465_7374;

impl MemberList {
    /// The members of the list on a placement.
    ///
    /// # Errors
    /// [`PlanError::NoSuchMember`], [`PlanError::TooManyDestinations`].
    pub fn resolve(
        &self,
        placement: &Placement,
        root: MemberId,
        seed: u64,
    ) -> Result<Vec<MemberId>, PlanError> {
        placement.check(root)?;
        let others = (0..placement.member_count()).map(MemberId).filter(|&member| member != root);
        match self {
            Self::All => Ok(others.collect()),
            &Self::Random(wanted) => {
                let available = placement.member_count() - 1;
                if wanted > available {
                    return Err(PlanError::TooManyDestinations { wanted, available });
                }
                let mut random = Pcg64::new(u128::from(seed), DESTINATION_STREAM);
                let positions = drawn(&mut random, available as usize, wanted as usize);
                // The numbers skip the root's.
                let member =
                    |position: usize| MemberId(position as u32 + u32::from(position as u32 >= root.0));
                Ok(positions.into_iter().map(member).collect())
            }
            Self::Ranges(ranges) => {
                // The ends are checked first: a range is at most as long as the placement.
                for &(first, last) in ranges {
                    placement.check(MemberId(first))?;
                    placement.check(MemberId(last))?;
                }
                Ok(ranges.iter().flat_map(|&(first, last)| first..=last).map(MemberId).collect())
            }
        }
    }
}

/// `wanted` distinct positions below `available`: the first ones of a Fisher-Yates shuffle.
fn drawn(random: &mut Pcg64, available: usize, wanted: usize) -> Vec<usize> {
    if !is_sparse(wanted, available) {
        let mut pool: Vec<usize> = (0..available).collect();
        for index in 0..wanted {
            pool.swap(index, random.random_range(index..available));
        }
        pool.truncate(wanted);
        return pool;
    }
    // A sparse shuffle: only the positions whose number is not their own.
    let mut moved: BTreeMap<usize, usize> = BTreeMap::new();
    let draw = |index| {
        let other = random.random_range(index..available);
        // The shuffle does not read position `index` again.
        let here = moved.remove(&index).unwrap_or(index);
        if other == index { here } else { moved.insert(other, here).unwrap_or(other) }
    };
    (0..wanted).map(draw).collect()
}

impl FromStr for MemberList {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let malformed = || PlanError::MemberList(text.into());
        if text == "all" {
            return Ok(Self::All);
        }
        if let Some(count) = text.strip_prefix("random:") {
            return count.parse().map(Self::Random).map_err(|_| malformed());
        }
        let range = |item: &str| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let range = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (range.0 <= range.1).then_some(range)
        };
        text.split(',')
            .map(|item| range(item).ok_or_else(malformed))
            .collect::<Result<_, _>>()
            .map(Self::Ranges)
    }
}

/// The order in which a tree is built over the destinations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Ascending ids: a child's id is then greater than its parent's unless that is the root.
    /// Required where NICs with bounded buffers execute the tree.
    #[default]
    Id,
    /// The order of the group's list.
    Given,
    /// A random order, from a seed.
    Random(u64),
    /// Hosts of one switch are adjacent; the root's switch first, then ascending from there.
    Switch,
    /// Chain-concatenated order, *reconstructed*: see [`crate::order::chain_concatenated`].
    Cco,
}

impl Order {
    /// The names it is read from.
    pub const NAMES: [&str; 5] = ["id", "given", "random", "switch", "cco"];
}

impl FromStr for Order {
    type Err = SpecError;

    /// Reads `id`, `given`, `random`, `random:seed=3`, `switch`, `cco`.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let spec: NameAndOptions = text.parse()?;
        spec.only(if spec.name() == "random" { &["seed"] } else { &[] })?;
        match spec.name() {
            "id" => Ok(Self::Id),
            "given" => Ok(Self::Given),
            "random" => Ok(Self::Random(spec.value("seed", "a whole number")?.unwrap_or(1))),
            "switch" => Ok(Self::Switch),
            "cco" => Ok(Self::Cco),
            other => Err(SpecError::UnknownName {
                what: "order",
                given: other.into(),
                known: Self::NAMES.map(String::from).to_vec(),
            }),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id => formatter.write_str("id"),
            Self::Given => formatter.write_str("given"),
            Self::Random(seed) => write!(formatter, "random:seed={seed}"),
            Self::Switch => formatter.write_str("switch"),
            Self::Cco => formatter.write_str("cco"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIXTEEN: Placement = Placement::one_per_host(16);

    fn resolve(list: &str) -> Result<Vec<u32>, PlanError> {
        let members = list.parse::<MemberList>()?.resolve(&SIXTEEN, MemberId(0), 7)?;
        Ok(members.into_iter().map(|member| member.0).collect())
    }

    #[test]
    fn lists_resolve_to_their_members() {
        assert_eq!(resolve("all").unwrap(), (1..16).collect::<Vec<_>>());
        assert_eq!(resolve("3,5-7,9").unwrap(), [3, 5, 6, 7, 9]);
        let random = resolve("random:5").unwrap();
        assert_eq!(random, resolve("random:5").unwrap());
        assert!(random.len() == 5 && !random.contains(&0));
    }

    #[test]
    fn a_draw_is_a_prefix_of_a_full_shuffle() {
        for seed in 0..50 {
            for (available, wanted) in [(1, 0), (20, 0), (20, 1), (100, 6), (16_000, 999), (20, 19), (20, 20)]
            {
                let mut random = Pcg64::new(seed, DESTINATION_STREAM);
                let mut pool: Vec<usize> = (0..available).collect();
                for index in 0..wanted {
                    let other = random.random_range(index..pool.len());
                    pool.swap(index, other);
                }
                let found = drawn(&mut Pcg64::new(seed, DESTINATION_STREAM), available, wanted);
                assert_eq!(found, pool[..wanted]);
            }
        }
    }

    #[test]
    fn sparse_groups_are_checked_like_dense_ones() {
        let many = Placement::one_per_host(1_000_000);
        let group = |members: &[u32]| {
            Group::new(many.clone(), MemberId(7), members.iter().copied().map(MemberId).collect()).map(|_| ())
        };
        assert_eq!(group(&[999_999, 3, 5]), Ok(()));
        assert_eq!(group(&[5, 3, 9, 3, 5]), Err(PlanError::Twice(MemberId(3))));
        assert_eq!(group(&[5, 7]), Err(PlanError::RootAmongDestinations(MemberId(7))));
        assert!(matches!(group(&[5, 1_000_000]), Err(PlanError::NoSuchMember { member: 1_000_000, .. })));
    }

    #[test]
    fn bad_lists_name_what_is_wrong() {
        let error = |list: &str| resolve(list).unwrap_err().to_string();
        assert_eq!(error("3-16"), "there is no host 16: the group has hosts 0 to 15");
        assert_eq!(error("random:16"), "random:16 asks for more destinations than there are: 15");
        for list in ["", "x", "5-3", "1,,2", "random:x", "-1"] {
            assert!(error(list).contains(&format!("'{list}' is not a list of members")), "{list}");
        }
    }

    #[test]
    fn bad_groups_name_the_member() {
        let error = |root, destinations: &[u32]| {
            let destinations = destinations.iter().copied().map(MemberId).collect();
            Group::new(SIXTEEN, MemberId(root), destinations).unwrap_err().to_string()
        };
        assert_eq!(error(0, &[1, 2, 1]), "destination 1 is given twice");
        assert_eq!(error(3, &[1, 3]), "the root 3 is among the destinations");
        assert_eq!(error(16, &[1]), "there is no host 16: the group has hosts 0 to 15");
        assert_eq!(error(0, &[]), "the group has no destinations");
    }

    #[test]
    fn placement_puts_members_on_hosts() {
        let hosts = |arrangement| {
            let placement = Placement::new(3, 2, arrangement).unwrap();
            for host in (0..3).map(HostId) {
                assert!(placement.members_of(host).all(|member| placement.host_of(member) == host));
            }
            (0..6).map(|member| placement.host_of(MemberId(member)).0).collect::<Vec<_>>()
        };
        assert_eq!(hosts(Arrangement::Block), [0, 0, 1, 1, 2, 2]);
        assert_eq!(hosts(Arrangement::Cyclic), [0, 1, 2, 0, 1, 2]);
        assert_eq!(Placement::new(3, 0, Arrangement::Block), Err(PlanError::BadProcesses));
    }
}
