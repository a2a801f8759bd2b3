//! How a node closes: its groups end first, within a bound.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::Timespec;
use treecast_proto::{AbortReason, Ending, GroupId, Input};
use treecast_shm::clock;

use super::Engine;
use super::group_entry::end;

/// How long groups may take to end, before they are aborted.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// How long aborted groups may take to tell their members.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the engine's thread checks whether all groups have ended.
pub(super) const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The state of a node that closes.
#[derive(Debug, Default)]
pub(super) struct Stop {
    started_at: Option<Instant>,
    has_aborted: bool,
}

impl Stop {
    /// Continues to close; says whether the engine has finished. A group whose application still
    /// has it is ended here: a root aborts it, another member leaves. The others are ending
    /// already.
    pub fn is_done(&mut self, engine: &mut Engine) -> bool {
        let started_at = *self.started_at.get_or_insert_with(|| {
            engine.core.reclaim_all();
            for (group, entry) in &engine.core.groups {
                if Arc::strong_count(&entry.shared_group) > 1 {
                    end(&mut engine.core.protocol, *group, AbortReason::NodeClosed);
                }
            }
            engine.send_some();
            Instant::now()
        });
        if started_at.elapsed() > END_TIMEOUT && !self.has_aborted {
            self.has_aborted = true;
            engine.core.reclaim_all();
            let groups: Vec<GroupId> = engine.core.protocol.groups().collect();
            for group in groups {
                let input = Input::Abort { group, why: AbortReason::NodeClosed };
                let _ = engine.core.protocol.handle(clock::now(), input);
            }
            engine.send_some();
        }
        let is_done = engine.core.protocol.groups().next().is_none()
            || started_at.elapsed() > END_TIMEOUT + ABORT_TIMEOUT;
        if is_done {
            // The engine runs no group any more, so this wakes the threads that still wait.
            for entry in engine.core.groups.values().filter(|entry| !entry.shared_group.has_ended()) {
                entry.shared_group.end(Ending::Aborted);
            }
        }
        is_done
    }
}
