//! What an attacker with the token forges in the name of members is ignored, or ends a member with
//! a reason (docs/security.md).

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use treecast_node::{AbortReason, Authentication, EngineChoice, Eviction, GroupId, Offload};
use treecast_wire::{Control, Handshake, MemberId, Missing, Nonce, RootLoss, SessionId, Table};

use super::attacker::{Forger, Recorder};
use super::chain::{self, Chain, LEAF, Outcome, RELAY, ROOT, STRANGER, Setting, World};
use super::insider::{Forgery, Insider, now};
use super::{with_both_engines, with_both_engines_in};

type Forge = fn(&Insider) -> Forgery;

/// Forged packets after which all members receive all lines.
const IGNORED: &[(&str, Forge)] = &[
    // In the name of the relay, to the leaf.
    ("data beyond the receive window", |insider| {
        let mut forgery = insider.data(b"far ahead");
        forgery.header.sequence += 1_000;
        forgery
    }),
    ("data of more bytes than a slot has", |insider| insider.data(&[0; 1_200])),
    ("data that was accepted", |insider| {
        let mut forgery = insider.data(b"another line");
        forgery.header.sequence = forgery.header.sequence - 1;
        forgery
    }),
    ("data of the far future that was accepted", |insider| {
        let mut forgery = insider.data(b"another line").in_the_far_future();
        forgery.header.sequence = forgery.header.sequence - 1;
        forgery
    }),
    ("a probe behind packets that were never sent", |insider| {
        insider.probe(RELAY, LEAF, insider.next + 1_000)
    }),
    ("data for the root", |insider| {
        let mut forgery = insider.data(b"for the root").sent_from(insider.address(RELAY));
        forgery.to = insider.address(ROOT);
        forgery
    }),
    // In the name of the leaf, to the relay.
    ("an acknowledgment of what was not sent", |insider| {
        insider.ack(|next, ack| (*next, ack.stable) = (*next + 7, *next + 7))
    }),
    ("an acknowledgment of a subtree that is ahead", |insider| insider.ack(|_, ack| ack.stable += 1)),
    ("a receive window of more slots than there are", |insider| {
        insider.ack(|_, ack| ack.receive_window = 65)
    }),
    ("a receive window of no slots", |insider| insider.ack(|_, ack| ack.receive_window = 0)),
    ("a NAK of what was acknowledged", |insider| {
        insider.nak(insider.next, Missing { first: insider.next - 2, bits: 3 })
    }),
    ("a NAK of what was not sent", |insider| {
        insider.nak(insider.next, Missing { first: insider.next + 5, bits: u64::MAX })
    }),
    ("a probe for the root", |insider| insider.probe(RELAY, ROOT, insider.next)),
    // In the name of the root, to the leaf.
    ("a probe of the root", |insider| insider.probe(ROOT, LEAF, insider.next)),
    ("the same table", |insider| insider.table(1, |_| {})),
    ("the table of another member", |insider| insider.adoption(9).with_nonce(Nonce(5))),
    ("an unknown operation", |insider| insider.operation(ROOT, LEAF, 9, Nonce(0), Vec::new())),
    ("a leave for a member", |insider| insider.control(ROOT, LEAF, &Control::Leave)),
    ("an invitation to another session", |insider| {
        insider.handshake(ROOT, LEAF, &Handshake::Invite(SessionId([9; 16])))
    }),
    ("a welcome that answers no hello", |insider| {
        let address = insider.address(LEAF);
        insider.handshake(ROOT, LEAF, &Handshake::Welcome { session: SessionId([9; 16]), address })
    }),
    // In the name of members, to the root.
    ("a hello", |insider| insider.handshake(LEAF, ROOT, &Handshake::Hello)),
    ("a join with another address", |insider| insider.join(LEAF, insider.address(STRANGER))),
    ("the acknowledgment of another table", |insider| {
        let mut forgery = insider.control(LEAF, ROOT, &Control::TableAck(None));
        forgery.header.epoch = 7;
        forgery
    }),
    ("a suspicion of a neighbour that lives", |insider| suspect(insider, LEAF)),
    ("a suspicion of the root", |insider| suspect(insider, ROOT)),
    ("a suspicion of a number that no member has", |insider| suspect(insider, 77)),
    ("a loss of state of another member's child", |insider| {
        insider.control(LEAF, ROOT, &Control::StateLost(MemberId(RELAY as u32)))
    }),
    ("a table for the root", |insider| {
        let mut forgery = insider.table(9, |_| {}).sent_from(insider.address(LEAF));
        forgery.to = insider.address(ROOT);
        forgery
    }),
    ("an eviction of the root", |insider| {
        insider.control(LEAF, ROOT, &Control::Evicted(Eviction::Aborted(AbortReason::Application)))
    }),
    ("the root's loss, as the root hears it", |insider| {
        insider.control(RELAY, ROOT, &Control::RootLost(RootLoss::Restarted))
    }),
];

fn suspect(insider: &Insider, member: usize) -> Forgery {
    insider.control(RELAY, ROOT, &Control::Suspect(MemberId(member as u32)))
}

/// A forged packet, and how the group ends at root, relay and leaf.
struct Case {
    name: &'static str,
    forge: Forge,
    outcomes: [&'static str; 3],
    /// The outcomes where the root sends by multicast, if they are others.
    by_multicast: Option<[&'static str; 3]>,
    /// A line that the leaf receives instead of the root's next one.
    forged: Option<&'static str>,
}

const fn case(name: &'static str, forge: Forge, outcomes: [&'static str; 3]) -> Case {
    Case { name, forge, outcomes, by_multicast: None, forged: None }
}

const ALL_CLOSE: [&str; 3] = ["closed", "closed", "closed"];
const LEAF_IS_FAULTED: [&str; 3] = ["closed without [2]", "closed", "does not continue those before it"];
const TABLES_CONTRADICT: [&str; 3] = ["closed without [2]", "closed", "tables contradict each other"];
const LEAF_IS_LOST: [&str; 3] = ["closed without [2]", "closed", "the root declared this member lost"];
const LEAF_HAS_LOST_STATE: [&str; 3] = ["closed without [2]", "closed", "it had lost what it had accepted"];

/// A line as long as those of the root.
const FORGED: &str = "forged, as long as";

const CASES: &[Case] = &[
    case(
        "a piece of a later message",
        |insider| insider.edited_data(b"of a later message", |data| data.message += 5),
        LEAF_IS_FAULTED,
    ),
    case(
        "a piece from the middle of a message",
        |insider| insider.edited_data(b"the middle", |data| (data.offset, data.message_length) = (4, 100)),
        LEAF_IS_FAULTED,
    ),
    case("a closing packet after more messages", |insider| insider.close(1), LEAF_IS_FAULTED),
    Case {
        forged: Some(FORGED),
        ..case("a line of the root's length", |insider| insider.data(FORGED.as_bytes()), ALL_CLOSE)
    },
    Case {
        forged: Some("a line of another length"),
        ..case(
            "a line of another length",
            |insider| insider.data(b"a line of another length"),
            LEAF_IS_FAULTED,
        )
    },
    case(
        "an acknowledgment of less than before, for the last packet",
        |insider| insider.ack(|next, ack| (*next, ack.stable, ack.echo) = (*next - 2, *next - 2, now())),
        LEAF_HAS_LOST_STATE,
    ),
    case(
        "an acknowledgment that was overtaken",
        |insider| insider.ack(|next, ack| (*next, ack.stable) = (*next - 2, *next - 2)),
        ALL_CLOSE,
    ),
    case(
        "an acknowledgment of the far future",
        |insider| insider.ack(|_, _| {}).in_the_far_future(),
        ALL_CLOSE,
    ),
    case(
        "a probe of the far future",
        |insider| insider.probe(RELAY, LEAF, insider.next).in_the_far_future(),
        ALL_CLOSE,
    ),
    case(
        "a probe of the root's of the far future",
        |insider| insider.probe(ROOT, LEAF, insider.next).in_the_far_future(),
        ALL_CLOSE,
    ),
    case("a table of the next epoch", |insider| insider.table(2, |_| {}), TABLES_CONTRADICT),
    // What comes by multicast needs no parent.
    Case {
        by_multicast: Some(ALL_CLOSE),
        ..case("a parent that is silent", |insider| insider.adoption(2), TABLES_CONTRADICT)
    },
    Case {
        by_multicast: Some(ALL_CLOSE),
        ..case("a parent that is silent, for ever", |insider| insider.adoption(u32::MAX), TABLES_CONTRADICT)
    },
    case(
        "another number",
        |insider| insider.table(2, |table| table.member = MemberId(7)),
        ["closed without [2]", "closed", "ended"],
    ),
    case(
        "more slots than there is memory",
        |insider| {
            insider.table(2, |table| (table.slots, table.payload_bytes_max) = (Table::SLOTS_MAX, 65_000))
        },
        TABLES_CONTRADICT,
    ),
    case(
        "other codes",
        |insider| insider.table(2, |table| table.authentication = Authentication::Payload),
        TABLES_CONTRADICT,
    ),
    case("other slots", |insider| insider.table(2, |table| table.slots = 4), TABLES_CONTRADICT),
    case("evicted: silent", |insider| evicted(insider, Eviction::Silent), LEAF_IS_LOST),
    case(
        "evicted: left",
        |insider| evicted(insider, Eviction::Left),
        ["closed without [2]", "closed", "has left"],
    ),
    case(
        "evicted: refused",
        |insider| evicted(insider, Eviction::Refused),
        ["closed without [2]", "closed", "admits no late"],
    ),
    case(
        "evicted: aborted",
        |insider| evicted(insider, Eviction::Aborted(AbortReason::Application)),
        ["closed without [2]", "closed", "the root aborted"],
    ),
    case(
        "evicted: closed",
        |insider| evicted(insider, Eviction::Closed),
        ["closed without [2]", "closed", "has not received all"],
    ),
    case(
        "the root has started again",
        |insider| insider.control(RELAY, LEAF, &Control::RootLost(RootLoss::Restarted)),
        ["closed without [2]", "closed", "the root has started again"],
    ),
    case(
        "the root is silent",
        |insider| insider.control(RELAY, LEAF, &Control::RootLost(RootLoss::Silent)),
        ALL_CLOSE,
    ),
    case(
        "leave",
        |insider| insider.control(LEAF, ROOT, &Control::Leave),
        ["closed without [2]", "closed", "has left"],
    ),
    case(
        "a join of another member at this address",
        |insider| insider.join(LEAF, insider.address(LEAF)),
        LEAF_HAS_LOST_STATE,
    ),
    case(
        "a loss of the leaf's state",
        |insider| insider.control(RELAY, ROOT, &Control::StateLost(MemberId(LEAF as u32))),
        LEAF_HAS_LOST_STATE,
    ),
];

fn evicted(insider: &Insider, why: Eviction) -> Forgery {
    insider.control(ROOT, LEAF, &Control::Evicted(why))
}

/// What the groups that are attacked have in common.
const SETTINGS: &[(Setting, &str)] = &[
    (Setting::DEFAULT, "along the tree"),
    (
        Setting { is_v6: true, offload: Offload::Switch, authentication: Authentication::Payload },
        "IPv6, offload=switch",
    ),
];

#[test]
fn forged_packets_are_ignored_or_end_a_member_with_a_reason() {
    with_both_engines_in(SETTINGS, |engine, setting| {
        let Some(world) = World::with(engine, setting) else { return };
        // Members that get no processor for longer than they are waited for are lost: cases that
        // fail beside all the others are tried again beside few.
        let mut failures = Failures { cases: CASES.iter().collect(), reasons: Vec::new() };
        for attempt in 0..3 {
            failures = attack(&world, setting, 1_000 * attempt, &failures.cases);
            if failures.reasons.is_empty() {
                return;
            }
        }
        panic!("{engine}, {setting:?}:\n{}", failures.reasons.join("\n"));
    });
}

/// What was not as it should be.
#[derive(Default)]
struct Failures<'a> {
    cases: Vec<&'a Case>,
    /// One for each case, and one if the chain that gets all ignored packets has failed.
    reasons: Vec<String>,
}

/// Attacks a chain for each case, and one more with what is ignored. The numbers of the groups
/// begin with `first`.
fn attack<'a>(world: &Arc<World>, setting: Setting, first: u32, cases: &[&'a Case]) -> Failures<'a> {
    let recorder = world.hosts.run_on(ROOT, Recorder::start);
    let forger = world.hosts.run_on(STRANGER, Forger::start);
    let mut chains: Vec<Chain> =
        (0..=cases.len()).map(|case| Chain::start(world, first + case as u32)).collect();
    for chain in &mut chains {
        (0..3).for_each(|_| chain.exchange("nothing"));
    }
    let recorded = recorder.take();
    let learn = |chain: &Chain| {
        let group = GroupId(chain.number);
        Insider::learn_with(&recorded, group, &world.hosts, &chain.sent, setting.authentication)
    };

    let ignored = chains.pop().unwrap();
    for (chain, case) in chains.iter().zip(cases) {
        forger.send(&(case.forge)(&learn(chain)).write());
    }
    let insider = learn(&ignored);
    let ignored = attack_in_vain(ignored, insider, &forger);
    // Longer than a member that is cut off is waited for, and than a member waits to which nothing
    // new comes before it asks the root.
    thread::sleep(Duration::from_secs(6));
    // All end side by side.
    for chain in &mut chains {
        (0..LINES_AFTER).for_each(|_| chain.send());
        chain.close();
    }
    let mut failures = Failures::default();
    for (chain, &case) in chains.into_iter().zip(cases) {
        if let Some(reason) = check(chain, case, setting) {
            failures.cases.push(case);
            failures.reasons.push(reason);
        }
    }
    let closed = (Outcome::Closed(Vec::new()), Vec::new());
    match ignored.map(Chain::finish) {
        Ok(outcomes) if outcomes.iter().all(|outcome| *outcome == closed) => {}
        Ok(outcomes) => failures.reasons.push(format!("after what is ignored: {outcomes:?}")),
        Err(reason) => failures.reasons.push(reason),
    }
    failures
}

/// Sends a chain all that is ignored, and a line after each packet.
///
/// # Errors
///
/// A line does not arrive.
fn attack_in_vain(mut chain: Chain, mut insider: Insider, forger: &Forger) -> Result<Chain, String> {
    for (name, forge) in IGNORED {
        forger.send(&forge(&insider).write());
        chain.try_exchange(name)?;
        insider.on_line(chain.sent.last().unwrap());
    }
    Ok(chain)
}

/// Bad memory of the relay, or of a switch behind it, changes the payload of an authentic packet,
/// and the checksum of its datagram is computed after that.
#[test]
fn a_payload_that_no_checksum_of_the_network_protects_is_never_passed_on() {
    with_both_engines(|engine| {
        let Some(world) = World::start(engine) else { return };
        let recorder = world.hosts.run_on(ROOT, Recorder::start);
        let forger = world.hosts.run_on(STRANGER, Forger::start);
        let mut chain = Chain::start(&world, 0);
        (0..3).for_each(|_| chain.exchange("nothing"));
        let insider = Insider::learn(&recorder.take(), GroupId(0), &world.hosts, &chain.sent);
        let next = chain.next_line();
        let mut changed = insider.data(next.as_bytes()).write();
        *changed.bytes.last_mut().unwrap() ^= 1;
        forger.send_with_checksum(&changed);
        thread::sleep(Duration::from_millis(200));
        (0..LINES_AFTER).for_each(|_| chain.send());
        chain.close();
        let expected = chain.sent[chain.sent.len() - LINES_AFTER..].to_vec();
        let outcomes = chain.finish();
        // In the user engine the protocol drops the packet. In the kernel's packet path the reader
        // finds the wrong CRC, and its node asks for the packet again.
        let closed = (Outcome::Closed(Vec::new()), expected);
        assert_eq!((&outcomes[RELAY], &outcomes[LEAF]), (&closed, &closed), "{engine}");
    });
}

/// The leaf does not read the corrupt packet before its parent has reused the packet's slot. With
/// the kernel engine nobody can repair the payload then: the leaf's group ends, and the other
/// members go on.
#[test]
fn a_corrupt_payload_that_the_parent_has_no_more_ends_its_reader_alone() {
    with_both_engines(|engine| {
        let Some(world) = World::start(engine) else { return };
        let recorder = world.hosts.run_on(ROOT, Recorder::start);
        let forger = world.hosts.run_on(STRANGER, Forger::start);
        let mut chain = Chain::start(&world, 0);
        chain.rest_after(LEAF, 3);
        (0..3).for_each(|_| chain.exchange("nothing"));
        let insider = Insider::learn(&recorder.take(), GroupId(0), &world.hosts, &chain.sent);
        let corrupt = chain.sent.len();
        let mut changed = insider.data(chain.next_line().as_bytes()).write();
        *changed.bytes.last_mut().unwrap() ^= 1;
        // During a step of its node the protocol runs the leaf's group, and drops the packet.
        let is_stored = chain.is_stored(LEAF, corrupt as u64, || forger.send_with_checksum(&changed));
        assert_eq!(is_stored, engine == EngineChoice::Ebpf);
        (0..=chain::SLOTS).for_each(|_| chain.send());
        assert_eq!(chain.take_lines_after(RELAY, corrupt), chain.sent[corrupt..]);
        if is_stored {
            // A late packet of the relay would repair the forged one. It precedes those that
            // follow, unless it is lost: then the relay does not repeat it, as it was acknowledged.
            chain.wait_until_stored(LEAF, (corrupt + chain::SLOTS) as u64);
        }
        chain.rest_after(LEAF, usize::MAX);
        chain.close();
        let expected = chain.sent[corrupt..].to_vec();
        let outcomes = chain.finish();
        let (leaf, lines) = &outcomes[LEAF];
        if engine == EngineChoice::User {
            // The protocol has dropped the packet, and received it again.
            assert_eq!(outcomes[ROOT].0, Outcome::Closed(Vec::new()));
            assert_eq!((leaf, lines), (&Outcome::Closed(Vec::new()), &expected));
        } else {
            assert_eq!(outcomes[ROOT].0, Outcome::Closed(vec![LEAF as u32]));
            assert!(matches!(leaf, Outcome::Ended(why) if why.contains("corrupt")), "{leaf:?}");
            assert!(lines.is_empty(), "{lines:?}");
        }
        assert_eq!(outcomes[RELAY].0, Outcome::Closed(Vec::new()));
    });
}

/// The lines that the root sends after a packet was forged.
const LINES_AFTER: usize = 2;

/// Waits for the end of a group; what is not as it should be.
fn check(chain: Chain, case: &Case, setting: Setting) -> Option<String> {
    let by_multicast = case.by_multicast.filter(|_| setting.offload == Offload::Switch);
    let expected_outcomes = by_multicast.unwrap_or(case.outcomes);
    let mut expected = chain.sent[chain.sent.len() - LINES_AFTER..].to_vec();
    let outcomes = chain.finish();
    let mut wrong = outcomes.iter().zip(expected_outcomes).any(|((outcome, _), part)| {
        let is_exact = part.starts_with("closed");
        let text = format!("{outcome:?}");
        if is_exact { text != part } else { !text.contains(part) }
    });
    for (host, (outcome, lines)) in outcomes.iter().enumerate().skip(RELAY) {
        if let Some(forged) = case.forged.filter(|_| host == LEAF) {
            expected[0] = forged.into();
        }
        let is_whole = matches!(outcome, Outcome::Closed(_));
        wrong |= if is_whole { *lines != expected } else { !expected.starts_with(lines) };
    }
    wrong.then(|| format!("{}: {outcomes:?}", case.name))
}
