//! All-reduces: whose contributions a result must have, and whose it may have.

use treecast_proto::{Contribution, MemberId};

use super::Oracle;
use crate::scenario::{Fault, Scenario};

impl Oracle {
    /// A process of a host contributes to the all-reduce whose result is this message.
    pub fn contribute(&mut self, group: u32, session: u32, message: u32, host: usize, process: u32) {
        self.contributed.entry((group, session, message)).or_default().insert((host, process));
    }

    /// A root has the result of an all-reduce, which is its next message.
    pub fn reduce(
        &mut self,
        scenario: &Scenario,
        group: u32,
        session: u32,
        result: &Contribution,
    ) -> Result<(), String> {
        let packet = result.packet;
        let message = scenario.reduced_at(group, session, packet);
        let message = message.ok_or_else(|| format!("group {group} has a result for packet {packet}"))?;
        let repeated = self.results.insert((group, session, message), result.write());
        if self.is_misled(group) {
            return Ok(());
        }
        if repeated.is_some() {
            return Err(format!("group {group} has two results for message {message}"));
        }
        let values = result.values.as_ref();
        let values = values.ok_or_else(|| format!("contributions of group {group} differ in kind"))?;
        let (counts, _) = values.bytes.as_chunks::<4>();
        let all: u32 = counts.iter().copied().map(u32::from_le_bytes).sum();
        if all != u32::from(result.processes) {
            return Err(format!(
                "the result of message {message} of group {group} has {all} contributions, and says {}",
                result.processes
            ));
        }
        for (host, count) in counts.iter().copied().map(u32::from_le_bytes).enumerate() {
            let contributed = self.contributed.get(&(group, session, message));
            let contributed = contributed.into_iter().flatten().filter(|(of, _)| *of == host).count() as u32;
            let least = self.least_count(scenario, group, session, host);
            if !(least..=contributed).contains(&count) {
                return Err(format!(
                    "the result of message {message} of group {group} has {count} contributions of host {host}, and should have {least} to {contributed}"
                ));
            }
        }
        Ok(())
    }

    /// The number of processes of a host that a result has to wait for: those that are there, if
    /// the host's member is not lost.
    fn least_count(&self, scenario: &Scenario, group: u32, session: u32, host: usize) -> u32 {
        let setting = &scenario.groups[group as usize];
        let root = (host == scenario.root_host(group)).then_some(setting.root);
        let placed = self.hosts.range((group, session, MemberId(0))..=(group, session, MemberId(u32::MAX)));
        let placed = placed.filter(|&(key, &of)| of == host && !self.lost.contains_key(key));
        let Some(member) = root.or_else(|| placed.map(|(&(.., member), _)| member).next()) else { return 0 };
        // A late member is one process.
        let count = setting.processes.get(member.index()).copied().unwrap_or_default();
        let is_there = |&process: &u32| {
            !scenario.has_happened(Fault::Kill { host, group, process }, self.now)
                && !self.lost_processes.contains(&(group, session, member, process))
        };
        if count == 0 { 1 } else { (0..count).filter(is_there).count() as u32 }
    }
}
