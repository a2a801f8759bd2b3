//! Rendezvous: the root listens at a TCP address, and the other members join there.
//!
//! Each member proves that it knows the token, and says where its node listens. When all have
//! joined, the root sends each the list of members, the settings of the group, and its member
//! number.

mod client;
mod connection;
mod messages;
mod server;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use treecast_engine::settings::GroupSettings;
use treecast_engine::settings::config::{self, GroupConfig};
use treecast_engine::settings::error::NodeError;
use treecast_engine::settings::join_status::{JoinStatus, JoinedMember};

pub use client::JoinOptions;

use crate::api::group::Group;
use crate::api::node::Node;

/// A TCP address at which the root listens for the other members. Connections queue from the moment
/// it is bound.
///
/// ```
/// use std::time::Duration;
/// use treecast_node::{GroupSettings, JoinOptions, Listener, Node, NodeSettings};
///
/// let bind = NodeSettings { bind: "127.0.0.1:0".parse()?, ..NodeSettings::default() };
/// let listener = Listener::bind("127.0.0.1:0".parse()?, 2)?;
/// let options = JoinOptions::new(listener.address(), "secret");
/// let other = std::thread::spawn(move || {
///     let node = Node::open(&bind)?;
///     let group = node.join(&options)?;
///     group.receive(Some(Duration::from_secs(5)))
/// });
///
/// let node = Node::open(&NodeSettings { bind: "127.0.0.1:0".parse()?, ..NodeSettings::default() })?;
/// let settings = GroupSettings { token: "secret".into(), ..GroupSettings::new(Vec::new()) };
/// let group = node.listen(listener, &settings)?;
/// group.send(b"hello")?;
/// assert_eq!(other.join().unwrap()?.as_deref(), Some(&b"hello"[..]));
/// group.close(Some(Duration::from_secs(5)))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    /// The number of members of the group, the root included.
    pub members: u32,
    /// The root's name in messages.
    pub name: String,
    /// How long the root waits for the other members; none: no limit.
    pub timeout: Option<Duration>,
}

impl Listener {
    /// Binds the address, for a group of `members`, the root included. Port 0 lets the system
    /// choose a port. By default the root uses the host's name, and waits for one minute.
    ///
    /// # Errors
    /// [`NodeError::Bind`]; [`NodeError::Members`] for an invalid number of members.
    pub fn bind(address: SocketAddr, members: u32) -> Result<Self, NodeError> {
        config::check_count(members)?;
        let bind = |source| NodeError::Bind { address, source, is_shared: false };
        let socket = TcpListener::bind(address).map_err(bind)?;
        socket.set_nonblocking(true).map_err(bind)?;
        let address = socket.local_addr().map_err(bind)?;
        Ok(Self { socket, address, members, name: host_name(), timeout: Some(TIMEOUT) })
    }

    /// The bound address, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The default timeout on either side.
const TIMEOUT: Duration = Duration::from_mins(1);

/// How often a waiting call asks its caller whether to go on.
const CONTINUE_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Node {
    /// Waits until all other members have joined, and takes part in their group as its root. The
    /// members of `settings` are ignored: they are those that join. Its root is the number that
    /// this node takes.
    ///
    /// # Errors
    /// [`NodeError::Incomplete`] names the members that have joined by the timeout, and those that
    /// are missing; [`NodeError::PathMtu`], if the settings have an `mtu_bytes` that the path to a
    /// member does not carry: its members get the same error; [`NodeError::NotOnFabric`], if the
    /// fabric of the settings has no host of the listener's name (a member with such a name is
    /// rejected). Those of [`Node::group`].
    pub fn listen(&self, listener: Listener, settings: &GroupSettings) -> Result<Group, NodeError> {
        self.listen_while(listener, settings, &mut |_| true)
    }

    /// As [`Node::listen`], until `goes_on` returns false. It is called twenty times per second,
    /// and with the status whenever that changes.
    ///
    /// # Errors
    /// Those of [`Node::listen`]; [`NodeError::Cancelled`], if `goes_on` returned false: the
    /// members that have joined get the same error.
    pub fn listen_while(
        &self,
        listener: Listener,
        settings: &GroupSettings,
        goes_on: &mut dyn FnMut(Option<&JoinStatus>) -> bool,
    ) -> Result<Group, NodeError> {
        let checked = settings.check(listener.address(), listener.members);
        let mut server = server::Server::new(self, listener, settings)?;
        if let Err(error) = checked.and_then(|()| server.check_root()) {
            server.cancel(&error.to_string());
            return Err(error);
        }
        server.wait_until_complete(goes_on)?;
        let (settings, own) = server.group();
        let config = match GroupConfig::new(settings) {
            Ok(config) => config,
            Err(error) => {
                server.cancel(&error.to_string());
                return Err(error);
            }
        };
        let settings = config.settings().clone();
        if settings.measures_lambda() {
            // The root measures the network with all members, so they have to start first.
            server.start(&settings);
            return self.enter(config, own);
        }
        match self.enter(config, own) {
            Ok(group) => {
                server.start(&settings);
                Ok(group)
            }
            Err(error) => {
                server.cancel(&error.to_string());
                Err(error)
            }
        }
    }

    /// Joins the group of a root that listens, or will listen before the timeout. All settings are
    /// the root's.
    ///
    /// # Errors
    /// [`NodeError::Rejected`], if the root rejects this node: another token, a number that is
    /// taken, an address that other members cannot reach. [`NodeError::JoinFailed`], if members or
    /// the root are missing at the timeout. Those of [`Node::group`].
    pub fn join(&self, options: &JoinOptions) -> Result<Group, NodeError> {
        self.join_while(options, &mut |_| true)
    }

    /// As [`Node::join`], until `goes_on` returns false. It is called twenty times per second, and
    /// with the root's status whenever that changes.
    ///
    /// # Errors
    /// Those of [`Node::join`]; [`NodeError::Cancelled`], if `goes_on` returned false. Another node
    /// can then take its place.
    pub fn join_while(
        &self,
        options: &JoinOptions,
        goes_on: &mut dyn FnMut(Option<&str>) -> bool,
    ) -> Result<Group, NodeError> {
        let (settings, own) = client::join(self, options, goes_on)?;
        self.enter(GroupConfig::new(settings)?, own)
    }
}

/// When a wait ends; none: never.
#[derive(Debug, Clone, Copy)]
struct Deadline(Option<Instant>);

impl Deadline {
    fn after(timeout: Option<Duration>) -> Self {
        // A timeout beyond the range of the clock means no limit.
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    fn is_over(self) -> bool {
        self.0.is_some_and(|until| until <= Instant::now())
    }

    /// The remaining time, but at most `at_most`.
    fn remaining(self, at_most: Duration) -> Duration {
        self.0.map_or(at_most, |until| until.saturating_duration_since(Instant::now()).min(at_most))
    }
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if is_name(&name) { name } else { "a host".into() }
}

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Whether a name can be printed in messages.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control)
}

fn invalid_name() -> String {
    format!("a member's name has from 1 to {NAME_BYTES_MAX} bytes, and no control characters")
}

/// Why other members cannot reach a node at `ip`, if so. `root_ip` is the address at which that
/// node has reached the root.
fn unreachable(ip: IpAddr, root_ip: IpAddr) -> Option<String> {
    if ip.is_loopback() != root_ip.is_loopback() {
        let (loopback, other) = if ip.is_loopback() { (ip, root_ip) } else { (root_ip, ip) };
        return Some(format!(
            "{loopback} is reachable on its own host only, unlike {other}: use addresses that all members can reach"
        ));
    }
    let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    is_link_local.then(|| format!("{ip} is a link-local address: use an address that all members can reach"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_addresses_are_found() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(unreachable(ip("127.0.0.1"), ip("127.0.0.1")), None);
        assert_eq!(unreachable(ip("192.0.2.2"), ip("192.0.2.1")), None);
        let why = unreachable(ip("192.0.2.2"), ip("127.0.0.1")).unwrap();
        assert!(why.starts_with("127.0.0.1 is reachable on its own host only, unlike 192.0.2.2"), "{why}");
        assert!(unreachable(ip("fe80::1"), ip("2001:db8::1")).is_some());
    }
}
