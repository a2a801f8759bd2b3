//! The claim of a node that wants to be a member: whether it can be, and if not, why.

use std::net::SocketAddr;

use treecast_engine::settings::config::{check_path, mtu_bytes_min};
use treecast_shm::readers::READERS_MAX;

use super::{Joined, Pending, Server};
use crate::rendezvous::messages::{Claim, RootMessage, VERSION, Version};
use crate::rendezvous::{JoinedMember, invalid_name, is_name, unreachable};

/// The result of reading a pending connection.
pub(super) enum Outcome {
    Pending,
    /// The peer is not a node: it is dropped without an answer.
    Foreign(String),
    /// The node gets the reason why it cannot join.
    Rejected(String),
    Accepted {
        member: JoinedMember,
        claim: Claim,
    },
}

impl Server {
    /// Reads a claim, and decides on it.
    pub(super) fn check_claim(&mut self, pending: &Pending, line: &[u8]) -> Outcome {
        let claim: Claim = match serde_json::from_slice::<Version>(line) {
            Err(_) => return Outcome::Foreign("not a Treecast node".into()),
            Ok(Version { treecast }) if treecast != VERSION => {
                return Outcome::Rejected(format!(
                    "it uses version {treecast} of the join protocol, the root version {VERSION}"
                ));
            }
            Ok(_) => match serde_json::from_slice(line) {
                Ok(claim) => claim,
                Err(_) => return Outcome::Foreign("invalid claim".into()),
            },
        };
        if self.key.proof_of_member(pending.challenge, &claim) != claim.proof {
            return Outcome::Rejected("token mismatch".into());
        }
        match self.admit(pending, &claim) {
            Err(reason) => Outcome::Rejected(reason),
            Ok(member) => Outcome::Accepted { member, claim },
        }
    }

    /// Whether a node that knows the token can be the member that it asks to be.
    fn admit(&mut self, pending: &Pending, claim: &Claim) -> Result<JoinedMember, String> {
        if self.is_complete() {
            return Err(self.complete_reason());
        }
        let ip = claim.ip.unwrap_or(pending.from.ip()).to_canonical();
        if claim.port == 0 || ip.is_unspecified() || ip.is_multicast() {
            return Err(format!("{ip}:{} is not the address of a node", claim.port));
        }
        if !is_name(&claim.name) {
            return Err(invalid_name());
        }
        if let Err(error) = self.check_host(&claim.name) {
            return Err(format!(
                "{error} (a node joins with its host name, or another one that it is given)"
            ));
        }
        if let Some(reason) = unreachable(ip, pending.root_ip) {
            return Err(reason);
        }
        if self.node.is_ipv4() && ip.is_ipv6() {
            return Err(format!("the root's node has IPv4 only, and cannot reach {ip}"));
        }
        let min = mtu_bytes_min(ip.is_ipv6());
        if let Some(mtu) = claim.mtu_bytes.filter(|&mtu| mtu < min.into()) {
            return Err(format!("the MTU of its network is {mtu} bytes, and groups need {min}"));
        }
        let address = SocketAddr::new(ip, claim.port);
        let name = format!("{} at {address}", claim.name);
        if let Err(error) = check_path(&name, address, claim.mtu_bytes, self.settings.mtu_bytes) {
            let reason = error.to_string();
            self.impossible = Some(error);
            return Err(reason);
        }
        if let Some(before) = self.root_ip.filter(|before| *before != pending.root_ip) {
            return Err(format!(
                "it reached the root at {}, other members at {before}: use the same address of the root everywhere",
                pending.root_ip
            ));
        }
        let is_root_node =
            address == SocketAddr::new(pending.root_ip, self.node.port()) || address == self.node;
        if is_root_node && !(self.is_node_shared && claim.is_shared) {
            return Err(format!("{address} is the root's own node"));
        }
        let member = JoinedMember { name: claim.name.clone(), address, member: claim.member };
        self.check_number(&member)?;
        self.reject_replaced(&member, claim.is_shared);
        let of_node = self.members().filter(|joined| joined.address == address).count();
        if of_node + usize::from(is_root_node) >= READERS_MAX as usize {
            return Err(format!("{address} is the node of {READERS_MAX} members, and no more can share one"));
        }
        Ok(member)
    }

    /// The old connection of a node that has restarted may still be open. Processes that share a
    /// node are members of their own, unless they request the same number.
    fn reject_replaced(&mut self, joining: &JoinedMember, is_shared: bool) {
        let address = joining.address;
        let is_replaced = |before: &mut Joined| {
            let is_process = is_shared
                && before.is_shared
                && (joining.member.is_none() || joining.member != before.member.member);
            before.member.address == address && !is_process
        };
        for mut before in self.joined.extract_if(.., is_replaced) {
            let reason = format!("another node has joined from {address}");
            before.connection.send(&RootMessage::Rejected { reason });
        }
    }

    fn check_number(&self, joining: &JoinedMember) -> Result<(), String> {
        let Some(number) = joining.member else { return Ok(()) };
        if number >= self.listener.members {
            let last = self.listener.members - 1;
            return Err(format!("there is no member {number}: the group has members 0 to {last}"));
        }
        if number as usize == self.settings.root {
            return Err(format!("member {number} is the root"));
        }
        let other = |other: &&JoinedMember| other.member == Some(number) && other.address != joining.address;
        match self.members().find(other) {
            Some(JoinedMember { name, address, .. }) => {
                Err(format!("member {number} has already joined: {name} at {address}"))
            }
            None => Ok(()),
        }
    }
}
