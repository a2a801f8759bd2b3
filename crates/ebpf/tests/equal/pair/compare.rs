//! Comparison of both nodes: their frames, down to Ethernet, and their states.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;

use treecast_ebpf::WakeNonce;
use treecast_proto::{GroupId, HandOff, Nanoseconds, Output};
use treecast_wire::{HEADER_BYTES, View};

use super::super::frame::{self, Style};
use super::hand_off::{Posted, reclaim, take_contributions};
use super::{Pair, Sent, describe, payload_of, udp_frames};

/// What wake datagrams carry.
pub(super) const WAKE_NONCE: WakeNonce = WakeNonce(0x5152_5354_5556_5758);

/// The length of all headers below the payload, with IPv6.
const HEADERS_BYTES: usize = 62 + HEADER_BYTES;

impl Pair<'_> {
    /// Checks the headers below ours in every frame.
    pub(super) fn check_frames(&self, frames: &[Vec<u8>]) -> Result<Sent, String> {
        let mut sent = Sent::default();
        let mut numbers: BTreeMap<SocketAddr, u16> = BTreeMap::new();
        for frame in udp_frames(frames) {
            let mut frame = frame.clone();
            let number = frame::take_identification(&mut frame);
            let frame = &frame;
            let (from, to, datagram) = frame::read(frame).expect("it is a UDP frame");
            // The kernel numbers the segments of a batch from 0 (IPv4 identification).
            let before = numbers.insert(to, number);
            if number != 0 && before != Some(number - 1) {
                return Err(format!("a frame to {to} has the identification {number} after {before:?}"));
            }
            let style = Style {
                has_checksum: frame::has_checksum(frame) || self.behaviour.style.has_checksum,
                ..Style::OWN
            };
            if from != self.address || frame::build(from, to, datagram, style) != *frame {
                let right = frame::build(self.address, to, datagram, style);
                let headers = frame.len().min(HEADERS_BYTES);
                return Err(format!(
                    "a frame to {to} is wrong: it is\n  {:02x?}, expected\n  {:02x?}",
                    &frame[..headers],
                    &right[..headers]
                ));
            }
            sent.push(to, datagram.to_vec());
        }
        Ok(sent)
    }

    /// Checks a wake datagram: the received packet or its header, with a version that no packet
    /// has, and the nonce in place of its code.
    pub(super) fn check_wake_datagram(
        &self,
        style: Style,
        from: SocketAddr,
        received: &[u8],
        waking: &[u8],
    ) -> Result<(), String> {
        let (found, to, bytes) = frame::read(waking).ok_or("the wake frame is no datagram")?;
        let is_whole = bytes.len() == received.len() || bytes.len() == HEADER_BYTES;
        let is_right = (found, to) == (from, self.wake_address())
            && is_whole
            && bytes[0] == 0
            && bytes[1..HEADER_BYTES - 8] == received[1..HEADER_BYTES - 8]
            && bytes[HEADER_BYTES..] == received[HEADER_BYTES..bytes.len()]
            && WAKE_NONCE.read(bytes) == View::new(received).ok().map(|view| view.group())
            && frame::build(from, to, bytes, style) == waking;
        let headers = waking.len().min(HEADERS_BYTES);
        if is_right {
            Ok(())
        } else {
            Err(format!("the wake datagram is wrong: {:02x?}", &waking[..headers]))
        }
    }

    pub(super) fn wake_address(&self) -> SocketAddr {
        SocketAddr::new(self.address.ip(), self.address.port() ^ 2)
    }

    /// Compares the states of both nodes.
    pub(super) fn compare(&mut self, now: Nanoseconds) -> Result<(), String> {
        let mut copy = self.subject.clone();
        for Posted { kernel, state, .. } in self.groups.values_mut() {
            if reclaim(&mut copy, now, kernel, state) {
                take_contributions(&mut copy, now, kernel);
                assert!(kernel.hand_off(state), "a group that was handed off can be handed off again");
            }
        }
        if let Output::Transmit(transmit) = copy.poll(now) {
            return Err(format!(
                "the program has not sent a packet that is due: {}",
                describe(&transmit.header)
            ));
        }
        let reference = self.reference.protocol();
        equal("strays", reference.strays(), copy.strays())?;
        equal("the groups", &reference.groups().collect::<Vec<_>>(), &copy.groups().collect::<Vec<_>>())?;
        let groups: Vec<GroupId> = reference.groups().collect();
        for group in groups {
            equal("the counters", &reference.counters(group), &copy.counters(group))?;
            equal("the readable packets", &reference.readable(group), &copy.readable(group))?;
            equal("the stable packets", &reference.stable(group), &copy.stable(group))?;
            equal("the freed packets", &reference.freed(group), &copy.freed(group))?;
            equal("the free slots", &reference.free_slots(group), &copy.free_slots(group))?;
            if let (Some(freed), Some((_, next)), Some(posted)) =
                (reference.freed(group), reference.readable(group), self.groups.get(&group))
            {
                for packet in freed.until(next) {
                    let piece = reference.piece(group, packet);
                    equal("the piece in a slot", &piece, &copy.piece(group, packet))?;
                    let expected = self.reference.payload(group, packet).ok_or("a packet without a slot")?;
                    let found = payload_of(posted.kernel.memory(), packet, expected.len() as u32);
                    if expected != found {
                        return Err(format!("packet {packet} has a different payload"));
                    }
                }
            }
            let (mut expected, mut found) = (HandOff::new(), HandOff::new());
            let may_be_handed_off = reference.hand_off_state(group, &mut expected);
            let is_equal = copy.hand_off_state(group, &mut found);
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
        Err(format!("{what}: with the program\n  {found:?}, without it\n  {expected:?}"))
    }
}
