//! Sockets at one address, and the program by which the kernel chooses the socket of a datagram
//! (socket(7), `SO_REUSEPORT` and `SO_ATTACH_REUSEPORT_CBPF`). Neither needs rights.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use treecast_wire::GroupId;

use super::GROUP;

/// The most groups that are steered: each takes two instructions, and all datagrams two.
pub const STEERED_MAX: usize = (libc::BPF_MAXINSNS as usize - 2) / 2;

/// Binds a socket for each lane. An index that the program returns counts sockets in the order in
/// which they were bound.
pub fn bind(address: SocketAddr, lanes: usize) -> io::Result<Vec<UdpSocket>> {
    assert!(lanes > 0, "a node receives in one lane at least");
    // Without the option, so that an address in use is refused, also if another node binds its
    // lanes at the same time. With the option the kernel lets sockets of the same user alone share
    // the address.
    let mut sockets = vec![UdpSocket::bind(address)?];
    if lanes == 1 {
        return Ok(sockets);
    }
    sockopt::set_socket_reuseport(&sockets[0], true)?;
    let address = sockets[0].local_addr()?;
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    for _ in 1..lanes {
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        rustix::net::bind(&socket, &address)?;
        sockets.push(socket.into());
    }
    // Without a program the kernel chooses a socket by the datagram's addresses and ports.
    steer(&sockets, [])?;
    Ok(sockets)
}

/// Attaches a program that steers these groups to their lanes, and everything else to the first, in
/// place of the last program.
pub fn steer(sockets: &[UdpSocket], groups: impl IntoIterator<Item = (GroupId, usize)>) -> io::Result<()> {
    if sockets.len() == 1 {
        return Ok(());
    }
    let groups = groups.into_iter().inspect(|&(_, lane)| assert!(lane < sockets.len(), "no lane {lane}"));
    let mut instructions = program(groups);
    let program =
        libc::sock_fprog { len: instructions.len() as libc::c_ushort, filter: instructions.as_mut_ptr() };
    // SAFETY: the option's value is a program, which the kernel copies, checks, and does not
    // change; both live until the call returns.
    let outcome = unsafe {
        libc::setsockopt(
            sockets[0].as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The program: it compares the number of a datagram's group with that of one group after the
/// other. A load behind the end of a datagram ends it with 0.
fn program(groups: impl Iterator<Item = (GroupId, usize)>) -> Vec<libc::sock_filter> {
    let instruction = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let load = instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, GROUP.start as u32);
    let skip_unless = |group| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, group);
    let choose = |lane| instruction(libc::BPF_RET | libc::BPF_K, 0, lane);
    let mut instructions = vec![load];
    for (GroupId(group), lane) in groups.take(STEERED_MAX) {
        instructions.extend([skip_unless(group), choose(lane as u32)]);
    }
    instructions.push(choose(0));
    instructions
}

#[cfg(test)]
mod tests {
    use super::super::tests::receive_all;
    use super::super::{Datagrams, Lane, RECEIVE_BATCH};
    use super::*;
    use treecast_wire::{Body, HEADER_BYTES, Header, MemberId, Sequence, Timestamp, View};

    const ADDRESSES: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

    fn bind(address: &str, lanes: usize) -> Datagrams {
        Datagrams::bind(address.parse().unwrap(), 1 << 20, lanes).unwrap()
    }

    fn header(group: u32) -> [u8; HEADER_BYTES] {
        let (sender, sequence, timestamp) = (MemberId(1), Sequence(2), Timestamp(3));
        Header { group: GroupId(group), epoch: 4, sender, sequence, timestamp, body: Body::Probe }
            .write_without_code()
    }

    fn send(from: &mut Datagrams, to: &Datagrams, groups: impl IntoIterator<Item = u32>, length: usize) {
        for group in groups {
            from.add(to.address(), &header(group), vec![0; length]);
            if from.is_full() {
                from.send().unwrap();
            }
        }
        from.send().unwrap();
    }

    fn steer(socket: &mut Datagrams, groups: &[(u32, usize)]) {
        socket.steer(groups.iter().map(|&(group, lane)| (GroupId(group), lane))).unwrap();
    }

    /// The groups of the next datagrams of a lane.
    fn groups(socket: &mut Datagrams, lane: usize, count: usize) -> Vec<u32> {
        let all = receive_all(socket, lane, count);
        all.iter().map(|(_, bytes)| View::new(bytes).unwrap().group().0).collect()
    }

    fn assert_empty(socket: &mut Datagrams) {
        for lane in 0..socket.lanes() {
            assert_eq!(socket.receive(Lane::Own(lane), RECEIVE_BATCH).unwrap(), 0, "lane {lane}");
        }
    }

    #[test]
    fn datagrams_arrive_in_the_lane_of_their_group() {
        for address in ADDRESSES {
            let (mut one, mut other) = (bind(address, 1), bind(address, 4));
            // Numbers on both sides of the sign bit, and equal except for one byte.
            let lanes = [(7, 1), (u32::MAX, 2), (0x0700_0000, 3), (9, 0), (0x8000_0007, 3)];
            steer(&mut other, &lanes);
            send(&mut one, &other, [u32::MAX, 7, 9, 0x8000_0007, 0x0700_0000, 7], 100);
            assert_eq!(groups(&mut other, 0, 1), [9]);
            assert_eq!(groups(&mut other, 1, 2), [7, 7]);
            assert_eq!(groups(&mut other, 2, 1), [u32::MAX]);
            assert_eq!(groups(&mut other, 3, 2), [0x8000_0007, 0x0700_0000]);
            assert_empty(&mut other);
        }
    }

    #[test]
    fn batches_of_segments_arrive_in_the_lane_of_their_group() {
        for address in ADDRESSES {
            let (mut one, mut other) = (bind(address, 1), bind(address, 3));
            steer(&mut other, &[(1, 1), (2, 2)]);
            // Of one length, so that nothing but the group ends a batch.
            let sent = [[1; 20], [2; 20], [1; 20]].concat();
            send(&mut one, &other, sent.clone(), 700);
            assert_eq!(groups(&mut other, 1, 40), [1; 40]);
            assert_eq!(groups(&mut other, 2, 20), [2; 20]);
            assert_empty(&mut other);
            other.disable_offloads();
            send(&mut one, &other, sent, 700);
            assert_eq!(groups(&mut other, 1, 40), [1; 40]);
            assert_eq!(groups(&mut other, 2, 20), [2; 20]);
            assert_empty(&mut other);
        }
    }

    #[test]
    fn unknown_groups_and_short_datagrams_arrive_in_the_first_lane() {
        for address in ADDRESSES {
            let (mut one, mut other) = (bind(address, 1), bind(address, 3));
            // A load behind the end of a datagram is not group 0.
            steer(&mut other, &[(0, 1), (1, 2)]);
            send(&mut one, &other, [2, 3, 0x0100_0000], 0);
            assert_eq!(groups(&mut other, 0, 3), [2, 3, 0x0100_0000]);
            let plain = UdpSocket::bind(address).unwrap();
            for length in 0..GROUP.end {
                plain.send_to(&header(1)[..length], other.address()).unwrap();
            }
            let lengths: Vec<usize> =
                receive_all(&mut other, 0, GROUP.end).iter().map(|(_, bytes)| bytes.len()).collect();
            assert!(lengths.into_iter().eq(0..GROUP.end));
            assert_empty(&mut other);
        }
    }

    #[test]
    fn a_flood_loses_no_datagram_of_another_lane() {
        let (mut one, mut other) = (bind(ADDRESSES[0], 1), bind(ADDRESSES[0], 3));
        steer(&mut other, &[(1, 1), (2, 2)]);
        // Twice as much as the buffer of a lane, whose bound is twice what was set (socket(7)).
        let flood = 4 * (1 << 20) / 1_000;
        for _ in 0..10 {
            send(&mut one, &other, vec![1; flood / 10], 1_000);
            send(&mut one, &other, [2], 1_000);
        }
        assert_eq!(groups(&mut other, 2, 10), [2; 10]);
        let mut arrived = 0;
        while let count @ 1.. = other.receive(Lane::Own(1), RECEIVE_BATCH).unwrap() {
            arrived += (0..count).map(|message| other.message(message).unwrap().1.count()).sum::<usize>();
        }
        assert!(0 < arrived && arrived < flood, "{arrived} of {flood}");
    }

    #[test]
    fn steering_changes() {
        let (mut one, mut other) = (bind(ADDRESSES[0], 1), bind(ADDRESSES[0], 3));
        for (lanes, lane) in [(&[][..], 0), (&[(5, 1)], 1), (&[(4, 1), (5, 2)], 2), (&[(4, 2)], 0)] {
            steer(&mut other, lanes);
            // Those of before stay in their lane until they are received.
            send(&mut one, &other, [5], 0);
            steer(&mut other, &[]);
            assert_eq!(groups(&mut other, lane, 1), [5]);
            assert_empty(&mut other);
        }
    }

    #[test]
    fn a_receiver_chooses_how_much_it_takes_of_a_lane() {
        let (mut one, mut other) = (bind(ADDRESSES[0], 1), bind(ADDRESSES[0], 2));
        for length in 0..10 {
            send(&mut one, &other, [0], length);
        }
        assert_eq!(other.receive(Lane::Own(0), 3).unwrap(), 3);
        assert_eq!(other.receive(Lane::Own(0), 0).unwrap(), 0);
        assert_eq!(other.receive(Lane::Own(0), usize::MAX).unwrap(), 7);
        assert_eq!(other.message(6).unwrap().1.map(<[u8]>::len).collect::<Vec<_>>(), [HEADER_BYTES + 9]);
    }

    #[test]
    fn groups_beyond_the_most_that_are_steered_are_in_the_first_lane() {
        let (mut one, mut other) = (bind(ADDRESSES[0], 1), bind(ADDRESSES[0], 2));
        let all: Vec<(u32, usize)> = (0..=STEERED_MAX as u32).map(|group| (group, 1)).collect();
        steer(&mut other, &all);
        send(&mut one, &other, [0, STEERED_MAX as u32 - 1, STEERED_MAX as u32], 0);
        assert_eq!(groups(&mut other, 1, 2), [0, STEERED_MAX as u32 - 1]);
        assert_eq!(groups(&mut other, 0, 1), [STEERED_MAX as u32]);
    }

    #[test]
    fn each_lane_becomes_readable_by_itself() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let (mut one, mut other) = (bind(ADDRESSES[0], 1), bind(ADDRESSES[0], 3));
        steer(&mut other, &[(1, 1)]);
        send(&mut one, &other, [1], 0);
        let mut lanes: Vec<_> =
            other.descriptors().map(|lane| PollFd::from_borrowed_fd(lane, PollFlags::IN)).collect();
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        assert_eq!(poll(&mut lanes, Some(&second)).unwrap(), 1);
        assert!(lanes[1].revents().contains(PollFlags::IN));
    }

    #[test]
    fn an_address_in_use_is_refused() {
        let is_in_use = |outcome: io::Result<Datagrams>| {
            outcome.is_err_and(|error| error.raw_os_error() == Some(libc::EADDRINUSE))
        };
        for address in ADDRESSES {
            for lanes in [1, 3] {
                let one = bind(address, lanes);
                assert!(is_in_use(Datagrams::bind(one.address(), 1 << 20, 1)));
                assert!(is_in_use(Datagrams::bind(one.address(), 1 << 20, 3)));
                let address = one.address();
                drop(one);
                Datagrams::bind(address, 1 << 20, 2).unwrap();
            }
        }
    }
}
