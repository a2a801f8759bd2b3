//! Packets are verified, once each, by the keys of their groups.

use treecast_wire::{Body, MacKey, Malformed, Packet, View};

use super::{Protocol, StrayKind};
use crate::Carrier;

/// A packet, and the group whose keys have verified it, if any have ([`Protocol::check`]).
#[derive(Debug, Clone)]
pub struct Checked<'a> {
    view: Result<View<'a>, Malformed>,
    carrier: Carrier,
    found: Result<Found<'a>, StrayKind>,
}

/// An authentic packet.
#[derive(Debug, Clone)]
struct Found<'a> {
    /// The index of the group's entry.
    index: usize,
    /// The key that has verified it: the group may have another session since, and the index
    /// another group.
    key: MacKey,
    packet: Packet<'a>,
}

impl<'a> Checked<'a> {
    /// The index of the group that it belongs to.
    pub(super) fn index(&self) -> Option<usize> {
        self.found.as_ref().ok().map(|found| found.index)
    }

    pub(super) fn view(&self) -> Option<View<'a>> {
        self.view.ok()
    }
}

impl Protocol {
    /// Verifies a datagram, and changes nothing. A user with a fast path learns from the result
    /// which group it has to reclaim ([`Protocol::group_to_reclaim`]) before it passes the datagram
    /// on ([`Input::Checked`](crate::Input::Checked)).
    pub fn check<'a>(&self, bytes: &'a [u8]) -> Checked<'a> {
        self.check_view(View::new(bytes), Carrier::Datagram)
    }

    pub(super) fn check_view<'a>(&self, view: Result<View<'a>, Malformed>, carrier: Carrier) -> Checked<'a> {
        Checked { view, carrier, found: self.find(view, carrier).and_then(not_first_of_stream) }
    }

    /// The entry of the group that a packet belongs to, and the packet. It is verified again if its
    /// group has changed since it was checked.
    pub(super) fn found<'a>(&self, checked: Checked<'a>) -> Result<(usize, Packet<'a>), StrayKind> {
        let Checked { view, carrier, found } = checked;
        let found = match found {
            Ok(found) if !self.is_current(&found) => self.check_view(view, carrier).found,
            found => found,
        };
        found.map(|Found { index, packet, .. }| (index, packet))
    }

    fn is_current(&self, found: &Found<'_>) -> bool {
        let is_handshake = matches!(found.packet.header.body, Body::Handshake(_));
        let entry = self.groups.get(found.index);
        let keys = entry.and_then(|entry| entry.group.keys(is_handshake));
        keys.is_some_and(|keys| keys.header == found.key)
    }

    /// The entry of the group that a packet on a stream belongs to, and the packet.
    pub(super) fn authenticate<'a>(
        &self,
        view: Result<View<'a>, Malformed>,
    ) -> Result<(usize, Packet<'a>), StrayKind> {
        self.find(view, Carrier::Stream).map(|Found { index, packet, .. }| (index, packet))
    }

    fn find<'a>(&self, view: Result<View<'a>, Malformed>, carrier: Carrier) -> Result<Found<'a>, StrayKind> {
        let view = view.map_err(|_| StrayKind::Malformed)?;
        let index = *self.indices.get(&view.group()).ok_or(StrayKind::UnknownGroup)?;
        let keys = self.groups.get(index).and_then(|entry| entry.group.keys(view.is_handshake()));
        let keys = keys.ok_or(StrayKind::UnknownGroup)?;
        let checked = match carrier {
            Carrier::Datagram => view.check(keys),
            Carrier::Stream => view.check_on_stream(keys),
        };
        let packet = checked.map_err(|malformed| match malformed {
            Malformed::Mac => StrayKind::Unauthentic,
            _ => StrayKind::Malformed,
        })?;
        Ok(Found { index, key: keys.header, packet })
    }
}

/// The first packet of a stream comes in no datagram, nor later on a stream.
fn not_first_of_stream(found: Found<'_>) -> Result<Found<'_>, StrayKind> {
    if matches!(found.packet.header.body, Body::Attach(_)) { Err(StrayKind::Malformed) } else { Ok(found) }
}
