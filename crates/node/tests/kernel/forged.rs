//! Packets of a host that does not know the keys of the session.

use std::net::{SocketAddr, UdpSocket};

use treecast_node::{GroupId, GroupSettings, Scheme, TreeScheme};
use treecast_wire::{
    Authentication, Body, Crcs, Data, Distribution, Header, Keys, MacKey, MemberId, PayloadKey, Sequence,
    Timestamp,
};

use crate::common::{groups, settings};
use crate::network::in_own_network;
use crate::{exchange, nodes, wait_until};

/// A data packet of a host that does not know the keys of the session.
fn forged(from: u32, sequence: u32) -> Vec<u8> {
    let keys = Keys {
        header: MacKey([1, 2]),
        control: MacKey([3, 4]),
        data: PayloadKey { code: MacKey([5, 6]), hash: [7; PayloadKey::HASH_WORDS] },
        authentication: Authentication::Header,
        crcs: Crcs::All,
    };
    let data = Data {
        message: 0,
        offset: 0,
        length: 6,
        message_length: 6,
        checksum: keys.data_checksum(Sequence(sequence), b"forged"),
        ack_requested: true,
        retransmitted: false,
        close: false,
        distribution: Distribution::Tree,
    };
    let header = Header {
        group: GroupId(1),
        epoch: 1,
        sender: MemberId(from),
        sequence: Sequence(sequence),
        timestamp: Timestamp(1),
        body: Body::Data(data),
    };
    [&header.write(&keys.header)[..], b"forged"].concat()
}

#[test]
fn forged_packets_are_counted_and_do_nothing() {
    in_own_network(|| {
        let nodes = nodes(3, "127.0.0.1:0");
        let groups = groups(
            &nodes,
            &GroupSettings { scheme: Some(Scheme::tree(TreeScheme::Separate)), ..settings(&nodes) },
        );
        exchange(&groups, 10, 6);
        let outsider = UdpSocket::bind("127.0.0.1:0").unwrap();
        let member: SocketAddr = nodes[1].address();
        let send = |packet: &[u8]| outsider.send_to(packet, member).unwrap();
        let next = 10;
        // Of the parent, and of another member; the next packet, and one that was there; a wake-up;
        // and half a packet.
        send(&forged(0, next));
        send(&forged(2, next));
        send(&forged(0, 3));
        send(&{
            let mut waking = forged(0, next);
            waking[0] = 0;
            waking
        });
        send(&forged(0, next)[..40]);
        wait_until("every forged packet is counted", || {
            let strays = nodes[1].strays().unwrap();
            strays.unauthentic == 3 && strays.malformed == 2
        });
        exchange(&groups, 10, 6);
    });
}
