//! The sizes of messages that operations are measured with.

use treecast_node::Values;
use treecast_terms::Operation;

use crate::error::BenchError;

/// The sizes that are measured if none are given.
pub const fn default_sizes(operation: Operation) -> &'static [usize] {
    match operation {
        Operation::Broadcast => &[1, 64, 1 << 10, 16 << 10],
        Operation::AllReduce => &[8, 64, Values::BYTES_MAX],
        Operation::Barrier => &[0],
    }
}

/// # Errors
/// [`BenchError::Bounds`] and [`BenchError::Combination`] for a size that it cannot have.
pub(crate) fn check_size(operation: Operation, bytes: usize) -> Result<(), BenchError> {
    let (value, values_max) = (size_of::<f64>(), Values::BYTES_MAX);
    let (what, min, max) = match operation {
        Operation::Broadcast => ("a size", 0, 4 << 30),
        Operation::AllReduce => ("a size of an all-reduce", value, values_max),
        Operation::Barrier => ("a size of a barrier", 0, usize::MAX),
    };
    if !(min..=max).contains(&bytes) {
        let (given, min, max) = (bytes as u64, min as u64, max as u64);
        return Err(BenchError::Bounds { what, given, min, max });
    }
    let refused =
        |why| Err(BenchError::Combination { what: format!("operation {operation} with {bytes} bytes"), why });
    match operation {
        Operation::AllReduce if !bytes.is_multiple_of(value) => refused("its values have 8 bytes each"),
        Operation::Barrier if bytes > 0 => refused("a barrier has no size, so leave out --sizes"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_sizes_are_possible() {
        for (_, operation) in Operation::NAMES {
            assert!(default_sizes(operation).iter().all(|&bytes| check_size(operation, bytes).is_ok()));
        }
    }

    #[test]
    fn a_size_that_an_operation_cannot_have_is_refused() {
        let refused = |operation: Operation, bytes| check_size(operation, bytes).unwrap_err().to_string();
        assert_eq!(
            refused(Operation::AllReduce, 512),
            "a size of an all-reduce must be from 8 to 504, and not 512"
        );
        assert_eq!(
            refused(Operation::AllReduce, 12),
            "operation all-reduce with 12 bytes: its values have 8 bytes each"
        );
        assert_eq!(
            refused(Operation::Barrier, 8),
            "operation barrier with 8 bytes: a barrier has no size, so leave out --sizes"
        );
    }
}
