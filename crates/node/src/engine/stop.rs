//! The end of a node: its groups end with it, each in order if it can.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::Timespec;
use treecast_proto::{Ending, GroupId, Input};

use super::Engine;
use super::joints::{Joint, end};
use crate::clock;

/// Groups that end have so long before they are given up, and then so long to say so.
const PATIENCE: Duration = Duration::from_secs(5);
const FAREWELL: Duration = Duration::from_secs(1);

/// The engine's thread looks as often how far the end is.
pub(super) const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How far the end of a node has come.
#[derive(Debug, Default)]
pub(super) struct Stop {
    begun: Option<Instant>,
    has_given_up: bool,
}

impl Stop {
    /// Goes on with the end; says whether the engine is no longer needed. An application that still has its group has not
    /// asked for its end: the root gives it up, and another member leaves. All others are ending already.
    pub fn is_done(&mut self, engine: &mut Engine) -> bool {
        let now = clock::now();
        let begun = *self.begun.get_or_insert_with(|| {
            engine.own_all();
            for (group, joint) in &engine.joints.groups {
                if Arc::strong_count(&joint.channel) > 1 {
                    end(&mut engine.protocol, *group);
                }
            }
            engine.send_all();
            Instant::now()
        });
        if begun.elapsed() > PATIENCE && !self.has_given_up {
            self.has_given_up = true;
            engine.own_all();
            let groups: Vec<GroupId> = engine.protocol.groups().collect();
            for group in groups {
                let _ = engine.protocol.handle(now, Input::Abort { group });
            }
            engine.send_all();
        }
        let is_done = engine.protocol.groups().next().is_none() || begun.elapsed() > PATIENCE + FAREWELL;
        if is_done {
            // Nobody drives the groups any more: whoever still waits is told.
            for Joint { channel, .. } in engine.joints.groups.values() {
                if !channel.has_ended() {
                    channel.end(Ending::Aborted);
                }
            }
        }
        is_done
    }
}
