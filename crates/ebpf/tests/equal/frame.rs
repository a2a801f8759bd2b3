//! Frames of datagrams: Ethernet, IP without options, UDP.

use std::net::{IpAddr, SocketAddr};

/// The fields in which frames from one sender to one receiver differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    pub hop_limit: u8,
    pub has_checksum: bool,
}

impl Style {
    /// The style of frames that this host sends.
    pub const OWN: Self = Self { hop_limit: 64, has_checksum: true };
}

const ETHERNET_BYTES: usize = 14;
const UDP: u8 = 17;

/// The MAC address of an IP address in these tests.
pub fn mac_address(address: SocketAddr) -> [u8; 6] {
    let [.., a, b, c] = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    [0x02, 0, 0x5e, a, b, c]
}

/// The frame of a datagram.
pub fn build(from: SocketAddr, to: SocketAddr, datagram: &[u8], style: Style) -> Vec<u8> {
    let length = (8 + datagram.len()) as u16;
    let mut udp =
        [&from.port().to_be_bytes()[..], &to.port().to_be_bytes(), &length.to_be_bytes(), &[0; 2]].concat();
    udp.extend(datagram);
    let (protocol, mut ip, addresses) = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = (20 + length).to_be_bytes();
            let mut ip = vec![0x45, 0, total[0], total[1], 0, 0, 0x40, 0, style.hop_limit, UDP, 0, 0];
            ip.extend(from.octets());
            ip.extend(to.octets());
            let sum = checksum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            (0x0800_u16, ip, [&from.octets()[..], &to.octets()].concat())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let total = length.to_be_bytes();
            let mut ip = vec![0x60, 0, 0, 0, total[0], total[1], UDP, style.hop_limit];
            ip.extend(from.octets());
            ip.extend(to.octets());
            (0x86dd, ip, [&from.octets()[..], &to.octets()].concat())
        }
        _ => panic!("{from} and {to} have different versions of IP"),
    };
    if style.has_checksum {
        let pseudo = [&addresses[..], &[0, UDP], &length.to_be_bytes(), &udp].concat();
        // A checksum of 0 means that there is none (RFC 768).
        let sum = match checksum(&pseudo) {
            0 => u16::MAX,
            sum => sum,
        };
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
    }
    let mut frame = [&mac_address(to)[..], &mac_address(from), &protocol.to_be_bytes()].concat();
    frame.append(&mut ip);
    frame.append(&mut udp);
    frame
}

/// The source, the destination and the datagram of a frame; `None` if it is not UDP. Checksums and
/// lengths are not checked.
pub fn read(frame: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let port = |place: usize| Some(u16::from_be_bytes(*frame.get(place..)?.first_chunk()?));
    let (from, to, udp): (IpAddr, IpAddr, usize) = match frame.get(12..14)? {
        [0x08, 0x00] if frame.get(23) == Some(&UDP) => {
            let address = |place| Some(IpAddr::from(*frame.get(place..)?.first_chunk::<4>()?));
            (address(26)?, address(30)?, ETHERNET_BYTES + 20)
        }
        [0x86, 0xdd] if frame.get(20) == Some(&UDP) => {
            let address = |place| Some(IpAddr::from(*frame.get(place..)?.first_chunk::<16>()?));
            (address(22)?, address(38)?, ETHERNET_BYTES + 40)
        }
        _ => return None,
    };
    Some((SocketAddr::new(from, port(udp)?), SocketAddr::new(to, port(udp + 2)?), frame.get(udp + 8..)?))
}

/// Whether the frame has a UDP checksum.
pub fn has_checksum(frame: &[u8]) -> bool {
    let udp = udp_at(frame);
    frame[udp + 6..udp + 8] != [0, 0]
}

/// Changes the UDP checksum, if there is one.
pub fn change_checksum(frame: &mut [u8]) {
    let udp = udp_at(frame);
    if has_checksum(frame) {
        // Neither the sum of the pseudo-header alone, nor none.
        frame[udp + 6] ^= 0x55;
        frame[udp + 7] |= 1;
    }
}

/// The offset of the UDP header.
pub fn udp_at(frame: &[u8]) -> usize {
    if frame[12] == 0x08 { ETHERNET_BYTES + 20 } else { ETHERNET_BYTES + 40 }
}

/// Replaces the UDP checksum by that of the pseudo-header alone (`CHECKSUM_PARTIAL`): the interface
/// completes it.
pub fn set_partial_checksum(frame: &mut [u8]) {
    let udp = udp_at(frame);
    let addresses = if frame[12] == 0x08 { udp - 8..udp } else { udp - 32..udp };
    let pseudo = [&frame[addresses], &[0, UDP], &frame[udp + 4..udp + 6]].concat();
    frame[udp + 6..udp + 8].copy_from_slice(&(!checksum(&pseudo)).to_be_bytes());
}

/// Resets the IPv4 identification, by which segments of a batch differ, and returns it. A frame
/// with a wrong IPv4 checksum stays as it is.
pub fn take_identification(frame: &mut [u8]) -> u16 {
    const IP: std::ops::Range<usize> = ETHERNET_BYTES..ETHERNET_BYTES + 20;
    if frame[12] != 0x08 || checksum(&frame[IP]) != 0 {
        return 0;
    }
    let number = u16::from_be_bytes([frame[18], frame[19]]);
    frame[18..20].fill(0);
    frame[24..26].fill(0);
    let sum = checksum(&frame[IP]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    number
}

/// Completes a partial checksum as an interface does: of all bytes from `start` on, at `start +
/// offset`.
pub fn complete_checksum(frame: &mut [u8], start: usize, offset: usize) {
    let sum = match checksum(&frame[start..]) {
        0 => u16::MAX,
        sum => sum,
    };
    frame[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The Internet's checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
