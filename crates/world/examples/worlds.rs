//! Runs worlds of nodes with the protocol on a bad network: a range of seeds, or one seed with all
//! that happens in it.
//!
//!     cargo run --package treecast-world --example worlds -- 17
//!     cargo run --package treecast-world --example worlds -- 0..100000

use std::io::IsTerminal;
use std::process::ExitCode;

use rayon::prelude::*;
use treecast_world::{Report, Violation, World};

/// The number of worlds between two reports of progress: about ten seconds.
const STRIDE: u64 = 500;

#[expect(clippy::disallowed_methods, reason = "which worlds is said on the command line")]
fn main() -> ExitCode {
    let Some((first, end)) = std::env::args().nth(1).as_deref().and_then(seeds) else {
        eprintln!("give a seed, as 17, or a range of seeds, as 0..1000");
        return ExitCode::from(2);
    };
    if end - first == 1 {
        return show(first);
    }
    let mut total = Report::default();
    let mut violations = 0;
    for from in (first..end).step_by(STRIDE as usize) {
        let upto = end.min(from + STRIDE);
        let outcomes: Vec<Result<Report, Violation>> =
            (from..upto).into_par_iter().map(World::check).collect();
        for outcome in outcomes {
            match outcome {
                Ok(report) => total += report,
                Err(violation) => {
                    violations += 1;
                    eprintln!("{violation}");
                }
            }
        }
        let line_end = if std::io::stderr().is_terminal() && upto < end { '\r' } else { '\n' };
        eprint!("{} of {} worlds, {violations} violations{line_end}", upto - first, end - first);
    }
    println!(
        "{} worlds: {} messages delivered, {} members lost, {} restarts, {} attacks that misled {} groups, \
         {} packets, {} on streams, {} hand-offs with {} packets, {} steps; {violations} violations",
        end - first,
        total.delivered_messages,
        total.lost_members,
        total.restarts,
        total.attacks,
        total.misled_groups,
        total.datagrams,
        total.records,
        total.hand_offs,
        total.handled_by_kernel,
        total.steps
    );
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Shows what a world is made of and all that happens in it.
fn show(seed: u64) -> ExitCode {
    let world = World::random(seed);
    println!("{}", world.describe());
    match world.run_watched(&mut |line| println!("{line}")) {
        Ok(report) => {
            println!("{report:?}");
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}

fn seeds(text: &str) -> Option<(u64, u64)> {
    let (first, end) = if let Some((first, end)) = text.split_once("..") {
        (first.parse().ok()?, end.parse().ok()?)
    } else {
        let seed: u64 = text.parse().ok()?;
        (seed, seed.checked_add(1)?)
    };
    (first < end).then_some((first, end))
}
