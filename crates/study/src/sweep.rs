//! Many runs on all cores.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::BroadcastContext;
use rayon::prelude::*;
use treecast_fabric::Fabric;

use crate::error::StudyError;
use crate::run::{Row, RunSpec};

/// Runs all of them on the threads of the current rayon pool, each fabric built once. `done` is
/// called with each row when it is complete, in any order. The rows are in the order of the runs,
/// the same on any number of threads.
///
/// # Errors
/// The first error of [`RunSpec::run`], in the order of the runs.
pub fn run_all<'a>(
    runs: &[RunSpec<'a>],
    done: &(dyn Fn(&Row<'a>) + Sync),
) -> Result<Vec<Row<'a>>, StudyError> {
    run_until_stopped(runs, done, &AtomicBool::new(false))
}

/// As [`run_all`], until all runs are done or another thread has set `stop`.
///
/// # Errors
/// As [`run_all`]; [`StudyError::Interrupted`] if `stop` was set before the last run was done.
pub fn run_until_stopped<'a>(
    runs: &[RunSpec<'a>],
    done: &(dyn Fn(&Row<'a>) + Sync),
    stop: &AtomicBool,
) -> Result<Vec<Row<'a>>, StudyError> {
    let (fabrics, fabric_of) = built(runs, stop)?;
    let order = mixed(runs.len());
    let next = AtomicUsize::new(0);
    let failed = AtomicUsize::new(usize::MAX);
    // Each thread takes the next run when it has finished one, which balances runs of different
    // cost.
    let work = |_: BroadcastContext| {
        let mut rows = Vec::new();
        while let Some(&place) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            // Runs after a failed one are not needed.
            if place > failed.load(Ordering::Relaxed) {
                continue;
            }
            let row = runs[place].run_on(&fabrics[fabric_of[place]], stop);
            match &row {
                Ok(row) => done(row),
                Err(_) => _ = failed.fetch_min(place, Ordering::Relaxed),
            }
            rows.push((place, row));
        }
        rows
    };
    let mut rows: Vec<_> = rayon::broadcast(work).into_iter().flatten().collect();
    rows.sort_unstable_by_key(|(place, _)| *place);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// The distinct fabrics of the runs, and the index of each run's fabric.
fn built(runs: &[RunSpec], stop: &AtomicBool) -> Result<(Vec<Fabric>, Vec<usize>), StudyError> {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut firsts = Vec::new();
    let mut fabric_of = Vec::with_capacity(runs.len());
    for run in runs {
        let place = *places.entry(run.fabric_line()).or_insert_with(|| {
            firsts.push(run);
            firsts.len() - 1
        });
        fabric_of.push(place);
    }
    let fabrics: Vec<_> = firsts.par_iter().map(|run| run.build(stop)).collect();
    Ok((fabrics.into_iter().collect::<Result<_, _>>()?, fabric_of))
}

/// A permutation of `0..count` that separates neighbours: expensive and cheap runs alternate, so
/// the progress predicts the remaining time.
fn mixed(count: usize) -> Vec<usize> {
    // Steps of the golden section spread most evenly; a step coprime to `count` reaches every
    // index.
    let mut step = (count as f64 * 0.618) as usize;
    while gcd(step.max(1), count) > 1 {
        step += 1;
    }
    (0..count).scan(0, |at, _| Some(std::mem::replace(at, (*at + step.max(1)) % count))).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
