//! What excuses what.

use treecast_proto::PayloadChecksum;

use super::*;
use crate::scenario::Attacks;

/// A scenario with attackers that have the token, these faults, and a member beside the root of
/// group 0; that member's number and host.
fn scenario(faults: impl Fn(usize) -> Vec<(Nanoseconds, Fault)>) -> (Scenario, MemberId, usize) {
    let is_fit = |scenario: &Scenario| {
        scenario.groups[0].hosts.len() > 1 && scenario.groups[0].messages.first().is_some_and(|&m| m > 0)
    };
    let mut scenario = (0..100).map(Scenario::random).find(is_fit).unwrap();
    scenario.attacks = Attacks { replayed: 0.1, forged: 0.1, has_token: true };
    scenario.faults = faults(scenario.root_host(0));
    let member = (0..2).map(MemberId).find(|&member| member != scenario.groups[0].root).unwrap();
    let host = scenario.groups[0].hosts[member.index()];
    (scenario, member, host)
}

#[test]
fn a_wrong_byte_is_excused_only_after_an_authentic_forgery() {
    let (scenario, _, host) = scenario(|_| Vec::new());
    let mut oracle = Oracle::new(&scenario);
    let id = ReaderId { group: 0, host, life: 0, join: 0 };
    let wrong = [oracle.content(0, 0, 0, 0).next().unwrap() ^ 1];
    let (message_length, checksum) = (scenario.messages(0, 0).next().unwrap(), PayloadChecksum(0));
    let piece = Piece { message: 0, offset: 0, length: 1, message_length, checksum };
    let read = |oracle: &mut Oracle| oracle.read(&scenario, id, 0, false, &piece, &wrong);
    assert!(read(&mut oracle).is_err());
    oracle.mislead(1);
    assert!(read(&mut oracle).is_err(), "the forgery was of another group");
    oracle.mislead(0);
    assert_eq!(read(&mut oracle), Ok(()));
}

#[test]
fn the_crash_of_a_root_excuses_no_loss_of_its_next_session() {
    let ms = Nanoseconds::from_ms;
    let crash = |root| vec![(ms(10), Fault::Crash(root)), (ms(20), Fault::Restart(root))];
    let (scenario, member, host) = scenario(crash);
    let mut oracle = Oracle::new(&scenario);
    oracle.create(0, 0);
    oracle.now = ms(20);
    oracle.create(0, 1);
    oracle.now = ms(6_000);
    let loss = MemberLoss::Unreachable(ms(5_000));
    let lose = |oracle: &mut Oracle| oracle.lose(&scenario, 1, 0, member, loss);
    assert!(lose(&mut oracle.clone()).is_err());
    oracle.retire(0, host);
    assert_eq!(lose(&mut oracle), Ok(()), "its application is done with the group");
}

#[test]
fn a_fault_excuses_only_the_sessions_that_it_overlaps() {
    let ms = Nanoseconds::from_ms;
    let (mut scenario, member, host) = scenario(|_| Vec::new());
    scenario.faults = vec![(ms(10), Fault::Pause { host, span: ms(1_000) })];
    let lose = |created_at| {
        let mut oracle = Oracle::new(&scenario);
        oracle.now = created_at;
        oracle.create(0, 0);
        oracle.now = ms(5_000);
        oracle.lose(&scenario, 0, 0, member, MemberLoss::Silent(ms(800)))
    };
    assert_eq!(lose(Nanoseconds::ZERO), Ok(()));
    assert!(lose(ms(1_500)).is_err());
}
