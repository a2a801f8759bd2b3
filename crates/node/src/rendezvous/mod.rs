//! Members that find one another at the root.
//!
//! The root listens at a TCP address; the others connect, show that they know the token, and say where their nodes listen.
//! When all are there, each is told of the group and of its own number.

mod client;
mod server;
mod connection;
mod status;
mod messages;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use treecast_proto::Lead;

pub use client::Attendance;
pub use status::{Arrival, Roll};

use crate::{Group, GroupSettings, Node, NodeError, probe, tree};

/// Where members gather: a TCP address at which the root listens, from now on.
///
/// ```
/// use std::time::Duration;
/// use treecast_node::{Attendance, Gathering, GroupSettings, Node, NodeSettings};
///
/// let bind = NodeSettings { bind: "127.0.0.1:0".parse()?, ..NodeSettings::default() };
/// let gathering = Gathering::listen("127.0.0.1:0".parse()?, 2)?;
/// let attendance = Attendance::new(gathering.address(), "secret");
/// let other = std::thread::spawn(move || {
///     let node = Node::open(&bind)?;
///     let group = node.attend(&attendance)?;
///     group.receive(Some(Duration::from_secs(5)))
/// });
///
/// let node = Node::open(&NodeSettings { bind: "127.0.0.1:0".parse()?, ..NodeSettings::default() })?;
/// let settings = GroupSettings { token: "secret".into(), ..GroupSettings::new(Vec::new()) };
/// let group = node.gather(gathering, &settings)?;
/// group.send(b"hello")?;
/// assert_eq!(other.join().unwrap()?.as_deref(), Some(&b"hello"[..]));
/// group.close(Some(Duration::from_secs(5)))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Gathering {
    listener: TcpListener,
    address: SocketAddr,
    /// How many members there will be, the root among them.
    pub members: u32,
    /// What the root is called in messages.
    pub name: String,
    /// How long the root waits for the others; none: for ever.
    pub timeout: Option<Duration>,
}

impl Gathering {
    /// Listens, for so many members with the root. Port 0 lets the system choose one. Until it is told otherwise, the root is
    /// called as its host, and waits for a minute.
    ///
    /// # Errors
    /// [`NodeError::Bind`]; [`NodeError::Members`] for a number of members that no group may have.
    pub fn listen(address: SocketAddr, members: u32) -> Result<Self, NodeError> {
        if !(1..=Lead::MEMBERS_MAX as u32).contains(&members) {
            let problem = format!("a group has from 1 to {} members, and not {members}", Lead::MEMBERS_MAX);
            return Err(NodeError::Members(problem));
        }
        let bind = |source| NodeError::Bind { address, source };
        let listener = TcpListener::bind(address).map_err(bind)?;
        listener.set_nonblocking(true).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        Ok(Self { listener, address, members, name: host_name(), timeout: Some(TIMEOUT) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// How long members are waited for unless somebody says otherwise.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Whoever waits is asked as often whether it goes on.
const ASKED: Duration = Duration::from_millis(50);

impl Node {
    /// Waits until all members have come to a gathering, and takes part in their group as its root. The members of `settings`
    /// are those that come: what is given there does not count. Its root is the number that this node takes.
    ///
    /// # Errors
    /// [`NodeError::Incomplete`] names who has come by the end of the time, and who has not. Those of [`Node::group`].
    pub fn gather(&self, gathering: Gathering, settings: &GroupSettings) -> Result<Group, NodeError> {
        self.gather_while(gathering, settings, &mut |_| true)
    }

    /// As [`Node::gather`], for as long as `goes_on` says. It is asked twenty times a second and whenever something happens, and
    /// given who has come whenever that changes.
    ///
    /// # Errors
    /// Those of [`Node::gather`]; [`NodeError::BrokenOff`], if it does not go on. The others learn that there will be no group.
    pub fn gather_while(
        &self,
        gathering: Gathering,
        settings: &GroupSettings,
        goes_on: &mut dyn FnMut(Option<&Roll>) -> bool,
    ) -> Result<Group, NodeError> {
        settings.check()?;
        if settings.root >= gathering.members as usize {
            return Err(tree::no_such_root(settings.root, gathering.members as usize));
        }
        tree::shape(gathering.members as usize, settings, false)?;
        let mut door = server::Door::open(self.address(), gathering, settings)?;
        door.wait_until_complete(goes_on)?;
        let (settings, own) = door.group();
        if probe::is_wanted(&settings) {
            // The members are needed to measure.
            door.begin(&settings);
            return self.enter(&settings, own);
        }
        match self.enter(&settings, own) {
            Ok(group) => {
                door.begin(&settings);
                Ok(group)
            }
            Err(error) => {
                door.call_off(&error.to_string());
                Err(error)
            }
        }
    }

    /// Takes part in the group that gathers at a root. All settings are the root's.
    ///
    /// # Errors
    /// [`NodeError::TurnedAway`], if this node cannot be a member: another token, a number that somebody has, an address that
    /// others cannot reach. [`NodeError::NotGathered`], if not everybody came in time or the root is gone. Those of
    /// [`Node::group`].
    pub fn attend(&self, attendance: &Attendance) -> Result<Group, NodeError> {
        self.attend_while(attendance, &mut |_| true)
    }

    /// As [`Node::attend`], for as long as `goes_on` says. It is asked twenty times a second and whenever something happens, and
    /// given what is known of the others whenever that changes.
    ///
    /// # Errors
    /// Those of [`Node::attend`]; [`NodeError::BrokenOff`], if it does not go on. The root has room for another then.
    pub fn attend_while(
        &self,
        attendance: &Attendance,
        goes_on: &mut dyn FnMut(Option<&str>) -> bool,
    ) -> Result<Group, NodeError> {
        let (settings, own) = client::attend(self.address(), attendance, goes_on)?;
        self.enter(&settings, own)
    }
}

/// When a wait ends, if ever.
#[derive(Debug, Clone, Copy)]
struct Deadline(Option<Instant>);

impl Deadline {
    fn after(timeout: Option<Duration>) -> Self {
        // What is too far away to be told is for ever.
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    fn is_over(self) -> bool {
        self.0.is_some_and(|until| until <= Instant::now())
    }

    /// What is left, and no more than that.
    fn left(self, at_most: Duration) -> Duration {
        self.0.map_or(at_most, |until| until.saturating_duration_since(Instant::now()).min(at_most))
    }
}

/// What this host calls itself.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if is_name(&name) { name } else { "a host".into() }
}

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Whether that can stand in messages.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control)
}

/// Why a node with that address cannot be a member, if it cannot: `reached_at` is the address at which it has reached the root.
fn unreachable(ip: IpAddr, reached_at: IpAddr) -> Option<String> {
    if ip.is_loopback() != reached_at.is_loopback() {
        let (inner, outer) = if ip.is_loopback() { (ip, reached_at) } else { (reached_at, ip) };
        return Some(format!(
            "{inner} is reached on one host alone, and {outer} on others: let nodes listen at addresses that all reach"
        ));
    }
    let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    is_link_local.then(|| format!("{ip} means another host on every link: take an address that all reach"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_others_cannot_reach_are_told_apart() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(unreachable(ip("127.0.0.1"), ip("127.0.0.1")), None);
        assert_eq!(unreachable(ip("192.0.2.2"), ip("192.0.2.1")), None);
        let why = unreachable(ip("192.0.2.2"), ip("127.0.0.1")).unwrap();
        assert!(why.starts_with("127.0.0.1 is reached on one host alone, and 192.0.2.2 on others"), "{why}");
        assert!(unreachable(ip("fe80::1"), ip("2001:db8::1")).is_some());
    }
}
