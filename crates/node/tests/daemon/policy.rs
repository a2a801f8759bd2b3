//! Limits of the policy: groups, their memory, numbers and members.

use std::net::SocketAddr;
use std::time::Duration;

use treecast_node::{
    Ending, EngineChoice, Eviction, Group, GroupId, GroupSettings, Keyed, NodeError, Policy,
};

use crate::{Served, TIMEOUT, client, exchange, other};

#[test]
fn a_policy_limits_groups_memory_and_numbers() {
    let text = "[[rule]]\nname = \"all\"\nall_users = true\ngroups_max = 2\nmemory_max = \"4M\"\nnumbers = [\"10-19\"]";
    let served = Served::new(EngineChoice::User, Policy::parse(text, "policy").unwrap());
    let (here, there) = (client(&served.socket()), other());
    let settings = |group, slots| GroupSettings {
        group: GroupId(group),
        slots: Some(slots),
        ..GroupSettings::new(vec![here.address(), there.address()])
    };
    let refusal = |group, slots| here.group(&settings(group, slots)).unwrap_err().to_string();
    assert_eq!(refusal(1, 64), "rule \"all\" allows groups 10-19, and not 1");
    let error = refusal(10, 4_096);
    assert!(error.starts_with("rule \"all\" allows groups 4M of memory"), "{error}");
    let kept = [10, 11].map(|group| here.group(&settings(group, 64)).unwrap());
    assert_eq!(refusal(12, 64), "rule \"all\" allows 2 groups at once, and the user has 2");
    // A member's memory has the root's size.
    drop(kept);
    let big = GroupSettings { root: 1, ..settings(13, 4_096) };
    let root = there.group(&big).unwrap();
    let error = until_accepted(|| here.group(&big)).receive(TIMEOUT).unwrap_err().to_string();
    assert!(error.starts_with("rule \"all\" allows groups 4M of memory"), "{error}");
    drop(root);
}

#[test]
fn a_policy_limits_the_members_that_a_root_names_and_admits() {
    let text = "[[rule]]\nname = \"all\"\nall_users = true\nmembers_max = 3";
    let served = Served::new(EngineChoice::User, Policy::parse(text, "policy").unwrap());
    let (here, there, late) = (client(&served.socket()), other(), [other(), other()]);
    let mut members = vec![here.address(), there.address()];
    let settings = GroupSettings { admits: true, ..GroupSettings::new(members.clone()) };
    let root = here.group(&settings).unwrap();
    let member = there.group(&settings).unwrap();
    exchange(&root, &member, 3);
    let joined = late[0].join_running(&settings).unwrap();
    joined.wait_until_ready(TIMEOUT).unwrap();
    root.send(b"for three").unwrap();
    assert_eq!(joined.receive(TIMEOUT).unwrap().unwrap(), b"for three");
    let refused = late[1].join_running(&settings).unwrap().receive(TIMEOUT).unwrap_err();
    assert!(matches!(refused, NodeError::Ended(Ending::Evicted(Eviction::Full))), "{refused}");
    members.extend((2..4_001_u16).map(|port| SocketAddr::from(([127, 1, 1, 1], port))));
    let error = here.group(&GroupSettings { group: GroupId(2), ..GroupSettings::new(members) }).unwrap_err();
    assert_eq!(error.to_string(), "rule \"all\" allows groups of 3 members, and not 4001");
    // The members of a member's group are its root's affair.
    let others = (2..200_u16).map(|port| SocketAddr::from(([127, 1, 1, 1], port)));
    let members = [there.address(), here.address()].into_iter().chain(others).collect();
    let settings = GroupSettings { group: GroupId(3), ..GroupSettings::new(members) };
    let root = there.group(&settings).unwrap();
    let member = here.group(&settings).unwrap();
    root.send(b"for many").unwrap();
    assert_eq!(member.receive(TIMEOUT).unwrap().unwrap(), b"for many");
}

#[test]
fn a_group_whose_tree_outgrows_the_budget_ends() {
    let text = "[[rule]]\nname = \"all\"\nall_users = true\nmemory_max = \"6400K\"";
    let served = Served::new(EngineChoice::User, Policy::parse(text, "policy").unwrap());
    let (here, there) = (client(&served.socket()), other());
    // The others never answer. The member has half of them as its descendants.
    let mut members: Vec<_> = (0..128_u8).map(|other| SocketAddr::from(([127, 1, 1, other], 9))).collect();
    (members[0], members[64]) = (here.address(), there.address());
    let mut settings = GroupSettings { slots: Some(4_096), ..GroupSettings::new(members) };
    settings.set_key("scheme", "binomial").unwrap();
    let root = here.group(&settings).unwrap();
    let member = there.group(&settings).unwrap();
    member.wait_until_ready(TIMEOUT).unwrap();
    // The root adopts its five children.
    member.close(TIMEOUT).unwrap();
    let error = root.send(b"to all").and_then(|()| root.flush(TIMEOUT)).unwrap_err().to_string();
    assert!(error.starts_with("rule \"all\" allows groups 6400K of memory"), "{error}");
}

/// A group that has ended may count for a moment.
fn until_accepted(mut give: impl FnMut() -> Result<Group, NodeError>) -> Group {
    for _ in 0..400 {
        match give() {
            Ok(group) => return group,
            Err(error) => {
                assert!(matches!(error, NodeError::Daemon(_)), "{error}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
    give().unwrap()
}
