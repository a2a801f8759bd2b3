//! The settings of a group once they are checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use treecast_model::Network;
use treecast_plan::Scheme;
use treecast_proto::{
    Authentication, CreateGroup, GroupKey, Integrity, Offload, Refused, SessionId, Transport,
};
use treecast_wire::{HEADER_BYTES, Keys, Table};

use super::GroupSettings;
use super::congestion::CongestionControl;
use super::costs;
use super::error::NodeError;
use super::hosts::Hosts;
use super::offload::{self, ChosenOffload};
use crate::datagrams::path_mtu;
use crate::random;

/// The settings of a group, whose numbers are within their bounds, whose members can be one group,
/// and whose MTU is known.
#[derive(Debug, Clone)]
pub struct GroupConfig {
    settings: GroupSettings,
    root: SocketAddr,
    hosts: Hosts,
    datagram_payload_bytes_max: u16,
    key: GroupKey,
    session: SessionId,
    offload: ChosenOffload,
    authentication: Authentication,
    multicast: Option<SocketAddr>,
    members_max: usize,
}

impl GroupConfig {
    /// Checks the settings of a group with all its members.
    ///
    /// # Errors
    /// [`NodeError::Members`], [`NodeError::Refused`], [`NodeError::NoToken`],
    /// [`NodeError::CongestionControl`], [`NodeError::System`].
    pub fn new(settings: GroupSettings) -> Result<Self, NodeError> {
        let found = || path_mtu::mtu_bytes_of(path_mtu::path_mtus(settings.members.iter()));
        let mtu_bytes = Some(settings.mtu_bytes.unwrap_or_else(found));
        let settings = GroupSettings { mtu_bytes, ..settings };
        let datagram_payload_bytes_max = check_bounds(&settings)?;
        let root = check_members(&settings)?;
        let hosts = Hosts::of(&settings.members)?;
        check_token(&settings.token, settings.insecure, root.ip())?;
        check_congestion(&settings)?;
        if settings.is_encrypted && settings.token.is_empty() {
            return Err(NodeError::NoEncryptionKey);
        }
        let key = settings.key();
        let session = SessionId(random::bytes().map_err(NodeError::no_random_number)?);
        let offload = offload::choose(&settings, &hosts, root);
        let is_by_multicast = offload.offload == Offload::Switch;
        let default = if is_by_multicast { Authentication::Payload } else { Authentication::Header };
        let authentication = settings.authentication.unwrap_or(default);
        if is_by_multicast && authentication == Authentication::Header {
            return Err(Refused::UnauthenticMulticast.into());
        }
        let settings = GroupSettings { offload: Some(offload.offload), ..settings };
        let multicast = if is_by_multicast {
            Some(draw_multicast_address(root.is_ipv6()).map_err(NodeError::no_random_number)?)
        } else {
            None
        };
        let members_max = CreateGroup::MEMBERS_MAX;
        Ok(Self {
            settings,
            root,
            hosts,
            datagram_payload_bytes_max,
            key,
            session,
            offload,
            authentication,
            multicast,
            members_max,
        })
    }

    /// The same with the session that a client of the daemon has drawn.
    pub fn with_session(self, session: SessionId) -> Self {
        Self { session, ..self }
    }

    /// The same with the transport that fits the engine, if the settings leave it open.
    ///
    /// Datagrams are for the kernel's packet path unless messages are long, for engines without
    /// streams, for switches that forward, for programs that say when each packet is forwarded, and
    /// for a given number of slots, which counts datagrams. Else there are streams, and datagrams
    /// while these lose packets, where the application can choose by checksums.
    ///
    /// If the scheme is open too, and the costs of the network are known, they choose between
    /// datagrams and streams, and whether multicast is used where the settings leave that open.
    pub fn for_engine(self, has_streams: bool, has_kernel: bool) -> Self {
        let GroupSettings { slots, offload, message_bytes, .. } = &self.settings;
        let is_for_kernel = has_kernel && *message_bytes <= KERNEL_MESSAGE_BYTES_MAX;
        let may_have_streams = has_streams && slots.is_none();
        let fits = may_have_streams && !is_for_kernel && *offload == Some(Offload::Nic);
        let fitting = if fits { self.settings.with_streams() } else { Transport::Packets };
        let is_open = self.settings.transport.is_none();
        let transport = Some(self.settings.transport.unwrap_or(fitting));
        let fitting = Self { settings: GroupSettings { transport, ..self.settings }, ..self };
        fitting.by_costs(is_open && may_have_streams, has_kernel)
    }

    /// The same with the offload and the transport that are clearly better by the costs of the
    /// network. `may_have_streams`: the transport is open, and the engine has streams.
    fn by_costs(self, may_have_streams: bool, has_kernel: bool) -> Self {
        let others = costs::others(&self.settings, &self.offload, may_have_streams);
        let fitting = (self.offload.offload, self.transport());
        let better = costs::better(&self.settings, self.hosts.count(), has_kernel, fitting, &others);
        let Some(better) = better else { return self };
        let (offload, transport) = better.sending;
        let settings = GroupSettings { offload: Some(offload), transport: Some(transport), ..self.settings };
        if offload == self.offload.offload {
            return Self { settings, ..self };
        }
        let authentication = settings.authentication.unwrap_or(Authentication::Header);
        let offload = ChosenOffload { offload, reason: Some(better.to_string()) };
        Self { settings, offload, authentication, multicast: None, ..self }
    }

    /// The same with the measured costs of the network.
    pub fn with_network(self, network: Arc<Network>) -> Self {
        Self { settings: GroupSettings { network: Some(network), ..self.settings }, ..self }
    }

    /// The same with another scheme.
    pub fn with_scheme(self, scheme: Option<Scheme>) -> Self {
        Self { settings: GroupSettings { scheme, ..self.settings }, ..self }
    }

    /// The same with the most members that the daemon's policy allows.
    pub fn with_members_max(self, members_max: usize) -> Self {
        Self { members_max, ..self }
    }

    /// Checks what a member other than the root needs. Of the members only the root counts.
    ///
    /// # Errors
    /// As [`GroupConfig::new`].
    pub fn for_join(settings: &GroupSettings) -> Result<Self, NodeError> {
        let root = settings.members.get(settings.root).copied();
        let root = root.ok_or_else(|| no_such_root(settings.root, settings.members.len()))?;
        Self::new(GroupSettings { members: vec![root], root: 0, ..settings.clone() })
    }

    /// The settings.
    pub const fn settings(&self) -> &GroupSettings {
        &self.settings
    }

    /// The hosts of the members.
    pub const fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// The address of the root's node.
    pub const fn root(&self) -> SocketAddr {
        self.root
    }

    /// The longest payload of a packet, in bytes.
    pub fn payload_bytes_max(&self) -> u16 {
        match self.transport() {
            Transport::Packets => self.datagram_payload_bytes_max,
            Transport::Streams | Transport::Both => self.settings.stream_slots().0,
        }
    }

    /// The longest payload of a packet in a datagram, in bytes, if packets go on streams too.
    pub fn datagram_bytes(&self) -> Option<u16> {
        let has_both = self.transport() == Transport::Both;
        has_both.then_some(self.datagram_payload_bytes_max.min(self.payload_bytes_max()))
    }

    /// The number of packets that each member holds.
    pub fn slots(&self) -> u32 {
        match self.transport() {
            Transport::Packets => self.settings.slots(),
            Transport::Streams | Transport::Both => {
                self.settings.slots.unwrap_or(self.settings.stream_slots().1)
            }
        }
    }

    /// What carries data along the tree: what the settings say, or else datagrams until
    /// [`GroupConfig::for_engine`] has chosen.
    pub fn transport(&self) -> Transport {
        self.settings.transport.unwrap_or_default()
    }

    /// At the root, the most members at a time.
    pub const fn members_max(&self) -> usize {
        self.members_max
    }

    /// The key that members derive from the token.
    pub const fn key(&self) -> GroupKey {
        self.key
    }

    /// At the root, the session of the group.
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// At the root, the session, if what is sent is encrypted.
    pub fn encrypted_session(&self) -> Option<SessionId> {
        self.settings.is_encrypted.then_some(self.session)
    }

    /// Where packets are forwarded, and why.
    pub const fn offload(&self) -> &ChosenOffload {
        &self.offload
    }

    /// At the root, what the codes of data cover.
    pub const fn authentication(&self) -> Authentication {
        self.authentication
    }

    /// At the root, with offload `switch`: the address to which it sends data.
    pub const fn multicast(&self) -> Option<SocketAddr> {
        self.multicast
    }

    /// At the root, the keys of the session.
    pub fn session_keys(&self) -> Keys {
        let crcs = self.transport().crcs(self.settings.integrity);
        Keys { crcs, ..self.key.session_keys(self.session, self.authentication) }
    }
}

/// Draws a multicast address that no authority has assigned (RFC 2365; RFC 4291, section 2.7:
/// transient, of site scope), and a dynamic port (RFC 6335, section 6). Should another group draw
/// the same, neither believes the other's packets.
fn draw_multicast_address(is_v6: bool) -> std::io::Result<SocketAddr> {
    let bytes: [u8; 16] = random::bytes()?;
    let [.., third, fourth, high, low] = bytes;
    let ip = if is_v6 {
        let mut octets = bytes;
        octets[..2].copy_from_slice(&[0xff, 0x15]);
        Ipv6Addr::from(octets).into()
    } else {
        // An odd second number: on Ethernet it is none of the addresses that switches flood (RFC
        // 1112, section 6.4; RFC 4541).
        Ipv4Addr::new(239, bytes[0] | 1, third, fourth).into()
    };
    let port = u16::from_be_bytes([high, low]) | MULTICAST_PORT_MIN;
    Ok(SocketAddr::new(ip, port))
}

/// The least dynamic port (RFC 6335, section 6).
const MULTICAST_PORT_MIN: u16 = 0xc000;

/// Whether a multicast address is in the range from which roots draw. A member joins no address
/// outside it, so that a root cannot direct the multicast traffic of other applications to the
/// hosts of its members.
pub fn is_drawn_multicast_address(address: SocketAddr) -> bool {
    let is_in_scope = match address.ip() {
        IpAddr::V4(ip) => ip.octets()[0] == 239 && ip.octets()[1] & 1 == 1,
        IpAddr::V6(ip) => ip.octets()[..2] == [0xff, 0x15],
    };
    is_in_scope && address.port() >= MULTICAST_PORT_MIN
}

/// Checks that a group with a root at this address has a token, unless all its members are on one
/// host.
///
/// # Errors
/// [`NodeError::NoToken`].
pub fn check_token(token: &str, insecure: bool, root: IpAddr) -> Result<(), NodeError> {
    let is_safe = !token.is_empty() || insecure || root.to_canonical().is_loopback();
    if is_safe { Ok(()) } else { Err(NodeError::NoToken) }
}

/// Checks that the kernel of this host has the congestion control of the settings.
///
/// # Errors
/// Those of [`CongestionControl::check`].
pub(crate) fn check_congestion(settings: &GroupSettings) -> Result<(), NodeError> {
    settings.tcp_congestion.as_ref().map_or(Ok(()), CongestionControl::check)
}

/// Checks that the paths from here carry the datagrams of the group: at the root those to all
/// members, at another member, also one that has no number yet, the one to the root.
///
/// # Errors
/// [`NodeError::PathMtu`] names a member whose path carries shorter ones only.
pub fn check_paths(settings: &GroupSettings, own: Option<usize>) -> Result<(), NodeError> {
    let is_root = own == Some(settings.root);
    let is_checked = |member: usize| Some(member) != own && (is_root || member == settings.root);
    for (member, address) in settings.members.iter().enumerate().filter(|&(member, _)| is_checked(member)) {
        check_path(&format!("member {member} at {address}"), *address, None, settings.mtu_bytes)?;
    }
    Ok(())
}

/// Checks that the path to a member carries datagrams of `mtu_bytes`, as does the path back as far
/// as its MTU is known.
///
/// # Errors
/// [`NodeError::PathMtu`].
pub fn check_path(
    member: &str,
    address: SocketAddr,
    back: Option<u32>,
    mtu_bytes: Option<u16>,
) -> Result<(), NodeError> {
    let Some(mtu_bytes) = mtu_bytes else { return Ok(()) };
    match path_mtu::path_mtus(std::iter::once(&address)).chain(back).min() {
        Some(path_mtu_bytes) if path_mtu_bytes < mtu_bytes.into() => {
            Err(NodeError::PathMtu { member: member.into(), path_mtu_bytes, mtu_bytes })
        }
        _ => Ok(()),
    }
}

/// Checks the number of a group's members.
///
/// # Errors
/// [`NodeError::Members`].
pub fn check_count(members: u32) -> Result<(), NodeError> {
    let most = CreateGroup::MEMBERS_MAX as u32;
    if (1..=most).contains(&members) {
        return Ok(());
    }
    Err(NodeError::Members(format!("a group has from 1 to {most} members, and not {members}")))
}

/// Checks what does not depend on the members; returns the longest payload.
///
/// # Errors
/// [`NodeError::Refused`], [`NodeError::NotBoth`].
pub(crate) fn check_bounds(settings: &GroupSettings) -> Result<u16, NodeError> {
    if settings.transport == Some(Transport::Both) && settings.with_streams() != Transport::Both {
        return Err(NodeError::NotBoth);
    }
    let payload_bytes_max = settings.payload_bytes_max();
    if payload_bytes_max < Table::PAYLOAD_BYTES_MIN {
        let min = mtu_bytes_min(settings.is_v6()).into();
        let (value, max) = (settings.mtu_bytes().into(), u16::MAX.into());
        return Err(Refused::Bounds { what: "mtu_bytes", value, min, max }.into());
    }
    if settings.bytes_per_s_max == Some(0) {
        return Err(Refused::Bounds { what: "bytes_per_s_max", value: 0, min: 1, max: u64::MAX }.into());
    }
    let (min, max) = (CreateGroup::SLOTS_MIN, Table::SLOTS_MAX);
    let slots = settings.slots();
    if !(min..=max).contains(&slots) || !slots.is_power_of_two() {
        let value = slots.into();
        return Err(Refused::Bounds {
            what: "slots (a power of two)",
            value,
            min: min.into(),
            max: max.into(),
        }
        .into());
    }
    Ok(payload_bytes_max)
}

/// Checks that the members can be one group; returns the root's address.
fn check_members(settings: &GroupSettings) -> Result<SocketAddr, NodeError> {
    let members = &settings.members;
    let root = members.get(settings.root).copied();
    let root = root.ok_or_else(|| no_such_root(settings.root, members.len()))?;
    let unusable = members.iter().find(|address| address.port() == 0 || address.ip().is_unspecified());
    if let Some(address) = unusable {
        return Err(NodeError::Members(format!("other members cannot send to {address}")));
    }
    let loopback = members.iter().find(|address| address.ip().is_loopback());
    let other = members.iter().find(|address| !address.ip().is_loopback());
    if let (Some(loopback), Some(other)) = (loopback, other) {
        return Err(NodeError::Members(format!(
            "{loopback} is reachable on its own host only, unlike {other}: use addresses that all members can reach"
        )));
    }
    Ok(root)
}

/// The error for a root whose number is not that of a member.
pub(crate) fn no_such_root(root: usize, members: usize) -> NodeError {
    NodeError::Members(format!("the root is member {root} of {members}: members are numbered from 0"))
}

impl GroupSettings {
    /// The longest datagram, in bytes: that of the settings, or the usual one while it is not found
    /// out.
    fn mtu_bytes(&self) -> u16 {
        self.mtu_bytes.unwrap_or(path_mtu::DEFAULT_MTU_BYTES)
    }

    /// The number of packets that each member holds. Few of short messages, whose slots then stay
    /// in the processor's cache; many of long ones: fewer acknowledgments, and each member waits
    /// less often for others.
    pub fn slots(&self) -> u32 {
        let of_messages = if self.message_bytes > LONG_MESSAGE_BYTES { LONG_SLOTS } else { SHORT_SLOTS };
        self.slots.unwrap_or(of_messages)
    }

    /// The transport with streams that fits these settings: with datagrams too, unless payloads
    /// have checksums on streams. The application chooses the carrier of a packet: it gives CRCs to
    /// those in datagrams, and none to those on streams.
    pub fn with_streams(&self) -> Transport {
        let Self { authentication, integrity, is_encrypted, offload, .. } = self;
        let has_checksums = *authentication == Some(Authentication::Payload)
            || *integrity == Integrity::Crc32c
            || *is_encrypted;
        let has_both = !has_checksums && offload.is_none_or(|offload| offload == Offload::Nic);
        if has_both { Transport::Both } else { Transport::Streams }
    }

    /// The longest payload of a packet on a stream, and the number of slots unless it is given.
    const fn stream_slots(&self) -> (u16, u32) {
        if self.message_bytes > LONG_STREAM_BYTES { LONG_STREAM_SLOTS } else { SHORT_STREAM_SLOTS }
    }

    /// The longest payload of a packet: a datagram without the headers of IP, UDP and Treecast.
    pub fn payload_bytes_max(&self) -> u16 {
        self.mtu_bytes().saturating_sub(header_bytes(self.is_v6()))
    }

    fn is_v6(&self) -> bool {
        self.members.iter().any(SocketAddr::is_ipv6)
    }
}

/// The number of slots for messages that are expected to be longer than this, in bytes, and for
/// others.
const LONG_MESSAGE_BYTES: u64 = 512 << 10;
const LONG_SLOTS: u32 = 1_024;
const SHORT_SLOTS: u32 = 512;

/// The longest payload of a packet on a stream, in bytes, and the number of slots: for short
/// messages as many as with datagrams, for long ones fewer and longer. Both take one mebibyte.
const SHORT_STREAM_SLOTS: (u16, u32) = (2 << 10, 512);
const LONG_STREAM_SLOTS: (u16, u32) = (8 << 10, 128);

/// Groups whose messages are expected to be longer than this, in bytes, are faster on streams than
/// by the kernel's packet path (docs/bench.md, "Beside what a user would write").
const KERNEL_MESSAGE_BYTES_MAX: u64 = 16 << 10;

/// Messages that are expected to be longer than this, in bytes, are long to a stream.
const LONG_STREAM_BYTES: u64 = 4 << 10;

/// The length of the headers of IP, UDP and Treecast, in bytes.
const fn header_bytes(is_v6: bool) -> u16 {
    let ip_bytes = if is_v6 { 40 } else { 20 };
    ip_bytes + 8 + HEADER_BYTES as u16
}

/// The least MTU that carries the packets of a group, in bytes.
pub const fn mtu_bytes_min(is_v6: bool) -> u16 {
    header_bytes(is_v6) + Table::PAYLOAD_BYTES_MIN
}

/// The settings of a group of this number of members, for tests.
#[cfg(test)]
pub(crate) fn settings_of(members: u16) -> GroupSettings {
    let members = (0..members).map(|number| SocketAddr::from(([10, 0, 0, 1], 7_000 + number))).collect();
    GroupSettings { token: "a token".into(), ..GroupSettings::new(members) }
}

#[cfg(test)]
mod tests {
    use super::settings_of as settings;
    use super::*;

    #[test]
    fn invalid_members_are_named() {
        let error = |settings| GroupConfig::new(settings).unwrap_err().to_string();
        assert!(
            error(GroupSettings { root: 3, ..settings(3) }).starts_with("the root is member 3 of 3: members")
        );
        let mut unusable = settings(2);
        unusable.members[1].set_port(0);
        assert_eq!(error(unusable), "other members cannot send to 10.0.0.1:0");
        let mut apart = settings(2);
        apart.members[1] = "127.0.0.1:7000".parse().unwrap();
        assert!(error(apart).starts_with("127.0.0.1:7000 is reachable on its own host only"));
    }

    #[test]
    fn a_member_joins_only_multicast_addresses_that_roots_draw() {
        for is_v6 in [false, true] {
            let drawn = (0..100).map(|_| draw_multicast_address(is_v6).unwrap());
            assert!(drawn.into_iter().all(is_drawn_multicast_address));
        }
        for other in
            ["224.0.0.251:50000", "239.2.0.1:50000", "239.1.0.1:5353", "[ff02::fb]:50000", "10.0.0.1:50000"]
        {
            assert!(!is_drawn_multicast_address(other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn a_rate_limit_of_zero_is_refused() {
        let stopped = GroupSettings { bytes_per_s_max: Some(0), ..settings(2) };
        let error = GroupConfig::new(stopped.clone()).unwrap_err().to_string();
        assert!(error.starts_with("bytes_per_s_max must be from 1 to "), "{error}");
        assert!(stopped.check("127.0.0.1:0".parse().unwrap(), 2).is_err());
    }

    #[test]
    fn multicast_needs_authentic_payloads() {
        let switch = GroupSettings { offload: Some(Offload::Switch), ..settings(4) };
        let authentication = |settings| GroupConfig::new(settings).unwrap().authentication();
        assert_eq!(authentication(switch.clone()), Authentication::Payload);
        assert_eq!(authentication(settings(4)), Authentication::Header);
        let unauthentic = GroupSettings { authentication: Some(Authentication::Header), ..switch };
        let error = GroupConfig::new(unauthentic).unwrap_err().to_string();
        assert!(error.starts_with("offload switch needs auth=payload"), "{error}");
    }

    #[test]
    fn streams_are_chosen_where_nodes_forward() {
        let chosen = |settings, has_streams, has_kernel| {
            let config = GroupConfig::new(settings).unwrap().for_engine(has_streams, has_kernel);
            config.settings().transport.unwrap()
        };
        let transport = |settings, has_streams| chosen(settings, has_streams, false);
        assert_eq!(chosen(settings(4), true, true), Transport::Packets);
        let with_long = GroupSettings { message_bytes: 64 << 10, ..settings(4) };
        assert_eq!(chosen(with_long.clone(), true, true), Transport::Both);
        assert_eq!(chosen(with_long, false, true), Transport::Packets);
        assert_eq!(transport(settings(4), true), Transport::Both);
        for with_checksums in [
            GroupSettings { authentication: Some(Authentication::Payload), ..settings(4) },
            GroupSettings { integrity: Integrity::Crc32c, ..settings(4) },
            GroupSettings { is_encrypted: true, ..settings(4) },
        ] {
            assert_eq!(transport(with_checksums.clone(), true), Transport::Streams);
            let both = GroupSettings { transport: Some(Transport::Both), ..with_checksums };
            assert!(matches!(both.check("127.0.0.1:0".parse().unwrap(), 2), Err(NodeError::NotBoth)));
            assert!(matches!(GroupConfig::new(both), Err(NodeError::NotBoth)));
        }
        assert_eq!(transport(settings(4), false), Transport::Packets);
        for offload in [Offload::Switch, Offload::Host, Offload::Assisted] {
            let settings = GroupSettings { offload: Some(offload), ..settings(4) };
            assert_eq!(transport(settings, true), Transport::Packets);
        }
        let with_slots = GroupSettings { slots: Some(512), ..settings(4) };
        assert_eq!(transport(with_slots, true), Transport::Packets);
        // Where hosts join, the root has found out the MTU before.
        let with_mtu = GroupSettings { mtu_bytes: Some(1_500), ..settings(4) };
        assert_eq!(transport(with_mtu, true), Transport::Both);
        for given in [Transport::Packets, Transport::Streams, Transport::Both] {
            let settings = GroupSettings { transport: Some(given), ..settings(4) };
            assert_eq!(transport(settings.clone(), false), given);
            assert_eq!(transport(settings, true), given);
        }
    }

    #[test]
    fn members_on_several_hosts_need_a_token() {
        let without = GroupSettings { token: String::new(), ..settings(2) };
        assert!(matches!(GroupConfig::new(without.clone()), Err(NodeError::NoToken)));
        assert!(GroupConfig::new(GroupSettings { insecure: true, ..without.clone() }).is_ok());
        let members = (1..3).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        assert!(GroupConfig::new(GroupSettings { members, ..without }).is_ok());
    }

    #[test]
    fn a_member_that_joins_needs_the_root_only() {
        let mut settings = GroupSettings { root: 1, ..settings(3) };
        settings.members[2] = settings.members[0];
        let config = GroupConfig::for_join(&settings).unwrap();
        assert_eq!(config.root(), settings.members[1]);
        assert_eq!((config.settings().root, config.settings().members.len()), (0, 1));
        settings.root = 3;
        assert!(GroupConfig::for_join(&settings).is_err());
    }
}
