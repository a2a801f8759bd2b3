//! Groups whose packets the kernel's packet path forwards.

use std::time::Duration;

use treecast_node::{EngineChoice, GroupSettings, Node, NodeSettings};

fn open() -> Node {
    let bind = "127.0.0.1:0".parse().unwrap();
    Node::open(&NodeSettings { bind, engine: EngineChoice::Ebpf, ..NodeSettings::default() }).unwrap()
}

#[test]
fn small() {
    let nodes: Vec<Node> = (0..4).map(|_| open()).collect();
    let settings = GroupSettings {
        scheme: Some("binomial".parse().unwrap()),
        ..GroupSettings::new(nodes.iter().map(Node::address).collect())
    };
    let groups: Vec<_> = nodes.iter().map(|node| node.group(&settings).unwrap()).collect();
    groups[0].wait_until_ready(Some(Duration::from_secs(5))).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    for number in 0..100_u32 {
        let message = vec![number as u8; number as usize * 100];
        groups[0].send(&message).unwrap();
        for group in &groups[1..] {
            assert_eq!(group.receive(Some(Duration::from_secs(5))).unwrap().unwrap(), message);
        }
    }
    for group in &groups {
        println!("{:?} {:?}", group.counters(), group.kernel_counts());
    }
}
