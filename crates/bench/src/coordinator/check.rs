//! The settings of a benchmark that are refused, and why.

use treecast_lab::LabSettings;
use treecast_node::{Scheme, TreeScheme};
use treecast_terms::Operation;

use super::{Bench, Workload};
use crate::error::BenchError;
use crate::hosts::Hosts;
use crate::operation::check_size;

impl Bench {
    pub(super) fn check(&self) -> Result<(), BenchError> {
        let within = |what, given: u64, min, max| {
            if (min..=max).contains(&given) {
                Ok(())
            } else {
                Err(BenchError::Bounds { what, given, min, max })
            }
        };
        let hosts = u64::from(self.hosts.count());
        within("hosts", hosts, 2, 250)?;
        within("messages", self.messages.into(), 1, 100_000_000)?;
        within("rounds", self.rounds.into(), 1, 1_000_000)?;
        within(
            "processes on each host",
            self.processes.into(),
            1,
            LabSettings::PROCESSES_PER_HOST_MAX.into(),
        )?;
        let processes = hosts * u64::from(self.processes);
        within("processes on all hosts", processes, 2, LabSettings::PROCESSES_MAX.into())?;
        self.check_operation()?;
        self.check_processes()?;
        self.check_peer()?;
        let cases = (self.modes.len() * self.sizes.len() * self.delays().len()) as u64;
        within("configurations times sizes, and times delays,", cases, 1, 500)?;
        for &bytes in &self.sizes {
            check_size(self.operation, bytes)?;
        }
        if let Some(member) = self.kill {
            for &bytes in &self.sizes {
                within("a size, with a member to kill,", bytes as u64, 1, 4 << 30)?;
            }
            within("the member to kill, which is not the root,", member.into(), 1, hosts - 1)?;
            within(
                "configurations times sizes, with a member to kill,",
                (self.modes.len() * self.sizes.len()) as u64,
                1,
                1,
            )?;
        }
        Ok(())
    }

    /// Rejects settings that only broadcasts support.
    fn check_operation(&self) -> Result<(), BenchError> {
        if self.operation == Operation::Broadcast {
            return Ok(());
        }
        let refused = |what: &str, why| {
            Err(BenchError::Combination { what: format!("operation {} with {what}", self.operation), why })
        };
        if self.workload != Workload::Latency || !self.flushes {
            return refused(
                "--stream, --when-stored, --no-flush, --skew or --late",
                "each call waits for all members",
            );
        }
        if self.kill.is_some() {
            return refused("--kill", "the loss is measured in the middle of a message");
        }
        if let Some(peer) = self.peers.iter().find(|peer| !peer.is_mpi()) {
            return refused(&format!("peer {peer}"), "it has only broadcasts");
        }
        Ok(())
    }

    /// Rejects settings that processes sharing a node do not support, and those that only they
    /// support.
    fn check_processes(&self) -> Result<(), BenchError> {
        let refused = |what: String, why| Err(BenchError::Combination { what, why });
        let several = format!("{} processes on each host", self.processes);
        if let Workload::Late(late) = &self.workload {
            let hosts = self.hosts.count();
            let are_all = self.processes == 1 && (late.host.is_none() || hosts < 3);
            if are_all {
                let what = format!("a late process, and {} on each host", self.processes);
                return refused(
                    what,
                    "those in time are compared: name one of three hosts or more by --late-host",
                );
            }
            let at_most = |what, given: u32, max: u32| {
                let (given, max) = (u64::from(given), u64::from(max));
                if given > max { Err(BenchError::Bounds { what, given, min: 0, max }) } else { Ok(()) }
            };
            at_most("the number of the late process", late.process, self.processes - 1)?;
            at_most("the number of the late host", late.host.unwrap_or_default(), hosts - 1)?;
            if (late.host, late.process) == (Some(0), 0) {
                return refused("a late process 0 of host 0".into(), "it is the root, which is in time");
            }
        }
        if self.processes == 1 {
            return Ok(());
        }
        if let Some(mode) = self.modes.iter().find(|mode| !mode.offload.is_by_node()) {
            let why = "they share the node of their host, which forwards: expected offload nic or switch";
            return refused(format!("{several}, and offload {}", mode.offload), why);
        }
        let measured = Some(TreeScheme::Postal { lambda: None });
        if self.modes.iter().any(|mode| mode.scheme.and_then(Scheme::as_tree) == measured) {
            let why = "they do not measure lambda: add it, such as postal:lambda=8";
            return refused(format!("{several}, and scheme postal"), why);
        }
        if let Some(member) = self.kill {
            let why = "the loss of a host is measured, and the other processes keep it in the group";
            return refused(format!("{several}, and a member to kill ({member})"), why);
        }
        Ok(())
    }

    /// Where a peer cannot be measured.
    fn check_peer(&self) -> Result<(), BenchError> {
        let Some(peer) = self.peers.first() else { return Ok(()) };
        let refused =
            |what: &str, why| Err(BenchError::Combination { what: format!("{peer}, and {what}"), why });
        if !matches!(self.hosts, Hosts::Lab(_)) {
            return refused(
                "hosts that are not those of a lab",
                "the lab's remote shell starts it on each host",
            );
        }
        if self.workload == Workload::Stored {
            return refused("--when-stored", "it has no slots");
        }
        let is_scheduled = matches!(self.workload, Workload::Skew(_) | Workload::Late(_));
        if is_scheduled && self.peers.iter().any(|peer| !peer.is_mpi()) {
            return refused("--skew or --late", "only openmpi and mpich have these");
        }
        if self.kill.is_some() {
            return refused("a member to kill", "it ends when a process ends");
        }
        if self.processes > 1 && self.peers.iter().any(|peer| !peer.is_mpi()) {
            return refused("several processes on each host", "only MPI has these");
        }
        Ok(())
    }
}
