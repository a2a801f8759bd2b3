//! Attacks on groups in labs, with both engines. Hosts without the token attack in `strangers.rs`,
//! in several settings; hosts that have it in `insiders.rs`; and `earlier_runs.rs` replays an
//! earlier run. docs/security.md says who can do what.

pub mod attacker;
mod chain;
mod earlier_runs;
pub mod hosts;
pub mod insider;
mod insiders;
mod strangers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use treecast_node::EngineChoice;

use crate::common::has_kernel_engine;

/// Runs a test with both engines side by side, or with the one that this machine has.
pub fn with_both_engines(test: impl Fn(EngineChoice) + Sync) {
    with_both_engines_in(&[((), "")], |engine, ()| test(engine));
}

/// The same in several settings, each with its name.
pub fn with_both_engines_in<T: Copy + Send + Sync>(
    settings: &[(T, &str)],
    test: impl Fn(EngineChoice, T) + Sync,
) {
    let engines = [EngineChoice::User, EngineChoice::Ebpf];
    let engines = engines.into_iter().filter(|engine| *engine == EngineChoice::User || has_kernel_engine());
    thread::scope(|scope| {
        let test = &test;
        for engine in engines {
            // A failure tells the name of its thread, and the setting. One setting after another:
            // with more labs at a time members miss their timeouts.
            let run = move || {
                for &(setting, name) in settings {
                    let outcome = catch_unwind(AssertUnwindSafe(|| test(engine, setting)));
                    assert!(outcome.is_ok(), "{engine} {name}");
                }
            };
            thread::Builder::new().name(engine.to_string()).spawn_scoped(scope, run).unwrap();
        }
    });
}
