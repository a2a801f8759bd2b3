//! What is compared: frames down to Ethernet, and how far both nodes have come.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;

use treecast_proto::{GroupId, HandOff, Nanoseconds, Output};
use treecast_wire::HEADER_BYTES;

use super::super::frame::{self, Style};
use super::{Pair, Posted, Sent, describe, ours, payload_of};

/// What is below the payload, of IPv6.
const HEADERS_BYTES: usize = 62 + HEADER_BYTES;

impl Pair<'_> {
    /// Every frame is right below our header.
    pub(super) fn check_frames(&self, frames: &[Vec<u8>]) -> Result<Sent, String> {
        let mut sent = Sent::new();
        let mut numbers: BTreeMap<SocketAddr, u16> = BTreeMap::new();
        for frame in ours(frames) {
            let mut frame = frame.clone();
            let number = frame::take_number(&mut frame);
            let frame = &frame;
            let (from, to, datagram) = frame::read(frame).expect("it is one of ours");
            // What is cut apart is counted through, from 0 on.
            let before = numbers.insert(to, number);
            if number != 0 && before != Some(number - 1) {
                return Err(format!("a frame to {to} has the number {number} after {before:?}"));
            }
            let style = Style {
                has_checksum: frame::has_checksum(frame) || self.manner.style.has_checksum,
                ..Style::OWN
            };
            if from != self.address || frame::build(from, to, datagram, style) != *frame {
                let right = frame::build(self.address, to, datagram, style);
                let headers = frame.len().min(HEADERS_BYTES);
                return Err(format!(
                    "a frame to {to} is wrong:\n  {:02x?}, and not\n  {:02x?}",
                    &frame[..headers],
                    &right[..headers]
                ));
            }
            sent.entry(to).or_default().push(datagram.to_vec());
        }
        Ok(sent)
    }

    /// Who sleeps is woken by the packet that has come, or its header, under a version that no packet has.
    pub(super) fn check_waking(
        &self,
        style: Style,
        from: SocketAddr,
        came: &[u8],
        waking: &[u8],
    ) -> Result<(), String> {
        let (found, to, bytes) = frame::read(waking).ok_or("what wakes is no datagram")?;
        let is_whole = bytes.len() == came.len() || bytes.len() == HEADER_BYTES;
        let is_right = (found, to) == (from, self.wake_at())
            && is_whole
            && bytes[0] == 0
            && bytes[1..] == came[1..bytes.len()]
            && frame::build(from, to, bytes, style) == waking;
        let headers = waking.len().min(HEADERS_BYTES);
        if is_right { Ok(()) } else { Err(format!("what wakes is wrong: {:02x?}", &waking[..headers])) }
    }

    pub(super) fn wake_at(&self) -> SocketAddr {
        SocketAddr::new(self.address.ip(), self.address.port() ^ 2)
    }

    /// Both have come equally far.
    pub(super) fn compare(&mut self, now: Nanoseconds) -> Result<(), String> {
        let mut copy = self.subject.clone();
        for (&group, Posted { kernel, state, .. }) in &mut self.groups {
            if kernel.reclaim(state) {
                assert!(copy.reclaim(group, state, |packet| kernel.packet(packet)));
                assert!(kernel.hand_off(state), "a group that was handed off can be handed off again");
            }
        }
        if let Output::Transmit(transmit) = copy.poll(now) {
            return Err(format!("the program has left something to be sent: {}", describe(&transmit.header)));
        }
        let mut reference = self.reference.clone();
        equal("strays", reference.strays(), copy.strays())?;
        equal("the groups", &reference.groups().collect::<Vec<_>>(), &copy.groups().collect::<Vec<_>>())?;
        let groups: Vec<GroupId> = reference.groups().collect();
        for group in groups {
            equal("the counters", &reference.counters(group), &copy.counters(group))?;
            equal("what can be read", &reference.readable(group), &copy.readable(group))?;
            equal("what is stable", &reference.stable(group), &copy.stable(group))?;
            equal("what is free", &reference.freed(group), &copy.freed(group))?;
            equal("the room", &reference.room(group), &copy.room(group))?;
            if let (Some(freed), Some((_, next)), Some(posted)) =
                (reference.freed(group), reference.readable(group), self.groups.get(&group))
            {
                for packet in freed.until(next) {
                    let piece = reference.piece(group, packet);
                    equal("what is in a slot", &piece, &copy.piece(group, packet))?;
                    let slots = &self.slots[&group];
                    let expected = &slots[packet.0 as usize & (slots.len() - 1)];
                    let found = payload_of(posted.kernel.memory(), packet, expected.len() as u32);
                    if *expected != found {
                        return Err(format!("packet {packet} has another payload"));
                    }
                }
            }
            let (mut expected, mut found) = (HandOff::new(), HandOff::new());
            let may_be_handed_off = reference.hand_off(group, &mut expected, |_| true);
            let is_equal = copy.hand_off(group, &mut found, |_| true);
            equal("whether it can be handed off", &may_be_handed_off, &is_equal)?;
            if may_be_handed_off {
                equal("the state", &expected, &found)?;
            }
        }
        Ok(())
    }
}

pub(super) fn equal<T: PartialEq + Debug>(what: &str, expected: &T, found: &T) -> Result<(), String> {
    if expected == found {
        Ok(())
    } else {
        Err(format!("{what}: with the program it is\n  {found:?}, and without\n  {expected:?}"))
    }
}
