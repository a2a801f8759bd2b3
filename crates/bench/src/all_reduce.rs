//! All-reduces and barriers of a worker, one after the other, as benchmarks of MPI call them.

use std::io;

use treecast_node::{Group, NodeError};
use treecast_terms::Operation;

use crate::clock::{now_ns, thread_cpu_ns};
use crate::control::{Measured, RunRequest, TIMEOUT};

/// The number of calls before the first measurement: after them all members call at about the same
/// time.
const WARM_UP_CALLS: u32 = 10;

/// Makes the calls before the first measurement.
///
/// # Errors
/// Those of [`Group::all_reduce`], and [`NodeError::System`] for a wrong sum.
pub fn warm_up(group: &Group, run: &RunRequest) -> Result<(), NodeError> {
    let mut values = Values::new(group, run);
    (0..WARM_UP_CALLS).try_for_each(|number| {
        values.give(number);
        values.call(group, run.operation)?;
        values.check(number)
    })
}

/// Measures each call.
///
/// # Errors
/// As [`warm_up`].
pub fn measure(group: &Group, run: &RunRequest) -> Result<Measured, NodeError> {
    let mut values = Values::new(group, run);
    let mut measured = Measured::default();
    let is_root = group.is_root();
    for number in 0..run.messages {
        values.give(number);
        let (cpu, start) = (thread_cpu_ns(), now_ns());
        values.call(group, run.operation)?;
        let end = now_ns();
        measured.call_cpu_ns.push(thread_cpu_ns() - cpu);
        measured.at_ns.push(if is_root { start } else { end });
        measured.span_ns.push(end - start);
        values.check(number)?;
    }
    if is_root {
        group.flush(Some(TIMEOUT))?;
    }
    Ok(measured)
}

/// The values of a member in its calls. All sums are whole numbers that an `f64` has.
struct Values {
    values: Vec<f64>,
    member: u32,
    members: u32,
}

impl Values {
    fn new(group: &Group, run: &RunRequest) -> Self {
        let members = group.settings().members.len() as u32;
        let values = vec![0.0; run.bytes / size_of::<f64>()];
        Self { values, member: group.member().unwrap_or_default(), members }
    }

    /// Those that the member gives in the call with this number.
    fn give(&mut self, number: u32) {
        let factor = f64::from(self.member + 1);
        for (value, base) in self.values.iter_mut().zip(bases(number)) {
            *value = base * factor;
        }
    }

    fn call(&mut self, group: &Group, operation: Operation) -> Result<u32, NodeError> {
        match operation {
            Operation::Barrier => group.barrier(Some(TIMEOUT)),
            Operation::Broadcast | Operation::AllReduce => {
                group.all_reduce(&mut self.values, treecast_node::Operation::Sum, Some(TIMEOUT))
            }
        }
    }

    /// Whether they are the sums of all members' values.
    fn check(&self, number: u32) -> Result<(), NodeError> {
        let members = f64::from(self.members);
        let factors = members * (members + 1.0) / 2.0;
        let is_sum = |(&value, base): (&f64, f64)| value.to_bits() == (base * factors).to_bits();
        if self.values.iter().zip(bases(number)).all(is_sum) {
            return Ok(());
        }
        let source = io::Error::new(io::ErrorKind::InvalidData, "another sum than that of all values");
        Err(NodeError::System { what: "an all-reduce has failed", source })
    }
}

/// By how much the values differ from call to call, and from each other.
fn bases(number: u32) -> impl Iterator<Item = f64> {
    (1_u32..).map(move |index| f64::from(number) + f64::from(index))
}
